"""Opening files of raw text, with errors that say what to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nanoset_core.errors import InputError, MissingError, NanosetError, SourceChangedError
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.storage.remote_folder import ObjectStat, RawFolder, stat_of_object
from nanoset_core.storage.store import THREADS


def status_of(file: BinaryIO) -> os.stat_result | ObjectStat:
    """Size, time and inode of an open file; of an object in a bucket, as it was when it was opened."""
    return stat_of_object(file.facts) if hasattr(file, "facts") else os.fstat(file.fileno())


@contextmanager
def open_raw(path: RawFolder, *, begin: int = 0, end: int | None = None) -> Iterator[BinaryIO]:
    """Open a file of an inventory for reading.

    Args:
        path: of the file.
        begin: of what will be read first, where `end` is given; the file is at its first byte all the same.
        end: of what will be read, so that no more of an object is brought ahead; absent = the file's end.

    Raises:
        MissingError: it is gone.
        InputError: it cannot be opened, or reading it fails within the block.
        FormatError: it is a pipe or a device.
    """

    def opened() -> BinaryIO:
        return open_regular(path) if isinstance(path, Path) else path.open("rb", begin=begin, end=end)

    with _explained(path), opened() as file:
        yield file


@dataclass(frozen=True, slots=True)
class Probe:
    """Small reads here and there of one version of a file, from several threads at once."""

    status: os.stat_result | ObjectStat
    """As it was when it was opened."""
    read: Callable[[int, int], bytes]
    """Bytes [begin, end); fewer where a file on a file system is shorter by now."""
    at_once: int
    """How many reads are worth having under way together."""


@contextmanager
def probe_raw(path: RawFolder) -> Iterator[Probe]:
    """Open a file of an inventory for small reads: of an object in a bucket nothing else is asked for.

    Raises:
        MissingError, InputError, FormatError: see open_raw.
        SourceChangedError: the object is replaced within the block.
    """
    with _explained(path):
        if isinstance(path, Path):
            with open_regular(path) as file:
                number = file.fileno()
                yield Probe(os.fstat(number), lambda begin, end: os.pread(number, end - begin, begin), 1)
            return
        store = path.store
        if (facts := store.stat(path.path)) is None:
            raise FileNotFoundError(str(path))
        found = facts
        yield Probe(
            stat_of_object(found), lambda begin, end: store.read_range(found.name, begin, end, found.mark), THREADS
        )


@contextmanager
def _explained(path: RawFolder) -> Iterator[None]:
    try:
        yield
    except NanosetError:
        raise
    except MemoryError as error:
        raise too_large(path) from error
    except FileNotFoundError as error:
        raise MissingError(
            "a file of the corpus is gone", where=path, remedy="build again: the inventory is taken anew"
        ) from error
    except OSError as error:
        raise InputError(
            "a file of the corpus cannot be read",
            where=path,
            found=f"{error.strerror} (errno {error.errno})",
            expected="a file that this user may read, on a healthy disk",
            remedy="mend that, or remove the file; then build again",
        ) from error


def source_changed(path: RawFolder, found: str, expected: str) -> SourceChangedError:
    """What to raise where a file is not as its inventory says."""
    return SourceChangedError(
        "the file is not as the inventory found it",
        where=path,
        found=found,
        expected=expected,
        remedy="build again once nothing writes to it: the inventory is taken anew",
    )


def too_large(path: RawFolder) -> InputError:
    """What to raise where memory runs out: a larger machine may read on, so that this is no fault to be kept aside."""
    return InputError(
        "a file of the corpus needs more memory than there is",
        where=path,
        expected="memory for its longest line or text, and for the largest page, batch or window that it is stored in",
        remedy="lower documents.max_line_mib, give each worker more memory (fewer workers), or remove the file",
    )
