"""Make Arrow arrays without pyarrow.array.

That function imports pandas if it is installed, which takes longer than making a small shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def number_array(values: Sequence[int] | NDArray[np.integer[Any]], kind: str) -> Any:
    """Return numbers as an Arrow array of a type such as "int32"."""
    import pyarrow as pa

    data = np.ascontiguousarray(values, kind)
    return pa.Array.from_buffers(pa.type_for_alias(kind), len(data), [None, pa.py_buffer(data)])


def text_array(values: Sequence[str | None]) -> Any:
    """Return texts as an Arrow array of strings."""
    import pyarrow as pa

    builder = pa.lib.StringBuilder()
    builder.append_values(values)
    return builder.finish()
