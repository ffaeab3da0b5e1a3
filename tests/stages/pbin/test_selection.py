"""Documents of .pbin files are shuffled, divided into chunks and filtered as by Modalities."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.pbin_files import GOLDEN, read_documents, write_with_index
from nanoset_core.errors import (
    ConfigError,
    FormatError,
    InputError,
    MissingError,
)
from nanoset_core.formats.pbin.dataset import PackedDataset
from nanoset_core.formats.pbin.writing import write_pbin
from nanoset_core.stages.pbin import selection
from nanoset_core.stages.pbin.selection import (
    DocumentFilter,
    filter_pbin,
    shuffle_pbin,
    shuffle_pbin_chunk,
)

DOCS = GOLDEN / "docs.pbin"
"""A file of Modalities with 60 documents."""
DOCUMENTS = st.lists(st.lists(st.integers(0, 60000), max_size=9), min_size=1, max_size=40)


def write_source(path: Path, documents: Sequence[Sequence[int]]) -> Path:
    """Write documents, and one that has a token, and return the path."""
    write_pbin(path, [*documents, [7]], token_bytes=2)
    return path


def assert_same_bytes(path: Path, documents: Sequence[Sequence[int]]) -> None:
    """Check that a file has the bytes of these documents, written with tokens of two bytes."""
    expected_path = path.with_name("expected.pbin")
    write_pbin(expected_path, documents, token_bytes=2)
    assert path.read_bytes() == expected_path.read_bytes()


# Shuffling one file


@settings(deadline=None, max_examples=50)
@given(documents=DOCUMENTS, seed=st.integers(0, 2**70), block_tokens=st.integers(1, 30))
def test_a_file_is_shuffled_as_by_pythons_random(tmp_path_factory, documents, seed, block_tokens):
    folder = tmp_path_factory.mktemp("x")
    source = write_source(folder / "x.pbin", documents)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_BLOCK_TOKENS", block_tokens)
        shuffle_pbin(source, folder / "shuffled.pbin", seed=seed)

    expected = read_documents(source)
    random.Random(seed).shuffle(expected)
    assert_same_bytes(folder / "shuffled.pbin", expected)


def test_a_file_may_be_replaced_by_its_shuffled_documents(tmp_path):
    path = tmp_path / "x.pbin"
    path.write_bytes(DOCS.read_bytes())

    shuffle_pbin(path, path, seed=11)

    assert path.read_bytes() == (GOLDEN / "docs.shuffle-s11.pbin").read_bytes()
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_with_the_fault_of_modalities_merge_can_be_shuffled(tmp_path):
    shuffle_pbin(GOLDEN / "merge-buggy-index.pbin", tmp_path / "x.pbin", seed=3)

    documents = read_documents(DOCS) + read_documents(GOLDEN / "edge.pbin")
    assert sorted(read_documents(tmp_path / "x.pbin")) == sorted(documents)


# Shuffled chunks of several files


def modalities_chunk_bounds(n_documents: int, chunk: int, n_chunks: int) -> tuple[int, int]:
    """Return the bounds of a chunk as Modalities' `Chunking._get_chunk_range` computes them."""
    larger_size = math.ceil(n_documents / n_chunks)
    n_larger_chunks = n_documents % n_chunks or n_chunks
    start = larger_size * min(n_larger_chunks, chunk)
    if chunk < n_larger_chunks:
        return start, start + larger_size
    smaller_size = larger_size - 1
    start += (chunk - n_larger_chunks) * smaller_size
    return start, start + smaller_size


@settings(deadline=None, max_examples=200)
@given(
    n_documents=st.integers(0, 10**9), n_chunks=st.integers(1, 10**6), chunk=st.integers(0, 10**6)
)
def test_a_file_is_divided_into_chunks_as_by_modalities(n_documents, n_chunks, chunk):
    chunk %= n_chunks

    bounds = selection.chunk_bounds(n_documents, chunk, n_chunks)

    assert bounds == modalities_chunk_bounds(n_documents, chunk, n_chunks)


def expected_chunk(
    sources: Sequence[Path], chunk: int, n_chunks: int, seed: int
) -> list[list[int]]:
    """Return the documents of a shuffled chunk, computed in the slow but readable way."""
    chunk_documents = []
    for source in sources:
        documents = read_documents(source)
        start, stop = modalities_chunk_bounds(len(documents), chunk, n_chunks)
        chunk_documents += documents[start:stop]
    np.random.default_rng(selection.chunk_seed(seed, chunk)).shuffle(chunk_documents)
    return chunk_documents


@settings(deadline=None, max_examples=40)
@given(
    first=DOCUMENTS,
    second=DOCUMENTS,
    n_chunks=st.integers(1, 12),
    seed=st.integers(0, 2**40),
    block_tokens=st.integers(1, 60),
)
def test_chunks_have_all_documents_shuffled_within_each_chunk(
    tmp_path_factory, first, second, n_chunks, seed, block_tokens
):
    folder = tmp_path_factory.mktemp("x")
    sources = [
        write_source(folder / "a.pbin", first),
        write_source(folder / "b.pbin", second),
    ]

    all_documents = []
    for chunk in range(n_chunks):
        expected = expected_chunk(sources, chunk, n_chunks, seed)
        all_documents += expected
        shuffle = partial(
            shuffle_pbin_chunk,
            sources,
            folder / "chunk.pbin",
            chunk=chunk,
            chunks=n_chunks,
            seed=seed,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(selection, "_BLOCK_TOKENS", block_tokens)
            if any(expected):
                shuffle()
                assert read_documents(folder / "chunk.pbin") == expected
            else:
                with pytest.raises(InputError, match="no tokens"):
                    shuffle()

    # Together, the chunks have each document that has tokens.
    source_documents = read_documents(sources[0]) + read_documents(sources[1])
    assert sorted(filter(None, all_documents)) == sorted(filter(None, source_documents))


def test_files_of_an_old_layout_can_be_shuffled(tmp_path):
    sources = [GOLDEN / "legacy-c-header12-le-absolute.pbin", GOLDEN / "u2.pbin"]

    shuffle_pbin_chunk(sources, tmp_path / "x.pbin", chunk=0, chunks=1, seed=3)

    source_documents = read_documents(sources[0]) + read_documents(sources[1])
    documents = read_documents(tmp_path / "x.pbin")
    assert sorted(documents) == sorted(source_documents)
    assert documents != source_documents


@pytest.mark.parametrize(("chunk", "n_chunks"), [(3, 3), (-1, 3), (0, 0), (0, -1)])
def test_a_chunk_that_does_not_exist_is_refused(tmp_path, chunk, n_chunks):
    with pytest.raises(ConfigError, match="no such chunk"):
        shuffle_pbin_chunk([DOCS], tmp_path / "x.pbin", chunk=chunk, chunks=n_chunks, seed=1)

    assert list(tmp_path.iterdir()) == []


def test_chunks_need_a_seed(tmp_path):
    """Without one, each chunk would be shuffled in another way by each call."""
    with pytest.raises(TypeError):
        shuffle_pbin_chunk([DOCS], tmp_path / "x.pbin", chunk=0, chunks=1, seed=None)

    assert list(tmp_path.iterdir()) == []


def test_a_chunk_of_no_files_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no file"):
        shuffle_pbin_chunk([], tmp_path / "x.pbin", chunk=0, chunks=1, seed=1)

    assert list(tmp_path.iterdir()) == []


def test_a_chunk_without_documents_is_refused(tmp_path):
    with pytest.raises(InputError, match="no tokens"):
        shuffle_pbin_chunk([DOCS], tmp_path / "x.pbin", chunk=60, chunks=61, seed=1)

    assert list(tmp_path.iterdir()) == []


def test_files_with_tokens_of_different_sizes_are_refused(tmp_path):
    sources = [DOCS, GOLDEN / "u1.pbin"]

    message = r"u1\.pbin, byte 8: files with tokens of different sizes"
    with pytest.raises(FormatError, match=message) as caught:
        shuffle_pbin_chunk(sources, tmp_path / "x.pbin", chunk=0, chunks=1, seed=1)

    assert caught.value.found == "1 byte a token"
    # Files of one tokenizer can differ, too: added tokens do not count in its vocabulary.
    assert "--vocab-size" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


# Filtering by a mask


@settings(deadline=None, max_examples=40)
@given(documents=DOCUMENTS, seed=st.integers(0, 99))
def test_a_filtered_file_has_the_documents_of_the_mask(tmp_path_factory, documents, seed):
    folder = tmp_path_factory.mktemp("x")
    source = write_source(folder / "x.pbin", documents)
    n_documents = len(documents) + 1
    mask = np.random.default_rng(seed).random(n_documents) < 0.7
    mask[-1] = True  # the document that has a token

    filter_pbin(source, folder / "filtered.pbin", mask)

    source_documents = read_documents(source)
    expected = [source_documents[number] for number in np.flatnonzero(mask)]
    assert_same_bytes(folder / "filtered.pbin", expected)


def test_documents_that_overlap_or_leave_gaps_are_written_in_sequence(tmp_path):
    source = write_with_index(tmp_path / "x.pbin", range(5), [(4, 4), (0, 2), (4, 4)])

    counts = filter_pbin(source, tmp_path / "y.pbin", np.ones(3, bool))

    assert read_documents(tmp_path / "y.pbin") == [[2, 3], [0], [2, 3]]
    assert counts.tokens == 5


@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(np.ones(59, bool), id="too short"),
        pytest.param(np.ones(60, int), id="integers"),
        pytest.param(np.ones((60, 1), bool), id="two dimensions"),
    ],
)
def test_a_mask_that_does_not_fit_the_documents_is_refused(tmp_path, mask):
    with pytest.raises(ConfigError, match="mask"):
        filter_pbin(DOCS, tmp_path / "x.pbin", mask)

    assert list(tmp_path.iterdir()) == []


def test_a_mask_without_documents_is_refused(tmp_path):
    with pytest.raises(InputError, match="no tokens"):
        filter_pbin(DOCS, tmp_path / "x.pbin", np.zeros(60, bool))

    assert list(tmp_path.iterdir()) == []


# Conditions from which a mask is made

LENGTHS = [3, 1, 4, 1, 5, 9, 2, 6]
"""Tokens of each document of `dataset`."""


@pytest.fixture
def dataset(tmp_path: Path) -> PackedDataset:
    """A file of eight documents."""
    documents = [range(length) for length in LENGTHS]
    write_pbin(tmp_path / "x.pbin", documents, token_bytes=1)
    return PackedDataset(tmp_path / "x.pbin")


def selected_documents(condition: DocumentFilter, dataset: PackedDataset) -> list[int]:
    """Return the numbers of the documents that meet a condition."""
    numbers: list[int] = np.flatnonzero(condition.mask(dataset)).tolist()
    return numbers


@pytest.mark.parametrize(
    ("conditions", "numbers"),
    [
        ({"min_tokens": 4}, [2, 4, 5, 7]),
        ({"max_tokens": 1}, [1, 3]),
        ({"min_tokens": 2, "max_tokens": 4}, [0, 2, 6]),
        ({"every": 3}, [0, 3, 6]),
        ({"every": 1}, list(range(8))),
        ({"every": 2, "min_tokens": 3}, [0, 2, 4]),
        ({"max_tokens": 0}, []),
    ],
    ids=str,
)
def test_documents_are_selected_by_length_and_number(dataset, conditions, numbers):
    assert selected_documents(DocumentFilter(**conditions), dataset) == numbers


@pytest.fixture
def list_file(tmp_path: Path) -> Path:
    """A file that lists some documents, in any order, with blank lines and a repetition."""
    path = tmp_path / "list"
    path.write_text("7\n0\n\n 3\r\n0")
    return path


def test_the_documents_of_a_list_are_selected(dataset, list_file):
    assert selected_documents(DocumentFilter(keep=list_file), dataset) == [0, 3, 7]


def test_the_documents_of_a_list_are_left_out(dataset, list_file):
    assert selected_documents(DocumentFilter(drop=list_file), dataset) == [1, 2, 4, 5, 6]


def test_a_document_in_both_lists_is_left_out(dataset, list_file):
    condition = DocumentFilter(keep=list_file, drop=list_file)

    assert selected_documents(condition, dataset) == []


def test_an_empty_list_leaves_nothing_out(dataset, list_file):
    list_file.write_text("")

    assert selected_documents(DocumentFilter(drop=list_file), dataset) == list(range(8))


NO_NUMBER = "contains something that is not a number"
NO_DOCUMENT = "names a document that does not exist"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        pytest.param("1\nx\n", InputError, NO_NUMBER, id="a letter"),
        pytest.param("1.5", InputError, NO_NUMBER, id="a fraction"),
        pytest.param("99999999999999999999", InputError, NO_NUMBER, id="more than 64 bits"),
        pytest.param(
            "1\n8\n", ConfigError, f"{NO_DOCUMENT}\n  found: 8\n  expected: 0 to 7", id="too large"
        ),
        pytest.param("-1", ConfigError, NO_DOCUMENT, id="negative"),
    ],
)
def test_a_list_that_does_not_name_documents_is_refused(dataset, list_file, text, error, message):
    list_file.write_text(text)

    with pytest.raises(error, match=message):
        DocumentFilter(keep=list_file).mask(dataset)


def test_a_filter_without_a_condition_is_refused(dataset):
    with pytest.raises(ConfigError, match="nothing says which documents to keep"):
        DocumentFilter().mask(dataset)


def test_a_missing_list_is_reported(dataset, tmp_path):
    with pytest.raises(MissingError, match="no such file"):
        DocumentFilter(drop=tmp_path / "none").mask(dataset)
