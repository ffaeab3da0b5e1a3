"""Hashing files piece by piece, once: what was hashed is remembered."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from nanoset_core.errors import SourceChangedError
from nanoset_core.execution.processes import Executor
from nanoset_core.raw.cuts import chained_cuts, separate_cuts
from nanoset_core.raw.endings import is_cuttable
from nanoset_core.raw.listing import FileStat, file_stat
from nanoset_core.raw.pieces import ETAG, Piece, checked_piece, etag_digest, part_digest
from nanoset_core.raw.stored import open_raw, probe_raw, status_of
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.storage.remote_folder import ObjectStat, RawFolder, RemoteFolder
from nanoset_core.storage.store import in_parallel

PIECE_BYTES = 64 << 20
"""A plain file is cut at the first line end at or after each multiple of this, counted from the last cut."""
READ_BYTES = 4 << 20
_SHARED_PIECES, _MOST_SHARED_FILES = 4, 256
"""A file is shared by workers that is larger than so many pieces, and than this part of all that is to be hashed."""
SAVE_BYTES = 1 << 30
"""The memory is written after about this many hashed bytes: as much as a kill can cost."""
_RACY_NS = 2_000_000_000
_VERSION = 1


def is_read(folder: RawFolder) -> bool:
    """Whether files are known by their bytes, which have to be read for it, and not by their ETags."""
    return not (isinstance(folder, RemoteFolder) and folder.by_etag)


def is_cut_unread(folder: RawFolder) -> bool:
    """Whether large plain files are cut at line ends without being read, so that their lines are not counted yet."""
    return isinstance(folder, RemoteFolder) and folder.by_etag and folder.in_pieces


def fingerprint(folder: RawFolder, stat: FileStat, progress: Callable[[int], None] | None = None) -> list[Piece]:
    """Hash one file; a plain file is cut into pieces that end at line ends, any other is one piece.

    In a folder whose objects are known by their ETags nothing is read, and each is one piece; or large plain ones
    are cut by small reads, and the numbers of their lines are not known.

    Raises:
        SourceChangedError: the file is not as `stat` describes it, before or after.
    """
    if is_cut_unread(folder) and _is_large(stat):
        return _unread_pieces(folder / stat.path, stat)
    if not is_read(folder):
        return [Piece(stat.path, 0, stat.size, 1, etag_digest(stat.inode))]
    return [piece for piece, _ in _hashed(folder / stat.path, stat, progress, PIECE_BYTES)]


def _is_large(stat: FileStat) -> bool:
    """Whether a file is worth being cut without being read."""
    return is_cuttable(stat.path) and stat.size > 2 * PIECE_BYTES


def _unread_pieces(path: RawFolder, stat: FileStat) -> list[Piece]:
    with probe_raw(path) as probe:
        _check_unchanged(path, stat, probe.status)
        cuts = separate_cuts(probe, stat.size, PIECE_BYTES)
    digest = etag_digest(stat.inode)
    return [Piece(stat.path, begin, end, 0, digest) for begin, end in pairwise([0, *cuts, stat.size])]


def unread_fingerprints(folder: RawFolder, stats: Sequence[FileStat]) -> Iterator[tuple[FileStat, list[Piece]]]:
    """Files with their pieces, several at once, where no file is read for them; see fingerprint."""
    return zip(stats, in_parallel(lambda stat: fingerprint(folder, stat), stats), strict=True)


def spread_fingerprints(
    folder: RawFolder, stats: Sequence[FileStat], executor: Executor, progress: Callable[[int], None] | None = None
) -> Iterator[tuple[FileStat, list[Piece]]]:
    """The pieces of files, hashed by an executor's workers; each file once all of it is hashed, in no order.

    They are those of fingerprint. A large plain file is shared by all workers: where it is cut is found by small reads.

    Raises:
        SourceChangedError: see fingerprint.
    """
    runs: list[_Run] = []
    left = {stat.path: stat.size for stat in stats}
    hashed: dict[str, dict[int, _Hashed]] = {stat.path: {} for stat in stats}
    for number, found in executor.run(_hash_run, _noted(runs, _runs(folder, stats))):
        run = runs[number]
        path, size = run.stat.path, run.end - run.begin
        hashed[path][run.begin] = found
        left[path] -= size
        if progress is not None:
            progress(size)
        if left[path] == 0:
            yield run.stat, _numbered(hashed.pop(path))


@dataclass(frozen=True, slots=True)
class _Run:
    """Bytes of a file that one worker hashes: all of it, or one piece."""

    folder: RawFolder
    stat: FileStat
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class _Hashed:
    """What a run holds."""

    pieces: tuple[Piece, ...]
    """With lines counted from the run's first, which is line 1."""
    line_ends: int


def _noted(runs: list[_Run], found: Iterable[_Run]) -> Iterator[_Run]:
    """The runs, each added to `runs` as it is handed out."""
    for run in found:
        runs.append(run)
        yield run


def _runs(folder: RawFolder, stats: Sequence[FileStat]) -> Iterator[_Run]:
    least = max(_SHARED_PIECES * PIECE_BYTES, sum(stat.size for stat in stats) // _MOST_SHARED_FILES)
    for stat in stats:
        begin = 0
        if is_cuttable(stat.path) and stat.size > least:
            path = folder / stat.path
            with probe_raw(path) as probe:
                _check_unchanged(path, stat, probe.status)
                for end in chained_cuts(probe, stat.size, PIECE_BYTES):
                    yield _Run(folder, stat, begin, end)
                    begin = end
        yield _Run(folder, stat, begin, stat.size)


def _hash_run(run: _Run) -> _Hashed:
    found = list(_hashed(run.folder / run.stat.path, run.stat, None, PIECE_BYTES, run.begin, run.end))
    last, cutter = found[-1]
    return _Hashed(tuple(piece for piece, _ in found), last.first_line - 1 + cutter.lines)


def _numbered(hashed: Mapping[int, _Hashed]) -> list[Piece]:
    """The pieces of a file, given its runs by their first bytes."""
    pieces: list[Piece] = []
    lines = 0
    for begin in sorted(hashed):
        pieces += (replace(piece, first_line=piece.first_line + lines) for piece in hashed[begin].pieces)
        lines += hashed[begin].line_ends
    return pieces


def fingerprint_parts(folder: RawFolder, stat: FileStat, part_bytes: int) -> Iterator[Piece]:
    """The same pieces in parts that end at line ends, as they are read: what several processes can share.

    Args:
        folder: of the files.
        stat: of the file.
        part_bytes: a part of a plain file has at least so many, but for the last one of a piece.

    Raises:
        SourceChangedError: see fingerprint; after the last part.
    """
    for piece, cutter in _hashed(folder / stat.path, stat, None, part_bytes):
        yield from cutter.parts(piece)


def _hashed(
    path: RawFolder,
    stat: FileStat,
    progress: Callable[[int], None] | None,
    part_bytes: int,
    begin: int = 0,
    end: int | None = None,
) -> Iterator[tuple[Piece, _Cutter]]:
    """Pieces of a file, as they are read, with what cuts them into parts; between two cuts, where these are given."""
    bound, line = stat.size if end is None else end, 1
    with open_raw(path, begin=begin, end=bound) as file:
        while True:
            cutter = _Cutter(begin, part_bytes if is_cuttable(stat.path) else None)
            reached, digest = _hash_piece(file, begin, bound, progress, cutter)
            yield Piece(stat.path, begin, reached, line, digest), cutter
            if reached == bound:
                break
            begin, line = reached, line + cutter.lines
        after = status_of(file)
    _check_unchanged(path, stat, after)


def _check_unchanged(path: RawFolder, stat: FileStat, now: os.stat_result | ObjectStat) -> None:
    if not stat.is_as(file_stat(stat.path, now)):
        raise SourceChangedError(
            "the file changed while it was read",
            where=path,
            found=f"{now.st_size:,} bytes, written at {now.st_mtime_ns / 1e9:.3f} s",
            expected=f"{stat.size:,} bytes, written at {stat.mtime_ns / 1e9:.3f} s, as when it was listed",
            remedy="build again once the upload has ended",
        )


def _hash_piece(
    file: BinaryIO, begin: int, bound: int, progress: Callable[[int], None] | None, cutter: _Cutter
) -> tuple[int, str]:
    """Hash from `begin` to the end of the piece, at most to `bound`; → (end, sha256)."""
    sha = hashlib.sha256()
    position = begin
    file.seek(begin)
    while position < bound:
        block = file.read(min(READ_BYTES, bound - position))
        if not block:
            return bound, sha.hexdigest()  # it shrank meanwhile: the caller sees that
        cut = cutter.end_of(block, begin + PIECE_BYTES - position)
        block = block[:cut] if cut else block
        sha.update(block)
        cutter.feed(block)
        position += len(block)
        if progress is not None:
            progress(len(block))
        if cut:
            break
    return position, sha.hexdigest()


class _Cutter:
    """Sums up the parts of a piece while it is read."""

    def __init__(self, begin: int, part_bytes: int | None) -> None:
        """`part_bytes` None: it cannot be cut, and has no lines."""
        from isal.isal_zlib import crc32

        self._crc32, self._part_bytes = crc32, part_bytes
        self.lines = 0
        """Line ends so far."""
        self._begin = self._position = begin
        self._sum = self._lines_before = 0
        self._parts: list[tuple[int, int, int, int]] = []

    def end_of(self, block: bytes, room: int) -> int:
        """Where a block is cut that has room for so many bytes: after the line in which they end; 0 for nowhere."""
        return block.find(b"\n", max(room - 1, 0)) + 1 if self._part_bytes is not None and room <= len(block) else 0

    def feed(self, block: bytes) -> None:
        """Take the next bytes."""
        while block:
            cut = self.end_of(block, self._begin + (self._part_bytes or 0) - self._position)
            taken, block = (block[:cut], block[cut:]) if cut else (block, b"")
            self._sum = self._crc32(taken, self._sum)
            self.lines += taken.count(b"\n") if self._part_bytes is not None else 0
            self._position += len(taken)
            if cut:
                self._end_part()

    def _end_part(self) -> None:
        self._parts.append((self._begin, self._position, self._lines_before, self._sum))
        self._begin, self._lines_before, self._sum = self._position, self.lines, 0

    def parts(self, piece: Piece) -> list[Piece]:
        """All of the piece, which has been read, in parts."""
        if self._begin < self._position or not self._parts:
            self._end_part()
        return [
            Piece(piece.path, begin, end, piece.first_line + lines, part_digest(crc, piece))
            for begin, end, lines, crc in self._parts
        ]


def _is_uncut(pieces: Sequence[Piece]) -> bool:
    """Whether it is a file that is known by its ETag and that nobody tried to cut."""
    return pieces[0].digest.startswith(ETAG) and pieces[0].first_line > 0


class FingerprintMemory:
    """Pieces by path, carried from one inventory to the next in a small JSON file.

    What it says of a file is trusted while the file is as it was, by size, time, and inode or time of change.
    """

    def __init__(self, path: Path | None, *, cut_unread: bool = False) -> None:
        """path: of the file; None = it is kept no longer than this object; cut_unread: large files count as unknown
        that were remembered as one piece by their ETags, see is_cut_unread."""
        self._path, self._cut_unread = path, cut_unread
        self._started_ns = time.time_ns()
        self._unsaved_bytes = 0
        self._entries = self._load()

    def _load(self) -> dict[str, Any]:
        """Only a memory: without it, or when it is not ours, the files are hashed again."""
        try:
            value = json.loads(read_regular(self._path)) if self._path is not None else {}
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        if not isinstance(value, dict) or (value.get("version"), value.get("piece_bytes")) != (_VERSION, PIECE_BYTES):
            return {}
        return value["files"] if isinstance(value.get("files"), dict) else {}

    def recall(self, stat: FileStat) -> list[Piece] | None:
        """The pieces of a file that is as it was when they were noted."""
        entry = self._entries.get(stat.path)
        if not isinstance(entry, dict):
            return None
        try:
            size, mtime_ns, inode = entry["stat"]
            if not stat.is_as(FileStat(stat.path, size, mtime_ns, inode, entry.get("changed_ns", 0))):
                return None
            pieces = [checked_piece(Piece(stat.path, *piece)) for piece in entry["pieces"]]
        except (KeyError, TypeError, ValueError):
            return None
        begins, ends = [piece.begin for piece in pieces], [piece.end for piece in pieces]
        is_whole = pieces and begins == [0, *ends[:-1]] and ends[-1] == stat.size
        return pieces if is_whole and not (self._cut_unread and _is_large(stat) and _is_uncut(pieces)) else None

    def pieces(self, folder: RawFolder, stat: FileStat, progress: Callable[[int], None] | None = None) -> list[Piece]:
        """The pieces of a file: those that were noted, or else found by hashing it, which is noted; see fingerprint.

        `progress` is called with the number of bytes hashed, or known, since the last call.
        """
        known = self.recall(stat)
        if known is None:
            known = fingerprint(folder, stat, progress)
            self.note(stat, known)
        elif progress is not None:
            progress(stat.size)
        return known

    def parts(self, folder: RawFolder, stat: FileStat, part_bytes: int) -> Iterator[Piece]:
        """The same in parts, as they are read; see fingerprint_parts."""
        known = self.recall(stat)
        if known is None:
            known = []
            for part in fingerprint_parts(folder, stat, part_bytes):
                known.append(part)
                yield part
            self.note(stat, known)
        else:
            yield from known

    def note(self, stat: FileStat, pieces: list[Piece]) -> None:
        """Remember the pieces of a file."""
        # A file written within the clock's grain could change again without a trace in its times.
        if stat.mtime_ns < self._started_ns - _RACY_NS:
            rows = [[piece.begin, piece.end, piece.first_line, piece.digest] for piece in pieces]
            self._entries[stat.path] = {"stat": [stat.size, stat.mtime_ns, stat.inode], "pieces": rows}
            if stat.changed_ns < self._started_ns - _RACY_NS:
                self._entries[stat.path]["changed_ns"] = stat.changed_ns
            self._unsaved_bytes += stat.size
        if self._unsaved_bytes >= SAVE_BYTES:
            self.save(self._entries)

    def save(self, paths: Collection[str]) -> None:
        """Write down what is known of `paths`, and forget the rest."""
        self._unsaved_bytes = 0
        if self._path is None:
            return
        files = {path: entry for path, entry in self._entries.items() if path in paths}
        data = json.dumps({"version": _VERSION, "piece_bytes": PIECE_BYTES, "files": files}).encode()
        if not self._path.exists() or read_regular(self._path) != data:
            write_atomic(self._path, data)
