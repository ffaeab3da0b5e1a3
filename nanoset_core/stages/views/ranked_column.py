"""A column of numbers as sortable keys in scratch files, since it may not fit into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.sampling.ranks import order_keys
from nanoset_core.stages.views.scratch import ScratchArray

NULL = 1
"""Fault of a document that has no value."""
NAN = 2
"""Fault of a document whose value is NaN."""


class RankedColumn:
    """The values of a column of numbers for many documents, in scratch files."""

    def __init__(self, path: Path) -> None:
        """Describe the files, which are created when values are appended.

        Args:
            path: The beginning of the paths of the files.
        """
        self.dtype: type[np.int64 | np.float64] = np.int64
        """Type of the values, of those that were appended."""
        self._keys = ScratchArray(Path(f"{path}-keys"), np.uint64)
        self._faults = ScratchArray(Path(f"{path}-faults"), np.uint8)

    def append(self, array: Any) -> None:
        """Append the values of the next documents.

        Args:
            array: An Arrow array of integers, of floats, or of nulls only. All arrays of a column
                have the same type.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        self.dtype = np.float64 if pa.types.is_floating(array.type) else np.int64
        filled = pc.fill_null(array.cast(pa.from_numpy_dtype(self.dtype)), 0)
        values = filled.to_numpy(zero_copy_only=False)
        faults = np.zeros(len(values), np.uint8)
        if array.null_count:
            faults[array.is_null().to_numpy(zero_copy_only=False)] = NULL
        if self.dtype is np.float64:
            faults[np.isnan(values)] = NAN
        self._keys.append(order_keys(values))
        self._faults.append(faults)

    def keys(self) -> NDArray[np.uint64]:
        """Return the key of each document's value as `order_keys` does, shape (n_documents,).

        The keys of documents without a value have no meaning.
        """
        return self._keys.mapped()

    def faults(self) -> NDArray[np.uint8]:
        """Return 0 for each document with a value, NULL, or NAN, shape (n_documents,)."""
        return self._faults.mapped()
