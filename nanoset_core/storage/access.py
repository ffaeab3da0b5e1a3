"""The files below a folder: they are there, or live in a store of which the folder holds working copies.

Readers and writers of files are given such an object, and ask it. It pickles, so that other processes reach the files
in the same way.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.block_file import MappedFile
from nanoset_core.storage.listing import Entry, disk_entries
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.regular_files import map_regular, read_regular
from nanoset_core.storage.scratch import unfinished_name
from nanoset_core.storage.store import Store

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class FileAccess:
    """Files that live in a local folder, by their absolute paths.

    `fetch` and `open_bytes` take paths outside of the folder, too: index files of a dataset in a bucket may be cached
    elsewhere on this machine.
    """

    folder: Path
    """Absolute: where the files are, or their copies."""

    @property
    def store(self) -> Store:
        """Where the files live."""
        return LocalStore(self.folder)

    @property
    def has_copies(self) -> bool:
        """Whether the folder holds copies of what lives elsewhere."""
        return False

    @property
    def capacity(self) -> int | None:
        """Bytes that copies may take; None where all of them stay."""
        return None

    def with_copies_in(self, folder: Path) -> FileAccess:
        """Return access to the same files with copies in another folder."""
        return self

    def name(self, path: Path) -> str:
        """Return a file's name in the store."""
        return path.relative_to(self.folder).as_posix()

    def url(self, path: Path) -> str:
        """Return where a file lives, for messages."""
        return str(path)

    def fetch(
        self, path: Path, *, size: int | None = None, sha256: str | None = None, pieces: Path | None = None
    ) -> Path:
        """Make a file readable at its path, where it exists at all; return the path.

        Args:
            path: of the file.
            size: bytes, where they are known: a copy of another size is downloaded again.
            sha256: hex, that it must have, where that is known.
            pieces: a file that lists the digests of its pieces, and can be read.

        Raises:
            StorageError: it has other bytes than were written.
        """
        return path

    def fetch_all(self, folder: Path, name: str) -> None:
        """Fetch every file of this name below a folder, as they are stored now; each is a commit marker.

        Where a copy was outdated, the other files of its folder belong to another making and are removed. Copies that
        the store does not have stay: a build may be about to send them.
        """

    def read_current(self, path: Path) -> bytes:
        """Return a small file's bytes as they are stored now; FileNotFoundError where there is none."""
        return read_regular(path)

    def read_beside(self, path: Path) -> tuple[bytes, Mapping[str, int] | None]:
        """Return (bytes of a commit marker, relative name → bytes of all in its folder, where that was told as well).

        FileNotFoundError where there is no such file.
        """
        return read_regular(path), None

    def size(self, path: Path) -> int | None:
        """Return the bytes of a file as it is stored; None where it is not there."""
        return path.stat().st_size if path.is_file() else None

    def sizes(self, folder: Path, names: Iterable[str]) -> dict[str, int]:
        """Return the bytes of those files of a folder that are there, of these relative names."""
        sizes = {name: self.size(folder / name) for name in names}
        return {name: size for name, size in sizes.items() if size is not None}

    def written_ns(self, path: Path) -> int:
        """Return when a file was written, nanoseconds since 1970; 0 where it is gone from this machine."""
        try:
            return path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def written_in(self, parent: Path, name: str) -> dict[str, int]:
        """Return when the files of one name in the folders right below `parent` were written: folder → ns."""
        paths = {entry: parent / entry / name for entry in self.names(parent) if not (parent / entry).is_symlink()}
        return {entry: self.written_ns(path) for entry, path in paths.items() if path.is_file()}

    def sha256(self, path: Path) -> str:
        """Return the hex sha256 of a file as it is stored; FileNotFoundError where it is not there."""
        return sha256_file(path)

    def names(self, folder: Path) -> frozenset[str]:
        """Return the names of what lies right in a folder."""
        return frozenset(entry.name for entry in folder.iterdir()) if folder.is_dir() else frozenset()

    def listing(self) -> FileAccess:
        """Return access to all that is stored at this moment: a bucket is listed once, and its JSON files are read."""
        return self

    def entries(self, folder: Path) -> list[Entry]:
        """Return what lies right in a folder, by name; nothing where there is no such folder.

        Raises:
            StorageError: the folder cannot be read.
        """
        return disk_entries(folder)

    def is_link(self, path: Path) -> bool:
        """Return whether a path is a symbolic link."""
        return path.is_symlink()

    def unfinished(self) -> Iterator[Path]:
        """Yield objects of a store that were to become part of others; nothing of a local folder."""
        yield from ()

    def stored_at(self, path: Path, *, as_copy: bool = False) -> tuple[Store, str]:
        """Return (store, name there) by which any machine can read ranges of a file; with `as_copy` those of a copy.

        Where there is no copy, `as_copy` changes nothing.
        """
        return LocalStore(path.parent.absolute()), path.name

    def open_bytes(self, path: Path, *, as_copy: bool = True) -> MappedFile:
        """Open a large file for reading ranges: its copy, where there is one, unless `as_copy` is False.

        FileNotFoundError where it is not there.
        """
        return MappedFile(map_regular(path))

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Do `work`, which asks the store, on every item; results in their order, the first error is raised."""
        return [work(item) for item in items]

    def each_folder(self, work: Callable[[FileAccess, Path], R], parent: Path, names: Sequence[str]) -> list[R]:
        """Do `work` on many folders of one parent, most of which are there; results in their order.

        Args:
            work: takes access to the folder's files as a listing told of them, and the folder.
            parent: of all of them.
            names: of the folders, in the parent.
        """
        return [work(self, parent / name) for name in names]

    def send(self, paths: Iterable[Path], sha256: Mapping[Path, str] | None = None) -> None:
        """Store files that were written here; each is stored whole or not at all.

        Args:
            paths: of the files.
            sha256: hex, of what they must hold, where it is known.

        Raises:
            StorageError: a file holds something else.
        """

    def send_small(self, path: Path, data: bytes, *, is_new: bool = False) -> None:
        """Store a small file that was written here with these bytes.

        is_new: the store held other bytes or none; else it is only written where the store holds others.
        """

    def publish(
        self, folder: Path, files: Mapping[str, str | None], manifest: str, *, is_new: bool = False
    ) -> Mapping[str, int] | None:
        """Store an output: its files, then the manifest that commits it. A manifest of other bytes is removed first.

        Args:
            folder: of the output.
            files: relative name → sha256, where it is known; those that are not here must be stored already.
            manifest: name of the file that goes last.
            is_new: the store held no manifest, so that it need not be asked.

        Returns:
            Relative name → bytes of all that is known to be stored in the folder now; None for a local folder.

        Raises:
            MissingError: a file is neither here nor stored.
        """
        return None

    def drop(self, paths: Iterable[Path]) -> None:
        """Remove copies that were sent, where the capacity is bounded."""

    def remove_all(self, folder: Path) -> None:
        """Remove all files below a folder from the store of which copies are here; the caller removes the copies."""

    def remove(self, path: Path) -> None:
        """Remove a file from where it lives, and its copy."""
        path.unlink()

    def withdraw(self, folder: Path, manifest: str, is_wanted: Callable[[], bool]) -> tuple[Path, ...] | None:
        """Remove an output for every reader at once, even where this is cut short, unless it is wanted by now.

        Args:
            folder: of the output.
            manifest: name of the file that commits it.
            is_wanted: asks anew whether the output has to stay.

        Returns:
            Folders that hold what is left of it, to be removed at any time; None where it stays.
        """
        aside = unfinished_name(folder)
        folder.rename(aside)
        if not is_wanted():
            return (aside,)
        with contextlib.suppress(OSError):  # it was made again: then that one stays
            aside.rename(folder)
            return None
        shutil.rmtree(aside, ignore_errors=True)
        return None


_TASK = "task"


@dataclass(frozen=True, slots=True)
class WorkerFolder:
    """What belongs to one worker."""

    folder: Path
    """Used by this process alone; it need not be there yet."""
    files: Mapping[Path, Path] = field(default_factory=dict)
    """Path of a file on the machine that gives out tasks → the same bytes here."""


_here: ContextVar[WorkerFolder | None] = ContextVar("workplace", default=None)


@contextlib.contextmanager
def working_at(place: WorkerFolder) -> Iterator[None]:
    """Run the tasks of this block, one at a time, with a folder of their own."""
    token = _here.set(place)
    try:
        yield
    finally:
        _here.reset(token)


@contextlib.contextmanager
def task_folder() -> Iterator[Path | None]:
    """Yield an empty folder for one task, removed afterwards; None in a process that is no worker of a cluster."""
    place = _here.get()
    if place is None:
        yield None
        return
    folder = place.folder / _TASK
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def worker_folder() -> Path | None:
    """Return the folder of this worker; None in a process that is no worker of a cluster."""
    place = _here.get()
    return None if place is None else place.folder


def local_copy_of(path: Path) -> Path:
    """Return the local path of a file that the machine which gave out the task has at `path`."""
    place = _here.get()
    return path if place is None else place.files.get(path, path)


@contextlib.contextmanager
def for_a_task(access: FileAccess) -> Iterator[FileAccess]:
    """Yield access to the same files for one task: on a cluster's worker with copies of its own, removed afterwards."""
    with task_folder() as folder:
        yield access if folder is None else access.with_copies_in(folder)
