"""Output roots, and single datasets, by their location: a local folder, or a bucket and a mirror of it."""

from __future__ import annotations

import os
from pathlib import Path

from nanoset_core.indexed.layout import idx_path
from nanoset_core.manifest import OutputRoot
from nanoset_core.remote.mirror import Mirror
from nanoset_core.remote.spec import S3Place, StorageSpec, is_remote, mirror_folder, parse_place


def open_root(location: str | os.PathLike[str], storage: StorageSpec | None = None) -> OutputRoot:
    """The outputs at a local folder, or at s3://bucket/prefix.

    Args:
        location: where they live.
        storage: how the bucket is reached; absent = as the AWS configuration says, with copies in the user's cache
            folder.

    Raises:
        ConfigError: this is no place in a bucket.
    """
    if not is_remote(os.fspath(location)):
        return OutputRoot(Path(location).resolve())
    storage = storage or StorageSpec()
    place = parse_place(os.fspath(location), storage, where="the output root")
    return OutputRoot(_copies_of(place, storage), remote=place)


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
    mirror = Mirror(_copies_of(place, storage), place)
    mirror.renew(idx_path(mirror.folder / name))
    return str(mirror.folder / name)


def _copies_of(place: S3Place, storage: StorageSpec) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "nanoset" / "mirror"
    base = cache if storage.mirror is None else Path(storage.mirror).expanduser()
    return mirror_folder(place, base).resolve()
