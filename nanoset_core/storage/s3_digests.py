"""What a file looks like to a bucket: its digests whole and by parts, as S3 computes them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MULTIPART_BYTES = 64 << 20
"""Files above this are sent in parts of at least this size."""
MOST_PARTS = 10_000
READ_BYTES = 4 << 20
SHA256 = "nanoset-sha256"
"""Key of an object's metadata: hex sha256 of its bytes."""


@dataclass(frozen=True, slots=True)
class LocalDigests:
    """A file's digests."""

    size: int
    """Bytes."""
    part_bytes: int
    """Size of every part but the last; 0 = sent whole."""
    sha256: str
    """Hex, of the whole file."""
    part_sha256: tuple[bytes, ...]
    """Of each part; one for a file that is sent whole."""

    @property
    def checksum(self) -> str:
        """S3's ChecksumSHA256: of the bytes, or for parts of their digests, with their number."""
        if not self.part_bytes:
            return encoded(self.part_sha256[0])
        return f"{encoded(hashlib.sha256(b''.join(self.part_sha256)).digest())}-{len(self.part_sha256)}"

    def part(self, number: int) -> tuple[int, int]:
        """(first byte, size) of part `number`, from 0."""
        begin = number * self.part_bytes
        return begin, min(self.part_bytes, self.size - begin)


def encoded(digest: bytes) -> str:
    """A digest as S3's headers spell it."""
    return base64.b64encode(digest).decode()


def noted_sha256(answer: Any) -> str | None:
    """Hex sha256 of an object as its writer noted it; None where it is not ours, or was joined of others."""
    noted: str | None = answer.get("Metadata", {}).get(SHA256)
    return noted


def part_bytes_of(size: int, least: int = MULTIPART_BYTES) -> int:
    """How big the parts of a file are: 0 where it is sent whole; never more than 10,000 parts."""
    return 0 if size <= least else max(least, -(-size // MOST_PARTS))


def digests_of(path: Path, least_part_bytes: int = MULTIPART_BYTES) -> LocalDigests:
    """Read a file once for all its digests."""
    size = path.stat().st_size
    part_bytes = part_bytes_of(size, least_part_bytes)
    if not part_bytes:
        (sha256,) = _by_parts(path, 0, lambda: hashlib.sha256(), lambda block: None)
        return LocalDigests(size, 0, sha256.hex(), (sha256,))
    whole = hashlib.sha256()
    parts = _by_parts(path, part_bytes, lambda: hashlib.sha256(), whole.update)
    return LocalDigests(size, part_bytes, whole.hexdigest(), tuple(parts))


def digests_of_bytes(data: bytes) -> LocalDigests:
    """As digests_of, of bytes that are sent whole."""
    sha256 = hashlib.sha256(data)
    return LocalDigests(len(data), 0, sha256.hexdigest(), (sha256.digest(),))


def etag_of(path: Path, part_bytes: int) -> str:
    """The ETag of a file in a bucket without a KMS key: md5 of the bytes, or of the parts' md5."""
    parts = _by_parts(path, part_bytes, lambda: hashlib.md5(usedforsecurity=False), lambda block: None)
    if not part_bytes:
        return f'"{parts[0].hex()}"'
    return f'"{hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()}-{len(parts)}"'


def etag_of_bytes(data: bytes) -> str:
    """As etag_of, of bytes that are sent whole."""
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _by_parts(
    path: Path, part_bytes: int, new: Callable[[], hashlib._Hash], also: Callable[[bytes], None]
) -> list[bytes]:
    """Digest of each part; of the whole file where part_bytes is 0 (then `also` hears every block all the same)."""
    digests: list[bytes] = []
    with path.open("rb") as file:
        while True:
            part, left = new(), part_bytes or path.stat().st_size
            while left and (block := file.read(min(READ_BYTES, left))):
                left -= len(block)
                also(block)
                part.update(block)
            digests.append(part.digest())
            if not part_bytes or not file.peek(1):
                return digests
