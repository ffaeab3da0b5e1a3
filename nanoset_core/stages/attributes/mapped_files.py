"""Arrays in files that are mapped into memory, so that they may be larger than the memory.

The processes of a machine share them: what one process writes, the others see.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK_ROWS = 1 << 16
"""Rows that are processed together."""


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
        return np.empty(0, dtype)
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
