"""Large files as memory maps: local files, and objects from which only the needed blocks are read.

`MappedFile` and `BlockFile` have the same methods. A reader first calls `fetch` or `fetch_span`
with the ranges that it needs, and then takes these bytes from `buffer`, for example as a NumPy
array. For a local file, fetching does nothing.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.rounding import ceil_division
from nanoset_core.storage.atomic import UNFINISHED
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.requests import in_parallel
from nanoset_core.storage.store import Store

BLOCK_BYTES = 256 << 10
"""Bytes of a block, unless the caller says otherwise."""
REQUEST_BYTES = 8 << 20
"""Missing blocks that are next to each other are read by one request, up to this size."""
_REQUESTS_AT_ONCE = 16
"""Requests for missing blocks that are sent at the same time."""
_DISK_BLOCK_BYTES = 512
"""Unit of `st_blocks`, which says how much of the disk a file takes."""


class MappedFile:
    """A local file as a memory map, all of which can be read at any time."""

    room: int | None = None
    """Bytes on the disk that `trim` leaves to fetched blocks; None: it frees nothing."""
    mark: str | None = None
    """Version of the object that was opened; None for a local file."""

    def __init__(self, buffer: mmap.mmap | bytes) -> None:
        """Wrap a memory map.

        Args:
            buffer: The map; b"" for an empty file, which cannot be mapped.
        """
        self.buffer = buffer
        """The bytes of the file, as a map."""
        self.size = len(buffer)
        """Bytes of the file."""

    @property
    def sliceable(self) -> memoryview | BlockFile:
        """An object whose slices `[start:stop]` are the bytes; it fetches them if necessary."""
        return memoryview(self.buffer)

    def fetch(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Make many ranges readable. For a local file, there is nothing to do.

        Args:
            begins: Position of the first byte of each range, shape (n,).
            ends: Position after the last byte of each range, shape (n,).
        """

    def fetch_span(self, begin: int, end: int) -> None:
        """Make the bytes from `begin` to `end`, exclusive, readable."""

    def trim(self) -> None:
        """Free the disk space of everything that was fetched, if it is more than `room`.

        Nothing may be read from the file at the same time.
        """

    def release_memory(self) -> None:
        """Release the memory of the bytes that were read. They can be read again at any time.

        They would count as memory of this process. The operating system may keep them in its cache.
        """
        if isinstance(self.buffer, mmap.mmap):  # not the bytes of an empty file
            self.buffer.madvise(mmap.MADV_DONTNEED)

    def forget(self) -> None:
        """Release all that was read: memory, and the disk space of what was downloaded.

        Nothing may be read from the file at the same time.
        """
        self.release_memory()


class BlockFile(MappedFile):
    """An object of a store as a memory map, into which blocks are read when they are fetched.

    The map is that of a sparse file on the local disk. The file has no name, so the system removes
    it when the last process that uses it ends, however it ends. Forked processes share the fetched
    blocks. All methods that fetch raise SourceChangedError if the object was replaced after it was
    opened.
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
        """Open an object of a bucket. Nothing of it is downloaded yet.

        For example, an object of 10 GB is opened with blocks of 256 KiB. A file of 10 GB is created
        on the local disk, which takes no space at first. Blocks that are read are written to it.

        Args:
            store: The store of the object.
            name: Name of the object.
            folder: The local folder for the sparse file.
            block_bytes: Size of the blocks, which are fetched as a whole.
            gap_bytes: If there are at most so many bytes between two missing blocks, both are read
                by one request, together with these bytes.
            room: Bytes on the disk that `trim` leaves to fetched blocks; None for all.

        Raises:
            FileNotFoundError: The object does not exist.
        """
        self._store = store
        self._name = name
        self._folder = folder
        self._block_bytes = block_bytes
        self._gap_blocks = gap_bytes // block_bytes
        self.room = room

        stored = store.stat(name)
        if stored is None:
            raise FileNotFoundError(store.url(name))
        self.mark = stored.mark

        self._file = _sparse_file(folder, stored.size)
        weakref.finalize(self, os.close, self._file)
        buffer: mmap.mmap | bytes = b""  # An empty file cannot be mapped.
        if stored.size:
            buffer = mmap.mmap(self._file, stored.size, prot=mmap.PROT_READ)
        super().__init__(buffer)
        self._view = memoryview(self.buffer)

        # One byte for each block, which is 1 if the block was fetched. It is in anonymous memory,
        # which forked processes share.
        n_blocks = ceil_division(stored.size, block_bytes)
        self._is_fetched_map = mmap.mmap(-1, max(1, n_blocks))
        self._is_fetched = np.frombuffer(self._is_fetched_map, np.uint8)

    @property
    def sliceable(self) -> memoryview | BlockFile:
        """This object: its slices `[start:stop]` are the bytes, which are fetched if necessary."""
        return self

    def __getitem__(self, span: slice) -> memoryview:
        """Fetch and return the bytes `[start:stop]` of the object."""
        self.fetch_span(span.start, span.stop)
        return self._view[span]

    def fetch_span(self, begin: int, end: int) -> None:
        """Download the blocks that contain the bytes [begin, end), except those on disk already.

        For example, with blocks of 100 bytes, the bytes [150, 320) are in the blocks 1, 2 and 3.
        """
        if end <= begin:
            return
        first_block = begin // self._block_bytes
        last_block = (end - 1) // self._block_bytes

        # Most spans are in one or two blocks. To look at these two is faster than calling NumPy.
        is_fetched = self._is_fetched_map  # a byte for each block, 1 if it was fetched
        n_blocks = last_block - first_block + 1
        if n_blocks <= 2 and is_fetched[first_block] and is_fetched[last_block]:
            return
        self._fetch_blocks(np.arange(first_block, last_block + 1))

    def fetch(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Read the missing blocks of many ranges, with parallel requests.

        For example, a batch of training samples is in three ranges of a file, whose blocks have 100
        bytes:

            begin             150     320     700
            end               180     510     700
            its blocks        1       3 to 5  none (the range is empty)

        Args:
            begins: Position of the first byte of each range, shape (n,).
            ends: Position after the last byte of each range, shape (n,).
        """
        is_filled = ends > begins
        if not is_filled.any():
            return
        first_blocks = begins[is_filled] // self._block_bytes
        last_blocks = (ends[is_filled] - 1) // self._block_bytes
        self._fetch_blocks(_numbers_in(first_blocks, last_blocks))

    def _fetch_blocks(self, blocks: NDArray[np.int64]) -> None:
        """Download those of the blocks that are not on the disk yet.

        For example, the blocks 1, 2, 4 and 9 are requested, and 9 was downloaded before. One
        request reads 1 and 2, and another one reads 4 at the same time.

        Args:
            blocks: Numbers of blocks, in any order and perhaps repeated, shape (n,).
        """
        missing_blocks = np.unique(blocks[self._is_fetched[blocks] == 0])
        if len(missing_blocks):
            blocks_per_request = max(1, REQUEST_BYTES // self._block_bytes)
            runs = _runs(missing_blocks, blocks_per_request, self._gap_blocks)
            in_parallel(self._read_run, runs, _REQUESTS_AT_ONCE)

    def _read_run(self, run: _BlockRun) -> None:
        """Read consecutive blocks of the object by one request, and write them to the local file.

        For example, with blocks of 100 bytes, the blocks 3 and 4 are the bytes 300 to 499.
        """
        begin = run.start * self._block_bytes
        end = min(run.stop * self._block_bytes, self.size)
        data = self._store.read_range(self._name, begin, end, self.mark)
        with explained(self._folder, expected="room for what is read of a file in a bucket"):
            _write_at(self._file, begin, data)
        # This comes last. Other processes share this array: one that sees that a block was fetched
        # must also see its bytes.
        self._is_fetched[run.start : run.stop] = 1

    def forget(self) -> None:
        """Free the disk space of all blocks that were downloaded; they have to be downloaded again.

        Nothing may be read from the file at the same time.
        """
        self._note_that_nothing_is_fetched()
        # Make the file empty, and then as long as before: what was never written takes no space.
        os.truncate(self._file, 0)
        os.truncate(self._file, self.size)

    def _note_that_nothing_is_fetched(self) -> None:
        """Set the byte of each block in `_is_fetched` to 0.

        On Linux, MADV_REMOVE does that, and gives the memory of the array back to the system.
        """
        if hasattr(mmap, "MADV_REMOVE"):
            self._is_fetched_map.madvise(mmap.MADV_REMOVE)
        else:
            self._is_fetched[:] = 0

    def trim(self) -> None:
        """Free the disk space of all blocks if they take more than `room` bytes."""
        if self.room is None:
            return
        disk_bytes = os.fstat(self._file).st_blocks * _DISK_BLOCK_BYTES
        if disk_bytes > self.room:
            self.forget()


def _write_at(file: int, position: int, data: bytes) -> None:
    """Write bytes to a position of an open file; the system may write only some of them at once."""
    rest = memoryview(data)
    while rest:
        n_written = os.pwrite(file, rest, position)
        rest = rest[n_written:]
        position += n_written


def _sparse_file(folder: Path, size: int) -> int:
    """Create a file without a name that takes no disk space until something is written to it.

    It has the size of a large object, of which only the needed parts are downloaded into it. As it
    has no name, the system deletes it when the last process that uses it ends, even if it is
    killed.

    Args:
        folder: Folder on the disk of the file, which is created if it does not exist.
        size: Bytes of the file.

    Returns:
        The descriptor of the file. The file vanishes with the last descriptor and map of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, path = tempfile.mkstemp(prefix=UNFINISHED, dir=folder)
    os.unlink(path)
    os.truncate(descriptor, size)
    return descriptor


class _BlockRun(NamedTuple):
    """Consecutive blocks that are read by one request."""

    start: int
    """Number of the first block."""
    stop: int
    """Number after that of the last block."""


def _numbers_in(firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return all numbers of several ranges, concatenated.

        first number    2        7
        last number     3        9
        result          2, 3,    7, 8, 9

    A loop over the ranges would be slow, since there may be thousands.

    Args:
        firsts: First number of each range, shape (n,).
        lasts: Last number of each range, inclusive, shape (n,).
    """
    counts = lasts - firsts + 1  # [2, 3]
    starts = np.cumsum(counts) - counts  # (n,) index of each range in the result: [0, 2]

    # Within a range, number and index grow together, so their difference stays the same.
    differences = firsts - starts  # [2, 5]
    indices = np.arange(int(counts.sum()))  # [0, 1, 2, 3, 4]
    return np.repeat(differences, counts) + indices  # [2, 2, 5, 5, 5] + indices


def _runs(blocks: NDArray[np.int64], max_blocks: int, max_gap: int) -> Iterator[_BlockRun]:
    """Divide blocks of a file into runs of consecutive blocks, each of which one request reads.

    A request takes long even if it is small. So blocks with a small gap between them are read by
    one request, together with the gap. For example, with `max_gap=1` and `max_blocks=3`:

        blocks               1, 2, 4, 5              9
        others in the gap              3 is read     6, 7 and 8 are not read
        runs                 1 to 3, 4 to 5          9

    Args:
        blocks: Numbers of the blocks, increasing, shape (n,).
        max_blocks: Blocks that one request reads at most.
        max_gap: Other blocks that may be between two blocks of a run; they are read, too.
    """
    is_far_from_next = np.diff(blocks) > max_gap + 1
    groups = np.split(blocks, np.flatnonzero(is_far_from_next) + 1)  # [1, 2, 4, 5] and [9]
    for near_blocks in groups:
        stop = int(near_blocks[-1]) + 1
        for start in range(int(near_blocks[0]), stop, max_blocks):
            yield _BlockRun(start, min(start + max_blocks, stop))
