"""Arrays that are too large for memory: they are appended to a file, and then mapped from it.

hashes = ScratchArray(path, np.uint64)
hashes.append(some_hashes)
hashes.append(more_hashes)
all_hashes = hashes.mapped()
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BUFFER_BYTES = 1 << 18
"""Bytes that are collected in memory before they are written to the file."""


class ScratchArray:
    """An array of one type in a scratch file. First append to it, then read it with `mapped`."""

    def __init__(self, path: Path, dtype: Any) -> None:
        """Describe an array; the file is created by the first write.

        Args:
            path: A file that does not exist yet.
            dtype: The numpy type of the values.
        """
        self._path = path
        self._dtype = np.dtype(dtype)
        self._buffer = bytearray()
        self.size = 0
        """Number of values."""

    def append(self, values: NDArray[Any]) -> None:
        """Append values. They are written to the file once there are enough of them.

        Args:
            values: Shape (n_values,). They are converted to the type of the array.
        """
        self.size += len(values)
        self._buffer += np.ascontiguousarray(values, self._dtype).tobytes()
        if len(self._buffer) > _BUFFER_BYTES:
            self._flush()

    def mapped(self) -> NDArray[Any]:
        """Return all values that were appended, mapped from the file.

        Returns:
            Shape (size,). A change of it changes the file.
        """
        self._flush()
        if self.size == 0:
            return np.empty(0, self._dtype)  # an empty file cannot be mapped
        return np.memmap(self._path, self._dtype, "r+")

    def _flush(self) -> None:
        """Write what has been collected in memory."""
        # The file is opened for each write, since hundreds of views would otherwise exceed the
        # limit of open files.
        with self._path.open("ab") as file:
            file.write(self._buffer)
        self._buffer.clear()
