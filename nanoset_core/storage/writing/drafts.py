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
    sweep_abandoned,
)
from nanoset_core.storage.copies.temporary import scratch_root, temporary_folder
from nanoset_core.storage.location import Location, store_of
from nanoset_core.storage.os_errors import explained, writing_to


@contextmanager
def writing_into(folder: Location, *, expected: str | None = None) -> Iterator[None]:
    """Check that a folder can be written to, and explain errors of the system in the block.

    A job may take hours, and writes its result at the end. So this fails at once if the folder is
    read-only, or if credentials for the bucket are missing. Later errors, such as a full disk, get
    a message that says what to do.

    Args:
        folder: The folder, on a disk or in a bucket. It is created if it does not exist.
        expected: What the errors say was expected, such as "room for the tokens twice".

    Raises:
        StorageError: It cannot be written to, or is full.
    """
    if isinstance(folder, Path):
        with writing_to(folder, expected=expected):
            yield
        return

    folder.place.check_writable(".probe")  # begins to upload an object, and stops
    # What goes to a bucket is first written to a folder on this machine. Its disk may be full.
    local_folder = scratch_root()
    with explained(local_folder, expected=expected):
        yield


@contextmanager
def replacing(folder: Location, *, expected: str | None = None) -> Iterator[None]:
    """Check that a folder can be created or replaced, before a long job does so in the block.

    To replace a local folder, a new one is written next to it, and renamed. In a bucket, nothing
    can be renamed, and objects are written to the folder itself. So these folders are written to:

        to replace /data/web            /data
        to replace s3://bucket/a/web    s3://bucket/a/web

    Args:
        folder: The folder.
        expected: What the errors say was expected, such as an amount of room.

    Raises:
        StorageError: The place cannot be written to; or in the block, the disk is full, and so on.
    """
    written_folder = folder
    if isinstance(folder, Path):
        written_folder = folder.parent
    with writing_into(written_folder, expected=expected):
        yield


@contextmanager
def draft_folder(folder: Location, name: str, swept_names: Iterable[str] = ()) -> Iterator[Path]:
    """Yield a temporary folder on this machine for unfinished files, and remove it after the block.

    If the files will go to a local folder, it is in this folder, so that they need only be renamed:

        files for data                 data/.tmp-web.bin-…
        files for s3://bucket/data     a folder for temporary files, from which they are uploaded

    Args:
        folder: Where the files will go.
        name: Name of one of the files, such as `web.bin`, after which the temporary folder is
            named.
        swept_names: If processes were killed in the block, their temporary folders are left. Those
            that are named after these files are removed first, if the files go to a local folder.
    """
    base_name = PurePosixPath(name).name  # web.bin for a/web.bin, since `a` need not exist yet
    if isinstance(folder, Path):
        for swept_name in swept_names:
            sweep_abandoned(folder, swept_name)
        context = claim_scratch(folder / base_name)
    else:
        context = temporary_folder(base_name)
    with context as scratch:
        yield scratch


@contextmanager
def folder_and_access(folder: Location) -> Iterator[tuple[Path, FileAccess]]:
    """Yield a local path for a folder, and an object that reads its files by their local paths.

    Files that are read from a bucket are copied to a temporary folder, here `/tmp/x`, one by one
    when they are needed:

        folder               path         what the object reads
        data/web             data/web     the files themselves
        s3://bucket/a/web    /tmp/x/web   files below s3://bucket/a, by copies below /tmp/x

    Args:
        folder: The folder. It must not be a whole bucket, such as s3://bucket: callers need the
            folder's name, `web` in the example.

    Yields:
        (path, object)
    """
    if isinstance(folder, Path):
        yield folder, FileAccess(folder)
        return
    # The object knows a file by its path relative to a folder of the bucket. If that were `web`
    # itself, its path would be empty. So take the folder that contains it: s3://bucket/a.
    parent_folder = folder.parent.place
    with temporary_folder(folder.name) as copies:
        yield copies / folder.name, FileAccess(copies, parent_folder)


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
