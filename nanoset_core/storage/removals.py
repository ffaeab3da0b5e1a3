"""Remove files and whole outputs, from a local folder or from the store of a `FileAccess`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import withdrawn
from nanoset_core.storage.store import in_parallel


def remove_file(access: FileAccess, path: Path) -> None:
    """Remove a file, from the store too if there is one.

    Args:
        access: Access to the file.
        path: Path of the file or its copy in the local folder.

    Raises:
        FileNotFoundError: The files are in a local folder, and this one does not exist.
    """
    if access.origin is None:
        path.unlink()
        return
    access.origin.delete(access.name(path))
    path.unlink(missing_ok=True)  # a file of a store need not have a copy


def remove_stored_folder(access: FileAccess, folder: Path) -> None:
    """Remove all files below a folder from the store, if there is one, but not their copies.

    Args:
        access: Access to the store.
        folder: Path of the folder of the copies.
    """
    store = access.origin
    if store is None:
        return
    names = [stored.name for stored in store.list(access.name(folder))]
    in_parallel(store.delete, names)


def withdraw_output(
    access: FileAccess, folder: Path, manifest: str, is_in_use: Callable[[], bool]
) -> tuple[Path, ...] | None:
    """Remove an output so that no reader finds only some of its files, even if interrupted.

    Args:
        access: Access to the output.
        folder: Its folder.
        manifest: Name of its manifest within the folder. Without it, the rest is not an output.
        is_in_use: Returns whether another process has begun to use the output meanwhile, so that it
            has to stay.

    Returns:
        None if the output is in use, and stays. Otherwise the local folders that the caller has to
        delete, at any time: one for an output on a local disk, and none for one in a bucket.
    """
    if access.origin is None:
        # Rename the local folder, so that readers do not find it any more.
        renamed = withdrawn(folder, is_in_use)
        return None if renamed is None else (renamed,)

    # A bucket cannot rename a folder. Delete the manifest first, since readers begin with it:
    # without a manifest, the other files are no output.
    if is_in_use():
        return None
    access.origin.delete(access.name(folder / manifest))
    remove_stored_folder(access, folder)

    # Remove the local copies of its files.
    shutil.rmtree(folder, ignore_errors=True)
    return ()
