"""Sizes, times and numbers of files, by which a later change of a file is noticed."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import NamedTuple

from nanoset_core.storage.store import Stored


class ObjectStat(NamedTuple):
    """Size and time of an object, under the names that `os.stat` uses."""

    st_size: int
    """Bytes."""
    st_mtime_ns: int
    """When it was written, in nanoseconds since 1970."""
    st_ino: int
    """Computed from its ETag, so that it changes with the bytes."""


@dataclass(frozen=True, slots=True)
class FileStat:
    """What the file system reports about one file."""

    path: str
    """Relative to the listed folder, with forward slashes."""
    size: int
    """Bytes."""
    mtime_ns: int
    """Last modification, nanoseconds since 1970."""
    inode: int
    """Number that differs if another file replaces this one; in a bucket, made from the ETag."""
    changed_ns: int = 0
    """Last change of the inode (ctime), which no user can set; 0 if it is not known."""

    def is_same_version(self, other: FileStat) -> bool:
        """Return whether a file is unchanged since it was looked at before.

        The size and the time of the last write must be equal. But somebody may have moved another
        file to the same path, and programs can set this time back. So one of these must be equal,
        too:

            inode          the number that the file system gives to a file
            change time    when the file was last changed in any way; programs cannot set it

        One is enough, since some file systems number their files anew each time they are mounted,
        and others know no change time (0).

        Args:
            other: What was seen of the same path at another time.
        """
        if self.size != other.size or self.mtime_ns != other.mtime_ns:
            return False
        if self.inode == other.inode:
            return True
        has_change_time = self.changed_ns != 0
        return has_change_time and self.changed_ns == other.changed_ns


def file_stat(path: str, status: os.stat_result | ObjectStat) -> FileStat:
    """Return the stat result of a file as a `FileStat`.

    Args:
        path: The file, relative to the listed folder, with forward slashes.
        status: What the file system, or a bucket, reports about it. Objects in a bucket have no
            change time.
    """
    changed_ns = getattr(status, "st_ctime_ns", 0)
    return FileStat(path, status.st_size, status.st_mtime_ns, status.st_ino, changed_ns)


def stat_of_object(stored: Stored) -> ObjectStat:
    """Return the size and time of an object, under the names that `os.stat` uses.

    Args:
        stored: The description of the object, from a listing or a request.
    """
    return ObjectStat(stored.size, stored.written_ns, etag_mark(stored.mark))


def etag_mark(etag: str) -> int:
    """Return a number that changes with an ETag, as the inode number changes with a local file.

    To notice that an input file was replaced, its size, time and inode number are compared. An
    object in a bucket has no inode number, but an ETag, a text that the bucket changes with the
    bytes.

    Args:
        etag: The ETag, such as `"d41d8cd98f00b204e9800998ecf8427e"`.

    Returns:
        A hash of 63 bits, so that it fits into a signed integer of 64 bits.
    """
    digest = hashlib.blake2b(etag.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
