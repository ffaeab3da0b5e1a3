"""The lines of plain and compressed files: all of them, up to a fault, and of unchanged files."""

import gzip
import os
import random
import re
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import zstandard
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from helpers.raw_files import random_parts
from nanoset_core.errors import InputError, SourceChangedError
from nanoset_core.storage.reading import input_files
from nanoset_core.text.files.content_kinds import describe_unreadable_content
from nanoset_core.text.files.contents import contents_of
from nanoset_core.text.inventory import fingerprints
from nanoset_core.text.inventory import stored_piece as stored_module
from nanoset_core.text.inventory.fingerprints import fingerprint
from nanoset_core.text.inventory.stored_piece import StoredPiece
from nanoset_core.text.lines import LineBlock, read_lines
from nanoset_core.text.rejects import FaultError

NO_LIMIT = 1 << 30
"""Bytes of a line that no test reaches."""


class ReadLine(NamedTuple):
    """A line, and where it was found in the decompressed file."""

    number: int
    begin: int
    end: int
    """Offset after its line end."""
    content: bytes | None
    """Without its line end; None if the line is too long."""


@dataclass
class ReadLines:
    """What was read of a piece."""

    lines: list[ReadLine]
    fault: FaultError | None
    """The fault that ended the file early."""


def read_all(folder, piece, max_line_bytes=NO_LIMIT):
    """Read a piece to its end or to its fault, and check its digest."""
    stored = StoredPiece(folder, piece)
    lines = []
    fault = None
    try:
        for block in read_lines(stored, max_line_bytes):
            lines += lines_of(block)
    except FaultError as error:
        fault = error
    stored.check()
    return ReadLines(lines, fault)


def lines_of(block):
    """Return the lines of a block."""
    assert block.lines
    if block.long_bytes:
        return [ReadLine(block.first_number, block.begin, block.end, None)]

    lines = []
    begin = block.begin
    for number, content in enumerate(block.lines, block.first_number):
        end = begin + len(content) + 1
        lines.append(ReadLine(number, begin, end, content))
        begin = end
    # The last line of a file may have no line end.
    assert block.end in (begin - 1, begin)
    lines[-1] = lines[-1]._replace(end=block.end)
    return lines


def slow_lines(data, max_line_bytes=NO_LIMIT):
    """Return the lines of a whole text, one at a time."""
    lines = []
    begin = 0
    for number, line in enumerate(re.findall(rb"[^\n]*\n|[^\n]+", data), 1):
        content = line.removesuffix(b"\n")
        end = begin + len(line)
        if len(content) > max_line_bytes:
            content = None
        lines.append(ReadLine(number, begin, end, content))
        begin = end
    return lines


def compress_in_parts(name, data, rng):
    """Return a file of some text, in up to four members or frames if it is compressed.

    Args:
        name: Name of the file, whose ending says how it is compressed.
        data: The text.
        rng: Divides the text into members.
    """
    if name.endswith(".jsonl"):
        return data
    compress = {"gz": gzip.compress, "zst": zstandard.compress}[name.rpartition(".")[2]]
    return b"".join(compress(part) for part in random_parts(data, rng, max_parts=4))


# Lines

TEXTS = st.lists(
    st.one_of(
        st.just(b""),
        st.binary(max_size=20),
        st.sampled_from([b"\r", b'{"text": "x"}\r', b"a" * 300, b"\0"]),
    ),
    max_size=20,
).map(b"\n".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=TEXTS,
    name=st.sampled_from(["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"]),
    read_bytes=st.integers(1, 50),
    max_line_bytes=st.sampled_from([0, 1, 15, 299, 300, NO_LIMIT]),
    seed=st.integers(0, 1000),
)
def test_lines_are_those_of_the_whole_text(
    tmp_path, write_piece, monkeypatch, data, name, read_bytes, max_line_bytes, seed
):
    assume(describe_unreadable_content(data, name) is None)  # such as "a NumPy array"
    monkeypatch.setattr(stored_module, "READ_BYTES", read_bytes)
    piece = write_piece(name, compress_in_parts(name, data, random.Random(seed)))

    result = read_all(tmp_path, piece, max_line_bytes)

    assert result.lines == slow_lines(data, max_line_bytes)
    assert result.fault is None


def test_the_pieces_of_a_file_have_the_lines_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 777)
    rng = random.Random(5)
    lines = [rng.randbytes(rng.randrange(60)).hex().encode() for _ in range(300)]
    data = b"\n".join([*lines, b"no end"])
    (tmp_path / "a.jsonl").write_bytes(data)
    pieces = fingerprint(tmp_path, contents_of(tmp_path).ordered[0])
    assert len(pieces) > 10

    lines_of_pieces = []
    for piece in pieces:
        lines_of_pieces += read_all(tmp_path, piece).lines

    assert lines_of_pieces == slow_lines(data)


def test_only_the_first_200_bytes_of_a_line_that_is_too_long_are_kept(
    tmp_path, write_piece, monkeypatch
):
    monkeypatch.setattr(stored_module, "READ_BYTES", 64)
    data = b"short\n" + b"0123456789" * 100 + b"\nshort\n" + b"abc" * 100
    piece = StoredPiece(tmp_path, write_piece("a.jsonl", data))

    blocks = list(read_lines(piece, max_line_bytes=250))

    assert [block for block in blocks if block.long_bytes] == [
        LineBlock(
            [b"0123456789" * 20],
            first_number=2,
            begin=6,
            end=1007,
            long_bytes=1000,
        ),
        LineBlock(
            [(b"abc" * 67)[:200]],
            first_number=4,
            begin=1013,
            end=1313,
            long_bytes=300,
        ),
    ]


# Faults


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a.jsonl.gz", "truncated_gzip"),
        ("a.jsonl.zst", "truncated_zstd"),
    ],
)
def test_a_fault_within_a_line_is_raised_after_that_line(tmp_path, write_piece, name, reason):
    data = b"first\nsecond\nthird line, cut off"
    compressed = compress_in_parts(name, data, random.Random(1))
    cut_off_member = compressed[:3]
    piece = write_piece(name, compressed + cut_off_member)

    result = read_all(tmp_path, piece)

    assert result.lines == slow_lines(data)
    assert result.fault.line == 3
    assert result.fault.offset == len(data)
    assert result.fault.reason == reason


def test_a_fault_after_a_line_end_is_in_the_next_line(tmp_path, write_piece):
    data = b"one\ntwo\n"
    piece = write_piece("a.jsonl.gz", gzip.compress(data)[:-1])

    result = read_all(tmp_path, piece)

    assert [line.content for line in result.lines] == [b"one", b"two"]
    assert result.fault.line == 3
    assert result.fault.offset == len(data)


class FailingFile:
    """A file on a disk that fails."""

    def __init__(self, file):
        self._file = file

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def read(self, size):
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_a_disk_that_fails_is_an_error_and_not_a_fault_of_the_file(
    tmp_path, write_piece, monkeypatch, name
):
    """If it were taken for the end of the file, the rest would be lost without a message."""
    piece = write_piece(name, compress_in_parts(name, b"one\n" * 10, random.Random(0)))
    monkeypatch.setattr(input_files, "open_regular", lambda path: FailingFile(path.open("rb")))

    with pytest.raises(InputError, match="cannot be read") as caught:
        read_all(tmp_path, piece)

    assert "errno 5" in caught.value.found


# Files that change


def edit(path):
    """Change a bit of the sixth byte of a file."""
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)


CHANGES = {
    "edited": edit,
    "prepended": lambda path: path.write_bytes(b"{}\n" + path.read_bytes()),
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "reversed": lambda path: path.write_bytes(path.read_bytes()[::-1]),
}


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changed_since_the_inventory_is_an_error(tmp_path, write_piece, name, change):
    data = compress_in_parts(name, b"one line\nand another\n" * 50, random.Random(2))
    piece = write_piece(name, data)
    path = tmp_path / name
    CHANGES[change](path)

    with pytest.raises(SourceChangedError, match="not as the inventory found it") as caught:
        read_all(tmp_path, piece)

    assert caught.value.where == str(path)
    assert caught.value.found
    assert caught.value.expected


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path, write_piece, monkeypatch):
    monkeypatch.setattr(stored_module, "READ_BYTES", 10)
    stored = StoredPiece(tmp_path, write_piece("a.jsonl", b"0123456789\n" * 10))
    blocks = read_lines(stored, 100)
    next(blocks)

    os.truncate(stored.path, 30)

    with pytest.raises(SourceChangedError):
        list(blocks)
        stored.check()


def test_lines_that_are_appended_after_the_inventory_are_not_read(tmp_path, write_piece):
    """The inventory is a snapshot; the next one contains the new lines."""
    piece = write_piece("a.jsonl", b"one\n")
    (tmp_path / "a.jsonl").write_bytes(b"one\ntwo\n")

    result = read_all(tmp_path, piece)

    assert result.lines == [ReadLine(1, begin=0, end=4, content=b"one")]
    assert result.fault is None
