"""The layouts of `.pbin`: which one a file has, and what its index says about its documents."""

from __future__ import annotations

import math
import pickle
import struct
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.locations import GOLDEN_FILES
from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.formats.pbin.dataset import PackedDataset
from nanoset_core.formats.pbin.layout import (
    D,
    IndexFacts,
    PbinFile,
    document_entries,
    encode_header,
    load_index,
    open_pbin,
    scan_index,
    token_size_bytes,
)

GOLDEN = GOLDEN_FILES / "modalities"
"""Files that releases of Modalities wrote."""


def pickled(entries):
    """Return the index of a file as Modalities writes it."""
    return pickle.dumps(entries, protocol=4)


def token_lists(dataset):
    """Return each document of a dataset as a list."""
    return [document.tolist() for document in dataset]


# Which layout a file has

LEGACY_DOCUMENTS = [
    [211, 210, 201, 0],
    [216, 219, 211, 132, 216, 219, 211, 0],
    [216, 204, 214, 201, 201, 0],
    [202, 0],
]
"""The documents of the files whose names begin with `legacy`."""


@pytest.mark.parametrize(
    ("file", "layout", "token_bytes", "dtype"),
    [
        ("legacy-a-header8-be.pbin", "A", 4, np.int64),
        ("legacy-c-header12-le-absolute.pbin", "C", 2, np.int32),
    ],
)
def test_files_of_old_releases_are_read(file, layout, token_bytes, dtype):
    dataset = PackedDataset(GOLDEN / file)

    assert dataset.layout == layout
    assert dataset.token_bytes == token_bytes
    assert token_lists(dataset) == LEGACY_DOCUMENTS
    assert dataset.tokens.tolist() == list(chain.from_iterable(LEGACY_DOCUMENTS))
    assert dataset.document_starts.tolist() == [0, 4, 12, 18]
    assert dataset[1].dtype == dtype


@pytest.mark.parametrize("n_documents", [1, 2, 300, 1001])
@pytest.mark.parametrize("token_bytes", [1, 2, 4])
@pytest.mark.parametrize(
    ("layout", "first_offset"),
    [
        pytest.param("C", 12, id="offsets in the file"),
        pytest.param("D", 0, id="offsets among the tokens"),
    ],
)
def test_layouts_c_and_d_are_distinguished_by_the_first_offset(
    tmp_path, layout, first_offset, token_bytes, n_documents
):
    documents = (np.arange(3 * n_documents) % 251).reshape(n_documents, 3)
    data = documents.astype(f"<u{token_bytes}").tobytes()
    header = struct.pack("<QI", len(data), token_bytes)
    document_bytes = 3 * token_bytes
    entries = [
        (first_offset + number * document_bytes, document_bytes) for number in range(n_documents)
    ]
    (tmp_path / "x").write_bytes(header + data + pickled(entries))

    dataset = PackedDataset(tmp_path / "x")

    assert dataset.layout == layout
    assert token_lists(dataset) == documents.tolist()


@pytest.mark.parametrize("n_documents", [1, 2, 300, 1001])
def test_layout_a_has_no_token_size_and_is_big_endian(tmp_path, n_documents):
    documents = (np.arange(3 * n_documents) % 251).reshape(n_documents, 3)
    data = documents.astype(">u4").tobytes()
    header = struct.pack(">Q", len(data))
    entries = [(8 + 12 * number, 12) for number in range(n_documents)]
    (tmp_path / "a").write_bytes(header + data + pickled(entries))

    dataset = PackedDataset(tmp_path / "a")

    assert dataset.layout == "A"
    assert token_lists(dataset) == documents.tolist()


def test_a_layout_that_no_release_of_modalities_wrote_is_refused():
    with pytest.raises(FormatError, match=r"byte 8: this is no \.pbin"):
        PackedDataset(GOLDEN / "legacy-b-header12-be.pbin")


@pytest.mark.parametrize(
    ("data", "is_contiguous"),
    [
        pytest.param(b"", True, id="without tokens"),
        pytest.param(b"abcd", False, id="with tokens"),
    ],
)
def test_a_file_may_have_no_documents(tmp_path, data, is_contiguous):
    path = tmp_path / "x"
    path.write_bytes(encode_header(len(data), 2) + data + pickled([]))

    assert len(PackedDataset(path)) == 0
    # Tokens without a document are a gap.
    assert scan_index(open_pbin(path)).is_contiguous == is_contiguous


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([(12, 4)], id="gap at the end"),
        pytest.param([(12, 4), (20, 4)], id="gap between documents"),
        pytest.param([(12, 6), (16, 4)], id="overlap"),
        pytest.param([(12, 4), (16, 6)], id="end after the tokens"),
    ],
)
def test_documents_of_old_layouts_must_be_back_to_back(tmp_path, entries):
    header = struct.pack("<QI", 8, 2)
    (tmp_path / "x.pbin").write_bytes(header + bytes(8) + pickled(entries))

    with pytest.raises(FormatError, match="not that of a file of layout C"):
        scan_index(open_pbin(tmp_path / "x.pbin"))


# The size of a token


@pytest.mark.parametrize(
    "vocab_sizes",
    [
        pytest.param(range(1, 3000), id="small"),
        pytest.param([65535, 65536, 65537], id="around 2^16"),
        pytest.param([2**24, 2**24 + 1], id="around 2^24"),
        pytest.param([2**32 - 1, 2**32], id="largest"),
    ],
)
def test_token_sizes_are_those_of_modalities(vocab_sizes):
    for vocab_size in vocab_sizes:
        # Modalities has no tokens of 0 or 3 bytes.
        bytes_needed = math.ceil(math.log2(vocab_size) / 8)
        expected = bytes_needed if bytes_needed in (1, 2) else 4

        assert token_size_bytes(vocab_size) == expected, vocab_size


@pytest.mark.parametrize("vocab_size", [-1, 0, 2**32 + 1, 2**80])
def test_an_impossible_vocabulary_is_refused(vocab_size):
    with pytest.raises(ConfigError, match="vocab_size"):
        token_size_bytes(vocab_size)


# Damaged files

FILE = (GOLDEN / "u2.pbin").read_bytes()
"""A sound file of layout D: a header of 12 bytes, 3076 bytes of tokens, and an index."""
END_OF_TOKENS = 12 + 3076


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "byte 0: the header is cut off", id="empty"),
        pytest.param(FILE[:11], "byte 11: the header is cut off", id="a part of the header"),
        pytest.param(FILE[:12], "byte 12: the file ends too early", id="the header alone"),
        pytest.param(FILE[:1000], "byte 1000: the file ends too early", id="a part of the tokens"),
        pytest.param(
            FILE[:END_OF_TOKENS], "byte 3088: the file ends too early", id="without the index"
        ),
        pytest.param(FILE[: END_OF_TOKENS + 1], "byte 3088: no index", id="one byte of the index"),
        pytest.param(
            FILE[: END_OF_TOKENS + 10],
            "byte 3090: the index ends too early",
            id="ten bytes of the index",
        ),
        pytest.param(FILE[:-1], "byte 3090: the index ends too early", id="last byte cut off"),
        pytest.param(FILE + b"\0", "byte 3379: this is not an index", id="a byte too many"),
        pytest.param(
            bytes(8) + FILE[8:], "byte 0: the header is not complete", id="zero bytes of tokens"
        ),
        pytest.param(
            FILE[:8] + b"\x03\0\0\0" + FILE[12:],
            "byte 8: this is no .pbin",
            id="tokens of three bytes",
        ),
        pytest.param(
            struct.pack("<Q", 2**64 - 1) + FILE[8:],
            "the file ends too early",
            id="2^64 - 1 bytes of tokens",
        ),
        pytest.param(
            struct.pack("<Q", 3075) + FILE[8:],
            "byte 3087: no index",
            id="a byte of tokens too few",
        ),
        pytest.param(
            FILE[:8] + b"\x04\0\0\0" + FILE[12:14] + FILE[12:],
            "no index",
            id="tokens of four bytes, and two bytes too many",
        ),
        pytest.param(
            encode_header(3, 2) + b"abc" + pickled([(0, 2)]),
            "byte 0: the tokens end within a token",
            id="half a token",
        ),
        pytest.param(
            b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 3, "byte 8: this is no .pbin", id="an image"
        ),
        pytest.param(b"MMIDIDX\x00\x00\x01" + bytes(400), "byte 8: this is no .pbin", id="an .idx"),
        pytest.param(bytes(5000), "byte 8: this is no .pbin", id="zeros"),
        pytest.param(
            encode_header(2, 2) + b"ab" + pickled(["x"]),
            "not an index of documents",
            id="an index of text",
        ),
        pytest.param(
            encode_header(4, 2) + b"abcd" + pickled([(12, 2)]),
            "byte 16: the index is not that of a file of",
            id="a document after the tokens",
        ),
    ],
)
def test_a_damaged_file_is_an_error_that_names_the_byte_and_a_remedy(tmp_path, data, message):
    path = tmp_path / "x.pbin"
    path.write_bytes(data)

    with pytest.raises(FormatError, match=message) as caught:
        len(PackedDataset(path))

    assert f"{path}, " in str(caught.value)
    assert "remedy" in str(caught.value)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        pytest.param("x.pbin", "no such file", id="no file"),
        pytest.param("", "this is a folder", id="a folder"),
        pytest.param("x/y", "no such file", id="no folder"),
    ],
)
def test_a_missing_file_is_an_error(tmp_path, path, message):
    with pytest.raises(MissingError, match=message):
        open_pbin(tmp_path / path)


# The index of layout D

Entry = tuple[int, int]
"""A document in an index: where its tokens start, and how many there are, in bytes."""


class Part(NamedTuple):
    """A file of layout D, without its tokens."""

    entries: list[Entry]
    data_bytes: int


class ReadIndex(NamedTuple):
    """The index of a file, in tokens."""

    facts: IndexFacts
    starts: list[int]
    lengths: list[int]


def file_of_zeros(entries, data_bytes, token_bytes=1):
    """Return a file of layout D with this index, all of whose tokens are 0."""
    header = struct.pack("<QI", data_bytes, token_bytes)
    content = header + bytes(data_bytes) + pickled([tuple(entry) for entry in entries])
    return PbinFile(Path("x.pbin"), D, token_bytes, data_bytes, memoryview(content))


def read_index(file) -> ReadIndex:
    """Read an index in all ways, and check that they agree."""
    index = load_index(file)
    assert scan_index(file) == index.facts

    starts = []  # in bytes
    lengths = []
    for chunk_starts, chunk_lengths in document_entries(file, index.facts):
        starts += chunk_starts.tolist()
        lengths += chunk_lengths.tolist()
    assert starts == (index.starts * file.token_bytes).tolist()
    assert lengths == (index.lengths * file.token_bytes).tolist()

    return ReadIndex(index.facts, index.starts.tolist(), index.lengths.tolist())


def back_to_back(lengths) -> Part:
    """Return a file with documents of these lengths in bytes, without gaps."""
    entries = []
    start = 0
    for length in lengths:
        entries.append((start, length))
        start += length
    return Part(entries, data_bytes=start)


def merged_by_modalities(parts) -> Part:
    """Return the file that Modalities' `join_embedded_stream_data` makes of files of layout D.

    Its entries are wrong from the second part on: it subtracts the header of each part, although
    the entries of layout D do not count it.
    """
    entries = []
    offset = 0
    for part in parts:
        entries += [(start + offset, length) for start, length in part.entries]
        offset += part.data_bytes - 12
    return Part(entries, data_bytes=sum(part.data_bytes for part in parts))


def test_a_file_that_modalities_merged_is_read_as_it_was_meant():
    first = load_index(open_pbin(GOLDEN / "docs.pbin"))
    second = load_index(open_pbin(GOLDEN / "edge.pbin"))

    index = read_index(open_pbin(GOLDEN / "merge-buggy-index.pbin"))

    assert index.facts.merge_faults == 1
    assert index.facts.documents == 86
    assert index.facts.tokens == 99667
    assert index.facts.is_contiguous
    assert index.lengths == [*first.lengths, *second.lengths]
    assert index.starts == [*first.starts, *(second.starts + first.facts.tokens)]


document_lengths = st.lists(st.integers(0, 9).map(lambda length: 4 * length), max_size=6)
merged_parts = st.lists(document_lengths, min_size=1, max_size=5)


@given(
    lengths_of_merges=st.lists(merged_parts, min_size=1, max_size=3),
    token_bytes=st.sampled_from([1, 2, 4]),
)
def test_merges_of_merges_are_read_as_they_were_meant(lengths_of_merges, token_bytes):
    merges = []
    for lengths_of_parts in lengths_of_merges:
        parts = [back_to_back(lengths) for lengths in lengths_of_parts]
        merges.append(merged_by_modalities(parts))
    merged = merged_by_modalities(merges)
    all_lengths = list(chain.from_iterable(chain.from_iterable(lengths_of_merges)))
    expected = back_to_back(all_lengths)

    index = read_index(file_of_zeros(merged.entries, merged.data_bytes, token_bytes))

    entries = [
        (start * token_bytes, length * token_bytes)
        for start, length in zip(index.starts, index.lengths, strict=True)
    ]
    assert merged.data_bytes == expected.data_bytes
    assert entries == expected.entries
    assert (index.facts.merge_faults > 0) == (merged.entries != expected.entries)
    assert index.facts.is_contiguous
    assert index.facts.empty_documents == all_lengths.count(0)


@given(
    # Multiples of the 12 bytes by which Modalities is wrong.
    lengths=st.lists(st.integers(1, 3).map(lambda n: 12 * n), min_size=2, max_size=8),
    seed=st.integers(0, 99),
)
def test_documents_in_another_order_are_not_taken_for_a_wrong_merge(lengths, seed):
    part = back_to_back(lengths)
    order = np.random.default_rng(seed).permutation(len(lengths))
    entries = [part.entries[number] for number in order]

    index = read_index(file_of_zeros(entries, part.data_bytes))

    assert list(zip(index.starts, index.lengths, strict=True)) == entries
    assert index.facts.merge_faults == 0


def test_documents_may_overlap_and_leave_tokens_out():
    entries = [(4, 4), (4, 8), (20, 0), (20, 0)]

    index = read_index(file_of_zeros(entries, data_bytes=20, token_bytes=2))

    assert index.starts == [2, 2, 10, 10]
    assert index.lengths == [2, 4, 0, 0]
    assert index.facts == IndexFacts(
        documents=4, tokens=6, empty_documents=2, is_contiguous=False, merge_faults=0
    )


@pytest.mark.parametrize("read", [scan_index, load_index])
@pytest.mark.parametrize(
    ("entries", "wrong_entry"),
    [
        pytest.param([(0, 8), (8, 13)], 1, id="ends a byte late"),
        pytest.param([(0, 8), (8, 14)], 1, id="ends a token late"),
        pytest.param([(0, 8), (-2, 12)], 1, id="starts a token early"),
        pytest.param([(-12, 8), (8, 4)], 0, id="starts a header early"),
        pytest.param([(0, -2)], 0, id="negative length"),
        pytest.param([(0, 3)], 0, id="ends within a token"),
        pytest.param([(1, 2)], 0, id="starts within a token"),
        pytest.param([(0, 20), (20, 2**62)], 1, id="very long"),
        pytest.param([(0, 20), (2**63 - 2, 2)], 1, id="starts at the greatest integer"),
        pytest.param([(0, 20), (-(2**63), 2)], 1, id="starts at the least integer"),
        pytest.param([(0, 20), (20, 2)], 1, id="starts at the end"),
    ],
)
def test_a_document_outside_the_tokens_is_an_error_that_names_the_entry(read, entries, wrong_entry):
    file = file_of_zeros(entries, data_bytes=20, token_bytes=2)

    message = f"x.pbin, entry {wrong_entry} of the index at byte 32"
    with pytest.raises(FormatError, match=message):
        read(file)


def test_a_wrong_entry_in_a_later_chunk_of_the_index_is_named():
    entries = [(2 * number, 2) for number in range(300_000)]
    entries[250_000] = (600_001, 2)

    with pytest.raises(FormatError, match="entry 250000 of the index"):
        scan_index(file_of_zeros(entries, data_bytes=600_000, token_bytes=2))
