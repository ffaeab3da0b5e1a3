"""Objects that are sent, or copied within their bucket, in parts."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from nanoset_core.storage.location import S3Place
from nanoset_core.storage.s3_digests import LocalDigests, encoded
from nanoset_core.storage.s3_requests import DamagedTransferError, client, send, status_of

STREAM_PARTS_AT_ONCE = 2
"""Parts of a stream that are in memory and on their way."""
_SOON_COPIED_BYTES = 64 << 20
COPY_SECONDS = 900
"""How long a server may take to copy a larger part, of up to 5 GiB, beside seven others. To ask again sooner would let
it copy twice at once what it is too slow for already."""


class Upload:
    """One upload in parts: a context that lets go of what was sent where it does not end well."""

    def __init__(self, place: S3Place, name: str, metadata: dict[str, str]) -> None:
        """metadata: of the object."""
        self._place, self._name = place, name
        started = send(
            place, "create_multipart_upload", name, "UploadId", ChecksumAlgorithm="SHA256", Metadata=metadata
        )
        self._upload: dict[str, Any] = {"UploadId": started["UploadId"]}
        self.etags_tell = etags_tell(started)
        """Whether the ETag of a part is the md5 of its bytes."""
        self._sent: dict[int, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self.abandon()

    def send(self, number: int, body: Callable[[], Any], sha256: bytes) -> None:
        """Send part `number`, from 0; body: opens its bytes, anew for each attempt; sha256: of them."""
        checksum = encoded(sha256)
        answer = self._ask("upload_part", "ETag", body=body, PartNumber=number + 1, ChecksumSHA256=checksum)
        self._sent[number] = {"PartNumber": number + 1, "ETag": answer["ETag"], "ChecksumSHA256": checksum}

    def copy(self, number: int, name: str, mark: str, begin: int, end: int) -> Any:
        """Let the bucket take part `number` from bytes [begin, end) of an object that has this mark.

        Some servers take them whatever its mark is: → what the bucket says of the part, for the caller to compare.
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
            raise DamagedTransferError("the upload was aborted by somebody else") from error

    def complete(self, **conditions: Any) -> Any:
        """Make the object of the parts; → the bucket's answer.

        {} where there is no such upload any more: the answer was lost on its way, or somebody aborted the upload. The
        caller has to look whether the object is the new one.
        """
        parts = {"Parts": [self._sent[number] for number in sorted(self._sent)]}
        try:
            return send(
                self._place,
                "complete_multipart_upload",
                self._name,
                MultipartUpload=parts,
                **conditions,
                **self._upload,
            )
        except Exception as error:
            if status_of(error)[1] != "NoSuchUpload":
                raise
            return {}

    def abandon(self) -> None:
        """Let go of the parts that were sent; what fails here is left to the bucket's lifecycle rule."""
        from botocore.exceptions import BotoCoreError, ClientError

        key = self._place.key(self._name)
        with contextlib.suppress(BotoCoreError, ClientError):
            client(self._place).abort_multipart_upload(Bucket=self._place.bucket, Key=key, **self._upload)


def etags_tell(answer: Any) -> bool:
    """Whether an answer about an object or upload leaves its ETags what they are without keys of one's own: digests."""
    return answer.get("ServerSideEncryption", "AES256") == "AES256" and "SSECustomerAlgorithm" not in answer


class StreamDigests:
    """Digests of a stream that is sent in parts, taken while its bytes pass."""

    def __init__(self, part_bytes: int) -> None:
        """part_bytes: of every part but the last."""
        self._part_bytes, self._size, self._whole = part_bytes, 0, hashlib.sha256()
        self._sha256: list[bytes] = []
        self._md5: list[bytes] = []

    def add(self, part: bytes) -> bytes:
        """Take a part into account; → its sha256."""
        self._size += len(part)
        self._whole.update(part)
        self._sha256.append(hashlib.sha256(part).digest())
        self._md5.append(hashlib.md5(part, usedforsecurity=False).digest())
        return self._sha256[-1]

    def result(self) -> LocalDigests:
        """Of all that was added."""
        return LocalDigests(self._size, self._part_bytes, self._whole.hexdigest(), tuple(self._sha256))

    def etag(self) -> str:
        """What a bucket without a KMS key has for an ETag."""
        return f'"{hashlib.md5(b"".join(self._md5), usedforsecurity=False).hexdigest()}-{len(self._md5)}"'


def send_stream(upload: Upload, parts: Iterable[bytes], digests: StreamDigests) -> None:
    """Send parts in order, a few at once; memory is that of the few."""
    with ThreadPoolExecutor(STREAM_PARTS_AT_ONCE) as pool:
        under_way: list[Future[None]] = []
        try:
            for number, part in enumerate(parts):
                if len(under_way) == STREAM_PARTS_AT_ONCE:
                    under_way.pop(0).result()
                digest = digests.add(part)
                under_way.append(pool.submit(upload.send, number, functools.partial(io.BytesIO, part), digest))
            for future in under_way:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def parts_of(blocks: Iterable[bytes], part_bytes: int) -> Iterator[bytes]:
    """Blocks of any size as parts of just `part_bytes`, but for the last; nothing for no bytes."""
    held = bytearray()
    for block in blocks:
        held += block
        while len(held) >= part_bytes:
            yield bytes(memoryview(held)[:part_bytes])
            del held[:part_bytes]
    if held:
        yield bytes(held)
