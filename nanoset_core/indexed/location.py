"""Datasets by their prefix, local or in a bucket."""

from __future__ import annotations

from nanoset_core.indexed.layout import idx_path
from nanoset_core.storage.location import StorageSpec, copies_folder, is_remote, parse_place
from nanoset_core.storage.mirror import Mirror


def local_prefix(prefix: str, storage: StorageSpec | None = None) -> str:
    """Where a dataset's working copies lie; the .idx of one at s3://bucket/prefix is brought, unless it is here.

    Raises:
        ConfigError: this is no place in a bucket.
        StorageError: the bucket cannot be reached, or refuses.
    """
    if not is_remote(prefix):
        return prefix
    storage = storage or StorageSpec()
    folder, _, name = prefix.rstrip("/").rpartition("/")
    place = parse_place(folder, storage, where="the dataset's prefix")
    mirror = Mirror(copies_folder(place, storage), place)
    mirror.renew(idx_path(mirror.folder / name))
    return str(mirror.folder / name)
