"""The stored bytes of a piece, hashed on their way through and compared with the inventory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from nanoset_core.errors import SourceChangedError
from nanoset_core.raw.opening import open_raw, source_changed, status_of
from nanoset_core.raw.pieces import CRC, ETAG, Piece, etag_digest
from nanoset_core.storage.remote_folder import RawFolder

READ_BYTES = 1 << 20


class _Sum(Protocol):
    """What hashlib gives."""

    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class _Crc:
    def __init__(self) -> None:
        from isal import isal_zlib

        self._update, self._value = isal_zlib.crc32, 0

    def update(self, data: bytes, /) -> None:
        self._value = self._update(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


class StoredPiece:
    """Reads one piece of one file, once, in order."""

    def __init__(self, folder: RawFolder, piece: Piece) -> None:
        self.path, self.piece = folder / piece.path, piece
        self._sum: _Sum = _Crc() if piece.digest.startswith(CRC) else hashlib.sha256()
        self._position = piece.begin

    def blocks(self) -> Iterator[bytes]:
        """The bytes not read yet, up to 1 MiB at a time.

        Raises:
            MissingError, InputError: see open_raw.
            SourceChangedError: the file ends before the piece does.
        """
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
                self._sum.update(block)
                self._position += len(block)
                yield block

    def reread(self, begin: int, end: int) -> Iterator[bytes]:
        """Bytes [begin, end) once more, not hashed, up to 1 MiB at a time."""
        with open_raw(self.path, begin=begin, end=end) as file:
            file.seek(begin)
            while begin < end and (block := file.read(min(READ_BYTES, end - begin))):
                begin += len(block)
                yield block

    def check(self) -> None:
        """Read what is left, and compare everything with the inventory.

        Raises:
            SourceChangedError: the bytes are not those of the inventory.
        """
        if self.piece.digest.startswith(ETAG):
            with open_raw(self.path) as file:
                self._check_etag(status_of(file).st_ino)
            return
        # A file is looked at once more: it may have shrunk. What was read of an object is of one version.
        if self._position < self.piece.end or not self._position or isinstance(self.path, Path):
            for _ in self.blocks():
                pass
        kind, expected = "sha256", self.piece.digest
        if expected.startswith(CRC):
            kind, expected = "CRC-32", expected.split(":")[1]
        if (found := self._sum.hexdigest()) != expected:
            extent = f"of bytes {self.piece.begin:,} to {self.piece.end:,}"
            raise self._changed(f"{kind} {found[:16]}… {extent}", f"{kind} {expected[:16]}… {extent}")

    def _check_etag(self, mark: int) -> None:
        """Where the piece is known by its ETag: that it has that one. What is read after has it, too."""
        if self.piece.digest.startswith(ETAG) and etag_digest(mark) != self.piece.digest:
            raise self._changed("another ETag", "the one that was listed")

    def _changed(self, found: str, expected: str) -> SourceChangedError:
        return source_changed(self.path, found, expected)
