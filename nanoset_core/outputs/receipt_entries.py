"""Entries of receipts: what a receipt says about each file, and whether a file still matches it.

An entry has the size of the file in `bytes`, and whatever else is known that changes with its
bytes: the checksum in `sha256`, the ETag in a bucket in `etag`, or the time of change in
`mtime_ns`. For example, `{"bytes": 80, "mtime_ns": 1700000000000000000}` is the entry of a local
file of 80 bytes that was not hashed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanoset_core.errors import StorageError
from nanoset_core.storage.location import Location, store_of
from nanoset_core.storage.places import takes_requests
from nanoset_core.storage.store import Store, Stored


def entry_of(
    folder: Location, name: str, size: int | None, sha256: str | None, *, has_etag_or_time: bool
) -> Mapping[str, Any]:
    r"""Return what is stored about a file that was just written, so that later changes are noticed.

    It goes into the receipt, a JSON file next to an output. For example:

        {"bytes": 80, "sha256": "9f86…"}       a local file that was hashed
        {"bytes": 80, "mtime_ns": 17673…}      a local file that was not
        {"bytes": 80, "etag": "\"d41d…\""}     an object in a bucket

    Args:
        folder: Folder of the file, on this machine or in a bucket.
        name: Name of the file.
        size: Bytes that were written; None to look them up.
        sha256: Checksum of the file as hex, or None if it was not hashed.
        has_etag_or_time: Whether to add the file's ETag, or its time of change if it is local.

    Raises:
        StorageError: Another call has replaced or removed the file in the meantime.
    """
    entry: dict[str, Any] = {"bytes": size}
    if sha256 is not None:
        entry["sha256"] = sha256
    if size is not None and not has_etag_or_time:
        return entry  # all is known. In a bucket, this saves a request

    # Look the file up, and check that it still has the size that was written.
    stored = _stat_after_put(folder, name, size)
    entry["bytes"] = stored.size
    if has_etag_or_time:
        entry.update(_etag_or_time(folder, stored, is_hashed=sha256 is not None))
    return entry


def _etag_or_time(folder: Location, stored: Stored, *, is_hashed: bool) -> dict[str, Any]:
    """Return what shows that a file got other bytes of the same size: its ETag or time of change.

        an object in a bucket                   {"etag": ...}, which changes with the bytes
        a local file whose checksum is known    {}: the checksum shows more than a time
        another local file                      {"mtime_ns": ...}, when it was written

    Args:
        folder: Folder of the file, on this machine or in a bucket.
        stored: The file as it is now.
        is_hashed: Whether its checksum is known.
    """
    if takes_requests(folder):
        return {"etag": stored.mark}
    if is_hashed:
        return {}
    return {"mtime_ns": stored.written_ns}


def _stat_after_put(folder: Location, name: str, size: int | None) -> Stored:
    """Look up a file that was just put in place, and check that it is still that file.

    For example, 80 bytes were put there, and the file has 90: another program has replaced it.

    Args:
        folder: Folder of the file, on this machine or in a bucket.
        name: Name of the file.
        size: Bytes that were put in place, or None if not known.

    Returns:
        Its size, its time of change, and its ETag in a bucket.

    Raises:
        StorageError: The file is missing or has another size, so another call has changed it.
    """
    stored = store_of(folder).stat(name)
    has_other_size = stored is not None and size is not None and stored.size != size
    if stored is None or has_other_size:
        raise StorageError(
            "another call wrote this output meanwhile",
            where=folder / name,
            remedy="run again once the other has ended",
        )
    return stored


def change_of(store: Store, name: str, entry: Mapping[str, Any], *, by_size: bool) -> str | None:
    """Return how a file differs from what a receipt stores about it, or None if it does not.

    A receipt is a JSON file next to an output, which has an entry for each file. The result is a
    clause for a message:

        the file does not exist             web.bin is missing
        another size than in the entry      web.bin has 90 bytes, and had 80
        another checksum                    web.bin has other bytes than those that were written
        no checksum, but another time       web.bin was written again

    Args:
        store: The folder of the file.
        name: Name of the file.
        entry: Its entry, such as {"bytes": 80, "sha256": "9f86..."}; instead of the checksum, it
            may have the ETag of an object in a bucket, or a time of change.
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
        if _has_same_bytes(store, name, stored, entry):
            return None
        return f"{name} has other bytes than those that were written"
    if _was_written_again(stored, entry):
        return f"{name} was written again"
    return None


def _has_same_bytes(store: Store, name: str, stored: Stored, entry: Mapping[str, Any]) -> bool:
    """Return whether a file has the bytes that were once written, so that it was not changed since.

    Args:
        store: The folder of the file, on this machine or in a bucket.
        name: Name of the file.
        stored: The file as it is now. In a bucket, its `mark` is its ETag.
        entry: What was recorded when it was written: its sha256, and its ETag if it was in a
            bucket.
    """
    # In a bucket, an equal ETag shows that nobody has replaced the object.
    if "etag" in entry and entry["etag"] == stored.mark:
        return True
    # The entry of a local file has no ETag, and a copy of an object can have another one. So
    # compare the bytes, although that takes long.
    recorded_sha256: str = entry["sha256"]
    return store.sha256(name) == recorded_sha256


def _was_written_again(stored: Stored, entry: Mapping[str, Any]) -> bool:
    """Return whether a file was replaced or changed since its entry was stored.

    The ETag of an object in a bucket changes then, and so does the time of change of a local file.

    Args:
        stored: The file as it is now.
        entry: Its entry, such as {"bytes": 80, "etag": "..."} or {"bytes": 80, "mtime_ns":
            17673...}. If it has neither, the result is False.
    """
    if "etag" in entry and entry["etag"] != stored.mark:
        return True
    has_other_time: bool = "mtime_ns" in entry and entry["mtime_ns"] != stored.written_ns
    return has_other_time
