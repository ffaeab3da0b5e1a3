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
from nanoset_core.storage.location import Location, store_of
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.remote_path import RemotePath

_ROOM = (
    "room for a copy of what is read from the bucket, and for what is made of it; TMPDIR names "
    "another folder"
)
"""What errors say was expected if the disk is full."""


def scratch_root() -> Path:
    """Return this user's folder below TMPDIR, such as `/tmp/nanoset-1000`; create it if necessary.

    Other users may also write to /tmp. One of them could have put a link or a folder there under
    this name, to see the files that are written to it. That is an error.

    Raises:
        StorageError: Something else has its name, such as a folder of another user.
    """
    folder = Path(tempfile.gettempdir()).absolute() / f"nanoset-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)

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
    """Return the path for unfinished work on an output, which is the same for each call.

    So a command that was killed, and is run again, finds its work, and continues it.

        target              scratch      result
        data/web.pbin       None         data/web.work
        data/web.pbin       /fast        /fast/web-1f0c2a9e.work
        s3://bucket/web     None         /tmp/nanoset-1000/web-77ab3c4d.work

    Outputs of the same name may share a folder, so the digits are a digest of the output's path.

    Args:
        target: The output.
        name: File name of the unfinished work, such as `web.work`.
        scratch: The folder to use. By default it is the folder of the output, or a folder below
            TMPDIR if the output is in a bucket.
    """
    if scratch is None and isinstance(target, Path):
        return target.parent / name

    stem, _, ending = name.rpartition(".")
    file_name = f"{stem}-{_digest_of_path(target)}.{ending}"
    folder = scratch or scratch_root()
    return folder.absolute() / file_name


def _digest_of_path(target: Location) -> str:
    """Return 8 hex digits that differ for outputs of the same name in different folders.

    An address is digested as a path, too: s3://bucket/web as /s3:/bucket/web.

    Args:
        target: The output.
    """
    full_path = Path("/", str(target.absolute()))
    return hashlib.sha256(os.fsencode(full_path)).hexdigest()[:8]


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """Yield a new folder below TMPDIR, which is removed at the end of the block.

    Folders of commands that were killed could not be removed then. They are removed now.

    Args:
        name: What the name of the folder contains: `copies` gives, for example,
            `/tmp/nanoset-1000/.tmp-copies-...`.

    Yields:
        The empty folder.

    Raises:
        StorageError: The place below TMPDIR for this user's folder is taken by something else, such
            as a folder of another user.
    """
    root = scratch_root()
    sweep_abandoned(root)
    with claim_scratch(root / name) as folder:
        yield folder


def any_remote(paths: Iterable[Location]) -> bool:
    """Return whether any of the paths is in a bucket, so that it has to be copied first.

    Args:
        paths: Paths of this machine, and locations in buckets.
    """
    return any(isinstance(path, RemotePath) for path in paths)


def copies_in(folder: Path, paths: Sequence[Location]) -> list[Path]:
    """Return local paths of files, after downloading those in buckets to a folder.

    For the folder `/tmp/copies`:

        data/x.bin                               data/x.bin: it is local
        s3://bucket/web/a.bin                    /tmp/copies/0/a.bin
        s3://bucket/web/a.idx (same folder)      /tmp/copies/0/a.idx
        s3://bucket/books/a.bin (another one)    /tmp/copies/1/a.bin

    Copies of an earlier call with the same paths are kept if they are up to date.

    Args:
        folder: The folder for copies.
        paths: The files.

    Raises:
        MissingError: A file in a bucket does not exist.
        StorageError: There is no room for the copies.
    """
    copy_folders: dict[RemotePath, Path] = {}  # folder of a bucket → folder of its copies
    local_paths: list[Path] = []
    with explained(folder, expected=_ROOM):  # an error says so if the disk is full
        for path in paths:
            if isinstance(path, Path):
                local_paths.append(path)
                continue
            # Files of several folders may have the same name, so each folder gets another one here.
            number = len(copy_folders)
            copy_folder = copy_folders.setdefault(path.parent, folder / str(number))
            local_paths.append(_current_copy(path, copy_folder))
    return local_paths


def _current_copy(path: RemotePath, copy_folder: Path) -> Path:
    """Download a file of a bucket, unless its copy has the same size and time.

    Args:
        path: The file in the bucket.
        copy_folder: The folder for the copy.

    Returns:
        Path of the copy.

    Raises:
        MissingError: The file does not exist.
    """
    copy = copy_folder / path.name
    FileAccess(copy_folder, store_of(path.parent)).revalidate(copy)
    if not copy.exists():
        raise _missing(path)
    return copy


@contextmanager
def downloaded(paths: Sequence[Location]) -> Iterator[list[Path]]:
    """Yield local paths of files; those in buckets have copies until the end of the block.

        with downloaded([Path("a.bin"), location("s3://bucket/b.bin")]) as paths:
            ...    # paths: a.bin, and <temporary folder>/0/b.bin

    Errors of the block name s3://bucket/b.bin, since the user does not know the temporary folder.

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
        copies = copies_in(folder, paths)
        try:
            yield copies
        except NanosetError as error:
            named_error = error
            for path, copy in zip(paths, copies, strict=True):
                # With a slash: the folder copies/1 is no part of copies/10.
                named_error = named_error.with_places(f"{copy.parent}/", f"{path.parent}/")
            raise named_error from error


@contextmanager
def path_and_access(path: Location) -> Iterator[tuple[Path, FileAccess | None]]:
    """Let the block read files of a bucket by local paths; each is downloaded when it is needed.

    A dataset `s3://bucket/web` consists of web.bin and web.idx. For this path, the block gets:

        path      /tmp/…/copies/web, in a temporary folder that is empty at first
        access    an object that downloads files: web.idx becomes /tmp/…/copies/web.idx

    Errors of the block name s3://bucket/web, since the user does not know the temporary folder.

    Args:
        path: The file, or how the names of several files begin.

    Yields:
        (path, access). For a local file: its own path and None, since nothing is downloaded.

    Raises:
        MissingError: The block did not find a file in the bucket.
    """
    if isinstance(path, Path):
        yield path, None
        return

    with temporary_folder("copies") as folder:
        local_path = folder / path.name
        access = FileAccess(folder, store_of(path.parent))
        # Errors such as a full disk get a message that says what to do (`explained`).
        with explained(folder, expected=_ROOM), _errors_naming(path, local_path):
            yield local_path, access


@contextmanager
def _errors_naming(path: RemotePath, copy: Path) -> Iterator[None]:
    """Within the block, let errors name a file in a bucket instead of its temporary copy.

    The block reads a local copy, so an error in line 3 of it would name
    `/tmp/…/copies/web.jsonl:3`. The user knows the file as `s3://bucket/web.jsonl:3`.

    Args:
        path: The file in the bucket.
        copy: Its copy on this machine.

    Raises:
        MissingError: The block did not find the file.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise _missing(path) from error
    except NanosetError as error:
        # Raise the same error with another place. Only the path of the copy in it is replaced, so
        # that `<copy>.idx:3` becomes `s3://bucket/web.idx:3`.
        place = error.where
        if place:
            place = place.replace(str(copy), str(path))
        raise error.at(place) from error


def _missing(path: RemotePath) -> MissingError:
    """Return the error for a file of a bucket that does not exist."""
    return MissingError("no such object", where=path, remedy="name an object that is there")
