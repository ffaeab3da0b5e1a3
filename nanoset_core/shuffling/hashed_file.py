"""A file that is hashed while it is written and becomes visible only when it is whole."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from nanoset_core.storage import atomic_file


class HashedFile:
    """A binary file under construction: its size, sha256 and md5 so far."""

    __slots__ = ("_file", "_md5", "_sha256", "size_bytes")

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self._md5 = hashlib.md5(usedforsecurity=False)
        self.size_bytes = 0

    def write(self, data: bytes | np.ndarray) -> None:
        """Append bytes, or an array that is contiguous."""
        with memoryview(data) as view:
            self._file.write(view)
            self._sha256.update(view)
            self._md5.update(view)
            self.size_bytes += view.nbytes

    @property
    def sha256(self) -> str:
        """Hex digest of what was written."""
        return self._sha256.hexdigest()

    @property
    def md5(self) -> str:
        """Hex digest of what was written, for wids."""
        return self._md5.hexdigest()


@contextlib.contextmanager
def hashed_file(path: Path) -> Iterator[HashedFile]:
    """Write ``path`` under a temporary name beside it; flush, fsync and rename when the block ends well.

    When the block fails, nothing is left behind. Two writers of one path don't disturb each other: the last one stays.
    """
    with atomic_file(path) as file:
        yield HashedFile(file)
