"""A token file read in its bucket: blocks come when they are asked for, and stay on the local disk while it is open."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import MissingError
from nanoset_core.storage.mirror import Mirror, mirror_of
from nanoset_core.storage.scratch import UNFINISHED

BLOCK_BYTES = 256 << 10
MOST_BLOCKS = 32
"""Neighbouring blocks that are missing come with one request, up to this many."""


class BlockFile:
    """One object as a memory map of which only the blocks that were brought hold its bytes.

    The map is a file without a name on the mirror's disk, sparse: it takes as much room as was read, and is gone with
    the last process that holds it. Processes that were forked share it, and know of each other's blocks. An object that
    is replaced meanwhile is refused (its ETag is another).
    """

    def __init__(self, mirror: Mirror, path: Path, *, block_bytes: int = BLOCK_BYTES) -> None:
        """mirror: the one that `path` lies in.

        MissingError where the bucket has no such object.
        """
        self._bucket, self._name, self._block = mirror.bucket, mirror.name(path), block_bytes
        facts = self._bucket.head(self._name)
        if facts is None:
            raise MissingError(
                "no such file",
                where=mirror.url(path),
                expected="an indexed dataset: <prefix>.bin and <prefix>.idx",
                remedy="check the data path: it is a prefix, without .bin or .idx",
            )
        self.size, self._etag = facts.size, facts.etag
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file, name = tempfile.mkstemp(prefix=UNFINISHED, dir=path.parent)
        weakref.finalize(self, os.close, self._file)
        os.unlink(name)
        os.truncate(self._file, self.size)
        self.buffer: mmap.mmap | bytes = b""
        if self.size:
            self.buffer = mmap.mmap(self._file, self.size, prot=mmap.PROT_READ)
        # Anonymous shared memory: a block that one forked process brought is there for all. One byte a block.
        count = max(1, -(-self.size // block_bytes))
        self._shared = mmap.mmap(-1, count)
        self._known = np.frombuffer(self._shared, np.uint8)
        self._view = memoryview(self.buffer)

    def __getitem__(self, span: slice) -> memoryview:
        """Bytes [start, stop) as they are in the bucket."""
        first, last = span.start // self._block, (span.stop - 1) // self._block
        shared = self._shared
        if span.stop > span.start and not (last - first < 2 and shared[first] and shared[last]):
            self.bring_blocks(np.arange(first, last + 1))
        return self._view[span]

    def bring(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """See to it that the bytes of many ranges [begins, ends) can be read."""
        filled = ends > begins
        first, last = begins[filled] // self._block, (ends[filled] - 1) // self._block
        if not len(first):
            return
        counts = last - first + 1
        blocks = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        self.bring_blocks(blocks)

    def bring_everything(self) -> None:
        """See to it that every byte can be read."""
        self.bring_blocks(np.arange(-(-self.size // self._block)))

    def bring_blocks(self, blocks: NDArray[np.int64]) -> None:
        """See to it that these blocks can be read; those that are missing come in parallel."""
        missing = np.unique(blocks[self._known[blocks] == 0])
        if len(missing):
            from nanoset_core.storage.s3 import in_parallel

            in_parallel(self._fetch, _runs(missing), threads=16)

    def _fetch(self, run: tuple[int, int]) -> None:
        begin, end = run[0] * self._block, min(run[1] * self._block, self.size)
        data = memoryview(self._bucket.read_range(self._name, begin, end, self._etag))
        while data:
            written = os.pwrite(self._file, data, begin)
            data, begin = data[written:], begin + written
        self._known[run[0] : run[1]] = 1  # last: who sees the mark sees the bytes


def _runs(blocks: NDArray[np.int64]) -> Iterable[tuple[int, int]]:
    """(first, end excl) of runs of neighbouring blocks, none longer than MOST_BLOCKS."""
    for run in np.split(blocks, np.flatnonzero(np.diff(blocks) > 1) + 1):
        for begin in range(0, len(run), MOST_BLOCKS):
            part = run[begin : begin + MOST_BLOCKS]
            yield int(part[0]), int(part[-1]) + 1


def open_blocks(path: Path) -> BlockFile | None:
    """A token file that lives in a bucket and is not here; None for one that is, or is only local."""
    mirror = mirror_of(path)
    return None if mirror is None or path.is_file() else BlockFile(mirror, path)
