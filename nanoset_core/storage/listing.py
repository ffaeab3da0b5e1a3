"""List the contents of folders: of a local disk at this moment, of a store as it was listed once.

Listing a store takes a request for each thousand objects, so a command lists it once and answers
all its questions from this `StoreListing`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from nanoset_core.errors import StorageError
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.requests import SMALL_REQUESTS_AT_ONCE, in_parallel
from nanoset_core.storage.store import Store, Stored

_JSON_ENDING = ".json"
"""Ending of the files whose bytes a listing of a whole store contains."""


class Inode(NamedTuple):
    """Identifies a file of a disk that has several paths (hard links)."""

    device: int
    """Number of the file system."""
    number: int
    """Number of the file there."""
    n_paths: int
    """How many paths the file has."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder directly in a folder."""

    name: str
    """Name within that folder."""
    is_folder: bool = False
    """Whether it is a folder, or a link to one."""
    size: int = 0
    """Bytes of a file. If it is a link, this and `written_ns` describe the link itself."""
    written_ns: int = 0
    """When it was written, in nanoseconds since 1970."""
    md5: str | None = None
    """MD5 of an object as hex, if the listing reports it.

    It is None for files of a disk. It is also None in listings of a whole store, which may have a
    million objects, to save memory.
    """
    mark: str | None = None
    """Mark of the version of an object, such as its ETag; None as for `md5`, except that every
    object has one."""
    is_link: bool = False
    """Whether it is a symbolic link."""
    inode: Inode | None = None
    """Identifies a file of a disk that has other paths, too; None if this is its only path."""


def disk_entries(folder: Path) -> list[Entry]:
    """Return the files and folders directly in a local folder, sorted by name.

    For example, for a folder with the file `a.bin` of 80 bytes and the folder `web`: entries with
    the names `a.bin` (with its size and time) and `web`.

    Args:
        folder: The folder. If it does not exist, or is a file, the list is empty.

    Raises:
        StorageError: The folder cannot be read.
    """
    entries: list[Entry] = []
    try:
        with os.scandir(folder) as scanned_entries:
            for scanned in scanned_entries:
                # A file may be deleted after it was listed: leave it out.
                with contextlib.suppress(FileNotFoundError):
                    entries.append(_disk_entry(scanned))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StorageError(
            "a folder of outputs cannot be read",
            where=folder,
            found=error.strerror,
            remedy="give this user the right to read it: outputs in it may need other outputs",
        ) from error
    return sorted(entries, key=lambda entry: entry.name)


def _disk_entry(scanned: os.DirEntry[str]) -> Entry:
    """Return the description of a file or folder that `os.scandir` listed.

    A symbolic link can lead to a file, to a folder, or nowhere:

        a link to a file      has its own size and time, not those of the file
        a link to a folder    counts as a folder, since files are found below it
        a link to nothing     is listed like a file; to look at its target would be an error

    Raises:
        FileNotFoundError: The file was deleted since it was listed.
    """
    # The size and time of a link are its own, so that a link whose target is missing is listed,
    # too. But a link to a folder counts as a folder, since files are found below it.
    status = scanned.stat(follow_symlinks=False)
    is_folder = scanned.is_dir(follow_symlinks=True)
    inode = None
    if status.st_nlink > 1 and not is_folder:
        inode = Inode(status.st_dev, status.st_ino, n_paths=status.st_nlink)
    return Entry(
        name=scanned.name,
        is_folder=is_folder,
        size=status.st_size,
        written_ns=status.st_mtime_ns,
        is_link=scanned.is_symlink(),
        inode=inode,
    )


@dataclass(frozen=True, slots=True)
class StoreListing:
    """The contents of a folder of a store, or of a whole store, when it was listed.

    A bucket may have keys that no file could have as its name, such as `a/../b`: these are left
    out. It may also have an object `a` next to an object `a/b`: then `a` counts as a folder.
    """

    place: str
    """Name of the folder that was listed; empty if the whole store was listed."""
    tree: Mapping[str, Mapping[str, Entry]] | _LazyTree = field(repr=False)
    """Name of a folder within the store → name within this folder → file or folder."""
    contents: Mapping[str, bytes] | None = field(default=None, repr=False)
    """Name of each JSON file → its bytes, in a listing that `of_store` made; else None."""

    @staticmethod
    def of_store(store: Store) -> StoreListing:
        """List a whole store, and read all of its small JSON files, with parallel requests.

        A command such as `nanoset status` looks at thousands of outputs, each of which has JSON
        files. To list and read each of them in turn would take minutes in a bucket. With the
        listing, later questions need no requests.

        Args:
            store: The store.

        Returns:
            A listing with `contents`: the bytes of each JSON file, except for hidden ones.

        Raises:
            StorageError: The store cannot be listed, or a file cannot be read.
        """
        tree = _folder_tree(store.list(), has_marks=False)
        all_files = StoreListing(place="", tree=tree).below("")  # (name, description) of each
        json_names = [name for name, _entry in all_files if _is_visible_json(name)]

        def content(name: str) -> bytes:
            """Return the bytes of a file; none if it was deleted after it was listed."""
            return store.read(name) or b""

        contents = in_parallel(content, json_names, SMALL_REQUESTS_AT_ONCE)
        return StoreListing("", tree, dict(zip(json_names, contents, strict=True)))

    @staticmethod
    def of_folder(place: str, objects: Iterable[Stored]) -> StoreListing:
        """Return the listing of one folder of a store.

        Args:
            place: Name of the folder.
            objects: All objects below it.

        Returns:
            A listing with the MD5s and marks of the objects, and without the contents of files.
        """
        return StoreListing(place, _folder_tree(objects, has_marks=True))

    @staticmethod
    def when_asked(place: str, store: Store) -> StoreListing:
        """Return a listing of one folder, which is made only when it is first needed.

        Often nobody asks for them, and the request to the bucket is saved.

        Args:
            place: Name of the folder.
            store: The store with the folder.

        Returns:
            A listing like that of `of_folder`. If it is passed to another process before it is
            needed, that process lists the folder itself.
        """
        return StoreListing(place, _LazyTree(place, store))

    def covers(self, name: str) -> bool:
        """Return whether the listing shows if an object or folder with a name exists.

        A listing of the folder `web` covers `web` and `web/a.bin`, but not `web2`. That of the
        whole store covers everything.

        Args:
            name: Name within the store.
        """
        is_whole_store = not self.place
        return is_whole_store or f"{name}/".startswith(f"{self.place}/")

    def entries(self, folder: str) -> Mapping[str, Entry]:
        """Return the files and folders directly in a folder, by name; empty if it does not exist.

        Args:
            folder: Name of the folder within the store.

        Returns:
            Name within the folder → description of the file or folder.
        """
        return self.tree.get(folder, {})

    def file(self, name: str) -> Entry | None:
        """Return the description of an object, or None if it does not exist or is a folder.

        For example, for the name `web/a.bin`, the folder `web` is looked up, and then `a.bin` in
        it.

        Args:
            name: Name of the object within the store.

        Returns:
            Its size, time and, in listings of one folder, MD5.
        """
        folder, _, base = name.rpartition("/")
        entry = self.entries(folder).get(base)
        if entry is None or entry.is_folder:
            return None
        return entry

    def below(self, folder: str, prefix: str = "") -> Iterator[tuple[str, Entry]]:
        """Yield all objects in a folder and in the folders within it.

        For example, the folder `web` has the file `a.bin`, and a folder `2026` with the file
        `b.bin`. This yields `a.bin` and `2026/b.bin`.

        Args:
            folder: Name of the folder within the store; empty for the whole store.
            prefix: Text to put before each name. The method calls itself for the folder `web/2026`,
                with the prefix `2026/`.

        Yields:
            (name of the object within the folder, its description)
        """
        for name, entry in self.entries(folder).items():
            if entry.is_folder:
                subfolder = f"{folder}/{name}" if folder else name
                yield from self.below(subfolder, f"{prefix}{name}/")
            else:
                yield prefix + name, entry


Snapshot = StoreListing
"""Former name, which pickles of datasets in buckets contain."""


def _is_visible_json(name: str) -> bool:
    """Return whether an object is a JSON file that is not hidden within a folder.

    web/manifest.json         True
    web/.made.json            False: it is hidden
    web/.old/manifest.json    False: its folder is hidden
    .builds/lease.json        True: a hidden folder at the top counts as visible
    """
    return name.endswith(_JSON_ENDING) and "/." not in name


class _LazyTree:
    """The tree of a folder (see `StoreListing.tree`), which is listed when it is first needed.

    If it is pickled, only the place and the store are passed on, so that another process lists the
    folder itself.
    """

    def __init__(self, place: str, store: Store) -> None:
        """Remember what to list.

        Args:
            place: Name of the folder.
            store: The store with the folder.
        """
        self._place = place
        self._store = store
        self._lock = Lock()
        self._tree: Mapping[str, Mapping[str, Entry]] | None = None

    def __reduce__(self) -> tuple[type[_LazyTree], tuple[str, Store]]:
        """Return how to rebuild this object from a pickle; a lock cannot be pickled."""
        return _LazyTree, (self._place, self._store)

    def get(self, folder: str, default: Mapping[str, Entry]) -> Mapping[str, Entry]:
        """Return the files and folders directly in a folder, as the `get` of a dictionary would.

        At the first call, the store is listed.

        Args:
            folder: Name of the folder within the store.
            default: Result if the folder does not exist.
        """
        # Several threads may ask at the same time: only the first one lists the store.
        with self._lock:
            if self._tree is None:
                self._tree = _folder_tree(self._store.list(self._place), has_marks=True)
        return self._tree.get(folder, default)


def _folder_tree(listed: Iterable[Stored], *, has_marks: bool) -> dict[str, dict[str, Entry]]:
    """Return the folders that the names of listed objects imply, and what is directly in each.

    A store lists only objects, without folders. For example, the object `a/b/c` gives:

        folder    what is directly in it
        "a/b"     {"c": the object}
        "a"       {"b": a folder}
        ""        {"a": a folder}

    Args:
        listed: The objects.
        has_marks: Whether the entries get the MD5s and marks of the objects.

    Returns:
        Name of each folder → name within this folder → file or folder.
    """
    tree: dict[str, dict[str, Entry]] = {}
    for stored in listed:
        if is_inside(stored.name):  # otherwise, no file could have this name
            folder, _, name = stored.name.rpartition("/")  # "a/b" and "c"
            tree.setdefault(folder, {})[name] = _entry(name, stored, has_mark=has_marks)
    _add_folders(tree)
    return tree


def _entry(name: str, stored: Stored, *, has_mark: bool) -> Entry:
    """Return the description of an object as a file in a folder.

    Args:
        name: Name of the file within the folder.
        stored: The object.
        has_mark: Whether the description gets the MD5 and the mark of the object.
    """
    return Entry(
        name,
        size=stored.size,
        written_ns=stored.written_ns,
        md5=stored.md5 if has_mark else None,
        mark=stored.mark if has_mark else None,
    )


def _add_folders(tree: dict[str, dict[str, Entry]]) -> None:
    """Enter each folder of a tree into the folder above it, and so on up to the top.

    A store may have both objects `a` and `a/b`. Then the folder `a` replaces the object `a`.

    Args:
        tree: Name of each folder with objects → name within this folder → object. For "a/b", the
            folder "a" gets the entry "b", and the folder "" gets the entry "a".
    """
    for folder in list(tree):
        while folder:
            parent, _, name = folder.rpartition("/")  # "a" and "b", then "" and "a"
            tree.setdefault(parent, {})[name] = Entry(name, is_folder=True)
            folder = parent
