"""A corpus as pieces of files, the ranges of pieces that are the unit of work, and reading pieces
of opened files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from nanoset_core.errors import InputError, MissingError, NanosetError, SourceChangedError
from nanoset_core.outputs.manifest import digest_of
from nanoset_core.outputs.names import check_corpus_name
from nanoset_core.storage.location import ObjectStat, RawFolder, stat_of_object
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.reading import ObjectFile
from nanoset_core.storage.regular_files import open_regular

READ_BYTES = 1 << 20
_MOST_TARGETS = 4
ETAG = "etag:"
CRC = "crc32:"


class Crc32:
    """A CRC-32 with the methods of hashlib's objects: quick to make, for pieces that live no longer
    than a call.
    """

    name, value = "CRC-32", 0

    def update(self, data: bytes | memoryview) -> None:
        """Add bytes."""
        from isal.isal_zlib import crc32

        self.value = crc32(data, self.value)

    def hexdigest(self) -> str:
        """Return the digest: crc32: and eight hex digits."""
        return f"{CRC}{self.value:08x}"


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of whole lines or rows of one file: all of it, or a part of a big plain file."""

    path: str
    """Relative to the corpus folder."""
    begin: int
    """First byte (of the stored, possibly compressed file)."""
    end: int
    """Byte after the last."""
    first_line: int
    """1-based number of the piece's first line or row; 0 for a piece of a file that was cut without
    being read, whose lines count from 1 in each piece until all have been counted (see
    tokenization/document_table.py)."""
    digest: str
    """sha256 of the stored bytes [begin, end); or see etag_digest and Crc32."""

    @property
    def size(self) -> int:
        """Stored bytes."""
        return self.end - self.begin

    @property
    def is_counted(self) -> bool:
        """Return whether the number of its first line is known."""
        return self.first_line > 0 or self.begin == 0


def checked_piece(piece: Piece) -> Piece:
    """Return a piece that was read from a file; ValueError where there can be none like it."""
    if not (0 <= piece.begin <= piece.end and is_inside(piece.path)):
        raise ValueError(f"this is no piece of a file below the corpus's folder: {piece}")
    return piece


class _Pieces:
    """What a range and an inventory have in common."""

    __slots__ = ()
    pieces: tuple[Piece, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """Relative paths in document order, each once."""
        return tuple(dict.fromkeys(piece.path for piece in self.pieces))

    @property
    def size(self) -> int:
        """Stored bytes."""
        return sum(piece.size for piece in self.pieces)

    @property
    def digest(self) -> str:
        """Changes with the names, cuts and content of the files; not with times or folders."""
        return digest_of([asdict(piece) for piece in self.pieces])


@dataclass(frozen=True, slots=True)
class SourceRange(_Pieces):
    """The unit of work and of caching: one or more pieces, read in order into one shard."""

    pieces: tuple[Piece, ...]
    marks: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    """Path of an object → mark of the ETag under which its bytes were hashed: with that it need not
    be hashed again.
    """
    without: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Documents that are left out: number of a piece, and their bytes in the decompressed file, or
    rows of a table.
    """

    @property
    def digest(self) -> str:
        """Changes with the names, cuts and content of the files, and with what is left out of them."""
        pieces = [asdict(piece) for piece in self.pieces]
        return digest_of({"pieces": pieces, "without": self.without} if self.without else pieces)


@dataclass(frozen=True, slots=True)
class Inventory(_Pieces):
    """A snapshot of a corpus."""

    corpus: str
    pieces: tuple[Piece, ...]
    """In document order: files in natural order, pieces by offset."""
    ignored: tuple[str, ...] = ()
    """Files that are not read, judged by their names; relative paths, as a survey found them."""
    awaited: tuple[str, ...] = ()
    """Files that something writes to: here as in the inventory before, or not yet; relative paths."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `from_json`, without the ignored and awaited files."""
        return {"corpus": self.corpus, "pieces": [asdict(piece) for piece in self.pieces]}

    @staticmethod
    def from_json(value: dict[str, Any]) -> Inventory:
        """Return the inventory that `to_json` wrote down; TypeError or ValueError for anything
        else.
        """
        pieces = tuple(checked_piece(Piece(**piece)) for piece in value["pieces"])
        return Inventory(check_corpus_name(value["corpus"], "corpus"), pieces)


def etag_digest(mark: int) -> str:
    """Return the digest of an object in a bucket, and of its pieces, by its ETag's mark and not by
    its bytes.
    """
    return f"{ETAG}{mark:016x}"


def is_same_object(one: Piece, other: Piece) -> bool:
    """Return whether two pieces are known by the same ETag, however the object was cut."""
    return one.digest.startswith(ETAG) and one.digest == other.digest


def deal_parts(parts: Iterable[Piece], target_bytes: int) -> Iterator[SourceRange]:
    """Group consecutive parts into ranges of at least `target_bytes`, as they come."""
    return _grouped(parts, lambda _part, size: size >= target_bytes)


def cut_ranges(inventory: Inventory, target_bytes: int) -> list[SourceRange]:
    """Return the units of work of a corpus, in order: consecutive pieces of about `target_bytes`
    together.

    A range ends after a piece with a chance of size/target, drawn from a hash of its path: the ends
    depend on the pieces themselves and not on their neighbours, so an added, removed or grown file
    changes its own range, and seldom a neighbour. A range ends anyway once it holds four targets.
    """
    most = _MOST_TARGETS * target_bytes
    return list(
        _grouped(
            inventory.pieces, lambda piece, size: ends_range(piece, target_bytes) or size >= most
        )
    )


def _grouped(
    pieces: Iterable[Piece], is_last: Callable[[Piece, int], bool]
) -> Iterator[SourceRange]:
    """Group consecutive pieces; `is_last` takes a piece and the bytes of its range up to its end."""
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        group.append(piece)
        size += piece.size
        if is_last(piece, size):
            yield SourceRange(tuple(group))
            group, size = [], 0
    if group:
        yield SourceRange(tuple(group))


def ends_range(piece: Piece, target_bytes: int) -> bool:
    """Return whether a piece ends its range, whatever else is in it."""
    draw = int.from_bytes(
        hashlib.sha256(f"{piece.path}:{piece.begin}".encode()).digest()[:8], "big"
    )
    return draw * target_bytes < piece.size << 64


def status_of(file: BinaryIO) -> os.stat_result | ObjectStat:
    """Return size, time and inode of an open file; of an object in a bucket, as it was when it was
    opened.
    """
    source = getattr(file, "raw", None)
    return (
        stat_of_object(source.facts) if isinstance(source, ObjectFile) else os.fstat(file.fileno())
    )


@contextmanager
def open_raw(path: RawFolder, *, begin: int = 0, end: int | None = None) -> Iterator[BinaryIO]:
    """Open a file of an inventory for reading, at its first byte.

    `begin` and `end` bound what will be read, so that no more of an object is fetched ahead.
    MissingError where it is gone; InputError where it cannot be opened, or reading it fails within
    the block; FormatError for a pipe or device.
    """
    with (
        _explained(path),
        open_regular(path) if isinstance(path, Path) else path.open(begin=begin, end=end) as file,
    ):
        yield file


def blocks_of(file: BinaryIO, begin: int, end: int, block_bytes: int) -> Iterator[bytes]:
    """Yield bytes [begin, end) of an open file in blocks; fewer where it is shorter."""
    file.seek(begin)
    while begin < end and (block := file.read(min(block_bytes, end - begin))):
        begin += len(block)
        yield block


@dataclass(frozen=True, slots=True)
class Probe:
    """Small reads here and there of one version of a file, from several threads at once."""

    status: os.stat_result | ObjectStat
    """As it was when it was opened."""
    read: Callable[[int, int], bytes]
    """Bytes [begin, end); fewer where a file on a file system is shorter by now."""


@contextmanager
def probe_raw(path: RawFolder) -> Iterator[Probe]:
    """Open a file of an inventory for small reads: of an object in a bucket nothing else is asked
    for.

    Raises as open_raw, and SourceChangedError where the object is replaced within the block.
    """
    with _explained(path):
        if isinstance(path, Path):
            with open_regular(path) as file:
                number = file.fileno()
                yield Probe(
                    os.fstat(number), lambda begin, end: os.pread(number, end - begin, begin)
                )
            return
        store = path.store
        if (facts := store.stat(path.path)) is None:
            raise FileNotFoundError(str(path))
        name, mark = facts.name, facts.mark
        yield Probe(
            stat_of_object(facts), lambda begin, end: store.read_range(name, begin, end, mark)
        )


@contextmanager
def _explained(path: RawFolder) -> Iterator[None]:
    try:
        yield
    except NanosetError:
        raise
    except MemoryError as error:
        raise too_large(path) from error
    except FileNotFoundError as error:
        raise MissingError(
            "a file of the corpus is gone",
            where=path,
            remedy="build again: the inventory is taken anew",
        ) from error
    except OSError as error:
        raise InputError(
            "a file of the corpus cannot be read",
            where=path,
            found=f"{error.strerror} (errno {error.errno})",
            expected="a file that this user may read, on a healthy disk",
            remedy="mend that, or remove the file; then build again",
        ) from error


def source_changed(path: RawFolder, found: str, expected: str) -> SourceChangedError:
    """Return the error for a file that is not what its inventory says."""
    return SourceChangedError(
        "the file is not as the inventory found it",
        where=path,
        found=found,
        expected=expected,
        remedy="build again once nothing writes to it: the inventory is taken anew",
    )


def too_large(path: RawFolder | str, found: str | None = None) -> InputError:
    """Return the error where memory runs out. It is no fault of the file: a larger machine may read
    on.
    """
    return InputError(
        "a file of the corpus needs more memory than there is",
        where=path,
        found=found,
        expected="memory for its longest line or text, and for the largest page, batch or window that it is stored in",
        remedy="lower documents.max_line_mib, give each worker more memory (fewer workers), or remove the file",
    )


class StoredPiece:
    """Reads one piece of one file, once, in order, and hashes it on the way."""

    def __init__(self, folder: RawFolder, piece: Piece, mark: int | None = None) -> None:
        """mark: see SourceRange."""
        self.path, self.piece, self._mark = folder / piece.path, piece, mark
        self._hash: Any = Crc32() if piece.digest.startswith(CRC) else hashlib.sha256()
        self.position = piece.begin
        """Where the bytes begin that were not read yet."""
        self.padding = 0
        """Zero bytes behind the members of a gzip file, as far as it was decompressed."""

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes not read yet, up to 1 MiB at a time; SourceChangedError where the file
        ends too early.
        """
        with open_raw(self.path, begin=self.position, end=self.piece.end) as file:
            status = status_of(file)
            if status.st_size < self.piece.end:
                raise source_changed(
                    self.path, f"{status.st_size:,} bytes", f"at least {self.piece.end:,} bytes"
                )
            self._check_etag(status.st_ino)
            for block in blocks_of(file, self.position, self.piece.end, READ_BYTES):
                self._hash.update(block)
                self.position += len(block)
                yield block
        if self.position < self.piece.end:
            raise source_changed(
                self.path, f"{self.position:,} bytes", f"at least {self.piece.end:,} bytes"
            )

    def check(self) -> None:
        """Read what is left; SourceChangedError where the bytes are not those of the inventory."""
        if self.piece.digest.startswith(ETAG) or self._mark is not None:
            with open_raw(self.path) as file:
                now = status_of(file).st_ino
            self._check_etag(now)
            if self._mark in (None, now):
                return
        # A file is looked at once more: it may have shrunk. What was read of an object is of one
        # version.
        if self.position < self.piece.end or not self.position or isinstance(self.path, Path):
            for _ in self.blocks():
                pass
        if (found := self._hash.hexdigest()) != self.piece.digest:
            kind, extent = self._hash.name, f"… of bytes {self.piece.begin:,} to {self.piece.end:,}"
            expected = f"{kind} {self.piece.digest[:16]}{extent}"
            raise source_changed(self.path, f"{kind} {found[:16]}{extent}", expected)

    def _check_etag(self, mark: int) -> None:
        """Compare ETags, where the piece is known by its own. What is read afterwards has the same
        one.
        """
        if self.piece.digest.startswith(ETAG) and etag_digest(mark) != self.piece.digest:
            raise source_changed(self.path, "another ETag", "the one that was listed")
