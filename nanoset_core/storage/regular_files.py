"""Reading files that other programs delivered: a named pipe or device among them must not block the
reader.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
from functools import lru_cache
from io import BufferedReader, BytesIO
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from nanoset_core.errors import FormatError

_LONGEST_HEADER = 10_000
"""Bytes of a `.npy` file before its numbers."""
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading.

    Raises:
        OSError: as `open`; IsADirectoryError too.
        FormatError: it is a named pipe or a device, of which nothing was read.
    """
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - the caller closes it
    mode = os.fstat(file.fileno()).st_mode
    if stat.S_ISREG(mode):
        return file
    file.close()
    raise FormatError(
        "this is not a regular file",
        where=path,
        found=_KINDS.get(stat.S_IFMT(mode), "another kind of file"),
        expected="a file of bytes, or a link to one",
        remedy="remove it, or put the file there that it stands for",
    )


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Read a regular file; raises as `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def map_regular(path: str | os.PathLike[str]) -> mmap.mmap | bytes:
    """Map a whole regular file for reading; b"" for an empty one. Raises as `open_regular`."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _without_waiting(path: str, flags: int) -> int:
    """Open with O_NONBLOCK: without it, opening a pipe waits for a writer; a regular file does not
    mind.
    """
    return os.open(path, flags | os.O_NONBLOCK)


def array_of(data: bytes | mmap.mmap) -> NDArray[Any]:
    """Return the array of a whole `.npy` file as a read-only view of its bytes; nothing is
    allocated that it promises.

    Raises ValueError, saying what is wrong, for anything but integers, floats or booleans in C
    order, and for fewer or more bytes than the header says.
    """
    before = 10 if data[6:7] == b"\x01" else 12
    begin = before + int.from_bytes(data[8:before], "little")
    shape, dtype = _layout(bytes(data[: min(begin, _LONGEST_HEADER)]))
    if len(data) - begin != (wanted := math.prod(shape) * dtype.itemsize):
        raise ValueError(f"{len(data) - begin:,} bytes of numbers instead of {wanted:,}")
    return np.frombuffer(data, dtype, math.prod(shape), begin if wanted else 0).reshape(shape)


@lru_cache(maxsize=64)
def _layout(head: bytes) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return (shape, dtype) of what a `.npy` file begins with."""
    file = BytesIO(head)
    try:
        read = (
            npy.read_array_header_1_0
            if npy.read_magic(file) == (1, 0)
            else npy.read_array_header_2_0
        )
        shape, is_fortran, dtype = read(file)
    except Exception as error:
        raise ValueError(f"no header of plain numbers: {head[:80]!r}") from error
    if dtype.kind not in "biuf" or min(shape, default=0) < 0:
        raise ValueError(f"no header of plain numbers: {head[:80]!r}")
    if is_fortran and len(shape) > 1:
        raise ValueError("numbers in Fortran's order")
    return shape, dtype
