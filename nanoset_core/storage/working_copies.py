"""Folders of this machine for temporary copies: of what a command reads in a bucket, and of a
cluster's worker.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from nanoset_core.errors import MissingError, NanosetError, StorageError
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import claim_scratch, sweep_abandoned
from nanoset_core.storage.location import Location, RemoteFolder
from nanoset_core.storage.os_errors import explained

_ROOM = (
    "room for a copy of what is read from the bucket, and for what is made of it; TMPDIR names "
    "another folder"
)


def scratch_root() -> Path:
    """Return this user's folder below TMPDIR; StorageError if something else has its name."""
    folder = Path(tempfile.gettempdir()).absolute() / f"nanoset-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        what, expected = (
            "this is not a folder of this user",
            "one's own, for unfinished work on files of a bucket",
        )
        raise StorageError(
            what,
            where=folder,
            expected=expected,
            remedy="remove it, or name another folder by TMPDIR",
        )
    return folder


def work_folder(target: Location, name: str, scratch: Path | None) -> Path:
    """Return the path of unfinished work on `target`: `name` beside it, or a name of its own within
    `scratch`.

    Within `scratch`, which for a bucket is a folder below TMPDIR unless it is given, the name holds
    a digest of the target's whole path, since several targets may share that folder.
    """
    if scratch is None and isinstance(target, Path):
        return target.parent / name
    mark = hashlib.sha256(os.fsencode(Path("/", str(target.absolute())))).hexdigest()[:8]
    stem, _, ending = name.rpartition(".")
    return (scratch or scratch_root()).absolute() / f"{stem}-{mark}.{ending}"


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """Yield a new folder below TMPDIR, removed afterwards; sweep those of processes that were
    killed.
    """
    root = scratch_root()
    sweep_abandoned(root)
    with claim_scratch(root / name) as folder:
        yield folder


def any_remote(paths: Iterable[Location]) -> bool:
    """Return whether one of them lies in a bucket."""
    return any(isinstance(path, RemoteFolder) for path in paths)


def copies_in(folder: Path, paths: Sequence[Location]) -> list[Path]:
    """Return local paths, as `downloaded`, with copies in a folder that may outlive the process:
    fresh ones stay.

    Files of one folder of a bucket have copies in one folder.
    """
    numbers: dict[RemoteFolder, int] = {}

    def local(path: Location) -> Path:
        if isinstance(path, Path):
            return path
        access = FileAccess(
            folder / str(numbers.setdefault(path.parent, len(numbers))), path.parent.place
        )
        access.revalidate(access.folder / path.name)
        if not (access.folder / path.name).exists():
            raise _missing(path)
        return access.folder / path.name

    with explained(folder, expected=_ROOM):
        return list(map(local, paths))


@contextmanager
def downloaded(paths: Sequence[Location]) -> Iterator[list[Path]]:
    """Yield local paths of files; those in a bucket have copies until the block ends.

    MissingError where there is no such object; StorageError where there is no room for the copies.
    """
    with temporary_folder("copies") if any_remote(paths) else nullcontext(Path()) as room:
        yield copies_in(room, paths)


@contextmanager
def room_beside(path: Location) -> Iterator[tuple[Path, FileAccess | None]]:
    """Yield (where a copy would lie, access to the object and those beside it); a local path as it
    is, and None.

    Errors that leave the block name the object.
    """
    if isinstance(path, Path):
        yield path, None
        return
    with temporary_folder("copies") as room, explained(room, expected=_ROOM):
        here = room / path.name
        try:
            yield here, FileAccess(room, path.parent.place)
        except FileNotFoundError as error:
            raise _missing(path) from error
        except NanosetError as error:
            raise error.at(error.where and error.where.replace(str(here), str(path))) from error


def _missing(path: RemoteFolder) -> MissingError:
    return MissingError("no such object", where=path, remedy="name an object that is there")


@dataclass(frozen=True, slots=True)
class WorkerFolder:
    """What belongs to one worker of a cluster."""

    folder: Path | None = None
    """Used by this process alone; it need not be there yet. None in a process that is no worker of
    a cluster.
    """
    files: Mapping[Path, Path] = field(default_factory=dict)
    """Path of a file on the machine that gives out tasks → the same bytes here."""


_here = ContextVar("worker", default=WorkerFolder())  # noqa: B039 - it is frozen


@contextmanager
def working_at(place: WorkerFolder) -> Iterator[None]:
    """Run the tasks of this block, one at a time, with a folder of their own."""
    token = _here.set(place)
    try:
        yield
    finally:
        _here.reset(token)


def worker_folder() -> Path | None:
    """Return the folder of this worker; None in a process that is no worker of a cluster."""
    return _here.get().folder


@contextmanager
def task_folder() -> Iterator[Path | None]:
    """Yield an empty folder for one task, removed afterwards; None in a process that is no worker
    of a cluster.
    """
    if (folder := worker_folder()) is None:
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(folder)
    with claim_scratch(folder / "task") as scratch:
        yield scratch


def local_copy_of(path: Path) -> Path:
    """Return the local path of a file that the machine which gave out the task has at `path`."""
    return _here.get().files.get(path, path)


@contextmanager
def for_a_task(access: FileAccess) -> Iterator[FileAccess]:
    """Yield access to the same files for one task: on a cluster's worker with copies of its own,
    removed afterwards.
    """
    with task_folder() as folder:
        yield access if folder is None else access.with_copies_in(folder)
