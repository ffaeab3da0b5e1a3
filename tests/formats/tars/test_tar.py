"""Tars are written as Python's tarfile writes them, and read whichever program wrote them."""

from __future__ import annotations

import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.locations import GOLDEN_FILES
from helpers.tars import TarEntry, iterate_members, tar_bytes
from nanoset_core.errors import FormatError
from nanoset_core.formats.tars.tar import TarMember, end_of_archive, headers

GOLDEN_TARS = sorted((GOLDEN_FILES / "webdataset").glob("*/*.tar"))
"""Tars that other tools wrote."""
BLOCK_BYTES = 512
SIZE_OFFSET = 124
"""Where the size of a member is in its header."""
CHECKSUM_OFFSET = 148
"""Where the checksum of a header is in it."""


def our_tar_bytes(entries):
    """Return a tar of files, written by the functions that are tested here.

    Args:
        entries: The files, whose names have one length.
    """
    names = np.array([list(entry.name.encode()) for entry in entries], dtype=np.uint8)
    sizes = np.array([len(entry.body) for entry in entries], dtype=np.int64)
    records = b""
    for header, entry in zip(headers(names, sizes), entries, strict=True):
        padding = bytes(-len(entry.body) % BLOCK_BYTES)
        records += header.tobytes() + entry.body + padding
    return records + end_of_archive(len(records))


# Writing

# Bodies that end shortly before, at and long after the end of a block.
bodies = st.one_of(st.binary(max_size=40), st.sampled_from([b"x" * 511, b"y" * 512, b"z" * 9000]))


@given(bodies=st.lists(bodies, min_size=1, max_size=30), name_length=st.integers(1, 100))
def test_a_tar_has_the_bytes_that_tarfile_writes(bodies, name_length):
    entries = []
    for number, body in enumerate(bodies):
        name = str(number).zfill(name_length)[:name_length]
        entries.append(TarEntry(name, body))

    assert our_tar_bytes(entries) == tar_bytes(entries)


# Reading


@pytest.mark.parametrize("path", GOLDEN_TARS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_tars_of_other_tools_are_read_as_tarfile_reads_them(path):
    with tarfile.open(path) as archive:
        expected = [
            TarMember(info.name, info.offset_data, info.size) for info in archive.getmembers()
        ]

    assert list(iterate_members(path.read_bytes(), path)) == expected


@pytest.mark.parametrize(
    ("format", "file_name_length"),
    [
        pytest.param(tarfile.USTAR_FORMAT, 60, id="ustar"),  # at most 100 after the folder
        pytest.param(tarfile.GNU_FORMAT, 300, id="gnu"),
        pytest.param(tarfile.PAX_FORMAT, 300, id="pax"),
    ],
)
def test_long_names_are_read_and_links_skipped(format, file_name_length):
    long_name = "d" * 60 + "/" + "n" * file_name_length
    entries = [
        TarEntry("link", kind=tarfile.SYMTYPE),
        TarEntry("é" * 20),
        TarEntry(long_name),
    ]

    members = iterate_members(tar_bytes(entries, format), "any.tar")

    assert [member.name for member in members] == ["é" * 20, long_name]


# Damage

TAR = our_tar_bytes([TarEntry("a.npy", b"x" * 600), TarEntry("b.npy", b"yz")])
"""A tar of two files: a header and two blocks, a header and one block, and the end."""
END_OF_FIRST = 3 * BLOCK_BYTES
END_OF_SECOND = 5 * BLOCK_BYTES
NO_END = "does not end in two or more zero blocks"


def replaced(offset, data):
    """Return TAR with other bytes at an offset."""
    return TAR[:offset] + data + TAR[offset + len(data) :]


@pytest.mark.parametrize(
    ("archive", "message"),
    [
        pytest.param(b"", NO_END, id="empty"),
        pytest.param(TAR[:100], NO_END, id="cut off in the first header"),
        pytest.param(TAR[:900], "is cut off", id="cut off in the first file"),
        pytest.param(TAR[:END_OF_FIRST], NO_END, id="cut off after the first file"),
        pytest.param(TAR[:END_OF_SECOND], NO_END, id="cut off after the second file"),
        pytest.param(TAR[: END_OF_SECOND + BLOCK_BYTES], NO_END, id="one block of zeros"),
        pytest.param(replaced(len(TAR) - 1, b"x"), NO_END, id="last byte is not zero"),
        pytest.param(
            TAR + bytes(2 << 20) + b"x" + bytes(511), NO_END, id="not zero after 2 MiB of zeros"
        ),
        pytest.param(TAR[:-1], NO_END, id="last byte cut off"),
        pytest.param(replaced(0, b"z"), "checksum is wrong", id="another name"),
        pytest.param(replaced(SIZE_OFFSET, b"zzz"), "not a tar header", id="size of letters"),
        pytest.param(replaced(SIZE_OFFSET, b"-0000001000"), "not a tar header", id="negative size"),
        pytest.param(
            replaced(SIZE_OFFSET, b"+0000001000"), "not a tar header", id="size with a plus sign"
        ),
        pytest.param(
            replaced(SIZE_OFFSET, b"0_000000010"), "not a tar header", id="size with an underscore"
        ),
        pytest.param(replaced(CHECKSUM_OFFSET, b"        "), "not a tar header", id="no checksum"),
        pytest.param(b"just some text" * 1000, "not a tar header", id="text"),
    ],
)
def test_a_damaged_tar_is_an_error_that_names_the_offset(archive, message):
    with pytest.raises(FormatError, match=message) as caught:
        list(iterate_members(archive, "shard.tar"))

    assert "shard.tar, offset" in str(caught.value)


def header_with_size(name, size, kind=tarfile.REGTYPE):
    """Return a header whose checksum is right.

    Args:
        name: Name of the member.
        size: The 12 bytes of its size field.
        kind: Type of the member.
    """
    header = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    header[SIZE_OFFSET : SIZE_OFFSET + 12] = size
    header[156:157] = kind
    # For the checksum, its own field counts as spaces.
    header[CHECKSUM_OFFSET : CHECKSUM_OFFSET + 8] = b" " * 8
    header[CHECKSUM_OFFSET : CHECKSUM_OFFSET + 8] = b"%06o\0 " % sum(header)
    return bytes(header)


# The bytes of a size field: octal digits, or a number in base 256 whose first byte says so.
TOO_LARGE_SIZES = [
    pytest.param(b"77777777777\0", id="8 GiB"),
    pytest.param(b"\x80" + b"\xff" * 11, id="2^88"),
]
NEGATIVE_SIZES = [
    pytest.param(b"-0000000512\0", id="-512"),
    pytest.param(b"\xff" * 12, id="-1 in base 256"),
    pytest.param(b"\xff" * 10 + b"\xfc\x00", id="-1024 in base 256"),
]


def archive_of(size, kind):
    """Return an archive of an empty file, and of a member with any size and kind."""
    first = header_with_size("a.npy", b"00000000000\0")
    second = header_with_size("b.npy", size, kind)
    return first + second + bytes(4096)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(tarfile.REGTYPE, id="file"),
        pytest.param(tarfile.XHDTYPE, id="pax header"),
        pytest.param(tarfile.GNUTYPE_LONGNAME, id="long name"),
        pytest.param(tarfile.XGLTYPE, id="global pax header"),
        pytest.param(tarfile.GNUTYPE_SPARSE, id="sparse file"),
    ],
)
@pytest.mark.parametrize("size", TOO_LARGE_SIZES + NEGATIVE_SIZES)
def test_a_member_of_an_impossible_size_is_an_error(kind, size):
    with pytest.raises(FormatError, match=r"h\.tar, offset"):
        list(iterate_members(archive_of(size, kind), "h.tar"))


@pytest.mark.parametrize("size", NEGATIVE_SIZES)
def test_a_folder_of_a_negative_size_is_an_error(size):
    with pytest.raises(FormatError, match=r"h\.tar, offset 512"):
        list(iterate_members(archive_of(size, tarfile.DIRTYPE), "h.tar"))


@pytest.mark.parametrize("size", TOO_LARGE_SIZES)
def test_the_size_of_a_folder_is_ignored(size):
    members = iterate_members(archive_of(size, tarfile.DIRTYPE), "h.tar")

    assert [member.name for member in members] == ["a.npy"]
