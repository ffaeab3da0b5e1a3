"""Whole files or none: write under a temporary name in the same folder, then rename."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from nanoset_core.scratch import open_unfinished


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_temporary(target: Path) -> IO[bytes]:
    """Open a new hidden file beside `target` for writing and reading; its folder is made where it is missing."""
    return open_unfinished(target)


def put_in_place(file: IO[bytes], target: Path) -> None:
    """Flush a temporary file to the disk, rename it to `target` and close it."""
    file.flush()
    os.fsync(file.fileno())
    os.replace(file.name, target)
    file.close()  # last, since a file that nobody holds is taken for abandoned


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
        put_in_place(file, target)
    except BaseException:
        discard(file)
        raise
    if sync:
        sync_folder(target.parent)
