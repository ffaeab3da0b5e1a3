"""A store that is a local folder, or a folder of a file system that machines share."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from nanoset_core.errors import SourceChangedError, StorageError
from nanoset_core.storage.atomic import UNFINISHED, atomic_file, sha256_file
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.storage.store import Store, Stored, changed, checked_name, damaged, gone

_READ_BYTES = 4 << 20
_PIECE_BYTES = 1 << 30
_LOOP_BYTES = 1 << 20
_BLOCK_BYTES = 512
"""Of what the system says that a file takes."""


@dataclass(frozen=True, slots=True)
class LocalStore(Store):
    """The files below a folder."""

    folder: Path
    """Absolute; it need not be there yet."""

    def url(self, name: str = "") -> str:
        return str(self.folder / name)

    def below(self, folder: str) -> LocalStore:
        return LocalStore(self.folder / folder)

    def now(self) -> int:
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                return os.fstat(file.fileno()).st_mtime_ns
        except OSError:
            return time.time_ns()

    def list(self, folder: str = "") -> Iterator[Stored]:
        top = self._path(folder) if folder else self.folder
        found = []
        for place, folders, files in os.walk(top):
            folders[:] = [name for name in folders if not name.startswith(UNFINISHED)]
            found += [Path(place, name) for name in files if not name.startswith(UNFINISHED)]
        names = ((path.relative_to(self.folder).as_posix(), path) for path in found)
        for name, path in sorted(names, key=lambda item: os.fsencode(item[0])):
            if (stored := self._stat(name, path)) is not None:
                yield stored

    def level(self, folder: str = "") -> tuple[Sequence[str], Sequence[str]]:
        top = self._path(folder) if folder else self.folder
        if not top.is_dir():
            return [], []
        entries = [entry for entry in os.scandir(top) if not entry.name.startswith(UNFINISHED)]
        folders = sorted(entry.name for entry in entries if entry.is_dir())
        return folders, sorted(entry.name for entry in entries if entry.is_file())

    def stat(self, name: str) -> Stored | None:
        return self._stat(name, self._path(name))

    def read_stored(self, name: str) -> tuple[bytes, Stored] | None:
        try:
            with open_regular(self._path(name)) as file:
                return file.read(), _stored(name, os.fstat(file.fileno()))
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    def read_range(self, name: str, begin: int, end: int, mark: str | None = None) -> bytes:
        with self._opened(name, mark) as file:
            file.seek(begin)
            data = file.read(max(0, end - begin))
        if len(data) < end - begin:
            raise changed(self.url(name), f"{begin + len(data):,} bytes", f"at least {end:,}")
        return data

    def put_parts(self, name: str, blocks: Iterable[bytes]) -> None:
        with atomic_file(self._path(name)) as file:
            for block in blocks:
                file.write(block)

    def put_file(
        self, name: str, path: Path, *, sha256: str | None = None, is_new: bool = False
    ) -> None:
        if sha256 is not None and (found := sha256_file(path)) != sha256:
            raise damaged(str(path), f"sha256 {found}", f"sha256 {sha256}")
        with open_regular(path) as source:
            self.put_parts(name, iter(lambda: source.read(_READ_BYTES), b""))

    def delete(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        checked_name(os.fsencode(name).decode(errors="replace"))  # names of files may be no UTF-8
        return self.folder / name

    def _stat(self, name: str, path: Path) -> Stored | None:
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _stored(name, status) if stat.S_ISREG(status.st_mode) else None

    def _opened(self, name: str, mark: str | None) -> BinaryIO:
        try:
            file = open_regular(self._path(name))
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise gone(self.url(name)) from error
        found = _stored(name, os.fstat(file.fileno())).mark
        if mark not in (None, found):
            file.close()
            raise changed(self.url(name), f"mark {found}", f"mark {mark}")
        return file


def _stored(name: str, status: os.stat_result) -> Stored:
    mark = f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"
    return Stored(name, status.st_size, mark, status.st_mtime_ns)


def make_room(folder: Path, capacity: int, wanted: int, url: str) -> None:
    """Remove the oldest files below a folder until `wanted` more bytes have room beside all that is
    there.

    Hidden files, which are of others or not finished, count and stay. StorageError where these, or
    what is wanted, are more than the capacity.
    """
    copies, hidden = [], 0
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                taken = max(status.st_size, status.st_blocks * _BLOCK_BYTES)
                if any(part.startswith(".") for part in path.relative_to(folder).parts):
                    hidden += taken
                else:
                    copies.append((status.st_ctime_ns, taken, path))
    if max(wanted, hidden) > capacity:
        what, remedy = (
            "this is larger than the room for working copies",
            "set storage.scratch_mib to more",
        )
        found = f"{max(wanted, hidden):,} bytes"
        expected = f"at most {capacity:,} bytes, three quarters of storage.scratch_mib"
        raise StorageError(what, where=url, found=found, expected=expected, remedy=remedy)
    excess = sum(taken for _, taken, _ in copies) + hidden + wanted - capacity
    for _, taken, copy in sorted(copies):
        if excess <= 0:
            break
        copy.unlink(missing_ok=True)
        excess -= taken


def note_use(copy: Path) -> None:
    """Let a copy that is used make room after those that are not: nothing is freed while it is
    open.
    """
    with contextlib.suppress(FileNotFoundError):
        os.utime(copy, ns=(time.time_ns(), copy.stat().st_mtime_ns))


def set_time(copy: Path, written_ns: int) -> None:
    """Give a copy the object's time, nanoseconds since 1970: it tells when an output was made."""
    if copy.stat().st_mtime_ns != written_ns:
        os.utime(copy, ns=(written_ns, written_ns))


def append_file(source: IO[bytes], target: IO[bytes], size_bytes: int, begin: int = 0) -> None:
    """Append bytes of a file by `os.copy_file_range`, which shares extents, or else by reads and
    writes.
    """
    target.flush()
    done = 0
    # What the system refuses here, reads and writes do, or they fail as well.
    with contextlib.suppress(OSError, AttributeError):
        while done < size_bytes and (
            copied := os.copy_file_range(
                source.fileno(),
                target.fileno(),
                min(_PIECE_BYTES, size_bytes - done),
                offset_src=begin + done,
            )
        ):
            done += copied
    target.seek(0, os.SEEK_END)
    source.seek(begin + done)
    while done < size_bytes and (piece := source.read(min(_LOOP_BYTES, size_bytes - done))):
        target.write(piece)
        done += len(piece)
    if done != size_bytes:
        what, remedy = (
            "the file ended early while it was copied",
            "run again once nothing writes to it any more",
        )
        where, found, expected = (
            f"{source.name}, byte {begin + done}",
            f"{done} bytes",
            f"{size_bytes} bytes",
        )
        raise SourceChangedError(what, where=where, found=found, expected=expected, remedy=remedy)
