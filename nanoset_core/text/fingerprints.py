"""Hashing files piece by piece, once: where they are cut, and what is remembered of them."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.errors import SourceChangedError
from nanoset_core.execution.processes import Executor
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.location import ObjectStat, RawFolder, RemoteFolder, is_in_bucket
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.storage.store import in_parallel
from nanoset_core.text.contents import FileStat, file_stat
from nanoset_core.text.endings import is_cuttable
from nanoset_core.text.pieces import (
    ETAG,
    READ_BYTES,
    Crc32,
    Piece,
    Probe,
    blocks_of,
    checked_piece,
    etag_digest,
    open_raw,
    probe_raw,
    status_of,
)

PIECE_BYTES = 64 << 20
"""A plain file is cut at the first line end at or after each multiple of this, counted from the
last cut.
"""
WINDOW_BYTES, _MOST_WINDOW_BYTES = 64 << 10, 8 << 20
"""Read at a cut that is looked for by small reads; more where a line is longer."""
SPREAD_BYTES = 1 << 30
"""Unknown bytes from which on an executor's workers hash them."""
_SHARED_PIECES = 4
"""A plain file that is larger than so many pieces is shared by workers."""
SAVE_BYTES = 1 << 30
"""The memory is written after about this many hashed bytes: as much as a kill can cost."""
_SAVED_SHARE = 8
"""Or after this share of what was hashed, where that is more: of a large corpus the memory itself
is large.
"""
_RACY_NS = 2_000_000_000
_VERSION = 1
_SENT = b"\n"
"""At the end of this machine's file: the store has what it holds."""


def is_cut_unread(folder: RawFolder) -> bool:
    """Return whether large plain files are cut at line ends without being read, so that their lines
    are not counted.
    """
    return isinstance(folder, RemoteFolder) and folder.by_etag and folder.in_pieces


def is_known_unread(folder: RawFolder) -> bool:
    """Return whether a listing alone tells what files are, by their ETags."""
    return _by_etag(folder) and not is_cut_unread(folder)


def fingerprint(
    folder: RawFolder, stat: FileStat, progress: Callable[[int], None] | None = None
) -> list[Piece]:
    """Hash one file; a plain file is cut into pieces that end at line ends, any other is one piece.

    In a folder whose objects are known by their ETags nothing is read, and each is one piece; or
    large plain ones are cut by small reads, and the numbers of their lines are not known.
    SourceChangedError where the file is not as `stat` describes it, before or after.
    """
    if not _by_etag(folder):
        return _hash_run(_Run(folder, stat, 0, stat.size), progress)[0]
    is_cut, cuts = is_cut_unread(folder) and _is_large(stat), list[int]()
    if is_cut:
        with probe_raw(folder / stat.path) as probe:
            _check_unchanged(folder / stat.path, stat, probe.status)
            cuts = separate_cuts(probe, stat.size, PIECE_BYTES)
    digest = etag_digest(stat.inode)
    return [
        Piece(stat.path, *ends, 0 if is_cut else 1, digest)
        for ends in pairwise([0, *cuts, stat.size])
    ]


def _by_etag(folder: RawFolder) -> bool:
    return isinstance(folder, RemoteFolder) and folder.by_etag


def _is_large(stat: FileStat) -> bool:
    return is_cuttable(stat.path) and stat.size > 2 * PIECE_BYTES


def hash_parts(
    folder: RawFolder, stat: FileStat, part_bytes: int, pieces: list[Piece]
) -> Iterator[Piece]:
    """Yield parts of at least `part_bytes` of a file as they are read, with CRCs as digests, which
    are quick to check.

    The pieces that `fingerprint` gives are appended to `pieces`. Errors as of fingerprint, at the
    end.
    """
    held: list[bytes] = []

    def blocks() -> Iterator[bytes]:
        for block in _blocks(_Run(folder, stat, 0, stat.size)):
            held.append(block)  # for the other reader; itertools.tee would hold up to 57 of them
            yield block
        held.append(b"")

    wholes_cuts = _cut(iter(held.pop, b""), stat.path, 0, PIECE_BYTES)
    cuts = zip(_cut(blocks(), stat.path, 0, part_bytes, Crc32), wholes_cuts, strict=True)
    for (parts, _), (wholes, _) in cuts:
        pieces += wholes
        yield from parts


def fingerprint_all(
    folder: RawFolder,
    stats: Sequence[FileStat],
    executor: Executor | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[FileStat, list[Piece]]]:
    """Give files with their pieces, those of `fingerprint`, in any order.

    With an executor many bytes are hashed by its workers, which share large plain files piece by
    piece.
    """
    if is_cut_unread(folder):
        yield from zip(
            stats, in_parallel(lambda stat: fingerprint(folder, stat), stats), strict=True
        )
    elif (
        executor is not None
        and not _by_etag(folder)
        and sum(stat.size for stat in stats) >= SPREAD_BYTES
    ):
        yield from _spread(folder, stats, executor, progress or (lambda _: None))
    else:
        yield from ((stat, fingerprint(folder, stat, progress)) for stat in stats)


@dataclass(frozen=True, slots=True)
class _Run:
    """Bytes of a file that one worker hashes: all of it, or one piece."""

    folder: RawFolder
    stat: FileStat
    begin: int
    end: int


def _spread(
    folder: RawFolder,
    stats: Sequence[FileStat],
    executor: Executor,
    progress: Callable[[int], None],
) -> Iterator[tuple[FileStat, list[Piece]]]:
    left = {stat.path: stat.size for stat in stats}
    hashed: dict[str, list[tuple[list[Piece], int]]] = {stat.path: [] for stat in stats}
    files = {stat.path: stat for stat in stats}
    for _, found in executor.run(_hash_run, _runs(folder, stats)):
        path, size = found[0][0].path, sum(piece.size for piece in found[0])
        hashed[path].append(found)
        left[path] -= size
        progress(size)
        if left[path] == 0:
            pieces, lines = list[Piece](), 0
            for some, line_ends in sorted(hashed.pop(path), key=lambda run: run[0][0].begin):
                pieces += [replace(piece, first_line=piece.first_line + lines) for piece in some]
                lines += line_ends
            yield files[path], pieces


def _runs(folder: RawFolder, stats: Sequence[FileStat]) -> Iterator[_Run]:
    for stat in stats:
        begin = 0
        if is_cuttable(stat.path) and stat.size > _SHARED_PIECES * PIECE_BYTES:
            path = folder / stat.path
            with probe_raw(path) as probe:
                _check_unchanged(path, stat, probe.status)
                for end in chained_cuts(probe, stat.size, PIECE_BYTES):
                    yield _Run(folder, stat, begin, end)
                    begin = end
        yield _Run(folder, stat, begin, stat.size)


def _hash_run(run: _Run, progress: Callable[[int], None] | None = None) -> tuple[list[Piece], int]:
    """Return the pieces of a run, whose lines are numbered from its first byte; and how many lines
    end in it.
    """
    pieces, lines = list[Piece](), 0
    for found, lines in _cut(_blocks(run, progress), run.stat.path, run.begin, PIECE_BYTES):  # noqa: B007
        pieces += found
    return pieces, lines


def _blocks(run: _Run, progress: Callable[[int], None] | None = None) -> Iterator[bytes]:
    path = run.folder / run.stat.path
    with open_raw(path, begin=run.begin, end=run.end) as file:
        for block in blocks_of(file, run.begin, run.end, READ_BYTES):
            yield block
            if progress is not None:
                progress(len(block))
        after = status_of(file)
    _check_unchanged(path, run.stat, after)


def _cut(
    blocks: Iterable[bytes],
    path: str,
    begin: int,
    size: int,
    new_hash: Callable[[], Any] = hashlib.sha256,
) -> Iterator[tuple[list[Piece], int]]:
    """Hash bytes of a file, and cut those of a plain one: with the first line that ends at or after
    a size.

    Yields:
        (the pieces that end in it, how many lines have ended so far) for each block, and for the
        end.
    """
    is_plain, position, lines, line, digest = is_cuttable(path), begin, 0, 1, new_hash()
    for block in blocks:
        pieces, done, view = list[Piece](), 0, memoryview(block)
        while done < len(block):
            due = done + begin + size - position
            cut = block.find(b"\n", max(due - 1, done)) + 1 if is_plain and due <= len(block) else 0
            end = cut or len(block)
            digest.update(view[done:end])
            lines += _line_ends(view[done:end]) if is_plain else 0
            position += end - done
            done = end
            if cut:
                pieces.append(Piece(path, begin, position, line, digest.hexdigest()))
                begin, line, digest = position, lines + 1, new_hash()
        yield pieces, lines
    yield (
        [Piece(path, begin, position, line, digest.hexdigest())]
        if begin < position or position == 0
        else [],
        lines,
    )


def _line_ends(data: memoryview) -> int:
    # several times faster than bytes.count
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n")))


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
    """Find by small reads where pieces of a file end, but for the last: each cut counts from the
    one before.

    A piece ends with the first line that ends at or after `piece_bytes`.
    """
    begin = 0
    while size - begin > piece_bytes:
        begin = line_end(probe, begin + piece_bytes - 1, size) or size
        if begin < size:
            yield begin


def separate_cuts(probe: Probe, size: int, piece_bytes: int) -> list[int]:
    """Find where pieces of a file end, but for the last: at the first line end at or after each
    multiple of a piece.

    No cut depends on another, so that all are looked for at once. A line longer than a piece takes
    the place of cuts.
    """
    lasts = range(piece_bytes - 1, size - 1, piece_bytes)
    found = in_parallel(lambda at: line_end(probe, at, min(at + piece_bytes, size - 1)), lasts)
    return [cut for cut in found if cut is not None]


def line_end(probe: Probe, begin: int, end: int) -> int | None:
    """Return the byte after the first line end in bytes [begin, end); None where there is none."""
    length = WINDOW_BYTES
    while begin < end and (window := probe.read(begin, min(begin + length, end))):
        if (found := window.find(b"\n")) >= 0:
            return begin + found + 1
        begin, length = begin + len(window), min(2 * length, _MOST_WINDOW_BYTES)
    return None


class FingerprintMemory:
    """Pieces by path, carried from one inventory to the next in a small JSON file that the store
    has, too.

    An entry is trusted while its file has the same size, time, and inode (in a bucket the ETag) or
    time of change. The file of this machine comes first: local copies of the same text have other
    inodes on each.
    """

    def __init__(
        self, path: Path | None, access: FileAccess | None = None, folder: RawFolder | None = None
    ) -> None:
        """Args:
        path: of the JSON file; None = nothing is kept.
        access: how the store is reached that has it, too; absent = the file is here alone.
        folder: of the files; where it is_cut_unread, large ones that were one piece by their ETags
            count as unknown.
        """
        self._path, self._access = (
            path,
            access if access is not None and access.has_copies else None,
        )
        self._cut_unread = folder is not None and is_cut_unread(folder)
        # A file written within the clock's grain could change again without a trace in its times.
        self._newest_ns = (
            sys.maxsize
            if folder is not None and is_in_bucket(str(folder))
            else time.time_ns() - _RACY_NS
        )
        self._noted_bytes = self._unsaved_bytes = 0
        data = None
        with suppress(FileNotFoundError):
            data = read_regular(path) if path is not None else None
        self._entries = _entries(data)
        self._is_sent = data is not None and data.endswith(_SENT)

    @cached_property
    def _stored(self) -> dict[str, Any]:
        """What the store has."""
        access, path = self._access, self._path
        return (
            {} if access is None or path is None else _entries(access.store.read(access.name(path)))
        )

    def recall(self, stat: FileStat) -> list[Piece] | None:
        """Return the pieces of a file, if it is as it was when they were noted; else None."""
        pieces = self._recalled(self._entries, stat)
        if pieces is None and (pieces := self._recalled(self._stored, stat)) is not None:
            self._entries[stat.path] = self._stored[stat.path]
        return pieces

    def _recalled(self, entries: Mapping[str, Any], stat: FileStat) -> list[Piece] | None:
        try:
            entry = entries[stat.path]
            size, mtime_ns, inode = entry["stat"]
            if not stat.is_as(
                FileStat(stat.path, size, mtime_ns, inode, entry.get("changed_ns", 0))
            ):
                return None
            pieces = [checked_piece(Piece(stat.path, *piece)) for piece in entry["pieces"]]
            ends = [piece.end for piece in pieces]
            if [piece.begin for piece in pieces] != [0, *ends[:-1]] or ends[-1] != stat.size:
                return None
        except (LookupError, TypeError, ValueError):
            return None
        was_not_cut = pieces[0].digest.startswith(ETAG) and pieces[0].first_line
        return None if self._cut_unread and _is_large(stat) and was_not_cut else pieces

    def mark(self, piece: Piece) -> int | None:
        """Return the inode, in a bucket the mark of the ETag, of the file that was found to be one
        piece; else None.
        """
        row = [piece.begin, piece.end, piece.first_line, piece.digest]
        with suppress(LookupError, TypeError):
            for entries in (self._entries, self._stored):
                if piece.path in entries and entries[piece.path]["pieces"] == [row]:
                    return int(entries[piece.path]["stat"][2])
        return None

    def note(self, stat: FileStat, pieces: list[Piece]) -> None:
        """Remember the pieces of a file."""
        if stat.mtime_ns < self._newest_ns:
            rows = [[piece.begin, piece.end, piece.first_line, piece.digest] for piece in pieces]
            self._entries[stat.path] = {
                "stat": [stat.size, stat.mtime_ns, stat.inode],
                "pieces": rows,
            }
            if stat.changed_ns < self._newest_ns:
                self._entries[stat.path]["changed_ns"] = stat.changed_ns
            self._is_sent = False
            self._noted_bytes += stat.size
            self._unsaved_bytes += stat.size
        if self._unsaved_bytes >= max(SAVE_BYTES, self._noted_bytes // _SAVED_SHARE):
            self.save(self._entries)

    def save(self, paths: Collection[str]) -> None:
        """Write down what is known of `paths`, here and in the store, and forget the rest."""
        self._unsaved_bytes = 0
        if self._path is None:
            return
        access = None if self._is_sent else self._access
        known = self._entries if access is None else self._stored | self._entries
        files = {path: entry for path, entry in known.items() if path in paths}
        data = json.dumps(
            {"version": _VERSION, "piece_bytes": PIECE_BYTES, "files": files}
        ).encode()
        if access is not None and files:
            if files != self._stored:
                access.store.put(access.name(self._path), data)
            self._is_sent = True
        data += _SENT if self._is_sent else b""
        if not self._path.exists() or read_regular(self._path) != data:
            write_atomic(self._path, data)


def _entries(data: bytes | None) -> dict[str, Any]:
    with suppress(ValueError, RecursionError, LookupError, TypeError):
        value = json.loads(data or b"")
        if (value["version"], value["piece_bytes"]) == (_VERSION, PIECE_BYTES):
            return dict(value["files"])
    return {}
