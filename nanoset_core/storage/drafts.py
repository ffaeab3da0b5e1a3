"""Write files to a local draft first, and then put them in their place, on a disk or in a bucket.

If the place is on this machine, the draft is next to it, so that finished files need only be
renamed. Otherwise it is below TMPDIR, and its files are uploaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import (
    alone_in,
    atomic_file,
    claim_scratch,
    fsync_folder,
    move_into_place,
    sweep_abandoned,
)
from nanoset_core.storage.location import Location, store_of
from nanoset_core.storage.os_errors import explained, writing_to
from nanoset_core.storage.store import THREADS
from nanoset_core.storage.working_copies import scratch_root, temporary_folder, work_folder


@contextmanager
def writing_into(folder: Location, *, expected: str | None = None) -> Iterator[None]:
    """Check that a folder can be written to, and explain errors of the system in the block.

    A job may take hours, and writes its result at the end. So this fails at once if the folder is
    read-only, or if credentials for the bucket are missing. Later errors, such as a full disk, get
    a message that says what to do.

    Args:
        folder: The folder, on a disk or in a bucket. It is created if it does not exist.
        expected: What the errors say was expected.

    Raises:
        StorageError: It cannot be written to, or is full.
    """
    if isinstance(folder, Path):
        with writing_to(folder, expected=expected):
            yield
        return

    # Begin an upload to the bucket, and abort it: this fails now rather than after the work.
    folder.place.check_writable(".probe")
    # The block writes its files to a local temporary folder first, so errors of the system are
    # about that folder.
    with explained(scratch_root(), expected=expected):
        yield


@contextmanager
def replacing(folder: Location, *, expected: str | None = None) -> Iterator[None]:
    """Check that a folder can be created or replaced, and explain the system's errors in the block.

    To replace a local folder, a new one is written next to it, and renamed. In a bucket, nothing
    can be renamed, and objects are written to the folder itself. So these folders are written to:

        to replace /data/web            /data
        to replace s3://bucket/a/web    s3://bucket/a/web

    Args:
        folder: The folder.
        expected: What the errors say was expected, such as an amount of room.

    Raises:
        StorageError: The place cannot be written to, or is full.
    """
    # To rename a local folder writes to its parent.
    written_folder = folder.parent if isinstance(folder, Path) else folder
    with writing_into(written_folder, expected=expected):
        yield


@contextmanager
def draft_folder(folder: Location, name: str, swept_names: Iterable[str] = ()) -> Iterator[Path]:
    """Yield a local folder for unfinished files, which is removed when the block ends.

        for the folder data        data/.tmp-web.bin-..., so that the files need only be renamed
        for s3://bucket/data       a folder for temporary files, from which they are uploaded

    If a process is killed in the block, its folder stays. A later call removes it.

    Args:
        folder: Where the files will go.
        name: Name of one of the files, such as `web.bin`, after which the temporary folder is
            named.
        swept_names: Names of files. Temporary files and folders that are named after them, and that
            killed processes have left in a local folder, are removed first.
    """
    # The file may be in a subfolder, which need not exist yet.
    base_name = PurePosixPath(name).name
    if isinstance(folder, Path):
        for swept_name in swept_names:
            sweep_abandoned(folder, swept_name)
        # On the same file system as the output, so that finished files can be renamed.
        context = claim_scratch(folder / base_name)
    else:
        context = temporary_folder(base_name)
    with context as scratch:
        yield scratch


def resumable_draft(folder: Location, name: str, scratch: Path | None) -> Path:
    """Return the path of an unfinished folder that outlives its process, so that a later call
    continues.

    Usual temporary folders have random names. This one has the same name each time, so that a call
    that is repeated finds what an earlier one has written before it was killed.

    Args:
        folder: The folder that the draft becomes.
        name: File name of the draft, such as `.web.scratch`.
        scratch: Folder for unfinished work. None: next to the output, or below TMPDIR if the output
            is in a bucket. For a local output it is ignored: a folder can be renamed only on its
            own disk.

    Returns:
        A path that is the same for each call with these arguments. Nothing is created there.
    """
    if isinstance(folder, Path):
        return work_folder(folder, name, None)
    return work_folder(folder, name, scratch)


@contextmanager
def folder_and_access(folder: Location) -> Iterator[tuple[Path, FileAccess]]:
    """Yield what is needed to look at the files of a folder, locally or in a bucket.

    Files that are read from a bucket are copied to a temporary folder, `/tmp/x` here. The yielded
    path is that of the folder's copies, which do not exist until a file is read:

        folder               path         access
        data/web             data/web     to data/web
        s3://bucket/a/web    /tmp/x/web   to s3://bucket/a, with copies in /tmp/x

    Args:
        folder: The folder. One in a bucket must not be the whole bucket, which has no name.

    Yields:
        (path of the folder for the access, the access)
    """
    if isinstance(folder, Path):
        yield folder, FileAccess(folder)
        return
    # An access has paths of files below its folder, but none for the folder itself. So access the
    # parent, in which the folder has a name.
    with temporary_folder(folder.name) as copies:
        yield copies / folder.name, FileAccess(copies, folder.parent.place)


@contextmanager
def alone_at(folder: Location) -> Iterator[None]:
    """Let other processes of this machine wait for the block, if they enter it for the same folder.

    Args:
        folder: The folder, which is locked. A bucket has no locks: nobody waits there.
    """
    if isinstance(folder, Path):
        with alone_in(folder):
            yield
    else:
        yield


def puts_at_once(folder: Location) -> int:
    """Return by how many threads files are best put in a folder.

    To rename a file on this machine takes no time. An upload to a bucket mostly waits for the
    server, so that several at the same time are faster.

    Args:
        folder: The folder that the files go to.

    Returns:
        1 for a local folder; 8 for a bucket.
    """
    return 1 if isinstance(folder, Path) else THREADS


def put_in_folder(
    path: Path, folder: Location, name: str, sha256: str | None = None, *, is_new: bool = False
) -> None:
    """Move a finished file to a local folder, or upload it to a folder in a bucket.

    Args:
        path: The file.
        folder: The folder.
        name: Name of the file in the folder.
        sha256: Checksum with which an upload is compared, if known.
        is_new: Whether the folder is known to have no file of this name.
    """
    if isinstance(folder, Path):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)
    else:
        # The file stays in the draft, so that a call that is killed can upload it again.
        folder.place.put_file(name, path, sha256=sha256, is_new=is_new)


def put_small_file(folder: Location, name: str, data: bytes) -> None:
    """Write a small file, which need not survive a power failure until `make_durable` is called.

    To wait until the disk has stored the name of a file takes long. A caller that writes many small
    files does that once at the end.

    Args:
        folder: The folder, on a disk or in a bucket.
        name: Name of the file in the folder, such as `receipt.json`.
        data: All its bytes.

    Raises:
        OSError: The local file cannot be written.
        StorageError: The object cannot be written.
    """
    if isinstance(folder, Path):
        with atomic_file(folder / name, sync=False) as file:
            file.write(data)
    else:
        store_of(folder).put(name, data)


def make_durable(folder: Location) -> None:
    """Let files that were put in a folder survive a power failure; objects do so in any case.

    Args:
        folder: The folder. Only the files directly in it are meant, not those of folders in it.
    """
    if isinstance(folder, Path):
        fsync_folder(folder)


def deliver_folder(draft: Path, target: Path) -> None:
    """Rename a folder that is finished, and contains its receipt, in place of an earlier one.

    Args:
        draft: The folder, on the file system of `target`.
        target: Its new path.
    """
    fsync_folder(draft)
    # Remove an earlier output that a killed call had moved away.
    sweep_abandoned(target.parent, target.name)
    move_into_place(draft, target)
