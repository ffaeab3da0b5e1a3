"""Arrays in files that are mapped into memory, so that they may be larger than the memory.

The files contain nothing but the values. The processes of a machine share them: what one process
writes to an array, the others see. An array of unknown length is appended to a file, and then
mapped:

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


def map_array(path: Path, dtype: Any) -> NDArray[Any]:
    """Open a file of numbers as an array, without reading it into memory.

    The operating system reads a part of the file when it is used. Changes of the array are written
    to the file, so that other processes see them. With 16 bytes in the file:

        map_array(path, np.int64)     → an array of shape (2,)
        map_array(path, np.uint8)     → an array of shape (16,)

    Args:
        path: Path of the file, which contains nothing but the values. It may be empty or missing if
            there are none.
        dtype: NumPy type of the values.
    """
    if not path.exists() or not path.stat().st_size:
        return np.empty(0, dtype)  # an empty file cannot be mapped
    return np.asarray(np.memmap(path, dtype, "r+"))


def create_array(path: Path, dtype: Any, length: int) -> NDArray[Any]:
    """Create a file of zeros, and map it into memory, so that changes are written to the file.

    For 3 numbers of type int64, the file has 24 bytes. Without numbers, no file is created.

    Args:
        path: Path of the file, which is replaced if it exists.
        dtype: NumPy type of the values.
        length: Number of values.

    Returns:
        Shape (length,).
    """
    if length == 0:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, "w+", shape=(length,)))


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
        return map_array(self._path, self._dtype)

    def _flush(self) -> None:
        """Write what has been collected in memory."""
        # The file is opened for each write, since hundreds of views would otherwise exceed the
        # limit of open files.
        with self._path.open("ab") as file:
            file.write(self._buffer)
        self._buffer.clear()
