"""Documents → samples, against a slow search through all samples."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core import BlendedNanoset, MMapIndexedDatasetBuilder, NanosetBuilder, NanosetConfig
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.lineage import positions
from nanoset_core.lineage.find import find_document
from nanoset_core.lineage.positions import blended, positions_of, renumbered, spans_of


def slow_places(loaded):
    """(member, sequence) → sorted [(sample, begin in sample, begin, end)] by asking every sample."""
    found = defaultdict(list)
    for k in range(len(loaded)):
        member, pieces = (
            loaded.sources(k) if isinstance(loaded, BlendedNanoset) else (0, loaded.sources(k))
        )
        into = 0
        for sequence, begin, end in pieces.tolist():
            if end > begin:
                found[member, sequence].append((k, into, begin, end))
                into += end - begin
    return {key: sorted(values) for key, values in found.items()}


def fast_places(loaded, member, sequence):
    nanoset = loaded.datasets[member] if isinstance(loaded, BlendedNanoset) else loaded
    found = renumbered(spans_of(nanoset, sequence), nanoset.shuffle_index)
    if isinstance(loaded, BlendedNanoset):
        found = blended(loaded, member, found)
    return sorted(map(tuple, found.rows()))


def write_dataset(prefix, lengths):
    builder = MMapIndexedDatasetBuilder(prefix, np.uint16)
    for length in lengths:
        builder.add_document(np.arange(length, dtype=np.uint16), [length])
    builder.finalize()


lengths_lists = st.lists(
    st.one_of(st.integers(0, 6), st.integers(20, 60)), min_size=6, max_size=30
).filter(lambda lengths: sum(lengths) > 60)


def check(folder, members, samples, chunk, **settings):
    """Every sequence of datasets of these lengths is found where asking every sample finds it."""
    for number, lengths in enumerate(members):
        write_dataset(folder / f"data{number}", lengths)
    prefixes = {str(folder / f"data{number}"): number + 1.0 for number in range(len(members))}
    config = NanosetConfig(
        prefixes if len(members) > 1 else next(iter(prefixes)),
        split="1,0,0" if settings["preset"] != "nemo" else "100,0,0",
        train_split_samples=samples,
        path_to_cache=str(folder / "cache"),
        **settings,
    )
    loaded, _, _ = NanosetBuilder(config).build()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions, "CHUNK", chunk)
        expected = slow_places(loaded)
        for member, lengths in enumerate(members):
            for sequence in range(len(lengths)):
                assert fast_places(loaded, member, sequence) == expected.get((member, sequence), [])


@settings(max_examples=90)
@given(
    members=st.lists(lengths_lists, min_size=1, max_size=3),
    sequence_length=st.integers(2, 9),
    extra=st.booleans(),
    epochs=st.floats(0.3, 3.2),
    preset=st.sampled_from(["megatron", "megatron-0.10", "nemo", "nanotron"]),
    chunk=st.sampled_from([3, 1 << 20]),
)
def test_datasets_and_blends(
    tmp_path_factory, members, sequence_length, extra, epochs, preset, chunk
):
    samples, extra = (
        max(1, int(sum(members[0]) / sequence_length * epochs)),
        extra or preset == "nanotron",
    )
    options = {"sequence_length": sequence_length, "add_extra_token": extra, "preset": preset}
    check(tmp_path_factory.mktemp("data"), members, samples, chunk, **options)


def test_places_across_chunks(monkeypatch):
    monkeypatch.setattr(positions, "CHUNK", 4)
    values = np.array([5, 1, 5, 5, 2, 5, 0, 0, 5, 5])
    assert positions_of(values, 5).tolist() == [0, 2, 3, 5, 8, 9]
    assert positions_of(values, 9).tolist() == []


@pytest.mark.parametrize("name", ["pretrain", "several_epochs", "repeated", "nemo"])
def test_every_document_of_a_project(project, name):
    from nanoset_core import load_nanoset

    loaded = load_nanoset(project.outputs.folder, name, "train")
    expected = slow_places(loaded)
    for member, nanoset in enumerate(loaded.datasets):
        corpus = nanoset.member.prefix.split("/")[-3]
        for document in range(0, len(nanoset.dataset.document_indices) - 1, 13):
            (found,) = find_document(project, name, "train", number=document, corpus=corpus)
            sequence = int(nanoset.dataset.document_indices[document])
            mine = [(a.sample, a.sample_tokens[0], *a.document_tokens) for a in found.appearances]
            assert sorted(mine) == expected.get((member, sequence), [])
            assert (found.reason is None) == (found.tokens_seen == found.origin.tokens)


def test_by_id_by_line_and_by_number(project):
    (by_id,) = find_document(project, "pretrain", "train", identity="web-77")
    origin = by_id.origin
    (by_line,) = find_document(project, "pretrain", "train", file=origin.file, line=origin.line)
    (by_number,) = find_document(project, "pretrain", "train", number=origin.document, corpus="web")
    assert by_id == by_line == by_number
    assert origin.file.endswith("web-1.jsonl")
    row = find_document(project, "plain", "train", file="table.parquet", line=7)[0].origin
    assert (row.id, row.byte_offset) == ("row-6", -1)
    both = find_document(project, "pretrain", "train", identity="again")
    assert [place.origin.line for place in both] == [62, 63]
    assert len(find_document(project, "pretrain", "train", number=0)) == 2, "one of each corpus"


def test_why_a_document_is_never_seen(project):
    (empty,) = find_document(project, "pretrain", "train", identity="empty")
    assert empty.appearances == ()
    assert "no tokens" in empty.reason
    (other,) = find_document(project, "pretrain", "train", identity="code-119")
    assert other.reason == "never seen in train, because it belongs to the test split"
    assert find_document(project, "pretrain", "test", identity="code-119")[0].appearances
    reasons = {
        place.reason
        for corpus, count in (("web", 180), ("code", 90))
        for document in range(count)
        for place in find_document(project, "pretrain", "train", number=document, corpus=corpus)
    }
    assert any("blend takes fewer samples" in (reason or "") for reason in reasons)
    (tail,) = (
        place
        for document in range(130)
        for place in find_document(project, "plain", "train", number=document)
        if place.reason is not None and "tail" in place.reason
    )
    assert "tail, which does not fill a sample" in tail.reason


def test_documents_that_are_not_there(project):
    with pytest.raises(MissingError, match="no such document"):
        find_document(project, "pretrain", "train", identity="nobody")
    with pytest.raises(MissingError, match=r"rejected \(invalid_json"):
        find_document(project, "pretrain", "train", file="part-0/web-0.jsonl", line=64)
    with pytest.raises(MissingError, match="no such document"):
        find_document(project, "pretrain", "train", number=10**9)
    with pytest.raises(MissingError, match="not in this nanoset"):
        find_document(project, "pretrain", "train", number=0, corpus="books")
    for wrong in (
        {},
        {"identity": "a", "number": 1},
        {"file": "a", "line": 1, "number": 1},
        {"line": 3},
    ):
        with pytest.raises(ConfigError, match="exactly one of three ways"):
            find_document(project, "pretrain", "train", **wrong)
