"""Folders that commands write to, on this machine or in a bucket: what is there, and putting files in place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from nanoset_core.errors import StorageError
from nanoset_core.storage.atomic import fsync_folder, sha256_file, write_atomic
from nanoset_core.storage.location import Location, RemoteFolder
from nanoset_core.storage.os_errors import explained, writing_to
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.storage.scratch import alone_in, claim_scratch, sweep_abandoned
from nanoset_core.storage.working_copies import scratch_root, temporary_folder


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A folder of this machine that files of one command go to; each is there whole or not at all."""

    folder: Path

    def has(self, name: str) -> bool:
        """Return whether anything of this name is there."""
        return os.path.lexists(self.folder / name)

    def has_size(self, name: str, size: int) -> bool:
        """Return whether a file of so many bytes is there."""
        path = self.folder / name
        return path.is_file() and path.stat().st_size == size

    def is_folder(self, name: str) -> bool:
        """Return whether it is a folder, which no file can replace."""
        return (self.folder / name).is_dir()

    def names(self) -> list[str]:
        """Return the names of all files right in it."""
        return os.listdir(self.folder) if self.folder.is_dir() else []

    def read(self, name: str) -> bytes | None:
        """Return a small file's bytes; None where there is none."""
        try:
            return read_regular(self.folder / name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write a small file."""
        write_atomic(self.folder / name, data)

    def remove(self, name: str) -> None:
        """Remove a file, where it is there."""
        (self.folder / name).unlink(missing_ok=True)

    def take(self, path: Path, name: str, *, sha256: str | None) -> Mapping[str, Any]:
        """Move a finished file here; return what `change` compares later.

        Args:
            path: of the file, in a draft.
            name: under which it is to be there.
            sha256: hex, of its bytes, where that is known.
        """
        stat = path.stat()
        os.replace(path, self.folder / name)
        return {"bytes": stat.st_size} | ({"mtime_ns": stat.st_mtime_ns} if sha256 is None else {"sha256": sha256})

    def change(self, name: str, noted: Mapping[str, Any]) -> str | None:
        """Return how a file differs from the one that `take` noted; None where it does not."""
        path = self.folder / name
        try:
            stat = path.stat()
        except FileNotFoundError:
            return f"{name} is a link to nothing" if path.is_symlink() else f"{name} is not there"
        if stat.st_size != noted["bytes"]:
            return _other_size(name, stat.st_size, noted)
        if stat.st_mtime_ns != noted.get("mtime_ns", stat.st_mtime_ns):
            return f"{name} was written again"
        return _other_bytes(name) if "sha256" in noted and sha256_file(path) != noted["sha256"] else None

    def settle(self) -> None:
        """Make sure that what was put in place stays there after a crash of the machine."""
        fsync_folder(self.folder)

    def writing(self, *, expected: str | None = None) -> contextlib.AbstractContextManager[None]:
        """Check that the place can be written to before any work is done, and explain what fails in the block.

        Raises:
            StorageError: it cannot be written to.
        """
        return writing_to(self.folder, expected=expected)

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes of this machine that call this out of it, where the place has locks."""
        return alone_in(self.folder)

    @contextlib.contextmanager
    def draft(self, *names: str) -> Iterator[Path]:
        """Yield a folder of this machine to write files of these names into; it is removed afterwards."""
        for name in names:
            sweep_abandoned(self.folder, name)
        with claim_scratch(self.folder / names[0]) as scratch:
            yield scratch


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """A folder in a bucket, with the methods of `LocalPlace`."""

    folder: RemoteFolder

    def has(self, name: str) -> bool:
        return (self.folder / name).is_file()

    def has_size(self, name: str, size: int) -> bool:
        stored = self.folder.store.stat(self._key(name))
        return stored is not None and stored.size == size

    def is_folder(self, name: str) -> bool:
        return False  # an object may have the name of a folder

    def names(self) -> list[str]:
        return list(self.folder.store.level(self.folder.path)[1])

    def read(self, name: str) -> bytes | None:
        return self.folder.store.read(self._key(name))

    def write(self, name: str, data: bytes) -> None:
        self.folder.store.put(self._key(name), data)

    def remove(self, name: str) -> None:
        self.folder.store.delete(self._key(name))

    def take(self, path: Path, name: str, *, sha256: str | None) -> Mapping[str, Any]:
        store, key, size = self.folder.store, self._key(name), path.stat().st_size
        store.put_file(key, path, sha256=sha256)
        stored = store.stat(key)
        if stored is None or stored.size != size:
            what, remedy = "another call wrote this output meanwhile", "run again once the other has ended"
            raise StorageError(what, where=self.folder / name, remedy=remedy)
        path.unlink()
        return {"bytes": size} | ({} if sha256 is None else {"sha256": sha256}) | {"etag": stored.mark}

    def change(self, name: str, noted: Mapping[str, Any]) -> str | None:
        stored = self.folder.store.stat(self._key(name))
        if stored is None:
            return f"{name} is not there"
        if stored.size != noted["bytes"]:
            return _other_size(name, stored.size, noted)
        if stored.mark == noted.get("etag"):
            return None
        if "sha256" in noted:  # a copy, whose ETag is another where it was sent in other parts
            return None if self.folder.store.sha256(stored.name) == noted["sha256"] else _other_bytes(name)
        return f"{name} was written again"

    def settle(self) -> None:
        pass

    @contextlib.contextmanager
    def writing(self, *, expected: str | None = None) -> Iterator[None]:
        self.folder.store.check_writable(self._key(".probe"))
        with explained(scratch_root(), expected=expected):
            yield

    def alone(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def draft(self, *names: str) -> contextlib.AbstractContextManager[Path]:
        return temporary_folder(names[0])

    def _key(self, name: str) -> str:
        return (self.folder / name).path


OutputPlace: TypeAlias = LocalPlace | BucketPlace


def place_of(folder: Location) -> OutputPlace:
    """Return the place that a folder is."""
    return LocalPlace(folder) if isinstance(folder, Path) else BucketPlace(folder)


def _other_size(name: str, size: int, noted: Mapping[str, Any]) -> str:
    return f"{name} has {size:,} bytes, and had {noted['bytes']:,}"


def _other_bytes(name: str) -> str:
    return f"{name} has other bytes than those that were written"
