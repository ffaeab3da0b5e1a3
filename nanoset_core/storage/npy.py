"""Arrays in numpy's `.npy` format, read from untrusted bytes.

`numpy.load` parses a file's header as Python, and allocates what it promises before it looks whether the bytes are
there. Here the header must be one of plain numbers, and the file as long as it says.
"""

from __future__ import annotations

import math
import mmap
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000
_KEY = r"""(?:['"]descr['"]: *['"](?P<dtype>[<>|=][biuf][0-9]{1,2})['"]"""
_KEY += r"""|['"]fortran_order['"]: *(?P<fortran>True|False)|['"]shape['"]: *\((?P<shape>[0-9, ]{0,200})\))"""
_HEADER = re.compile(rf"\{{ *(?:{_KEY} *,? *){{3}}\}}\s*")


def array_of(data: bytes | mmap.mmap) -> NDArray[Any]:
    """Return the array of a whole `.npy` file as a read-only view of its bytes.

    Layout: numpy's `numpy/lib/format.py`, versions 1.0 to 3.0. Raises ValueError, saying what is wrong, for anything
    but integers, floats or booleans in C order, and for fewer or more bytes than the header says.
    """
    begin, dtype, shape = _header(data)
    wanted = math.prod(shape) * dtype.itemsize
    if len(data) - begin != wanted:
        raise ValueError(f"{len(data) - begin:,} bytes of numbers instead of {wanted:,}")
    return np.frombuffer(data, dtype, math.prod(shape), begin if wanted else 0).reshape(shape)


def _header(data: bytes | mmap.mmap) -> tuple[int, np.dtype[Any], tuple[int, ...]]:
    """(offset of the first number, dtype, shape)"""
    start = bytes(data[:12])
    if len(start) < 12 or start[:6] != _MAGIC or start[6] not in (1, 2, 3):
        raise ValueError(f"no .npy file: it begins with {start[:8]!r}")
    before = 10 if start[6] == 1 else 12
    size = int.from_bytes(start[8:before], "little")
    text = bytes(data[before : before + min(size, _LONGEST_HEADER)])
    found = _HEADER.fullmatch(text.decode("latin1")) if len(text) == size else None
    if found is None or None in found.groups():
        raise ValueError(f"no header of plain numbers: {text[:80]!r}")
    shape = tuple(int(number) for number in found["shape"].replace(" ", "").split(",") if number)
    if found["fortran"] == "True" and len(shape) > 1:
        raise ValueError("numbers in Fortran's order")
    try:
        return before + size, np.dtype(found["dtype"]), shape
    except TypeError as error:
        raise ValueError(str(error)) from error
