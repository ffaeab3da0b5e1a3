"""How this machine reaches the files below a folder: they are there, or live in a store of which it holds copies.

Whoever reads or makes files is passed such an object, and asks it; where the files live is for it to know. It pickles,
so that other processes reach them alike.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nanoset_core.errors import MissingError, StorageError
from nanoset_core.storage.atomic import sha256_file, write_atomic
from nanoset_core.storage.block_file import BlockFile, MappedFile
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.location import S3Place, StorageSpec, copies_folder, is_remote, parse_place
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.pieces import read_pieces
from nanoset_core.storage.regular_files import map_regular, read_regular
from nanoset_core.storage.s3_digests import etag_of_bytes
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.scratch import unfinished_name
from nanoset_core.storage.store import Store, Stored, in_parallel
from nanoset_core.storage.workplace import task_folder

if TYPE_CHECKING:
    from nanoset_core.storage.listing import Listing

T = TypeVar("T")
R = TypeVar("R")
_ASKED_ONE_BY_ONE = 8
"""Files that are sent, or folders that are looked into, without listing first what is there."""
_ENTRIES_TOLD = 1000
"""Objects that one request tells of."""
_FOLDERS_AT_ONCE = 1024
"""Of which the listing is in memory."""


@dataclass(frozen=True, slots=True)
class FileAccess(ABC):
    """The files below a folder, by their absolute paths.

    `fetch` and `open_bytes` take paths outside of it for files of this machine, which is where index files of a dataset
    in a bucket may be cached; to ask a store for one raises ValueError.
    """

    folder: Path
    """Absolute: where the files are, or their copies."""

    @property
    @abstractmethod
    def store(self) -> Store:
        """Where the files live."""

    @property
    @abstractmethod
    def has_copies(self) -> bool:
        """Whether what lies in the folder can be had again from elsewhere."""

    @property
    def room(self) -> int | None:
        """Bytes that copies may take; None where all of them stay."""
        return None

    @abstractmethod
    def with_copies_in(self, folder: Path) -> FileAccess:
        """The same files, with copies in another folder; files that live in the folder itself stay where they are."""

    def name(self, path: Path) -> str:
        """A file's name in the store."""
        return path.relative_to(self.folder).as_posix()

    @abstractmethod
    def url(self, path: Path) -> str:
        """Where a file lives, for messages."""

    @abstractmethod
    def fetch(
        self, path: Path, *, size: int | None = None, sha256: str | None = None, pieces: Path | None = None
    ) -> Path:
        """See to it that a file can be read at its path, where it exists at all; → the path.

        Args:
            path: of the file.
            size: bytes, where they are known: a copy of another size is brought again.
            sha256: hex, that it must have, where that is known.
            pieces: of a file that lists the digests of its pieces, which can be read.

        Raises:
            StorageError: it has other bytes than were written.
        """

    @abstractmethod
    def fetch_all(self, folder: Path, name: str) -> None:
        """As `fetch`, of every file of this name below a folder, as they are now; each completes what lies beside it.

        Copies that the store does not have stay: a build may have made them a moment ago, and be about to send them.
        Where the copy was another, those beside it are of another making and are dropped, whatever their size.
        """

    @abstractmethod
    def read_current(self, path: Path) -> bytes:
        """A small file's bytes as they are stored now; FileNotFoundError where there is none."""

    @abstractmethod
    def read_beside(self, path: Path) -> tuple[bytes, Mapping[str, int] | None]:
        """(bytes of a small file, relative name → bytes of all that lies in its folder, where that was told as well).

        The file completes what lies beside it, see `fetch_all`. FileNotFoundError where there is no such file.
        """

    @abstractmethod
    def size(self, path: Path) -> int | None:
        """Bytes of a file as it is stored; None where it is not there."""

    @abstractmethod
    def sizes(self, folder: Path, names: Iterable[str]) -> dict[str, int]:
        """Bytes of those files of a folder that are there, of these relative names."""

    def written_ns(self, path: Path) -> int:
        """When a file was written, nanoseconds since 1970; 0 where it is gone from this machine."""
        try:
            return path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    @abstractmethod
    def written_in(self, parent: Path, name: str) -> dict[str, int]:
        """When the files of one name that lie in the folders right below one were written: folder → ns since 1970."""

    @abstractmethod
    def sha256(self, path: Path) -> str:
        """Hex sha256 of a file as it is stored; FileNotFoundError where it is not there."""

    @abstractmethod
    def names(self, folder: Path) -> frozenset[str]:
        """Names of what lies right in a folder."""

    @abstractmethod
    def listing(self) -> Listing:
        """All that is stored now, to be walked through."""

    @abstractmethod
    def stored_at(self, path: Path, *, as_copy: bool = False) -> tuple[Store, str]:
        """(store, name there) by which any machine can read a file piece by piece; with `as_copy` this one, its copy.

        Where there is no copy, `as_copy` changes nothing.
        """

    @abstractmethod
    def open_bytes(self, path: Path, *, as_copy: bool = True) -> MappedFile:
        """A large file to be read here and there: its copy, where one is here, unless `as_copy` is False.

        FileNotFoundError where it is not there.
        """

    @abstractmethod
    def each(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """`work`, which asks the store, on every item; results in their order, the first error is raised."""

    @abstractmethod
    def each_folder(self, work: Callable[[FileAccess, Path], R], parent: Path, names: Sequence[str]) -> list[R]:
        """`work` on many folders of one parent, most of which are there; results in their order, as `each`.

        Args:
            work: takes how the folder's files are reached, by what is known of them from a moment ago, and the folder.
            parent: of all of them.
            names: of the folders, in the parent.
        """

    @abstractmethod
    def send(self, paths: Iterable[Path], sha256: Mapping[Path, str] | None = None) -> None:
        """Let files that were written here be where they live; each is there whole or not at all.

        Args:
            paths: of the files.
            sha256: hex, of what they must hold, where it is known.

        Raises:
            StorageError: a file holds something else.
        """

    @abstractmethod
    def send_small(self, path: Path, data: bytes, *, is_new: bool = False) -> None:
        """As `send`, of a small file that was written here with these bytes and is replaced now and then.

        is_new: other bytes stood here until a moment ago, or none; else it is not written again where it stands.
        """

    @abstractmethod
    def publish(
        self, folder: Path, files: Mapping[str, str | None], manifest: str, *, is_new: bool = False
    ) -> Mapping[str, int] | None:
        """As `send`, of an output: every file, and then the manifest that completes it.

        A manifest of other bytes is withdrawn first. Files that are not here must be stored already.

        Args:
            folder: of the output.
            files: relative name → sha256, where it is known.
            manifest: name of the file that goes last.
            is_new: there was no manifest a moment ago, so that nobody need look whether there is.

        Returns:
            Relative name → bytes of all that is known to be stored in the folder now; None where it is the folder
            itself.

        Raises:
            MissingError: a file is neither here nor stored.
        """

    @abstractmethod
    def drop(self, paths: Iterable[Path]) -> None:
        """Give back the room of copies that were sent, where copies do not stay."""

    @abstractmethod
    def remove_all(self, folder: Path) -> None:
        """Remove all files below a folder from the store of which copies are here; the files here are the caller's."""

    @abstractmethod
    def remove(self, path: Path) -> None:
        """Remove a file from where it lives, and its copy."""

    @abstractmethod
    def withdraw(self, folder: Path, manifest: str, is_wanted: Callable[[], bool]) -> tuple[Path, ...] | None:
        """Let an output be gone for every reader, whenever this is cut short, unless it is wanted by now.

        Args:
            folder: of the output.
            manifest: name of the file that completes it.
            is_wanted: asks anew whether the output has to stay.

        Returns:
            Folders that hold what is left of it, to be removed at any time; None where it stays.
        """


class LocalAccess(FileAccess):
    """Files that live in the folder itself."""

    __slots__ = ()

    @property
    def store(self) -> Store:
        return LocalStore(self.folder)

    @property
    def has_copies(self) -> bool:
        return False

    def with_copies_in(self, folder: Path) -> FileAccess:
        return self

    def url(self, path: Path) -> str:
        return str(path)

    def fetch(
        self, path: Path, *, size: int | None = None, sha256: str | None = None, pieces: Path | None = None
    ) -> Path:
        return path

    def fetch_all(self, folder: Path, name: str) -> None:
        pass

    def read_current(self, path: Path) -> bytes:
        return read_regular(path)

    def read_beside(self, path: Path) -> tuple[bytes, Mapping[str, int] | None]:
        return read_regular(path), None

    def size(self, path: Path) -> int | None:
        return path.stat().st_size if path.is_file() else None

    def sizes(self, folder: Path, names: Iterable[str]) -> dict[str, int]:
        sizes = {name: self.size(folder / name) for name in names}
        return {name: size for name, size in sizes.items() if size is not None}

    def written_in(self, parent: Path, name: str) -> dict[str, int]:
        paths = {entry: parent / entry / name for entry in self.names(parent) if not (parent / entry).is_symlink()}
        return {entry: self.written_ns(path) for entry, path in paths.items() if path.is_file()}

    def sha256(self, path: Path) -> str:
        return sha256_file(path)

    def names(self, folder: Path) -> frozenset[str]:
        return frozenset(entry.name for entry in folder.iterdir()) if folder.is_dir() else frozenset()

    def stored_at(self, path: Path, *, as_copy: bool = False) -> tuple[Store, str]:
        return LocalStore(path.parent.absolute()), path.name

    def open_bytes(self, path: Path, *, as_copy: bool = True) -> MappedFile:
        return MappedFile(map_regular(path))

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        return [work(item) for item in items]

    def each_folder(self, work: Callable[[FileAccess, Path], R], parent: Path, names: Sequence[str]) -> list[R]:
        return [work(self, parent / name) for name in names]

    def send(self, paths: Iterable[Path], sha256: Mapping[Path, str] | None = None) -> None:
        pass

    def send_small(self, path: Path, data: bytes, *, is_new: bool = False) -> None:
        pass

    def drop(self, paths: Iterable[Path]) -> None:
        pass

    def publish(
        self, folder: Path, files: Mapping[str, str | None], manifest: str, *, is_new: bool = False
    ) -> Mapping[str, int] | None:
        return None

    def listing(self) -> Listing:
        from nanoset_core.storage.listing import FolderListing

        return FolderListing(self.folder)

    def remove_all(self, folder: Path) -> None:
        pass

    def remove(self, path: Path) -> None:
        path.unlink()

    def withdraw(self, folder: Path, manifest: str, is_wanted: Callable[[], bool]) -> tuple[Path, ...] | None:
        """As told above: every reader takes an unfinished name for gone, and every sweep for litter."""
        aside = unfinished_name(folder)
        folder.rename(aside)
        if not is_wanted():
            return (aside,)
        with contextlib.suppress(OSError):  # it was made again: then that one stays
            aside.rename(folder)
            return None
        shutil.rmtree(aside, ignore_errors=True)
        return None


@dataclass(frozen=True, slots=True)
class CopyAccess(FileAccess):
    """Files that live in a store, and have working copies in the folder, in the very same layout.

    The store is the truth: an output is there when its manifest is, and the manifest goes up last. Work is done on the
    copies; what a process that was killed had finished there is sent by the next one. Copies may be removed at any
    time: what needs one that is gone is done again.
    """

    origin: Store
    """Where the files live."""
    scratch_bytes: int | None = field(default=None, kw_only=True)
    """Room for copies; None: all stay."""

    @property
    def store(self) -> Store:
        return self.origin

    @property
    def has_copies(self) -> bool:
        return True

    @property
    def room(self) -> int | None:
        return self.scratch_bytes

    def with_copies_in(self, folder: Path) -> CopyAccess:
        return CopyAccess(folder, self.origin, scratch_bytes=self.scratch_bytes or sys.maxsize)

    def url(self, path: Path) -> str:
        return self.origin.url(self.name(path))

    def fetch(
        self, path: Path, *, size: int | None = None, sha256: str | None = None, pieces: Path | None = None
    ) -> Path:
        if path.is_relative_to(self.folder) and (not path.is_file() or size not in (None, path.stat().st_size)):
            listed = None if pieces is None else read_pieces(pieces)
            if self.scratch_bytes is not None:
                self._make_room(path, self.size(path) or 0)
            self.origin.fetch(self.name(path), path, sha256=sha256, pieces=listed)
        return path

    def _make_room(self, path: Path, wanted: int) -> None:
        """Remove the oldest copies until another one has room.

        Raises:
            StorageError: there is not so much room.
        """
        room = self.scratch_bytes or 0
        if wanted > room:
            raise StorageError(
                "a file that is needed is larger than the room for working copies",
                where=self.url(path),
                found=f"{wanted:,} bytes",
                expected=f"at most {room:,} bytes",
                remedy="set storage.scratch_mib to more",
            )
        copies = sorted(_copies_below(self.folder))
        taken = sum(size for _, size, _ in copies)
        for _, size, copy in copies:
            if taken + wanted <= room:
                break
            copy.unlink(missing_ok=True)
            taken -= size

    def drop(self, paths: Iterable[Path]) -> None:
        if self.scratch_bytes is not None:
            for path in paths:
                path.unlink(missing_ok=True)

    def fetch_all(self, folder: Path, name: str) -> None:
        names = (found.name for found in self.origin.list(self.name(folder)))
        paths = [self.folder / found for found in names if is_inside(found)]  # others would lie elsewhere
        in_parallel(self._complete, [path for path in paths if path.name == name])

    def renew(self, path: Path) -> None:
        """Fetch a file unless the copy has the size and time of the object as it is now; remove that of none.

        For objects that are not ours, which may be replaced by others of the same name.
        """
        found = self.origin.stat(self.name(path))
        if found is None:
            path.unlink(missing_ok=True)
            return
        status = path.stat() if path.is_file() else None
        if status is not None and (status.st_size, status.st_mtime_ns) == (found.size, found.written_ns):
            return
        if self.origin.fetch(found.name, path):
            os.utime(path, ns=(found.written_ns, found.written_ns))

    def read_current(self, path: Path) -> bytes:
        data = self._refresh(path)
        if data is None:
            raise FileNotFoundError(self.url(path))
        return data

    def _complete(self, path: Path) -> bytes | None:
        """As `_refresh`, of a file that completes what lies beside it."""
        return self._refresh(path, drop=_drop_beside)

    def _refresh(self, path: Path, drop: Callable[[Path], None] = lambda path: None) -> bytes | None:
        """Make a small file what the store has now; → its bytes, or None, leaving the copy, where it has none.

        A copy that was another is given to `drop` first.
        """
        found = self.origin.read_stored(self.name(path))
        if found is None:
            return None
        data, stored = found
        had = path.read_bytes() if path.is_file() else None
        if had != data:
            if had is not None:
                drop(path)
            write_atomic(path, data)
        _date(path, stored)
        return data

    def read_beside(self, path: Path) -> tuple[bytes, Mapping[str, int] | None]:
        place = self.name(path.parent)
        listed = {found.name: found for found in self._below(place)}
        stored = listed.get(self.name(path))
        data = None if stored is None else self._copy_of(path, stored) or self._complete(path)
        if data is None:
            raise FileNotFoundError(self.url(path))
        return data, {name[len(place) + 1 :]: found.size for name, found in listed.items()}

    def _below(self, place: str) -> Iterable[Stored]:
        return self.origin.list(place)

    def _copy_of(self, path: Path, stored: Stored) -> bytes | None:
        """The bytes of a copy that is the object by its mark; None where it is not, or marks are no digests."""
        data = path.read_bytes() if path.is_file() else b""
        if etag_of_bytes(data) != stored.mark:
            return None
        _date(path, stored)
        return data

    def size(self, path: Path) -> int | None:
        found = self.origin.stat(self.name(path))
        return None if found is None else found.size

    def sizes(self, folder: Path, names: Iterable[str]) -> dict[str, int]:
        place = self.name(folder)
        listed = {found.name[len(place) + 1 :]: found.size for found in self.origin.list(place)}
        return {name: listed[name] for name in names if name in listed}

    def written_in(self, parent: Path, name: str) -> dict[str, int]:
        place = self.name(parent)
        found = ((one.name[len(place) + 1 :].split("/"), one.written_ns) for one in self.origin.list(place))
        return {parts[0]: at for parts, at in found if parts[1:] == [name]}

    def sha256(self, path: Path) -> str:
        found = self.origin.sha256(self.name(path))
        if found is None:
            raise FileNotFoundError(self.url(path))
        return found

    def names(self, folder: Path) -> frozenset[str]:
        return frozenset(name for names in self.origin.level(self.name(folder)) for name in names)

    def stored_at(self, path: Path, *, as_copy: bool = False) -> tuple[Store, str]:
        if as_copy and path.is_file():
            return LocalStore(path.parent), path.name
        return self.origin, self.name(path)

    def open_bytes(self, path: Path, *, as_copy: bool = True) -> MappedFile:
        if (as_copy and path.is_file()) or not path.is_relative_to(self.folder):
            return MappedFile(map_regular(path))
        return BlockFile(self.origin, self.name(path), path.parent)

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        return in_parallel(work, items, CONNECTIONS)

    def each_folder(self, work: Callable[[FileAccess, Path], R], parent: Path, names: Sequence[str]) -> list[R]:
        """They are listed together, few of many in vain: one request tells of hundreds of objects.

        Of most of them nothing is in memory at a time.
        """
        place, found = self.name(parent), dict[str, R]()
        listed = self.origin.list(place)
        if len(names) <= _ASKED_ONE_BY_ONE:
            first = list(islice(listed, _ENTRIES_TOLD)) if len(names) > 1 else None
            if first is None or len(first) == _ENTRIES_TOLD:
                return self.each(lambda name: work(self, parent / name), names)
            listed = iter(first)

        def look(name: str, listed: Sequence[Stored]) -> R:
            access = _ListedFolder(
                self.folder, self.origin, f"{place}/{name}", listed, scratch_bytes=self.scratch_bytes
            )
            return work(access, parent / name)

        several = _listed_folders(listed, len(place) + 1, set(names))
        while batch := list(islice(several, _FOLDERS_AT_ONCE)):
            results = self.each(lambda one: look(*one), batch)
            found.update(zip((name for name, _ in batch), results, strict=True))
        return [found[name] for name in names]

    def send(self, paths: Iterable[Path], sha256: Mapping[Path, str] | None = None) -> None:
        listed, known = list(paths), sha256 or {}
        there = None
        if len(listed) > _ASKED_ONE_BY_ONE:
            folders = {path.parent for path in listed}
            there = {found.name for folder in folders for found in self.origin.list(self.name(folder))}

        def send(path: Path) -> None:
            name = self.name(path)
            is_new = there is not None and name not in there
            self.origin.put_file(name, path, sha256=known.get(path), is_new=is_new)

        in_parallel(send, listed)

    def send_small(self, path: Path, data: bytes, *, is_new: bool = False) -> None:
        # Of the bytes, not of the file: another build may replace it meanwhile.
        if is_new or self.origin.read(self.name(path)) != data:
            self.origin.put(self.name(path), data)

    def publish(
        self, folder: Path, files: Mapping[str, str | None], manifest: str, *, is_new: bool = False
    ) -> Mapping[str, int] | None:
        place = self.name(folder)
        listed: Iterable[Stored] = ()
        if not is_new or not all((folder / name).is_file() for name in files):
            listed = self.origin.list(place)
        there = {found.name[len(place) + 1 :]: found.size for found in listed}
        data, last = read_regular(folder / manifest), f"{place}/{manifest}"
        stands = manifest in there
        if stands and self.origin.read(last) != data:
            self.origin.delete(last)
            stands = False

        def send(name: str) -> int:
            path = folder / name
            if path.is_file():
                size = path.stat().st_size
                self.origin.put_file(self.name(path), path, sha256=files[name], is_new=name not in there)
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
            self.origin.put(last, data)
        self.drop(folder / name for name in files)
        return there | sent | {manifest: len(data)}

    def remove_all(self, folder: Path) -> None:
        in_parallel(self.origin.delete, [found.name for found in self.origin.list(self.name(folder))])

    def listing(self) -> Listing:
        from nanoset_core.storage.listing import StoreListing

        return StoreListing.of(self)

    def remove(self, path: Path) -> None:
        self.origin.delete(self.name(path))
        path.unlink(missing_ok=True)

    def withdraw(self, folder: Path, manifest: str, is_wanted: Callable[[], bool]) -> tuple[Path, ...] | None:
        """As told above: the manifest goes first, without which nobody takes the rest for an output."""
        if is_wanted():
            return None
        self.origin.delete(f"{self.name(folder)}/{manifest}")
        self.remove_all(folder)
        shutil.rmtree(folder, ignore_errors=True)
        return ()


@dataclass(frozen=True, slots=True)
class _ListedFolder(CopyAccess):
    """As it is, but that a folder holds what a listing told."""

    place: str
    """Name of the folder."""
    listed: Sequence[Stored] = field(compare=False, repr=False)

    def _below(self, place: str) -> Iterable[Stored]:
        if not f"{place}/".startswith(f"{self.place}/"):
            return CopyAccess._below(self, place)
        return [found for found in self.listed if found.name.startswith(f"{place}/")]

    def read_current(self, path: Path) -> bytes:
        name = self.name(path)
        if name.startswith(f"{self.place}/"):
            stored = next((found for found in self.listed if found.name == name), None)
            if stored is None:
                raise FileNotFoundError(self.url(path))
            if (data := self._copy_of(path, stored)) is not None:
                return data
        return CopyAccess.read_current(self, path)


def _listed_folders(
    found: Iterable[Stored], cut: int, wanted: Collection[str]
) -> Iterator[tuple[str, Sequence[Stored]]]:
    """(name, what lies in it) of each wanted folder: of those that are not there last, with nothing.

    Args:
        found: all that lies below their parent, in the order of the names.
        cut: characters before the folders' own names.
        wanted: their names.
    """
    missing = set(wanted)
    for name, stored in groupby((one for one in found if "/" in one.name[cut:]), lambda one: _first(one.name[cut:])):
        if name in missing:
            missing.remove(name)
            yield name, list(stored)
    yield from ((name, ()) for name in sorted(missing))


def _first(name: str) -> str:
    return name.partition("/")[0]


def _copies_below(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """(changed at in ns, bytes, path) of every copy; what is hidden is no copy, or not finished."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(place, name) for name in names if not name.startswith(".")):
            with contextlib.suppress(FileNotFoundError):  # another process was quicker
                status = path.lstat()
                yield status.st_ctime_ns, status.st_size, path


def _drop_beside(path: Path) -> None:
    """Remove all files of a folder but this one; where that is cut short, the next call does the rest."""
    for folder, _, names in os.walk(path.parent):
        for name in names:
            if (other := Path(folder, name)) != path:
                other.unlink(missing_ok=True)


def _date(path: Path, stored: Stored) -> None:
    """Let a copy have the object's time: it tells when an output was made."""
    if path.stat().st_mtime_ns != stored.written_ns:
        os.utime(path, ns=(stored.written_ns, stored.written_ns))


@contextlib.contextmanager
def for_a_task(access: FileAccess) -> Iterator[FileAccess]:
    """The same files for the time of one task, which a worker of a cluster may have been given.

    A worker has copies of what lives in a store in a folder of its own, and none of them afterwards.
    """
    with task_folder() as folder:
        yield access if folder is None else access.with_copies_in(folder)


def access_to(location: str | os.PathLike[str], storage: StorageSpec | None, where: str) -> FileAccess:
    """The files at a local folder, or at s3://bucket/prefix.

    Args:
        location: where they live.
        storage: how a bucket is reached; absent = as the AWS configuration says, with copies in the user's cache
            folder.
        where: what names the location, for messages.

    Raises:
        ConfigError: this is no place in a bucket.
    """
    if not is_remote(os.fspath(location)):
        return LocalAccess(Path(location).resolve())
    storage = storage or StorageSpec()
    place = parse_place(os.fspath(location), storage, where=where)
    return copies_of(copies_folder(place, storage), place, storage.scratch_mib)


def copies_of(folder: Path, place: S3Place, scratch_mib: int | None = None) -> CopyAccess:
    """The files at a place in a bucket, with their copies in a folder, which have so much room; absent = all stay."""
    from nanoset_core.storage.s3 import S3Store

    return CopyAccess(folder, S3Store(place), scratch_bytes=None if scratch_mib is None else scratch_mib << 20)
