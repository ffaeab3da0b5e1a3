"""What is sent to a bucket, in parts with digests, and the check that it has arrived unchanged.

Large files are sent in several *parts*, each by a request of its own, and the bucket joins them.
Each part is sent with its sha256. The answer has an *ETag*, which is often, but not always, the MD5
of the bytes that have arrived.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from nanoset_core.rounding import ceil_division
from nanoset_core.storage.requests import DamagedTransferError
from nanoset_core.storage.store import file_blocks, regrouped

MULTIPART_BYTES = 64 << 20
"""Files above this are sent in parts of at least this size."""
MAX_PARTS = 10_000
"""Maximum number of parts of an object; a limit of S3."""
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')
"""An ETag that may be an MD5; the ETag of an object in several parts has another form."""


class Part(NamedTuple):
    """Bytes that one request sends: a part of an object, or all of a small one."""

    open: Callable[[], Any]
    """Opens the bytes as a file; it is called for each attempt to send them."""
    sha256: bytes
    """Digest of the bytes."""


class FileParts(NamedTuple):
    """A file, divided into parts."""

    sha256: str
    """Digest of the whole file, as hex."""
    parts: list[Part]
    """At least one part; an empty file has an empty part."""


class _FileRange:
    """A range of the bytes of a file, which can be read like a file of its own.

    s3transfer has such a class, too, but importing it takes 10 ms in each process.
    """

    def __init__(self, path: Path, begin: int, size: int) -> None:
        """Open the range.

        Args:
            path: The file.
            begin: Position of the first byte in the file.
            size: Bytes of the range. What the file has after them is not read.
        """
        self._file = path.open("rb")
        self._begin = begin
        self._size = size
        self._file.seek(begin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, at most `size`, or all if it is negative; none at the end."""
        remaining = max(self._size - self.tell(), 0)
        if size < 0 or size > remaining:
            size = remaining
        return self._file.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position relative to the start of the range, its end, or the present one."""
        if whence == os.SEEK_CUR:
            offset += self.tell()
        elif whence == os.SEEK_END:
            offset += self._size
        self._file.seek(self._begin + max(offset, 0))
        return self.tell()

    def tell(self) -> int:
        """Return the current position from the start of the range."""
        return self._file.tell() - self._begin


def file_parts(path: Path, min_part_bytes: int) -> FileParts:
    """Divide a file into parts to be uploaded, and compute all digests while reading it once.

    S3 receives a large file by several requests, and joins the parts. Each part is sent with its
    sha256, which shows damage on the way. The sha256 of the whole file is needed, too. For example,
    a file of 150 MiB and `min_part_bytes` of 64 MiB:

        part               0          1            2
        bytes in MiB       0 to 64    64 to 128    128 to 150

    Args:
        path: The file.
        min_part_bytes: The size of a part, except the last one, which may be smaller. If this would
            give more than 10,000 parts, which is a limit of S3, the parts are larger.
    """
    size = path.stat().st_size
    smallest_allowed = ceil_division(size, MAX_PARTS)
    part_bytes = max(min_part_bytes, smallest_allowed)

    if size <= part_bytes:
        return _single_part(path, size)

    file_sha256 = hashlib.sha256()
    parts: list[Part] = []
    with path.open("rb") as file:
        for begin in range(0, size, part_bytes):
            length = min(part_bytes, size - begin)
            part_sha256 = hashlib.sha256()
            for block in file_blocks(file, length):
                part_sha256.update(block)
                file_sha256.update(block)
            open_part = partial(_FileRange, path, begin, length)
            parts.append(Part(open_part, part_sha256.digest()))
    return FileParts(file_sha256.hexdigest(), parts)


def _single_part(path: Path, size: int) -> FileParts:
    """Return a file as one part, which has the same digest as the file.

    Args:
        path: The file, which may be empty.
        size: Its bytes.
    """
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        for block in file_blocks(file, size):
            sha256.update(block)
    part = Part(partial(_FileRange, path, 0, size), sha256.digest())
    return FileParts(sha256.hexdigest(), [part])


def stream_parts(blocks: Iterable[bytes], part_bytes: int) -> Iterator[Part]:
    """Regroup blocks of any size into parts of one size, each of which one request sends.

    For example, with `part_bytes` of 4, the blocks `b"ab"`, `b"cdefg"` give the parts `b"abcd"`,
    `b"efg"`.

    Args:
        blocks: Consecutive bytes of an object.
        part_bytes: Size of each part, except the last one, which may be smaller.

    Yields:
        The parts; a single empty part if there are no bytes.
    """
    for data in regrouped(blocks, part_bytes):
        yield bytes_part(data)


def bytes_part(data: bytes) -> Part:
    """Return bytes in memory as a part of an upload, with their digest.

    Args:
        data: The bytes, which are sent by one request.
    """
    return Part(partial(io.BytesIO, data), hashlib.sha256(data).digest())


def encoded(digest: bytes) -> str:
    """Return a digest in base64, as the headers of S3 have it.

    Args:
        digest: The bytes of the digest, 32 for a sha256.
    """
    return base64.b64encode(digest).decode()


def md5_of_etag(etag: str) -> str | None:
    """Return the MD5 in an ETag as hex, or None if the ETag has another form.

    Args:
        etag: The ETag, in quotes or without. That of an object that was sent in parts ends with
            their number, such as `…-3`, and contains no MD5 of the bytes.

    Returns:
        32 hex digits. They are the MD5 of the bytes only if `etags_are_md5` is true, too.
    """
    match = _MD5.fullmatch(etag)
    return None if match is None else match[1]


def etags_are_md5(answer: Any) -> bool:
    """Return whether ETags are MD5 digests, according to the encryption that an answer mentions.

    A bucket identifies each version of an object by an ETag. Usually it is the MD5 of the bytes, so
    that it can be used to find damaged bytes. It is not the MD5 if the object is encrypted with a
    key of the customer or of AWS's key management (KMS).

    Args:
        answer: botocore's answer to a request about an object.
    """
    encryption = answer.get("ServerSideEncryption", "AES256")
    has_customer_key = "SSECustomerAlgorithm" in answer
    return encryption == "AES256" and not has_customer_key


def check_sent(answer: Any, part: Part, *, is_md5: bool) -> str:
    """Check that a bucket has received the bytes that were sent, by a digest in its answer.

    The best evidence that the answer has is used:

        "ChecksumSHA256"                         compare it with the sha256 of the bytes
        an ETag of 32 hex digits, and `is_md5`   compare it with the MD5 of the bytes
        neither                                  nothing is compared

    Args:
        answer: botocore's answer to the request that has sent the bytes.
        part: The bytes.
        is_md5: Whether an ETag that looks like an MD5 is the MD5 of the bytes. It is not if the
            bucket encrypts objects with a key of the customer.

    Returns:
        The ETag in the answer.

    Raises:
        DamagedTransferError: The bucket has received other bytes.
    """
    etag: str = answer["ETag"]
    reported_sha256 = answer.get("ChecksumSHA256")  # not every server reports it
    reported_md5 = md5_of_etag(etag) if is_md5 else None  # some servers use other ETags

    is_same = True
    if reported_sha256 is not None:
        is_same = reported_sha256 == encoded(part.sha256)
    elif reported_md5 is not None:
        is_same = reported_md5 == _md5(part)
    if not is_same:
        raise DamagedTransferError("the bucket has received other bytes than were sent")
    return etag


def _md5(part: Part) -> str:
    """Return the MD5 of a part as hex."""
    md5 = hashlib.md5(usedforsecurity=False)
    with part.open() as file:
        for block in file_blocks(file):
            md5.update(block)
    return md5.hexdigest()
