"""Write deterministic ustar bytes, and read tars.

A record is a 512-byte header, the body, and zeros up to the next multiple of 512. Header (offset,
size, content)::

      0  100  name, zeros after it              136  12  mtime, octal, NUL  "00000000000\\0"
    100    8  mode    "0000644\\0"               148   8  checksum, octal    "NNNNNN\\0 "
    108    8  uid     "0000000\\0"               156   1  type               "0" (regular file)
    116    8  gid     "0000000\\0"               257   6  magic              "ustar\\0"
    124   12  size, octal, NUL                  263   2  version            "00"

Everything else is zero. The checksum is the sum of all bytes of the header, where the eight bytes
of the checksum count as spaces. The archive ends with two zero blocks, and zeros up to a multiple
of 10,240. These are the bytes that Python's tarfile writes (USTAR_FORMAT, mtime 0). All readers
understand them, also the simple one of wids.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError
from nanoset_core.storage.regular_files import map_regular, required

BLOCK_BYTES = 512
"""Bytes of a header; bodies are filled up to a multiple of it."""
ARCHIVE_BYTES = 10240
"""The size of an archive is a multiple of this."""
_CHUNK_BYTES = 1 << 20
"""Bytes read at once when the end of an archive is checked."""

# Fields of a header.
_NAME = slice(0, 100)
_SIZE = slice(124, 136)
_CHECKSUM = slice(148, 156)
_TYPE = slice(156, 157)
_MAGIC = slice(257, 263)
_FOLDER = slice(345, 500)

SIZE_DIGITS = slice(124, 135)
"""Octal digits of the body's size, in a header."""
CHECKSUM_DIGITS = slice(148, 154)
"""Octal digits of the checksum, in a header."""
_CHECKSUM_END = 154
_TEMPLATE = b"".join(
    (
        bytes(100),  # name
        b"0000644\0",  # mode
        b"0000000\0",  # uid
        b"0000000\0",  # gid
        bytes(12),  # size
        b"00000000000\0",  # mtime
        b" " * 8,  # checksum, which is computed with spaces in its place
        b"0",  # type
        bytes(100),  # name of a link's target
        b"ustar\0",
        b"00",  # version
        bytes(247),
    )
)
_WITHOUT_BODY = b"123456"
"""Types of entries without a body: links, devices, folders, pipes."""
_REGULAR = b"0\x007"
"""Types of files."""
_EXTENDED = b"xXLgK"
"""Types of extended headers. Those of the types `g` and `K` do not affect the name and size of the
next entry.
"""
_SPARSE = b"S"
"""Type of files that are stored without their ranges of zeros."""


@dataclass(frozen=True, slots=True)
class TarMember:
    """One entry of an archive."""

    name: str
    """Its path within the archive."""
    offset: int
    """First byte of the body within the archive."""
    size_bytes: int
    """Bytes of the body, without the zeros after it."""
    is_file: bool = True
    """Whether it is a file, and not a link, a folder or a device."""


def headers(names: NDArray[np.uint8], sizes: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the headers of several files in a tar, 512 bytes each.

    A header has fields at fixed places: the name at byte 0, the size as octal digits at byte 124, a
    checksum at byte 148, and others that are always the same here.

    Args:
        names: ASCII, uint8, shape (n_members, at most 100); shorter names are filled with zeros.
        sizes: Bytes of each file, int64, shape (n_members,).

    Returns:
        uint8, shape (n_members, 512).
    """
    # A copy of the template for each member, in which its name and its size are filled in. A header
    # starts with the name; the size has 11 octal digits.
    block = np.tile(np.frombuffer(_TEMPLATE, dtype=np.uint8), (len(names), 1))
    block[:, : names.shape[1]] = names
    block[:, SIZE_DIGITS] = octal(sizes, width=11)
    _fill_in_checksums(block)
    return block


def _fill_in_checksums(block: NDArray[np.uint8]) -> None:
    """Write the checksums into headers of a tar that are complete otherwise.

    The checksum of a header is the sum of its 512 bytes, where the place of the checksum itself
    counts as eight spaces. For the sum 5,260, the octal digits 012214 are written there.

    Args:
        block: The headers, with eight spaces in place of each checksum; changed in place, shape
            (n_members, 512).
    """
    # The checksum is the sum of all bytes, including the eight spaces. Six octal digits and a zero
    # byte replace the first seven of them.
    checksums = block.sum(axis=1, dtype=np.int64)
    block[:, CHECKSUM_DIGITS] = octal(checksums, width=6)
    block[:, _CHECKSUM_END] = 0


def rename(records: NDArray[np.uint8], names: NDArray[np.uint8], unnamed_sum: int) -> None:
    """Give new names to many files of a tar, in the bytes of the tar itself.

    Each file has a header, which starts with its name, and has a checksum: the sum of its bytes. So
    the checksum is the sum of the name, and that of all other bytes, which are the same in all of
    these headers:

        name                    sum of its bytes    of all others    checksum
        00000003_00000041.npy   1,260               4,000            5,260

    Args:
        records: The headers and contents, uint8, shape (n_members, 512 or more). They are changed.
        names: New names in ASCII, uint8, shape (n_members, name_bytes), as long as the old names.
        unnamed_sum: Checksum of such a header without a name.
    """
    records[:, : names.shape[1]] = names
    checksums = names.sum(axis=1, dtype=np.int64) + unnamed_sum  # (n_members,)
    records[:, CHECKSUM_DIGITS] = octal(checksums, width=6)  # in octal digits


def octal(values: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """Return numbers as octal digits in ASCII.

    For example, 70 is 106 in octal digits, and with a width of 6 the bytes "000106".

    Args:
        values: Numbers, int64, shape (n_values,).
        width: Digits of each number.

    Returns:
        uint8, shape (n_values, width).
    """
    # An octal digit is three bits; the first digit has the highest ones.
    shifts = 3 * np.arange(width - 1, -1, -1)  # (width,)
    digits = values[:, None] >> shifts & 7  # (n_values, width)
    return (digits + ord("0")).astype(np.uint8)


def record_bytes(size_bytes: int) -> int:
    """Return the size of a member's whole record: header, body, and zeros after it.

    Args:
        size_bytes: Size of the body.

    Returns:
        A multiple of 512 bytes: a body of 600 bytes gives 512 + 600 + 424 = 1536.
    """
    padding = -size_bytes % BLOCK_BYTES  # up to the next multiple of a block
    return BLOCK_BYTES + size_bytes + padding


def end_of_archive(written_bytes: int) -> bytes:
    """Return the zeros with which a tar ends.

    There are at least 1,024, and so many that the size of the tar is a multiple of 10,240. For
    example, after 3,072 bytes these are 7,168 zeros.

    Args:
        written_bytes: Size of the tar so far, a multiple of 512.
    """
    closing = 2 * BLOCK_BYTES
    padding = -(written_bytes + closing) % ARCHIVE_BYTES  # up to the next multiple
    return bytes(closing + padding)


class FileBytes:
    """An open file whose bytes can be sliced; only the bytes of a slice are read.

    Args:
        file: The file, which must stay open.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._descriptor = file.fileno()
        self._size = os.fstat(self._descriptor).st_size

    def __len__(self) -> int:
        """Return the size of the file when it was opened."""
        return self._size

    def __getitem__(self, span: slice) -> bytes:
        """Read a range of bytes; a range beyond the end of the file is shorter or empty."""
        start, stop, _ = span.indices(self._size)
        return os.pread(self._descriptor, max(stop - start, 0), start)


Archive = bytes | mmap.mmap | FileBytes
"""The bytes of a tar, which can be sliced."""


def iterate_entries(archive: Archive, where: object) -> Iterator[TarMember]:
    """Yield every entry of a tar in order: files, folders and links.

    A tar is a sequence of headers and contents, each of which starts at a multiple of 512 bytes. It
    ends with zeros:

        header    content    header    content    …    zeros
        0         512        1536      2048

    Args:
        archive: Bytes of the archive.
        where: Name of the archive, for messages.

    Raises:
        FormatError: A header is damaged, a body is cut off, or the end of the archive is missing.
    """
    offset = 0  # of the next header
    # Fields of `TarMember` for the next entry. Names and sizes that do not fit into its own header
    # are stored in extended headers, which are entries before it.
    overrides: dict[str, Any] = {}
    while True:
        header = archive[offset : offset + BLOCK_BYTES]
        is_end = len(header) < BLOCK_BYTES or not header.strip(b"\0")
        if is_end:
            break
        member = _parse_header(header, where, offset)
        kind = header[_TYPE]  # one byte
        is_extended = kind in _EXTENDED
        has_body = kind not in _WITHOUT_BODY and member.size_bytes > 0
        if overrides and not is_extended:
            member = replace(member, **overrides)
            overrides = {}

        # The next header follows the body, and the zeros after it. Check that the body is complete
        # before anything in it is used.
        body_bytes = member.size_bytes if has_body else 0
        offset += record_bytes(body_bytes)
        if offset > len(archive):
            raise _cut_off_error(member, archive, where)

        # An extended header describes the next entry, and is not yielded itself.
        if is_extended:
            body = archive[member.offset : member.offset + body_bytes]
            overrides |= _read_extended(kind, body, where, member.offset)
            continue
        if kind == _SPARSE:
            raise _sparse_error(member, where)
        is_file = kind in _REGULAR and not member.name.endswith("/")
        yield member if is_file else replace(member, is_file=False)
    _check_end(archive, where, offset)


def _cut_off_error(member: TarMember, archive: Archive, where: object) -> FormatError:
    """Return the error for an archive that ends before the body of a member."""
    return _malformed(
        f"the body of {member.name!r} is cut off",
        where=where,
        offset=member.offset,
        found=f"{len(archive)} bytes",
    )


def _sparse_error(member: TarMember, where: object) -> FormatError:
    """Return the error for a file that is stored without its ranges of zeros."""
    return _malformed(
        f"{member.name!r} is stored with holes",
        where=where,
        offset=member.offset,
        found="a sparse file",
    )


def _check_end(archive: Archive, where: object, offset: int) -> None:
    """Check that a tar ends as it should: with two blocks of 512 zeros, or more.

    If they are missing, the file was cut off, perhaps exactly between two members, so that nothing
    else shows it:

        header  body    header  body    zeros  zeros        complete
        header  body    header  body                        cut off

    Args:
        archive: Bytes of the archive.
        where: Name of the archive, for messages.
        offset: Byte after the last body.

    Raises:
        FormatError: Other bytes than zeros follow, or too few.
    """
    size = len(archive) - offset
    is_closed = size >= 2 * BLOCK_BYTES and size % BLOCK_BYTES == 0  # whole blocks, two or more
    for start in range(offset, len(archive), _CHUNK_BYTES):
        has_other_bytes = bool(archive[start : start + _CHUNK_BYTES].strip(b"\0"))
        if has_other_bytes:
            is_closed = False
            break
    if not is_closed:
        raise _malformed(
            "the archive does not end in two or more zero blocks",
            where=where,
            offset=offset,
            found=f"{size} bytes",
        )


def _parse_header(header: bytes, where: object, offset: int) -> TarMember:
    """Return the file that a header in a tar describes: its name, size and position.

    A header has 512 bytes, with fields at fixed places. It contains a checksum of itself, which
    shows whether the bytes are a header at all.

    Args:
        header: 512 bytes.
        where: Name of the archive, for messages.
        offset: Position of the header in the archive.

    Raises:
        FormatError: The header is damaged.
    """
    try:
        stored_checksum = int(header[_CHECKSUM].strip(b" \0"), 8)
        size = _parse_size(header[_SIZE])
    except ValueError as error:
        raise _malformed(
            "not a tar header", where=where, offset=offset, found=repr(header[:32])
        ) from error

    checksum = _checksum(header)
    if stored_checksum != checksum:
        raise _malformed(
            "the header's checksum is wrong",
            where=where,
            offset=offset,
            found=f"{stored_checksum} stored, {checksum} computed",
        )

    return TarMember(_name_in(header), offset + BLOCK_BYTES, size)


def _checksum(header: bytes) -> int:
    """Return the sum of the bytes of a header, with the eight of its checksum counted as spaces."""
    return sum(header) - sum(header[_CHECKSUM]) + 8 * ord(" ")


def _name_in(header: bytes) -> str:
    """Return the path of a file from its header in a tar, such as "data/2024/a.jsonl".

    In the format ustar, the folder of a long path is in a field of its own.

    Args:
        header: 512 bytes.
    """
    name = _text(header[_NAME])
    folder = _text(header[_FOLDER])
    is_ustar = header[_MAGIC] == b"ustar\0"
    if is_ustar and folder:
        return f"{folder}/{name}"
    return name


def _parse_size(field: bytes) -> int:
    """Return the size of a file from the header that it has in a tar.

        the 12 bytes of the field          size
        00000001130 and a zero             600, in octal digits
        80 00 … 02 54 0b e4 00             10,000,000,000: GNU tar stores sizes from 8 GiB on
                                           as a binary number after the byte 80
        zeros                              0

    It is read as by Python's tarfile, but stricter: `int()` would accept signs and underscores.

    Args:
        field: The field.

    Raises:
        ValueError: The field is no number.
    """
    if field[0] == 0x80:
        # This is how GNU tar writes sizes from 8 GiB on.
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip(b" ") or b"0"  # an empty field is 0
    if not digits.isdigit():
        # int() would accept signs and underscores.
        raise ValueError("the size is not a number")
    return int(digits, 8)


def _text(field: bytes) -> str:
    """Decode a text field of a header, which ends at its first NUL."""
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _read_extended(kind: bytes, body: bytes, where: object, offset: int) -> dict[str, Any]:
    """Read an extra header of a tar, and return what it says about the file after it.

    Each file of a tar has a header of 512 bytes, with its name and its size. If a name is too long
    for this header, or a size too large, it is stored in an extra header in front of it:

        kind    body                               result
        L       a/very/long/name                   {"name": "a/very/long/name"}
        x, X    25 path=a/very/long/name           {"name": "a/very/long/name"}
        x, X    20 size=10000000000                {"size_bytes": 10000000000}
        g, K    what is not needed here            {}

    Args:
        kind: Type of the extra header, one of `_EXTENDED`.
        body: What it contains.
        where: Name of the archive, for messages.
        offset: Position of the body in the archive.

    Raises:
        FormatError: The body is damaged.
    """
    if kind == b"L":  # GNU tar: the body is the name
        return {"name": _text(body)}
    is_pax = kind in (b"x", b"X")
    if not is_pax:
        return {}  # "g" is about all files, and "K" about where a link leads

    # Pax: the body has a line for each field that is too long for the usual header.
    overrides: dict[str, Any] = {}
    for key, value in _pax_records(body, where, offset):
        digits = value[:16]  # enough for any size; a damaged file may have millions of digits
        if key == b"path":
            overrides["name"] = _text(value)
        elif key == b"size" and digits.isdigit():
            overrides["size_bytes"] = int(digits)
    return overrides


def _pax_records(body: bytes, where: object, offset: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the key and the value of each record of a pax header.

    A record is a text such as "25 path=a/very/long/name" and a line feed. The number at its start
    is the length of the whole record.

    Args:
        body: Body of the header.
        where: Name of the archive, for messages.
        offset: Position of the body in the archive.

    Raises:
        FormatError: A record is damaged.
    """
    rest = body
    while rest.strip(b"\0"):
        # The value is between the equals sign and the end of the record.
        match = re.match(rb"(?P<length>[0-9]{1,9}) (?P<key>[^=]*)=", rest)
        length = 0 if match is None else int(match["length"])
        if match is None or not match.end() < length <= len(rest):
            raise _malformed(
                "an extended header that cannot be read",
                where=where,
                offset=offset,
                found=repr(rest[:32]),
            )
        yield match["key"], rest[match.end() : length].rstrip(b"\n")
        rest = rest[length:]


def _malformed(what: str, *, where: object, offset: int, found: str) -> FormatError:
    """Return the error for an archive that is damaged, or that webdataset could not read.

    Args:
        what: What is wrong, in a few words.
        where: Name of the archive.
        offset: Position of the damage in the archive.
        found: What is there.
    """
    return FormatError(
        what,
        where=f"{where}, offset {offset}",
        found=found,
        expected="a whole, uncompressed tar of regular files",
        remedy="make it again, or fetch it again",
    )


def map_archive(path: Path) -> mmap.mmap | bytes:
    """Map an archive into memory, so that only what is looked at is read.

    Args:
        path: The tar.

    Returns:
        A read-only map; b"" for an empty file, which cannot be mapped.

    Raises:
        MissingError: The file does not exist, or is a folder.
        FormatError: The path is that of a pipe or a device.
    """
    with required(path, "a tar of a webdataset", "write the tar first, or correct the path"):
        return map_regular(path)
