"""Make Arrow arrays without pyarrow.array.

That function imports pandas if it is installed, which takes longer than making a small shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def number_array(values: Sequence[int] | NDArray[np.integer[Any]], kind: str) -> Any:
    """Convert numbers to an Arrow array, the form in which tables are written to Parquet files.

    `pa.array` would copy them. This function shares the memory of a NumPy array that has the
    requested type already.

        number_array([3, 5], "int32")    → pa.array([3, 5], pa.int32())

    Args:
        values: The numbers, shape (n,); none is missing.
        kind: Name of the type in numpy and Arrow, such as "int32".

    Returns:
        A pyarrow.Array.
    """
    import pyarrow as pa

    data = np.ascontiguousarray(values, kind)
    # An array of Arrow has two buffers. The first one says which values are missing: None, since
    # none is.
    buffers = [None, pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.type_for_alias(kind), len(data), buffers)


def text_array(values: Sequence[str | None]) -> Any:
    """Convert texts to an Arrow array, the form in which tables are written to Parquet files.

        text_array(["a.jsonl", None])    → pa.array(["a.jsonl", null], pa.string())

    Args:
        values: The texts; None becomes a null.

    Returns:
        A pyarrow.Array.
    """
    import pyarrow as pa

    builder = pa.lib.StringBuilder()
    builder.append_values(values)
    return builder.finish()
