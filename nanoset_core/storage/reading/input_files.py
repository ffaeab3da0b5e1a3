"""Open files for reading by their locations, on a disk or in a bucket."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nanoset_core.storage.file_stats import ObjectStat, stat_of_object
from nanoset_core.storage.location import Location
from nanoset_core.storage.reading.objects import ObjectFile
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.storage.remote_path import RemotePath


def open_input(path: Location, *, begin: int = 0, end: int | None = None) -> BinaryIO:
    """Open a file for reading.

    Args:
        path: The file.
        begin: First byte that will be read, to which the caller seeks. Nothing before it is
            downloaded.
        end: Byte after the last one that will be read; None for the end of the file. Bytes up to it
            are downloaded before they are read.

    Raises:
        OSError: The file does not exist, or cannot be opened.
        FormatError: The path is that of a pipe or a device.
    """
    if isinstance(path, Path):
        return open_regular(path)
    return path.open(begin=begin, end=end)


def status_of(file: BinaryIO) -> os.stat_result | ObjectStat:
    """Return the size, time and inode of an open file, on a disk or in a bucket.

    If one of them has changed since it was looked at last, so has the file.

    Args:
        file: A file from `open_input`.

    Returns:
        At least `st_size` (bytes), `st_mtime_ns` and `st_ino`. For an object in a bucket, they are
        those that it had when it was opened. It has no inode, but a number in its place, which is
        computed from the ETag (a text that the bucket changes with the bytes).
    """
    # An object is an ObjectFile within a buffer. Python calls what is within a buffer `raw`.
    unbuffered = getattr(file, "raw", None)
    if isinstance(unbuffered, ObjectFile):
        return stat_of_object(unbuffered.stored)
    return os.fstat(file.fileno())


@dataclass(frozen=True, slots=True)
class Probe:
    """Small reads in several places of one version of a file; threads may share it."""

    status: os.stat_result | ObjectStat
    """Size, time and inode of the file when it was opened."""
    read: Callable[[int, int], bytes]
    """Returns bytes [start, stop); fewer if a file on a file system is shorter by now."""


@contextmanager
def probing(path: Location) -> Iterator[Probe]:
    """Open a file for small reads in several places, which are all that is downloaded.

    For example, the header and the index at the end of a file of 10 GB in a bucket:

        with probing(path) as probe:
            header = probe.read(0, 34)
            index = probe.read(probe.status.st_size - 1000, probe.status.st_size)

    Args:
        path: The file, on this machine or in a bucket.

    Yields:
        Its size and time, and a function that reads a range of its bytes.

    Raises:
        OSError: The file does not exist, or cannot be opened or read.
        FormatError: The path is that of a pipe or a device.
        SourceChangedError: The object is replaced within the block.
    """
    if isinstance(path, Path):
        with open_regular(path) as file:
            yield _probe_file(file)
    else:
        yield _probe_object(path)


def _probe_file(file: BinaryIO) -> Probe:
    """Return a probe of an open file on a file system."""
    descriptor = file.fileno()

    def read(start: int, stop: int) -> bytes:
        """Return bytes [start, stop); unlike `file.read`, threads may call it at the same time."""
        return os.pread(descriptor, stop - start, start)

    return Probe(os.fstat(descriptor), read)


def _probe_object(path: RemotePath) -> Probe:
    """Return functions for small reads of an object in a bucket, each of which is a request.

    The object is looked up once. Later reads fail if it has been replaced since.

    Args:
        path: Path of the object in the bucket.

    Raises:
        FileNotFoundError: The object does not exist.
    """
    store = path.store
    facts = store.stat(path.path)
    if facts is None:
        raise FileNotFoundError(str(path))
    name = facts.name
    mark = facts.mark  # of this version of the object

    def read(start: int, stop: int) -> bytes:
        """Return bytes [start, stop), or fail if the object has been replaced."""
        return store.read_range(name, start, stop, mark)

    return Probe(stat_of_object(facts), read)
