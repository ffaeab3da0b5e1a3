"""Concatenate objects in a bucket: plan which parts the bucket copies, and check each copy.

The bucket copies large sources itself, as parts of a multipart upload. A part of such an upload has
at least 5 MiB, so small sources are read, and sent together as one part.

The bucket is asked to copy a source only if it still has the ETag that was listed, but not every
server obeys this condition. So each copy is compared with its source:

- by the sha256 of the part, if the server reports one and that of the source is known;
- otherwise by the ETag, if both ETags are MD5 digests;
- otherwise (the source was sent in parts, is encrypted with a key of the customer, or is copied
  only in part) the source must have the same ETag after the copy as before it.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

from nanoset_core.errors import NanosetError, SourceChangedError, StorageError
from nanoset_core.storage.atomic import UNFINISHED
from nanoset_core.storage.s3 import S3Store, Upload, uploading
from nanoset_core.storage.s3_parts import MAX_PARTS, bytes_part, encoded, md5_of_etag
from nanoset_core.storage.s3_requests import status_of
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
"""Minimum size of a part, except the last one; a limit of S3."""
MOST_BYTES = 5 << 30
"""Maximum size of a part; a limit of S3."""
COPIED_BYTES = 1 << 30
"""Usual maximum size of a part that the bucket copies, so that a request ends in reasonable time.

It is exceeded if an object would have too many parts otherwise.
"""
SENT_BYTES = 16 << 20
"""The same for a part that is sent, if the bucket cannot copy the sources."""
_HEADS_AT_ONCE = 32
"""Sources that are looked up at the same time."""


class JoinedRange(NamedTuple):
    """A range of bytes of one of the sources that are joined."""

    source: int
    """Index of the source."""
    begin: int
    """Position of the first byte in the source."""
    end: int
    """Position after the last byte in the source."""


class _Run(NamedTuple):
    """Consecutive sources that are few enough to be joined by one upload."""

    sources: Sequence[Stored]
    sha256: Sequence[str | None] | None
    """Expected sha256 of each source as hex, or None; None if no sha256 is known."""


def most_bytes(sizes: Sequence[int], usual: int) -> int:
    """Return how large a part may be if an object is written as the concatenation of others.

    The object is uploaded in parts, and S3 allows 10,000 of them. The parts of a large object are
    larger than usual, so that 5,000 of them could hold its bytes. The others are a reserve, since
    the last part of each source may be small.

    Args:
        sizes: Bytes of each source, which is an object that becomes a range of the new one.
        usual: Maximum size of a part of an object that is not large.
    """
    half_of_parts = MAX_PARTS // 2
    needed_bytes = _divide_up(sum(sizes), half_of_parts)
    largest_part_of_s3 = MOST_BYTES
    return min(largest_part_of_s3, max(usual, needed_bytes))


def _divide_up(number: int, divisor: int) -> int:
    """Return the quotient of two integers, rounded up."""
    return -(-number // divisor)


def runs_of(
    sizes: Sequence[int], *, least: int = LEAST_BYTES, most: int = MOST_BYTES
) -> list[slice]:
    """Divide the objects that are to be joined into runs, each of which needs a single upload.

    An upload consists of parts, and S3 allows `MAX_PARTS` of them. A large source becomes several
    parts; several small sources share one.

    Args:
        sizes: Bytes of each source, which is an object that is to be joined with the others.
        least: Minimum size of a part.
        most: Maximum size of a part.

    Returns:
        The sources of each run, as slices of `sizes`. There is one run if a single upload is enough
        for all sources.
    """
    if len(plan_parts(sizes, least=least, most=most)) <= MAX_PARTS:
        return [slice(0, len(sizes))]
    bounds = pairwise([*_run_starts(sizes, most), len(sizes)])
    return [slice(start, stop) for start, stop in bounds]


def _run_starts(sizes: Sequence[int], most: int) -> list[int]:
    """Return the first source of each run, so that the sources of a run fit into one upload.

    Every source is counted with a part of its own. As small sources share parts, a run may need
    fewer than were counted, but never more.

    Args:
        sizes: Bytes of each source.
        most: Maximum size of a part.
    """
    run_starts = [0]
    n_parts = 0  # of the current run, at most
    for source, size in enumerate(sizes):
        n_source_parts = max(1, _divide_up(size, most))
        if n_parts and n_parts + n_source_parts > MAX_PARTS:
            run_starts.append(source)
            n_parts = 0
        n_parts += n_source_parts
    return run_starts


def plan_parts(
    sizes: Sequence[int], *, least: int = LEAST_BYTES, most: int = MOST_BYTES
) -> list[list[JoinedRange]]:
    """Divide the bytes of concatenated objects, the sources, into the parts of an upload.

    A part is either one range of a large source, which the bucket copies, or it is filled with
    ranges of several sources until it has `least` bytes, and sent. So what is sent are sources
    smaller than `least`, and the bytes of the next source that fill the part up. For example, with
    `least=10` and `most=35`, the sizes 4, 50 become the parts

        4 bytes of source 0 and 6 of source 1 (sent), 34 of source 1 (copied), 10 of it (copied)

    Args:
        sizes: Bytes of each source.
        least: Minimum size of a part, except the last one.
        most: Maximum size of a part.

    Returns:
        The ranges of each part, in order.
    """
    plan = _PartPlan(least, most)
    for source, size in enumerate(sizes):
        begin = 0
        while begin < size:
            begin = plan.add(source, begin, size)
    return plan.parts()


class _PartPlan:
    """The parts of an upload, to which the bytes of the sources are added in order.

    Args:
        least: Minimum size of a part, except the last one.
        most: Maximum size of a part.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._complete_parts: list[list[JoinedRange]] = []
        self._small_ranges: list[JoinedRange] = []
        """The part that is being filled."""
        self._missing_bytes = least
        """Bytes until this part has `least`."""

    def parts(self) -> list[list[JoinedRange]]:
        """Return the ranges of each part, in order."""
        if self._small_ranges:
            return [*self._complete_parts, self._small_ranges]
        return self._complete_parts

    def add(self, source: int, begin: int, end: int) -> int:
        """Add the next bytes of a source to a part.

        Args:
            source: Index of the source.
            begin: Position of the first byte that is in no part yet.
            end: Size of the source.

        Returns:
            Position after the bytes that were added.
        """
        can_be_copied = not self._small_ranges and end - begin >= self._least
        if can_be_copied:
            return self._add_copied(source, begin, end)
        return self._add_sent(source, begin, end)

    def _add_copied(self, source: int, begin: int, end: int) -> int:
        """Add a part that the bucket copies, and return where it stops in its source."""
        stop = end
        if end - begin > self._most:
            # Leave at least `least` bytes, so that the rest can be copied, too.
            stop = min(begin + self._most, end - self._least)
        self._complete_parts.append([JoinedRange(source, begin, stop)])
        return stop

    def _add_sent(self, source: int, begin: int, end: int) -> int:
        """Add bytes to the part that is being filled, and return where they stop."""
        stop = min(begin + self._missing_bytes, end)
        self._small_ranges.append(JoinedRange(source, begin, stop))
        self._missing_bytes -= stop - begin
        if self._missing_bytes == 0:
            self._complete_parts.append(self._small_ranges)
            self._small_ranges = []
            self._missing_bytes = self._least
        return stop


def _size(part: Sequence[JoinedRange]) -> int:
    """Return the bytes of a part."""
    return sum(piece.end - piece.begin for piece in part)


def _is_sent(part: Sequence[JoinedRange]) -> bool:
    """Return whether this process has to read and send a part, since the bucket cannot copy it.

    The bucket can only copy a single range of another object, of at least 5 MiB.
    """
    return len(part) > 1 or _size(part) < LEAST_BYTES


def join(
    store: S3Store,
    name: str,
    sources: Sequence[Stored],
    sha256: Sequence[str | None] | None,
    joined: OnJoin,
) -> str | None:
    """Write an object that is the concatenation of other objects of a bucket, the sources.

    If there are too many sources for one upload, runs of them are joined first, and then the
    results.

    Args:
        store: The bucket.
        name: Name of the new object.
        sources: Objects of the bucket, or ranges of them, in order.
        sha256: Expected sha256 of each source as hex, or None for those that are not known; None if
            none is known.
        joined: Receives the progress.

    Returns:
        The sha256 of the new object as hex, if its bytes have passed through this process.

    Raises:
        SourceChangedError: A source was replaced after it was listed.
        StorageError: A source has other bytes than expected, or the object cannot be written.
        MissingError: A source does not exist.
    """
    sizes = [source.size for source in sources]
    most = most_bytes(sizes, COPIED_BYTES)
    slices = runs_of(sizes, most=most)
    if len(slices) > 1:
        runs = [_Run(sources[run], sha256[run] if sha256 else None) for run in slices]
        _join_runs(store, name, runs, joined)
        return None

    joining = Joining(store, sources, sha256, joined)
    joining.check_sources()
    plan = plan_parts(sizes, most=most)
    is_small = len(plan) <= 1 and all(_is_sent(part) for part in plan)
    if is_small:
        return joining.write_at_once(name, plan)
    try:
        joining.write(name, plan)
    except (SourceChangedError, StorageError) as error:
        if not _may_have_copied_lists(error, sources):
            raise
        joining.write_without_copies(name)
    return None


def _may_have_copied_lists(error: NanosetError, sources: Sequence[Stored]) -> bool:
    """Return whether a bucket may have copied something else than the bytes of the sources.

    If a source was sent in parts, OpenStack Swift copies the list of its parts instead of its
    bytes, so that the copy has another size.

    Args:
        error: Why joining the sources failed.
        sources: The sources.
    """
    is_other_size = isinstance(error, SourceChangedError)
    _, code = status_of(error.__cause__)
    is_too_small = code == "EntityTooSmall"  # The copied list is smaller than a part may be.
    was_any_sent_in_parts = any(md5_of_etag(source.mark) is None for source in sources)
    return (is_other_size or is_too_small) and was_any_sent_in_parts


def _join_runs(store: S3Store, name: str, runs: Sequence[_Run], joined: OnJoin) -> None:
    """Join many objects in two steps: runs of them to temporary objects, then these to one object.

    The temporary objects are stored next to the object. They are deleted at the end, also after an
    error.

    Args:
        store: The bucket.
        name: Name of the new object.
        runs: The objects to be joined, in order.
        joined: Receives the progress of the first step, which takes almost all of the time.
    """
    folder, slash, base = checked_name(name).rpartition("/")
    prefix = f"{folder}{slash}{UNFINISHED}{base}-{secrets.token_hex(4)}"
    temporary_names = [f"{prefix}-{number}" for number in range(len(runs))]
    joined_runs: list[Stored] = []
    try:
        for temporary_name, run in zip(temporary_names, runs, strict=True):
            join(store, temporary_name, run.sources, run.sha256, joined)
            stored = store.stat(temporary_name)
            if stored is None:
                raise gone(store.url(temporary_name))
            joined_runs.append(stored)
        join(store, name, joined_runs, None, no_progress)
    finally:
        # If they cannot be deleted now, `nanoset gc` recognises them by their names.
        with contextlib.suppress(StorageError):
            in_parallel(store.delete, temporary_names)


class Joining:
    """Writes one object that is the concatenation of other objects, its sources."""

    def __init__(
        self,
        store: S3Store,
        sources: Sequence[Stored],
        sha256: Sequence[str | None] | None,
        joined: OnJoin,
    ) -> None:
        """Prepare to write an object.

        Args:
            store: The bucket.
            sources: Objects of the bucket, or ranges of them, in order.
            sha256: Expected sha256 of each source as hex, or None for those that are not known.
            joined: Receives the progress.
        """
        self._store = store
        self._sources = sources
        self._sha256: Sequence[str | None] = sha256 or [None] * len(sources)
        self._joined = joined
        self.n_reported = 0
        """Bytes that were reported as joined."""
        self._report_lock = Lock()

    def report(self, size: int) -> None:
        """Report that more bytes were joined.

        Args:
            size: Number of bytes; negative if joining starts again.
        """
        with self._report_lock:
            self.n_reported += size
            self._joined(size)

    def write_at_once(self, name: str, plan: Sequence[Sequence[JoinedRange]]) -> str:
        """Write a small object by one request, from sources that this process reads.

        Args:
            name: Name of the object.
            plan: The ranges of each part.

        Returns:
            The sha256 of the object as hex.
        """
        data = b"".join(self.read(part) for part in plan)
        self._store.put(name, data)
        self._joined(len(data))
        return hashlib.sha256(data).hexdigest()

    def write_without_copies(self, name: str) -> None:
        """Write the object again after the bucket could not copy its sources.

        The progress that was reported is taken back. The bytes of all sources are read and sent.
        """
        self.report(-self.n_reported)
        sizes = [source.size for source in self._sources]
        plan = plan_parts(sizes, most=most_bytes(sizes, SENT_BYTES))
        self.write(name, plan, copies=False)

    def write(
        self, name: str, plan: Sequence[Sequence[JoinedRange]], *, copies: bool = True
    ) -> None:
        """Write the object in parts, several at the same time.

        Args:
            name: Name of the object.
            plan: The ranges of each part.
            copies: Whether the bucket copies large parts; False: this process sends all bytes.

        Raises:
            SourceChangedError: A source was replaced, or the new object has another size than the
                plan.
            StorageError: A source or a copy has other bytes than expected.
        """
        with uploading(self._store, name, {}) as upload:

            def make_part(number: int) -> None:
                """Write one of the parts, and report it."""
                ranges = plan[number]
                if copies and not _is_sent(ranges):
                    [copied_range] = ranges  # a part that is copied has a single source
                    self._copy(upload, number, copied_range)
                else:
                    upload.send(number, bytes_part(self.read(ranges)))
                self.report(_size(ranges))

            in_parallel(make_part, range(len(plan)))
        self._check_size(name, expected_size=sum(_size(part) for part in plan))

    def _check_size(self, name: str, *, expected_size: int) -> None:
        """Check that the object that was written has the bytes of all sources.

        An object of another size is not deleted, since another process may have replaced it.

        Raises:
            SourceChangedError: It has another size, or does not exist.
        """
        stored = self._store.stat(name)
        if stored is None or stored.size != expected_size:
            raise changed(
                self._store.url(name),
                found="no object" if stored is None else f"{stored.size} bytes",
                expected=f"{expected_size:,}, as all sources have",
            )

    def check_sources(self) -> None:
        """Check that each source is still the object that was listed, with the expected sha256.

        This comes before the bucket copies anything, since some servers copy whatever object now
        has the name of the source, and even beyond its end.

        Raises:
            SourceChangedError: A source was replaced.
            MissingError: A source does not exist.
            StorageError: The bucket stores another sha256 with a source than expected.
        """
        in_parallel(self._check_source, range(len(self._sources)), _HEADS_AT_ONCE)

    def read(self, part: Sequence[JoinedRange]) -> bytes:
        """Read and return the bytes of a part of the new object, from one or several sources.

        Raises:
            StorageError: A source that was read as a whole has another sha256 than expected.
            SourceChangedError: A source was replaced.
        """
        blocks: list[bytes] = []
        for piece in part:
            source = self._sources[piece.source]
            expected_sha256 = self._sha256[piece.source]
            begin = source.begin + piece.begin
            end = source.begin + piece.end
            data = self._store.read_range(source.name, begin, end, source.mark)
            if expected_sha256 is not None and len(data) == source.size:
                sha256 = hashlib.sha256(data).hexdigest()
                if sha256 != expected_sha256:
                    raise damaged(
                        self._store.url(source.name),
                        found=f"sha256 {sha256}",
                        expected=f"sha256 {expected_sha256}",
                    )
            blocks.append(data)
        return b"".join(blocks)

    def _copy(self, upload: Upload, number: int, copied_range: JoinedRange) -> None:
        """Let the bucket copy a part from one source, and check that it copied the right bytes.

        Args:
            upload: The upload of the object.
            number: Number of the part, from 0.
            copied_range: The range of a source that becomes the part.

        Raises:
            StorageError: The copy has another sha256 than expected.
            SourceChangedError: The source was replaced.
        """
        # A source may itself be a range of an object: count from the start of the object.
        source = self._sources[copied_range.source]
        begin_in_object = source.begin + copied_range.begin
        end_in_object = source.begin + copied_range.end

        # Turn the bucket's answer that the object is missing or was replaced into an error.
        with self._store.reading(source.name, source.mark):
            copy = upload.copy(number, source.name, source.mark, begin_in_object, end_in_object)
        self._check_copy(copied_range, copy, etags_are_md5=upload.etags_are_md5)

    def _check_copy(
        self, piece: JoinedRange, copy: Mapping[str, Any], *, etags_are_md5: bool
    ) -> None:
        """Check that the bucket has copied the bytes of a source, by the best evidence that it has.

        This is the sha256 of the part, or equal MD5 digests as ETags, or at least that the source
        was not replaced.

        Args:
            piece: The range of a source that was copied.
            copy: What the bucket says about the copy: its `ETag` and perhaps `ChecksumSHA256`.
            etags_are_md5: Whether the ETag of the copy is the MD5 of its bytes.

        Raises:
            StorageError: The copy has another sha256 than expected.
            SourceChangedError: The source was replaced.
        """
        source = self._sources[piece.source]
        expected_sha256 = self._sha256[piece.source]
        is_whole_source = piece.end - piece.begin == source.size

        # The best evidence: sha256. It is known for a whole source only.
        if is_whole_source and expected_sha256 is not None and "ChecksumSHA256" in copy:
            self._check_sha256_of_copy(source, copy["ChecksumSHA256"], expected_sha256)
            return

        # The next best: the ETags of the source and the copy are the same MD5.
        source_md5 = md5_of_etag(source.mark)
        if is_whole_source and source_md5 is not None and md5_of_etag(copy["ETag"]) == source_md5:
            return

        # Otherwise the source must be the object that was listed. A source may be a range of an
        # object, whose ETag is that of all its bytes. If all of them were copied, and both ETags
        # are MD5, but differ, then the server copied other bytes.
        source_object = self._check_source(piece.source)
        is_whole_object = piece.end - piece.begin == source_object.size
        source_has_md5 = source_md5 is not None and source_object.is_digest
        if is_whole_object and source_has_md5 and etags_are_md5:
            raise changed(
                self._store.url(source.name),
                found=f"a copy of ETag {copy['ETag']}",
                expected=f"ETag {source.mark}",
            )

    def _check_sha256_of_copy(
        self, source: Stored, copied_sha256: str, expected_sha256: str
    ) -> None:
        """Check that the copy of a whole source has the expected sha256.

        Args:
            source: The source.
            copied_sha256: The sha256 of the copy in base64.
            expected_sha256: The expected one as hex.

        Raises:
            StorageError: It has another one.
        """
        if copied_sha256 != encoded(bytes.fromhex(expected_sha256)):
            raise damaged(
                self._store.url(source.name),
                found=f"sha256 {copied_sha256} in base64",
                expected=f"sha256 {expected_sha256}",
            )

    def _check_source(self, number: int) -> Stored:
        """Check that a source is still the object that was listed, with the expected sha256.

        Args:
            number: Index of the source.

        Returns:
            The object as the bucket describes it now.

        Raises:
            MissingError: The source does not exist.
            SourceChangedError: It has another ETag, or fewer bytes.
            StorageError: The bucket stores another sha256 with it than expected.
        """
        source = self._sources[number]
        expected_sha256 = self._sha256[number]
        url = self._store.url(source.name)
        head = self._store.stat(source.name)
        if head is None:
            raise gone(url)

        if head.mark != source.mark or head.size < source.begin + source.size:
            raise changed(
                url,
                found=f"ETag {head.mark}, {head.size:,} bytes",
                expected=f"ETag {source.mark}, {source.size:,} bytes",
            )

        # The stored sha256 is that of the whole object, so it says nothing about a range of it.
        is_whole_object = head.size == source.size
        is_known = expected_sha256 is not None and head.sha256 is not None
        if is_whole_object and is_known and head.sha256 != expected_sha256:
            raise damaged(
                url,
                found=f"sha256 {head.sha256}, as its writer noted it",
                expected=f"sha256 {expected_sha256}",
            )
        return head
