"""Entries of receipts: what a receipt says about each file, and whether a file still matches it.

An entry has the size of the file in `bytes`, and whatever else is known that changes with its
bytes: the checksum in `sha256`, the ETag in a bucket in `etag`, or the time of change in
`mtime_ns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanoset_core.errors import StorageError
from nanoset_core.storage.location import Location, RemoteFolder, store_of
from nanoset_core.storage.store import Store


def entry_of(
    folder: Location, name: str, size: int | None, sha256: str | None, *, has_marks: bool
) -> Mapping[str, Any]:
    """Return the entry of a file that was put in place.

    Args:
        folder: Folder of the file.
        name: Name of the file.
        size: Bytes that were put in place, or None if that is not known.
        sha256: Checksum of the file as hex, or None if it was not hashed.
        has_marks: Whether the entry gets an ETag or a time of change.

    Returns:
        `bytes`, and some of `sha256`, `etag` and `mtime_ns`. `change_of` compares them later.

    Raises:
        StorageError: Another call has replaced or removed the file in the meantime.
    """
    if not has_marks and size is not None:
        # Nothing that only the store knows is needed.
        return {"bytes": size} if sha256 is None else {"bytes": size, "sha256": sha256}
    stored = store_of(folder).stat(name)
    if stored is None or size not in (None, stored.size):
        raise StorageError(
            "another call wrote this output meanwhile",
            where=folder / name,
            remedy="run again once the other has ended",
        )

    entry: dict[str, Any] = {"bytes": stored.size}
    if sha256 is not None:
        entry["sha256"] = sha256
    if not has_marks:
        return entry
    if isinstance(folder, RemoteFolder):
        entry["etag"] = stored.mark
    elif sha256 is None:
        # Without a checksum, the time of change is the only sign of other bytes of this size.
        entry["mtime_ns"] = stored.written_ns
    return entry


def change_of(store: Store, name: str, entry: Mapping[str, Any], *, by_size: bool) -> str | None:
    """Return how a file differs from its entry of a receipt, or None if it does not.

    Args:
        store: The folder of the file.
        name: Name of the file.
        entry: What `entry_of` returned for it.
        by_size: Whether to compare only the size.
    """
    stored = store.stat(name)
    if stored is None:
        return f"{name} is missing"
    if stored.size != entry["bytes"]:
        return f"{name} has {stored.size:,} bytes, and had {entry['bytes']:,}"
    if by_size:
        return None

    if "sha256" in entry:
        # A copy of an object may have another ETag: it depends on the parts of the upload. So
        # the bytes are hashed if the ETag differs.
        if stored.mark == entry.get("etag") or store.sha256(name) == entry["sha256"]:
            return None
        return f"{name} has other bytes than those that were written"

    has_same_mark = entry.get("etag", stored.mark) == stored.mark
    has_same_time = entry.get("mtime_ns", stored.written_ns) == stored.written_ns
    if has_same_mark and has_same_time:
        return None
    return f"{name} was written again"
