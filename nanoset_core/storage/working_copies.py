"""Room on this machine for work on files of a bucket, and copies of them that are gone when the work is done."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from nanoset_core.errors import MissingError, NanosetError, StorageError
from nanoset_core.storage.access import CopyAccess, copies_of
from nanoset_core.storage.block_file import MappedFile
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.remote_folder import Location, RemoteFolder, on_this_machine
from nanoset_core.storage.scratch import claim_scratch, detour, sweep_abandoned

_ROOM = "room for a copy of what is read from the bucket, and for what is made of it; TMPDIR names another folder"


def scratch_root() -> Path:
    """This user's own folder below TMPDIR.

    Raises:
        StorageError: something else, or somebody else's, has its name.
    """
    folder = Path(tempfile.gettempdir()).absolute() / f"nanoset-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise StorageError(
            "this is not a folder of this user",
            where=folder,
            expected="a folder of one's own for unfinished work on files of a bucket",
            remedy="remove it, or name another folder by TMPDIR",
        )
    return folder


def work_folder(target: Location, name: str, scratch: Path | None) -> Path:
    """As `detour`, also for what goes to a bucket: then below TMPDIR, where `scratch` names no folder."""
    if isinstance(target, Path):
        return detour(target, name, scratch)
    return detour(Path("/", str(target)), name, scratch or scratch_root())


@contextmanager
def claimed_room(name: str) -> Iterator[Path]:
    """A new folder below TMPDIR, gone afterwards; those of processes that were killed are swept."""
    root = scratch_root()
    sweep_abandoned(root)
    with claim_scratch(root / name) as folder:
        yield folder


def copies_in(folder: Path, paths: Sequence[Location]) -> list[Path]:
    """As `brought`, with copies in a folder that may outlive the process: those that are there and fresh stay.

    Files of one folder of a bucket lie beside one another here, too.
    """
    folders: dict[RemoteFolder, CopyAccess] = {}
    with explained(folder, expected=_ROOM):
        return [path if isinstance(path, Path) else _copy(path, folder, folders) for path in paths]


def any_remote(paths: Iterable[Location]) -> bool:
    """Whether one of them lies in a bucket."""
    return any(isinstance(path, RemoteFolder) for path in paths)


@contextmanager
def brought(paths: Sequence[Location]) -> Iterator[list[Path]]:
    """Where files can be read on this machine: where they lie, or copies of those in a bucket until the block ends.

    Raises:
        MissingError: there is no such object.
        StorageError: the bucket cannot be reached or refuses, or there is no room for the copies.
    """
    if any_remote(paths):
        with claimed_room("copies") as room:
            yield copies_in(room, paths)
    else:
        yield [on_this_machine(path) for path in paths]


@contextmanager
def opened_in_part(path: Location) -> Iterator[tuple[Path, MappedFile | None]]:
    """(path on this machine, for messages; the bytes of an object, of which no more is brought than is asked for).

    Raises:
        MissingError: there is no such object.
        StorageError: the bucket cannot be reached or refuses.
    """
    if isinstance(path, Path):
        yield path, None
        return
    with room_beside(path) as (here, access):
        try:
            content = access.open_bytes(here)
        except FileNotFoundError as error:
            raise MissingError("no such object", where=path, remedy="name an object that is there") from error
        try:
            yield here, content
        except NanosetError as error:
            where = error.where and error.where.replace(str(here), str(path))
            raise type(error)(
                error.what, where=where, found=error.found, expected=error.expected, remedy=error.remedy
            ) from error


@contextmanager
def room_beside(path: RemoteFolder) -> Iterator[tuple[Path, CopyAccess]]:
    """(where a copy of an object would lie, how it and those beside it are reached), until the block ends.

    Raises:
        StorageError: there is no room.
    """
    with claimed_room("copies") as room, explained(room, expected=_ROOM):
        yield room / path.name, copies_beside(path, room)


def copies_beside(path: RemoteFolder, room: Path) -> CopyAccess:
    """How an object, and those beside it, are reached with copies in a folder."""
    folder = path.parent.path
    return copies_of(room, path.place.below(folder) if folder else path.place)


def _copy(path: RemoteFolder, room: Path, folders: dict[RemoteFolder, CopyAccess]) -> Path:
    folder = path.parent
    if folder not in folders:
        folders[folder] = copies_beside(path, room / str(len(folders)))
    copy = folders[folder].folder / path.name
    folders[folder].renew(copy)
    if not copy.exists():
        raise MissingError("no such object", where=path, remedy="name an object that is there")
    return copy
