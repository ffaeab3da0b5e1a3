"""Datasets by their prefix, local or in a bucket."""

from __future__ import annotations

from pathlib import Path

from nanoset_core.indexed.layout import idx_path
from nanoset_core.storage.access import FileAccess, LocalAccess, copies_of
from nanoset_core.storage.location import StorageSpec, copies_folder, is_remote, parse_place


def locate(prefix: str, storage: StorageSpec | None = None) -> tuple[str, FileAccess]:
    """(prefix on this machine, how its files are reached); the .idx of one at s3://bucket/prefix is brought anew.

    Raises:
        ConfigError: this is no place in a bucket.
        StorageError: the bucket cannot be reached, or refuses.
    """
    if not is_remote(prefix):
        return prefix, LocalAccess(Path(prefix).parent)
    storage = storage or StorageSpec()
    folder, _, name = prefix.rstrip("/").rpartition("/")
    place = parse_place(folder, storage, where="the dataset's prefix")
    access = copies_of(copies_folder(place, storage), place)
    access.renew(idx_path(access.folder / name))
    return str(access.folder / name), access
