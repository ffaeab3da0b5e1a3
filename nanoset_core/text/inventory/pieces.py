"""A corpus as pieces of files, and the ranges of pieces that are the unit of work.

A *piece* is a run of whole lines of a file, or a whole file, with the digest of its bytes. An
*inventory* is the list of all pieces of a corpus. A *range* is a run of its pieces that are
tokenized together: each range becomes one shard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from nanoset_core.outputs.names import check_corpus_name
from nanoset_core.records.digests import digest_of
from nanoset_core.records.json_records import JsonForm, Record, to_plain
from nanoset_core.records.settings import NOT_A_KEY
from nanoset_core.storage.paths import is_inside

_MAX_TARGETS = 4
"""A range ends once it has this many times its target size."""
NO_DIGEST = ""
"""Digest of a piece whose bytes are not compared with anything."""
ETAG = "etag:"
"""Digests of pieces of objects that are known by their ETags begin so; see `etag_digest`."""
CRC = "crc32:"
"""Digests of pieces that are checked once and then forgotten begin so; see `Crc32`."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of whole lines or rows of one file: all of it, or a part of a large plain file."""

    path: str
    """Relative to the corpus folder."""
    begin: int
    """First byte of the stored, possibly compressed file."""
    end: int
    """Byte after the last one."""
    first_line: int
    """Number of the piece's first line or row, from 1. It is 0 for a piece of a file that was cut
    without being read: until all its lines have been counted, they are numbered from 1 in each
    piece (see stages/shards/line_numbers.py).
    """
    digest: str
    """sha256 of the stored bytes [begin, end); or see `etag_digest` and `Crc32`."""

    @property
    def size(self) -> int:
        """Stored bytes."""
        return self.end - self.begin

    @property
    def is_counted(self) -> bool:
        """Whether the number of the piece's first line is known."""
        return self.first_line > 0 or self.begin == 0


def unchecked_piece(path: str, end: int, *, begin: int = 0) -> Piece:
    """Return a range of a file that is read without checking that its bytes are the expected ones.

    For example, this is the whole of a file that was listed:

        unchecked_piece(file.path, file.size)

    Args:
        path: The file, relative to the corpus folder.
        end: Byte after the last one that is read.
        begin: The first byte. If it is not 0, the numbers of the lines are not right, since they
            are counted from 1.
    """
    return Piece(path, begin, end, first_line=1, digest=NO_DIGEST)


def checked_piece(piece: Piece) -> Piece:
    """Check a piece (a part of a file of text) that was read from a JSON file, and return it.

    Anybody may have written the JSON file. These pieces are refused:

        begin 100, end 50          no range of bytes
        path "../secret.txt"       outside of the folder of the texts

    Args:
        piece: The piece.

    Raises:
        ValueError: It is one of these.
    """
    is_range = 0 <= piece.begin <= piece.end
    if not is_range or not is_inside(piece.path):
        raise ValueError(f"this is no piece of a file below the corpus's folder: {piece}")
    return piece


class _PieceSequence:
    """A sequence of pieces: a range or an inventory."""

    __slots__ = ()
    pieces: tuple[Piece, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """Relative paths in document order, without duplicates."""
        return tuple(dict.fromkeys(piece.path for piece in self.pieces))

    @property
    def size(self) -> int:
        """Stored bytes."""
        return sum(piece.size for piece in self.pieces)

    @property
    def digest(self) -> str:
        """A digest of the names, cuts and content of the files, but not of times or folders."""
        return digest_of([to_plain(piece) for piece in self.pieces])


@dataclass(frozen=True, slots=True)
class SourceRange(_PieceSequence):
    """The unit of work and of caching: one or more pieces, read in order into one shard."""

    pieces: tuple[Piece, ...]
    marks: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    """Path of an object → mark of the ETag that it had when its bytes were hashed. If it still has
    this ETag, its bytes need not be hashed again.
    """
    without: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Documents that are skipped: index of a piece, and the positions of documents in it, which are
    bytes of the decompressed file or rows of a table.
    """

    json_lines: frozenset[str] = frozenset()
    """Files that are read as JSON lines, although their names end in .txt, .csv or .tsv. Only
    commands without a project read such files, as they always did.
    """

    @property
    def digest(self) -> str:
        """A digest of the names, cuts and content of the files, and of the skipped documents."""
        pieces = [to_plain(piece) for piece in self.pieces]
        # Ranges without skipped documents keep the digest that they had before there were any.
        if not self.without:
            return digest_of(pieces)
        return digest_of({"pieces": pieces, "without": self.without})


@dataclass(frozen=True, slots=True)
class Inventory(_PieceSequence, Record):
    """A snapshot of a corpus."""

    json_form: ClassVar[JsonForm] = JsonForm(
        "this is not an inventory", indent=1, ends_with_newline=True
    )
    ignores_unknown_keys: ClassVar[bool] = True

    corpus: str
    pieces: tuple[Piece, ...]
    """In document order: files in natural order, pieces by offset."""
    ignored: tuple[str, ...] = field(default=(), metadata=NOT_A_KEY)
    """Files of the snapshot that are not read because of their names; relative paths."""
    awaited: tuple[str, ...] = field(default=(), metadata=NOT_A_KEY)
    """Files that were being written. They are not in the snapshot, or as they were in the previous
    one; relative paths.
    """

    @property
    def pieces_by_file(self) -> dict[str, list[Piece]]:
        """The pieces of each file, by its path, in document order.

        A large file is hashed in several pieces, each with a digest:

            {"a.jsonl": [bytes 0 to 64 MiB, bytes 64 to 90 MiB], "b.jsonl": [all of it]}
        """
        pieces: dict[str, list[Piece]] = {}
        for piece in self.pieces:
            pieces.setdefault(piece.path, []).append(piece)
        return pieces

    def check(self, value: dict[str, Any]) -> None:
        """Check the name of the corpus and all pieces, which come from a file.

        Raises:
            ValueError: The corpus cannot have this name, or a piece is none of a file below its
                folder.
        """
        check_corpus_name(self.corpus, "corpus")
        for piece in self.pieces:
            checked_piece(piece)


def etag_digest(mark: int) -> str:
    """Return the digest of an object that is known by its ETag; all its pieces have this digest.

    Args:
        mark: Number made from the ETag; see `etag_mark`.

    Returns:
        Text such as `etag:00c1b2d3e4f50617`, with 16 hex digits.
    """
    return f"{ETAG}{mark:016x}"


def is_same_object(first: Piece, second: Piece) -> bool:
    """Return whether two pieces are known to be from the same version of an object in a bucket.

    A bucket gives an ETag to each version of an object. A large object is not hashed. Instead, all
    of its pieces have the ETag as their digest, so they have the same one:

        digests of the two pieces                         result
        etag:00c1b2d3e4f50617   etag:00c1b2d3e4f50617     True
        etag:00c1b2d3e4f50617   etag:a7e09d8c7b6a5f4e     False
        9f86d081…               9f86d081…                 False

    In the last case, the digests are hashes of the bytes. Then equal bytes may be in different
    objects.

    Args:
        first: One piece.
        second: The other piece.
    """
    return first.digest.startswith(ETAG) and first.digest == second.digest


def deal_parts(parts: Iterable[Piece], target_bytes: int) -> Iterator[SourceRange]:
    """Group consecutive pieces of files while they arrive, each group for one task.

    With a target of 10 bytes:

        sizes of the pieces    6   5   12   3
        groups                 6 + 5 | 12 | 3     (the last one may be smaller)

    Args:
        parts: The pieces, in order.
        target_bytes: Least size of a group, except the last one.

    Yields:
        Each group as soon as its last piece has arrived.
    """
    # A group ends with the piece that makes it large enough. `_grouped` passes the size of
    # the group so far: first 6, then 6 + 5.
    return _grouped(parts, lambda _piece, group_bytes: group_bytes >= target_bytes)


def cut_ranges(inventory: Inventory, target_bytes: int) -> list[SourceRange]:
    """Group the pieces of a corpus into ranges, each of which is tokenized to one output file.

    Pieces are parts of the files of the corpus. Where a range ends depends on a hash
    of its last piece alone. So if a file is added, the ranges before and after it stay as they are,
    and their outputs need not be made again:

        pieces               a1 a2 | b1 b2 b3 | c1          "|": a range ends
        with a new file ab   a1 a2 | ab1 b1 b2 b3 | c1      only the second range is new

    Args:
        inventory: The pieces of the corpus, in order.
        target_bytes: The average size of a range. A range ends in any case once it has four times
            this size.
    """

    def is_last(piece: Piece, range_bytes: int) -> bool:
        """Return whether a range of `range_bytes` ends after this piece."""
        return ends_range(piece, target_bytes) or range_bytes >= _MAX_TARGETS * target_bytes

    return list(_grouped(inventory.pieces, is_last))


def ends_range(piece: Piece, target_bytes: int) -> bool:
    """Return whether a group of pieces (parts of files) ends after this one.

    It is as if a die were thrown for each piece, which lets a group end with the probability size /
    target. For example, a piece of 5 bytes ends a group of about 20 bytes in one of four cases. The
    die is a hash of the piece's path and position. So the result stays the same if other files
    change.

    Args:
        piece: The piece. Its content does not matter.
        target_bytes: Average size of a group, about. A piece of this size or more always ends its
            group.
    """
    hashed = hashlib.sha256(f"{piece.path}:{piece.begin}".encode()).digest()
    draw = int.from_bytes(hashed[:8], "big")
    # draw / 2**64 < size / target, without rounding
    return draw * target_bytes < piece.size << 64


def _grouped(
    pieces: Iterable[Piece], is_last: Callable[[Piece, int], bool]
) -> Iterator[SourceRange]:
    """Group consecutive pieces of a corpus into ranges.

    Args:
        pieces: The pieces, in order: a b c d.
        is_last: Takes a piece and the bytes of its range up to its end. Returns whether the range
            ends there.

    Returns:
        If the range ends after b and after d: (a b) and (c d). Pieces that are left over at the end
        are the last range.
    """
    group: list[Piece] = []
    range_bytes = 0
    for piece in pieces:
        group.append(piece)
        range_bytes += piece.size
        if is_last(piece, range_bytes):
            yield SourceRange(tuple(group))
            group = []
            range_bytes = 0
    if group:
        yield SourceRange(tuple(group))
