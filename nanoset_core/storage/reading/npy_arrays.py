"""Arrays of `.npy` files as views of their bytes, which may come from a stranger."""

from __future__ import annotations

import math
import mmap
from functools import lru_cache
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

_MAX_HEADER_BYTES = 10_000
"""Bytes of a header that are read at most. Those of plain numbers have about a hundred."""
_NUMBER_KINDS = "biuf"
"""`dtype.kind` of booleans, signed and unsigned integers, and floats."""


class _Layout(NamedTuple):
    """What the header of a `.npy` file says about its array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def npy_array(data: bytes | mmap.mmap) -> NDArray[Any]:
    """Return the array in the bytes of a `.npy` file, as a read-only view of them.

    A `.npy` file is NumPy's format for one array: a header that says the shape and type, such as
    (3,) and int32, and then the numbers, here 12 bytes. The file may come from a stranger, so its
    length is compared with the header. The numbers are not copied, so a header that claims a wrong
    size costs no memory.

    Args:
        data: The bytes of the whole file.

    Raises:
        ValueError: The array is not one of integers, floats or booleans in C order, or the file is
            longer or shorter than its header says. The message says which.
    """
    numbers_begin = _begin_of_numbers(data)
    # In a damaged file, the header may seem to be very long. Do not read that much.
    header = bytes(data[: min(numbers_begin, _MAX_HEADER_BYTES)])
    layout = _layout(header)  # the shape (3,) and the type int32

    n_numbers = math.prod(layout.shape)  # 3
    expected_bytes = n_numbers * layout.dtype.itemsize  # 3 * 4 = 12
    found_bytes = len(data) - numbers_begin
    if found_bytes != expected_bytes:
        raise ValueError(f"{found_bytes:,} bytes of numbers instead of {expected_bytes:,}")

    # NumPy refuses an offset at the end of the bytes, even for an empty array.
    offset = numbers_begin if expected_bytes else 0
    return np.frombuffer(data, layout.dtype, n_numbers, offset).reshape(layout.shape)


def _begin_of_numbers(data: bytes | mmap.mmap) -> int:
    r"""Return the position of the byte after the header of a `.npy` file.

    The file begins with:

        bytes      0 to 5       6, 7       8, 9 (version 1), or 8 to 11    from there on
        content    "\x93NUMPY"  version    length of the header            header, numbers
    """
    is_version_1 = data[6:7] == b"\x01"
    header_begin = 10 if is_version_1 else 12
    return header_begin + int.from_bytes(data[8:header_begin], "little")


@lru_cache(maxsize=64)
def _layout(head: bytes) -> _Layout:
    """Parse the header of a `.npy` file, which says the shape and type of its array.

    For example, `{'descr': '<i4', 'fortran_order': False, 'shape': (3,)}` is the header of three
    integers of 32 bits. The result is cached, since many files have the same header.

    Args:
        head: First bytes of the file, up to the end of the header.

    Raises:
        ValueError: The header is not valid, or not that of integers, floats or booleans in C order.
    """
    file = BytesIO(head)
    try:
        if npy_format.read_magic(file) == (1, 0):
            shape, is_fortran_order, dtype = npy_format.read_array_header_1_0(file)
        else:
            shape, is_fortran_order, dtype = npy_format.read_array_header_2_0(file)
    except Exception as error:
        # NumPy evaluates the header as a Python expression, which may raise anything.
        raise ValueError(f"no header of plain numbers: {head[:80]!r}") from error

    has_negative_length = min(shape, default=0) < 0
    if dtype.kind not in _NUMBER_KINDS or has_negative_length:
        raise ValueError(f"no header of plain numbers: {head[:80]!r}")
    # For one dimension, both orders are the same.
    if is_fortran_order and len(shape) > 1:
        raise ValueError("numbers in Fortran's order")
    return _Layout(shape, dtype)
