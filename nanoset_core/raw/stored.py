"""Opening files of raw text, and reading pieces of them that are compared with the inventory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nanoset_core.errors import InputError, MissingError, NanosetError, SourceChangedError
from nanoset_core.raw.pieces import CRC, ETAG, Crc32, Piece, etag_digest
from nanoset_core.storage.location import ObjectStat, RawFolder, stat_of_object
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.storage.store import THREADS

READ_BYTES = 1 << 20


def status_of(file: BinaryIO) -> os.stat_result | ObjectStat:
    """Return size, time and inode of an open file; of an object in a bucket, as it was when it was opened."""
    return stat_of_object(file.facts) if hasattr(file, "facts") else os.fstat(file.fileno())


@contextmanager
def open_raw(path: RawFolder, *, begin: int = 0, end: int | None = None) -> Iterator[BinaryIO]:
    """Open a file of an inventory for reading; the file is at its first byte.

    `begin` and `end` bound what will be read, so that no more of an object is fetched ahead.

    Raises:
        MissingError: it is gone.
        InputError: it cannot be opened, or reading it fails within the block.
        FormatError: it is a pipe or a device.
    """

    def opened() -> BinaryIO:
        return open_regular(path) if isinstance(path, Path) else path.open("rb", begin=begin, end=end)

    with _explained(path), opened() as file:
        yield file


@dataclass(frozen=True, slots=True)
class Probe:
    """Small reads here and there of one version of a file, from several threads at once."""

    status: os.stat_result | ObjectStat
    """As it was when it was opened."""
    read: Callable[[int, int], bytes]
    """Bytes [begin, end); fewer where a file on a file system is shorter by now."""
    at_once: int
    """How many reads are worth having under way together."""


@contextmanager
def probe_raw(path: RawFolder) -> Iterator[Probe]:
    """Open a file of an inventory for small reads: of an object in a bucket nothing else is asked for.

    Raises:
        MissingError, InputError, FormatError: see open_raw.
        SourceChangedError: the object is replaced within the block.
    """
    with _explained(path):
        if isinstance(path, Path):
            with open_regular(path) as file:
                number = file.fileno()
                yield Probe(os.fstat(number), lambda begin, end: os.pread(number, end - begin, begin), 1)
            return
        store = path.store
        if (facts := store.stat(path.path)) is None:
            raise FileNotFoundError(str(path))
        name, mark = facts.name, facts.mark
        yield Probe(stat_of_object(facts), lambda begin, end: store.read_range(name, begin, end, mark), THREADS)


@contextmanager
def _explained(path: RawFolder) -> Iterator[None]:
    try:
        yield
    except NanosetError:
        raise
    except MemoryError as error:
        raise too_large(path) from error
    except FileNotFoundError as error:
        raise MissingError(
            "a file of the corpus is gone", where=path, remedy="build again: the inventory is taken anew"
        ) from error
    except OSError as error:
        raise InputError(
            "a file of the corpus cannot be read",
            where=path,
            found=f"{error.strerror} (errno {error.errno})",
            expected="a file that this user may read, on a healthy disk",
            remedy="mend that, or remove the file; then build again",
        ) from error


def source_changed(path: RawFolder, found: str, expected: str) -> SourceChangedError:
    """Return the error for a file that is not what its inventory says."""
    return SourceChangedError(
        "the file is not as the inventory found it",
        where=path,
        found=found,
        expected=expected,
        remedy="build again once nothing writes to it: the inventory is taken anew",
    )


def too_large(path: RawFolder) -> InputError:
    """Return the error where memory runs out. It is no fault of the file: a larger machine may read on."""
    return InputError(
        "a file of the corpus needs more memory than there is",
        where=path,
        expected="memory for its longest line or text, and for the largest page, batch or window that it is stored in",
        remedy="lower documents.max_line_mib, give each worker more memory (fewer workers), or remove the file",
    )


class StoredPiece:
    """Reads one piece of one file, once, in order, and hashes it on the way."""

    def __init__(self, folder: RawFolder, piece: Piece) -> None:
        self.path, self.piece = folder / piece.path, piece
        self._hash: Any = Crc32() if piece.digest.startswith(CRC) else hashlib.sha256()
        self._position = piece.begin

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes not read yet, up to 1 MiB at a time; SourceChangedError where the file ends too early."""
        with open_raw(self.path, begin=self._position, end=self.piece.end) as file:
            status = status_of(file)
            if status.st_size < self.piece.end:
                raise self._changed(f"{status.st_size:,} bytes", f"at least {self.piece.end:,} bytes")
            self._check_etag(status.st_ino)
            file.seek(self._position)
            while self._position < self.piece.end:
                block = file.read(min(READ_BYTES, self.piece.end - self._position))
                if not block:
                    raise self._changed(f"{self._position:,} bytes", f"at least {self.piece.end:,} bytes")
                self._hash.update(block)
                self._position += len(block)
                yield block

    def check(self) -> None:
        """Read what is left; SourceChangedError where the bytes are not those of the inventory."""
        if self.piece.digest.startswith(ETAG):
            with open_raw(self.path) as file:
                self._check_etag(status_of(file).st_ino)
            return
        # A file is looked at once more: it may have shrunk. What was read of an object is of one version.
        if self._position < self.piece.end or not self._position or isinstance(self.path, Path):
            for _ in self.blocks():
                pass
        if (found := self._hash.hexdigest()) != self.piece.digest:
            kind, extent = self._hash.name, f"of bytes {self.piece.begin:,} to {self.piece.end:,}"
            raise self._changed(f"{kind} {found[:16]}… {extent}", f"{kind} {self.piece.digest[:16]}… {extent}")

    def _check_etag(self, mark: int) -> None:
        """Compare ETags, where the piece is known by its own. What is read afterwards has the same one."""
        if self.piece.digest.startswith(ETAG) and etag_digest(mark) != self.piece.digest:
            raise self._changed("another ETag", "the one that was listed")

    def _changed(self, found: str, expected: str) -> SourceChangedError:
        return source_changed(self.path, found, expected)
