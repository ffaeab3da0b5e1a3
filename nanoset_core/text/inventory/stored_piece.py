"""Read a piece of a corpus, and check that its bytes are those of the inventory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from nanoset_core.storage.location import Location
from nanoset_core.storage.places import is_here
from nanoset_core.storage.reading.input_files import status_of
from nanoset_core.text.files.raw_files import READ_BYTES, blocks_of, open_raw, source_changed
from nanoset_core.text.inventory.pieces import CRC, ETAG, NO_DIGEST, Piece, etag_digest

_SHOWN_DIGITS = 16
"""Characters of a digest in messages."""


class Crc32:
    """A CRC-32 with the interface of hashlib's objects.

    It is quick to compute, for pieces that are checked once and then forgotten.
    """

    name = "CRC-32"

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes | memoryview) -> None:
        """Add the next bytes of what the checksum is of.

        Args:
            data: The bytes, of any number.
        """
        from isal.isal_zlib import crc32

        self._value = crc32(data, self._value)

    def hexdigest(self) -> str:
        """Return the checksum of all bytes so far.

        Returns:
            `crc32:` and eight hexadecimal digits.
        """
        return f"{CRC}{self._value:08x}"


def _hash_for(digest: str) -> Any:
    """Return an object that computes a digest of the same kind as the one of a piece.

        "crc32:00c1…"    a CRC-32
        "9f86d081…"      a sha256
        "etag:00c1…"     None: an ETag is not computed from the bytes
        ""               None: the piece has no digest

    Args:
        digest: The digest of the piece.
    """
    if digest.startswith(CRC):
        return Crc32()
    if digest == NO_DIGEST or digest.startswith(ETAG):
        return None
    return hashlib.sha256()


class StoredPiece:
    """Reads one piece of a file, once and in order, and computes its digest on the way.

    The digest is only computed if `check` will compare it.
    """

    def __init__(
        self, folder: Location, piece: Piece, mark: int | None = None, *, is_checked: bool = True
    ) -> None:
        """Prepare to read a piece; its file is not opened yet.

        Args:
            folder: The folder of the corpus.
            piece: The piece.
            mark: Number made from the ETag that an object in a bucket had when its bytes were
                hashed, if it is known; see `SourceRange.marks`.
            is_checked: Whether the bytes will be compared with the piece, so that they have to be
                hashed while they are read. Pieces without a hash are never hashed.
        """
        self.path = folder / piece.path
        self.piece = piece
        self.is_checked = is_checked
        self.position = piece.begin
        """Byte of the file from which on nothing was read yet."""
        self.padding = 0
        """Zero bytes after the members of a gzip file, counted while it is decompressed."""
        self._mark = mark
        self._hash: Any = _hash_for(piece.digest) if is_checked else None

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes of this piece of a file in blocks of up to 1 MiB, and perhaps hash them.

        If a caller stops early and calls this method again, it continues after the last block that
        was yielded.

        Raises:
            SourceChangedError: The file has become shorter than the end of the piece. Or the object
                in a bucket was replaced: its ETag, the name of its version, is another one.
            MissingError: The file was deleted.
            InputError: The file cannot be opened or read.
            FormatError: The path is that of a pipe or a device.
        """
        with open_raw(self.path, begin=self.position, end=self.piece.end) as file:
            status = status_of(file)
            self._check_not_shorter(status.st_size)
            self._check_etag(etag_number=status.st_ino)  # objects in a bucket have no inode
            for block in blocks_of(file, self.position, self.piece.end, READ_BYTES):
                if self._hash is not None:
                    self._hash.update(block)
                self.position += len(block)
                yield block

        # If a file is cut off while it is read, its blocks end before the end of the piece.
        self._check_not_shorter(self.position)

    def check(self) -> None:
        """Check that the bytes of a piece are still those for which its digest was recorded.

        A bucket gives another ETag to each version of an object. What is compared depends on what
        was recorded:

            "etag:00c1…"              the ETag; the digest is nothing else
            a hash, and an ETag       the ETag, and the hash only if the ETag is another one
            a hash                    the hash

        Raises:
            SourceChangedError: The bytes are others.
            MissingError: The file was deleted.
            InputError: The file cannot be opened or read.
            FormatError: The path is that of a pipe or a device.
            ValueError: The hash has to be compared, but the piece is read without hashing.
        """
        is_recorded_by_etag = self.piece.digest.startswith(ETAG)
        if is_recorded_by_etag:
            self._check_etag(self._present_etag_number())
        elif not self._has_same_etag_as_when_hashed():
            self._check_hash()

    def _has_same_etag_as_when_hashed(self) -> bool:
        """Return whether an object in a bucket is certainly the version whose bytes were hashed.

        Then its bytes need not be read. The result is False if its ETag was not recorded.
        """
        if self._mark is None:
            return False
        return self._mark == self._present_etag_number()

    def _check_hash(self) -> None:
        """Check that all bytes of the piece have the recorded hash, after reading the rest of them.

        Raises:
            SourceChangedError: They have another hash.
            ValueError: This piece is read without hashing.
        """
        if self._hash is None:
            raise ValueError("a piece that is read without hashing cannot be checked")

        # `blocks` has hashed the bytes that it yielded. Hash those that it has not reached.
        self._hash_rest()
        digest = self._hash.hexdigest()
        if digest != self.piece.digest:
            found = self._describe(digest)
            expected = self._describe(self.piece.digest)
            raise source_changed(self.path, found, expected)

    def _present_etag_number(self) -> int:
        """Return a number that is computed from the present ETag of an object in a bucket.

        Files on a disk have an inode number, and objects have this number in its place.
        """
        with open_raw(self.path) as file:
            return status_of(file).st_ino

    def _hash_rest(self) -> None:
        """Read and hash the bytes of the piece that `blocks` has not yielded yet.

        Even if there are none, a local file is opened again, since it may have been cut off
        meanwhile. (An object in a bucket can only be replaced as a whole, and then reading fails.)
        So is an empty file, which was perhaps never opened.
        """
        has_more = self.position < self.piece.end
        may_be_cut_off = is_here(self.path)
        is_empty = self.piece.end == 0
        if has_more or may_be_cut_off or is_empty:
            for _ in self.blocks():
                pass

    def _check_not_shorter(self, size: int) -> None:
        """Check that a file still has all bytes of the piece (a part of a file) that is read.

        For example, the piece ends at byte 4,096, and the file was cut off at byte 1,000.

        Args:
            size: Bytes that the file has now.

        Raises:
            SourceChangedError: The file is too short.
        """
        if size < self.piece.end:
            raise source_changed(self.path, f"{size:,} bytes", f"at least {self.piece.end:,} bytes")

    def _check_etag(self, etag_number: int) -> None:
        """Check the ETag of an object in a bucket, if that was recorded instead of a hash.

        A bucket gives another ETag to each version of an object. If a hash was recorded, nothing is
        checked here, since the hash is compared when the bytes have been read.

        Args:
            etag_number: A number that is computed from the present ETag of the object.

        Raises:
            SourceChangedError: The object has another ETag than the one that was recorded.
        """
        digest = self.piece.digest
        has_etag_as_digest = digest.startswith(ETAG)
        if has_etag_as_digest and digest != etag_digest(etag_number):
            raise source_changed(self.path, "another ETag", "the one that was listed")

    def _describe(self, digest: str) -> str:
        """Return the first digits of a checksum of the piece's bytes, for messages.

        For example: "sha256 3f0a9c71… of bytes 0 to 4,096".

        Args:
            digest: The checksum.
        """
        extent = f"bytes {self.piece.begin:,} to {self.piece.end:,}"
        return f"{self._hash.name} {digest[:_SHOWN_DIGITS]}… of {extent}"
