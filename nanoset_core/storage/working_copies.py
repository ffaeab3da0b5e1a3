"""Temporary copies, below TMPDIR, of files in buckets that a command reads without a project."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
"""What errors say was expected if the disk is full."""


def scratch_root() -> Path:
    """Return this user's folder below TMPDIR, after creating it if necessary.

    Raises:
        StorageError: Something else has its name, such as a folder of another user.
    """
    folder = Path(tempfile.gettempdir()).absolute() / f"nanoset-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)

    # TMPDIR may be shared: another user could have put a link or a folder there, to see the files.
    status = folder.lstat()
    is_folder = stat.S_ISDIR(status.st_mode)
    is_of_this_user = status.st_uid == os.getuid()
    if not (is_folder and is_of_this_user):
        raise StorageError(
            "this is not a folder of this user",
            where=folder,
            expected="a folder of this user, for unfinished work on files of a bucket",
            remedy="remove it, or name another folder by TMPDIR",
        )
    return folder


def work_folder(target: Location, name: str, scratch: Path | None) -> Path:
    """Return the path for unfinished work on an output.

    The path is always the same for an output, so that a later command finds the work, and continues
    it.

    Args:
        target: The output.
        name: File name of the unfinished work, such as `web.work`.
        scratch: The folder to use. By default it is the folder of the output, or a folder below
            TMPDIR if the output is in a bucket.

    Returns:
        `name` next to the output. In `scratch` or below TMPDIR, which outputs of the same name may
        share, a digest of the output's path is added: `web-<digest>.work`.
    """
    if scratch is None and isinstance(target, Path):
        return target.parent / name

    # Add a digest of the output's path to the name. The URL of an output in a bucket counts as a
    # path, too: s3://bucket/web as /s3:/bucket/web.
    full_path = Path("/", str(target.absolute()))
    digest = hashlib.sha256(os.fsencode(full_path)).hexdigest()[:8]
    stem, _, ending = name.rpartition(".")
    file_name = f"{stem}-{digest}.{ending}"

    folder = scratch or scratch_root()
    return folder.absolute() / file_name


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """Yield a new folder below TMPDIR, which is removed at the end of the block.

    Folders of commands that were killed are removed, too.

    Args:
        name: What the name of the folder contains.
    """
    root = scratch_root()
    sweep_abandoned(root)
    with claim_scratch(root / name) as folder:
        yield folder


def any_remote(paths: Iterable[Location]) -> bool:
    """Return whether any of the paths is in a bucket."""
    return any(isinstance(path, RemoteFolder) for path in paths)


def copies_in(folder: Path, paths: Sequence[Location]) -> list[Path]:
    """Return local paths of files, after copying those in buckets to a folder.

    Files that were next to each other in a bucket have copies next to each other. The folder may
    have copies from an earlier call with the same paths: those that are up to date are kept.

    Args:
        folder: The folder for copies.
        paths: The files.

    Raises:
        MissingError: A file in a bucket does not exist.
        StorageError: There is no room for the copies.
    """
    subfolders: dict[RemoteFolder, Path] = {}  # folder of a bucket → folder of the copies
    local_paths: list[Path] = []
    with explained(folder, expected=_ROOM):
        for path in paths:
            if isinstance(path, Path):
                local_paths.append(path)
            else:
                if path.parent not in subfolders:
                    subfolders[path.parent] = folder / str(len(subfolders))
                local_paths.append(_copy_in(subfolders[path.parent], path))
    return local_paths


def _copy_in(folder: Path, path: RemoteFolder) -> Path:
    """Copy a file of a bucket to a local folder, unless an up-to-date copy exists.

    Args:
        folder: The local folder.
        path: The file.

    Returns:
        Path of the copy.

    Raises:
        MissingError: The file does not exist.
    """
    copy = folder / path.name
    FileAccess(folder, path.parent.place).revalidate(copy)
    if not copy.exists():
        raise _missing(path)
    return copy


@contextmanager
def downloaded(paths: Sequence[Location]) -> Iterator[list[Path]]:
    """Yield local paths of files; those in buckets have copies until the end of the block.

    Args:
        paths: The files.

    Raises:
        MissingError: A file in a bucket does not exist.
        StorageError: There is no room for the copies.
    """
    if not any_remote(paths):
        yield copies_in(Path(), paths)  # copies nothing
        return
    with temporary_folder("copies") as folder:
        yield copies_in(folder, paths)


@contextmanager
def path_and_access(path: Location) -> Iterator[tuple[Path, FileAccess | None]]:
    """Yield what is needed to read a file, and files next to it, locally or in a bucket.

    Errors of the block name the file in the bucket instead of its copy.

    Args:
        path: The file, or what the names of the files begin with.

    Yields:
        (path, access). For a local file, its path and None. For a file of a bucket, the path of a
        copy in a temporary folder, and access that downloads files of the bucket to there. Nothing
        is downloaded before the block asks the access for it.

    Raises:
        MissingError: The block did not find a file in the bucket.
    """
    if isinstance(path, Path):
        yield path, None
        return

    # Errors of the disk name the temporary folder, and what it needs room for.
    with temporary_folder("copies") as folder, explained(folder, expected=_ROOM):
        copy = folder / path.name
        store_of_parent = path.parent.place  # the folder of the bucket that contains the file
        with _errors_naming(path, copy):
            yield copy, FileAccess(folder, store_of_parent)


@contextmanager
def _errors_naming(path: RemoteFolder, copy: Path) -> Iterator[None]:
    """Let errors of the block name a file in a bucket instead of its copy.

    Raises:
        MissingError: The block did not find the file.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise _missing(path) from error
    except NanosetError as error:
        where = error.where
        if where:
            where = where.replace(str(copy), str(path))
        raise error.at(where) from error


def _missing(path: RemoteFolder) -> MissingError:
    """Return the error for a file of a bucket that does not exist."""
    return MissingError("no such object", where=path, remedy="name an object that is there")
