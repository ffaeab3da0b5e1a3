"""Write deterministic ustar bytes, and read tars.

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
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.storage.regular_files import map_regular

BLOCK_BYTES = 512
ARCHIVE_BYTES = 10240
_CHUNK_BYTES = 1 << 20
_MAGICS = (b"ustar\x0000", b"ustar  \x00")  # POSIX, GNU
_REGULAR = (b"0", b"\0", b"7")
_WITHOUT_BODY = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders, pipes
_EXTENDED = (b"x", b"X", b"g", b"L", b"K")
_MOST_EXTENDED_BYTES = 16 << 10


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
    """Return the headers of members, uint8, shape (members, 512).

    Args:
        names: ASCII, uint8, shape (members, at most 100), shorter names filled with zeros.
        sizes: bytes of each body, int64, shape (members,).
    """
    block = np.tile(_template(), (len(names), 1))
    block[:, : names.shape[1]] = names
    block[:, 124:135] = octal(sizes, 11)
    block[:, 148:154] = octal(block.sum(axis=1, dtype=np.int64), 6)
    block[:, 154] = 0
    return block


def checksums(block: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the checksums, int64, of finished headers, uint8, shape (members, 512)."""
    sums: NDArray[np.int64] = block.sum(axis=1, dtype=np.int64)
    sums -= block[:, 148:156].sum(axis=1, dtype=np.int64)
    return sums + 8 * ord(" ")


def rename(records: NDArray[np.uint8], names: NDArray[np.uint8], unnamed_sum: int) -> None:
    """Write new names, and the checksums that follow from them, into records in place.

    Args:
        records: uint8, shape (members, 512 or more), with headers that differ in their names alone.
        names: uint8, shape (members, bytes), as long as the names before.
        unnamed_sum: checksum of such a header without a name.
    """
    records[:, : names.shape[1]] = names
    records[:, 148:154] = octal(names.sum(axis=1, dtype=np.int64) + unnamed_sum, 6)


def octal(values: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """Return octal digits in ASCII: int64, shape (values,) → uint8, shape (values, width)."""
    shifts = 3 * np.arange(width - 1, -1, -1)
    return ((values[:, None] >> shifts & 7) + ord("0")).astype(np.uint8)


def record_bytes(size_bytes: int) -> int:
    """Return the bytes of a member's whole record: header, body and zeros."""
    return BLOCK_BYTES + size_bytes + -size_bytes % BLOCK_BYTES


def end_of_archive(written_bytes: int) -> bytes:
    """Return the zeros that close an archive of this many bytes of records."""
    closing = 2 * BLOCK_BYTES
    return bytes(closing + -(written_bytes + closing) % ARCHIVE_BYTES)


class FileBytes:
    """The bytes of an open file, to be sliced without reading or mapping all of it."""

    def __init__(self, file: BinaryIO) -> None:
        self._number, self._size = file.fileno(), os.fstat(file.fileno()).st_size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, span: slice) -> bytes:
        begin, end, _ = span.indices(self._size)
        return os.pread(self._number, max(end - begin, 0), begin)


Archive = bytes | mmap.mmap | FileBytes


def iterate_members(archive: Archive, where: object, *, plain: bool = True) -> Iterator[TarMember]:
    """Yield the regular files of an archive in order.

    Args:
        archive: the bytes of the tar.
        where: names it in errors.
        plain: whether anything but regular files under plain headers is refused, as in tars of ours. Otherwise extended
            headers give longer names and sizes, and links, folders and the like are skipped.

    Raises:
        FormatError: a damaged header, a body that is cut off, or an archive without its end.
    """
    offset, given = 0, dict[str, Any]()  # what extended headers say of the member after them
    while True:
        header = archive[offset : offset + BLOCK_BYTES]
        if len(header) < BLOCK_BYTES:
            raise _malformed(where, offset, "the archive ends without its two zero blocks", f"{len(header)} bytes left")
        if not header.strip(b"\0"):
            _check_end(archive, where, offset)
            return
        member, kind = _parse(header, where, offset, plain)
        if given and kind not in _EXTENDED:
            member, given = replace(member, **given), {}
        stored = 0 if kind in _WITHOUT_BODY else member.size_bytes
        offset = member.offset + record_bytes(stored) - BLOCK_BYTES
        if offset > len(archive):
            raise _malformed(where, member.offset, f"the body of {member.name!r} is cut off", f"{len(archive)} bytes")
        if kind in _REGULAR:
            if not member.name.endswith("/"):
                yield member
        elif kind in _EXTENDED:
            given |= _extended(kind, archive, member, where)
        elif kind == b"S":
            raise _malformed(where, member.offset, f"{member.name!r} is stored with holes", "a sparse file")


def _check_end(archive: Archive, where: object, offset: int) -> None:
    size = len(archive) - offset
    parts = (archive[begin : begin + _CHUNK_BYTES] for begin in range(offset, len(archive), _CHUNK_BYTES))
    if size < 2 * BLOCK_BYTES or size % BLOCK_BYTES or any(part.strip(b"\0") for part in parts):
        raise _malformed(where, offset, "the archive does not end in two or more zero blocks", f"{size} bytes")


def _parse(header: bytes, where: object, offset: int, plain: bool) -> tuple[TarMember, bytes]:
    """Return the member that a header describes, and its type."""
    encoding, errors = ("ascii", "strict") if plain else ("utf-8", "surrogateescape")
    try:
        stored = int(header[148:156].strip(b" \0"), 8)
        digits = header[124:136].split(b"\0", 1)[0].strip(b" ")  # as tarfile reads it
        if digits.isdigit():  # int() would take signs and underscores
            size = int(digits, 8)
        elif not plain and (header[124] == 0x80 or not digits):  # GNU's form of sizes above 8 GiB; no size
            size = int.from_bytes(header[125:136], "big") if digits else 0
        else:
            raise ValueError("the size is not a number")
        name, prefix = (header[a:b].split(b"\0", 1)[0].decode(encoding, errors) for a, b in ((0, 100), (345, 500)))
    except ValueError as error:
        raise _malformed(where, offset, "not a plain tar header", repr(bytes(header[:32]))) from error
    computed = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    high = sum(byte >= 0x80 for byte in header) - sum(byte >= 0x80 for byte in header[148:156])
    if stored != computed and (plain or stored != computed - 256 * high):  # some old tars add signed bytes
        raise _malformed(where, offset, "the header's checksum is wrong", f"{stored} stored, {computed} computed")
    magic, kind = bytes(header[257:265]), bytes(header[156:157])
    if plain and (magic not in _MAGICS or kind not in (b"0", b"\0")):
        raise _malformed(where, offset, "not a regular file under a plain header", f"{magic!r}, {kind!r}")
    if magic == _MAGICS[0] and prefix:
        name = f"{prefix}/{name}"
    return TarMember(name, offset + BLOCK_BYTES, size), kind


def _extended(kind: bytes, archive: Archive, header: TarMember, where: object) -> dict[str, Any]:
    """Return the fields of the next member that an extended header gives."""
    if header.size_bytes > _MOST_EXTENDED_BYTES:
        found = f"a header of more than {_MOST_EXTENDED_BYTES:,} bytes"
        raise _malformed(where, header.offset, "an extended header is too large", found)
    body = archive[header.offset : header.offset + header.size_bytes]
    if kind == b"L":
        return {"name": body.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")}
    given: dict[str, Any] = {}
    try:
        while kind in b"xX" and body.strip(b"\0"):
            digits = body.split(b" ", 1)[0]
            end = int(digits)
            if not len(digits) + 1 < end <= len(body):
                raise ValueError(f"a record of {end} bytes")
            key, _, value = body[len(digits) + 1 : end].rstrip(b"\n").partition(b"=")
            if key == b"path":
                given["name"] = value.decode("utf-8", "surrogateescape")
            elif key == b"size":
                given["size_bytes"] = max(int(value), 0)
            elif key.startswith(b"GNU.sparse."):
                raise ValueError("a sparse file")
            body = body[end:]
    except ValueError as error:
        raise _malformed(where, header.offset, "an extended header that cannot be read", str(error)) from error
    return given


def _malformed(where: object, offset: int, what: str, found: str) -> FormatError:
    where, expected = f"{where}, offset {offset}", "a whole, uncompressed tar of regular files"
    return FormatError(what, where=where, found=found, expected=expected, remedy="make it again, or fetch it again")


def map_archive(path: Path) -> mmap.mmap | bytes:
    """Return the bytes of an archive as a read-only map (an empty file as no bytes).

    Raises:
        MissingError: there is no such file.
    """
    try:
        return map_regular(path)
    except FileNotFoundError as error:
        raise MissingError("no such shard", where=path, remedy="write the shard first, or correct the path") from error
