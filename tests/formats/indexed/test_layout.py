"""The bytes of an .idx, and every way in which they can be wrong."""

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

# three sequences of 2, 0 and 3 tokens in two documents, uint16
LITERAL = (
    b"MMIDIDX\x00\x00"
    + b"\x01\x00\x00\x00\x00\x00\x00\x00"
    + b"\x08"
    + b"\x03\x00\x00\x00\x00\x00\x00\x00"
    + b"\x03\x00\x00\x00\x00\x00\x00\x00"
    + b"\x02\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00"
    + b"\x00\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00"
    + b"\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00"
)
LENGTHS_AT, POINTERS_AT, DOCUMENTS_AT = 34, 46, 70


def patched(at, data):
    return LITERAL[:at] + data + LITERAL[at + len(data) :]


def test_writes_the_literal_bytes(tmp_path):
    path = tmp_path / "x.idx"
    with path.open("wb") as file:
        write_idx(file, np.uint16, np.array([2, 0, 3]), np.array([0, 2, 3]))
    assert path.read_bytes() == LITERAL
    with path.open("wb") as file:
        write_idx(
            file, np.uint16, np.array([2, 0, 3]), np.array([0, 2, 3]), modes=np.array([0, 1, -1])
        )
    assert path.read_bytes() == LITERAL + b"\x00\x01\xff"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.idx"]


def test_reads_the_literal_bytes(tmp_path):
    (tmp_path / "x.idx").write_bytes(LITERAL)
    index = read_idx(tmp_path / "x.idx")
    assert index.dtype == np.uint16
    assert index.sequence_lengths.tolist() == [2, 0, 3]
    assert index.sequence_pointers.tolist() == [0, 4, 4]
    assert index.document_indices.tolist() == [0, 2, 3]
    assert index.modes is None
    assert index.end_bytes == 10
    assert not index.sequence_lengths.flags.writeable


def test_reads_modes(tmp_path):
    (tmp_path / "x.idx").write_bytes(LITERAL + b"\x00\x01\xff")
    assert read_idx(tmp_path / "x.idx").modes.tolist() == [0, 1, -1]


@pytest.mark.parametrize(
    ("data", "at", "message"),
    [
        (b"", 0, "not an index"),
        (b"PK\x03\x04" + LITERAL[4:], 0, "not an index"),
        (b"TNTIDX\x00\x00" + LITERAL[8:], 0, "not an index"),
        (LITERAL[:20], 20, "header is cut off"),
        (patched(9, b"\x02"), 9, "unknown version"),
        (patched(17, b"\x00"), 17, "unknown dtype code"),
        (patched(17, b"\x09"), 17, "unknown dtype code"),
        (LITERAL[:40], 40, "ends too early"),
        (LITERAL[:-1], len(LITERAL) - 1, "ends too early"),
        (patched(18, struct.pack("<Q", 1 << 60)), len(LITERAL), "ends too early"),
        (LITERAL + b"\x00", len(LITERAL), "after the end"),
        (LITERAL + b"\x00" * 4, len(LITERAL), "after the end"),
        (patched(DOCUMENTS_AT, struct.pack("<q", 1)), DOCUMENTS_AT, "first document"),
        (patched(DOCUMENTS_AT + 16, struct.pack("<q", 2)), DOCUMENTS_AT + 16, "do not end"),
        (patched(DOCUMENTS_AT + 8, struct.pack("<q", 4)), DOCUMENTS_AT + 16, "begins before"),
        (patched(DOCUMENTS_AT + 8, struct.pack("<q", -1)), DOCUMENTS_AT + 8, "begins before"),
        (patched(LENGTHS_AT + 4, struct.pack("<i", -1)), LENGTHS_AT + 4, "negative length"),
        (patched(POINTERS_AT + 8, struct.pack("<q", 5)), POINTERS_AT + 8, "impossible pointer"),
        (patched(POINTERS_AT, struct.pack("<q", -2)), POINTERS_AT, "impossible pointer"),
        (
            patched(POINTERS_AT + 16, struct.pack("<q", 1 << 62 | 2)),
            POINTERS_AT + 16,
            "impossible pointer",
        ),
    ],
)
def test_malformed_files(tmp_path, data, at, message):
    path = tmp_path / "x.idx"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message) as caught:
        read_idx(path)
    assert caught.value.where == f"{path}, byte {at}"


def test_no_document_indices_at_all(tmp_path):
    path = tmp_path / "x.idx"
    path.write_bytes(layout.HEADER.pack(layout.MAGIC, 1, 8, 0, 0))
    with pytest.raises(FormatError, match="no document indices"):
        read_idx(path)


def test_missing_file(tmp_path):
    with pytest.raises(MissingError, match="prefix"):
        read_idx(tmp_path / "x.idx")


def test_empty_dataset(tmp_path):
    with (tmp_path / "x.idx").open("wb") as file:
        write_idx(file, np.int32, np.empty(0, np.int32), np.array([0]))
    index = read_idx(tmp_path / "x.idx")
    assert len(index.sequence_lengths) == 0
    assert index.end_bytes == 0


def test_checks_reach_beyond_the_first_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr("nanoset_core.formats.indexed.layout.CHUNK_SEQUENCES", 2)
    lengths = np.arange(7, dtype=np.int32)
    with (tmp_path / "x.idx").open("wb") as file:
        write_idx(file, np.int32, lengths, np.arange(8))
    read_idx(tmp_path / "x.idx")
    data = bytearray((tmp_path / "x.idx").read_bytes())
    struct.pack_into("<q", data, 34 + 4 * 7 + 8 * 5, 39)  # sequence 5 begins at byte 40
    (tmp_path / "x.idx").write_bytes(data)
    with pytest.raises(FormatError, match="sequence 5"):
        read_idx(tmp_path / "x.idx")
    read_idx(tmp_path / "x.idx", validate=False)
    struct.pack_into("<q", data, 34 + 4 * 7 + 8 * 5, 40)
    # sequence 4, first of its chunk, begins at byte 24
    struct.pack_into("<q", data, 34 + 4 * 7 + 8 * 4, 23)
    (tmp_path / "x.idx").write_bytes(data)
    with pytest.raises(FormatError, match="sequence 4"):
        read_idx(tmp_path / "x.idx")


@pytest.mark.parametrize(
    ("size", "dtype"), [(None, "int32"), (1, "uint16"), (65499, "uint16"), (65500, "int32")]
)
def test_optimal_dtype(size, dtype):
    assert optimal_dtype(size) == np.dtype(dtype)


def test_dtype_codes():
    codes = {
        "uint8": 1,
        "int8": 2,
        "int16": 3,
        "int32": 4,
        "int64": 5,
        "float64": 6,
        "float32": 7,
        "uint16": 8,
    }
    assert {name: dtype_code(name) for name in codes} == codes
    assert dtype_code(">u2") == 8
    with pytest.raises(ConfigError, match="uint32"):
        dtype_code(np.uint32)


def test_pointers_are_the_running_sum_over_all_chunks(monkeypatch):
    monkeypatch.setattr(layout, "CHUNK_SEQUENCES", 3)
    lengths = np.array([5, 0, 2**31 - 1, 2**31 - 1, 7, 1, 0, 3], dtype=np.int32)
    chunks = list(pointer_chunks(lengths, 4))
    assert [begin for begin, _ in chunks] == [0, 3, 6]
    expected = np.concatenate(([0], np.cumsum(lengths.astype(np.int64) * 4)[:-1]))
    np.testing.assert_array_equal(np.concatenate([pointers for _, pointers in chunks]), expected)


def test_a_pair_has_both_files(tmp_path):
    (tmp_path / "web.bin").write_bytes(b"")
    assert not layout.is_pair(tmp_path / "web")

    (tmp_path / "web.idx").write_bytes(LITERAL)

    assert layout.is_pair(tmp_path / "web")
