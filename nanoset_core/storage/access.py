"""Read and write the files of outputs, which are in a local folder or in a store.

A store is a bucket, or anything else that stores files by their names. Then the folder contains
working copies: files are downloaded to it before they are read, and files that were written there
are uploaded. `FileAccess` hides the difference from readers and writers. It can be pickled, so that
other processes access the files in the same way.
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
from typing import NamedTuple, TypeVar

from nanoset_core.errors import MissingError, NanosetError
from nanoset_core.storage.atomic import UNFINISHED, withdrawn, write_atomic
from nanoset_core.storage.copies import make_room, note_use, set_time
from nanoset_core.storage.listing import Entry, Snapshot, disk_entries
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.mapped_files import BLOCK_BYTES, BlockFile, MappedFile
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.regular_files import map_regular, read_regular
from nanoset_core.storage.s3_parts import etag_of_bytes
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import Store, Stored, in_parallel, read_pieces

T = TypeVar("T")
R = TypeVar("R")
_MAX_SINGLE_REQUESTS = 8
"""So many files or folders are looked up one by one; more than these are listed together."""
_OBJECTS_PER_REQUEST = 1000
"""Objects in the answer to one request for a listing."""
_FOLDERS_IN_MEMORY = 1024
"""Folders whose listing is in memory at any time."""
_SMALL_BLOCK = 4 << 10
"""Bytes of a block, for files of which little is read, and if disk space is limited."""
ROOM = (
    "room for working copies: storage.mirror names their folder, "
    "storage.scratch_mib says how much they may take"
)
"""What errors say was expected if the disk is full."""


@dataclass(frozen=True, slots=True)
class FileAccess:
    """Access to the files of a local folder, or to those of a store with copies in a local folder.

    Files are addressed by their absolute paths in the folder. The store alone decides what exists:
    an output exists if its manifest does, and the manifest is uploaded last. If a process was
    killed after it finished an output in the folder, the next one uploads it. Copies may be removed
    at any time.

    `fetch` and `open_bytes` also take paths outside of the folder, such as those of cached index
    files.
    """

    folder: Path
    """Absolute path of the files, or of their copies, which have the same names."""
    origin: Store | None = None
    """The store; None if the files are in the folder."""
    capacity: int | None = field(default=None, kw_only=True)
    """Bytes of disk space that may be used, or None if all copies are kept.

    A quarter of them is for blocks of large files, which are not copied as a whole.
    """
    snapshot: Snapshot | None = field(default=None, kw_only=True, compare=False, repr=False)
    """A listing of the store, or of a folder in it, that is used instead of asking again."""
    is_sampled: bool = field(default=False, kw_only=True, compare=False, repr=False)
    """Whether only a few places of large files will be read, so that small blocks are fetched."""
    asked: dict[str, int | None] | None = field(
        default=None, kw_only=True, compare=False, repr=False
    )
    """Answers of the store to requests for sizes: name → bytes, or None if there is no such file.

    If this is None itself, the store is asked each time.
    """

    @property
    def store(self) -> Store:
        """The store of the files; a local folder is one, too."""
        return LocalStore(self.folder) if self.origin is None else self.origin

    @property
    def has_copies(self) -> bool:
        """Whether the folder contains copies of files that are in a store."""
        return self.origin is not None

    def with_copies_in(self, folder: Path) -> FileAccess:
        """Return access to the same files with copies in another folder.

        Copies in that folder are removed once they have been uploaded.
        """
        if self.origin is None:
            return self
        return FileAccess(folder, self.origin, capacity=self.capacity or sys.maxsize)

    def name(self, path: Path) -> str:
        """Return the name of a file in the store, or "" for the folder itself."""
        name = path.relative_to(self.folder).as_posix()
        return "" if name == "." else name

    def url(self, path: Path) -> str:
        """Return where a file is stored, for messages."""
        if path.is_relative_to(self.folder):
            return self.store.url(self.name(path))
        return str(path)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Replace paths of copies by addresses in the store, in errors that leave the block."""
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
        """Download a file to its path, unless it is there already.

        Args:
            path: The file.
            size: Its size. A copy of another size is downloaded again.
            sha256: Its checksum as hex digits, which a download is compared with.
            pieces: A file that lists the sha256 of its pieces, which are compared instead.

        Returns:
            The path.

        Raises:
            StorageError: The download has another checksum, or there is not enough disk space.
        """
        if self.origin is None or not path.is_relative_to(self.folder):
            return path
        if self.capacity is not None:
            note_use(path)
        if path.is_file() and (size is None or path.stat().st_size == size):
            return path

        piece_digests = None if pieces is None else read_pieces(pieces)
        if self.capacity is not None:
            needed_bytes = size
            if needed_bytes is None:
                needed_bytes = self.size(path) or 0
            self.make_room(needed_bytes, self.url(path))
        with explained(self.folder, expected=ROOM):
            self.origin.fetch(self.name(path), path, sha256=sha256, pieces=piece_digests)
        return path

    @property
    def room(self) -> int | None:
        """Bytes that copies and unfinished files may take, or None if all copies are kept."""
        return None if self.capacity is None else self.capacity - self.capacity // 4

    def make_room(self, size: int, what: str) -> None:
        """Remove the oldest copies until there is room for another file.

        Args:
            size: Bytes of the file.
            what: The file, for the error.

        Raises:
            StorageError: There cannot be enough room.
        """
        room = self.room
        if room is not None:
            make_room(self.folder, room, size, what)

    def revalidate(self, path: Path) -> None:
        """Make the copy of a file the same as the stored file, according to its size and time.

        If the stored file does not exist, the copy is removed.
        """
        stored = self.store.stat(self.name(path))
        if stored is None:
            path.unlink(missing_ok=True)
            return

        if path.is_file():
            status = path.stat()
            if status.st_size == stored.size and status.st_mtime_ns == stored.written_ns:
                return
        self.store.fetch(stored.name, path)
        set_time(path, stored.written_ns)

    def _refresh(self, path: Path, *, is_marker: bool) -> bytes | None:
        """Download a small file again.

        Args:
            path: The file.
            is_marker: Whether it is a commit marker. If its copy has other bytes, the other files
                of the folder belong to another version and are removed. The marker is written
                after that, so that an interrupted removal is repeated by the next call.

        Returns:
            Its bytes, or None if it does not exist.
        """
        answer = self.store.read_stored(self.name(path))
        if answer is None:
            return None
        data, stored = answer

        copy = path.read_bytes() if path.is_file() else None
        if copy != data:
            if copy is not None and is_marker:
                _remove_files(path.parent, except_for=path)
            write_atomic(path, data)
        set_time(path, stored.written_ns)
        return data

    def read_current(
        self, path: Path, *, is_marker: bool = False, guesses: Iterable[bytes] = ()
    ) -> bytes:
        """Return the bytes of a small file as it is stored now.

        Args:
            path: The file.
            is_marker: Whether it is a commit marker. If its copy is outdated, the copies of the
                other files in its folder belong to another version and are removed. If the store
                has no marker, they are kept: a build may be about to upload them.
            guesses: Bytes that the file may have. If a listing shows that it has one of these, it
                is not read.

        Raises:
            FileNotFoundError: It does not exist.
        """
        if self.origin is None:
            return read_regular(path)

        name = self.name(path)
        snapshot = self._snapshot_with(name)
        data: bytes | None
        if snapshot is None:
            data = self._refresh(path, is_marker=is_marker)
        elif snapshot.contents is not None:
            data = snapshot.contents.get(name)
        else:
            entry = snapshot.file(name)
            data = None
            if entry is not None:
                data = self._read_listed(path, entry, is_marker=is_marker, guesses=guesses)
        if data is None:
            raise FileNotFoundError(self.url(path))
        return data

    def _read_listed(
        self, path: Path, entry: Entry, *, is_marker: bool, guesses: Iterable[bytes]
    ) -> bytes | None:
        """Return the bytes of a file in a listing, if possible without reading it.

        Args:
            path: The file.
            entry: The file in the listing.
            is_marker: As for `read_current`.
            guesses: As for `read_current`.

        Returns:
            Its bytes, or None if it has been deleted since then.
        """
        copy = path.read_bytes() if path.is_file() else b""
        for data in chain([copy], guesses):
            if etag_of_bytes(data) == entry.mark:
                if data != copy:
                    write_atomic(path, data)
                set_time(path, entry.written_ns)
                return data
        # The file has other bytes, or the ETags of this store are not digests.
        return self._refresh(path, is_marker=is_marker)

    def read_beside(self, path: Path) -> tuple[bytes, Mapping[str, int] | None]:
        """Return the bytes of a commit marker, and the sizes of the files in its folder.

        Returns:
            The bytes, and relative name → bytes of all files in the folder. The latter is None if
            the store did not report them along with the marker.

        Raises:
            FileNotFoundError: The marker does not exist.
        """
        # A local disk is not listed. A snapshot that has the contents of small files needs no
        # request for the marker, and a listing would be one more.
        is_local = self.origin is None
        has_contents = self.snapshot is not None and self.snapshot.contents is not None
        if is_local or has_contents:
            return self.read_current(path), None

        # List the folder once: the listing says whether the local copy of the marker is current,
        # and has the sizes of the other files.
        listing = self._listed(path.parent)
        data = replace(self, snapshot=listing).read_current(path, is_marker=True)
        files = listing.below(self.name(path.parent))
        return data, {name: entry.size for name, entry in files}

    def _snapshot_with(self, name: str) -> Snapshot | None:
        """Return the listing if it covers a name, or None if the store has to be asked."""
        if self.snapshot is not None and self.snapshot.covers(name):
            return self.snapshot
        return None

    def with_listing(self, folder: Path) -> FileAccess:
        """Return access that lists a folder of a store once, and answers from this listing."""
        if self.origin is None:
            return self
        return replace(self, snapshot=Snapshot.when_asked(self.name(folder), self.origin))

    def _listed(self, folder: Path) -> Snapshot:
        """Return a listing of a folder: the one that there is already, or a new one."""
        place = self.name(folder)
        return self._snapshot_with(place) or Snapshot.of_folder(place, self.store.list(place))

    def size(self, path: Path) -> int | None:
        """Return the bytes of a stored file, or None if it does not exist."""
        # Look in a listing if there is one, then among earlier answers of the store, and only then
        # send a request.
        name = self.name(path)
        snapshot = self._snapshot_with(name)
        if snapshot is not None:
            entry = snapshot.file(name)
            return None if entry is None else entry.size

        if self.asked is not None and name in self.asked:
            return self.asked[name]
        stored = self.store.stat(name)
        size = None if stored is None else stored.size
        if self.asked is not None:
            self.asked[name] = size
        return size

    def sizes(self, folder: Path, names: Iterable[str]) -> dict[str, int]:
        """Return the sizes of stored files.

        Args:
            folder: Their folder.
            names: Their names, relative to the folder.

        Returns:
            Name → bytes of those that exist.
        """
        entries = dict(self._listed(folder).below(self.name(folder)))
        return {name: entries[name].size for name in names if name in entries}

    def written_ns(self, path: Path) -> int:
        """Return when a file was written, in nanoseconds since 1970.

        0 if it is not in the listing or, if there is no listing, has no copy on this machine.
        """
        if self.snapshot is not None:
            name = self.name(path)
            if self.snapshot.covers(name):
                entry = self.snapshot.file(name)
                return 0 if entry is None else entry.written_ns
        try:
            return path.stat().st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def written_in(self, parent: Path, name: str) -> dict[str, int]:
        """Return when the files of one name were written in the folders directly below a parent.

        Args:
            parent: The parent.
            name: Name of the files.

        Returns:
            Name of a folder → nanoseconds since 1970, for the folders that contain such a file.
        """
        times = {}
        if self.origin is None:
            for folder in self.names(parent):
                written_ns = self.written_ns(parent / folder / name)
                if written_ns:
                    times[folder] = written_ns
            return times

        for relative_name, entry in self._listed(parent).below(self.name(parent)):
            folder, _, name_in_folder = relative_name.partition("/")
            if name_in_folder == name:
                times[folder] = entry.written_ns
        return times

    def sha256(self, path: Path) -> str:
        """Return the sha256 of a stored file as hex digits.

        Raises:
            FileNotFoundError: It does not exist.
        """
        return self.store.sha256_of(self.stored(path))

    def stored(self, path: Path, begin: int = 0, size: int | None = None) -> Stored:
        """Return what the store knows of a file, or of a range of it.

        Args:
            path: The file.
            begin: First byte of the range.
            size: Bytes of the range; None for the whole file.

        Raises:
            FileNotFoundError: It does not exist.
        """
        stored = self.store.stat(self.name(path))
        if stored is None:
            raise FileNotFoundError(self.url(path))
        return stored if size is None else replace(stored, begin=begin, size=size)

    def names(self, folder: Path) -> frozenset[str]:
        """Return the names of the files and folders directly in a folder."""
        place = self.name(folder)
        snapshot = self._snapshot_with(place)
        if snapshot is not None:
            return frozenset(snapshot.entries(place))
        return frozenset(chain(*self.store.level(place)))

    def listing(self) -> FileAccess:
        """Return access to all that is stored at this moment.

        A store is listed once, and all its JSON files are read.
        """
        if self.origin is None:
            return self
        return replace(self, snapshot=Snapshot.of_store(self.origin))

    def entries(self, folder: Path) -> list[Entry]:
        """Return the files and folders directly in a folder, ordered by name.

        The list is empty if the folder does not exist.
        """
        if self.origin is None:
            return disk_entries(folder)
        snapshot = self.snapshot or Snapshot.of_store(self.origin)
        return sorted(snapshot.entries(self.name(folder)).values(), key=lambda entry: entry.name)

    def is_link(self, path: Path) -> bool:
        """Return whether a stored file is a symbolic link, which only a local folder can have."""
        return self.origin is None and path.is_symlink()

    def unfinished(self) -> Iterator[Path]:
        """Yield the objects of the listing that would have become part of larger ones.

        There are none in a local folder.
        """
        if self.snapshot is None:
            return
        for name, entry in self.snapshot.below(""):
            if entry.name.startswith(UNFINISHED):
                yield self.folder / name

    def stored_at(self, path: Path, *, as_copy: bool = False) -> tuple[Store, str]:
        """Return the store from which any machine can read ranges of a file, and its name there.

        Args:
            path: The file.
            as_copy: Whether to return the local folder if there is a copy in it.
        """
        reads_copy = as_copy and path.is_file()
        if self.origin is None or reads_copy or not path.is_relative_to(self.folder):
            return LocalStore(path.parent.absolute()), path.name
        return self.origin, self.name(path)

    def open_bytes(self, path: Path, *, as_copy: bool = True) -> MappedFile:
        """Open a large file for reading ranges of it.

        Args:
            path: The file.
            as_copy: Whether to read a copy if there is one.

        Raises:
            FileNotFoundError: It does not exist.
        """
        store, name = self.stored_at(path, as_copy=as_copy)
        if isinstance(store, LocalStore):
            return MappedFile(map_regular(path))

        if self.capacity is not None:
            room = self.capacity // 4
            return BlockFile(store, name, path.parent, block_bytes=_SMALL_BLOCK, room=room)
        block_bytes = _SMALL_BLOCK if self.is_sampled else BLOCK_BYTES
        return BlockFile(store, name, path.parent, block_bytes=block_bytes)

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Call a function that asks the store for each item, in parallel if it is remote.

        Args:
            work: The function.
            items: The items.

        Returns:
            The results, in the order of the items. The first error is raised.
        """
        if self.origin is None:
            return [work(item) for item in items]
        return in_parallel(work, items, CONNECTIONS)

    def each_copy(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Call a function that reads copies for each item, in parallel if all copies are kept.

        If disk space is limited, a copy could be removed for another one before it is read.

        Args:
            work: The function.
            items: The items.

        Returns:
            The results, in the order of the items. The first error is raised.
        """
        if self.capacity is None:
            return self.each(work, items)
        return [work(item) for item in items]

    def each_folder(
        self, work: Callable[[FileAccess, Path], R], parent: Path, names: Sequence[str]
    ) -> list[R]:
        """Call a function for many folders of one parent, most of which exist.

        The folders of a store are listed together, which takes far fewer requests than to list each
        one. If the parent has many folders and only a few are asked for, they are listed one by one
        instead.

        Args:
            work: Called with access that answers from the listing of a folder, and with the folder.
            parent: The parent.
            names: Names of the folders.

        Returns:
            The results, in the order of the names.
        """
        place = self.name(parent)
        if self.origin is None or self._snapshot_with(place) is not None:
            return self.each(lambda name: work(self, parent / name), names)

        # For a few folders, the first request of the listing shows whether it is worthwhile: if it
        # is not the only one, there is much else below the parent.
        listing = self.origin.list(place)
        first_objects: list[Stored] = []
        if 1 < len(names) <= _MAX_SINGLE_REQUESTS:
            first_objects = list(islice(listing, _OBJECTS_PER_REQUEST))
        if len(names) < 2 or len(first_objects) == _OBJECTS_PER_REQUEST:
            return self.each(lambda name: work(self, parent / name), names)

        sizes_asked: dict[str, int | None] = {}  # shared, since folders may refer to one file

        def call_with_listing(folder: _ListedFolder) -> tuple[str, R]:
            snapshot = Snapshot.of_folder(f"{place}/{folder.name}", folder.objects)
            access = replace(self, snapshot=snapshot, asked=sizes_asked)
            return folder.name, work(access, parent / folder.name)

        wanted_names = set(names)
        folders = _folders_of(chain(first_objects, listing), len(place) + 1)
        wanted_folders = (folder for folder in folders if folder.name in wanted_names)
        result_by_name = dict(
            in_parallel(call_with_listing, wanted_folders, CONNECTIONS, window=_FOLDERS_IN_MEMORY)
        )
        for name in wanted_names - result_by_name.keys():
            _, result_by_name[name] = call_with_listing(_ListedFolder(name, []))
        return [result_by_name[name] for name in names]

    def send(
        self,
        paths: Iterable[Path],
        sha256: Mapping[Path, str | None] | None = None,
        *,
        there: Mapping[str, int] | None = None,
    ) -> list[int]:
        """Upload files that were written to the folder, each of which appears whole or not at all.

        Args:
            paths: The files.
            sha256: Checksums that the files must have, as hex digits.
            there: Name → bytes of all files that are stored in their folders. By default the store
                is asked.

        Returns:
            The bytes of each file; an empty list if the files are in a local folder.

        Raises:
            MissingError: A file is neither in the folder nor in the store.
            StorageError: A file has another checksum.
        """
        store = self.origin
        if store is None:
            return []
        files = list(paths)
        checksums = sha256 or {}
        stored_sizes = there
        if stored_sizes is None and len(files) > _MAX_SINGLE_REQUESTS:
            listed_sizes: dict[str, int] = {}
            for folder in {path.parent for path in files}:
                for stored in store.list(self.name(folder)):
                    listed_sizes[stored.name] = stored.size
            stored_sizes = listed_sizes

        def send_file(path: Path) -> int:
            name = self.name(path)
            if path.is_file():
                # Before the upload: after it, another process may remove the copy to make room.
                size = path.stat().st_size
                is_new = stored_sizes is not None and name not in stored_sizes
                store.put_file(name, path, sha256=checksums.get(path), is_new=is_new)
                return size
            if stored_sizes is None or name not in stored_sizes:
                raise MissingError(
                    "a file of an output is neither on this machine nor in its store",
                    where=self.url(path),
                    remedy="run the command again, which rebuilds the file",
                )
            return stored_sizes[name]

        return in_parallel(send_file, files)

    def write(self, path: Path, data: bytes) -> None:
        """Write a small file to the folder and to the store, wherever it has other bytes."""
        is_new = not path.exists() or read_regular(path) != data
        if is_new:
            write_atomic(path, data)
        # Upload the bytes, not the file, which another build may replace in the meantime.
        if self.origin is not None and (is_new or self.origin.read(self.name(path)) != data):
            self.origin.put(self.name(path), data)

    def publish(
        self, folder: Path, files: Mapping[str, str | None], manifest: str, *, is_new: bool = False
    ) -> Mapping[str, int] | None:
        """Upload an output: first its files, then the manifest, without which it does not exist.

        If the store has a manifest with other bytes, that one is removed first.

        Args:
            folder: Folder of the output.
            files: Relative name → sha256, or None if it is not known.
            manifest: Relative name of the manifest.
            is_new: Whether the store is known to have no manifest, so that it need not be asked.

        Returns:
            Relative name → bytes of all files that are known to be stored in the folder now; None
            for a local folder.

        Raises:
            MissingError: A file is neither in the folder nor in the store.
        """
        store = self.origin
        if store is None:
            return None

        # The folder may have stored files even if its manifest is new: those that this machine
        # lacks must be among them.
        place = self.name(folder)
        stored_sizes: dict[str, int] = {}  # name in the store → bytes
        if not is_new or not all((folder / name).is_file() for name in files):
            for name, entry in self._listed(folder).below(place):
                stored_sizes[f"{place}/{name}"] = entry.size

        data = read_regular(folder / manifest)
        manifest_name = self.name(folder / manifest)
        has_manifest = manifest_name in stored_sizes
        if has_manifest and store.read(manifest_name) != data:
            store.delete(manifest_name)
            has_manifest = False

        sums = {folder / name: sha256 for name, sha256 in files.items()}
        sizes = self.send(sums, sums, there=stored_sizes)
        for path, size in zip(sums, sizes, strict=True):
            stored_sizes[self.name(path)] = size
        if not has_manifest:
            store.put(manifest_name, data)
        self.drop(sums)

        prefix = f"{place}/"
        result = {name.removeprefix(prefix): size for name, size in stored_sizes.items()}
        result[manifest] = len(data)
        return result

    def drop(self, paths: Iterable[Path]) -> None:
        """Remove copies that have been uploaded, if disk space is limited."""
        if self.capacity is not None:
            for path in paths:
                path.unlink(missing_ok=True)

    def remove_all(self, folder: Path) -> None:
        """Remove all files below a folder from the store; the caller removes the copies."""
        if self.origin is None:
            return
        names = [stored.name for stored in self.origin.list(self.name(folder))]
        in_parallel(self.origin.delete, names)

    def remove(self, path: Path) -> None:
        """Remove a stored file, and its copy."""
        if self.origin is not None:
            self.origin.delete(self.name(path))
        path.unlink(missing_ok=self.origin is not None)

    def withdraw(
        self, folder: Path, manifest: str, is_wanted: Callable[[], bool]
    ) -> tuple[Path, ...] | None:
        """Remove an output so that no reader finds a part of it, even if this is interrupted.

        Args:
            folder: Folder of the output.
            manifest: Relative name of its manifest.
            is_wanted: Returns whether the output is needed by now, and has to stay.

        Returns:
            Folders that contain what is left of it, to be removed at any time; None if it stays.
        """
        if self.origin is None:
            return withdrawn(folder, is_wanted)

        if is_wanted():
            return None
        # Without its manifest, the rest is not an output.
        self.origin.delete(self.name(folder / manifest))
        self.remove_all(folder)
        shutil.rmtree(folder, ignore_errors=True)
        return ()


class _ListedFolder(NamedTuple):
    """A folder of a store, with all objects below it."""

    name: str
    objects: list[Stored]


def _folders_of(objects: Iterable[Stored], prefix_length: int) -> Iterator[_ListedFolder]:
    """Group the objects below a parent by the folder directly below it.

    Args:
        objects: The objects, ordered by name. Those directly in the parent are left out.
        prefix_length: Length of the parent's name with the slash after it.
    """
    nested = (stored for stored in objects if "/" in stored.name[prefix_length:])
    for name, group in groupby(
        nested, lambda stored: stored.name[prefix_length:].partition("/")[0]
    ):
        yield _ListedFolder(name, list(group))


def _remove_files(folder: Path, *, except_for: Path) -> None:
    """Remove all files below a folder, except for one."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if path != except_for:
                path.unlink(missing_ok=True)
