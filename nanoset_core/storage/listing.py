"""What folders hold: of a disk as it is found, of a store as one listing said."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from nanoset_core.errors import StorageError
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import Store, Stored, in_parallel

_READ = ".json"
"""Ending of the files whose bytes are read along with a store's names, but for hidden ones."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a folder holds under one name."""

    name: str
    is_folder: bool = False
    """Whether it is a folder, or a link that leads to one."""
    size: int = 0
    """Bytes of a file; of a link itself."""
    written_ns: int = 0
    """When it was written, nanoseconds since 1970; the link itself where it is one."""
    mark: str = ""
    """Version token of an object; empty in snapshots of a whole store, which may name a million
    objects.
    """
    is_link: bool = False


def disk_entries(folder: Path) -> list[Entry]:
    """Return what lies right in a local folder, by name; nothing where there is no such folder.

    Raises:
        StorageError: the folder cannot be read.
    """
    listed = []
    try:
        with os.scandir(folder) as found:
            for entry in found:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    status = entry.stat(follow_symlinks=False)
                    size, written_ns, is_link = (
                        status.st_size,
                        status.st_mtime_ns,
                        entry.is_symlink(),
                    )
                    listed.append(
                        Entry(entry.name, entry.is_dir(), size, written_ns, is_link=is_link)
                    )
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StorageError(
            "a folder of outputs cannot be read",
            where=folder,
            found=error.strerror,
            remedy="give this user the right to read it: outputs in it may need other outputs",
        ) from error
    return sorted(listed, key=lambda entry: entry.name)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a listing said of a folder of a store.

    Keys that no folder of files could hold are left out; of a key and what lies below it the latter
    counts.
    """

    place: str
    """Name of the folder that was listed; "" = all of the store."""
    tree: Mapping[str, Mapping[str, Entry]] | _Later = field(repr=False)
    """Name of a folder → name → what lies in it."""
    contents: Mapping[str, bytes] | None = field(default=None, repr=False)
    """Name → bytes of each JSON file, in snapshots of a whole store."""

    @staticmethod
    def of_store(store: Store) -> Snapshot:
        """List a store, and read all its JSON files."""
        tree = _tree(store.list(), marks=False)
        names = [
            name
            for name, _ in Snapshot("", tree).below("")
            if name.endswith(_READ) and "/." not in name
        ]
        contents = in_parallel(lambda name: store.read(name) or b"", names, CONNECTIONS)
        return Snapshot("", tree, dict(zip(names, contents, strict=True)))

    @staticmethod
    def of_folder(place: str, listed: Iterable[Stored]) -> Snapshot:
        """Return the snapshot of one folder from a listing that holds all below it."""
        return Snapshot(place, _tree(listed, marks=True))

    @staticmethod
    def when_asked(place: str, store: Store) -> Snapshot:
        """Return the snapshot of one folder of a store, which is listed when the first question is
        asked.
        """
        return Snapshot(place, _Later(place, store))

    def covers(self, name: str) -> bool:
        """Return whether the listing says what there is at a name."""
        return f"{name}/".startswith(f"{self.place}/") or not self.place

    def entries(self, folder: str) -> Mapping[str, Entry]:
        """Return what lies right in a folder."""
        return self.tree.get(folder, {})

    def file(self, name: str) -> Entry | None:
        """Return what was said of an object; None where there was none."""
        folder, _, base = name.rpartition("/")
        entry = self.entries(folder).get(base)
        return None if entry is None or entry.is_folder else entry

    def below(self, folder: str, prefix: str = "") -> Iterator[tuple[str, Entry]]:
        """Yield (name within the folder, object) of every object below a folder."""
        for name, entry in self.entries(folder).items():
            if entry.is_folder:
                yield from self.below(f"{folder}/{name}" if folder else name, f"{prefix}{name}/")
            else:
                yield prefix + name, entry


class _Later:
    """The tree of one folder of a store, listed when it is first looked into."""

    def __init__(self, place: str, store: Store) -> None:
        self._place, self._store, self._lock = place, store, Lock()
        self._found: Mapping[str, Mapping[str, Entry]] | None = None

    def __reduce__(self) -> tuple[type[_Later], tuple[str, Store]]:
        return _Later, (self._place, self._store)

    def get(self, folder: str, default: Mapping[str, Entry]) -> Mapping[str, Entry]:
        with self._lock:  # threads ask side by side
            if self._found is None:
                self._found = _tree(self._store.list(self._place), marks=True)
        return self._found.get(folder, default)


def _tree(listed: Iterable[Stored], *, marks: bool) -> dict[str, dict[str, Entry]]:
    tree: dict[str, dict[str, Entry]] = {}
    for found in listed:
        if is_inside(found.name):
            folder, _, name = found.name.rpartition("/")
            entry = Entry(
                name, size=found.size, written_ns=found.written_ns, mark=found.mark if marks else ""
            )
            tree.setdefault(folder, {})[name] = entry
    for folder in list(tree):
        while folder:
            parent, _, name = folder.rpartition("/")
            tree.setdefault(parent, {})[name] = Entry(name, is_folder=True)
            folder = parent
    return tree
