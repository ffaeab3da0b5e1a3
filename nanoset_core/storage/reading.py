"""Reading objects and large files: in order, with read-ahead; at random, as buffers of which blocks
are fetched.
"""

from __future__ import annotations

import io
import mmap
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from nanoset_core.storage.atomic import UNFINISHED
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.store import Store, Stored, in_parallel

FIRST_BYTES = 1 << 20
"""Read where reading begins."""
MOST_BYTES = 8 << 20
"""Read each time that it goes on from there."""
AHEAD = 4
"""Ranges that are read ahead: with the one at hand, the last, and one beside them, 50 MiB of memory
at most.
"""
BUFFER_BYTES = 256 << 10
BLOCK_BYTES = 256 << 10
REQUEST_BYTES = 8 << 20
"""Neighbouring blocks that are missing are read by one request, up to this size."""


class MappedFile:
    """A file of this machine as a memory map, all of which can be read."""

    room: int | None = None
    """Bytes on the disk that `trim` leaves to what was fetched; None = all."""

    def __init__(self, buffer: mmap.mmap | bytes) -> None:
        """buffer: the map; b"" for an empty file."""
        self.buffer, self.size = buffer, len(buffer)

    @property
    def sliceable(self) -> memoryview | BlockFile:
        """The bytes, to be sliced."""
        return memoryview(self.buffer)

    def fetch(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Make the bytes of many ranges [begins, ends) readable."""

    def fetch_span(self, begin: int, end: int) -> None:
        """Make bytes [begin, end) readable."""

    def trim(self) -> None:
        """Free the disk space of what was fetched, where it is more than `room`; nothing may be
        read meanwhile.
        """


class BlockFile(MappedFile):
    """An object as a memory map of which only the blocks that were fetched hold its bytes.

    The map is a sparse file without a name on the local disk, and vanishes with the last process
    that holds it. Forked processes share its blocks. SourceChangedError is raised once the object
    is replaced.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        folder: Path,
        *,
        block_bytes: int = BLOCK_BYTES,
        gap_bytes: int = 0,
        room: int | None = None,
    ) -> None:
        """Map an object in a folder, to be fetched by blocks of a size; FileNotFoundError where
        there is none.

        Blocks between which no more than `gap_bytes` are not wanted are read by one request, with
        those.
        """
        self._store, self._name, self._block, self._gap = (
            store,
            name,
            block_bytes,
            gap_bytes // block_bytes,
        )
        self._folder, self.room = folder, room
        stored = store.stat(name)
        if stored is None:
            raise FileNotFoundError(store.url(name))
        size, self._mark = stored.size, stored.mark
        folder.mkdir(parents=True, exist_ok=True)
        self._file, path = tempfile.mkstemp(prefix=UNFINISHED, dir=folder)
        weakref.finalize(self, os.close, self._file)
        os.unlink(path)
        os.truncate(self._file, size)
        super().__init__(mmap.mmap(self._file, size, prot=mmap.PROT_READ) if size else b"")
        # Anonymous memory that forked processes share: one byte a block, 1 = fetched.
        count = max(1, -(-size // block_bytes))
        self._shared = mmap.mmap(-1, count)
        self._known = np.frombuffer(self._shared, np.uint8)
        self._view = memoryview(self.buffer)

    @property
    def sliceable(self) -> memoryview | BlockFile:
        return self

    def __getitem__(self, span: slice) -> memoryview:
        """Return bytes [start, stop) of the object."""
        self.fetch_span(span.start, span.stop)
        return self._view[span]

    def fetch_span(self, begin: int, end: int) -> None:
        first, last = begin // self._block, (end - 1) // self._block
        shared = self._shared
        if end > begin and not (last - first < 2 and shared[first] and shared[last]):
            self.fetch_blocks(np.arange(first, last + 1))

    def fetch(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        filled = ends > begins
        first, last = begins[filled] // self._block, (ends[filled] - 1) // self._block
        if not len(first):
            return
        counts = last - first + 1
        blocks = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(
            int(counts.sum())
        )
        self.fetch_blocks(blocks)

    def fetch_blocks(self, blocks: NDArray[np.int64]) -> None:
        """Make these blocks readable; those that are missing are read in parallel."""
        missing = np.unique(blocks[self._known[blocks] == 0])
        if len(missing):
            in_parallel(
                self._fetch,
                _runs(missing, max(1, REQUEST_BYTES // self._block), self._gap),
                threads=16,
            )

    def forget(self) -> None:
        """Free the disk space of all blocks; nothing may be read meanwhile."""
        if hasattr(mmap, "MADV_REMOVE"):
            self._shared.madvise(mmap.MADV_REMOVE)
        else:
            self._known[:] = 0
        os.truncate(self._file, 0)
        os.truncate(self._file, self.size)

    def trim(self) -> None:
        if self.room is not None and os.fstat(self._file).st_blocks * 512 > self.room:
            self.forget()

    def _fetch(self, run: tuple[int, int]) -> None:
        begin, end = run[0] * self._block, min(run[1] * self._block, self.size)
        data = memoryview(self._store.read_range(self._name, begin, end, self._mark))
        with explained(self._folder, expected="room for what is read of a file in a bucket"):
            while data:
                written = os.pwrite(self._file, data, begin)
                data, begin = data[written:], begin + written
        self._known[run[0] : run[1]] = 1  # last: a reader that sees this sees the bytes


def _runs(blocks: NDArray[np.int64], longest: int, gap: int) -> Iterable[tuple[int, int]]:
    """Yield (first, end) of runs of blocks, none longer than `longest`; `gap` others between two
    are of the run.
    """
    for run in np.split(blocks, np.flatnonzero(np.diff(blocks) > gap + 1) + 1):
        first, end = int(run[0]), int(run[-1]) + 1
        yield from ((begin, min(begin + longest, end)) for begin in range(first, end, longest))


class ObjectFile(io.RawIOBase):
    """The bytes of an object; SourceChangedError if it is replaced after it was opened."""

    def __init__(
        self,
        store: Store,
        facts: Stored,
        end: int | None = None,
        *,
        begin: int = 0,
        data: bytes = b"",
    ) -> None:
        """Args:
        store: holds the object.
        facts: what it says of the object.
        end: the file is read in order up to this byte, and nothing beyond it is read ahead; absent
            = it is read at random, or up to the object's end.
        begin: first byte of `data`.
        data: what was read already.
        """
        self.facts, self._store, self._in_order = facts, store, end is not None
        self._end = facts.size if end is None else min(end, facts.size)
        self._position, self._begin, self._data = 0, begin, data
        self._aside = 0, b""
        """Begin and bytes of the range that was read last beside those in order, as of another
        column of a table.
        """
        self._ahead: deque[Future[bytes]] = deque()
        """The ranges after the current one, in order."""
        self._asked = begin + len(data)
        """Where the next of them will begin."""
        self._threads = ThreadPoolExecutor(AHEAD, thread_name_prefix="read-ahead")
        if data:
            self._look_ahead(AHEAD)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = max(0, offset + (0, self._position, self.facts.size)[whence])
        return self._position

    def readinto(self, target: bytearray | memoryview) -> int:  # type: ignore[override]
        if self._position >= self.facts.size or not len(target):
            return 0
        begin, data = self._at_hand() or self._turn()
        at = self._position - begin
        count = min(len(target), len(data) - at)
        target[:count] = memoryview(data)[at : at + count]
        self._position += count
        return count

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._data, self._aside = b"", (0, b"")
        super().close()

    def _at_hand(self) -> tuple[int, bytes] | None:
        ranges = (self._begin, self._data), self._aside
        return next(
            (held for held in ranges if held[0] <= self._position < held[0] + len(held[1])), None
        )

    def _turn(self) -> tuple[int, bytes]:
        """Read the range that begins at the position; in order, or where one at hand ends, start to
        read those after.

        What is read ahead is kept while reading goes on elsewhere.
        """
        goes_on, follows = (
            data != b"" and self._position == begin + len(data)
            for begin, data in ((self._begin, self._data), self._aside)
        )
        if not (goes_on or follows or self._in_order):
            # is filled, where it is small, up to what is at hand
            gap = self._begin - self._position
            size = gap if self._data and 0 < gap < 2 * FIRST_BYTES else FIRST_BYTES
            self._aside = self._position, self._fetch(self._position, size)
            return self._aside
        if not goes_on:
            self._ahead.clear()
        if not self._ahead:
            self._asked = self._position
        self._look_ahead(AHEAD + 1)
        data = (
            self._ahead.popleft().result()
            if self._ahead
            else self._fetch(self._position, FIRST_BYTES)
        )
        self._begin, self._data = self._position, data
        return self._begin, self._data

    def _look_ahead(self, ranges: int) -> None:
        """Start to read until so many ranges are under way."""
        while len(self._ahead) < ranges and self._asked < self._end:
            length = min(MOST_BYTES, self._end - self._asked)
            self._ahead.append(self._threads.submit(self._fetch, self._asked, length))
            self._asked += length

    def _fetch(self, begin: int, length: int) -> bytes:
        facts = self.facts
        return self._store.read_range(
            facts.name, begin, min(begin + length, facts.size), facts.mark
        )


def open_object(store: Store, name: str, *, begin: int = 0, end: int | None = None) -> BinaryIO:
    """Open an object for reading; FileNotFoundError where there is none.

    Args:
        store: holds it.
        name: of the object.
        begin: of what will be read first, where `end` is given.
        end: of what will be read in order: the first range is read at once, and nothing beyond
            `end` ahead; absent = the order is not known.
    """
    if end is None or begin >= end:
        facts, data = store.stat(name), b""
    else:
        data, facts = store.open_range(name, begin, min(begin + FIRST_BYTES, end)) or (b"", None)
    if facts is None:
        raise FileNotFoundError(store.url(name))
    return io.BufferedReader(ObjectFile(store, facts, end, begin=begin, data=data), BUFFER_BYTES)
