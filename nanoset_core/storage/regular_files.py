"""Open files that other programs delivered, without waiting for a named pipe or a device.

A *regular* file is one with bytes on a disk. To open a named pipe would block until another program
writes to it, which may never happen.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from nanoset_core.errors import FormatError, InputError, MissingError

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}
"""Kind of a file, as in `st_mode` → its name in messages."""


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading its bytes, without waiting if it is a named pipe.

        a file, or a link to one     is opened
        a folder                     IsADirectoryError, from Python
        a named pipe or a device     FormatError: a program that reads it could wait for ever

    Args:
        path: Path of the file, which may be a link.

    Returns:
        The open file, which the caller closes.

    Raises:
        OSError: The file cannot be opened; IsADirectoryError if it is a folder.
        FormatError: It is a named pipe or a device. Nothing was read from it.
    """
    file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115 - the caller closes it
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


def check_no_pipe(path: Path) -> None:
    """Check that a user has not named a pipe or a device as an input: `--input <(zcat a.gz)`.

    Args:
        path: The path, which may be missing.

    Raises:
        InputError: It is a pipe or a device.
    """
    if _is_pipe_or_device(path):
        raise InputError(
            "this is no file on a disk",
            where=path,
            found=_kind_of(path),
            expected="a file, since inputs may be read several times",
            remedy="write the output of the other program to a file, and name this file",
        )


def check_replaceable(path: Path) -> None:
    """Check that a user has not named a pipe or a device as an output: `--ids /dev/stdout`.

    Outputs are written under another name and renamed, which would put a file in its place. For
    root, that would also replace files such as /dev/stdout, which all programs use.

    Args:
        path: The path, which may be missing.

    Raises:
        InputError: It is a pipe or a device.
    """
    if _is_pipe_or_device(path):
        raise InputError(
            "this is no file on a disk",
            where=path,
            found=_kind_of(path),
            expected="a file, which is replaced once the new one is complete",
            remedy="write to a file, and let the other program read it",
        )


def _is_pipe_or_device(path: Path) -> bool:
    """Return whether a path, or what it links to, exists and is neither a file nor a folder."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _kind_of(path: Path) -> str:
    """Return what a path is, or what it links to, such as "a named pipe"."""
    return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "another kind of file")


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a regular file, without waiting if it is a named pipe.

    Args:
        path: Path of the file.

    Raises:
        OSError: The file cannot be opened; IsADirectoryError if it is a folder.
        FormatError: It is a named pipe or a device. Nothing was read from it.
    """
    with open_regular(path) as file:
        return file.read()


def map_regular(path: str | os.PathLike[str]) -> mmap.mmap | bytes:
    """Return a read-only memory map of a regular file, which reads bytes only when they are used.

    Args:
        path: Path of the file, which may be a link. A named pipe or a device is refused, since it
            has no bytes that could be mapped.

    Returns:
        The map; b"" for an empty file, which cannot be mapped.

    Raises:
        OSError: The file cannot be opened; IsADirectoryError if it is a folder.
        FormatError: It is a named pipe or a device.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


@contextmanager
def required(path: object, expected: str, remedy: str) -> Iterator[None]:
    """Let a block of code raise a helpful error if the file that it opens does not exist.

        with required(path, "a .pbin file", "write it first, or correct the path"):
            file = open(path)

    raises "no such file", with what was expected and what the user can do.

    Args:
        path: The file, for the message.
        expected: What the file should be.
        remedy: What the user can do.

    Raises:
        MissingError: The file does not exist, or is a folder.
    """
    try:
        yield
    except IsADirectoryError as error:
        raise MissingError(
            "this is a folder", where=path, expected=expected, remedy="name a file in it"
        ) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingError("no such file", where=path, expected=expected, remedy=remedy) from error


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file and return its descriptor, as the `opener` of Python's `open`.

    O_NONBLOCK has no effect on a regular file. Without it, opening a pipe would wait for a writer.
    """
    return os.open(path, flags | os.O_NONBLOCK)
