"""Objects that a bucket puts behind one another: which parts it copies, and how each is compared
with its source.

Not every server heeds the condition under which a part is to be copied. So the digest that the
server tells of the part is compared: its sha256 on stores that have checksums, else its ETag. Where
neither says anything (sources that were sent in parts or are encrypted with a key of one's own,
pieces of an object), the source must have the same ETag after the copy as before.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Sequence
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

from nanoset_core.errors import SourceChangedError, StorageError
from nanoset_core.storage.atomic import UNFINISHED
from nanoset_core.storage.s3 import S3Store, Upload, uploading
from nanoset_core.storage.s3_requests import bytes_part, encoded, md5_of_etag, status_of
from nanoset_core.storage.store import (
    OnJoin,
    Stored,
    changed,
    checked_name,
    damaged,
    gone,
    in_parallel,
    no_progress,
)

LEAST_BYTES = 5 << 20
"""Of every part but the last, as S3 asks for."""
MOST_BYTES = 5 << 30
"""Of any part."""
COPIED_BYTES = 1 << 30
"""Of a copied part, unless that would be too many: one request can be waited for, and is done again
after a fault.
"""
SENT_BYTES = 16 << 20
"""Of a part that is sent where none can be copied, likewise."""
MOST_PARTS = 10_000
_HEADS_AT_ONCE = 32


class JoinedRange(NamedTuple):
    """Bytes [begin, end) of one of the objects that are joined."""

    source: int
    begin: int
    end: int


def most_bytes(sizes: Sequence[int], usual: int) -> int:
    """Return the most bytes of a part, so that half of the parts of an object are enough for all of
    it.
    """
    return min(MOST_BYTES, max(usual, -(-sum(sizes) // (MOST_PARTS // 2))))


def runs_of(
    sizes: Sequence[int], *, least: int = LEAST_BYTES, most: int = MOST_BYTES
) -> list[slice]:
    """Return runs of objects, each of which can be joined at once; several where all together would
    be too many parts.

    Arguments as for `plan_parts`.
    """
    begins, parts = [0], 0
    if len(plan_parts(sizes, least=least, most=most)) > MOST_PARTS:
        for source, size in enumerate(sizes):
            needed = max(1, -(-size // most))
            if parts and parts + needed > MOST_PARTS:
                begins.append(source)
                parts = 0
            parts += needed
    return [slice(*bounds) for bounds in pairwise([*begins, len(sizes)])]


def plan_parts(
    sizes: Sequence[int], *, least: int = LEAST_BYTES, most: int = MOST_BYTES
) -> list[list[JoinedRange]]:
    """Return parts of objects of these sizes in order: each of one piece, which is copied, or of
    small ones to be sent.

    All but the last have from `least` to `most` bytes. Only objects below `least`, and what is
    taken from the next one to fill a part up, pass through the client: fewer than 2 * least bytes
    for each run of small ones.
    """
    parts: list[list[JoinedRange]] = []
    held: list[JoinedRange] = []
    missing = least
    for source, size in enumerate(sizes):
        begin = 0
        while left := size - begin:
            if not held and left >= least:
                # what stays is a part again
                take = left if left <= most else min(most, left - least)
                parts.append([JoinedRange(source, begin, begin + take)])
            else:
                take = min(left, missing)
                held.append(JoinedRange(source, begin, begin + take))
                missing -= take
                if not missing:
                    parts.append(held)
                    held, missing = [], least
            begin += take
    return [*parts, held] if held else parts


def _size(part: Sequence[JoinedRange]) -> int:
    return sum(piece.end - piece.begin for piece in part)


def _is_sent(part: Sequence[JoinedRange]) -> bool:
    """Return whether a part passes through this process."""
    return len(part) > 1 or _size(part) < LEAST_BYTES


def join(
    store: S3Store,
    name: str,
    sources: Sequence[Stored],
    sha256: Sequence[str | None] | None,
    joined: OnJoin,
) -> str | None:
    """Write an object from others, in two levels if there are too many; see `Store.compose`."""
    sizes = [source.size for source in sources]
    runs = runs_of(sizes, most=most_bytes(sizes, COPIED_BYTES))
    if len(runs) > 1:
        _join_runs(store, name, [(sources[run], sha256 and sha256[run]) for run in runs], joined)
        return None
    joining, plan = (
        Joining(store, sources, sha256, joined),
        plan_parts(sizes, most=most_bytes(sizes, COPIED_BYTES)),
    )
    joining.check_sources()
    if len(plan) <= 1 and all(map(_is_sent, plan)):
        data = b"".join(map(joining.read, plan))
        store.put(name, data)
        joined(len(data))
        return hashlib.sha256(data).hexdigest()
    try:
        joining.write(name, plan)
    except (SourceChangedError, StorageError) as error:
        # Swift copies the list of an object's parts in the place of its bytes.
        is_other_size = (
            isinstance(error, SourceChangedError)
            or status_of(error.__cause__)[1] == "EntityTooSmall"
        )
        if not is_other_size or all(md5_of_etag(source.mark) for source in sources):
            raise
        joining.report(-joining.told)
        joining.write(name, plan_parts(sizes, most=most_bytes(sizes, SENT_BYTES)), copies=False)
    return None


def _join_runs(
    store: S3Store,
    name: str,
    runs: Sequence[tuple[Sequence[Stored], Sequence[str | None] | None]],
    joined: OnJoin,
) -> None:
    """Join runs of sources under unfinished names beside `name` first, which are removed at the
    end.
    """
    folder, slash, base = checked_name(name).rpartition("/")
    start = f"{folder}{slash}{UNFINISHED}{base}-{secrets.token_hex(4)}"
    names, first = [f"{start}-{number}" for number in range(len(runs))], []
    try:
        for part, (sources, sha256) in zip(names, runs, strict=True):
            join(store, part, sources, sha256, joined)
            if (found := store.stat(part)) is None:
                raise gone(store.url(part))
            first.append(found)
        join(store, name, first, None, no_progress)
    finally:
        with contextlib.suppress(StorageError):  # `nanoset gc` knows them by their names
            in_parallel(store.delete, names)


class Joining:
    """An object that is put together of others."""

    def __init__(
        self,
        store: S3Store,
        sources: Sequence[Stored],
        sha256: Sequence[str | None] | None,
        joined: OnJoin,
    ) -> None:
        """Take arguments as `Store.compose`."""
        self._store, self._sources, self._joined = store, sources, joined
        self._sha256: Sequence[str | None] = sha256 or [None] * len(sources)
        self.told, self._telling = 0, Lock()

    def report(self, size: int) -> None:
        """Report that so many more bytes are joined."""
        with self._telling:
            self.told += size
            self._joined(size)

    def write(
        self, name: str, plan: Sequence[Sequence[JoinedRange]], *, copies: bool = True
    ) -> None:
        """Write the object of its parts, all of which pass through this process where there are to
        be no copies.

        SourceChangedError where a source is another object, or what stands there has another size
        than all sources.
        """

        def make(number: int) -> None:
            part = plan[number]
            if copies and not _is_sent(part):
                self._copy(upload, number, part[0])
            else:
                upload.send(number, bytes_part(self.read(part)))
            self.report(_size(part))

        with uploading(self._store, name, {}) as upload:
            in_parallel(make, range(len(plan)))
        found, wanted = self._store.stat(name), sum(map(_size, plan))
        if found is None or found.size != wanted:  # it may be of another process, and is left
            raise changed(
                self._store.url(name),
                f"{found and found.size} bytes",
                f"{wanted:,}, as all sources have",
            )

    def check_sources(self) -> None:
        """Refuse sources that are not those that were listed: some servers copy whatever is there,
        past its end too.
        """
        in_parallel(self._check_source, range(len(self._sources)), _HEADS_AT_ONCE)

    def read(self, part: Sequence[JoinedRange]) -> bytes:
        """Return the bytes of a part."""
        blocks = []
        for number, begin, end in part:
            source, wanted = self._sources[number], self._sha256[number]
            data = self._store.read_range(
                source.name, source.begin + begin, source.begin + end, source.mark
            )
            found = (
                hashlib.sha256(data).hexdigest()
                if wanted is not None and len(data) == source.size
                else wanted
            )
            if found != wanted:
                raise damaged(self._store.url(source.name), f"sha256 {found}", f"sha256 {wanted}")
            blocks.append(data)
        return b"".join(blocks)

    def _copy(self, upload: Upload, number: int, piece: JoinedRange) -> None:
        source, wanted = self._sources[piece.source], self._sha256[piece.source]
        url, is_whole = self._store.url(source.name), piece.end - piece.begin == source.size
        begin, end = source.begin + piece.begin, source.begin + piece.end
        with self._store.reading(source.name, source.mark):
            told = upload.copy(number, source.name, source.mark, begin, end)
        if is_whole and wanted is not None and "ChecksumSHA256" in told:
            if (found := told["ChecksumSHA256"]) != encoded(bytes.fromhex(wanted)):
                raise damaged(url, f"sha256 {found} in base64", f"sha256 {wanted}")
        elif not (is_whole and md5_of_etag(told["ETag"]) == md5_of_etag(source.mark) is not None):
            head = self._check_source(piece.source)
            is_all = piece.end - piece.begin == head.size
            if is_all and md5_of_etag(source.mark) and upload.etags_tell and head.is_digest:
                raise changed(url, f"a copy of ETag {told['ETag']}", f"ETag {source.mark}")

    def _check_source(self, number: int) -> Stored:
        """Return what the bucket says of a source, which must be the one that was listed."""
        source, wanted = self._sources[number], self._sha256[number]
        url, head = self._store.url(source.name), self._store.stat(source.name)
        if head is None:
            raise gone(url)
        if head.mark != source.mark or head.size < source.begin + source.size:
            found, expected = (f"ETag {one.mark}, {one.size:,} bytes" for one in (head, source))
            raise changed(url, found, expected)
        if (
            None not in (wanted, noted := head.sha256)
            and noted != wanted
            and head.size == source.size
        ):
            raise damaged(url, f"sha256 {noted}, as its writer noted it", f"sha256 {wanted}")
        return head
