"""Fingerprint files: cut them into pieces, and hash each piece once.

A piece is the unit whose digest is stored. A plain file (lines that are not compressed) is cut at
line ends into pieces of 64 MiB or slightly more, so that a file that has grown keeps its first
pieces, and large files are read in parallel. Any other file is one piece.

Objects in a bucket may be known by their ETags instead; then nothing is read. Large plain ones can
be cut nevertheless: the cuts are found by small reads, and the lines are not counted.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from nanoset_core.errors import SourceChangedError
from nanoset_core.execution.processes import Executor
from nanoset_core.storage.file_stats import FileStat, ObjectStat, file_stat
from nanoset_core.storage.location import Location
from nanoset_core.storage.places import takes_requests
from nanoset_core.storage.reading.input_files import status_of
from nanoset_core.storage.remote_path import RemotePath
from nanoset_core.storage.requests import TRANSFERS_AT_ONCE, in_parallel
from nanoset_core.text.files.endings import is_cuttable
from nanoset_core.text.files.raw_files import READ_BYTES, blocks_of, open_raw, probe_raw
from nanoset_core.text.inventory.piece_cuts import chained_cuts, separate_cuts
from nanoset_core.text.inventory.pieces import Piece, etag_digest
from nanoset_core.text.inventory.stored_piece import Crc32

PIECE_BYTES = 64 << 20
"""A plain file is cut at the first line end at or after this many bytes from the last cut."""
SPREAD_BYTES = 1 << 30
"""From this many bytes on, files are hashed by the workers of an executor."""
_MIN_SHARED_PIECES = 4
"""A plain file of more pieces than these is hashed by several workers."""

Advance = Callable[[int], None]
"""Called with the number of bytes that were hashed since the last call."""


def is_cut_unread(folder: Location) -> bool:
    """Return whether large plain files of a folder are cut into pieces without being read.

    The lines of such pieces are not counted.

    Args:
        folder: The folder of a corpus.

    Returns:
        True only in a bucket, with the setting `storage.fingerprint: etag-pieces`.
    """
    return _is_by_etag(folder) and folder.in_pieces


def is_known_unread(folder: Location) -> bool:
    """Return whether a listing of a folder is enough to fingerprint its files, by their ETags.

    Args:
        folder: The folder of a corpus.

    Returns:
        True only in a bucket, with the setting `storage.fingerprint: etag`.
    """
    return _is_by_etag(folder) and not folder.in_pieces


def is_large(stat: FileStat) -> bool:
    """Return whether a file is cut into several pieces if its folder is `is_cut_unread`.

    Args:
        stat: The file, as it was listed.

    Returns:
        True for uncompressed JSON lines of more than 128 MiB.
    """
    return is_cuttable(stat.path) and stat.size > 2 * PIECE_BYTES


def _is_by_etag(folder: Location) -> TypeGuard[RemotePath]:
    """Return whether the files of a folder are known by their ETags."""
    return takes_requests(folder) and folder.by_etag


def fingerprint(folder: Location, stat: FileStat, progress: Advance | None = None) -> list[Piece]:
    """Return the digests of a file, by which a later change of it is noticed.

    A large file is divided into pieces of some 64 MiB, each of which gets a digest: the sha256 of
    its bytes. For objects in a bucket, the settings may say that their ETags are enough. An ETag is
    a name that the bucket gives to each version of an object. Then the file is not read.

    Args:
        folder: The folder of the file.
        stat: Name, size and times of the file, as it was listed.
        progress: Called with the number of bytes that were hashed.

    Returns:
        The pieces of the file in order, with their digests.

    Raises:
        SourceChangedError: The file has changed since it was listed, or while it was read.
        MissingError: The file was deleted.
        InputError: The file cannot be read.
    """
    if _is_by_etag(folder):
        return _pieces_by_etag(folder, stat)
    complete_file = _ByteRange(folder, stat, start=0, stop=stat.size)
    return _hash_range(complete_file, progress).pieces


def _pieces_by_etag(folder: RemotePath, stat: FileStat) -> list[Piece]:
    """Divide an object in a bucket into pieces without reading it.

    The digest of each piece is the object's ETag, a name that the bucket gives to each version of
    an object. Usually, the object is a single piece. If the user has set `storage.fingerprint:
    etag-pieces`, an object of more than 128 MiB is cut at line ends, some 64 MiB apart, so that
    several workers can tokenize it. To find these line ends, a few KiB are read at each:

        object    0 ─────────── 64 MiB ─────────── 128 MiB ─────────── 150 MiB
        read                    a few KiB here     and here

    Args:
        folder: The folder of the object.
        stat: Name and size of the object. Objects have no inode number: `stat.inode` is a number
            that was computed from the ETag.

    Raises:
        SourceChangedError: The object has changed since it was listed.
        MissingError: The object was deleted.
    """
    etag_number = stat.inode
    digest = etag_digest(etag_number)  # "etag:00c1b2d3e4f50617"
    is_cut = folder.in_pieces and is_large(stat)
    if not is_cut:
        return [Piece(stat.path, begin=0, end=stat.size, first_line=1, digest=digest)]

    path = folder / stat.path
    with probe_raw(path) as probe:
        _check_unchanged(path, stat, probe.status)
        cuts = separate_cuts(probe, stat.size, PIECE_BYTES)
    unknown_line = 0  # the number of a piece's first line, since no lines are counted
    bounds = [0, *cuts, stat.size]
    return [
        Piece(stat.path, start, stop, first_line=unknown_line, digest=digest)
        for start, stop in pairwise(bounds)
    ]


def fingerprint_all(
    folder: Location,
    stats: Sequence[FileStat],
    executor: Executor | None = None,
    progress: Advance | None = None,
) -> Iterator[tuple[FileStat, list[Piece]]]:
    """Yield files with their digests, by which later changes of the files are noticed.

    There are three ways, depending on how much has to be read:

        objects of a bucket that are cut without being read    some small reads each, in threads
        at least 1 GiB to hash, and there are workers          in worker processes
        all else                                               one file after the other, here

    Args:
        folder: The folder of the files.
        stats: Name, size and times of each file, as it was listed.
        executor: Runs tasks in worker processes; None if there are none.
        progress: Called with the number of bytes that were hashed.

    Yields:
        (a file, its pieces with their digests), in any order.

    Raises:
        SourceChangedError: A file changed since it was listed.
        MissingError: A file was deleted.
        InputError: A file cannot be read.
    """
    # Nothing is hashed if objects in a bucket are known by their ETags. But if large ones are cut
    # into pieces, each takes a few requests to find the cuts, so threads do many at the same time.
    if is_cut_unread(folder):
        pieces_by_file = in_parallel(
            lambda stat: fingerprint(folder, stat), stats, TRANSFERS_AT_ONCE
        )
        yield from zip(stats, pieces_by_file, strict=True)
        return

    # Starting workers only pays off if there is much to hash.
    is_hashed = not is_known_unread(folder)
    n_bytes = sum(stat.size for stat in stats)
    if executor is not None and is_hashed and n_bytes >= SPREAD_BYTES:
        yield from _fingerprint_on_workers(folder, stats, executor, progress)
        return

    for stat in stats:
        yield stat, fingerprint(folder, stat, progress)


def hash_parts(
    folder: Location, stat: FileStat, part_bytes: int, on_piece: Callable[[Piece], None]
) -> Iterator[Piece]:
    """Read a file once, and divide it in two ways: into large pieces, and into smaller parts.

        file      |·········|·········|·········|·········|·········|·········|
        pieces    |═══════════════════|═══════════════════|═══════════════════|
        parts     |─────────|─────────|─────────|─────────|─────────|─────────|

    A piece has a sha256, by which later changes of the file are noticed. A part is yielded as soon
    as it was read, so that another process can work on it. It has a CRC, for a quick check by that
    process that it reads the same bytes.

    Args:
        folder: The folder of the file.
        stat: Name, size and times of the file, as it was listed.
        part_bytes: Smallest size of a part, except the last one.
        on_piece: Called with each piece. The last piece is passed before the last part is yielded.

    Raises:
        SourceChangedError: The file changed since it was listed, which is checked at its end.
        MissingError: The file was deleted.
        InputError: The file cannot be read.
    """
    piece_hasher = _PieceHasher(stat.path, 0, PIECE_BYTES, hashlib.sha256)
    part_hasher = _PieceHasher(stat.path, 0, part_bytes, Crc32)
    complete_file = _ByteRange(folder, stat, start=0, stop=stat.size)
    for block in _read_blocks(complete_file):
        # Pieces and parts that end in this block
        for hasher, piece in _hash_block(block, [piece_hasher, part_hasher]):
            if hasher is piece_hasher:
                on_piece(piece)
            else:
                yield piece
    for piece in piece_hasher.finish():
        on_piece(piece)
    yield from part_hasher.finish()


@dataclass(frozen=True, slots=True)
class _ByteRange:
    """Bytes [start, stop) of a file that one worker hashes: the whole file, or one piece."""

    folder: Location
    stat: FileStat
    start: int
    stop: int


class _HashedRange(NamedTuple):
    """The pieces of a byte range."""

    pieces: list[Piece]
    """Their lines are counted from the start of the range."""
    line_ends: int
    """How many lines end in the range."""


def _fingerprint_on_workers(
    folder: Location, stats: Sequence[FileStat], executor: Executor, progress: Advance | None
) -> Iterator[tuple[FileStat, list[Piece]]]:
    """Let worker processes hash files, and yield each file as soon as all of it is hashed.

    A large file is divided into ranges of bytes, which several workers hash at the same time. The
    results arrive in any order. A file is complete when its ranges add up to its size.

    Args:
        folder: The folder of the files.
        stats: Name, size and times of each file.
        executor: Runs tasks in worker processes.
        progress: Called with the number of bytes that were hashed.

    Yields:
        (a file, its pieces with their digests), in the order in which files are complete.
    """
    stat_by_path = {stat.path: stat for stat in stats}
    bytes_left = {stat.path: stat.size for stat in stats}
    ranges_by_path: dict[str, list[_HashedRange]] = {stat.path: [] for stat in stats}

    # The ranges of a file arrive in any order.
    for _, hashed in executor.run(_hash_range, _ranges_to_hash(folder, stats)):
        path = hashed.pieces[0].path  # each range has a piece: an empty file is one empty piece
        n_bytes = sum(piece.size for piece in hashed.pieces)
        ranges_by_path[path].append(hashed)
        bytes_left[path] -= n_bytes
        if progress is not None:
            progress(n_bytes)
        if bytes_left[path] == 0:
            yield stat_by_path[path], _joined(ranges_by_path.pop(path))


def _ranges_to_hash(folder: Location, stats: Sequence[FileStat]) -> Iterator[_ByteRange]:
    """Divide files into ranges of bytes, each of which a worker process hashes.

    Only a large uncompressed file of lines has several ranges, which end at line ends:

        small.jsonl       0 to 5 MiB (all of it)
        large.jsonl       0 to 64.0 MiB, 64.0 to 128.1 MiB, …
        large.jsonl.gz    0 to 900 MiB (all of it)

    Args:
        folder: The folder of the files.
        stats: Name, size and times of each file.

    Raises:
        SourceChangedError: A file changed since it was listed.
    """
    for stat in stats:
        is_shared = is_cuttable(stat.path) and stat.size > _MIN_SHARED_PIECES * PIECE_BYTES
        if not is_shared:
            yield _ByteRange(folder, stat, start=0, stop=stat.size)
            continue

        # Find where pieces end by small reads, and let workers begin before all cuts are known.
        path = folder / stat.path
        start = 0
        with probe_raw(path) as probe:
            _check_unchanged(path, stat, probe.status)
            for cut in chained_cuts(probe, stat.size, PIECE_BYTES):
                yield _ByteRange(folder, stat, start, stop=cut)
                start = cut
        yield _ByteRange(folder, stat, start, stop=stat.size)  # the last piece


def _joined(ranges: Iterable[_HashedRange]) -> list[Piece]:
    """Combine what workers found in ranges of one file to the pieces of the file.

    Each worker reads a range of the file, and divides it into pieces. For each piece, it says at
    which line the piece starts. A worker does not know how many lines precede its range, so it
    numbers the lines of its range from 1. Here, these numbers are corrected:

        range                            0      0      1        1
        piece                            0      1      2        3
        first line, by the worker        1    601      1      501
        first line in the file           1    601   1001     1501     (range 0 has 1,000 lines)

    Args:
        ranges: All ranges of the file, in any order.

    Returns:
        The pieces of the file, in order.
    """
    pieces = []
    lines_before = 0  # lines that end in earlier ranges
    for hashed in sorted(ranges, key=lambda hashed: hashed.pieces[0].begin):
        for piece in hashed.pieces:
            pieces.append(replace(piece, first_line=piece.first_line + lines_before))
        lines_before += hashed.line_ends
    return pieces


def _hash_range(byte_range: _ByteRange, progress: Advance | None = None) -> _HashedRange:
    """Hash a range of a file, and return its pieces. Worker processes call this function."""
    path = byte_range.stat.path
    hasher = _PieceHasher(path, byte_range.start, PIECE_BYTES, hashlib.sha256)
    pieces = []
    for block in _read_blocks(byte_range, progress):
        pieces += [piece for _, piece in _hash_block(block, [hasher])]
    pieces += hasher.finish()
    return _HashedRange(pieces, hasher.line_ends)


def _read_blocks(byte_range: _ByteRange, progress: Advance | None = None) -> Iterator[bytes]:
    """Yield the bytes of a range of a file in blocks, so that the caller can hash them.

    The hash is recorded together with the size and times that the file had when it was listed. If
    somebody writes to the file in between, the two do not belong together. So the file is looked at
    once more after the last block.

    Args:
        byte_range: The range: a file, and its first and last bytes.
        progress: Called with the size of each block once the caller is done with it, to show how
            much has been hashed.

    Raises:
        SourceChangedError: The file changed since it was listed. The caller has all blocks by then,
            and must drop their hash.
    """
    path = byte_range.folder / byte_range.stat.path
    with open_raw(path, begin=byte_range.start, end=byte_range.stop) as file:
        for block in blocks_of(file, byte_range.start, byte_range.stop, READ_BYTES):
            yield block
            if progress is not None:
                progress(len(block))
        # Ask for the status of the open file, since its path may lead to another file by now.
        status = status_of(file)
    _check_unchanged(path, byte_range.stat, status)


def _hash_block(
    block: bytes, hashers: Sequence[_PieceHasher]
) -> Iterator[tuple[_PieceHasher, Piece]]:
    """Hash the next bytes of a file, and yield the pieces that end in them.

    Several hashers may divide a file into pieces of different sizes. So that its lines are counted
    only once, the block is divided into segments, which end where a piece of any hasher ends:

        pieces of hasher 0     ------|------------------|----
        pieces of hasher 1     ------------|------------|----
        segments               ------|-----|------------|----

    Args:
        block: Bytes that follow those of the previous call.
        hashers: The hashers. Each keeps what it has hashed of its current piece.

    Yields:
        (hasher, piece), in the order of the ends of the pieces; those that end together in the
        order of the hashers.
    """
    start = 0
    while start < len(block):
        # A segment ends where the first piece does, or with the block.
        cut_by_hasher = {hasher: hasher.find_cut(block, start) for hasher in hashers}
        cuts = [cut for cut in cut_by_hasher.values() if cut is not None]
        stop = min([*cuts, len(block)])
        segment = memoryview(block)[start:stop]
        has_lines = any(hasher.is_cuttable for hasher in hashers)  # not in a compressed file
        line_ends = _count_line_feeds(segment) if has_lines else 0
        for hasher, cut in cut_by_hasher.items():
            hasher.add(segment, line_ends)
            if cut == stop:
                yield hasher, hasher.end_piece()
        start = stop


def _count_line_feeds(data: memoryview) -> int:
    """Count the line feeds in some bytes, several times faster than by `bytes.count`."""
    characters = np.frombuffer(data, np.uint8)
    return int(np.count_nonzero(characters == ord("\n")))


class _PieceHasher:
    """Cuts the bytes of a file into pieces, and hashes them, while the bytes arrive in blocks.

    A piece of a plain file ends as soon as it has `piece_bytes` bytes or more and its last line is
    complete. If `piece_bytes` is 8 and lines have 5 bytes each, every piece has two lines:

        aaaa⏎bbbb⏎ | cccc⏎dddd⏎ | eeee⏎

    Blocks may end anywhere, also within a line. Other files are not cut.
    """

    def __init__(
        self, path: str, start: int, piece_bytes: int, new_digest: Callable[[], Any]
    ) -> None:
        """Start with the first byte of a file, or of a range of it.

        Args:
            path: The file, below its folder.
            start: Position of the first byte in the file.
            piece_bytes: Least size of a piece, except the last one.
            new_digest: Returns an object like those of hashlib.
        """
        self.line_ends = 0
        """Lines that have ended so far; not counted in a file that is not cut."""
        self.is_cuttable = is_cuttable(path)
        """Whether the file consists of lines, and is not compressed."""
        self._path = path
        self._piece_bytes = piece_bytes
        self._position = start
        self._new_digest = new_digest
        self._start_piece()

    def add(self, data: memoryview, line_ends: int) -> None:
        """Hash the next bytes of the file, which are all of the same piece.

        Args:
            data: Bytes that follow those of the previous call.
            line_ends: How many lines end in them.
        """
        self._digest.update(data)
        self._position += len(data)
        self.line_ends += line_ends

    def end_piece(self) -> Piece:
        """Return the current piece, which ends here, and let the next byte start another one."""
        piece = self._piece()
        self._start_piece()
        return piece

    def finish(self) -> list[Piece]:
        """Return the last piece, or none if the bytes ended exactly where a piece ended.

        An empty file is one empty piece.
        """
        is_empty_file = self._position == 0
        if self._position > self._piece_start or is_empty_file:
            return [self._piece()]
        return []

    def find_cut(self, block: bytes, start: int) -> int | None:
        """Return where the current piece ends in a block of bytes, or None if it goes on.

        A piece ends at the first line end that gives it at least `piece_bytes` bytes. For example,
        if that is 8, the current piece has 5 bytes, and ⏎ is a line end:

            byte of the block            0    1    2    3    4    5
                                         a    ⏎    b    c    d    ⏎
            bytes of the piece with it   6    7    8    9    10   11

        The first ⏎ comes too early. The piece ends after the second one, so the result is 6.

        Args:
            block: The bytes.
            start: The first byte of the block that is not hashed yet; 0 in the example.
        """
        if not self.is_cuttable:
            return None
        hashed_bytes = self._position - self._piece_start  # 5
        missing_bytes = max(self._piece_bytes - hashed_bytes, 1)  # 3; at least the line end itself

        # The last of these 3 bytes, byte 2, is the first one that may be the line end.
        line_end = block.find(b"\n", start + missing_bytes - 1)  # 5; -1 if there is none
        return None if line_end < 0 else line_end + 1

    def _start_piece(self) -> None:
        """Let the next byte be the first one of a new piece."""
        self._piece_start = self._position
        self._first_line = self.line_ends + 1
        self._digest = self._new_digest()

    def _piece(self) -> Piece:
        """Return the current piece, which ends after the last byte that was hashed."""
        return Piece(
            self._path,
            self._piece_start,
            self._position,
            self._first_line,
            self._digest.hexdigest(),
        )


def _check_unchanged(path: Location, stat: FileStat, status: os.stat_result | ObjectStat) -> None:
    """Check that a file is still the version that was listed, after it was read.

    Somebody may write to the file while it is read. Then the digest belongs to neither version.

    Args:
        path: The file.
        stat: Size, time and inode of the file when it was listed.
        status: Its size, time and inode now.

    Raises:
        SourceChangedError: The file has another size or time, or was replaced.
    """
    if not stat.is_same_version(file_stat(stat.path, status)):
        raise SourceChangedError(
            "the file changed while it was read",
            where=path,
            found=f"{status.st_size:,} bytes, written at {_local_time(status.st_mtime_ns)}",
            expected=(
                f"{stat.size:,} bytes, written at {_local_time(stat.mtime_ns)}, "
                "as when it was listed"
            ),
            remedy="run again once the upload has ended",
        )


def _local_time(time_ns: int) -> str:
    """Return a time as people write it, such as "2026-03-01 12:03:04.127", in the local time zone.

    Args:
        time_ns: Nanoseconds since 1970.
    """
    try:
        local_time = datetime.fromtimestamp(time_ns / 1e9)
    except (ValueError, OverflowError, OSError):  # after the year 9999: some clock is wrong
        return f"{time_ns / 1e9:.3f} s after 1970"
    return local_time.isoformat(sep=" ", timespec="milliseconds")
