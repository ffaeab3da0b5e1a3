"""Remove files and whole outputs, from a local folder or from the store of a `FileAccess`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import withdrawn
from nanoset_core.storage.requests import SMALL_REQUESTS_AT_ONCE, in_parallel


def remove_file(access: FileAccess, path: Path) -> None:
    """Remove a file, from the bucket too if it is stored in one.

    Programs work with files by their local paths. A file of a bucket also has such a path, where a
    copy may have been downloaded: then the object and the copy are both removed.

    Args:
        access: Access to the files. Its `origin` is the store of the bucket, or None if the files
            are in a local folder.
        path: Path of the file, or of its copy.

    Raises:
        FileNotFoundError: The files are in a local folder, and this one does not exist.
    """
    if access.origin is None:
        path.unlink()
        return
    access.origin.delete(access.name(path))
    path.unlink(missing_ok=True)  # a file of a store need not have a copy


def remove_stored_folder(access: FileAccess, folder: Path) -> None:
    """Remove all files below a folder of a bucket, but not their local copies.

    A bucket cannot remove a folder as a whole: it takes a request for each object, and many are
    sent at the same time. If the files are in a local folder, nothing happens.

    Args:
        access: Access to the files. Its `origin` is the store of the bucket, or None. If it has a
            listing of the folder, the files in this listing are removed.
        folder: Local path of the folder in which the copies are.
    """
    store = access.origin
    if store is None:
        return
    place = access.name(folder)
    listing = access.known_listing(place)
    if listing is None:
        names = [stored.name for stored in store.list(place)]
    else:
        names = [f"{place}/{name}" for name, _entry in listing.below(place)]
    in_parallel(store.delete, names, SMALL_REQUESTS_AT_ONCE)


def withdraw_output(
    access: FileAccess, folder: Path, manifest: str, is_in_use: Callable[[], bool]
) -> tuple[Path, ...] | None:
    """Remove an output so that no reader finds only some of its files, even if this is interrupted.

    An output is a folder of files, such as tokens and their index. Readers begin with its manifest,
    a small file that lists the others.

        on a local disk    rename the folder, so that readers do not find it; the caller deletes it
        in a bucket        delete the manifest, without which readers ignore the rest; then the rest

    Args:
        access: Access to the output. Its `origin` is the store of the bucket, or None.
        folder: Folder of the output, or of its local copies.
        manifest: Name of the manifest within the folder, such as `manifest.json`.
        is_in_use: Returns whether another process has begun to use the output meanwhile, so that it
            has to stay.

    Returns:
        None if the output is in use, and stays. Otherwise the local folders that the caller has to
        delete, at any time: one for an output on a local disk, and none for one in a bucket.
    """
    if access.origin is None:
        renamed = withdrawn(folder, is_in_use)
        return None if renamed is None else (renamed,)

    if is_in_use():
        return None
    access.origin.delete(access.name(folder / manifest))
    remove_stored_folder(access, folder)
    shutil.rmtree(folder, ignore_errors=True)  # the local copies of its files
    return ()
