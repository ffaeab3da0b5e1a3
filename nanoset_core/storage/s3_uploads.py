"""Uploads to a bucket: digests as S3 computes them, and objects that are sent or copied in parts."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from nanoset_core.errors import StorageError
from nanoset_core.storage.location import S3Place
from nanoset_core.storage.s3_requests import DamagedTransferError, client, send, status_of, unless_missing

MULTIPART_BYTES = 64 << 20
"""Files above this are sent in parts of at least this size."""
MOST_PARTS = 10_000
SHA256 = "nanoset-sha256"
"""Key of an object's metadata: hex sha256 of its bytes."""
UPLOAD = "nanoset-upload"
"""Key of an object's metadata: random mark of the upload in parts that made it."""
COPY_SECONDS = 900
"""How long a server may take to copy a part of up to 5 GiB: asked again sooner, it would copy twice at once."""
_SOON_COPIED_BYTES = 64 << 20
_READ_BYTES = 4 << 20
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


class Part(NamedTuple):
    """A part to be sent."""

    open: Callable[[], Any]
    """Opens its bytes, anew for each attempt."""
    sha256: bytes
    """Of the bytes."""


def encoded(digest: bytes) -> str:
    """Return a digest as S3's headers spell it."""
    return base64.b64encode(digest).decode()


def etag_of_bytes(data: bytes) -> str:
    """Return the ETag of bytes that are sent whole to a bucket without a KMS key."""
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def md5_of_etag(etag: str) -> str | None:
    """Return the MD5 that an ETag may be; None for an object in parts."""
    found = _MD5.fullmatch(etag)
    return None if found is None else found[1]


def noted(answer: Any, key: str) -> str | None:
    """Return what an object's writer noted under a key; some servers and proxies answer in capitals."""
    return {name.lower(): value for name, value in answer.get("Metadata", {}).items()}.get(key)


def noted_sha256(answer: Any) -> str | None:
    """Return the hex sha256 that an object's writer noted; None where it is not ours, or was joined of others."""
    return noted(answer, SHA256)


def etags_tell(answer: Any) -> bool:
    """Return whether the ETags of an answer's objects are digests: they are not where a key of one's own encrypts."""
    return answer.get("ServerSideEncryption", "AES256") == "AES256" and "SSECustomerAlgorithm" not in answer


def check_sent(answer: Any, part: Part, *, is_md5: bool) -> None:
    """Compare what a bucket says of bytes with what was sent.

    Args:
        answer: the bucket's.
        part: the bytes.
        is_md5: whether the bucket's ETags are digests.

    Raises:
        DamagedTransferError: its checksum, or else its ETag, is that of other bytes.
    """
    if "ChecksumSHA256" in answer:
        is_same = answer["ChecksumSHA256"] == encoded(part.sha256)
    else:
        wanted = md5_of_etag(answer["ETag"]) if is_md5 else None
        is_same = wanted is None or wanted == _md5(part.open)
    if not is_same:
        raise DamagedTransferError("what the bucket holds is not what was sent")


def _md5(opened: Callable[[], Any]) -> str:
    md5 = hashlib.md5(usedforsecurity=False)
    with opened() as file:
        while block := file.read(_READ_BYTES):
            md5.update(block)
    return md5.hexdigest()


def file_parts(path: Path, least_bytes: int) -> tuple[str, list[Part]]:
    """Read a file once; return (hex sha256, its parts of at least so many bytes), one part where it is no larger."""
    from s3transfer.utils import ReadFileChunk

    size = path.stat().st_size
    part_bytes = max(least_bytes, -(-size // MOST_PARTS))
    whole, parts = hashlib.sha256(), list[Part]()
    with path.open("rb") as file:
        for begin in range(0, max(size, 1), part_bytes):
            left = min(part_bytes, size - begin)
            sha256 = whole if left == size else hashlib.sha256()
            opened = partial(ReadFileChunk.from_filename, str(path), begin, left)
            while left and (block := file.read(min(_READ_BYTES, left))):
                left -= len(block)
                sha256.update(block)
                if sha256 is not whole:
                    whole.update(block)
            parts.append(Part(opened, sha256.digest()))
    return whole.hexdigest(), parts


def stream_parts(blocks: Iterable[bytes], part_bytes: int) -> Iterator[Part]:
    """Yield blocks of any size as parts of just `part_bytes`, but for the last; one empty part for no bytes."""
    held, is_first = bytearray(), True
    for block in blocks:
        held += block
        while len(held) >= part_bytes:
            data, is_first = bytes(memoryview(held)[:part_bytes]), False
            del held[:part_bytes]
            yield bytes_part(data)
    if held or is_first:
        yield bytes_part(bytes(held))


def bytes_part(data: bytes) -> Part:
    """Return bytes as a part."""
    return Part(partial(io.BytesIO, data), hashlib.sha256(data).digest())


class Upload:
    """One upload in parts: a context that aborts the upload where it does not end well."""

    def __init__(self, place: S3Place, name: str, metadata: dict[str, str]) -> None:
        """metadata: of the object."""
        self._place, self._name, self._mark = place, name, secrets.token_hex(8)
        noted = metadata | {UPLOAD: self._mark}
        started = send(place, "create_multipart_upload", name, "UploadId", ChecksumAlgorithm="SHA256", Metadata=noted)
        self._upload: dict[str, Any] = {"UploadId": started["UploadId"]}
        self.etags_tell = etags_tell(started)
        """Whether the ETag of a part is the MD5 of its bytes."""
        self._sent: dict[int, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self.abandon()

    def send(self, number: int, part: Part) -> None:
        """Send part `number`, from 0."""
        checksum = encoded(part.sha256)
        check = partial(check_sent, part=part, is_md5=self.etags_tell)
        answer = self._ask(
            "upload_part", "ETag", body=part.open, check=check, PartNumber=number + 1, ChecksumSHA256=checksum
        )
        self._sent[number] = {"PartNumber": number + 1, "ETag": answer["ETag"], "ChecksumSHA256": checksum}

    def send_all(self, parts: Iterable[Part], at_once: int) -> None:
        """Send parts in order, a few at once; memory is that of the few."""
        with ThreadPoolExecutor(at_once) as pool:
            under_way: list[Future[None]] = []
            try:
                for number, part in enumerate(parts):
                    if len(under_way) == at_once:
                        under_way.pop(0).result()
                    under_way.append(pool.submit(self.send, number, part))
                for future in under_way:
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def copy(self, number: int, name: str, mark: str, begin: int, end: int) -> Any:
        """Let the bucket take part `number` from bytes [begin, end) of an object that has this ETag.

        Some servers ignore the ETag: returns what the bucket says of the part, for the caller to compare.
        """
        source = {"Bucket": self._place.bucket, "Key": self._place.key(name)}
        span = f"bytes={begin}-{end - 1}"
        found = self._ask(
            "upload_part_copy", "CopyPartResult", PartNumber=number + 1,
            CopySource=source, CopySourceIfMatch=mark, CopySourceRange=span,
            read_seconds=COPY_SECONDS if end - begin > _SOON_COPIED_BYTES else None,
        )["CopyPartResult"]  # fmt: skip
        part = {"PartNumber": number + 1, "ETag": found["ETag"]}
        if "ChecksumSHA256" in found:
            part["ChecksumSHA256"] = found["ChecksumSHA256"]
        self._sent[number] = part
        return found

    def _ask(self, operation: str, needed: str, **about: Any) -> Any:
        try:
            return send(self._place, operation, self._name, needed, **about, **self._upload)
        except Exception as error:
            if status_of(error)[1] != "NoSuchUpload":
                raise
            raise self._aborted() from error

    def complete(self) -> None:
        """Make the object of the parts.

        Raises:
            StorageError: another process aborted the upload, and what stands there is not of it.
        """
        parts = {"Parts": [self._sent[number] for number in sorted(self._sent)]}
        try:
            send(self._place, "complete_multipart_upload", self._name, "ETag", MultipartUpload=parts, **self._upload)
        except Exception as error:
            if status_of(error)[1] != "NoSuchUpload":
                raise
            # There is no such upload any more, also where the first answer was lost on its way.
            found = unless_missing(lambda: send(self._place, "head_object", self._name))
            if found is None or noted(found, UPLOAD) != self._mark:
                raise self._aborted() from error

    def _aborted(self) -> StorageError:
        return StorageError(
            "the bucket does not hold what was sent",
            where=f"{self._place.url}/{self._name}",
            found="another process aborted the upload",
            remedy="run again: it is made anew",
        )

    def abandon(self) -> None:
        """Abort the upload; what fails here is left to the bucket's lifecycle rule."""
        from botocore.exceptions import BotoCoreError, ClientError

        key = self._place.key(self._name)
        with contextlib.suppress(BotoCoreError, ClientError):
            client(self._place).abort_multipart_upload(Bucket=self._place.bucket, Key=key, **self._upload)
