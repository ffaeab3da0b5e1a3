"""Files that live in a store, with working copies in a folder of this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path
from typing import TypeVar

from nanoset_core.errors import MissingError, StorageError
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.block_file import BlockFile, MappedFile
from nanoset_core.storage.listing import Entry, Snapshot
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.location import S3Place, StorageSpec, copies_folder, is_remote, parse_place
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.pieces import read_pieces
from nanoset_core.storage.regular_files import map_regular, read_regular
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.s3_uploads import etag_of_bytes
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
class CopyAccess(FileAccess):
    """Files that live in a store, and have working copies in the folder, in the same layout.

    The store is the truth: an output is there when its manifest is, and the manifest goes up last. Work is done on the
    copies; what a process that was killed had finished there is sent by the next one. Copies may be removed at any
    time.
    """

    origin: Store
    """Where the files live."""
    scratch_bytes: int | None = field(default=None, kw_only=True)
    """Capacity for copies; None: all stay."""
    snapshot: Snapshot | None = field(default=None, kw_only=True, compare=False, repr=False)
    """What a listing said: it is believed instead of asking again."""

    @property
    def store(self) -> Store:
        return self.origin

    @property
    def has_copies(self) -> bool:
        return True

    @property
    def capacity(self) -> int | None:
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
        """Remove the oldest copies until another one has room."""
        capacity = self.scratch_bytes or 0
        if wanted > capacity:
            raise StorageError(
                "a file that is needed is larger than the room for working copies",
                where=self.url(path),
                found=f"{wanted:,} bytes",
                expected=f"at most {capacity:,} bytes",
                remedy="set storage.scratch_mib to more",
            )
        copies = sorted(_copies_below(self.folder))
        taken = sum(size for _, size, _ in copies)
        for _, size, copy in copies:
            if taken + wanted <= capacity:
                break
            copy.unlink(missing_ok=True)
            taken -= size

    def drop(self, paths: Iterable[Path]) -> None:
        if self.scratch_bytes is not None:
            for path in paths:
                path.unlink(missing_ok=True)

    def revalidate(self, path: Path) -> None:
        """Fetch a file unless the copy has the size and time of the object as it is now; remove the copy of none."""
        found = self.origin.stat(self.name(path))
        if found is None:
            path.unlink(missing_ok=True)
            return
        status = path.stat() if path.is_file() else None
        if status is not None and (status.st_size, status.st_mtime_ns) == (found.size, found.written_ns):
            return
        if self.origin.fetch(found.name, path):
            os.utime(path, ns=(found.written_ns, found.written_ns))

    def fetch_all(self, folder: Path, name: str) -> None:
        if self.snapshot is None:
            names = (found.name for found in self.origin.list(self.name(folder)))
            paths = [self.folder / found for found in names if is_inside(found)]
            in_parallel(self._refresh, [path for path in paths if path.name == name])

    def read_current(self, path: Path) -> bytes:
        name = self.name(path)
        data, snapshot = None, self.snapshot
        if snapshot is None or not snapshot.covers(name):
            data = self._refresh(path, is_marker=False)
        elif snapshot.contents is not None:
            data = snapshot.contents.get(name)
        elif (entry := snapshot.file(name)) is not None:
            data = self._unchanged_copy(path, entry) or self._refresh(path, is_marker=False)
        if data is None:
            raise FileNotFoundError(self.url(path))
        return data

    def read_beside(self, path: Path) -> tuple[bytes, Mapping[str, int] | None]:
        if self.snapshot is not None and self.snapshot.contents is not None:
            return self.read_current(path), None
        listed = self._below(path.parent)
        stored = listed.get(path.name)
        data = None if stored is None else self._unchanged_copy(path, stored) or self._refresh(path)
        if data is None:
            raise FileNotFoundError(self.url(path))
        return data, {name: found.size for name, found in listed.items()}

    def _below(self, folder: Path) -> Mapping[str, Stored | Entry]:
        """Return relative name → object of all that is stored below a folder."""
        place = self.name(folder)
        if self.snapshot is not None and self.snapshot.covers(place):
            return dict(self.snapshot.below(place))
        return {found.name[len(place) + 1 :]: found for found in self.origin.list(place)}

    def _refresh(self, path: Path, *, is_marker: bool = True) -> bytes | None:
        """Make the copy of a small file what the store has now; return its bytes, or None where the store has none.

        Where the copy of a commit marker was another, the files beside it are removed.
        """
        found = self.origin.read_stored(self.name(path))
        if found is None:
            return None
        data, stored = found
        had = path.read_bytes() if path.is_file() else None
        if had != data:
            if had is not None and is_marker:
                _drop_beside(path)
            write_atomic(path, data)
        _date(path, stored)
        return data

    def _unchanged_copy(self, path: Path, stored: Stored | Entry) -> bytes | None:
        """Return the bytes of a copy that is the object by its ETag; None where it is not, or ETags are no digests."""
        data = path.read_bytes() if path.is_file() else b""
        if etag_of_bytes(data) != stored.mark:
            return None
        _date(path, stored)
        return data

    def size(self, path: Path) -> int | None:
        name = self.name(path)
        is_known = self.snapshot is not None and self.snapshot.contents is not None
        found = self.snapshot.file(name) if self.snapshot is not None and is_known else self.origin.stat(name)
        return None if found is None else found.size

    def sizes(self, folder: Path, names: Iterable[str]) -> dict[str, int]:
        listed = self._below(folder)
        return {name: listed[name].size for name in names if name in listed}

    def written_ns(self, path: Path) -> int:
        if self.snapshot is None or self.snapshot.contents is None:
            return FileAccess.written_ns(self, path)
        entry = self.snapshot.file(self.name(path))
        return 0 if entry is None else entry.written_ns

    def written_in(self, parent: Path, name: str) -> dict[str, int]:
        found = ((relative.split("/"), one.written_ns) for relative, one in self._below(parent).items())
        return {parts[0]: at for parts, at in found if parts[1:] == [name]}

    def sha256(self, path: Path) -> str:
        found = self.origin.sha256(self.name(path))
        if found is None:
            raise FileNotFoundError(self.url(path))
        return found

    def names(self, folder: Path) -> frozenset[str]:
        place = self.name(folder)
        if self.snapshot is not None and self.snapshot.covers(place):
            return frozenset(self.snapshot.entries(place))
        return frozenset(name for names in self.origin.level(place) for name in names)

    def listing(self) -> FileAccess:
        return replace(self, snapshot=Snapshot.of_store(self.origin))

    def entries(self, folder: Path) -> list[Entry]:
        snapshot = self.snapshot or Snapshot.of_store(self.origin)
        found = snapshot.entries("" if folder == self.folder else self.name(folder))
        return sorted(found.values(), key=lambda entry: entry.name)

    def is_link(self, path: Path) -> bool:
        return False

    def unfinished(self) -> Iterator[Path]:
        snapshot = self.snapshot or Snapshot.of_store(self.origin)
        return (self.folder / name for name in snapshot.unfinished())

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
        """List the folders together, unless they are few of many: one request tells of hundreds of objects.

        The listing of at most 1,024 folders is in memory at a time.
        """
        place, found = self.name(parent), dict[str, R]()
        listed = self.origin.list(place)
        if len(names) <= _ASKED_ONE_BY_ONE:
            first = list(islice(listed, _ENTRIES_TOLD)) if len(names) > 1 else None
            if first is None or len(first) == _ENTRIES_TOLD:
                return self.each(lambda name: work(self, parent / name), names)
            listed = iter(first)

        def look(name: str, listed: Sequence[Stored]) -> R:
            access = replace(self, snapshot=Snapshot.of_folder(f"{place}/{name}", listed))
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

    def remove(self, path: Path) -> None:
        self.origin.delete(self.name(path))
        path.unlink(missing_ok=True)

    def withdraw(self, folder: Path, manifest: str, is_wanted: Callable[[], bool]) -> tuple[Path, ...] | None:
        if is_wanted():
            return None
        self.origin.delete(f"{self.name(folder)}/{manifest}")  # without it the rest is no output
        self.remove_all(folder)
        shutil.rmtree(folder, ignore_errors=True)
        return ()


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


def _copies_below(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """Yield (changed at in ns, bytes, path) of every copy; hidden files are none, or not finished."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(place, name) for name in names if not name.startswith(".")):
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                yield status.st_ctime_ns, status.st_size, path


def _drop_beside(path: Path) -> None:
    """Remove all files of a folder but this one; where that is cut short, the next call does the rest."""
    for folder, _, names in os.walk(path.parent):
        for name in names:
            if (other := Path(folder, name)) != path:
                other.unlink(missing_ok=True)


def _date(path: Path, stored: Stored | Entry) -> None:
    """Give a copy the object's time: it tells when an output was made."""
    if path.stat().st_mtime_ns != stored.written_ns:
        os.utime(path, ns=(stored.written_ns, stored.written_ns))


def access_to(location: str | os.PathLike[str], storage: StorageSpec | None, where: str) -> FileAccess:
    """Return access to the files at a local folder, or at s3://bucket/prefix.

    Args:
        location: where they live.
        storage: how a bucket is reached; absent = as the AWS configuration says, with copies in the user's cache
            folder.
        where: what names the location, for messages.

    Raises:
        ConfigError: this is no place in a bucket.
    """
    if not is_remote(os.fspath(location)):
        return FileAccess(Path(location).resolve())
    storage = storage or StorageSpec()
    place = parse_place(os.fspath(location), storage, where=where)
    return copies_of(copies_folder(place, storage), place, storage.scratch_mib)


def copies_of(folder: Path, place: S3Place, scratch_mib: int | None = None) -> CopyAccess:
    """Return access to a place in a bucket with copies in a folder, of a capacity in MiB; absent = all stay."""
    from nanoset_core.storage.s3 import S3Store

    return CopyAccess(folder, S3Store(place), scratch_bytes=None if scratch_mib is None else scratch_mib << 20)
