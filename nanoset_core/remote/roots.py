"""Output roots by their location: a local folder, or a bucket and a mirror of it."""

from __future__ import annotations

import os
from pathlib import Path

from nanoset_core.manifest import OutputRoot
from nanoset_core.remote.spec import StorageSpec, is_remote, mirror_folder, parse_place


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
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "nanoset" / "mirror"
    base = cache if storage.mirror is None else Path(storage.mirror).expanduser()
    return OutputRoot(mirror_folder(place, base).resolve(), remote=place)
