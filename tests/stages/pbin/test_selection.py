import json
import math
import os
import pickle
import random
import resource
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.locations import GOLDEN_FILES
from helpers.progress import RecordingDisplay
from nanoset_core.errors import (
    ConfigError,
    FormatError,
    InputError,
    MissingError,
    SourceChangedError,
)
from nanoset_core.formats.pbin import writing
from nanoset_core.formats.pbin.dataset import PackedDataset
from nanoset_core.formats.pbin.layout import open_pbin
from nanoset_core.formats.pbin.writing import PbinCounts, write_pbin
from nanoset_core.stages.pbin import selection
from nanoset_core.stages.pbin.selection import (
    DocumentFilter,
    filter_pbin,
    merge_pbin,
    shuffle_pbin,
    shuffle_pbin_chunk,
)

GOLDEN = GOLDEN_FILES / "modalities"
TOKENS = st.lists(st.lists(st.integers(0, 60000), max_size=9), min_size=1, max_size=40)


def lists(path):
    return [document.tolist() for document in PackedDataset(path)]


def write(path, documents, token_bytes=2):
    write_pbin(path, [*documents, [7]], token_bytes=token_bytes)
    return path


@settings(deadline=None, max_examples=50)
@given(documents=TOKENS, seed=st.integers(0, 2**70), block=st.integers(1, 30))
def test_shuffle_is_that_of_python(tmp_path_factory, documents, seed, block):
    folder = tmp_path_factory.mktemp("x")
    source = write(folder / "x.pbin", documents)
    expected = lists(source)
    random.Random(seed).shuffle(expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_BLOCK_TOKENS", block)
        shuffle_pbin(source, folder / "s.pbin", seed=seed)
    write_pbin(folder / "w.pbin", expected, token_bytes=2)
    assert (folder / "s.pbin").read_bytes() == (folder / "w.pbin").read_bytes()


@settings(deadline=None, max_examples=40)
@given(
    first=TOKENS,
    second=TOKENS,
    chunks=st.integers(1, 12),
    seed=st.integers(0, 2**40),
    block=st.integers(1, 60),
)
def test_chunks_are_those_of_the_slow_twin(tmp_path_factory, first, second, chunks, seed, block):
    folder = tmp_path_factory.mktemp("x")
    sources = [write(folder / "a.pbin", first), write(folder / "b.pbin", second)]
    seen = []
    for chunk in range(chunks):
        expected = []
        for source in sources:
            documents = lists(source)
            expected += documents[slice(*modalities_chunk_range(chunks, len(documents), chunk))]
        np.random.default_rng(selection.chunk_seed(seed, chunk)).shuffle(expected)
        call = {"chunk": chunk, "chunks": chunks, "seed": seed}
        if not any(expected):
            with pytest.raises(InputError, match="no tokens"):
                shuffle_pbin_chunk(sources, folder / "s.pbin", **call)
            continue
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(selection, "_BLOCK_TOKENS", block)
            shuffle_pbin_chunk(sources, folder / "s.pbin", **call)
        assert lists(folder / "s.pbin") == expected
        seen += expected
    whole = lists(sources[0]) + lists(sources[1])
    assert sorted(filter(None, seen)) == sorted(filter(None, whole))


def modalities_chunk_range(chunks, samples, chunk):
    """As `Chunking._get_chunk_range` words it."""
    size = math.ceil(samples / chunks)
    complete = samples % chunks or chunks
    begin = size * min(complete, chunk) + max(chunk - complete, 0) * (size - 1)
    return begin, begin + size if chunk < complete else begin + size - 1


@settings(deadline=None, max_examples=200)
@given(documents=st.integers(0, 10**9), chunks=st.integers(1, 10**6), chunk=st.integers(0, 10**6))
def test_chunk_bounds(documents, chunks, chunk):
    chunk %= chunks
    assert selection.chunk_bounds(documents, chunk, chunks) == modalities_chunk_range(
        chunks, documents, chunk
    )


@settings(deadline=None, max_examples=40)
@given(documents=TOKENS, seed=st.integers(0, 99))
def test_filter_keeps_what_is_named(tmp_path_factory, documents, seed):
    folder = tmp_path_factory.mktemp("x")
    source = write(folder / "x.pbin", documents)
    keep = np.random.default_rng(seed).random(len(documents) + 1) < 0.7
    keep[-1] = True
    filter_pbin(source, folder / "f.pbin", keep)
    expected = [document for document, kept in zip(lists(source), keep, strict=True) if kept]
    write_pbin(folder / "w.pbin", expected, token_bytes=2)
    assert (folder / "f.pbin").read_bytes() == (folder / "w.pbin").read_bytes()


def test_files_of_an_old_layout_can_be_sources(tmp_path):
    old = GOLDEN / "legacy-c-header12-le-absolute.pbin"
    shuffle_pbin_chunk([old, GOLDEN / "u2.pbin"], tmp_path / "x.pbin", chunk=0, chunks=1, seed=3)
    expected = lists(old) + lists(GOLDEN / "u2.pbin")
    assert sorted(lists(tmp_path / "x.pbin")) == sorted(expected)
    assert lists(tmp_path / "x.pbin") != expected


def test_files_with_the_fault_of_a_merge_can_be_sources(tmp_path):
    shuffle_pbin(GOLDEN / "merge-buggy-index.pbin", tmp_path / "x.pbin", seed=3)
    assert sorted(lists(tmp_path / "x.pbin")) == sorted(
        lists(GOLDEN / "docs.pbin") + lists(GOLDEN / "edge.pbin")
    )


def test_an_index_with_gaps_and_repeats(tmp_path):
    index = pickle.dumps([(4, 4), (0, 2), (4, 4)], protocol=4)
    (tmp_path / "x.pbin").write_bytes(
        struct.pack("<QI", 10, 2) + struct.pack("<5H", *range(5)) + index
    )
    facts = filter_pbin(tmp_path / "x.pbin", tmp_path / "y.pbin", np.ones(3, bool))
    assert lists(tmp_path / "y.pbin") == [[2, 3], [0], [2, 3]]
    assert facts.tokens == 5


def test_a_file_may_replace_itself(tmp_path):
    (tmp_path / "x.pbin").write_bytes((GOLDEN / "docs.pbin").read_bytes())
    shuffle_pbin(tmp_path / "x.pbin", tmp_path / "x.pbin", seed=11)
    assert (tmp_path / "x.pbin").read_bytes() == (GOLDEN / "docs.shuffle-s11.pbin").read_bytes()
    assert len(list(tmp_path.iterdir())) == 1


def test_what_cannot_be(tmp_path):
    docs, target = GOLDEN / "docs.pbin", tmp_path / "x.pbin"
    for chunk, chunks in ((3, 3), (-1, 3), (0, 0), (0, -1)):
        with pytest.raises(ConfigError, match="no such chunk"):
            shuffle_pbin_chunk([docs], target, chunk=chunk, chunks=chunks, seed=1)
    with pytest.raises(TypeError):
        shuffle_pbin_chunk([docs], target, chunk=0, chunks=1, seed=None)
    with pytest.raises(ConfigError, match="no file"):
        shuffle_pbin_chunk([], target, chunk=0, chunks=1, seed=1)
    with pytest.raises(InputError, match="no tokens"):
        shuffle_pbin_chunk([docs], target, chunk=60, chunks=61, seed=1)
    with pytest.raises(
        FormatError, match=r"u1\.pbin, byte 8: files with tokens of different sizes"
    ):
        shuffle_pbin_chunk([docs, GOLDEN / "u1.pbin"], target, chunk=0, chunks=1, seed=1)
    for keep in (np.ones(59, bool), np.ones(60, int), np.ones((60, 1), bool)):
        with pytest.raises(ConfigError, match="mask"):
            filter_pbin(docs, target, keep)
    with pytest.raises(InputError, match="no tokens"):
        filter_pbin(docs, target, np.zeros(60, bool))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def dataset(tmp_path):
    write_pbin(tmp_path / "x.pbin", [range(n) for n in (3, 1, 4, 1, 5, 9, 2, 6)], token_bytes=1)
    return PackedDataset(tmp_path / "x.pbin")


@pytest.mark.parametrize(
    ("conditions", "kept"),
    [
        ({"min_tokens": 4}, [2, 4, 5, 7]),
        ({"max_tokens": 1}, [1, 3]),
        ({"min_tokens": 2, "max_tokens": 4}, [0, 2, 6]),
        ({"every": 3}, [0, 3, 6]),
        ({"every": 1}, list(range(8))),
        ({"every": 2, "min_tokens": 3}, [0, 2, 4]),
        ({"max_tokens": 0}, []),
    ],
)
def test_conditions(dataset, conditions, kept):
    assert np.flatnonzero(DocumentFilter(**conditions).mask(dataset)).tolist() == kept


def test_lists(dataset, tmp_path):
    (tmp_path / "list").write_text("7\n0\n\n 3\r\n0")
    assert np.flatnonzero(DocumentFilter(keep=tmp_path / "list").mask(dataset)).tolist() == [
        0,
        3,
        7,
    ]
    assert np.flatnonzero(DocumentFilter(drop=tmp_path / "list").mask(dataset)).tolist() == [
        1,
        2,
        4,
        5,
        6,
    ]
    both = DocumentFilter(keep=tmp_path / "list", drop=tmp_path / "list").mask(dataset)
    assert not both.any()
    (tmp_path / "empty").write_text("")
    assert DocumentFilter(drop=tmp_path / "empty").mask(dataset).all()


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("1\nx\n", InputError, "contains something that is not a number"),
        ("1.5", InputError, "contains something that is not a number"),
        ("99999999999999999999", InputError, "contains something that is not a number"),
        (
            "1\n8\n",
            ConfigError,
            "names a document that does not exist\n  found: 8\n  expected: 0 to 7",
        ),
        ("-1", ConfigError, "names a document that does not exist"),
    ],
)
def test_lists_that_cannot_be(dataset, tmp_path, text, error, message):
    (tmp_path / "list").write_text(text)
    with pytest.raises(error, match=message):
        DocumentFilter(keep=tmp_path / "list").mask(dataset)


def test_what_is_missing(dataset, tmp_path):
    with pytest.raises(ConfigError, match="nothing says which documents to keep"):
        DocumentFilter().mask(dataset)
    with pytest.raises(MissingError, match="no such file"):
        DocumentFilter(drop=tmp_path / "none").mask(dataset)


def test_a_merge_is_what_packing_in_one_go_gives(tmp_path):
    paths = [GOLDEN / f"{name}.pbin" for name in ("docs", "edge", "u2")]
    facts = merge_pbin(paths, tmp_path / "m.pbin")
    documents = [document for path in paths for document in lists(path)]
    write_pbin(tmp_path / "w.pbin", documents, token_bytes=2)
    assert (tmp_path / "m.pbin").read_bytes() == (tmp_path / "w.pbin").read_bytes()
    assert facts == PbinCounts(126, sum(map(len, documents)), 2)


def test_the_fault_of_modalities_is_repaired(tmp_path):
    merge_pbin([GOLDEN / "docs.pbin", GOLDEN / "edge.pbin"], tmp_path / "right.pbin")
    faulty = (GOLDEN / "merge-buggy-index.pbin").read_bytes()
    (tmp_path / "x.pbin").write_bytes(faulty)
    facts = merge_pbin([tmp_path / "x.pbin"], tmp_path / "x.pbin")
    assert (tmp_path / "x.pbin").read_bytes() == (tmp_path / "right.pbin").read_bytes() != faulty
    assert facts.documents == 86
    merge_pbin([GOLDEN / "merge-buggy-index.pbin"] * 2, tmp_path / "twice.pbin")
    assert lists(tmp_path / "twice.pbin") == lists(tmp_path / "right.pbin") * 2


@pytest.mark.parametrize("name", ["docs", "edge", "u1", "u2", "u4", "docs.shuffle-s11"])
def test_a_sound_file_stays_as_it_is(tmp_path, name):
    merge_pbin([GOLDEN / f"{name}.pbin"], tmp_path / "x.pbin")
    assert (tmp_path / "x.pbin").read_bytes() == (GOLDEN / f"{name}.pbin").read_bytes()


def test_merging_writes_old_layouts_as_the_present_one(tmp_path):
    old = GOLDEN / "legacy-c-header12-le-absolute.pbin"
    merge_pbin([old, GOLDEN / "u2.pbin"], tmp_path / "m.pbin")
    assert open_pbin(tmp_path / "m.pbin").layout.name == "D"
    assert lists(tmp_path / "m.pbin") == lists(old) + json.loads(
        (GOLDEN / "tokens-u2.json").read_bytes()
    )


def test_merging_one_file_of_layout_a_gives_the_bytes_of_its_documents(tmp_path):
    old = GOLDEN / "legacy-a-header8-be.pbin"
    merge_pbin([old], tmp_path / "a.pbin")
    write_pbin(tmp_path / "w.pbin", lists(old), token_bytes=4)
    assert (tmp_path / "a.pbin").read_bytes() == (tmp_path / "w.pbin").read_bytes()


def test_documents_that_leave_tokens_out_stay_where_they_are(tmp_path):
    entries = [(2, 4), (8, 2)]
    body = (
        struct.pack("<QI", 10, 2)
        + struct.pack("<5H", *range(5))
        + pickle.dumps(entries, protocol=4)
    )
    (tmp_path / "x.pbin").write_bytes(body)
    facts = merge_pbin([tmp_path / "x.pbin"] * 2, tmp_path / "m.pbin")
    assert lists(tmp_path / "m.pbin") == [[1, 2], [4]] * 2
    assert facts == PbinCounts(4, 10, 2)


def test_small_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "CHUNK_TOKENS", 500)
    shown = RecordingDisplay()
    merge_pbin([GOLDEN / "docs.pbin"], tmp_path / "x.pbin", progress=shown.progress)
    data_bytes = open_pbin(GOLDEN / "docs.pbin").data_bytes
    assert [work.done for work in shown.works] == [*range(1000, data_bytes, 1000), data_bytes]
    assert {(work.total, work.unit, work.name) for work in shown.works} == {
        (data_bytes, "bytes", "x.pbin")
    }
    assert (tmp_path / "x.pbin").read_bytes() == (GOLDEN / "docs.pbin").read_bytes()


def test_more_files_than_may_be_open(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/dev/fd")))  # whatever tests before this one have left open
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 90, limits[1]))
    try:
        facts = merge_pbin([GOLDEN / "u1.pbin"] * 200, tmp_path / "m.pbin")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert facts.documents == 8000


def test_what_cannot_be_merged(tmp_path):
    (tmp_path / "cut.pbin").write_bytes((GOLDEN / "docs.pbin").read_bytes()[:-1])
    (tmp_path / "empty.pbin").write_bytes(struct.pack("<QI", 0, 2) + pickle.dumps([], protocol=4))
    for paths, error, message in (
        ([], ConfigError, "no file to take documents from"),
        (
            [GOLDEN / "u2.pbin", GOLDEN / "u1.pbin"],
            FormatError,
            r"u1\.pbin, byte 8: files with tokens of different",
        ),
        ([GOLDEN / "u2.pbin", tmp_path / "none.pbin"], MissingError, "no such file"),
        ([GOLDEN / "u2.pbin", tmp_path / "cut.pbin"], FormatError, r"cut\.pbin, byte"),
        ([tmp_path / "empty.pbin"], InputError, "no tokens"),
    ):
        with pytest.raises(error, match=message):
            merge_pbin(paths, tmp_path / "m.pbin")
    assert not (tmp_path / "m.pbin").exists()
    merge_pbin([tmp_path / "empty.pbin", GOLDEN / "u2.pbin"], tmp_path / "m.pbin")
    assert (tmp_path / "m.pbin").read_bytes() == (GOLDEN / "u2.pbin").read_bytes()


def test_a_file_that_changes_meanwhile(tmp_path, monkeypatch):
    write_pbin(tmp_path / "x.pbin", [np.arange(10)], token_bytes=2)

    def changed(files):
        write_pbin(tmp_path / "x.pbin", [np.arange(9)], token_bytes=2)
        return files[0].token_bytes

    monkeypatch.setattr(selection, "_common_token_bytes", changed)
    with pytest.raises(SourceChangedError, match=r"x\.pbin, byte 0"):
        merge_pbin([tmp_path / "x.pbin"], tmp_path / "m.pbin")
    assert not (tmp_path / "m.pbin").exists()
