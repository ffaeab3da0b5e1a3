"""Save arrays one by one in files, which processes map into memory instead of reading them.

All worker processes of a machine then share one copy of the index of evaluation texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def save_arrays(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write each array to a file of its own, in NumPy's format.

    Args:
        folder: An existing folder.
        arrays: Name → array. `{"stops": …}` is written to `stops.npy`.
    """
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def load_array(folder: Path, name: str) -> NDArray[Any]:
    """Map an array that `save_arrays` wrote into memory.

    Args:
        folder: The folder of the array's file.
        name: Name of the array, such as "stops" for the file `stops.npy`.

    Returns:
        The array, read-only. Its pages are read from the file when they are used.
    """
    array: NDArray[Any] = np.load(folder / f"{name}.npy", "r", allow_pickle=False)
    return array
