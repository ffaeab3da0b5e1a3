"""A store that is a local folder, or a folder of a file system that machines share."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from nanoset_core.errors import SourceChangedError
from nanoset_core.storage.atomic import atomic_file, sha256_file
from nanoset_core.storage.pieces import PieceCheck, PieceDigest
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.storage.scratch import UNFINISHED
from nanoset_core.storage.store import OnJoin, Store, Stored, changed, checked_name, damaged, gone, no_progress

_READ_BYTES = 4 << 20
_PIECE_BYTES = 1 << 30
_LOOP_BYTES = 1 << 20
_UNSUPPORTED = {
    errno.EXDEV,
    errno.EINVAL,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EBADF,
    errno.EPERM,
    errno.ETXTBSY,
}


@dataclass(frozen=True, slots=True)
class LocalStore(Store):
    """The files below a folder."""

    folder: Path
    """Absolute; it need not be there yet."""

    def url(self, name: str = "") -> str:
        return str(self.folder / name)

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
            return b"".join(self._blocks(file, begin, end))

    def sha256(self, name: str) -> str | None:
        try:
            return sha256_file(self._path(name))
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    def fetch(
        self,
        name: str,
        target: Path,
        *,
        sha256: str | None = None,
        pieces: Sequence[PieceDigest] | None = None,
    ) -> bool:
        path = self._path(name)
        if not path.is_file():
            return False
        if pieces is not None:
            check = PieceCheck(pieces)
            with open_regular(path) as file:
                for block in iter(lambda: file.read(_READ_BYTES), b""):
                    check.add(block)
            if (fault := check.fault()) is not None:
                raise damaged(str(path), fault, "the digests of its pieces")
        LocalStore(target.parent).put_file(target.name, path, sha256=sha256)
        return True

    def put_parts(self, name: str, blocks: Iterable[bytes]) -> None:
        with atomic_file(self._path(name)) as file:
            for block in blocks:
                file.write(block)

    def put_file(self, name: str, path: Path, *, sha256: str | None = None, is_new: bool = False) -> None:
        if sha256 is not None and (found := sha256_file(path)) != sha256:
            raise damaged(str(path), f"sha256 {found}", f"sha256 {sha256}")
        with open_regular(path) as source:
            self.put_parts(name, iter(lambda: source.read(_READ_BYTES), b""))

    def compose(
        self,
        name: str,
        sources: Sequence[Stored],
        *,
        sha256: Sequence[str] | None = None,
        joined: OnJoin = no_progress,
    ) -> str | None:
        with atomic_file(self._path(name)) as file:
            for source in sources:
                with self._opened(source.name, source.mark) as part:
                    append_opened(part, file, source.size)
                joined(source.size)
        return None

    def delete(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        checked_name(os.fsencode(name).decode(errors="replace"))  # names of files may be no UTF-8
        return self.folder / name

    def _stat(self, name: str, path: Path) -> Stored | None:
        try:
            return _stored(name, path.stat()) if path.is_file() else None
        except FileNotFoundError:  # removed between the two
            return None

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

    def _blocks(self, file: BinaryIO, begin: int, end: int) -> Iterator[bytes]:
        while begin < end:
            block = os.pread(file.fileno(), end - begin, begin)
            if not block:
                raise changed(file.name, f"{begin:,} bytes", f"at least {end:,}")
            begin += len(block)
            yield block


def _stored(name: str, status: os.stat_result) -> Stored:
    mark = f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"
    return Stored(name, status.st_size, mark, status.st_mtime_ns)


def append_file(source: Path, target: IO[bytes], size_bytes: int, *, begin_bytes: int = 0) -> None:
    """Append bytes of one file to another by `os.copy_file_range`, which shares extents, or else by reads and writes.

    Args:
        source: to copy from.
        target: to append to.
        size_bytes: to copy.
        begin_bytes: where they begin in the source.

    Raises:
        SourceChangedError: the source ends early.
    """
    with open(source, "rb") as file:
        append_opened(file, target, size_bytes, begin_bytes=begin_bytes)


def append_opened(file: IO[bytes], target: IO[bytes], size_bytes: int, *, begin_bytes: int = 0) -> None:
    """Append as `append_file` does, from a file that is open."""
    target.flush()
    end = begin_bytes + size_bytes
    done = _copy_file_range(file.fileno(), target.fileno(), begin_bytes, end)
    target.seek(0, os.SEEK_END)
    file.seek(done)
    while done < end and (piece := file.read(min(_LOOP_BYTES, end - done))):
        target.write(piece)
        done += len(piece)
    if done != end:
        raise SourceChangedError(
            "the file ended early while it was copied",
            where=f"{file.name}, byte {done}",
            found=f"{done} bytes",
            expected=f"{end} bytes",
            remedy="run again once nothing writes to it any more",
        )


def _copy_file_range(source: int, target: int, done: int, end: int) -> int:
    """Copy until `end` of the source, or until the system refuses; return where it stopped in the source."""
    if not hasattr(os, "copy_file_range"):
        return done
    try:
        while done < end:
            copied = os.copy_file_range(source, target, min(_PIECE_BYTES, end - done), offset_src=done)
            if copied == 0:
                break
            done += copied
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    return done
