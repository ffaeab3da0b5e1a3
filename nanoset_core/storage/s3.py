"""Objects of one place in a bucket: found, read by ranges, written whole and checked, never half there."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from nanoset_core.errors import MissingError, SourceChangedError, StorageError
from nanoset_core.storage.atomic import atomic_file
from nanoset_core.storage.location import S3Place
from nanoset_core.storage.s3_digests import MULTIPART_BYTES, LocalDigests, digests_of, encoded, etag_of, etag_of_bytes
from nanoset_core.storage.s3_requests import DamagedTransferError, client, is_missing, persist, status_of

T = TypeVar("T")
R = TypeVar("R")
THREADS = 8
RANGE_BYTES = 8 << 20
PARTS_AT_ONCE = 4
SHA256 = "nanoset-sha256"
"""Key of an object's metadata: hex sha256 of its bytes."""


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What a bucket says of one object."""

    name: str
    """below the place"""
    size: int
    """bytes"""
    etag: str
    """changes with the bytes"""
    mtime_ns: int
    """when it was written, whole seconds in nanoseconds since 1970: all that every answer tells"""
    sha256: str | None = None
    """as its writer noted it; None where it was not asked for, or is not ours"""


_ABOUT_OBJECT = ("ContentLength", "ETag", "LastModified")
"""what every answer about an object says"""


def in_parallel(work: Callable[[T], R], items: Iterable[T], threads: int = THREADS) -> list[R]:
    """`work` on every item, up to `threads` at once; results in the items' order, the first error is raised."""
    listed = list(items)
    if len(listed) <= 1:
        return [work(item) for item in listed]
    with ThreadPoolExecutor(min(threads, len(listed))) as pool:
        futures = [pool.submit(work, item) for item in listed]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _unless_missing(call: Callable[[], R]) -> R | None:
    """What a call gives; None where there is no such object."""
    try:
        return call()
    except Exception as error:
        if is_missing(error):
            return None
        raise


def _whole(answer: Any, *needed: str) -> Any:
    """An answer, unless it was cut off within its head: botocore takes that for one that says nothing."""
    if not answer.keys() >= set(needed):
        raise DamagedTransferError("an answer was cut off within its head")
    return answer


class Bucket:
    """The objects below a place. Nothing is remembered: every answer is the bucket's own, of this moment."""

    def __init__(self, place: S3Place, *, part_bytes: int = MULTIPART_BYTES) -> None:
        """part_bytes: files above this are sent in parts of it."""
        self.place, self._part_bytes = place, part_bytes

    def url(self, name: str) -> str:
        """An object's address, for messages."""
        return f"s3://{self.place.bucket}/{self.place.key(name)}"

    def _send(self, operation: str, name: str, *needed: str, **arguments: Any) -> Any:
        call = getattr(client(self.place), operation)
        where = {"Bucket": self.place.bucket, "Key": self.place.key(name)}
        return persist(
            lambda: _whole(call(**where, **arguments), *needed), self.url(name), reads=operation == "head_object"
        )

    def _send_body(self, operation: str, name: str, body: Callable[[], Any], **arguments: Any) -> Any:
        """As `_send`, with a body that is opened anew for each attempt."""
        call = getattr(client(self.place), operation)
        where = {"Bucket": self.place.bucket, "Key": self.place.key(name)}

        def request() -> Any:
            with body() as opened:
                return _whole(call(**where, Body=opened, **arguments), "ETag")

        return persist(request, self.url(name), reads=False)

    def head(self, name: str) -> ObjectFacts | None:
        """What the bucket says of an object; None where there is none."""
        return self._facts(name, self._head(name))

    def _head(self, name: str) -> Any:
        return _unless_missing(lambda: self._send("head_object", name, *_ABOUT_OBJECT, ChecksumMode="ENABLED"))

    def _facts(self, name: str, found: Any) -> ObjectFacts | None:
        if found is None:
            return None
        written = int(found["LastModified"].timestamp()) * 10**9
        return ObjectFacts(name, found["ContentLength"], found["ETag"], written, found.get("Metadata", {}).get(SHA256))

    def list(self, folder: str = "") -> Iterator[ObjectFacts]:
        """Every object below a folder, in the order of their names' bytes; straight from the bucket."""
        prefix = self.place.key(folder)
        prefix = f"{prefix}/" if prefix else ""
        cut = len(self.place.prefix) + 1 if self.place.prefix else 0
        token: dict[str, str] = {}
        while True:
            page = self._page(prefix, token)
            for entry in page.get("Contents", ()):
                written = int(entry["LastModified"].timestamp()) * 10**9
                yield ObjectFacts(entry["Key"][cut:], entry["Size"], entry["ETag"], written)
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def _page(self, prefix: str, token: dict[str, str]) -> Any:
        call = client(self.place).list_objects_v2
        return persist(
            lambda: _whole(call(Bucket=self.place.bucket, Prefix=prefix, **token), "Name"),
            f"s3://{self.place.bucket}/{prefix}",
            reads=False,
        )

    def level(self, folder: str = "") -> tuple[list[str], list[str]]:
        """(names of folders, names of objects) right below a folder, each sorted."""
        prefix = self.place.key(folder)
        prefix = f"{prefix}/" if prefix else ""
        folders: set[str] = set()
        files: set[str] = set()
        token: dict[str, str] = {"Delimiter": "/"}
        while True:
            page = self._page(prefix, token)
            folders |= {entry["Prefix"][len(prefix) : -1] for entry in page.get("CommonPrefixes", ())}
            files |= {entry["Key"][len(prefix) :] for entry in page.get("Contents", ())}
            if not page.get("IsTruncated"):
                return sorted(folders), sorted(files)
            token["ContinuationToken"] = page["NextContinuationToken"]

    def read(self, name: str) -> bytes | None:
        """A small object's bytes; None where there is none."""
        found = self.read_dated(name)
        return None if found is None else found[0]

    def read_dated(self, name: str) -> tuple[bytes, int] | None:
        """(bytes, when they were written, in ns) of a small object; None where there is none."""

        def request() -> tuple[bytes, int]:
            answer = client(self.place).get_object(Bucket=self.place.bucket, Key=self.place.key(name))
            _whole(answer, *_ABOUT_OBJECT)
            data = answer["Body"].read()
            noted = answer.get("Metadata", {}).get(SHA256)
            if len(data) != answer["ContentLength"] or (noted and hashlib.sha256(data).hexdigest() != noted):
                raise DamagedTransferError(f"{len(data):,} bytes that are not those of {self.url(name)}")
            return data, int(answer["LastModified"].timestamp()) * 10**9

        return _unless_missing(lambda: persist(request, self.url(name)))

    def read_range(self, name: str, begin: int, end: int, etag: str) -> bytes:
        """Bytes [begin, end) of an object that is as it was when it had this ETag.

        Raises:
            SourceChangedError: it has another one now.
            MissingError: it is gone.
        """
        if begin >= end:
            return b""

        def request() -> bytes:
            answer = client(self.place).get_object(
                Bucket=self.place.bucket,
                Key=self.place.key(name),
                Range=f"bytes={begin}-{end - 1}",
                IfMatch=etag,
            )
            data = answer["Body"].read()
            if len(data) != end - begin:
                raise DamagedTransferError(f"{len(data):,} bytes instead of {end - begin:,}")
            return data

        try:
            return persist(request, self.url(name))
        except Exception as error:
            if is_missing(error):
                raise MissingError("the object is gone", where=self.url(name), remedy="build again") from error
            if status_of(error)[0] in (412, 416):
                raise SourceChangedError(
                    "the object is not the one that was listed",
                    where=self.url(name),
                    found="another ETag",
                    expected=etag,
                    remedy="build again once nothing writes to it: the inventory is taken anew",
                ) from error
            raise

    def download(self, name: str, target: Path, *, sha256: str | None = None) -> bool:
        """Bring an object to a local file, whole and checked or not at all; → False where there is none.

        sha256: what it must have; where absent, what its writer noted.

        Raises:
            StorageError: its bytes are not those that were written, whenever they are asked for.
        """
        facts = self.head(name)
        if facts is None:
            return False
        wanted = sha256 or facts.sha256
        with atomic_file(target) as file:
            for _ in range(2):  # once more where the bytes are others: it may have been the way
                file.seek(0)
                file.truncate()
                found = self._stream(facts, file.write)
                if wanted in (None, found):
                    return True
            raise StorageError(
                "an object has other bytes than were written",
                where=self.url(name),
                found=f"sha256 {found}",
                expected=f"sha256 {wanted}",
                remedy="remove the object, and build again: it is made anew",
            )

    def _stream(self, facts: ObjectFacts, write: Callable[[bytes], object]) -> str:
        """Give an object's bytes in order, fetched by ranges in parallel; → their sha256."""
        sha, window = hashlib.sha256(), RANGE_BYTES * THREADS
        for begin in range(0, facts.size, window):
            starts = range(begin, min(begin + window, facts.size), RANGE_BYTES)
            blocks = in_parallel(
                lambda start: self.read_range(facts.name, start, min(start + RANGE_BYTES, facts.size), facts.etag),
                starts,
            )
            for block in blocks:
                sha.update(block)
                write(block)
        return sha.hexdigest()

    def sha256(self, name: str) -> str | None:
        """Hex sha256 of the bytes that the bucket gives now; None where there is no such object."""
        facts = self.head(name)
        return None if facts is None else self._stream(facts, lambda block: None)

    def upload(self, path: Path, name: str, *, replaces: bool = True, sha256: str | None = None) -> None:
        """Bring a local file to the bucket: whole and checked, or not at all. What is there with these bytes stays.

        Args:
            path: the file.
            name: of the object.
            replaces: False where the caller knows that there is no such object.
            sha256: hex, of what the file must hold, where that is known.

        Raises:
            StorageError: it could not be done, or the file holds something else.
        """
        digests = digests_of(path, self._part_bytes)
        if sha256 not in (None, digests.sha256):
            raise StorageError(
                "a file that is to be sent has other bytes than were written",
                where=path,
                found=f"sha256 {digests.sha256}",
                expected=f"sha256 {sha256}",
                remedy=f"delete {path.parent}, and run again: it is made anew",
            )
        there = self.head(name) if replaces else None
        if there is not None and (there.size, there.sha256) == (digests.size, digests.sha256):
            return

        def attempt() -> None:
            answer = (self._put_parts if digests.part_bytes else self._put_whole)(path, name, digests)
            if not self._holds(answer, digests, lambda: etag_of(path, digests.part_bytes), name):
                raise DamagedTransferError("what the bucket holds is not what was sent")

        persist(attempt, self.url(name))

    def put(self, data: bytes, name: str) -> None:
        """Write a small object, whole and checked; raises as `upload`."""
        sha = hashlib.sha256(data)
        digests = LocalDigests(len(data), 0, sha.hexdigest(), (sha.digest(),))

        def attempt() -> None:
            answer = self._put(name, lambda: io.BytesIO(data), digests)
            if not self._holds(answer, digests, lambda: etag_of_bytes(data), name):
                raise DamagedTransferError("what the bucket holds is not what was sent")

        persist(attempt, self.url(name))

    def _put(self, name: str, body: Callable[[], Any], digests: LocalDigests) -> Any:
        about = {"ChecksumSHA256": digests.checksum, "Metadata": {SHA256: digests.sha256}}
        return self._send_body("put_object", name, body, **about)

    def _put_whole(self, path: Path, name: str, digests: LocalDigests) -> Any:
        return self._put(name, lambda: path.open("rb"), digests)

    def _put_parts(self, path: Path, name: str, digests: LocalDigests) -> Any:
        started = self._send(
            "create_multipart_upload", name, "UploadId", ChecksumAlgorithm="SHA256", Metadata={SHA256: digests.sha256}
        )
        upload = {"UploadId": started["UploadId"]}

        def send(number: int) -> dict[str, Any]:
            from s3transfer.utils import ReadFileChunk

            checksum = encoded(digests.part_sha256[number])
            about = {"PartNumber": number + 1, "ChecksumSHA256": checksum, **upload}
            part = digests.part(number)
            try:
                sent = self._send_body("upload_part", name, lambda: ReadFileChunk.from_filename(path, *part), **about)
            except Exception as error:
                if status_of(error)[1] != "NoSuchUpload":
                    raise
                raise DamagedTransferError("the upload was aborted by somebody else") from error
            return {"PartNumber": number + 1, "ETag": sent["ETag"], "ChecksumSHA256": checksum}

        try:
            parts = in_parallel(send, range(len(digests.part_sha256)), threads=PARTS_AT_ONCE)
            return self._complete(name, parts, upload)
        except BaseException:
            self._abandon(name, upload)
            raise

    def _complete(self, name: str, parts: list[dict[str, Any]], upload: dict[str, str]) -> Any:
        try:
            return self._send("complete_multipart_upload", name, MultipartUpload={"Parts": parts}, **upload)
        except Exception as error:
            if status_of(error)[1] != "NoSuchUpload":
                raise
            return {}  # the first answer was lost on its way: whether the object is whole is for the check to say

    def _abandon(self, name: str, upload: dict[str, str]) -> None:
        """Let go of the parts that were sent; what fails here is left to the bucket's lifecycle rule."""
        from botocore.exceptions import BotoCoreError, ClientError

        with contextlib.suppress(BotoCoreError, ClientError):
            client(self.place).abort_multipart_upload(Bucket=self.place.bucket, Key=self.place.key(name), **upload)

    def _holds(self, answer: Any, digests: LocalDigests, etag: Callable[[], str], name: str) -> bool:
        """Whether the bucket holds the bytes that were sent, by the checksum or ETag that it has made of them itself.

        Where it tells neither in its answer to the upload (with KMS, an ETag says nothing), it is asked, and in the
        end the bytes are read back.
        """
        if answer.get("ChecksumSHA256") == digests.checksum:
            return True
        own = etag()
        if answer.get("ETag") == own:
            return True
        found = self._head(name)
        if found is None or found["ContentLength"] != digests.size:
            return False
        known = (found.get("ChecksumSHA256"), found["ETag"])
        return digests.checksum == known[0] or own == known[1] or self.sha256(name) == digests.sha256

    def remove(self, name: str) -> None:
        """Remove an object; nothing happens where there is none."""
        where = {"Bucket": self.place.bucket, "Key": self.place.key(name)}
        # Some stores answer 404 where it is gone already, also where the first answer was lost on its way.
        _unless_missing(lambda: persist(lambda: client(self.place).delete_object(**where), self.url(name)))
