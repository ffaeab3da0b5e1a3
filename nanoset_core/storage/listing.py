"""What lies below a folder, to be walked through: on a disk as it is found, in a store as it was at one moment."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from nanoset_core.errors import StorageError
from nanoset_core.storage.access import CopyAccess, FileAccess, LocalAccess
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.scratch import UNFINISHED
from nanoset_core.storage.store import in_parallel

_READ = ".json"
"""Ending of the files whose bytes are read along with a store's names: they tell which outputs need which."""


class Entry(Protocol):
    """What a folder holds under one name."""

    @property
    def name(self) -> str:
        """Within the folder."""

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder, or a link that leads to one."""

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link."""

    @property
    def size(self) -> int:
        """Bytes of a file; of a link itself."""

    @property
    def written_ns(self) -> int:
        """When it was written, nanoseconds since 1970; the link itself where it is one."""


class Listing(FileAccess):
    """Files that can be walked through, folder by folder."""

    __slots__ = ()

    @abstractmethod
    def entries(self, folder: Path) -> list[Entry]:
        """What lies right in a folder, by name; nothing where there is no such folder.

        Raises:
            StorageError: the folder cannot be read.
        """

    @abstractmethod
    def is_link(self, path: Path) -> bool:
        """Whether a path is a symbolic link."""

    def unfinished(self) -> Iterator[Path]:
        """Objects of a store that were to become part of others; what is unfinished on a disk has locks to ask."""
        yield from ()


class FolderListing(LocalAccess, Listing):
    """Files on a disk, each looked at when it is asked for."""

    __slots__ = ()

    def entries(self, folder: Path) -> list[Entry]:
        try:
            with os.scandir(folder) as found:
                return [_DiskEntry(entry) for entry in sorted(found, key=lambda entry: entry.name)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StorageError(
                "a folder of outputs cannot be read",
                where=folder,
                found=error.strerror,
                remedy="give this user the right to read it: what it holds may need what lies elsewhere",
            ) from error

    def is_link(self, path: Path) -> bool:
        return path.is_symlink()


class _DiskEntry:
    """Asks for no more than the folder itself tells, until a size or time is wanted."""

    __slots__ = ("_entry",)

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self._entry = entry

    @property
    def name(self) -> str:
        return self._entry.name

    @property
    def is_folder(self) -> bool:
        return self._entry.is_dir()

    @property
    def is_link(self) -> bool:
        return self._entry.is_symlink()

    @property
    def size(self) -> int:
        return self._entry.stat(follow_symlinks=False).st_size

    @property
    def written_ns(self) -> int:
        return self._entry.stat(follow_symlinks=False).st_mtime_ns


@dataclass(frozen=True, slots=True)
class _StoredEntry:
    name: str
    is_folder: bool
    size: int = 0
    written_ns: int = 0
    is_link: bool = False


@dataclass(frozen=True, slots=True)
class StoreListing(CopyAccess, Listing):
    """What a store held when it was listed: every name, size and time, and the bytes of what is JSON.

    Keys that no folder of files could hold are no outputs, and left out; of a key and what lies below it the latter
    counts.
    """

    tree: Mapping[str, Mapping[str, _StoredEntry]] = field(compare=False, repr=False)
    """Name of a folder, empty for the one of all → name → what lies in it."""
    contents: Mapping[str, bytes] = field(compare=False, repr=False)
    """Name → bytes of each JSON file."""

    @staticmethod
    def of(access: CopyAccess) -> StoreListing:
        """List a store, and read all its JSON files."""
        tree: dict[str, dict[str, _StoredEntry]] = {}
        for found in access.origin.list():
            if is_inside(found.name):
                folder, _, name = found.name.rpartition("/")
                tree.setdefault(folder, {})[name] = _StoredEntry(name, False, found.size, found.written_ns)
        for folder in list(tree):
            while folder:
                parent, _, name = folder.rpartition("/")
                tree.setdefault(parent, {})[name] = _StoredEntry(name, True)
                folder = parent
        names = [
            f"{folder}/{entry.name}" if folder else entry.name
            for folder, entries in tree.items()
            for entry in entries.values()
            if not entry.is_folder and entry.name.endswith(_READ)
        ]
        contents = in_parallel(lambda name: access.origin.read(name) or b"", names, CONNECTIONS)
        return StoreListing(access.folder, access.origin, tree, dict(zip(names, contents, strict=True)))

    def _in(self, folder: Path) -> Mapping[str, _StoredEntry]:
        return self.tree.get("" if folder == self.folder else self.name(folder), {})

    def _file(self, path: Path) -> _StoredEntry | None:
        entry = self._in(path.parent).get(path.name)
        return None if entry is None or entry.is_folder else entry

    def entries(self, folder: Path) -> list[Entry]:
        return sorted(self._in(folder).values(), key=lambda entry: entry.name)

    def is_link(self, path: Path) -> bool:
        return False

    def unfinished(self) -> Iterator[Path]:
        for folder, entries in self.tree.items():
            for name, entry in entries.items():
                if name.startswith(UNFINISHED) and not entry.is_folder:
                    yield self.folder / folder / name

    def fetch_all(self, folder: Path, name: str) -> None:
        pass

    def names(self, folder: Path) -> frozenset[str]:
        return frozenset(self._in(folder))

    def size(self, path: Path) -> int | None:
        entry = self._file(path)
        return None if entry is None else entry.size

    def sizes(self, folder: Path, names: Iterable[str]) -> dict[str, int]:
        sizes = {name: self.size(folder / name) for name in names}
        return {name: size for name, size in sizes.items() if size is not None}

    def written_ns(self, path: Path) -> int:
        entry = self._file(path)
        return 0 if entry is None else entry.written_ns

    def written_in(self, parent: Path, name: str) -> dict[str, int]:
        paths = {entry: parent / entry / name for entry in self.names(parent)}
        return {entry: self.written_ns(path) for entry, path in paths.items() if self.size(path) is not None}

    def read_current(self, path: Path) -> bytes:
        """A JSON file's bytes; FileNotFoundError where there was none."""
        data = self.contents.get(self.name(path))
        if data is None:
            raise FileNotFoundError(self.url(path))
        return data

    def read_beside(self, path: Path) -> tuple[bytes, Mapping[str, int] | None]:
        return self.read_current(path), None
