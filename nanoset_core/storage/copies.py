"""Working copies of objects: made to match what a store holds now, and bounded to a capacity."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from nanoset_core.errors import StorageError
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.listing import Entry
from nanoset_core.storage.s3_uploads import etag_of_bytes
from nanoset_core.storage.store import Store, Stored


def refresh(store: Store, name: str, path: Path, *, is_marker: bool) -> bytes | None:
    """Make the copy of a small object what the store has now; return its bytes, or None where the store has none.

    Where the copy of a commit marker was another, the files beside it are removed.
    """
    found = store.read_stored(name)
    if found is None:
        return None
    data, stored = found
    had = path.read_bytes() if path.is_file() else None
    if had != data:
        if had is not None and is_marker:
            _remove_beside(path)
        write_atomic(path, data)
    _date(path, stored)
    return data


def unchanged(path: Path, stored: Stored | Entry) -> bytes | None:
    """Return the bytes of a copy that is the object by its ETag; None where it is not, or ETags are no digests."""
    data = path.read_bytes() if path.is_file() else b""
    if etag_of_bytes(data) != stored.mark:
        return None
    _date(path, stored)
    return data


def revalidate(store: Store, name: str, path: Path) -> None:
    """Fetch an object unless the copy has its size and time as they are now; remove the copy of none."""
    found = store.stat(name)
    if found is None:
        path.unlink(missing_ok=True)
        return
    status = path.stat() if path.is_file() else None
    if status is not None and (status.st_size, status.st_mtime_ns) == (found.size, found.written_ns):
        return
    if store.fetch(name, path):
        _date(path, found)


def make_room(folder: Path, capacity: int, wanted: int, url: str) -> None:
    """Remove the oldest copies below a folder until another one has room; hidden files are none, or not finished.

    Raises:
        StorageError: it is larger than the capacity.
    """
    if wanted > capacity:
        raise StorageError(
            "a file that is needed is larger than the room for working copies",
            where=url,
            found=f"{wanted:,} bytes",
            expected=f"at most {capacity:,} bytes",
            remedy="set storage.scratch_mib to more",
        )
    copies = sorted(_copies_below(folder))
    taken = sum(size for _, size, _ in copies)
    for _, size, copy in copies:
        if taken + wanted <= capacity:
            break
        copy.unlink(missing_ok=True)
        taken -= size


def _copies_below(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """Yield (changed at in ns, bytes, path) of every copy."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(place, name) for name in names if not name.startswith(".")):
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                yield status.st_ctime_ns, status.st_size, path


def _remove_beside(path: Path) -> None:
    """Remove all files of a folder but this one; where that is cut short, the next call does the rest."""
    for folder, _, names in os.walk(path.parent):
        for name in names:
            if (other := Path(folder, name)) != path:
                other.unlink(missing_ok=True)


def _date(path: Path, stored: Stored | Entry) -> None:
    """Give a copy the object's time: it tells when an output was made."""
    if path.stat().st_mtime_ns != stored.written_ns:
        os.utime(path, ns=(stored.written_ns, stored.written_ns))
