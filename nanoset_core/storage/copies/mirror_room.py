"""Make room in the mirror, a local folder with copies of stored files, by their last use.

The time at which the inode of a copy was last changed (`st_ctime`) says when the copy was last
used. The time of its bytes (`st_mtime`) is that of the stored file.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import StorageError

_BLOCK_BYTES = 512
"""Unit of `st_blocks`, which says how much of the disk a file takes."""


class _File(NamedTuple):
    """A file in a folder of working copies. Files sort by the time of their last use."""

    used_ns: int
    """When it was last used, in nanoseconds since 1970."""
    disk_bytes: int
    """Bytes that it takes on the disk, or will take once it is complete."""
    path: Path
    """Its path."""


def make_room(folder: Path, capacity: int, size: int, what: str) -> None:
    """Remove the copies in a folder that were not used for longest, until a new file has room.

    Copies of files of a bucket are kept on the local disk, but only up to a capacity. For example,
    with a capacity of 100 bytes, a new file of 30 bytes comes:

        copy             a       b       c       .tmp-d (hidden)
        last used        9:00    9:10    9:20
        bytes            40      25      10      15
                         removed

    The new file and the others would take 120 bytes, so 20 have to go. Hidden files are not
    removed, since they are unfinished or belong to other processes, but they take room.

    Args:
        folder: The folder of copies.
        capacity: Bytes that all files in the folder may take.
        size: Bytes of the new file.
        what: Address of the new file, for the error.

    Raises:
        StorageError: The new file, or the hidden files, are larger than the capacity.
    """
    copies: list[_File] = []
    hidden_bytes = 0
    for file in _files_below(folder):
        if _is_hidden(file.path.relative_to(folder)):
            hidden_bytes += file.disk_bytes
        else:
            copies.append(file)

    # Each of the two has to fit. Both together need not: other processes will remove their hidden
    # files.
    if size > capacity or hidden_bytes > capacity:
        raise _too_large_error(what, max(size, hidden_bytes), capacity)

    copied_bytes = sum(copy.disk_bytes for copy in copies)
    excess_bytes = copied_bytes + hidden_bytes + size - capacity  # 75 + 15 + 30 - 100 = 20
    _remove_least_recent(copies, excess_bytes)


def _remove_least_recent(copies: Sequence[_File], n_bytes: int) -> None:
    """Remove the copies that were not used for longest, until so many bytes are free.

    For example, to free 20 bytes, only the first of these is removed: 40 bytes, used at 9:00; 25
    bytes, used at 9:10.

    Args:
        copies: All copies.
        n_bytes: Bytes to free; none are removed if it is 0 or negative.
    """
    for copy in sorted(copies):  # by their first field, the time of their last use
        if n_bytes <= 0:
            break
        copy.path.unlink(missing_ok=True)
        n_bytes -= copy.disk_bytes


def _too_large_error(what: str, needed_bytes: int, capacity: int) -> StorageError:
    """Return the error for files that need more room than all copies may take."""
    return StorageError(
        "this is larger than the room for working copies",
        where=what,
        found=f"{needed_bytes:,} bytes",
        expected=f"at most {capacity:,} bytes, three quarters of storage.scratch_mib",
        remedy="set storage.scratch_mib to more",
    )


def _files_below(folder: Path) -> Iterator[_File]:
    """Yield all files below a folder, except those that other processes remove meanwhile."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                # A sparse file takes less than its size, but may be filled.
                disk_bytes = max(status.st_size, status.st_blocks * _BLOCK_BYTES)
                yield _File(status.st_ctime_ns, disk_bytes, path)


def _is_hidden(path: Path) -> bool:
    """Return whether the name of a file, or of a folder that contains it, begins with a dot."""
    return any(part.startswith(".") for part in path.parts)


def note_use(copy: Path) -> None:
    """Note that a copy, if it exists, is used now, so that others are removed before it.

    The system itself stores when the attributes of a file were last changed (`st_ctime`). So set
    the times of the file anew, but leave the time of its bytes (`st_mtime`) as it is.

    Args:
        copy: Path of the copy.
    """
    with contextlib.suppress(FileNotFoundError):
        os.utime(copy, ns=(time.time_ns(), copy.stat().st_mtime_ns))


def set_time(copy: Path, written_ns: int) -> None:
    """Give a copy the time of the stored file, which says when an output was made.

    Args:
        copy: The copy.
        written_ns: When the stored file was written, in nanoseconds since 1970.
    """
    if copy.stat().st_mtime_ns != written_ns:
        os.utime(copy, ns=(written_ns, written_ns))
