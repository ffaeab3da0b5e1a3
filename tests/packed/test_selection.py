import math
import pickle
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError, FormatError, InputError
from nanoset_core.packed import (
    PackedDataset,
    PackedFacts,
    filter_packed,
    selection,
    shuffle_packed,
    shuffle_packed_chunk,
    write_packed,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "modalities"
TOKENS = st.lists(st.lists(st.integers(0, 60000), max_size=9), min_size=1, max_size=40)


def lists(path):
    return [document.tolist() for document in PackedDataset(path)]


def write(path, documents, token_bytes=2):
    write_packed(path, [*documents, [7]], token_bytes=token_bytes)
    return path


def test_golden_shuffle(tmp_path):
    facts = shuffle_packed(GOLDEN / "docs.pbin", tmp_path / "x.pbin", seed=11)
    assert (tmp_path / "x.pbin").read_bytes() == (GOLDEN / "docs.shuffle-s11.pbin").read_bytes()
    assert facts == PackedFacts(60, 90854, 2)


@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_golden_chunks(tmp_path, chunk):
    sources = [GOLDEN / "docs.pbin", GOLDEN / "edge.pbin"]
    shuffle_packed_chunk(sources, tmp_path / "x.pbin", chunk=chunk, chunks=3, seed=11)
    assert (tmp_path / "x.pbin").read_bytes() == (GOLDEN / f"chunk-s11-{chunk}-of-3.pbin").read_bytes()


@pytest.mark.parametrize(
    "keep", [np.arange(60) % 3 == 0, lambda number, tokens: number % 3 == 0], ids=["mask", "function"]
)
def test_golden_filter(tmp_path, keep):
    facts = filter_packed(GOLDEN / "docs.pbin", tmp_path / "x.pbin", keep)
    assert (tmp_path / "x.pbin").read_bytes() == (GOLDEN / "docs.filter-3.pbin").read_bytes()
    assert facts.documents == 20


@settings(deadline=None, max_examples=50)
@given(documents=TOKENS, seed=st.integers(0, 2**70), block=st.integers(1, 30))
def test_shuffle_is_that_of_python(tmp_path_factory, documents, seed, block):
    folder = tmp_path_factory.mktemp("x")
    source = write(folder / "x.pbin", documents)
    expected = lists(source)
    random.Random(seed).shuffle(expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_BLOCK_TOKENS", block)
        shuffle_packed(source, folder / "s.pbin", seed=seed)
    write_packed(folder / "w.pbin", expected, token_bytes=2)
    assert (folder / "s.pbin").read_bytes() == (folder / "w.pbin").read_bytes()


@settings(deadline=None, max_examples=40)
@given(first=TOKENS, second=TOKENS, chunks=st.integers(1, 12), seed=st.integers(0, 2**40), block=st.integers(1, 60))
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
                shuffle_packed_chunk(sources, folder / "s.pbin", **call)
            continue
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(selection, "_BLOCK_TOKENS", block)
            shuffle_packed_chunk(sources, folder / "s.pbin", **call)
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
    assert selection.chunk_bounds(documents, chunk, chunks) == modalities_chunk_range(chunks, documents, chunk)


def test_chunk_seed_literal():
    # int(sha256("11")) + int(sha256("0")), modulo 2**32 - 1
    assert selection.chunk_seed(11, 0) == 1585535373


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000, 70000])
def test_numpy_shuffles_an_array_as_a_list(count):
    array, plain = np.arange(count), list(range(count))
    np.random.default_rng(5).shuffle(array)
    np.random.default_rng(5).shuffle(plain)
    assert array.tolist() == plain


@settings(deadline=None, max_examples=40)
@given(documents=TOKENS, seed=st.integers(0, 99))
def test_filter_keeps_what_is_named(tmp_path_factory, documents, seed):
    folder = tmp_path_factory.mktemp("x")
    source = write(folder / "x.pbin", documents)
    keep = np.random.default_rng(seed).random(len(documents) + 1) < 0.7
    keep[-1] = True
    filter_packed(source, folder / "f.pbin", keep)
    expected = [document for document, kept in zip(lists(source), keep, strict=True) if kept]
    write_packed(folder / "w.pbin", expected, token_bytes=2)
    assert (folder / "f.pbin").read_bytes() == (folder / "w.pbin").read_bytes()


def test_filter_by_tokens(tmp_path):
    filter_packed(GOLDEN / "u2.pbin", tmp_path / "x.pbin", lambda number, tokens: len(tokens) > 20)
    assert lists(tmp_path / "x.pbin") == [document for document in lists(GOLDEN / "u2.pbin") if len(document) > 20]


def test_old_layouts_and_repaired_indexes_can_be_sources(tmp_path):
    big, little = (GOLDEN / f"legacy-{name}.pbin" for name in ("b-header12-be", "c-header12-le-absolute"))
    shuffle_packed_chunk([big, little, GOLDEN / "u2.pbin"], tmp_path / "x.pbin", chunk=0, chunks=1, seed=3)
    expected = lists(big) + lists(little) + lists(GOLDEN / "u2.pbin")
    assert sorted(lists(tmp_path / "x.pbin")) == sorted(expected) != lists(tmp_path / "x.pbin")
    shuffle_packed(GOLDEN / "merge-buggy-index.pbin", tmp_path / "x.pbin", seed=3)
    assert sorted(lists(tmp_path / "x.pbin")) == sorted(lists(GOLDEN / "docs.pbin") + lists(GOLDEN / "edge.pbin"))


def test_an_index_with_gaps_and_repeats(tmp_path):
    index = pickle.dumps([(4, 4), (0, 2), (4, 4)], protocol=4)
    (tmp_path / "x.pbin").write_bytes(struct.pack("<QI", 10, 2) + struct.pack("<5H", *range(5)) + index)
    facts = filter_packed(tmp_path / "x.pbin", tmp_path / "y.pbin", np.ones(3, bool))
    assert lists(tmp_path / "y.pbin") == [[2, 3], [0], [2, 3]]
    assert facts.tokens == 5


def test_a_file_may_replace_itself(tmp_path):
    (tmp_path / "x.pbin").write_bytes((GOLDEN / "docs.pbin").read_bytes())
    shuffle_packed(tmp_path / "x.pbin", tmp_path / "x.pbin", seed=11)
    assert (tmp_path / "x.pbin").read_bytes() == (GOLDEN / "docs.shuffle-s11.pbin").read_bytes()
    assert len(list(tmp_path.iterdir())) == 1


def test_what_cannot_be(tmp_path):
    docs, target = GOLDEN / "docs.pbin", tmp_path / "x.pbin"
    for chunk, chunks in ((3, 3), (-1, 3), (0, 0), (0, -1)):
        with pytest.raises(ConfigError, match="no such chunk"):
            shuffle_packed_chunk([docs], target, chunk=chunk, chunks=chunks, seed=1)
    with pytest.raises(TypeError):
        shuffle_packed(docs, target, seed=None)
    with pytest.raises(TypeError):
        shuffle_packed_chunk([docs], target, chunk=0, chunks=1, seed=None)
    with pytest.raises(ConfigError, match="no file"):
        shuffle_packed_chunk([], target, chunk=0, chunks=1, seed=1)
    with pytest.raises(InputError, match="no tokens"):
        shuffle_packed_chunk([docs], target, chunk=60, chunks=61, seed=1)
    with pytest.raises(FormatError, match=r"u1\.pbin, byte 8: files with tokens of different sizes"):
        shuffle_packed_chunk([docs, GOLDEN / "u1.pbin"], target, chunk=0, chunks=1, seed=1)
    for keep in (np.ones(59, bool), np.ones(60, int), np.ones((60, 1), bool)):
        with pytest.raises(ConfigError, match="mask"):
            filter_packed(docs, target, keep)
    with pytest.raises(InputError, match="no tokens"):
        filter_packed(docs, target, np.zeros(60, bool))
    assert list(tmp_path.iterdir()) == []
