"""The values of a column by which documents are ranked, in scratch files.

A column of billions of numbers does not fit into memory, and floats are awkward to rank. So each
value is stored as a *key*: an unsigned integer in the same order, from which the value can be
computed again (see `statistics.ranks`). A second file says which documents cannot be ranked, since
they have no value or NaN: their *faults*. For example:

    values     0.5    null    2.0    NaN
    faults     0      NULL    0      NAN
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.scratch_arrays import ScratchArray
from nanoset_core.statistics.ranks import order_keys

NULL = 1
"""Fault of a document that has no value."""
NAN = 2
"""Fault of a document whose value is NaN."""


class RankedColumn:
    """The values of a column of numbers, for more documents than memory can hold.

    First append them, then read them back as memory-mapped arrays.
    """

    def __init__(self, path: Path) -> None:
        """Describe the files, which are created when values are appended.

        Args:
            path: The beginning of the paths of the files.
        """
        self.dtype: type[np.int64 | np.float64] = np.int64
        """Type of the values that were appended."""
        self._keys = ScratchArray(Path(f"{path}-keys"), np.uint64)
        self._faults = ScratchArray(Path(f"{path}-faults"), np.uint8)

    def append(self, array: Any) -> None:
        """Append the values that some more documents have in the column.

        They are stored in two files. Keys are unsigned integers in the order of the values, by
        which documents are ranked. Faults say which documents cannot be ranked:

            value     0.5     null    2.0     NaN
            key       17…     …       92…     …          of null and NaN, some integer
            fault     0       NULL    0       NAN        0: the document can be ranked

        Args:
            array: An Arrow array of integers, of floats, or of nulls only. All arrays that are
                appended have the same type.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        self.dtype = np.float64 if pa.types.is_floating(array.type) else np.int64
        numbers = array.cast(pa.from_numpy_dtype(self.dtype))
        values = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)  # [0.5, 0.0, 2.0, NaN]
        self._keys.append(order_keys(values))
        self._faults.append(_faults_of(array, values))

    def keys(self) -> NDArray[np.uint64]:
        """Return an integer for each document, in the order of the documents' values.

        Returns:
            uint64, shape (n_documents,): a smaller value has a smaller integer. Those of documents
            without a value have no meaning.
        """
        return self._keys.mapped()

    def faults(self) -> NDArray[np.uint8]:
        """Return which documents cannot be ranked, and why.

        Returns:
            uint8, shape (n_documents,): 0 for a document with a value, NULL for one without, and
            NAN for one whose value is NaN.
        """
        return self._faults.mapped()


def _faults_of(array: Any, values: NDArray[np.int64 | np.float64]) -> NDArray[np.uint8]:
    """Return which of some values cannot be ranked: those that are missing, and NaN.

    Args:
        array: The values as an Arrow array, in which missing ones are null.
        values: The same values, with any number in place of missing ones, shape (n_documents,).

    Returns:
        uint8, shape (n_documents,): NULL, NAN, or 0 for a value that can be ranked.
    """
    faults = np.zeros(len(values), np.uint8)
    if array.null_count > 0:
        is_null = array.is_null().to_numpy(zero_copy_only=False)
        faults[is_null] = NULL
    if values.dtype == np.float64:
        faults[np.isnan(values)] = NAN
    return faults
