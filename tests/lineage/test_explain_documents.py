"""Documents → samples: the search through index arrays finds what asking every sample finds."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core import (
    BlendedNanoset,
    MMapIndexedDatasetBuilder,
    NanosetBuilder,
    NanosetConfig,
    load_nanoset,
)
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.lineage import positions
from nanoset_core.lineage.documents import DocumentOrigin
from nanoset_core.lineage.find import find_document
from nanoset_core.lineage.positions import (
    DocumentPlaces,
    Split,
    positions_of,
    renumbered,
    samples_of_dataset,
    spans_of,
)
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.dataset import DocumentPiece


class Span(NamedTuple):
    """Consecutive tokens of a sequence in a sample."""

    sample: int
    offset: int
    """Position in the sample of the first token."""
    start: int
    stop: int
    """The range of tokens within the sequence."""


class SearchedSplit(NamedTuple):
    """The train split of a nanoset, in which documents were searched for."""

    spans: dict[tuple[int, int], list[Span]]
    """(member, sequence) → where samples have its tokens, by asking every sample."""
    places: dict[tuple[int, int], DocumentPlaces]
    """(member, sequence) → what `find_document` found."""


def spans_by_asking_every_sample(split) -> dict[tuple[int, int], list[Span]]:
    """Return (member, sequence) → sorted spans, for all sequences of the datasets of a split."""
    spans = defaultdict(list)
    for sample in range(len(split)):
        if isinstance(split, BlendedNanoset):
            member, pieces = split.sources(sample)
        else:
            member = 0
            pieces = split.sources(sample)

        offset = 0
        for sequence, start, stop in pieces.tolist():
            if stop > start:
                spans[member, sequence].append(Span(sample, offset, start, stop))
                offset += stop - start
    return {key: sorted(spans_of_key) for key, spans_of_key in spans.items()}


def spans_by_index_arrays(split, member, sequence) -> list[Span]:
    """Return the sorted spans of a sequence, by the functions that are tested here."""
    if isinstance(split, BlendedNanoset):
        nanoset = split.datasets[member]
        in_nanoset = renumbered(spans_of(nanoset, sequence), [nanoset.shuffle_index])
        in_split = renumbered(in_nanoset, samples_of_dataset(split, member))
    else:
        in_split = renumbered(spans_of(split, sequence), [split.shuffle_index])
    return sorted(Span(*row) for row in in_split.rows())


def write_dataset(prefix, lengths):
    """Write a dataset with a document of each length."""
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        for length in lengths:
            builder.add_document(np.arange(length, dtype=np.uint16), [length])


# Empty, short and long documents; enough tokens for a sample in every split.
document_lengths = st.lists(
    st.one_of(st.integers(0, 6), st.integers(20, 60)), min_size=6, max_size=30
).filter(lambda lengths: sum(lengths) > 60)


@given(
    members=st.lists(document_lengths, min_size=1, max_size=3),
    sequence_length=st.integers(2, 9),
    extra=st.booleans(),
    epochs=st.floats(0.3, 3.2),
    preset=st.sampled_from(["megatron", "megatron-0.10", "nemo", "nanotron"]),
    chunk=st.sampled_from([3, 1 << 20]),
)
def test_every_sequence_of_datasets_and_blends_is_found(
    tmp_path_factory, members, sequence_length, extra, epochs, preset, chunk
):
    folder = tmp_path_factory.mktemp("data")
    weight_by_prefix = {}
    for member, lengths in enumerate(members):
        prefix = folder / f"data{member}"
        write_dataset(prefix, lengths)
        weight_by_prefix[str(prefix)] = member + 1.0
    config = NanosetConfig(
        # A single dataset is named without a weight.
        weight_by_prefix if len(members) > 1 else str(folder / "data0"),
        sequence_length=sequence_length,
        add_extra_token=extra or preset == "nanotron",  # nanotron always has this token
        preset=preset,
        split="100,0,0" if preset == "nemo" else "1,0,0",  # NeMo's are percentages
        train_split_samples=max(1, int(sum(members[0]) / sequence_length * epochs)),
        path_to_cache=str(folder / "cache"),
    )
    train, _, _ = NanosetBuilder(config).build()
    expected = spans_by_asking_every_sample(train)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions, "CHUNK", chunk)
        for member, lengths in enumerate(members):
            for sequence in range(len(lengths)):
                spans = spans_by_index_arrays(train, member, sequence)
                assert spans == expected.get((member, sequence), [])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(5, [0, 2, 3, 5, 8, 9], id="in every chunk"),
        pytest.param(9, [], id="absent"),
    ],
)
def test_a_value_is_found_in_all_chunks_of_an_array(monkeypatch, value, expected):
    monkeypatch.setattr(positions, "CHUNK", 4)
    array = np.array([5, 1, 5, 5, 2, 5, 0, 0, 5, 5])

    assert positions_of(array, value).tolist() == expected


# The documents of a project


@pytest.fixture(scope="module", params=["pretrain", "several_epochs", "repeated", "nemo"])
def searched_split(request, built) -> SearchedSplit:
    """The train split of each nanoset, in which every 31st document was searched for."""
    project = Project.open(built / "nanoset.yaml")
    train = load_nanoset(project.outputs.folder, request.param, "train")

    places = {}
    for member, nanoset in enumerate(train.datasets):
        corpus = nanoset.member.prefix.split("/")[-3]
        first_sequences = nanoset.dataset.document_indices[:-1].tolist()
        for document in range(0, len(first_sequences), 31):
            (places[member, first_sequences[document]],) = find_document(
                project, request.param, "train", number=document, corpus=corpus
            )

    # There are a few more samples than the run reads.
    spans_read = {}
    for key, spans in spans_by_asking_every_sample(train).items():
        spans_read[key] = [span for span in spans if span.sample < train.config.train_split_samples]
    return SearchedSplit(spans_read, places)


def test_a_document_is_found_in_all_samples_that_contain_it(searched_split):
    for key, places in searched_split.places.items():
        spans = [
            Span(appearance.sample, appearance.sample_tokens[0], *appearance.document_tokens)
            for appearance in places.appearances
        ]
        assert sorted(spans) == searched_split.spans.get(key, [])


def test_a_reason_is_given_if_a_part_of_a_document_is_never_seen(searched_split):
    for places in searched_split.places.values():
        is_seen_completely = places.tokens_seen == places.origin.tokens
        assert (places.reason is None) == is_seen_completely


def test_a_document_can_be_searched_for_by_id_by_line_and_by_number(project):
    (by_id,) = find_document(project, "pretrain", "train", identity="web-77")
    origin = by_id.origin

    (by_line,) = find_document(project, "pretrain", "train", file=origin.file, line=origin.line)
    (by_number,) = find_document(project, "pretrain", "train", number=origin.document, corpus="web")

    assert origin.file.endswith("web-1.jsonl")
    assert by_line == by_id
    assert by_number == by_id


def test_a_row_of_a_table_has_a_line_but_no_byte_offset(project):
    origin = find_document(project, "plain", "train", file="table.parquet", line=7)[0].origin

    assert origin.id == "row-6"
    assert origin.byte_offset == -1


def test_all_documents_with_an_id_are_found(project):
    places = find_document(project, "pretrain", "train", identity="again")

    assert [place.origin.line for place in places] == [62, 63]


def test_without_a_corpus_the_documents_of_all_corpora_with_a_number_are_found(project):
    places = find_document(project, "pretrain", "train", number=0)

    assert len(places) == 2  # the blend has two corpora


# Why a document is never seen


def reasons_to_be_unseen(project, nanoset, numbers_by_corpus) -> list[str]:
    """Return why documents are not completely in the train split of a nanoset.

    Args:
        project: The project.
        nanoset: Name of the nanoset.
        numbers_by_corpus: Corpus → the numbers of the documents to search for.
    """
    reasons = []
    for corpus, numbers in numbers_by_corpus.items():
        for number in numbers:
            places = find_document(project, nanoset, "train", number=number, corpus=corpus)
            reasons += [place.reason for place in places if place.reason is not None]
    return reasons


def test_a_document_without_tokens_is_never_seen(project):
    (places,) = find_document(project, "pretrain", "train", identity="empty")

    assert places.appearances == ()
    assert "no tokens" in places.reason


def test_a_document_of_another_split_is_never_seen(project):
    (in_train,) = find_document(project, "pretrain", "train", identity="code-119")
    in_test = find_document(project, "pretrain", "test", identity="code-119")[0]

    assert in_train.reason == "never seen in train, because it belongs to the test split"
    assert in_test.appearances


def test_a_document_in_samples_that_the_blend_does_not_take_is_never_seen(project):
    numbers_by_corpus = {"web": range(0, 180, 5), "code": range(0, 90, 5)}

    reasons = reasons_to_be_unseen(project, "pretrain", numbers_by_corpus)

    assert "blend takes fewer samples" in "\n".join(reasons)


def test_the_tokens_after_the_last_full_sample_are_never_seen(project):
    reasons = reasons_to_be_unseen(project, "plain", {"books": range(130)})

    (reason,) = [reason for reason in reasons if "tail" in reason]
    assert "tail, which does not fill a sample" in reason


def test_lost_tokens_of_a_document_in_several_pieces_are_of_those_of_the_whole_document(tmp_path):
    # Packing cut a document of 100 tokens into pieces of 50 and 40, and left out 10.
    pieces = [
        DocumentPiece(sequence=0, start=0, stop=50, first=0, document=0),
        DocumentPiece(sequence=1, start=0, stop=40, first=50, document=0),
    ]
    origin = DocumentOrigin("web", 0, "a.jsonl", 1, byte_offset=0, id=None, tokens=100, shard="")
    write_dataset(tmp_path / "packed", [50, 40])
    config = NanosetConfig(
        str(tmp_path / "packed"), sequence_length=50, add_extra_token=False, split="1,0,0"
    )
    train, _, _ = NanosetBuilder(config).build()
    dataset = SimpleNamespace(pieces_of=lambda document: pieces)
    split = Split(None, "packed", train, (train,), (dataset,))

    places = split.places(0, origin)

    assert places.reason == (
        "40 of its 100 tokens are never seen in train, "
        "because they lie in the tail, which does not fill a sample; "
        "packing left out 10 of its 100 tokens"
    )


def test_tokens_of_several_pieces_that_are_lost_for_one_reason_are_counted_together(tmp_path):
    # The last two sequences, in which pieces of a document of 20 tokens are, belong to valid.
    write_dataset(tmp_path / "packed", [10] * 10)
    pieces = [
        DocumentPiece(sequence=8, start=0, stop=5, first=0, document=0),
        DocumentPiece(sequence=9, start=0, stop=5, first=5, document=0),
        DocumentPiece(sequence=0, start=0, stop=10, first=10, document=0),
    ]
    origin = DocumentOrigin("web", 0, "a.jsonl", 1, byte_offset=0, id=None, tokens=20, shard="")
    config = NanosetConfig(
        str(tmp_path / "packed"), sequence_length=10, add_extra_token=False, split="8,2,0"
    )
    train, _, _ = NanosetBuilder(config).build()
    dataset = SimpleNamespace(pieces_of=lambda document: pieces)
    context = SimpleNamespace(outputs=tmp_path)

    places = Split(context, "packed", train, (train,), (dataset,)).places(0, origin)

    assert places.reason == (
        "10 of its 20 tokens are never seen in train, because they belong to no split that was built"
    )


# Documents that do not exist


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param({"identity": "nobody"}, "no such document", id="unknown id"),
        pytest.param({"number": 10**9}, "no such document", id="number too large"),
        pytest.param(
            {"file": "part-0/web-0.jsonl", "line": 64}, r"rejected \(invalid_json", id="rejected"
        ),
        pytest.param(
            {"number": 0, "corpus": "books"}, "not in this nanoset", id="corpus of another nanoset"
        ),
    ],
)
def test_a_document_that_does_not_exist_is_an_error_with_the_reason(project, document, message):
    with pytest.raises(MissingError, match=message):
        find_document(project, "pretrain", "train", **document)


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"identity": "a", "number": 1}, id="id and number"),
        pytest.param({"file": "a", "line": 1, "number": 1}, id="line and number"),
        pytest.param({"line": 3}, id="line without a file"),
    ],
)
def test_a_document_must_be_named_in_exactly_one_way(project, document):
    with pytest.raises(ConfigError, match="exactly one of three ways"):
        find_document(project, "pretrain", "train", **document)
