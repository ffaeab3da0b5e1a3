"""Whole files or none: write under a temporary name in the same folder, then rename."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_numbers = itertools.count()


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_temporary(target: Path) -> IO[bytes]:
    """Open a new hidden file beside `target` for writing and reading; its folder is made where it is missing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    while True:
        path = target.with_name(f".{target.name}.{os.getpid()}-{next(_numbers)}.tmp")
        try:
            return open(path, "x+b")
        except FileExistsError:
            continue


def close_synced(file: IO[bytes]) -> None:
    """Flush `file` to the disk and close it."""
    file.flush()
    os.fsync(file.fileno())
    file.close()


def discard(file: IO[bytes]) -> None:
    """Close and remove a temporary file; nothing happens when it is gone already."""
    file.close()
    Path(file.name).unlink(missing_ok=True)


@contextmanager
def atomic_file(target: Path, *, sync: bool = True) -> Iterator[IO[bytes]]:
    """Give a file to write; `target` holds all of it afterwards, or stays as it was when an exception leaves.

    sync=False leaves it to the caller to call `sync_folder`, once for several files.
    """
    file = open_temporary(target)
    try:
        yield file
        close_synced(file)
        os.replace(file.name, target)
    except BaseException:
        discard(file)
        raise
    if sync:
        sync_folder(target.parent)
