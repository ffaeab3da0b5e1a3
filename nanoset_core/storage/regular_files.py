"""Opening files that others delivered: a pipe or device among them must not hold the reader up for ever."""

from __future__ import annotations

import mmap
import os
import stat
from io import BufferedReader

from nanoset_core.errors import FormatError


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file for reading, as `open` does, but for regular files alone.

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
    """The bytes of a file; raises as `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def map_regular(path: str | os.PathLike[str]) -> mmap.mmap | bytes:
    """A whole file as a read-only memory map; an empty file gives b"". Raises as `open_regular`."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def _without_waiting(path: str, flags: int) -> int:
    """Without O_NONBLOCK, opening a pipe waits for a writer; for a regular file it changes nothing."""
    return os.open(path, flags | os.O_NONBLOCK)
