"""Write objects through fsspec, so that Google Storage and Azure can be the root of a project.

`CloudFilesystemStore` extends the store that only reads by everything that a root needs. Its
subclasses say how one request is sent: `google.py`, `azure.py` and `memory.py`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from nanoset_core.errors import MissingError, SourceChangedError, StorageError
from nanoset_core.rounding import ceil_division
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.store import (
    Stored,
    changed,
    checked_name,
    damaged,
    file_blocks,
    gone,
    regrouped,
)
from nanoset_core.storage.stores.filesystems import FilesystemStore

PART_BYTES = 16 << 20
"""Objects larger than this are sent in parts of at least this size, one of which is in memory."""
MAX_PARTS = 50_000
"""Maximum number of parts of an object; a limit of Azure."""
PART_STEP = 256 << 10
"""The size of a part is a multiple of this, as Google Storage requires."""
_SMALL_BYTES = 256 << 10
"""Files up to this size are sent without asking first whether the store has them already."""
_ATTEMPTS = 10
"""How often something is tried that fails if another process writes the same object meanwhile."""


class LostUploadError(StorageError):
    """An upload in parts cannot be completed, since another process has written the object."""


class PartsUpload(ABC):
    """An upload in parts. The object appears, or is replaced, when the upload is completed."""

    @abstractmethod
    def send(self, part: bytes) -> None:
        """Send the next part, which is not the last one."""

    @abstractmethod
    def complete(self, last_part: bytes) -> None:
        """Send the last part, and let the object appear.

        Args:
            last_part: Bytes of the last part, which may be smaller than the others.

        Raises:
            LostUploadError: Another process has written the object meanwhile.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Give up the upload; raises no error."""


class ObjectVersion(NamedTuple):
    """A version of an object, as its mark (`Stored.mark`) names it."""

    identifier: str
    """What the server calls the version: Azure's ETag, or Google's generation, a number."""
    size: int
    """Bytes of the object."""

    @staticmethod
    def of_mark(mark: str) -> ObjectVersion:
        """Return the version of an object that a mark stands for.

        Args:
            mark: What the server calls the version, and the size, such as
                "1700000000000000-1234".
        """
        identifier, _, size = mark.rpartition("-")
        return ObjectVersion(identifier, int(size))


@dataclass(frozen=True, slots=True)
class CloudFilesystemStore(FilesystemStore):
    """The objects below one place that fsspec can write to; S3 has a store of its own."""

    part_bytes: int = field(default=PART_BYTES, kw_only=True)
    """Objects larger than this are sent in parts of at least this size."""

    rights: ClassVar[str] = "read and write"

    @abstractmethod
    def now(self) -> int:
        """Return the time of the server's clock, in nanoseconds since 1970."""

    @abstractmethod
    def check_writable(self, name: str) -> None:
        """Check that this process may write an object, without changing it."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""

    @abstractmethod
    def request_range(
        self, name: str, begin: int, end: int, version: ObjectVersion
    ) -> bytes | None:
        """Request bytes of one version of an object; `read_range` calls this.

        Args:
            name: Name of the object.
            begin: Position of the first byte.
            end: Position after the last byte, which is greater than `begin`.
            version: The only version that may answer. It has all of these bytes.

        Returns:
            The bytes, or None if the object does not exist, or has another version by now.

        Raises:
            StorageError: The server cannot be reached, or refuses.
        """

    @abstractmethod
    def write_whole(self, name: str, data: bytes, sha256: str) -> None:
        """Write an object by one request.

        Args:
            name: Name of the object.
            data: Its bytes.
            sha256: Their sha256 as hex, which is stored with the object if the store can do that.
        """

    @abstractmethod
    def begin_upload(self, name: str, sha256: str | None) -> PartsUpload:
        """Begin to write an object in parts.

        Args:
            name: Name of the object.
            sha256: The sha256 of its bytes as hex, to be stored with it; None if not known yet.

        Returns:
            The upload, to which the parts are passed in order.
        """

    def system(self) -> Any:
        """Return the fsspec object by which this process accesses the place.

        Returns:
            An object such as `gcsfs.GCSFileSystem`, which holds the connection and the credentials.
        """
        system, _ = self._system_and_path("")
        return system

    def read_stored(self, name: str) -> tuple[bytes, Stored] | None:
        """Return the bytes and the description of a small object, or None if it does not exist.

        Both have to belong to the same version of the object. It takes two requests: the first one
        returns the description, and the second one returns the bytes if the object is still this
        version.
        """
        for _ in range(_ATTEMPTS):
            stored = self.stat(name)
            if stored is None:
                return None
            try:
                return self.read_range(name, 0, stored.size, stored.mark), stored
            except (SourceChangedError, MissingError) as error:
                # Another process has replaced the object between the two requests. Try again.
                last_error = error
        raise last_error

    def read_range(self, name: str, begin: int, end: int, mark: str | None = None) -> bytes:
        """Return the bytes from `begin` to `end`, exclusive, of one version of an object.

        A large object is read in ranges. If it is replaced meanwhile, the ranges must not be mixed.
        So each request names the version, and no other one can answer.

        Args:
            name: Name of the object.
            begin: Position of the first byte.
            end: Position after the last byte.
            mark: The version that is expected, as `Stored.mark`; None for the present one.

        Raises:
            SourceChangedError: The object has another version, or fewer bytes.
            MissingError: The object does not exist.
        """
        checked_name(name)
        if begin >= end:
            return b""  # servers have no requests for empty ranges

        if mark is None:
            mark = self._present_mark(name)
        version = ObjectVersion.of_mark(mark)
        if end > version.size:
            raise changed(
                self.url(name), found=f"{version.size:,} bytes", expected=f"at least {end:,}"
            )

        data = self.request_range(name, begin, end, version)
        if data is None:
            self._check_version(name, mark, min_size=end)  # says whether it was deleted or replaced
            raise changed(self.url(name), found="another version", expected=mark)
        return data

    def _present_mark(self, name: str) -> str:
        """Return the mark of the present version of an object, which also says its size.

        Raises:
            MissingError: The object does not exist.
        """
        stored = self.stat(name)
        if stored is None:
            raise gone(self.url(name))
        return stored.mark

    def put_parts(self, name: str, blocks: Iterable[bytes]) -> None:
        """Write an object from consecutive blocks, which are sent in parts of `part_bytes`."""
        checked_name(name)
        self._send(name, regrouped(blocks, self.part_bytes), sha256=None)

    def put_file(
        self, name: str, path: Path, *, sha256: str | None = None, is_new: bool = False
    ) -> None:
        """Write an object from a local file, unless it is large and has the same bytes already.

        A build that was interrupted and is run again would otherwise send many GB a second time:

            a small file, such as 10 KB           is sent at once
            a large one, and there is no object   is sent in parts
            ... and the object has its bytes      is not sent; size and sha256 show it

        Args:
            name: Name of the object.
            path: The file.
            sha256: Expected sha256 of the file as hex; None: it is not compared.
            is_new: Whether the caller knows that the object does not exist, which saves a request.

        Raises:
            StorageError: The file has other bytes than expected, or the object cannot be written.
        """
        checked_name(name)
        file_sha256 = sha256_file(path)
        if sha256 is not None and sha256 != file_sha256:
            raise damaged(
                str(path),
                found=f"sha256 {file_sha256}",
                expected=f"sha256 {sha256}",
            )

        # Ask first whether the store has the file already, unless sending it would take as long.
        size = path.stat().st_size
        asks_first = not is_new and size > _SMALL_BYTES
        for attempt in range(1, _ATTEMPTS + 1):
            if asks_first and self._has_bytes(name, size, file_sha256):
                return
            try:
                self._send(name, self._file_parts(path, size), file_sha256)
                return
            except LostUploadError:
                # Another process has written the object meanwhile, and the parts that were sent are
                # lost. If it has written the same bytes, nothing is left to do. So ask before all
                # parts are sent again.
                if attempt == _ATTEMPTS:
                    raise
                asks_first = True

    def _has_bytes(self, name: str, size: int, sha256: str) -> bool:
        """Return whether an object exists, and was stored with this size and sha256."""
        stored = self.stat(name)
        return stored is not None and stored.size == size and stored.sha256 == sha256

    def _file_parts(self, path: Path, size: int) -> Iterator[bytes]:
        """Yield the bytes of a local file in parts of one size, each of which one request sends.

        A part has 16 MiB. If the file is so large that there would be more than 50,000 parts, which
        is a limit of Azure, the parts are larger.

        Args:
            path: The file.
            size: Its bytes.
        """
        smallest_allowed = ceil_division(size, MAX_PARTS)
        part_bytes = max(self.part_bytes, smallest_allowed)
        part_bytes = ceil_division(part_bytes, PART_STEP) * PART_STEP
        with path.open("rb") as file:
            yield from regrouped(file_blocks(file), part_bytes)

    def _send(self, name: str, parts: Iterable[bytes], sha256: str | None) -> None:
        """Write an object: by one request if it is a single part, else by an upload in parts.

            one part       write_whole(A)
            three parts    begin_upload(), send(A), send(B), complete(C)

        The object appears, or is replaced, when the last request has succeeded.

        Args:
            name: Name of the object.
            parts: Its bytes in parts, at least one.
            sha256: The expected sha256 of its bytes as hex; None: it is not compared.

        Raises:
            StorageError: The parts have other bytes than expected, or cannot be sent.
        """
        # The parts may be read from a stream: find out whether there is a second one.
        remaining_parts = iter(parts)
        first_part = next(remaining_parts)
        second_part = next(remaining_parts, None)
        if second_part is None:
            # Write a single part by one request.
            found_sha256 = hashlib.sha256(first_part).hexdigest()
            self._check_sha256(name, found_sha256, sha256)
            self.write_whole(name, first_part, found_sha256)
            return

        object_sha256 = hashlib.sha256(first_part)
        upload = self.begin_upload(name, sha256)
        try:
            # The last part is sent in another way than the others, and completes the upload. So a
            # part is sent only once there is a next one.
            unsent_part = first_part  # A
            for next_part in chain([second_part], remaining_parts):  # B, then C
                upload.send(unsent_part)  # A, then B
                object_sha256.update(next_part)
                unsent_part = next_part
            self._check_sha256(name, object_sha256.hexdigest(), sha256)
            upload.complete(unsent_part)  # C
        except BaseException:
            upload.abandon()
            raise

    def _check_sha256(self, name: str, found: str, expected: str | None) -> None:
        """Check that the bytes that are sent are the expected ones.

        The checksum of a local file was computed before. If somebody has written to the file since
        then, the object must not appear under this checksum.

        Args:
            name: Name of the object, for the error.
            found: The sha256 of the bytes that are sent.
            expected: The expected sha256; None: nothing is compared.

        Raises:
            StorageError: The local file was changed while it was sent.
        """
        if expected is not None and found != expected:
            raise StorageError(
                "a file was changed while it was uploaded",
                where=self.url(name),
                found=f"sha256 {found}",
                expected=f"sha256 {expected}",
                remedy="run again once nothing else writes to the folder of working copies",
            )


def prefix_of(folder: str) -> str:
    """Return what the keys of all objects below a folder begin with.

    Args:
        folder: Key of the folder without a slash at its end, or "" for the whole bucket.

    Returns:
        The prefix: `web` gives `web/`, so that `web2/a` is not below it; "" gives "".
    """
    return f"{folder}/" if folder else ""
