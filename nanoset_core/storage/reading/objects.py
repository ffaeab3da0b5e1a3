"""Read objects of a store as files, with requests that run ahead of the reader.

To wait for each request would leave the network idle most of the time. A file that is read in order
therefore has several requests pending for the bytes after those that are read now.
"""

from __future__ import annotations

import io
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, NamedTuple

from nanoset_core.storage.store import Store, Stored

FIRST_BYTES = 1 << 20
"""Bytes of the first request, and of one for another place than the next one in order."""
MOST_BYTES = 8 << 20
"""Bytes of each request that runs ahead of the reader."""
AHEAD = 4
"""Requests that run ahead of the reader.

They need at most 50 MiB of memory, together with the range that is read, the next one, and one that
is out of order.
"""
BUFFER_BYTES = 256 << 10
"""Bytes that a reader takes from the file at once."""


class _Range(NamedTuple):
    """A range of an object that is in memory."""

    begin: int
    """Position of the first byte in the object."""
    data: bytes
    """The bytes."""

    @property
    def end(self) -> int:
        """Position after the last byte."""
        return self.begin + len(self.data)

    def contains(self, position: int) -> bool:
        """Return whether the byte at a position is in this range."""
        return self.begin <= position < self.end

    def ends_at(self, position: int) -> bool:
        """Return whether the byte at a position follows this range, if it has any bytes."""
        return self.data != b"" and position == self.end


_NO_BYTES = _Range(0, b"")


class ObjectFile(io.RawIOBase):
    """An object of a store as a file for reading.

    It keeps two ranges of the object in memory: the one that reading in order has reached, and the
    last one that was read elsewhere. Files such as Parquet tables are read at two places in turn:
    the second range lets reading in order continue afterwards without repeating a request.

    Reading raises SourceChangedError if the object was replaced after it was opened.
    """

    def __init__(
        self,
        store: Store,
        stored: Stored,
        end: int | None = None,
        *,
        begin: int = 0,
        data: bytes = b"",
    ) -> None:
        """Open an object whose description is known.

        Args:
            store: The store of the object.
            stored: The description of the object.
            end: Position up to which the object will be read in order: no request beyond it runs
                ahead. If it is None, the order is not known.
            begin: Position of the first byte of `data`.
            data: Bytes of the object that were read already.
        """
        self.stored = stored
        """The description of the object when it was opened."""
        self._store = store
        self._is_in_order = end is not None
        self._end = stored.size if end is None else min(end, stored.size)
        self._position = 0
        self._sequential = _Range(begin, data)
        """The range that reading in order has reached."""
        self._elsewhere = _NO_BYTES
        """The range that was read last at another place."""
        self._pending: deque[Future[bytes]] = deque()
        """Requests for the ranges after `_sequential`, in order."""
        self._requested_end = begin + len(data)
        """Position after the last byte that was requested in order: the next request begins there.
        """
        self._threads = ThreadPoolExecutor(AHEAD, thread_name_prefix="read-ahead")
        if data:
            self._run_ahead(AHEAD)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position in the file, without reading anything.

        As for each file of Python, `seek(-100, io.SEEK_END)` moves to 100 bytes before the end.

        Args:
            offset: Bytes from the place that `whence` names.
            whence: `io.SEEK_SET` (the start), `io.SEEK_CUR` (the position) or `io.SEEK_END` (the
                end).

        Returns:
            The new position from the start of the object. It is not negative.
        """
        origin = 0
        if whence == io.SEEK_CUR:
            origin = self._position
        elif whence == io.SEEK_END:
            origin = self.stored.size
        self._position = max(0, origin + offset)
        return self._position

    def readinto(self, target: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read the bytes at the position into a buffer, and move behind them.

        For example, the position is 150, and the bytes [100, 200) of the object are in memory. A
        buffer of 80 bytes gets the 50 bytes [150, 200), and the next call continues at 200.

        Args:
            target: The buffer. It is filled up to the end of the range that is in memory, or that
                is requested now, so a call may return less than the whole buffer.

        Returns:
            The number of bytes that were read; 0 at the end of the object.

        Raises:
            SourceChangedError: The object was replaced after it was opened.
        """
        if self._position >= self.stored.size or not len(target):
            return 0
        available = self._range_at_position()
        offset = self._position - available.begin
        n_bytes = min(len(target), len(available.data) - offset)
        target[:n_bytes] = memoryview(available.data)[offset : offset + n_bytes]
        self._position += n_bytes
        return n_bytes

    def close(self) -> None:
        """Close the file, and cancel the requests that run ahead."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        # Free the memory even if somebody still refers to the closed file.
        self._sequential = _NO_BYTES
        self._elsewhere = _NO_BYTES
        super().close()

    def _range_at_position(self) -> _Range:
        """Return the bytes around the current position; request them if they are not in memory.

        Programs read files in two ways, often mixed: on and on from some place (a .jsonl file), or
        here and there (the index of an archive). So two ranges of the file are kept in memory:

            _sequential    the range that reading in order has reached; the next are requested ahead
            _elsewhere     the last range that was read at another place

        What happens depends on the position:

            it is in one of the two ranges          return that range, without a request
            _sequential ends there                  continue in order; the bytes were requested
                                                    ahead
            _elsewhere ends there                   begin to read in order there
            it is at any other place                the same if the whole file is read in order
            ... and the order is not known          read some bytes there, as the new _elsewhere

        In the last case, `_sequential` and the requests ahead are kept, since the reader may come
        back to them.
        """
        for in_memory in (self._sequential, self._elsewhere):
            if in_memory.contains(self._position):
                return in_memory

        if self._sequential.ends_at(self._position):
            self._sequential = self._next_in_order()
            return self._sequential
        if self._is_in_order or self._elsewhere.ends_at(self._position):
            self._forget_requests_ahead()
            self._sequential = self._next_in_order()
            return self._sequential
        self._elsewhere = self._read_elsewhere()
        return self._elsewhere

    def _forget_requests_ahead(self) -> None:
        """Let the next requests begin at the position, instead of after those sent so far."""
        self._pending.clear()
        self._requested_end = self._position

    def _next_in_order(self) -> _Range:
        """Return the range of bytes at the position, and request the ranges after it ahead.

        Requests to a bucket take long. While the reader works on one range, the next ones are
        already on their way. `_pending` has these requests, the oldest first. For example, with
        ranges of 100 bytes, of which two are requested ahead:

            position    returned      pending afterwards
            0           [0, 100)      [100, 200), [200, 300)
            100         [100, 200)    [200, 300), [300, 400)
        """
        self._run_ahead(1 + AHEAD)  # until this range, and AHEAD ranges after it, are requested
        if not self._pending:
            # The caller has announced an end when it opened the file, and reads on after it.
            # Nothing is requested ahead there, so read some bytes now.
            return _Range(self._position, self._read(self._position, FIRST_BYTES))
        request = self._pending.popleft()
        return _Range(self._position, request.result())

    def _read_elsewhere(self) -> _Range:
        """Read a range at a position that is out of order, such as the index of an archive.

        If the bytes from 500 on are in memory, and the position is 420, it is enough to read [420,
        500).
        """
        # If a short gap separates it from the range in memory, end where that range begins.
        gap_bytes = self._sequential.begin - self._position
        size = FIRST_BYTES
        if self._sequential.data and 0 < gap_bytes < 2 * FIRST_BYTES:
            size = gap_bytes
        return _Range(self._position, self._read(self._position, size))

    def _run_ahead(self, n_requests: int) -> None:
        """Start requests for the next ranges of the object until a number of them is pending.

        The reader has not asked for these bytes yet, but will probably do so soon.
        """
        while len(self._pending) < n_requests and self._requested_end < self._end:
            size = min(MOST_BYTES, self._end - self._requested_end)
            self._pending.append(self._threads.submit(self._read, self._requested_end, size))
            self._requested_end += size

    def _read(self, begin: int, size: int) -> bytes:
        """Request a range of the object, which ends at the end of the object at the latest."""
        end = min(begin + size, self.stored.size)
        return self._store.read_range(self.stored.name, begin, end, self.stored.mark)


def open_object(store: Store, name: str, *, begin: int = 0, end: int | None = None) -> BinaryIO:
    """Open an object of a bucket for reading, as a file that downloads only what is read of it.

    Args:
        store: The store of the object.
        name: Name of the object.
        begin: Position at which reading in order will begin.
        end: Position up to which the object will be read in order. Then its first bytes are
            requested at once, and further bytes ahead. None if the order is not known.

    Raises:
        FileNotFoundError: The object does not exist.
    """
    if end is not None and begin < end:
        # A single request gets the first bytes and the description of the object.
        first_stop = min(begin + FIRST_BYTES, end)
        first_bytes_and_stored = store.open_range(name, begin, first_stop)
    else:
        stored = store.stat(name)
        first_bytes_and_stored = None if stored is None else (b"", stored)

    if first_bytes_and_stored is None:
        raise FileNotFoundError(store.url(name))
    first_bytes, stored = first_bytes_and_stored
    file = ObjectFile(store, stored, end, begin=begin, data=first_bytes)
    return io.BufferedReader(file, BUFFER_BYTES)
