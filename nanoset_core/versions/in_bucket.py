"""What is looked at, and removed, where outputs live in a bucket."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nanoset_core.outputs.current import read_current
from nanoset_core.outputs.manifest import MANIFEST
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import Stored, in_parallel
from nanoset_core.versions.garbage import Garbage

_READ = ".json"
"""ending of what tells which outputs need which"""


@contextmanager
def skeleton_of(access: FileAccess) -> Iterator[Path]:
    """A folder with every name of the bucket, its size and time, but the content of what is JSON alone.

    The other files are holes: they take no room. Gone when the block ends. Keys that no folder of files could hold are
    no outputs, and left out; of a key and what lies below it the latter counts.
    """
    with tempfile.TemporaryDirectory(prefix="nanoset-") as place:
        root, store = Path(place), access.store

        def lay(found: Stored) -> None:
            path = root / found.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((store.read(found.name) or b"") if found.name.endswith(_READ) else b"")
            if not found.name.endswith(_READ):
                os.truncate(path, found.size)
            os.utime(path, ns=(found.written_ns, found.written_ns))

        listed = [found for found in store.list() if is_inside(found.name)]
        folders = _folders(found.name for found in listed)
        in_parallel(lay, (found for found in listed if found.name not in folders), CONNECTIONS)
        yield root


def _folders(names: Iterable[str]) -> set[str]:
    """Every folder that one of the names lies in, however deep."""
    folders: set[str] = set()
    for name in names:
        while (name := name.rpartition("/")[0]) and name not in folders:
            folders.add(name)
    return folders


def remove_from_bucket(access: FileAccess, garbage: Sequence[Garbage]) -> set[Path]:
    """Remove versions and index files from the bucket, and the copies here; → the paths that are gone.

    A version's manifest goes first: without it nobody takes the rest for an output. One that was made current since
    it was judged stays.
    """
    store, gone = access.store, set()
    for item in garbage:
        name = access.name(item.path)
        if item.kind == "cache file":
            store.delete(name)
            item.path.unlink(missing_ok=True)
        elif read_current(item.path.parent, access)[0] == item.path.name:
            continue
        else:
            store.delete(f"{name}/{MANIFEST}")
            access.remove_all(item.path)
            shutil.rmtree(item.path, ignore_errors=True)
        gone.add(item.path)
    return gone
