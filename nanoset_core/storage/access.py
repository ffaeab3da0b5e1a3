"""The files below a folder: they are there, or live in a store of which the folder holds working copies.

Readers and writers of files are given such an object, and ask it. It pickles, so that other processes reach the files
in the same way.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path
from typing import TypeVar

from nanoset_core.errors import MissingError
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.block_file import BlockFile, MappedFile
from nanoset_core.storage.copies import make_room, refresh, revalidate, unchanged
from nanoset_core.storage.listing import Entry, Snapshot, disk_entries
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.pieces import read_pieces
from nanoset_core.storage.regular_files import map_regular, read_regular
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.scratch import unfinished_name
from nanoset_core.storage.store import Store, Stored, in_parallel

T = TypeVar("T")
R = TypeVar("R")
_ASKED_ONE_BY_ONE = 8
"""Files that are sent, or folders that are looked into, without listing first what is there."""
_ENTRIES_TOLD = 1000
"""Objects that one request tells of."""
_FOLDERS_AT_ONCE = 1024
"""Folders of which the listing is in memory."""


@dataclass(frozen=True, slots=True)
class FileAccess:
    """Files of a local folder, by their absolute paths; or of a store, with working copies in the folder.

    The store is the truth: an output is there when its manifest is, and the manifest goes up last. Work is done on the
    copies; what a process that was killed had finished there is sent by the next one. Copies may be removed at any
    time. `fetch` and `open_bytes` take paths outside of the folder, too, such as those of cached index files.
    """

    folder: Path
    """Absolute: where the files are, or their copies, in the same layout."""
    origin: Store | None = None
    """Where they live; None = in the folder."""
    capacity: int | None = field(default=None, kw_only=True)
    """Bytes that copies may take; None where all of them stay."""
    snapshot: Snapshot | None = field(default=None, kw_only=True, compare=False, repr=False)
    """What a listing of the store said: it is believed instead of asking again."""

    @property
    def store(self) -> Store:
        """Where the files live."""
        return LocalStore(self.folder) if self.origin is None else self.origin

    @property
    def has_copies(self) -> bool:
        """Whether the folder holds copies of what lives elsewhere."""
        return self.origin is not None

    def with_copies_in(self, folder: Path) -> FileAccess:
        """Return access to the same files with copies in another folder, which go once they were sent."""
        return self if self.origin is None else FileAccess(folder, self.origin, capacity=self.capacity or sys.maxsize)

    def name(self, path: Path) -> str:
        """Return a file's name in the store."""
        return path.relative_to(self.folder).as_posix()

    def url(self, path: Path) -> str:
        """Return where a file lives, for messages."""
        return str(path) if self.origin is None else self.origin.url(self.name(path))

    def fetch(
        self, path: Path, *, size: int | None = None, sha256: str | None = None, pieces: Path | None = None
    ) -> Path:
        """Make a file readable at its path, where it exists at all; return the path.

        Args:
            path: of the file.
            size: bytes, where they are known: a copy of another size is downloaded again.
            sha256: hex, that it must have, where that is known.
            pieces: a file that lists the digests of its pieces, and can be read.

        Raises:
            StorageError: it has other bytes than were written.
        """
        if self.origin is None or not path.is_relative_to(self.folder):
            return path
        if not path.is_file() or size not in (None, path.stat().st_size):
            listed = None if pieces is None else read_pieces(pieces)
            if self.capacity is not None:
                make_room(self.folder, self.capacity, self.size(path) or 0, self.url(path))
            self.origin.fetch(self.name(path), path, sha256=sha256, pieces=listed)
        return path

    def revalidate(self, path: Path) -> None:
        """Fetch a file unless the copy has the size and time of the object as it is now; remove the copy of none."""
        revalidate(self.store, self.name(path), path)

    def fetch_all(self, folder: Path, name: str) -> None:
        """Fetch every file of this name below a folder, as they are stored now; each is a commit marker.

        Where a copy was outdated, the other files of its folder belong to another making and are removed. Copies that
        the store does not have stay: a build may be about to send them.
        """
        if (store := self.origin) is not None and self.snapshot is None:
            names = [found.name for found in store.list(self.name(folder)) if is_inside(found.name)]
            wanted = [found for found in names if found.endswith(f"/{name}")]
            in_parallel(lambda found: refresh(store, found, self.folder / found, is_marker=True), wanted)

    def read_current(self, path: Path) -> bytes:
        """Return a small file's bytes as they are stored now; FileNotFoundError where there is none."""
        if self.origin is None:
            return read_regular(path)
        name, data, snapshot = self.name(path), None, self.snapshot
        if snapshot is None or not snapshot.covers(name):
            data = refresh(self.origin, name, path, is_marker=False)
        elif snapshot.contents is not None:
            data = snapshot.contents.get(name)
        elif (entry := snapshot.file(name)) is not None:
            data = unchanged(path, entry) or refresh(self.origin, name, path, is_marker=False)
        if data is None:
            raise FileNotFoundError(self.url(path))
        return data

    def read_beside(self, path: Path) -> tuple[bytes, Mapping[str, int] | None]:
        """Return (bytes of a commit marker, relative name → bytes of all in its folder, where that was told as well).

        FileNotFoundError where there is no such file.
        """
        if self.origin is None or (self.snapshot is not None and self.snapshot.contents is not None):
            return self.read_current(path), None
        listed = self._below(path.parent)
        stored = listed.get(path.name)
        data = None
        if stored is not None:
            data = unchanged(path, stored) or refresh(self.origin, self.name(path), path, is_marker=True)
        if data is None:
            raise FileNotFoundError(self.url(path))
        return data, {name: found.size for name, found in listed.items()}

    def _below(self, folder: Path) -> Mapping[str, Stored | Entry]:
        """Return relative name → object of all that is stored below a folder."""
        place = self.name(folder)
        if self.snapshot is not None and self.snapshot.covers(place):
            return dict(self.snapshot.below(place))
        return {found.name[len(place) + 1 :]: found for found in self.store.list(place)}

    def size(self, path: Path) -> int | None:
        """Return the bytes of a file as it is stored; None where it is not there."""
        if self.origin is None:
            return path.stat().st_size if path.is_file() else None
        is_known = self.snapshot is not None and self.snapshot.contents is not None
        name = self.name(path)
        found = self.snapshot.file(name) if self.snapshot is not None and is_known else self.origin.stat(name)
        return None if found is None else found.size

    def sizes(self, folder: Path, names: Iterable[str]) -> dict[str, int]:
        """Return the bytes of those files of a folder that are there, of these relative names."""
        if self.origin is None:
            sizes = {name: self.size(folder / name) for name in names}
            return {name: size for name, size in sizes.items() if size is not None}
        listed = self._below(folder)
        return {name: listed[name].size for name in names if name in listed}

    def written_ns(self, path: Path) -> int:
        """Return when a file was written, nanoseconds since 1970; 0 where it is gone from this machine."""
        if self.snapshot is not None and self.snapshot.contents is not None:
            entry = self.snapshot.file(self.name(path))
            return 0 if entry is None else entry.written_ns
        try:
            return path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def written_in(self, parent: Path, name: str) -> dict[str, int]:
        """Return when the files of one name in the folders right below `parent` were written: folder → ns."""
        if self.origin is None:
            paths = {entry: parent / entry / name for entry in self.names(parent) if not (parent / entry).is_symlink()}
            return {entry: self.written_ns(path) for entry, path in paths.items() if path.is_file()}
        found = ((relative.split("/"), one.written_ns) for relative, one in self._below(parent).items())
        return {parts[0]: at for parts, at in found if parts[1:] == [name]}

    def sha256(self, path: Path) -> str:
        """Return the hex sha256 of a file as it is stored; FileNotFoundError where it is not there."""
        found = sha256_file(path) if self.origin is None else self.origin.sha256(self.name(path))
        if found is None:
            raise FileNotFoundError(self.url(path))
        return found

    def names(self, folder: Path) -> frozenset[str]:
        """Return the names of what lies right in a folder."""
        if self.origin is None:
            return frozenset(entry.name for entry in folder.iterdir()) if folder.is_dir() else frozenset()
        place = self.name(folder)
        if self.snapshot is not None and self.snapshot.covers(place):
            return frozenset(self.snapshot.entries(place))
        return frozenset(name for names in self.origin.level(place) for name in names)

    def listing(self) -> FileAccess:
        """Return access to all that is stored at this moment: a store is listed once, and its JSON files are read."""
        return self if self.origin is None else replace(self, snapshot=Snapshot.of_store(self.origin))

    def entries(self, folder: Path) -> list[Entry]:
        """Return what lies right in a folder, by name; nothing where there is no such folder.

        Raises:
            StorageError: the folder cannot be read.
        """
        if self.origin is None:
            return disk_entries(folder)
        snapshot = self.snapshot or Snapshot.of_store(self.origin)
        found = snapshot.entries("" if folder == self.folder else self.name(folder))
        return sorted(found.values(), key=lambda entry: entry.name)

    def is_link(self, path: Path) -> bool:
        """Return whether a path is a symbolic link where the files live."""
        return self.origin is None and path.is_symlink()

    def unfinished(self) -> Iterator[Path]:
        """Yield objects of a store that were to become part of others; nothing of a local folder."""
        if self.origin is not None:
            snapshot = self.snapshot or Snapshot.of_store(self.origin)
            yield from (self.folder / name for name in snapshot.unfinished())

    def stored_at(self, path: Path, *, as_copy: bool = False) -> tuple[Store, str]:
        """Return (store, name there) by which any machine can read ranges of a file; with `as_copy` those of a copy.

        Where there is no copy, `as_copy` changes nothing.
        """
        if self.origin is None or (as_copy and path.is_file()):
            return LocalStore(path.parent.absolute()), path.name
        return self.origin, self.name(path)

    def open_bytes(self, path: Path, *, as_copy: bool = True) -> MappedFile:
        """Open a large file for reading ranges: its copy, where there is one, unless `as_copy` is False.

        FileNotFoundError where it is not there.
        """
        if self.origin is None or (as_copy and path.is_file()) or not path.is_relative_to(self.folder):
            return MappedFile(map_regular(path))
        return BlockFile(self.origin, self.name(path), path.parent)

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Do `work`, which asks the store, on every item; results in their order, the first error is raised."""
        return list(map(work, items)) if self.origin is None else in_parallel(work, items, CONNECTIONS)

    def each_folder(self, work: Callable[[FileAccess, Path], R], parent: Path, names: Sequence[str]) -> list[R]:
        """Do `work` on many folders of one parent, most of which are there; results in their order.

        Those of a store are listed together, unless they are few of many; the listing of 1,024 is in memory at a time.

        Args:
            work: takes access to the folder's files as a listing told of them, and the folder.
            parent: of all of them.
            names: of the folders, in the parent.
        """
        if self.origin is None:
            return [work(self, parent / name) for name in names]
        place, found = self.name(parent), dict[str, R]()
        listed = self.origin.list(place)
        if len(names) <= _ASKED_ONE_BY_ONE:
            first = list(islice(listed, _ENTRIES_TOLD)) if len(names) > 1 else None
            if first is None or len(first) == _ENTRIES_TOLD:
                return self.each(lambda name: work(self, parent / name), names)
            listed = iter(first)

        def look(name: str, listed: Sequence[Stored]) -> R:
            snapshot = Snapshot.of_folder(f"{place}/{name}", listed)
            return work(replace(self, snapshot=snapshot), parent / name)

        several = _listed_folders(listed, len(place) + 1, set(names))
        while batch := list(islice(several, _FOLDERS_AT_ONCE)):
            results = self.each(lambda one: look(*one), batch)
            found.update(zip((name for name, _ in batch), results, strict=True))
        return [found[name] for name in names]

    def send(self, paths: Iterable[Path], sha256: Mapping[Path, str] | None = None) -> None:
        """Store files that were written here; each is stored whole or not at all.

        Args:
            paths: of the files.
            sha256: hex, of what they must hold, where it is known.

        Raises:
            StorageError: a file holds something else.
        """
        if (store := self.origin) is None:
            return
        listed, known, there = list(paths), sha256 or {}, None
        if len(listed) > _ASKED_ONE_BY_ONE:
            there = {
                found.name for folder in {path.parent for path in listed} for found in store.list(self.name(folder))
            }

        def send(path: Path) -> None:
            is_new = there is not None and self.name(path) not in there
            store.put_file(self.name(path), path, sha256=known.get(path), is_new=is_new)

        in_parallel(send, listed)

    def send_small(self, path: Path, data: bytes, *, is_new: bool = False) -> None:
        """Store a small file that was written here with these bytes.

        is_new: the store held other bytes or none; else it is only written where the store holds others.
        """
        # Of the bytes, not of the file: another build may replace it meanwhile.
        if self.origin is not None and (is_new or self.origin.read(self.name(path)) != data):
            self.origin.put(self.name(path), data)

    def publish(
        self, folder: Path, files: Mapping[str, str | None], manifest: str, *, is_new: bool = False
    ) -> Mapping[str, int] | None:
        """Store an output: its files, then the manifest that commits it. A manifest of other bytes is removed first.

        Args:
            folder: of the output.
            files: relative name → sha256, where it is known; those that are not here must be stored already.
            manifest: name of the file that goes last.
            is_new: the store held no manifest, so that it need not be asked.

        Returns:
            Relative name → bytes of all that is known to be stored in the folder now; None for a local folder.

        Raises:
            MissingError: a file is neither here nor stored.
        """
        if (store := self.origin) is None:
            return None
        is_known = is_new and all((folder / name).is_file() for name in files)
        there = {} if is_known else {name: found.size for name, found in self._below(folder).items()}
        data, last = read_regular(folder / manifest), self.name(folder / manifest)
        stands = manifest in there
        if stands and store.read(last) != data:
            store.delete(last)
            stands = False

        def send(name: str) -> int:
            path = folder / name
            if path.is_file():
                size = path.stat().st_size  # once it is sent, another process may remove the copy to make room
                store.put_file(self.name(path), path, sha256=files[name], is_new=name not in there)
                return size
            if name not in there:
                raise MissingError(
                    "a file of an output is neither here nor in its store",
                    where=self.url(path),
                    remedy="run it again: it is made anew",
                )
            return there[name]

        sent = dict(zip(files, in_parallel(send, files), strict=True))
        if not stands:
            store.put(last, data)
        self.drop(folder / name for name in files)
        return there | sent | {manifest: len(data)}

    def drop(self, paths: Iterable[Path]) -> None:
        """Remove copies that were sent, where the capacity is bounded."""
        if self.capacity is not None:
            for path in paths:
                path.unlink(missing_ok=True)

    def remove_all(self, folder: Path) -> None:
        """Remove all files below a folder from the store of which copies are here; the caller removes the copies."""
        if self.origin is not None:
            in_parallel(self.origin.delete, [found.name for found in self.origin.list(self.name(folder))])

    def remove(self, path: Path) -> None:
        """Remove a file from where it lives, and its copy."""
        if self.origin is not None:
            self.origin.delete(self.name(path))
        path.unlink(missing_ok=self.origin is not None)

    def withdraw(self, folder: Path, manifest: str, is_wanted: Callable[[], bool]) -> tuple[Path, ...] | None:
        """Remove an output for every reader at once, even where this is cut short, unless it is wanted by now.

        Args:
            folder: of the output.
            manifest: name of the file that commits it.
            is_wanted: asks anew whether the output has to stay.

        Returns:
            Folders that hold what is left of it, to be removed at any time; None where it stays.
        """
        if self.origin is not None:
            if is_wanted():
                return None
            self.origin.delete(self.name(folder / manifest))  # without it the rest is no output
            self.remove_all(folder)
            shutil.rmtree(folder, ignore_errors=True)
            return ()
        aside = unfinished_name(folder)
        folder.rename(aside)
        if not is_wanted():
            return (aside,)
        with contextlib.suppress(OSError):  # it was made again: then that one stays
            aside.rename(folder)
            return None
        shutil.rmtree(aside, ignore_errors=True)
        return None


def _listed_folders(
    found: Iterable[Stored], cut: int, wanted: Collection[str]
) -> Iterator[tuple[str, Sequence[Stored]]]:
    """Yield (name, what lies in it) of each wanted folder; those that are not there last, with nothing.

    Args:
        found: all that lies below their parent, in the order of the names.
        cut: characters before the folders' own names.
        wanted: their names.
    """
    missing = set(wanted)
    inner = (one for one in found if "/" in one.name[cut:])
    for name, stored in groupby(inner, lambda one: one.name[cut:].partition("/")[0]):
        if name in missing:
            missing.remove(name)
            yield name, list(stored)
    yield from ((name, ()) for name in sorted(missing))
