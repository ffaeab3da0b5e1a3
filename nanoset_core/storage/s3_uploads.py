"""What is sent to a bucket: its parts, and digests of them as S3 computes them."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.storage.s3_requests import DamagedTransferError

MULTIPART_BYTES = 64 << 20
"""Files above this are sent in parts of at least this size."""
MOST_PARTS = 10_000
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
    """Compare what a bucket's answer says of bytes with what was sent; return their ETag.

    DamagedTransferError where its checksum, or else its ETag, where those are digests, is that of other bytes.
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
