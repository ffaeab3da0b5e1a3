"""Hashing files piece by piece, once: where they are cut, and what is remembered of them."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from nanoset_core.errors import SourceChangedError
from nanoset_core.execution.processes import Executor
from nanoset_core.raw.endings import is_cuttable
from nanoset_core.raw.listing import FileStat, file_stat
from nanoset_core.raw.pieces import ETAG, Piece, checked_piece, etag_digest, part_digest
from nanoset_core.raw.stored import Probe, open_raw, probe_raw, status_of
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.location import ObjectStat, RawFolder, RemoteFolder
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.storage.store import in_parallel

PIECE_BYTES = 64 << 20
"""A plain file is cut at the first line end at or after each multiple of this, counted from the last cut."""
READ_BYTES = 4 << 20
WINDOW_BYTES, _MOST_WINDOW_BYTES = 64 << 10, 8 << 20
"""Read at a cut that is looked for by small reads; more where a line is longer."""
SPREAD_BYTES = 1 << 30
"""Unknown bytes from which on an executor's workers hash them."""
_SHARED_PIECES, _MOST_SHARED_FILES = 4, 256
"""A file is shared by workers that is larger than so many pieces, and than this part of all that is to be hashed."""
SAVE_BYTES = 1 << 30
"""The memory is written after about this many hashed bytes: as much as a kill can cost."""
_RACY_NS = 2_000_000_000
_VERSION = 1


def is_read(folder: RawFolder) -> bool:
    """Whether files are known by their bytes, which have to be read, and not by their ETags."""
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
    if is_read(folder):
        return _pieces(stat.path, _hashed(_Run(folder, stat, 0, stat.size), PIECE_BYTES, progress))
    digest = etag_digest(stat.inode)
    if not is_cut_unread(folder) or not _is_large(stat):
        return [Piece(stat.path, 0, stat.size, 1, digest)]
    with probe_raw(folder / stat.path) as probe:
        _check_unchanged(folder / stat.path, stat, probe.status)
        cuts = separate_cuts(probe, stat.size, PIECE_BYTES)
    return [Piece(stat.path, begin, end, 0, digest) for begin, end in pairwise([0, *cuts, stat.size])]


def _is_large(stat: FileStat) -> bool:
    return is_cuttable(stat.path) and stat.size > 2 * PIECE_BYTES


def fingerprint_all(
    folder: RawFolder,
    stats: Sequence[FileStat],
    executor: Executor | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[FileStat, list[Piece]]]:
    """Give files with their pieces, those of `fingerprint`, in any order.

    With an executor many bytes are hashed by its workers, which share large plain files piece by piece.

    Raises:
        SourceChangedError: see fingerprint.
    """
    if is_cut_unread(folder):
        yield from zip(stats, in_parallel(lambda stat: fingerprint(folder, stat), stats), strict=True)
    elif executor is not None and is_read(folder) and sum(stat.size for stat in stats) >= SPREAD_BYTES:
        yield from _spread(folder, stats, executor, progress)
    else:
        yield from ((stat, fingerprint(folder, stat, progress)) for stat in stats)


def _spread(
    folder: RawFolder, stats: Sequence[FileStat], executor: Executor, progress: Callable[[int], None] | None
) -> Iterator[tuple[FileStat, list[Piece]]]:
    runs: list[_Run] = []

    def noted() -> Iterator[_Run]:
        for run in _runs(folder, stats):
            runs.append(run)
            yield run

    left = {stat.path: stat.size for stat in stats}
    hashed: dict[str, list[_Hashed]] = {stat.path: [] for stat in stats}
    for number, found in executor.run(_hash_run, noted()):
        run = runs[number]
        path, size = run.stat.path, run.end - run.begin
        hashed[path] += found
        left[path] -= size
        if progress is not None:
            progress(size)
        if left[path] == 0:
            yield run.stat, _pieces(path, hashed.pop(path))


@dataclass(frozen=True, slots=True)
class _Run:
    """Bytes of a file that one worker hashes: all of it, or one piece."""

    folder: RawFolder
    stat: FileStat
    begin: int
    end: int


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


def _hash_run(run: _Run) -> list[_Hashed]:
    return list(_hashed(run, PIECE_BYTES))


@dataclass(frozen=True, slots=True)
class _Hashed:
    """A piece of a file that was read."""

    begin: int
    end: int
    sha256: str
    line_ends: int
    parts: list[tuple[int, int, int, int]]
    """(begin, end, line ends of the piece before it, CRC) of each part."""

    def piece(self, path: str, first_line: int) -> Piece:
        """Return it as it stands in an inventory."""
        return Piece(path, self.begin, self.end, first_line, self.sha256)


def _pieces(path: str, hashed: Iterable[_Hashed]) -> list[Piece]:
    pieces: list[Piece] = []
    line = 1
    for found in sorted(hashed, key=lambda found: found.begin):
        pieces.append(found.piece(path, line))
        line += found.line_ends
    return pieces


def _hashed(run: _Run, part_bytes: int, progress: Callable[[int], None] | None = None) -> Iterator[_Hashed]:
    """Hash bytes of a file, piece by piece."""
    from isal.isal_zlib import crc32

    path, is_plain = run.folder / run.stat.path, is_cuttable(run.stat.path)
    begin = part = position = run.begin
    sha256, line_ends, lines_before, crc = hashlib.sha256(), 0, 0, 0
    parts: list[tuple[int, int, int, int]] = []
    with open_raw(path, begin=run.begin, end=run.end) as file:
        for block, first, end, ends_part, ends_piece in _stretches(file, run, part_bytes if is_plain else None):
            view = memoryview(block)[first:end]
            sha256.update(view)
            crc = crc32(view, crc)
            line_ends += block.count(b"\n", first, end) if is_plain else 0
            position += len(view)
            if progress is not None:
                progress(len(view))
            if ends_part:
                parts.append((part, position, lines_before, crc))
                part, lines_before, crc = position, line_ends, 0
            if ends_piece:
                yield _Hashed(begin, position, sha256.hexdigest(), line_ends, parts)
                begin, sha256, line_ends, lines_before, parts = position, hashlib.sha256(), 0, 0, []
        if begin < run.end or run.begin == run.end:
            if part < position or not parts:
                parts.append((part, position, lines_before, crc))
            yield _Hashed(begin, run.end, sha256.hexdigest(), line_ends, parts)
        after = status_of(file)
    _check_unchanged(path, run.stat, after)


def _stretches(file: BinaryIO, run: _Run, part_bytes: int | None) -> Iterator[tuple[bytes, int, int, bool, bool]]:
    """Read bytes of a file, cut where parts and pieces end: with the first line that ends at or after their size.

    Gives (block, where in it the stretch begins and ends, whether a part ends with it, whether a piece does).
    `part_bytes` None: the file cannot be cut.
    """
    file.seek(run.begin)
    piece = part = position = run.begin
    while position < run.end and (block := file.read(min(READ_BYTES, run.end - position))):
        begin = 0
        while begin < len(block):
            cut = 0
            if part_bytes is not None:
                due = begin + min(part + part_bytes, piece + PIECE_BYTES) - position
                cut = block.find(b"\n", max(due - 1, begin)) + 1 if due <= len(block) else 0
            end = cut or len(block)
            position += end - begin
            ends_piece = cut > 0 and position >= piece + PIECE_BYTES
            yield block, begin, end, cut > 0, ends_piece
            part = position if cut else part
            piece = position if ends_piece else piece
            begin = end


def _check_unchanged(path: RawFolder, stat: FileStat, now: os.stat_result | ObjectStat) -> None:
    if not stat.is_as(file_stat(stat.path, now)):
        raise SourceChangedError(
            "the file changed while it was read",
            where=path,
            found=f"{now.st_size:,} bytes, written at {now.st_mtime_ns / 1e9:.3f} s",
            expected=f"{stat.size:,} bytes, written at {stat.mtime_ns / 1e9:.3f} s, as when it was listed",
            remedy="build again once the upload has ended",
        )


def chained_cuts(probe: Probe, size: int, piece_bytes: int) -> Iterator[int]:
    """Find by small reads where pieces of a file end, but for the last: each cut counts from the one before.

    The next cuts lie a little after the next multiples of a piece, so that several are looked for at once.

    A piece ends with the first line that ends at or after `piece_bytes`.
    """
    begin = 0
    while size - begin > piece_bytes:
        looked_at = range(begin + piece_bytes - 1, size, piece_bytes)[: probe.at_once]
        for at, window in zip(looked_at, _windows(probe, looked_at, size), strict=True):
            found = window.find(b"\n", begin + piece_bytes - 1 - at)
            if found < 0:
                if at > looked_at[0]:
                    break  # the lines before were long: look again, from the last cut on
                begin = line_end(probe, at + len(window), size) or size
            else:
                begin = at + found + 1
            if begin < size:
                yield begin


def separate_cuts(probe: Probe, size: int, piece_bytes: int) -> list[int]:
    """Find where pieces of a file end, but for the last: at the first line end at or after each multiple of a piece.

    No cut depends on another, so that all are looked for at once. A line longer than a piece takes the place of cuts.
    """
    lasts = range(piece_bytes - 1, size - 1, piece_bytes)
    found = in_parallel(lambda at: line_end(probe, at, min(at + piece_bytes, size - 1)), lasts, probe.at_once)
    return [cut for cut in found if cut is not None]


def _windows(probe: Probe, begins: range, size: int) -> list[bytes]:
    return in_parallel(lambda begin: probe.read(begin, min(begin + WINDOW_BYTES, size)), begins, probe.at_once)


def line_end(probe: Probe, begin: int, end: int) -> int | None:
    """Return the byte after the first line end in bytes [begin, end); None where there is none."""
    length = WINDOW_BYTES
    while begin < end and (window := probe.read(begin, min(begin + length, end))):
        if (found := window.find(b"\n")) >= 0:
            return begin + found + 1
        begin, length = begin + len(window), min(2 * length, _MOST_WINDOW_BYTES)
    return None


class FingerprintMemory:
    """Pieces by path, carried from one inventory to the next in a small JSON file.

    An entry is trusted while its file has the same size, time, and inode or time of change.
    """

    def __init__(self, path: Path | None, *, cut_unread: bool = False) -> None:
        """path: of the JSON file; None = nothing is kept. cut_unread: large files that were remembered as one piece by
        their ETags count as unknown, see is_cut_unread."""
        self._path, self._cut_unread = path, cut_unread
        self._started_ns = time.time_ns()
        self._unsaved_bytes = 0
        self._entries = self._load()

    def _load(self) -> dict[str, Any]:
        """Read the file; where it is not there, or not ours, files are hashed again."""
        try:
            value = json.loads(read_regular(self._path)) if self._path is not None else {}
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        if not isinstance(value, dict) or (value.get("version"), value.get("piece_bytes")) != (_VERSION, PIECE_BYTES):
            return {}
        return value["files"] if isinstance(value.get("files"), dict) else {}

    def recall(self, stat: FileStat) -> list[Piece] | None:
        """Return the pieces of a file, if it is as it was when they were noted; else None."""
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
        was_not_cut = (
            self._cut_unread and _is_large(stat) and pieces[0].digest.startswith(ETAG) and pieces[0].first_line
        )
        return pieces if is_whole and not was_not_cut else None

    def parts(self, folder: RawFolder, stat: FileStat, part_bytes: int) -> Iterator[Piece]:
        """Yield the pieces of a plain file in parts that end at line ends: remembered ones, or as they are hashed.

        A part has at least `part_bytes`, but for the last one of a piece. Errors as of fingerprint, at the end.
        """
        known = self.recall(stat)
        if known is not None:
            yield from known
            return
        parts: list[Piece] = []
        line = 1
        for found in _hashed(_Run(folder, stat, 0, stat.size), part_bytes):
            whole = found.piece(stat.path, line)
            for begin, end, lines, crc in found.parts:
                parts.append(Piece(stat.path, begin, end, line + lines, part_digest(crc, whole)))
                yield parts[-1]
            line += found.line_ends
        self.note(stat, parts)

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
