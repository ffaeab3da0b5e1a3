"""Raw text in a store, read like files: by ranges of one version of an object, with read-ahead."""

from __future__ import annotations

import io
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

from nanoset_core.storage.store import Store, Stored

FIRST_BYTES = 1 << 20
"""Read where reading begins; twice as many each time that it goes on from there."""
MOST_BYTES = 8 << 20
AHEAD = 4
"""Ranges that are read ahead: with the one at hand and the last, 48 MiB of memory at most."""
BUFFER_BYTES = 256 << 10


class ObjectFile(io.RawIOBase):
    """The bytes of an object as it was when it was opened; SourceChangedError once it is replaced."""

    def __init__(
        self, store: Store, facts: Stored, end: int | None = None, *, begin: int = 0, data: bytes = b""
    ) -> None:
        """Args:
        store: holds the object.
        facts: what it says of the object.
        end: the file is read in order up to this byte, and nothing beyond it is read ahead; absent = it is read at
            random, or up to the object's end.
        begin: first byte of `data`.
        data: what was read already.
        """
        self.facts, self._store, self._in_order = facts, store, end is not None
        self._end = facts.size if end is None else min(end, facts.size)
        self._position, self._begin, self._data = 0, begin, data
        self._length = FIRST_BYTES
        self._ahead: deque[tuple[int, Future[bytes]]] = deque()
        """(first byte, bytes) of the ranges after the current one, in order."""
        self._threads: ThreadPoolExecutor | None = None
        if data:
            self._look_ahead(begin + len(data))

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
        if not self._begin <= self._position < self._begin + len(self._data):
            self._turn()
        at = self._position - self._begin
        count = min(len(target), len(self._data) - at)
        target[:count] = memoryview(self._data)[at : at + count]
        self._position += count
        return count

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._data = b""
        super().close()

    def _turn(self) -> None:
        """Read the range that begins at the position."""
        goes_on = self._data != b"" and self._position == self._begin + len(self._data)
        if goes_on:
            self._length = min(2 * self._length, MOST_BYTES)
        else:
            self._length = MOST_BYTES if self._in_order else FIRST_BYTES
            self._ahead.clear()
        bound = self._end if self._position < self._end else self.facts.size
        found, length = None, min(self._length, bound - self._position)
        if self._ahead:
            found, length = self._ahead.popleft()[1], MOST_BYTES
        try:
            if goes_on or self._in_order:
                self._look_ahead(self._position + length)
            data = self._fetch(self._position, length) if found is None else found.result()
        except BaseException:
            self._ahead.clear()
            raise
        self._begin, self._data = self._position, data

    def _look_ahead(self, begin: int) -> None:
        """Start to read the ranges from a byte on."""
        if self._threads is None and begin < self._end:
            self._threads = ThreadPoolExecutor(AHEAD, thread_name_prefix="read-ahead")
        if self._ahead:
            begin = self._ahead[-1][0] + MOST_BYTES
        while self._threads is not None and len(self._ahead) < AHEAD and begin < self._end:
            length = min(MOST_BYTES, self._end - begin)
            self._ahead.append((begin, self._threads.submit(self._fetch, begin, length)))
            begin += MOST_BYTES

    def _fetch(self, begin: int, length: int) -> bytes:
        facts = self.facts
        return self._store.read_range(facts.name, begin, min(begin + length, facts.size), facts.mark)


class BufferedObject(io.BufferedReader):
    """An object's file, read by lines, blocks or bytes."""

    raw: ObjectFile

    @property
    def facts(self) -> Stored:
        """Return what the store said of the object when it was opened."""
        return self.raw.facts


def open_object(store: Store, name: str, *, begin: int = 0, end: int | None = None) -> BinaryIO:
    """Open an object for reading.

    Args:
        store: holds it.
        name: of the object.
        begin: of what will be read first, where `end` is given.
        end: of what will be read in order: the first range is read at once, and nothing beyond `end` ahead; absent =
            the order is not known.

    Raises:
        FileNotFoundError: there is none.
        StorageError: the store cannot be reached, or refuses.
    """
    if end is None or begin >= end:
        facts, data = store.stat(name), b""
    else:
        data, facts = store.open_range(name, begin, min(begin + FIRST_BYTES, end)) or (b"", None)
    if facts is None:
        raise FileNotFoundError(store.url(name))
    return BufferedObject(ObjectFile(store, facts, end, begin=begin, data=data), BUFFER_BYTES)
