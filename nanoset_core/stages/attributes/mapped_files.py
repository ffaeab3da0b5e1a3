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
    """Return the values of a file; changes are written to the file, and seen by other processes.

    An empty or missing file has no values: it belongs to a column without any, and the operating
    system cannot map it.

    Args:
        path: Path of the file, which contains nothing but the values.
        dtype: NumPy type of the values.

    Returns:
        Shape (size of the file / bytes of a value,).
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
