"""The interface of a place that stores objects by name, such as a local folder or a bucket.

An object is a file or an object of a bucket. It has a name, bytes and a *mark*: a text that changes
if its bytes are replaced, such as an ETag. A caller lists objects, and passes the mark of an object
when it reads it, so that it never reads bytes of two versions of the object.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from nanoset_core.errors import (
    ConfigError,
    FormatError,
    MissingError,
    SourceChangedError,
    StorageError,
)
from nanoset_core.storage.atomic import atomic_file
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.storage.requests import TRANSFERS_AT_ONCE, in_parallel

T = TypeVar("T")
R = TypeVar("R")
RANGE_BYTES = 8 << 20
"""Bytes that are requested at once if a whole object is read."""
_FILE_BLOCK_BYTES = 4 << 20
"""Bytes that are read from a local file at once."""
_PIECE_LINE = re.compile(rb"([0-9a-f]{64}) ([1-9][0-9]*)")
"""A line of a list of pieces: sha256 and size."""

OnJoin = Callable[[int], None]
"""Function that receives the bytes that were joined since the last call.

The number is negative if joining starts again in another way.
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object, or a range of an object, as a store describes it."""

    name: str
    """Name of the object within the store, with single slashes between its parts."""
    size: int
    """Bytes of the object or of the range."""
    mark: str
    """Changes with the bytes: the ETag of an object in a bucket; inode, size and time of a file."""
    written_ns: int
    """When it was written, by the store's clock, in nanoseconds since 1970.

    A bucket knows whole seconds only.
    """
    md5: str | None = field(default=None, compare=False)
    """The MD5 of the bytes as hex, if a listing of the store reports it.

    In S3, it is taken from the ETag, which is another number if the object is encrypted with a KMS
    key. So it proves that bytes are equal, but not that they differ.
    """
    sha256: str | None = field(default=None, compare=False)
    """The sha256 that the object's writer stored with it, as hex.

    This and the following fields are set only if a single object was looked up (`stat`), not if
    objects were listed.
    """
    upload: str | None = field(default=None, compare=False)
    """Mark of the process whose multipart upload made the object."""
    is_digest: bool = field(default=False, compare=False)
    """Whether the mark is the MD5 of the bytes, provided that it has the form of one."""
    begin: int = 0
    """Position of the first byte in the object, if this describes a range of it."""


def no_progress(size: int) -> None:
    """Ignore progress."""


class Store(ABC):
    """Objects below one place, each of which appears as a whole or not at all.

    There is no renaming, appending, locking or linking, since not all stores support them. A store
    remembers nothing between two calls, and can be pickled. All methods raise ConfigError for names
    that would lead out of the place.
    """

    @abstractmethod
    def url(self, name: str = "") -> str:
        """Return the address of an object, for messages; that of the store if no name is passed."""

    @abstractmethod
    def below(self, folder: str) -> Store:
        """Return a folder of this store as a store."""

    @property
    def copies_name(self) -> str:
        """Name of the local folder for working copies of this store; it differs between stores."""
        return hashlib.sha256(self.url().encode()).hexdigest()

    @abstractmethod
    def now(self) -> int:
        """Return the time of the store's clock, in nanoseconds since 1970.

        All machines that use the store share this clock.

        Returns:
            Nanoseconds, to be compared with `Stored.written_ns`. The clock of a machine may differ.
        """

    @abstractmethod
    def list(self, folder: str = "") -> Iterator[Stored]:
        """Yield all objects below a folder, in the order of the bytes of their names."""

    @abstractmethod
    def level(self, folder: str = "") -> tuple[Sequence[str], Sequence[str]]:
        """Return the contents of one folder, without those of folders in it.

        Args:
            folder: Name of the folder within the store; "" for the top.

        Returns:
            (names of folders, names of objects), both sorted, and without the path of the folder.
            Both are empty if the folder does not exist.
        """

    def holds(self, folder: str) -> bool:
        """Return whether there is any object below a folder.

        Args:
            folder: Name of the folder within the store; "" for the whole store.
        """
        return next(iter(self.list(folder)), None) is not None

    @abstractmethod
    def stat(self, name: str) -> Stored | None:
        """Return the description of an object, or None if it does not exist."""

    @abstractmethod
    def read_stored(self, name: str) -> tuple[bytes, Stored] | None:
        """Return the bytes and the metadata of a small object, or None if it does not exist."""

    def read(self, name: str) -> bytes | None:
        """Return all bytes of a small object, or None if it does not exist.

        Args:
            name: Name of the object, such as `web/manifest.json`.

        Raises:
            StorageError: The object cannot be read.
        """
        data_and_stored = self.read_stored(name)
        if data_and_stored is None:
            return None
        data, _ = data_and_stored
        return data

    @abstractmethod
    def read_range(self, name: str, begin: int, end: int, mark: str | None = None) -> bytes:
        """Return the bytes from `begin` to `end`, exclusive, of an object.

        Args:
            name: Name of the object.
            begin: Position of the first byte.
            end: Position after the last byte.
            mark: The version that is expected; None for any version.

        Raises:
            SourceChangedError: The object has another mark, or fewer bytes.
            MissingError: The object does not exist.
        """

    def open_range(self, name: str, begin: int, end: int) -> tuple[bytes, Stored] | None:
        """Return a range of an object together with its description.

        For an object of 80 bytes, the range [50, 100) is its last 30 bytes, and [100, 200) has no
        bytes.

        Args:
            name: Name of the object.
            begin: Position of the first byte.
            end: Position after the last byte. It may be beyond the end of the object.

        Returns:
            (the bytes, the description of the object), or None if the object does not exist.
        """
        stored = self.stat(name)
        if stored is None:
            return None
        end = min(end, stored.size)
        if begin >= end:
            return b"", stored
        return self.read_range(name, begin, end, stored.mark), stored

    def blocks(self, stored: Stored) -> Iterator[bytes]:
        """Yield the bytes of an object, or of a range of it, in order, read by parallel requests.

        A request to a bucket takes long, so eight of them, each for a block of 8 MiB, are sent at
        the same time. When all eight blocks have arrived, they are yielded, and the next eight are
        requested.

        Args:
            stored: The description of the object: its name, its size and the mark of its version.
                The object must still be this version.

        Yields:
            Blocks of 8 MiB; the last one may be smaller.

        Raises:
            SourceChangedError: The object was replaced, or has fewer bytes.
            MissingError: The object does not exist any more.
        """
        end = stored.begin + stored.size

        def read(begin: int) -> bytes:
            """Return the block that begins at a position."""
            return self.read_range(stored.name, begin, min(begin + RANGE_BYTES, end), stored.mark)

        # All blocks of a window are in memory at the same time.
        window_bytes = RANGE_BYTES * TRANSFERS_AT_ONCE
        for window_begin in range(stored.begin, end, window_bytes):
            window_end = min(window_begin + window_bytes, end)
            block_begins = range(window_begin, window_end, RANGE_BYTES)
            yield from in_parallel(read, block_begins, TRANSFERS_AT_ONCE)

    def sha256(self, name: str) -> str | None:
        """Read an object, and return the sha256 of its bytes.

        Args:
            name: Name of the object.

        Returns:
            64 hex digits; None if the object does not exist.

        Raises:
            SourceChangedError: The object was replaced while it was read.
        """
        # Save a request: get the description together with the first bytes.
        block_and_stored = self.open_range(name, 0, RANGE_BYTES)
        if block_and_stored is None:
            return None
        first_block, stored = block_and_stored

        sha256 = hashlib.sha256(first_block)
        rest = replace(stored, begin=len(first_block), size=stored.size - len(first_block))
        for block in self.blocks(rest):
            sha256.update(block)
        return sha256.hexdigest()

    def sha256_of(self, stored: Stored) -> str:
        """Read an object, or a range of it, and return the sha256 of its bytes.

        Args:
            stored: The description of the object or range.

        Returns:
            64 hex digits.

        Raises:
            SourceChangedError: The object was replaced, or has fewer bytes.
            MissingError: The object does not exist any more.
        """
        sha256 = hashlib.sha256()
        for block in self.blocks(stored):
            sha256.update(block)
        return sha256.hexdigest()

    def fetch(
        self,
        name: str,
        target: Path,
        *,
        sha256: str | None = None,
        pieces: Sequence[PieceDigest] | None = None,
    ) -> bool:
        """Copy an object to a local file, which appears once its bytes have been checked.

        If the bytes do not have the expected sha256, they may have been damaged on their way. They
        are read a second time before this is an error.

        Args:
            name: Name of the object.
            target: The local file.
            sha256: Expected sha256 as hex. None: the one that the writer stored with the object, if
                there is one.
            pieces: Expected digests of consecutive pieces; None: they are not compared.

        Returns:
            Whether the object exists.

        Raises:
            StorageError: The object has other bytes.
            SourceChangedError: The object was replaced while it was read.
        """
        first_block = b""
        stored: Stored | None = None
        if sha256 is None and pieces is None:
            # The description of the object may have the sha256, so it is needed first.
            stored = self.stat(name)
        else:
            # Save a request: get the description together with the first bytes.
            block_and_stored = self.open_range(name, 0, RANGE_BYTES)
            if block_and_stored is not None:
                first_block, stored = block_and_stored
        if stored is None:
            return False
        expected_sha256 = sha256 or stored.sha256

        with atomic_file(target) as file:
            fault = self._copy(stored, first_block, file, expected_sha256, pieces)
            if fault is not None:
                # The bytes may have been damaged on their way: read all of them a second time.
                file.seek(0)
                file.truncate()
                fault = self._copy(stored, b"", file, expected_sha256, pieces)

            if fault is not None:
                expected = "the digests of its pieces"
                if expected_sha256:
                    expected = f"sha256 {expected_sha256}"
                # This error keeps the local file from appearing.
                raise damaged(self.url(name), found=fault, expected=expected)
        return True

    def _copy(
        self,
        stored: Stored,
        first_block: bytes,
        file: BinaryIO,
        expected_sha256: str | None,
        pieces: Sequence[PieceDigest] | None,
    ) -> str | None:
        """Copy the bytes of an object to a file, and compare them with their checksums.

        A large object may have checksums of consecutive pieces instead of one for all bytes. The
        result says what is wrong:

            a wrong piece         "sha256 1f0c... of bytes 0 to 100 instead of 9f86..."
            otherwise wrong       "sha256 1f0c..."
            right                 None

        Args:
            stored: The object.
            first_block: Its first bytes, if they have been read already; the others are read.
            file: The file.
            expected_sha256: Checksum of all bytes; None: it is not compared.
            pieces: Checksums of consecutive pieces; None: they are not compared.
        """
        # The bytes after the first block, as a range of the object.
        n_read = len(first_block)
        rest = replace(stored, begin=n_read, size=stored.size - n_read)

        sha256 = hashlib.sha256()
        piece_check = PieceCheck(pieces or ())
        for block in chain([first_block], self.blocks(rest)):
            file.write(block)
            sha256.update(block)
            if pieces is not None:
                piece_check.add(block)

        # A wrong piece tells more than a wrong sha256 of the whole object.
        piece_fault = piece_check.fault()
        if piece_fault is not None:
            return piece_fault
        if expected_sha256 is not None and sha256.hexdigest() != expected_sha256:
            return f"sha256 {sha256.hexdigest()}"
        return None

    def put(self, name: str, data: bytes) -> None:
        """Write a small object, which appears as a whole.

        Args:
            name: Name of the object. One that exists is replaced.
            data: All its bytes.

        Raises:
            StorageError: The object cannot be written.
        """
        self.put_parts(name, [data])

    @abstractmethod
    def put_parts(self, name: str, blocks: Iterable[bytes]) -> None:
        """Write an object from consecutive blocks, in bounded memory.

        The object appears after the last block. If `blocks` raises an error, no object is written.
        In a bucket, an object has at most 10,000 parts of the store's size of parts, by default
        64 MiB, which gives 625 GiB.

        Args:
            name: Name of the object. One that exists is replaced when the last block has been
                written.
            blocks: The bytes of the object, in blocks of any size.

        Raises:
            StorageError: The object cannot be written.
        """

    @abstractmethod
    def put_file(
        self, name: str, path: Path, *, sha256: str | None = None, is_new: bool = False
    ) -> None:
        """Write an object from a local file.

        A large object that has the same bytes already is not written again.

        Args:
            name: Name of the object.
            path: The file.
            sha256: Expected sha256 of the file as hex; None: it is not compared.
            is_new: Whether the caller knows from a listing that the object does not exist. It saves
                a request.

        Raises:
            StorageError: The file has other bytes than expected, or the object cannot be written.
        """

    def compose(
        self,
        name: str,
        sources: Sequence[Stored],
        *,
        sha256: Sequence[str | None] | None = None,
        joined: OnJoin = no_progress,
    ) -> str | None:
        """Write an object that is the concatenation of other objects.

        For example, `web/a.bin` (80 bytes) and `web/b.bin` (20 bytes) give an object of 100 bytes.
        Here the objects are read, and their bytes are written. Some buckets can join objects
        themselves, and their classes override this method.

        Args:
            name: Name of the object.
            sources: Objects of this store, or ranges of them, in order.
            sha256: Expected sha256 of each source as hex, or None for those that are not known. A
                bucket that joins objects itself compares those that it knows.
            joined: Receives the progress.

        Returns:
            The sha256 of the new object as hex, or None if it was not computed.

        Raises:
            SourceChangedError: A source has another mark.
            StorageError: A source has other bytes than expected, or the object cannot be written.
            MissingError: A source does not exist.
        """
        object_sha256 = hashlib.sha256()
        expected_digests = sha256 or [None] * len(sources)

        def bytes_of_sources() -> Iterator[bytes]:
            """Yield the bytes of all sources, in order, and check each source at its end.

            The sources are the objects that are joined, with the sha256 of those for which it is
            known. On the way, the bytes are added to `object_sha256`, that of the new object.
            """
            for source, expected_sha256 in zip(sources, expected_digests, strict=True):
                source_sha256 = hashlib.sha256()
                for block in self.blocks(source):
                    object_sha256.update(block)
                    if expected_sha256 is not None:
                        source_sha256.update(block)
                    yield block
                if expected_sha256 is not None and source_sha256.hexdigest() != expected_sha256:
                    raise damaged(
                        self.url(source.name),
                        found=f"sha256 {source_sha256.hexdigest()}",
                        expected=f"sha256 {expected_sha256}",
                    )
                joined(source.size)  # report the progress

        # Write the blocks while they are read. An error in between leaves no object.
        self.put_parts(name, bytes_of_sources())
        return object_sha256.hexdigest()

    def check_writable(self, name: str) -> None:  # noqa: B027 - most stores need no check
        """Check that this process may write an object with this name.

        Local folders are not checked.

        Args:
            name: Name of an object. It is neither created nor changed.

        Raises:
            StorageError: The permissions do not allow it.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""

    def abort_uploads(self, is_abandoned: Callable[[str], bool]) -> Sequence[str]:
        """Abort multipart uploads that will never be completed.

        Args:
            is_abandoned: Returns, for the name of an object, whether its upload is abandoned.

        Returns:
            Names of the objects whose uploads were aborted.
        """
        return ()


class PieceDigest(NamedTuple):
    """Digest of a piece of a file, which is divided into consecutive pieces."""

    sha256: str
    """Digest of the piece's bytes, as hex."""
    size: int
    """Bytes of the piece."""


def pieces_text(pieces: Iterable[PieceDigest]) -> bytes:
    """Return a list of the pieces of a file as text, with a line for each piece.

    A large file that is uploaded piece by piece has no checksum of all of its bytes. This list is
    stored with it instead. For two pieces of 100 and 50 bytes:

        9f86d081...0f00a08 100
        60303ae2...be0ced7 50

    The sha256 of this text covers all bytes of the file.

    Args:
        pieces: The pieces in order. Empty ones are left out.
    """
    lines = [f"{piece.sha256} {piece.size}\n" for piece in pieces if piece.size]
    return "".join(lines).encode()


def read_pieces(path: Path) -> list[PieceDigest]:
    """Return the digests of the pieces of a large file, from the list that `pieces_text` has made.

    Each line of the list has the sha256 of a piece, and its size: "9f86d081...0f00a08 100".

    Args:
        path: Path of the list.

    Raises:
        FormatError: A line is not a sha256 and a size.
    """
    pieces: list[PieceDigest] = []
    for number, line in enumerate(read_regular(path).splitlines(), start=1):
        match = _PIECE_LINE.fullmatch(line)
        if match is None:
            raise FormatError(
                "this is not a piece of a file",
                where=f"{path}:{number}",
                found=repr(line[:100]),
                expected="a sha256 and a number of bytes",
                remedy=f"delete {path.parent}, and build again",
            )
        pieces.append(PieceDigest(match[1].decode(), int(match[2])))
    return pieces


class PieceCheck:
    """Compares the bytes of a file with the digests of its pieces, while the file is read."""

    def __init__(self, pieces: Sequence[PieceDigest], begin: int = 0) -> None:
        """Begin to compare.

        Args:
            pieces: Digests of consecutive pieces.
            begin: Position of the first piece in the file, for messages.
        """
        self._remaining_pieces = deque(pieces)
        self._expected_bytes = sum(piece.size for piece in pieces)
        self._received_bytes = 0
        self._fault: str | None = None
        # The current piece: where it begins in the file, and what of it was received.
        self._piece_begin = begin
        self._piece_bytes = 0
        self._piece_sha256 = hashlib.sha256()

    def add(self, block: bytes | memoryview) -> None:
        """Add the next bytes of the file, and compare each piece that they complete.

        For example, pieces have 100 and 50 bytes. After a block of 120 bytes, the first piece is
        compared with its checksum, and 20 bytes of the second one have arrived.

        Args:
            block: The bytes. A block may end within a piece, or contain several.
        """
        rest = memoryview(block)
        self._received_bytes += len(rest)
        while rest and self._remaining_pieces:
            piece = self._remaining_pieces[0]  # some of its bytes may have arrived already
            n_missing = piece.size - self._piece_bytes
            part = rest[:n_missing]
            rest = rest[n_missing:]

            self._piece_sha256.update(part)
            self._piece_bytes += len(part)
            if self._piece_bytes == piece.size:
                self._remaining_pieces.popleft()
                self._finish(piece)

    def _finish(self, piece: PieceDigest) -> None:
        """Compare the checksum of a piece that was received completely, and begin the next one.

        The bytes of a file arrive in order. For example, the first piece has 100 bytes, so after
        100 bytes their sha256 is compared with the expected one.
        """
        piece_end = self._piece_begin + piece.size
        digest = self._piece_sha256.hexdigest()
        # Only the first wrong piece is reported.
        if digest != piece.sha256 and self._fault is None:
            self._fault = (
                f"sha256 {digest} of bytes {self._piece_begin:,} to {piece_end:,} instead of "
                f"{piece.sha256}"
            )
        self._piece_begin = piece_end
        self._piece_bytes = 0
        self._piece_sha256 = hashlib.sha256()

    def fault(self) -> str | None:
        """Return how the bytes that were added differ from the pieces, or None if they do not.

        Returns:
            Text such as `10 bytes instead of 12`, about the first piece that differs, or about the
            number of bytes.
        """
        if self._fault is None and self._received_bytes != self._expected_bytes:
            return f"{self._received_bytes:,} bytes instead of {self._expected_bytes:,}"
        return self._fault


def checked_name(name: str) -> str:
    """Return the name of an object unchanged, after checking it.

        web/tokens.bin    returned
        ../tokens.bin     an error: it would lead out of the store
        web//a, /a, ""    an error: a part of it is empty

    Args:
        name: Name of the object within a store.

    Raises:
        ConfigError: The name would lead out of the store, or no file system could store it.
    """
    if not is_inside(name):
        raise ConfigError(
            "this is not the name of an object",
            found=ascii(name)[:200],
            expected="parts between single slashes, none of them empty, '.' or '..'",
        )
    return name


def gone(url: str) -> MissingError:
    """Return the error for an object that was listed, but does not exist any more.

    Args:
        url: Address of the object.
    """
    return MissingError(
        "an object that was listed is gone", where=url, remedy="run the same command again"
    )


def damaged(url: str, found: str, expected: str) -> StorageError:
    """Return the error for an object whose bytes are not those that were written.

    Args:
        url: Address of the object, or path of the file.
        found: What was found, such as `sha256 0a1b…`.
        expected: What was expected, in the same form.
    """
    return StorageError(
        "an object has other bytes than were written",
        where=url,
        found=found,
        expected=expected,
        remedy="remove the object, and build again",
    )


def changed(url: str, found: str, expected: str) -> SourceChangedError:
    """Return the error for an object that was replaced after it was listed.

    Args:
        url: Address of the object.
        found: Its mark or size now.
        expected: Its mark or size in the listing.
    """
    return SourceChangedError(
        "the object is not the one that was listed",
        where=url,
        found=found,
        expected=expected,
        remedy="build again once nothing writes to it",
    )


def regrouped(blocks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Regroup blocks of any size into parts of one size.

    For example, with `size` = 4, the blocks `b"ab"` and `b"cdefg"` give the parts `b"abcd"` and
    `b"efg"`.

    Args:
        blocks: Consecutive bytes of an object.
        size: Bytes of each part, except the last one, which may be smaller.

    Yields:
        The parts; a single empty part if there are no bytes.
    """
    buffer = bytearray()
    is_empty = True
    for block in blocks:
        buffer += block
        while len(buffer) >= size:
            # Through a memoryview, the bytes are copied only once.
            part = bytes(memoryview(buffer)[:size])
            del buffer[:size]
            is_empty = False
            yield part
    if buffer or is_empty:
        yield bytes(buffer)


def file_blocks(file: BinaryIO, size: int | None = None) -> Iterator[bytes]:
    """Yield the next bytes of an open local file in blocks of at most 4 MiB.

    Args:
        file: The file.
        size: Number of bytes; fewer if the file ends before. None for all bytes up to its end.
    """
    if size is None:
        while block := file.read(_FILE_BLOCK_BYTES):
            yield block
        return

    remaining_bytes = size
    while remaining_bytes > 0:
        block = file.read(min(_FILE_BLOCK_BYTES, remaining_bytes))
        if not block:
            return
        remaining_bytes -= len(block)
        yield block
