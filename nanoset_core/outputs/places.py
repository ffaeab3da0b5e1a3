"""Folders that commands write to, on this machine or in a bucket: what is there, and putting files in place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoset_core.errors import StorageError
from nanoset_core.storage.atomic import fsync_folder
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.location import Location
from nanoset_core.storage.os_errors import explained, writing_to
from nanoset_core.storage.scratch import alone_in, claim_scratch, sweep_abandoned
from nanoset_core.storage.store import Store
from nanoset_core.storage.working_copies import scratch_root, temporary_folder


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """A folder that files of one command go to; each is there whole or not at all."""

    folder: Location

    @property
    def _store(self) -> Store:
        return LocalStore(self.folder) if isinstance(self.folder, Path) else self.folder.store

    def _key(self, name: str) -> str:
        return name if isinstance(self.folder, Path) else (self.folder / name).path

    def has(self, name: str) -> bool:
        """Return whether anything of this name is there."""
        path = self.folder / name
        return os.path.lexists(path) if isinstance(path, Path) else path.is_file()

    def has_size(self, name: str, size: int) -> bool:
        """Return whether a file of so many bytes is there."""
        found = self._store.stat(self._key(name))
        return found is not None and found.size == size

    def is_folder(self, name: str) -> bool:
        """Return whether it is a folder, which no file can replace; an object may have the name of one."""
        path = self.folder / name
        return isinstance(path, Path) and path.is_dir()

    def names(self) -> Sequence[str]:
        """Return the names of all files right in it."""
        return self._store.level("" if isinstance(self.folder, Path) else self.folder.path)[1]

    def read(self, name: str) -> bytes | None:
        """Return a small file's bytes; None where there is none."""
        return self._store.read(self._key(name))

    def write(self, name: str, data: bytes) -> None:
        """Write a small file."""
        self._store.put(self._key(name), data)

    def remove(self, name: str) -> None:
        """Remove a file, where it is there."""
        self._store.delete(self._key(name))

    def take(self, path: Path, name: str, *, sha256: str | None) -> Mapping[str, Any]:
        """Move a finished file here; return what `change` compares later.

        Args:
            path: of the file, in a draft.
            name: under which it is to be there.
            sha256: hex, of its bytes, where that is known.
        """
        status = path.stat()
        facts: dict[str, Any] = {"bytes": status.st_size} | ({} if sha256 is None else {"sha256": sha256})
        if isinstance(self.folder, Path):
            os.replace(path, self.folder / name)
            return facts if sha256 is not None else facts | {"mtime_ns": status.st_mtime_ns}
        store, key = self._store, self._key(name)
        store.put_file(key, path, sha256=sha256)
        stored = store.stat(key)
        if stored is None or stored.size != status.st_size:
            what, remedy = "another call wrote this output meanwhile", "run again once the other has ended"
            raise StorageError(what, where=self.folder / name, remedy=remedy)
        path.unlink()
        return facts | {"etag": stored.mark}

    def change(self, name: str, noted: Mapping[str, Any]) -> str | None:
        """Return how a file differs from the one that `take` noted; None where it does not."""
        found = self._store.stat(self._key(name))
        if found is None:
            return f"{name} is a link to nothing" if self.has(name) else f"{name} is not there"
        if found.size != noted["bytes"]:
            return f"{name} has {found.size:,} bytes, and had {noted['bytes']:,}"
        if "sha256" in noted:  # the ETag of a copy is another where it was sent in other parts
            is_same = found.mark == noted.get("etag") or self._store.sha256(found.name) == noted["sha256"]
            return None if is_same else f"{name} has other bytes than those that were written"
        if isinstance(self.folder, Path):
            return f"{name} was written again" if found.written_ns != noted.get("mtime_ns", found.written_ns) else None
        return f"{name} was written again" if found.mark != noted.get("etag") else None

    def settle(self) -> None:
        """Make sure that what was put in place stays there after a crash of the machine."""
        if isinstance(self.folder, Path):
            fsync_folder(self.folder)

    @contextlib.contextmanager
    def writing(self, *, expected: str | None = None) -> Iterator[None]:
        """Check that the place can be written to before any work is done, and explain what fails in the block.

        Raises:
            StorageError: it cannot be written to.
        """
        if isinstance(self.folder, Path):
            with writing_to(self.folder, expected=expected):
                yield
            return
        self._store.check_writable(self._key(".probe"))
        with explained(scratch_root(), expected=expected):
            yield

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes of this machine that call this out of it, where the place has locks."""
        return alone_in(self.folder) if isinstance(self.folder, Path) else contextlib.nullcontext()

    @contextlib.contextmanager
    def draft(self, *names: str) -> Iterator[Path]:
        """Yield a folder of this machine to write files of these names into; it is removed afterwards."""
        if isinstance(self.folder, Path):
            for name in names:
                sweep_abandoned(self.folder, name)
            drafts = claim_scratch(self.folder / names[0])
        else:
            drafts = temporary_folder(names[0])
        with drafts as scratch:
            yield scratch


def place_of(folder: Location) -> OutputPlace:
    """Return the place that a folder is."""
    return OutputPlace(folder)
