"""The files below a folder: they are there, or live in a store of which the folder holds working
copies.

Readers and writers of files are given such an object, and ask it. It pickles, so that other
processes reach the files in the same way.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TypeVar

from nanoset_core.errors import MissingError, NanosetError
from nanoset_core.storage.atomic import UNFINISHED, withdrawn, write_atomic
from nanoset_core.storage.listing import Entry, Snapshot, disk_entries
from nanoset_core.storage.local import LocalStore, make_room, note_use, set_time
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.reading import BLOCK_BYTES, BlockFile, MappedFile
from nanoset_core.storage.regular_files import map_regular, read_regular
from nanoset_core.storage.s3_requests import CONNECTIONS, etag_of_bytes
from nanoset_core.storage.store import Store, Stored, in_parallel, read_pieces

T = TypeVar("T")
R = TypeVar("R")
_ASKED_ONE_BY_ONE = 8
"""Files that are sent, or folders that are looked into, without listing first what is there."""
_ENTRIES_TOLD = 1000
"""Objects that one request tells of."""
_FOLDERS_AT_ONCE = 1024
"""Folders of which the listing is in memory."""
_SMALL_BLOCK = 4 << 10
"""Of a file of which blocks are read, where these are few, or room is scarce."""
ROOM = "room for working copies: storage.mirror names their folder, storage.scratch_mib says how much they may take"


@dataclass(frozen=True, slots=True)
class FileAccess:
    """Files of a local folder, by their absolute paths; or of a store, with working copies in the
    folder.

    The store is the truth: an output is there when its manifest is, and the manifest goes up last.
    Work is done on the copies; what a process that was killed had finished there is sent by the
    next one. Copies may be removed at any time. `fetch` and `open_bytes` take paths outside of the
    folder, too, such as those of cached index files.
    """

    folder: Path
    """Absolute: where the files are, or their copies, in the same layout."""
    origin: Store | None = None
    """Where they live; None = in the folder."""
    capacity: int | None = field(default=None, kw_only=True)
    """Bytes that may be taken of the disk, a quarter by files without names; None where all copies
    stay.
    """
    snapshot: Snapshot | None = field(default=None, kw_only=True, compare=False, repr=False)
    """What a listing of the store said: it is believed instead of asking again."""
    is_sampled: bool = field(default=False, kw_only=True, compare=False, repr=False)
    """Of large files little is read, here and there: no more than that is fetched."""
    asked: dict[str, int | None] | None = field(
        default=None, kw_only=True, compare=False, repr=False
    )
    """Name → bytes of what lies outside of the listing and was asked for; None: it is asked for
    each time.
    """

    @property
    def store(self) -> Store:
        """Where the files live."""
        return LocalStore(self.folder) if self.origin is None else self.origin

    @property
    def has_copies(self) -> bool:
        """Whether the folder holds copies of what lives elsewhere."""
        return self.origin is not None

    def with_copies_in(self, folder: Path) -> FileAccess:
        """Return access to the same files with copies in another folder, which go once they were
        sent.
        """
        return (
            self
            if self.origin is None
            else FileAccess(folder, self.origin, capacity=self.capacity or sys.maxsize)
        )

    def name(self, path: Path) -> str:
        """Return a file's name in the store; "" for the folder itself."""
        name = path.relative_to(self.folder).as_posix()
        return "" if name == "." else name

    def url(self, path: Path) -> str:
        """Return where a file lives, for messages."""
        return self.store.url(self.name(path)) if path.is_relative_to(self.folder) else str(path)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Let errors that leave the block name what is stored, where they name copies of it."""
        try:
            yield
        except NanosetError as error:
            if self.origin is None or str(self.folder) not in str(error):
                raise
            raise error.with_places(str(self.folder), self.origin.url()) from error

    def fetch(
        self,
        path: Path,
        *,
        size: int | None = None,
        sha256: str | None = None,
        pieces: Path | None = None,
    ) -> Path:
        """Make a file readable at its path, where it exists at all; return the path.

        A copy of another size is downloaded again. Where sha256 or a file that lists the digests of
        its pieces is given, StorageError is raised where it has other bytes.
        """
        if self.origin is None or not path.is_relative_to(self.folder):
            return path
        if self.capacity is not None:
            note_use(path)
        if not path.is_file() or size not in (None, path.stat().st_size):
            listed = None if pieces is None else read_pieces(pieces)
            if self.capacity is not None:
                self.make_room((self.size(path) or 0) if size is None else size, self.url(path))
            with explained(self.folder, expected=ROOM):
                self.origin.fetch(self.name(path), path, sha256=sha256, pieces=listed)
        return path

    @property
    def room(self) -> int | None:
        """Bytes that files with names may take: copies, and what is unfinished; None where all
        copies stay.
        """
        return None if self.capacity is None else self.capacity - self.capacity // 4

    def make_room(self, size: int, what: str) -> None:
        """Remove the oldest copies where there is no room for so many more bytes; StorageError, of
        `what`, where there cannot be."""
        if (room := self.room) is not None:
            make_room(self.folder, room, size, what)

    def revalidate(self, path: Path) -> None:
        """Fetch a file unless the copy has the size and time of the object as it is now; remove the
        copy of none.
        """
        found, status = self.store.stat(self.name(path)), path.stat() if path.is_file() else None
        if found is None:
            path.unlink(missing_ok=True)
        elif status is None or (status.st_size, status.st_mtime_ns) != (
            found.size,
            found.written_ns,
        ):
            self.store.fetch(found.name, path)
            set_time(path, found.written_ns)

    def _refresh(self, path: Path, *, is_marker: bool) -> bytes | None:
        """Make the copy of a small object what the store has now; return its bytes, or None where
        the store has none.

        Where the copy of a commit marker was another, the files beside it are removed: should that
        be cut short, by the next call.
        """
        if (found := self.store.read_stored(self.name(path))) is None:
            return None
        data, stored = found
        had = path.read_bytes() if path.is_file() else None
        if had != data:
            for folder, _, names in os.walk(path.parent) if had is not None and is_marker else ():
                for other in {Path(folder, name) for name in names} - {path}:
                    other.unlink(missing_ok=True)
            write_atomic(path, data)
        set_time(path, stored.written_ns)
        return data

    def read_current(
        self, path: Path, *, is_marker: bool = False, guesses: Iterable[bytes] = ()
    ) -> bytes:
        """Return a small file's bytes as they are stored now; FileNotFoundError where there is
        none.

        is_marker: it is a commit marker. Where the copy was outdated, the other files of its folder
            belong to another making and are removed; copies that the store does not have stay: a
            build may be about to send them.
        guesses: bytes that it may have; it is not read where the listing shows that these are its.
        """
        if self.origin is None:
            return read_regular(path)
        told, data = self._told(self.name(path)), None
        if told is None:
            data = self._refresh(path, is_marker=is_marker)
        elif told.contents is not None:
            data = told.contents.get(self.name(path))
        elif (entry := told.file(self.name(path))) is not None:
            copy = path.read_bytes() if path.is_file() else b""
            data = next(
                (one for one in chain([copy], guesses) if etag_of_bytes(one) == entry.mark), None
            )
            if data is None:  # or ETags are no digests
                data = self._refresh(path, is_marker=is_marker)
            else:
                if data != copy:
                    write_atomic(path, data)
                set_time(path, entry.written_ns)
        if data is None:
            raise FileNotFoundError(self.url(path))
        return data

    def read_beside(self, path: Path) -> tuple[bytes, Mapping[str, int] | None]:
        """Return (bytes of a commit marker, relative name → bytes of all in its folder, where that
        was told as well).

        FileNotFoundError where there is no such file.
        """
        if self.origin is None or (
            self.snapshot is not None and self.snapshot.contents is not None
        ):
            return self.read_current(path), None
        told = self._listed(path.parent)
        data = replace(self, snapshot=told).read_current(path, is_marker=True)
        return data, {name: found.size for name, found in told.below(self.name(path.parent))}

    def _told(self, name: str) -> Snapshot | None:
        """Return the listing that says what there is at a name; None where the store has to be
        asked.
        """
        return self.snapshot if self.snapshot is not None and self.snapshot.covers(name) else None

    def with_listing(self, folder: Path) -> FileAccess:
        """Return access that answers from one listing of a store what is asked of a folder."""
        store = self.origin
        return (
            self
            if store is None
            else replace(self, snapshot=Snapshot.when_asked(self.name(folder), store))
        )

    def _listed(self, folder: Path) -> Snapshot:
        """Return what lies below a folder of a store."""
        place = self.name(folder)
        return self._told(place) or Snapshot.of_folder(place, self.store.list(place))

    def size(self, path: Path) -> int | None:
        """Return the bytes of a file as it is stored; None where it is not there."""
        name = self.name(path)
        if (told := self._told(name)) is not None:
            return None if (entry := told.file(name)) is None else entry.size
        if self.asked is not None and name in self.asked:
            return self.asked[name]
        found = self.store.stat(name)
        size = None if found is None else found.size
        if self.asked is not None:
            self.asked[name] = size
        return size

    def sizes(self, folder: Path, names: Iterable[str]) -> dict[str, int]:
        """Return the bytes of those files of a folder that are there, of these relative names."""
        listed = dict(self._listed(folder).below(self.name(folder)))
        return {name: listed[name].size for name in names if name in listed}

    def written_ns(self, path: Path) -> int:
        """Return when a file was written, nanoseconds since 1970; 0 where it is gone from this
        machine.
        """
        if self.snapshot is not None and (told := self._told(self.name(path))) is not None:
            entry = told.file(self.name(path))
            return 0 if entry is None else entry.written_ns
        try:
            return path.stat().st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def written_in(self, parent: Path, name: str) -> dict[str, int]:
        """Return when the files of one name in the folders right below `parent` were written:
        folder → ns.
        """
        if self.origin is None:
            times = {entry: self.written_ns(parent / entry / name) for entry in self.names(parent)}
            return {entry: at for entry, at in times.items() if at}
        found = (
            (relative.split("/"), one.written_ns)
            for relative, one in self._listed(parent).below(self.name(parent))
        )
        return {parts[0]: at for parts, at in found if parts[1:] == [name]}

    def sha256(self, path: Path) -> str:
        """Return the hex sha256 of a file as it is stored; FileNotFoundError where it is not there."""
        return self.store.sha256_of(self.stored(path))

    def stored(self, path: Path, begin: int = 0, size: int | None = None) -> Stored:
        """Return what the store says of a file, or of `size` bytes of it; FileNotFoundError where
        it is not there.
        """
        if (found := self.store.stat(self.name(path))) is None:
            raise FileNotFoundError(self.url(path))
        return found if size is None else replace(found, begin=begin, size=size)

    def names(self, folder: Path) -> frozenset[str]:
        """Return the names of what lies right in a folder."""
        place = self.name(folder)
        told = self._told(place)
        return frozenset(chain(*self.store.level(place)) if told is None else told.entries(place))

    def listing(self) -> FileAccess:
        """Return access to all that is stored at this moment: a store is listed once, and its JSON
        files are read.
        """
        return (
            self if self.origin is None else replace(self, snapshot=Snapshot.of_store(self.origin))
        )

    def entries(self, folder: Path) -> list[Entry]:
        """Return what lies right in a folder, by name; nothing where there is no such folder."""
        if self.origin is None:
            return disk_entries(folder)
        snapshot = self.snapshot or Snapshot.of_store(self.origin)
        return sorted(snapshot.entries(self.name(folder)).values(), key=lambda entry: entry.name)

    def is_link(self, path: Path) -> bool:
        """Return whether a path is a symbolic link where the files live."""
        return self.origin is None and path.is_symlink()

    def unfinished(self) -> Iterator[Path]:
        """Yield objects of a store that were to become part of others, as it was listed; nothing of
        a local folder.
        """
        for name, entry in () if self.snapshot is None else self.snapshot.below(""):
            if entry.name.startswith(UNFINISHED):
                yield self.folder / name

    def stored_at(self, path: Path, *, as_copy: bool = False) -> tuple[Store, str]:
        """Return (store, name there) by which any machine can read ranges of a file; with `as_copy`
        those of a copy.

        Where there is no copy, `as_copy` changes nothing.
        """
        if (
            self.origin is None
            or (as_copy and path.is_file())
            or not path.is_relative_to(self.folder)
        ):
            return LocalStore(path.parent.absolute()), path.name
        return self.origin, self.name(path)

    def open_bytes(self, path: Path, *, as_copy: bool = True) -> MappedFile:
        """Open a large file for reading ranges: its copy, where there is one, unless `as_copy` is
        False.

        FileNotFoundError where it is not there.
        """
        store, name = self.stored_at(path, as_copy=as_copy)
        if isinstance(store, LocalStore):
            return MappedFile(map_regular(path))
        if self.capacity is None:
            return BlockFile(
                store,
                name,
                path.parent,
                block_bytes=_SMALL_BLOCK if self.is_sampled else BLOCK_BYTES,
            )
        return BlockFile(
            store, name, path.parent, block_bytes=_SMALL_BLOCK, room=self.capacity // 4
        )

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Do `work`, which asks the store, on every item; results in their order, the first error
        is raised.
        """
        return (
            list(map(work, items)) if self.origin is None else in_parallel(work, items, CONNECTIONS)
        )

    def each_copy(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Do `work`, which reads copies, as `each`; where these have little room none may go before
        it is read.
        """
        return self.each(work, items) if self.capacity is None else list(map(work, items))

    def each_folder(
        self, work: Callable[[FileAccess, Path], R], parent: Path, names: Sequence[str]
    ) -> list[R]:
        """Do `work` on many folders of one parent, most of which are there; results in their order.

        It takes access to the folder's files as a listing told of them, and the folder. Those of a
        store are listed together, unless they are few of many; the listing of 1,024 is in memory at
        a time.
        """
        place = self.name(parent)
        if self.origin is None or self._told(place) is not None:
            return self.each(lambda name: work(self, parent / name), names)
        listed, first, asked = self.origin.list(place), list[Stored](), dict[str, int | None]()
        if 1 < len(names) <= _ASKED_ONE_BY_ONE:
            first = list(islice(listed, _ENTRIES_TOLD))
        if len(names) < 2 or len(first) == _ENTRIES_TOLD:
            return self.each(lambda name: work(self, parent / name), names)

        def look(one: tuple[str, Sequence[Stored]]) -> tuple[str, R]:
            snapshot = Snapshot.of_folder(f"{place}/{one[0]}", one[1])
            return one[0], work(replace(self, snapshot=snapshot, asked=asked), parent / one[0])

        cut, wanted = len(place) + 1, set(names)
        inner = (one for one in chain(first, listed) if "/" in one.name[cut:])
        folders = groupby(inner, lambda one: one.name[cut:].partition("/")[0])
        several = ((name, list(stored)) for name, stored in folders if name in wanted)
        found = dict(in_parallel(look, several, CONNECTIONS, window=_FOLDERS_AT_ONCE))
        found |= [look((name, ())) for name in wanted - found.keys()]
        return [found[name] for name in names]

    def send(
        self,
        paths: Iterable[Path],
        sha256: Mapping[Path, str | None] | None = None,
        *,
        there: Mapping[str, int] | None = None,
    ) -> list[int]:
        """Store files that were written here, each whole or not at all; return their bytes.

        Args:
            paths: of the files. One that is neither here nor stored raises MissingError.
            sha256: hex, of what they must hold, else StorageError.
            there: name → bytes of all that is stored in their folders; absent = the store is asked.
        """
        if (store := self.origin) is None:
            return []
        listed, known = list(paths), sha256 or {}
        if there is None and len(listed) > _ASKED_ONE_BY_ONE:
            folders = {path.parent for path in listed}
            there = {
                found.name: found.size
                for folder in folders
                for found in store.list(self.name(folder))
            }

        def send(path: Path) -> int:
            name = self.name(path)
            if path.is_file():
                # once it is sent, another process may remove the copy to make room
                size = path.stat().st_size
                store.put_file(
                    name,
                    path,
                    sha256=known.get(path),
                    is_new=there is not None and name not in there,
                )
                return size
            if there is None or name not in there:
                what = "a file of an output is neither here nor in its store"
                raise MissingError(
                    what, where=self.url(path), remedy="run it again: it is made anew"
                )
            return there[name]

        return in_parallel(send, listed)

    def write(self, path: Path, data: bytes) -> None:
        """Write a small file where it holds other bytes, here and where it lives."""
        is_new = not path.exists() or read_regular(path) != data
        if is_new:
            write_atomic(path, data)
        # Of the bytes, not of the file: another build may replace it meanwhile.
        if self.origin is not None and (is_new or self.origin.read(self.name(path)) != data):
            self.origin.put(self.name(path), data)

    def publish(
        self, folder: Path, files: Mapping[str, str | None], manifest: str, *, is_new: bool = False
    ) -> Mapping[str, int] | None:
        """Store an output: its files, then the manifest that commits it. A manifest of other bytes
        is removed first.

        Args:
            folder: of the output.
            files: relative name → sha256, where it is known; one that is neither here nor stored
                raises MissingError.
            manifest: name of the file that goes last.
            is_new: the store held no manifest, so that it need not be asked.

        Returns:
            Relative name → bytes of all that is known to be stored in the folder now; None for a
            local folder.
        """
        if (store := self.origin) is None:
            return None
        there, place = dict[str, int](), self.name(folder)
        if not is_new or not all((folder / name).is_file() for name in files):
            there = {
                f"{place}/{name}": found.size for name, found in self._listed(folder).below(place)
            }
        data, last = read_regular(folder / manifest), self.name(folder / manifest)
        stands = last in there
        if stands and store.read(last) != data:
            store.delete(last)
            stands = False
        sums = {folder / name: sha256 for name, sha256 in files.items()}
        there |= zip(map(self.name, sums), self.send(sums, sums, there=there), strict=True)
        if not stands:
            store.put(last, data)
        self.drop(sums)
        return {name[len(place) + 1 :]: size for name, size in there.items()} | {
            manifest: len(data)
        }

    def drop(self, paths: Iterable[Path]) -> None:
        """Remove copies that were sent, where the capacity is bounded."""
        if self.capacity is not None:
            for path in paths:
                path.unlink(missing_ok=True)

    def remove_all(self, folder: Path) -> None:
        """Remove all files below a folder from the store of which copies are here; the caller
        removes the copies.
        """
        if self.origin is not None:
            in_parallel(
                self.origin.delete, [found.name for found in self.origin.list(self.name(folder))]
            )

    def remove(self, path: Path) -> None:
        """Remove a file from where it lives, and its copy."""
        if self.origin is not None:
            self.origin.delete(self.name(path))
        path.unlink(missing_ok=self.origin is not None)

    def withdraw(
        self, folder: Path, manifest: str, is_wanted: Callable[[], bool]
    ) -> tuple[Path, ...] | None:
        """Remove an output for every reader at once, even where this is cut short, unless it is
        wanted by now.

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
        return withdrawn(folder, is_wanted)
