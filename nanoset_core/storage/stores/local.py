"""A store that is a local folder, or a folder of a file system that machines share."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nanoset_core.storage.atomic import (
    UNFINISHED,
    atomic_file,
    file_system_time_ns,
    sha256_file,
)
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.storage.store import (
    RANGE_BYTES,
    Store,
    Stored,
    changed,
    checked_name,
    damaged,
    file_blocks,
    gone,
)

_MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Errors of opening a path at which there is no file."""


@dataclass(frozen=True, slots=True)
class LocalStore(Store):
    """The files below a folder.

    The mark of a file consists of its inode number, size and time, one of which changes if the file
    is replaced or written to. Unfinished files, see `storage/atomic.py`, are not listed.
    """

    folder: Path
    """Absolute path of the folder, which need not exist."""

    def url(self, name: str = "") -> str:
        """Return the path of a file, or of the folder, as text."""
        return str(self.folder / name)

    def below(self, folder: str) -> LocalStore:
        """Return a folder within this folder as a store."""
        return LocalStore(self.folder / folder)

    def now(self) -> int:
        """Return the time of the file system's clock, in nanoseconds since 1970."""
        return file_system_time_ns(self.folder)

    def list(self, folder: str = "") -> Iterator[Stored]:
        """Yield all files below a folder, in the order of the bytes of their names.

        Files that are still being written are left out: they have hidden names such as
        `.tmp-a.bin-...`.
        """
        path_by_name = {
            path.relative_to(self.folder).as_posix(): path for path in self._finished_files(folder)
        }
        for name in sorted(path_by_name, key=os.fsencode):
            stored = _describe(name, path_by_name[name])
            if stored is not None:  # otherwise it was deleted meanwhile
                yield stored

    def _finished_files(self, folder: str) -> Iterator[Path]:
        """Yield the paths of all files below a folder, except those that are still being written.

        Args:
            folder: Name of the folder within this one, or "".
        """
        top = self._path(folder) if folder else self.folder
        for parent, folder_names, file_names in os.walk(top):
            # `os.walk` enters the folders that stay in its list.
            folder_names[:] = [name for name in folder_names if not _is_unfinished(name)]
            for file_name in file_names:
                if not _is_unfinished(file_name):
                    yield Path(parent, file_name)

    def level(self, folder: str = "") -> tuple[Sequence[str], Sequence[str]]:
        """Return the names of the folders, and of the files, directly in a folder.

        For example, (["web"], ["a.bin"]). What is still being written is left out.
        """
        top = self._path(folder) if folder else self.folder
        if not top.is_dir():
            return [], []
        entries = [entry for entry in os.scandir(top) if not _is_unfinished(entry.name)]
        folder_names = sorted(entry.name for entry in entries if entry.is_dir())
        file_names = sorted(entry.name for entry in entries if entry.is_file())
        return folder_names, file_names

    def stat(self, name: str) -> Stored | None:
        """Return the description of a file, or None if it does not exist."""
        return _describe(name, self._path(name))

    def read_stored(self, name: str) -> tuple[bytes, Stored] | None:
        """Return the bytes and the description of a small file, or None if it does not exist."""
        try:
            with open_regular(self._path(name)) as file:
                return file.read(), _stored(name, os.fstat(file.fileno()))
        except _MISSING:
            return None

    def read_range(self, name: str, begin: int, end: int, mark: str | None = None) -> bytes:
        """Return the bytes from `begin` to `end`, exclusive, of a file.

        Args:
            name: Name of the file.
            begin: Position of the first byte.
            end: Position after the last byte.
            mark: The version that is expected, as `Stored.mark`; None for any version.

        Raises:
            SourceChangedError: The file has another mark, or fewer bytes.
            MissingError: The file does not exist.
        """
        with self._opened(name, mark) as file:
            file.seek(begin)
            data = file.read(max(0, end - begin))
        if len(data) < end - begin:
            raise changed(
                self.url(name),
                found=f"{begin + len(data):,} bytes",
                expected=f"at least {end:,}",
            )
        return data

    def put_parts(self, name: str, blocks: Iterable[bytes]) -> None:
        """Write a file from consecutive blocks; it appears once the last block was written."""
        with atomic_file(self._path(name)) as file:
            for block in blocks:
                file.write(block)

    def blocks(self, stored: Stored) -> Iterator[bytes]:
        """Yield the bytes of a file, or of a range of it, in order, one block after the other."""
        end = stored.begin + stored.size
        for begin in range(stored.begin, end, RANGE_BYTES):
            yield self.read_range(stored.name, begin, min(begin + RANGE_BYTES, end), stored.mark)

    def put_file(
        self, name: str, path: Path, *, sha256: str | None = None, is_new: bool = False
    ) -> None:
        """Copy a file to this folder. The copy appears when it is complete.

        Args:
            name: Name of the copy.
            path: The file.
            sha256: Expected sha256 of the file as hex; None: it is not compared.
            is_new: Ignored; only buckets need to know.

        Raises:
            StorageError: The file has other bytes than expected.
        """
        if sha256 is not None:
            found_sha256 = sha256_file(path)
            if found_sha256 != sha256:
                raise damaged(
                    str(path),
                    found=f"sha256 {found_sha256}",
                    expected=f"sha256 {sha256}",
                )
        with open_regular(path) as source:
            self.put_parts(name, file_blocks(source))

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        """Return the path of a file.

        For example, the name `web/a.bin` in the folder `/data` gives `/data/web/a.bin`.

        Raises:
            ConfigError: The name would lead out of the folder, such as `../a.bin`.
        """
        # Python represents bytes of a name that are not UTF-8 by surrogates, which `checked_name`
        # refuses: check the name with replacement characters in their place.
        printable_name = os.fsencode(name).decode(errors="replace")
        checked_name(printable_name)
        return self.folder / name

    def _opened(self, name: str, mark: str | None) -> BinaryIO:
        """Open a file for reading, if it is still the version that the caller has seen.

        A version is named by a mark: the file's inode number, size and time, such as
        "4711-80-17673...". A reader of a large file passes it, so that it does not mix the bytes of
        two versions.

        Args:
            name: Name of the file.
            mark: The version that is expected; None for any version.

        Raises:
            MissingError: The file does not exist.
            SourceChangedError: The file has another mark.
        """
        try:
            file = open_regular(self._path(name))
        except _MISSING as error:
            raise gone(self.url(name)) from error
        found_mark = _stored(name, os.fstat(file.fileno())).mark
        if mark is not None and found_mark != mark:
            file.close()
            raise changed(self.url(name), found=f"mark {found_mark}", expected=f"mark {mark}")
        return file


def _is_unfinished(name: str) -> bool:
    """Return whether a file or folder is still being written, according to its name."""
    return name.startswith(UNFINISHED)


def _describe(name: str, path: Path) -> Stored | None:
    """Return the description of a file, or None if there is no file at its path.

    A folder, or a named pipe, counts as no file.

    Args:
        name: Name of the file within the store, such as `web/a.bin`.
        path: Its path.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _stored(name, status) if stat.S_ISREG(status.st_mode) else None


def _stored(name: str, status: os.stat_result) -> Stored:
    """Return the description of a file from the result of `os.stat`.

    Its mark changes if the file is replaced (it has another inode then) or written to.
    """
    mark = f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"
    return Stored(name, status.st_size, mark, status.st_mtime_ns)
