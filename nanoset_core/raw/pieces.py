"""A corpus as pieces of files, and the ranges of pieces that are the unit of work."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from nanoset_core.outputs.manifest import digest_of
from nanoset_core.outputs.names import check_corpus_name
from nanoset_core.storage.paths import is_inside

_MOST_TARGETS = 4
ETAG = "etag:"
CRC = "crc32:"


class Crc32:
    """A CRC-32 with the methods of hashlib's objects: quick to make, for pieces that live no longer than a call."""

    name = "CRC-32"

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes | memoryview) -> None:
        """Add bytes."""
        from isal.isal_zlib import crc32

        self._value = crc32(data, self._value)

    def hexdigest(self) -> str:
        """Return the digest: crc32: and eight hex digits."""
        return f"{CRC}{self._value:08x}"


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
    """1-based number of the piece's first line or row; 0 for a piece of a file that was cut without being read, whose
    lines count from 1 in each piece until all have been counted (see tokenization/line_numbers.py)."""
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
    numbers = (piece.begin, piece.end, piece.first_line)
    if not all(type(number) is int for number in numbers) or not 0 <= piece.begin <= piece.end < 1 << 63:
        raise ValueError(f"bytes {piece.begin!r} to {piece.end!r} from line {piece.first_line!r}")
    if not is_inside(piece.path) or type(piece.digest) is not str:
        raise ValueError(f"a path {piece.path!r} that is not below the corpus's folder, or a digest {piece.digest!r}")
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
        """Return the inventory that `to_json` wrote down; TypeError or ValueError for anything else."""
        pieces = tuple(checked_piece(Piece(**piece)) for piece in value["pieces"])
        return Inventory(check_corpus_name(value["corpus"], "corpus"), pieces)


def etag_digest(mark: int) -> str:
    """Return the digest of an object in a bucket, and of its pieces, by its ETag's mark and not by its bytes."""
    return f"{ETAG}{mark:016x}"


def is_same_object(one: Piece, other: Piece) -> bool:
    """Return whether two pieces are known by the same ETag, however the object was cut."""
    return one.digest.startswith(ETAG) and one.digest == other.digest


def deal_parts(parts: Iterable[Piece], target_bytes: int) -> Iterator[SourceRange]:
    """Group consecutive parts into ranges of at least `target_bytes`, as they come."""
    return _grouped(parts, lambda _part, size: size >= target_bytes)


def cut_ranges(inventory: Inventory, target_bytes: int) -> list[SourceRange]:
    """Return the units of work of a corpus, in document order: consecutive pieces of about `target_bytes` together.

    A range ends after a piece with a chance of size/target, drawn from a hash of its path: the ends depend on the
    pieces themselves and not on their neighbours, so an added, removed or grown file changes its own range, and seldom
    a neighbour. A range ends anyway once it holds four targets.
    """
    most = _MOST_TARGETS * target_bytes
    return list(_grouped(inventory.pieces, lambda piece, size: ends_range(piece, target_bytes) or size >= most))


def _grouped(pieces: Iterable[Piece], is_last: Callable[[Piece, int], bool]) -> Iterator[SourceRange]:
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
    draw = int.from_bytes(hashlib.sha256(f"{piece.path}:{piece.begin}".encode()).digest()[:8], "big")
    return draw * target_bytes < piece.size << 64
