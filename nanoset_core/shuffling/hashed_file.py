"""A file that is hashed, by a thread of its own, while it is written, and becomes visible only when it is whole."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np

from nanoset_core.storage.atomic import atomic_file


class HashedFile:
    """A binary file under construction: its size and sha256 so far."""

    __slots__ = ("_file", "_hasher", "_hashing", "_sha256", "size_bytes")

    def __init__(self, file: BinaryIO, hasher: ThreadPoolExecutor) -> None:
        self._file = file
        self._hasher = hasher
        self._hashing: Future[None] | None = None
        self._sha256 = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes | np.ndarray) -> Future[None]:
        """Append bytes, or an array that is contiguous; it must stay as it is until the future is done (hashed)."""
        view = memoryview(data).cast("B") if isinstance(data, bytes) else data.reshape(-1).view(np.uint8).data
        self._hashing = self._hasher.submit(self._sha256.update, view)
        self._file.write(view)
        self.size_bytes += view.nbytes
        return self._hashing

    @property
    def sha256(self) -> str:
        """Hex digest of what was written."""
        if self._hashing is not None:
            self._hashing.result()
        return self._sha256.hexdigest()


@contextlib.contextmanager
def hashed_file(path: Path, *, sync: bool = True) -> Iterator[HashedFile]:
    """Write ``path`` under a temporary name beside it; flush, fsync and rename when the block ends well.

    ``sync=False`` leaves it to the caller to call `fsync_folder`, once for several files.
    When the block fails, nothing is left behind. Two writers of one path don't disturb each other: the last one stays.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="sha256") as hasher, atomic_file(path, sync=sync) as file:
        yield HashedFile(file, hasher)
