"""Uploads to a bucket: digests as S3 computes them, and objects that are sent or copied in parts."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nanoset_core.errors import StorageError
from nanoset_core.storage.s3_requests import DamagedTransferError, status_of

if TYPE_CHECKING:
    from nanoset_core.storage.s3 import S3Store

MULTIPART_BYTES = 64 << 20
"""Files above this are sent in parts of at least this size."""
MOST_PARTS = 10_000
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


def etags_tell(answer: Any) -> bool:
    """Return whether the ETags of an answer's objects are digests: they are not where a key of one's own encrypts."""
    return answer.get("ServerSideEncryption", "AES256") == "AES256" and "SSECustomerAlgorithm" not in answer


def sent_etag(answer: Any, part: Part, *, is_md5: bool) -> str:
    """Compare what a bucket says of bytes with what was sent; return their ETag.

    Args:
        answer: the bucket's.
        part: the bytes.
        is_md5: whether the bucket's ETags are digests.

    Raises:
        DamagedTransferError: its checksum, or else its ETag, is that of other bytes.
    """
    etag: str = answer["ETag"]
    if "ChecksumSHA256" in answer:
        is_same = answer["ChecksumSHA256"] == encoded(part.sha256)
    else:
        wanted = md5_of_etag(etag) if is_md5 else None
        is_same = wanted is None or wanted == _md5(part)
    if not is_same:
        raise DamagedTransferError("what the bucket holds is not what was sent")
    return etag


def _md5(part: Part) -> str:
    md5 = hashlib.md5(usedforsecurity=False)
    with part.open() as file:
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
                for digest in {whole, sha256}:
                    digest.update(block)
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
    """One upload in parts."""

    def __init__(self, store: S3Store, name: str, metadata: dict[str, str]) -> None:
        """metadata: of the object."""
        self._store, self._name, self._mark = store, name, secrets.token_hex(8)
        self._upload, self.etags_tell = store.ask(
            "create_multipart_upload",
            name,
            lambda answer: ({"UploadId": answer["UploadId"]}, etags_tell(answer)),
            ChecksumAlgorithm="SHA256",
            Metadata=metadata | {UPLOAD: self._mark},
        )
        self._sent: dict[int, dict[str, Any]] = {}

    def send(self, number: int, part: Part) -> None:
        """Send part `number`, from 0."""
        about = {"PartNumber": number + 1, "ChecksumSHA256": encoded(part.sha256)}
        check = partial(sent_etag, part=part, is_md5=self.etags_tell)
        self._sent[number] = about | {"ETag": self._ask("upload_part", check, body=part.open, **about)}

    def copy(self, number: int, name: str, mark: str, begin: int, end: int) -> Any:
        """Let the bucket take part `number` from bytes [begin, end) of an object that has this ETag.

        Some servers ignore the ETag: returns what the bucket says of the part, for the caller to compare.
        """
        found = self._ask(
            "upload_part_copy",
            lambda answer: (
                {"PartNumber": number + 1, "ETag": answer["CopyPartResult"]["ETag"]}
                | {key: sha256 for key, sha256 in answer["CopyPartResult"].items() if key == "ChecksumSHA256"}
            ),
            read_seconds=COPY_SECONDS if end - begin > _SOON_COPIED_BYTES else None,
            PartNumber=number + 1,
            CopySource={"Bucket": self._store.bucket, "Key": self._store.key(name)},
            CopySourceIfMatch=mark,
            CopySourceRange=f"bytes={begin}-{end - 1}",
        )
        self._sent[number] = found
        return found

    def _ask(self, operation: str, take: Callable[[Any], Any], **about: Any) -> Any:
        try:
            return self._store.ask(operation, self._name, take, **about, **self._upload)
        except Exception as error:
            if status_of(error)[1] != "NoSuchUpload":
                raise
            # There is no such upload any more, also where the answer to its completion was lost on its way.
            head = self._store.head(self._name) if operation == "complete_multipart_upload" else None
            if head is not None and head.upload == self._mark:
                return head.stored.mark
            raise StorageError(
                "the bucket does not hold what was sent",
                where=self._store.url(self._name),
                found="another process aborted the upload",
                remedy="run again: it is made anew",
            ) from error

    def complete(self) -> None:
        """Make the object of the parts.

        Raises:
            StorageError: another process aborted the upload, and what stands there is not of it.
        """
        parts = [self._sent[number] for number in sorted(self._sent)]
        self._ask("complete_multipart_upload", lambda answer: answer["ETag"], MultipartUpload={"Parts": parts})

    def abandon(self) -> None:
        """Abort the upload; what fails here is left to the bucket's lifecycle rule."""
        from botocore.exceptions import BotoCoreError, ClientError

        with contextlib.suppress(BotoCoreError, ClientError):
            key = self._store.key(self._name)
            self._store.client().abort_multipart_upload(Bucket=self._store.bucket, Key=key, **self._upload)


@contextlib.contextmanager
def uploading(store: S3Store, name: str, metadata: dict[str, str]) -> Iterator[Upload]:
    """Yield an upload in parts, which becomes the object when the block ends well, and is aborted when it fails."""
    upload = Upload(store, name, metadata)
    try:
        yield upload
        upload.complete()
    except BaseException:
        upload.abandon()
        raise
