"""The bytes of an .idx: how they are written and read, and every way in which they can be wrong."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.formats.indexed import layout
from nanoset_core.formats.indexed.layout import (
    dtype_code,
    optimal_dtype,
    pointer_chunks,
    read_idx,
    write_idx,
)

LENGTHS = [2, 0, 3]
DOCUMENTS = [0, 2, 3]
MODES = [0, 1, -1]
IDX = (
    b"MMIDIDX\x00\x00"  # magic
    b"\x01\x00\x00\x00\x00\x00\x00\x00"  # version
    b"\x08"  # code of uint16
    b"\x03\x00\x00\x00\x00\x00\x00\x00"  # number of sequences
    b"\x03\x00\x00\x00\x00\x00\x00\x00"  # number of document indices
    # LENGTHS
    b"\x02\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00"
    # the byte in the .bin at which each sequence starts: 0, 4, 4
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00"
    # DOCUMENTS
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00"
)
"""An .idx with three sequences of 2, 0 and 3 tokens of two bytes, in two documents."""
MODES_BYTES = b"\x00\x01\xff"
"""What follows in the .idx of a multimodal dataset: MODES."""

# Where the arrays of IDX start.
LENGTHS_START = 34
POINTERS_START = LENGTHS_START + 3 * 4
DOCUMENTS_START = POINTERS_START + 3 * 8


@pytest.fixture
def file(tmp_path):
    """The path of an .idx that does not exist yet."""
    return tmp_path / "x.idx"


def replaced(offset, data):
    """Return IDX with other bytes at an offset."""
    return IDX[:offset] + data + IDX[offset + len(data) :]


def replaced_int64(offset, value):
    """Return IDX with another 8-byte integer at an offset."""
    return replaced(offset, struct.pack("<q", value))


def replaced_int32(offset, value):
    """Return IDX with another 4-byte integer at an offset."""
    return replaced(offset, struct.pack("<i", value))


# Writing and reading


def test_an_index_has_the_documented_bytes(file):
    with file.open("wb") as output:
        write_idx(output, np.uint16, np.array(LENGTHS), np.array(DOCUMENTS))

    assert file.read_bytes() == IDX
    assert [path.name for path in file.parent.iterdir()] == ["x.idx"]


def test_modes_are_written_at_the_end(file):
    with file.open("wb") as output:
        write_idx(output, np.uint16, np.array(LENGTHS), np.array(DOCUMENTS), modes=np.array(MODES))

    assert file.read_bytes() == IDX + MODES_BYTES


def test_an_index_is_read(file):
    file.write_bytes(IDX)

    index = read_idx(file)

    assert index.dtype == np.uint16
    assert index.sequence_lengths.tolist() == LENGTHS
    assert index.sequence_pointers.tolist() == [0, 4, 4]
    assert index.document_indices.tolist() == DOCUMENTS
    assert index.modes is None
    assert index.end_bytes == 10  # five tokens of two bytes
    assert not index.sequence_lengths.flags.writeable


def test_modes_are_read(file):
    file.write_bytes(IDX + MODES_BYTES)

    assert read_idx(file).modes.tolist() == MODES


def test_the_index_of_an_empty_dataset_is_read(file):
    with file.open("wb") as output:
        write_idx(output, np.int32, np.empty(0, np.int32), np.array([0]))

    index = read_idx(file)

    assert len(index.sequence_lengths) == 0
    assert index.end_bytes == 0


# Damage


@pytest.mark.parametrize(
    ("data", "offset", "message"),
    [
        pytest.param(b"", 0, "not an index", id="empty"),
        pytest.param(b"PK\x03\x04" + IDX[4:], 0, "not an index", id="a zip file"),
        pytest.param(b"TNTIDX\x00\x00" + IDX[8:], 0, "not an index", id="fairseq's older format"),
        pytest.param(IDX[:20], 20, "header is cut off", id="a part of the header"),
        pytest.param(replaced(9, b"\x02"), 9, "unknown version", id="version 2"),
        pytest.param(replaced(17, b"\x00"), 17, "unknown dtype code", id="type 0"),
        pytest.param(replaced(17, b"\x09"), 17, "unknown dtype code", id="type 9"),
        pytest.param(IDX[:40], 40, "ends too early", id="cut off in the lengths"),
        pytest.param(IDX[:-1], len(IDX) - 1, "ends too early", id="last byte cut off"),
        pytest.param(replaced_int64(18, 1 << 60), len(IDX), "ends too early", id="2^60 sequences"),
        pytest.param(IDX + b"\x00", len(IDX), "after the end", id="a byte too many"),
        pytest.param(IDX + b"\x00" * 4, len(IDX), "after the end", id="four bytes too many"),
        pytest.param(
            replaced_int64(DOCUMENTS_START, 1),
            DOCUMENTS_START,
            "first document",
            id="first document starts late",
        ),
        pytest.param(
            replaced_int64(DOCUMENTS_START + 16, 2),
            DOCUMENTS_START + 16,
            "do not end",
            id="last document ends early",
        ),
        pytest.param(
            replaced_int64(DOCUMENTS_START + 8, 4),
            DOCUMENTS_START + 16,
            "begins before",
            id="second document after the end",
        ),
        pytest.param(
            replaced_int64(DOCUMENTS_START + 8, -1),
            DOCUMENTS_START + 8,
            "begins before",
            id="second document before the first",
        ),
        pytest.param(
            replaced_int32(LENGTHS_START + 4, -1),
            LENGTHS_START + 4,
            "negative length",
            id="negative length",
        ),
        pytest.param(
            replaced_int64(POINTERS_START + 8, 5),
            POINTERS_START + 8,
            "impossible pointer",
            id="pointer between tokens",
        ),
        pytest.param(
            replaced_int64(POINTERS_START, -2),
            POINTERS_START,
            "impossible pointer",
            id="negative pointer",
        ),
        pytest.param(
            replaced_int64(POINTERS_START + 16, 1 << 62 | 2),
            POINTERS_START + 16,
            "impossible pointer",
            id="pointer too large",
        ),
    ],
)
def test_a_damaged_index_is_an_error_that_names_the_byte(file, data, offset, message):
    file.write_bytes(data)

    with pytest.raises(FormatError, match=message) as caught:
        read_idx(file)

    assert caught.value.where == f"{file}, byte {offset}"


def test_an_index_without_document_indices_is_an_error(file):
    file.write_bytes(layout.HEADER.pack(layout.MAGIC, 1, 8, 0, 0))

    with pytest.raises(FormatError, match="no document indices"):
        read_idx(file)


def test_a_missing_index_is_an_error(file):
    with pytest.raises(MissingError, match="prefix"):
        read_idx(file)


@pytest.fixture
def chunked_file(file, monkeypatch):
    """The .idx of sequences of 0 to 6 tokens of 4 bytes, which is checked 2 sequences at a time."""
    monkeypatch.setattr(layout, "CHUNK_SEQUENCES", 2)
    with file.open("wb") as output:
        write_idx(output, np.int32, np.arange(7, dtype=np.int32), np.arange(8))
    return file


def replace_pointer(file, sequence, pointer):
    """Let a sequence of `chunked_file` start at another byte."""
    pointers_start = LENGTHS_START + 4 * 7
    data = bytearray(file.read_bytes())
    struct.pack_into("<q", data, pointers_start + 8 * sequence, pointer)
    file.write_bytes(data)


def test_a_sound_index_is_read_in_several_chunks(chunked_file):
    assert read_idx(chunked_file).sequence_pointers.tolist() == [0, 0, 4, 12, 24, 40, 60]


@pytest.mark.parametrize(
    ("sequence", "pointer"),
    [
        pytest.param(5, 39, id="last of its chunk"),  # instead of 40
        pytest.param(4, 23, id="first of its chunk"),  # instead of 24
    ],
)
def test_pointers_are_checked_in_every_chunk(chunked_file, sequence, pointer):
    replace_pointer(chunked_file, sequence, pointer)

    with pytest.raises(FormatError, match=f"sequence {sequence}"):
        read_idx(chunked_file)


def test_pointers_are_not_checked_if_that_is_switched_off(chunked_file):
    replace_pointer(chunked_file, 5, 39)

    read_idx(chunked_file, validate=False)


def test_pointers_are_the_running_sum_over_all_chunks(monkeypatch):
    monkeypatch.setattr(layout, "CHUNK_SEQUENCES", 3)
    # The sum does not fit in 32 bits.
    lengths = np.array([5, 0, 2**31 - 1, 2**31 - 1, 7, 1, 0, 3], dtype=np.int32)
    ends = np.cumsum(lengths.astype(np.int64) * 4)
    expected = np.concatenate(([0], ends[:-1]))

    chunks = list(pointer_chunks(lengths, 4))

    assert [first_sequence for first_sequence, _ in chunks] == [0, 3, 6]
    pointers = np.concatenate([pointers for _, pointers in chunks])
    np.testing.assert_array_equal(pointers, expected)


# Types of tokens


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(None, "int32"), (1, "uint16"), (65499, "uint16"), (65500, "int32")]
)
def test_the_type_of_tokens_depends_on_the_vocabulary_as_in_megatron(vocab_size, dtype):
    assert optimal_dtype(vocab_size) == np.dtype(dtype)


@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        ("uint8", 1),
        ("int8", 2),
        ("int16", 3),
        ("int32", 4),
        ("int64", 5),
        ("float64", 6),
        ("float32", 7),
        ("uint16", 8),
        (">u2", 8),  # in either byte order
    ],
)
def test_a_type_has_the_code_of_megatron(dtype, code):
    assert dtype_code(dtype) == code


def test_a_type_without_a_code_is_refused():
    with pytest.raises(ConfigError, match="uint32"):
        dtype_code(np.uint32)


# Pairs


def test_a_pair_has_both_files(tmp_path):
    (tmp_path / "web.bin").write_bytes(b"")
    assert not layout.is_pair(tmp_path / "web")

    (tmp_path / "web.idx").write_bytes(IDX)

    assert layout.is_pair(tmp_path / "web")
