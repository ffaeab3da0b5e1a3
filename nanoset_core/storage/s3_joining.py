"""Objects that a bucket puts behind one another: made part by part, each compared with what it is taken from.

Not every server heeds the condition under which a part is to be copied. So the digest that the server tells of the part
is compared: its sha256 on stores that have checksums, else its ETag, which is an md5 but for objects that are encrypted
with keys of one's own, or were sent in parts. Where neither says anything, as of a part that is not all of an object,
the source must have the same mark after the copy as before.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from nanoset_core.errors import MissingError, SourceChangedError, StorageError
from nanoset_core.storage.compose import LEAST_BYTES, Piece
from nanoset_core.storage.s3_digests import encoded, noted_sha256
from nanoset_core.storage.s3_requests import status_of
from nanoset_core.storage.s3_uploads import Upload, etags_tell
from nanoset_core.storage.store import Joined, Stored, changed, in_parallel, unheard

if TYPE_CHECKING:
    from nanoset_core.storage.s3 import S3Store

_MD5 = re.compile(r'"?([0-9a-f]{32})"?')
_HEADS_AT_ONCE = 32


class OtherBytesError(Exception):
    """A server copied something else than the bytes of objects: Swift the list of the parts that they were sent in."""


class Joining:
    """The parts of one object that is put together of others."""

    def __init__(
        self,
        store: S3Store,
        sources: Sequence[Stored],
        sha256: Sequence[str | None],
        plan: Sequence[Sequence[Piece]],
        joined: Joined = unheard,
        *,
        copies: bool = True,
    ) -> None:
        """sha256: hex, of each source, where it is known; plan: see `plan_parts`; joined: hears of each part once, in
        however many attempts it is made; copies: False = all are sent."""
        self._joined, self._told, self._telling = joined, set[int](), Lock()
        self._store, self._sources, self._sha256, self.plan, self._copies = store, sources, sha256, plan, copies
        self.size = sum(piece.size for part in plan for piece in part)

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Tell of an object that is refused, or of another size, where the server may not copy the bytes of objects.

        Raises:
            OtherBytesError: parts were copied of objects that were sent in parts.
        """
        try:
            yield
        except (StorageError, SourceChangedError) as error:
            cause = error.__cause__
            is_size = isinstance(error, SourceChangedError) or (
                isinstance(cause, Exception) and status_of(cause)[1] == "EntityTooSmall"
            )
            if is_size and any(map(self._is_copied_of_parts, self.plan)):
                raise OtherBytesError from error
            raise

    def _is_copied_of_parts(self, part: Sequence[Piece]) -> bool:
        return self._copies and not _is_sent(part) and _md5(self._sources[part[0].source].mark) is None

    def check_sources(self) -> None:
        """Refuse sources that are not those that were listed: some servers copy whatever is there, past its end too."""
        in_parallel(self._check_source, range(len(self._sources)), _HEADS_AT_ONCE)

    def sent_whole(self) -> bytes | None:
        """The bytes of an object so small that all of it is sent; None of a larger one."""
        if len(self.plan) > 1 or not all(map(_is_sent, self.plan)):
            return None
        return b"".join(map(self._read, self.plan))

    def make_part(self, upload: Upload, number: int) -> None:
        """Let the bucket copy a part, or send it where it is of small objects."""
        self._make_part(upload, number)
        with self._telling:
            if number not in self._told:
                self._told.add(number)
                self._joined(sum(piece.size for piece in self.plan[number]))

    def _make_part(self, upload: Upload, number: int) -> None:
        part = self.plan[number]
        if _is_sent(part) or not self._copies:
            data = self._read(part)
            upload.send(number, lambda: io.BytesIO(data), hashlib.sha256(data).digest())
            return
        (piece,) = part
        source = self._sources[piece.source]
        try:
            told = upload.copy(number, source.name, source.mark, piece.begin, piece.end)
        except Exception as error:
            known = self._store.known(error, source.name, source.mark)
            if known is error:
                raise
            raise known from error
        self._check_part(upload, piece, told)

    def _read(self, part: Sequence[Piece]) -> bytes:
        """Bytes of a part that is too small to be copied."""
        return b"".join(map(self._read_piece, part))

    def _read_piece(self, piece: Piece) -> bytes:
        source, wanted = self._sources[piece.source], self._sha256[piece.source]
        data = self._store.read_range(source.name, piece.begin, piece.end, source.mark)
        if wanted is not None and piece.size == source.size and (found := hashlib.sha256(data).hexdigest()) != wanted:
            raise _damaged(self._store.url(source.name), found, wanted)
        return data

    def _check_part(self, upload: Upload, piece: Piece, told: Any) -> None:
        source, wanted = self._sources[piece.source], self._sha256[piece.source]
        if piece.size == source.size:
            if wanted is not None and "ChecksumSHA256" in told:
                if (found := told["ChecksumSHA256"]) != encoded(bytes.fromhex(wanted)):
                    raise _damaged(self._store.url(source.name), f"{found} in base64", wanted)
                return
            if _md5(told["ETag"]) == _md5(source.mark) is not None:
                return
        head = self._check_source(piece.source)
        is_whole = piece.size == head["ContentLength"]
        if is_whole and _md5(source.mark) and upload.etags_tell and etags_tell(head):
            raise changed(self._store.url(source.name), f"a copy of ETag {told['ETag']}", f"ETag {source.mark}")

    def _check_source(self, number: int) -> Any:
        """What the bucket says of a source, which must be the one that was listed."""
        source, wanted = self._sources[number], self._sha256[number]
        url, head = self._store.url(source.name), self._store.head(source.name)
        if head is None:
            raise MissingError("the object is gone", where=url, remedy="build again")
        if head["ETag"] != source.mark:
            raise changed(url, f"ETag {head['ETag']}", f"ETag {source.mark}")
        if head["ContentLength"] < source.size:
            raise changed(url, f"{head['ContentLength']:,} bytes", f"{source.size:,}")
        if None not in (wanted, noted := noted_sha256(head)) and noted != wanted:
            raise _damaged(url, f"{noted}, as its writer noted it", str(wanted))
        return head


def _damaged(url: str, found: str, wanted: str) -> StorageError:
    return StorageError(
        "an object has other bytes than were written",
        where=url,
        found=f"sha256 {found}",
        expected=f"sha256 {wanted}",
        remedy="remove the object, and build again: it is made anew",
    )


def _is_sent(part: Sequence[Piece]) -> bool:
    """Whether a part passes through this process."""
    return len(part) > 1 or part[0].size < LEAST_BYTES


def _md5(etag: str) -> str | None:
    """The md5 that an ETag may be; None of an object in parts."""
    found = _MD5.fullmatch(etag)
    return None if found is None else found[1]
