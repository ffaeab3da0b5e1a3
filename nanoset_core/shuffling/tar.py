"""Deterministic ustar bytes, and a strict reader of them.

A record is a 512-byte header, the body, and zeros up to the next multiple of 512. Header (offset, size, content)::

      0  100  name, zeros after it              136  12  mtime, octal, NUL  "00000000000\\0"
    100    8  mode    "0000644\\0"               148   8  checksum, octal    "NNNNNN\\0 "
    108    8  uid     "0000000\\0"               156   1  type               "0" (regular file)
    116    8  gid     "0000000\\0"               257   6  magic              "ustar\\0"
    124   12  size, octal, NUL                  263   2  version            "00"

Everything else is zero. The checksum is the sum of the header's bytes with its own eight taken as spaces. The archive
ends in two zero blocks and zeros up to a multiple of 10240. These are the bytes that Python's tarfile writes
(USTAR_FORMAT, mtime 0), and every reader of plain headers takes them, wids's own included.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.storage.regular_files import map_regular

BLOCK_BYTES = 512
ARCHIVE_BYTES = 10240
MAX_NAME_BYTES = 100
_MAX_SIZE_BYTES = 8**11 - 1
_CHUNK_BYTES = 1 << 20
_MAGICS = (b"ustar\x0000", b"ustar  \x00")  # POSIX, GNU


@dataclass(frozen=True, slots=True)
class TarMember:
    """One regular file of an archive."""

    name: str
    """Full name, prefix included."""
    offset: int
    """First byte of the body within the archive."""
    size_bytes: int
    """Bytes of the body, without the zeros after it."""


def _template() -> NDArray[np.uint8]:
    header = np.zeros(BLOCK_BYTES, dtype=np.uint8)
    fields = {
        100: b"0000644\0",
        108: b"0000000\0",
        116: b"0000000\0",
        136: b"00000000000\0",
        148: b"        ",
        156: b"0",
        257: b"ustar\x0000",
    }
    for offset, text in fields.items():
        header[offset : offset + len(text)] = np.frombuffer(text, dtype=np.uint8)
    return header


def headers(names: NDArray[np.uint8], sizes: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Headers of members, uint8, shape (members, 512).

    Args:
        names: ASCII, uint8, shape (members, at most 100), shorter names filled with zeros.
        sizes: bytes of each body, int64, shape (members,).

    Raises:
        ConfigError: a name or a size that a plain header cannot hold.
    """
    if names.shape[1] > MAX_NAME_BYTES or (names > 126).any():
        raise ConfigError(
            "a member's name must fit a plain tar header",
            found=f"{names.shape[1]} bytes, highest {names.max(initial=0)}",
            expected=f"at most {MAX_NAME_BYTES} bytes of ASCII",
            remedy="use shorter names",
        )
    if sizes.size and not 0 <= int(sizes.min()) <= int(sizes.max()) <= _MAX_SIZE_BYTES:
        raise ConfigError(
            "a member's size must fit a plain tar header",
            found=f"[{sizes.min()}, {sizes.max()}] bytes",
            expected=f"[0, {_MAX_SIZE_BYTES}]",
            remedy="use shorter contexts",
        )
    block = np.tile(_template(), (len(names), 1))
    block[:, : names.shape[1]] = names
    block[:, 124:135] = octal(sizes, 11)
    block[:, 148:154] = octal(block.sum(axis=1, dtype=np.int64), 6)
    block[:, 154] = 0
    return block


def checksums(block: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Sums of finished headers, uint8, shape (members, 512), their checksum's own bytes taken as spaces; int64."""
    sums: NDArray[np.int64] = block.sum(axis=1, dtype=np.int64)
    sums -= block[:, 148:156].sum(axis=1, dtype=np.int64)
    return sums + 8 * ord(" ")


def rename(records: NDArray[np.uint8], names: NDArray[np.uint8], unnamed_sum: int) -> None:
    """Give records new names and their checksums, in place.

    Args:
        records: uint8, shape (members, 512 or more), with headers that differ in their names alone.
        names: uint8, shape (members, bytes), as long as the names before.
        unnamed_sum: checksum of such a header without a name.
    """
    records[:, : names.shape[1]] = names
    records[:, 148:154] = octal(names.sum(axis=1, dtype=np.int64) + unnamed_sum, 6)


def octal(values: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """Octal digits in ASCII: int64, shape (values,) → uint8, shape (values, width)."""
    shifts = 3 * np.arange(width - 1, -1, -1)
    return ((values[:, None] >> shifts & 7) + ord("0")).astype(np.uint8)


def record_bytes(size_bytes: int) -> int:
    """Bytes of a member's whole record: header, body and zeros."""
    return BLOCK_BYTES + size_bytes + -size_bytes % BLOCK_BYTES


def end_of_archive(written_bytes: int) -> bytes:
    """The zeros that close an archive of this many bytes of records."""
    closing = 2 * BLOCK_BYTES
    return bytes(closing + -(written_bytes + closing) % ARCHIVE_BYTES)


def iterate_members(archive: bytes | mmap.mmap, where: object) -> Iterator[TarMember]:
    """Members of an archive in order; `where` names it in errors.

    Raises:
        FormatError: anything but whole regular files under plain headers, or an archive without its end.
    """
    offset = 0
    while True:
        header = archive[offset : offset + BLOCK_BYTES]
        if len(header) < BLOCK_BYTES:
            raise _malformed(where, offset, "the archive ends without its two zero blocks", f"{len(header)} bytes left")
        if not header.strip(b"\0"):
            _check_end(archive, where, offset)
            return
        member = _parse(header, where, offset)
        yield member
        offset += record_bytes(member.size_bytes)
        if offset > len(archive):
            raise _malformed(where, member.offset, f"the body of {member.name!r} is cut off", f"{len(archive)} bytes")


def _check_end(archive: bytes | mmap.mmap, where: object, offset: int) -> None:
    size = len(archive) - offset
    parts = (archive[begin : begin + _CHUNK_BYTES] for begin in range(offset, len(archive), _CHUNK_BYTES))
    if size < 2 * BLOCK_BYTES or size % BLOCK_BYTES or any(part.strip(b"\0") for part in parts):
        raise _malformed(where, offset, "the archive does not end in two or more zero blocks", f"{size} bytes")


def _parse(header: bytes, where: object, offset: int) -> TarMember:
    try:
        stored = int(header[148:156].strip(b" \0"), 8)
        digits = header[124:136].strip(b" \0")
        if not digits.isdigit():  # int() would take signs and underscores
            raise ValueError("the size is not a number")
        size = int(digits, 8)
        name, prefix = (header[a:b].split(b"\0", 1)[0].decode("ascii") for a, b in ((0, 100), (345, 500)))
    except ValueError as error:
        raise _malformed(where, offset, "not a plain tar header", repr(bytes(header[:32]))) from error
    computed = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    if stored != computed:
        raise _malformed(where, offset, "the header's checksum is wrong", f"{stored} stored, {computed} computed")
    magic = bytes(header[257:265])
    if magic not in _MAGICS or header[156:157] not in (b"0", b"\0"):
        raise _malformed(where, offset, "not a regular file under a plain header", f"{magic!r}, {header[156:157]!r}")
    if magic == _MAGICS[0] and prefix:
        name = f"{prefix}/{name}"
    return TarMember(name, offset + BLOCK_BYTES, size)


def _malformed(where: object, offset: int, what: str, found: str) -> FormatError:
    return FormatError(
        what,
        where=f"{where}, offset {offset}",
        found=found,
        expected="a tar of regular files with plain ustar or GNU headers",
        remedy="make the shard again, or fetch it again",
    )


def map_archive(path: Path) -> mmap.mmap | bytes:
    """The bytes of an archive as a read-only map (an empty file as no bytes).

    Raises:
        MissingError: there is no such file.
    """
    try:
        return map_regular(path)
    except FileNotFoundError as error:
        raise MissingError(
            "no such shard", where=path, remedy="write the shard first, or give the path of an existing one"
        ) from error
