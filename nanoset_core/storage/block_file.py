"""Large files as buffers: mapped where they are local, else read by blocks that are kept on the disk."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanoset_core.storage.scratch import UNFINISHED
from nanoset_core.storage.store import Store, in_parallel

BLOCK_BYTES = 256 << 10
REQUEST_BYTES = 8 << 20
"""Neighbouring blocks that are missing are read by one request, up to this size."""


class MappedFile:
    """A file of this machine as a memory map, all of which can be read."""

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


class BlockFile(MappedFile):
    """An object as a memory map of which only the blocks that were fetched hold its bytes.

    The map is a sparse file without a name on the local disk, and vanishes with the last process that holds it. Forked
    processes share its blocks. SourceChangedError is raised once the object is replaced.
    """

    def __init__(self, store: Store, name: str, folder: Path, *, block_bytes: int = BLOCK_BYTES) -> None:
        """Args:
            store: holds the object.
            name: of the object.
            folder: where the map lies.
            block_bytes: what is fetched at once at least.

        Raises:
            FileNotFoundError: the store has no such object.
        """
        self._store, self._name, self._block = store, name, block_bytes
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
        blocks = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        self.fetch_blocks(blocks)

    def fetch_blocks(self, blocks: NDArray[np.int64]) -> None:
        """Make these blocks readable; those that are missing are read in parallel."""
        missing = np.unique(blocks[self._known[blocks] == 0])
        if len(missing):
            in_parallel(self._fetch, _runs(missing, max(1, REQUEST_BYTES // self._block)), threads=16)

    def forget(self) -> None:
        """Free the disk space of all blocks; nothing may be read meanwhile."""
        if hasattr(mmap, "MADV_REMOVE"):
            self._shared.madvise(mmap.MADV_REMOVE)
        else:
            self._known[:] = 0
        os.truncate(self._file, 0)
        os.truncate(self._file, self.size)

    def _fetch(self, run: tuple[int, int]) -> None:
        begin, end = run[0] * self._block, min(run[1] * self._block, self.size)
        data = memoryview(self._store.read_range(self._name, begin, end, self._mark))
        while data:
            written = os.pwrite(self._file, data, begin)
            data, begin = data[written:], begin + written
        self._known[run[0] : run[1]] = 1  # last: a reader that sees this sees the bytes


def _runs(blocks: NDArray[np.int64], longest: int) -> Iterable[tuple[int, int]]:
    """Yield (first, end) of runs of neighbouring blocks, none longer than `longest`."""
    for run in np.split(blocks, np.flatnonzero(np.diff(blocks) > 1) + 1):
        for begin in range(0, len(run), longest):
            part = run[begin : begin + longest]
            yield int(part[0]), int(part[-1]) + 1
