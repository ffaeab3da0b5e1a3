"""Opening files that other programs delivered: a named pipe or device among them must not block the reader."""

from __future__ import annotations

import mmap
import os
import stat
from io import BufferedReader

from nanoset_core.errors import FormatError

_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a character device", stat.S_IFBLK: "a block device"}


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
    """Open with O_NONBLOCK: without it, opening a pipe waits for a writer; a regular file does not mind."""
    return os.open(path, flags | os.O_NONBLOCK)
