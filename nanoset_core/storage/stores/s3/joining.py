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

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

from nanoset_core.errors import NanosetError, SourceChangedError, StorageError
from nanoset_core.rounding import ceil_division
from nanoset_core.storage.requests import SMALL_REQUESTS_AT_ONCE, TRANSFERS_AT_ONCE, in_parallel
from nanoset_core.storage.store import (
    OnJoin,
    Stored,
    changed,
    damaged,
    gone,
    no_progress,
)
from nanoset_core.storage.stores.s3.parts import MAX_PARTS, bytes_part, encoded, md5_of_etag
from nanoset_core.storage.stores.s3.requests import status_of
from nanoset_core.storage.stores.s3.store import S3Store, Upload, uploading
from nanoset_core.storage.stores.temporary_objects import temporary_objects

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
_READS_AT_ONCE = 4
"""Ranges of a part that are read at the same time, for each of several parts."""


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
    """Return how large the parts of an upload may be at most.

    To join objects, S3 copies them in parts, of which it allows 10,000. Parts usually have up to 1
    GiB, so those of an object of 20 TiB have to be larger:

        1 TiB      1 GiB (usual)
        20 TiB     4.1 GiB, so that there are 5,000 parts

    Args:
        sizes: Bytes of each object that is joined.
        usual: The size, unless there would be too many parts.

    Returns:
        `usual`, or more; at most the 5 GiB that S3 allows.
    """
    # Aim at 5,000 parts, half of what S3 allows. There will be more, since a part cannot be copied
    # from two objects, so that the last part of each object may be small.
    needed_bytes = ceil_division(sum(sizes), MAX_PARTS // 2)
    return min(MOST_BYTES, max(usual, needed_bytes))


def runs_of(
    sizes: Sequence[int], *, least: int = LEAST_BYTES, most: int = MOST_BYTES
) -> list[slice]:
    """Divide objects that are joined into runs of consecutive objects, each small enough to upload.

    To join objects, S3 copies them as parts of an upload, and an upload has at most 10,000 parts
    (MAX_PARTS). For example, 25,000 objects of 5 MiB are that many parts. So they are joined in
    three runs, and then the three results are joined:

        [slice(0, 10000), slice(10000, 20000), slice(20000, 25000)]

    Small objects would share a part, but each is counted as a part, which is simpler. So a run may
    have fewer parts than it could.

    Args:
        sizes: Bytes of each object.
        least: Smallest size of a part of an upload. Smaller objects share a part.
        most: Largest size of a part. Larger objects become several parts.

    Returns:
        Slices of `sizes`; only one if a single upload can join all objects.
    """
    n_parts = len(plan_parts(sizes, least=least, most=most))
    if n_parts <= MAX_PARTS:
        return [slice(0, len(sizes))]

    starts = [0]
    n_run_parts = 0
    for number, size in enumerate(sizes):
        n_object_parts = max(1, ceil_division(size, most))  # at least 1, also if parts are shared
        if n_run_parts and n_run_parts + n_object_parts > MAX_PARTS:
            starts.append(number)
            n_run_parts = 0
        n_run_parts += n_object_parts
    bounds = pairwise([*starts, len(sizes)])
    return [slice(start, stop) for start, stop in bounds]


def plan_parts(
    sizes: Sequence[int], *, least: int = LEAST_BYTES, most: int = MOST_BYTES
) -> list[list[JoinedRange]]:
    """Divide the bytes of concatenated objects, the sources, into the parts of an upload.

    S3 joins parts to one object. It can copy a part from a source by itself, but each part except
    the last one must have 5 MiB. Sources that are smaller are read and sent, together with bytes of
    the next ones. For example, for two sources of 4 and 50 bytes, `least` = 10 and `most` = 35:

        part 0    4 bytes of source 0 and 6 of source 1    sent
        part 1    the next 34 bytes of source 1            copied; 35 would leave less than 10
        part 2    the last 10 bytes of source 1            copied

    Args:
        sizes: Bytes of each source.
        least: Minimum size of a part, except the last one.
        most: Maximum size of a part.

    Returns:
        The ranges of each part, in order.
    """
    parts: list[list[JoinedRange]] = []
    sent_ranges: list[JoinedRange] = []  # the part that is being filled from several sources
    n_sent_bytes = 0
    for source, size in enumerate(sizes):
        begin = 0
        while begin < size:
            if sent_ranges or size - begin < least:
                # Fill the part that is sent until it is large enough.
                end = min(begin + least - n_sent_bytes, size)
                sent_ranges.append(JoinedRange(source, begin, end))
                n_sent_bytes += end - begin
                if n_sent_bytes == least:
                    parts.append(sent_ranges)
                    sent_ranges = []
                    n_sent_bytes = 0
            else:
                # Copy all that remains of the source, or as much that the rest is a part, too.
                end = size
                if size - begin > most:
                    end = min(begin + most, size - least)  # min(6 + 35, 50 - 10) = 40
                parts.append([JoinedRange(source, begin, end)])
            begin = end
    if sent_ranges:
        parts.append(sent_ranges)
    return parts


def _size(part: Sequence[JoinedRange]) -> int:
    """Return the bytes of a part."""
    return sum(piece.end - piece.begin for piece in part)


class _ObjectRange(NamedTuple):
    """Consecutive bytes of an object."""

    begin: int
    """Position of the first byte."""
    end: int
    """Position after the last byte."""


def _range_in_object(source: Stored, joined: JoinedRange) -> _ObjectRange:
    """Return where a range of a source is in the object that contains the source.

    A source is an object, or a range of one. If it is the bytes [1000, 1080) of `all.bin`, then its
    bytes [10, 30) are the bytes [1010, 1030) of `all.bin`.

    Args:
        source: One of the objects, or ranges of objects, that are joined.
        joined: The range, counted from the start of the source.
    """
    return _ObjectRange(source.begin + joined.begin, source.begin + joined.end)


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

    The bucket does most of the work, so that the bytes need not be sent to this machine and back:

        a few small sources     read them, and write the new object by one request
        up to 10,000 parts      the bucket copies the sources as parts of the new object
        more                    join groups of sources first, and then the results

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
    slices = runs_of(sizes, least=LEAST_BYTES, most=most)
    if len(slices) > 1:
        # These are too many sources for one upload: join runs of them first, and then the results.
        runs = [_Run(sources[run], sha256[run] if sha256 else None) for run in slices]
        _join_runs(store, name, runs, joined)
        return None

    joining = Joining(store, sources, sha256, joined)
    plan = plan_parts(sizes, least=LEAST_BYTES, most=most)
    is_small = len(plan) <= 1 and all(_is_sent(part) for part in plan)
    # A source is compared with its sha256 when it is read, which empty ones never are.
    has_all_sha256 = sha256 is not None and None not in sha256
    is_compared_when_read = is_small and has_all_sha256 and all(sizes)
    if not is_compared_when_read:
        joining.check_sources()
    if is_small:
        return joining.write_at_once(name, plan)
    # Let the bucket copy the sources. If it has copied something else, read and send their bytes.
    try:
        joining.write(name, plan)
    except (SourceChangedError, StorageError) as error:
        if not _may_have_copied_lists(error, sources):
            raise
        joining.write_without_copies(name)
    return None


def _may_have_copied_lists(error: NanosetError, sources: Sequence[Stored]) -> bool:
    """Return whether joining objects may have failed because of a fault of OpenStack Swift.

    Swift is a server with S3's protocol. If an object was uploaded in parts, Swift stores a list of
    these parts. When it has to copy such an object, it copies the list instead. So the copy is too
    small, and one of two errors follows:

        SourceChangedError    the copies have other sizes than the objects
        EntityTooSmall        the server's own error: a copy is smaller than S3 allows

    Args:
        error: Why joining the objects failed.
        sources: The objects.
    """
    # The mark of an object is its ETag, which is an MD5 if the object was not uploaded in parts.
    was_any_sent_in_parts = any(md5_of_etag(source.mark) is None for source in sources)
    if not was_any_sent_in_parts:
        return False
    _status, server_error = status_of(error.__cause__)
    return isinstance(error, SourceChangedError) or server_error == "EntityTooSmall"


def _join_runs(store: S3Store, name: str, runs: Sequence[_Run], joined: OnJoin) -> None:
    """Join objects that are too many for one upload: first groups of them, and then the results.

    S3 limits how many parts an upload may have. So groups of objects, runs, are joined to temporary
    objects, each by an upload of its own. Then these are joined:

        a, b, c, …    →    temporary object 0
        x, y, z, …    →    temporary object 1    →    the new object

    The temporary objects are deleted at the end, also after an error.

    Args:
        store: The bucket.
        name: Name of the new object.
        runs: The groups, in order. Each is small enough for one upload; `sources` are its objects.
        joined: Receives the progress of the first step, which takes almost all of the time.
    """
    with temporary_objects(store, name, len(runs)) as temporary_names:
        joined_runs: list[Stored] = []
        for temporary_name, run in zip(temporary_names, runs, strict=True):
            joined_runs.append(_joined_run(store, temporary_name, run, joined))
        # The bucket has joined the runs, so their sha256 is not known here.
        join(store, name, joined_runs, sha256=None, joined=no_progress)


def _joined_run(store: S3Store, temporary_name: str, run: _Run, joined: OnJoin) -> Stored:
    """Join the objects of one run to a temporary object, and return its description.

    Args:
        store: The bucket.
        temporary_name: Name of the temporary object.
        run: The objects. They are few enough for one upload.
        joined: Receives the progress.

    Raises:
        MissingError: The temporary object was deleted right after it was written.
    """
    join(store, temporary_name, run.sources, run.sha256, joined)
    stored = store.stat(temporary_name)
    if stored is None:
        raise gone(store.url(temporary_name))
    return stored


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
        """Report that more bytes were joined, for a progress bar. Several threads may do so at
        once.

        Args:
            size: Number of bytes; negative if joining starts again.
        """
        with self._report_lock:
            self.n_reported += size
            self._joined(size)

    def write_at_once(self, name: str, plan: Sequence[Sequence[JoinedRange]]) -> str:
        """Read all bytes of small objects that are joined, and write the new object by one request.

        An upload in parts would take at least three requests.

        Args:
            name: Name of the new object.
            plan: For each part of the new object, the ranges of the other objects that it consists
                of.

        Returns:
            The sha256 of the new object as hex.
        """
        data = b"".join(self.read(part) for part in plan)
        self._store.put(name, data)
        self.report(len(data))  # as joined, for the progress
        return hashlib.sha256(data).hexdigest()

    def write_without_copies(self, name: str) -> None:
        """Write the object again, by reading and sending the bytes of all objects that are joined.

        Usually the bucket copies them itself, in parts of up to 1 GiB. This is called if it has
        failed to do so.

        Args:
            name: Name of the new object.

        Raises:
            SourceChangedError: A source was replaced after it was listed.
            StorageError: A source has other bytes than expected, or the object cannot be written.
        """
        # Let the progress bar start again: take back what was reported for the failed attempt.
        self.report(-self.n_reported)

        # Here a part is in memory while it is sent. So a part has 16 MiB (SENT_BYTES). It has more
        # only if the upload would have more parts than S3 allows.
        sizes = [source.size for source in self._sources]
        part_bytes = most_bytes(sizes, usual=SENT_BYTES)
        plan = plan_parts(sizes, least=LEAST_BYTES, most=part_bytes)
        self.write(name, plan, copies=False)

    def write(
        self, name: str, plan: Sequence[Sequence[JoinedRange]], *, copies: bool = True
    ) -> None:
        """Write the new object by an upload in parts, several of them at the same time.

        For most parts, the bucket copies a range of one of the objects. By the rules of S3, it
        cannot copy less than 5 MiB. Such small ranges are put together to a part that is read and
        sent:

            objects    |──── 64 MiB ────|─ 1 MiB ─|─ 2 MiB ─|──── 64 MiB ────|
            parts      |     copied     |     read and sent                    |

        Args:
            name: Name of the object.
            plan: For each part, the ranges of the objects that it consists of: a single range if
                the bucket copies it.
            copies: Whether the bucket copies the parts that it can. False: this process reads and
                sends all bytes.

        Raises:
            SourceChangedError: An object was replaced, or the new one has another size than the
                plan.
            StorageError: An object or a copy has other bytes than expected.
        """
        with uploading(self._store, name, {}) as upload:

            def write_part(number: int) -> None:
                """Copy or send one of the parts, and report its bytes as joined."""
                part = plan[number]
                if copies and not _is_sent(part):
                    [copied_range] = part  # the bucket copies a range of a single object
                    self._copy(upload, number, copied_range)
                else:
                    upload.send(number, bytes_part(self.read(part)))
                self.report(_size(part))

            in_parallel(write_part, range(len(plan)), TRANSFERS_AT_ONCE)
        # The bucket joins the parts at the end of the block.
        self._check_size(name, expected_size=sum(_size(part) for part in plan))

    def _check_size(self, name: str, *, expected_size: int) -> None:
        """Check that the new object has as many bytes as all objects that were joined.

        An object of another size is not deleted, since another process may have replaced it.

        Args:
            name: Name of the new object.
            expected_size: Sum of the sizes.

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
        in_parallel(self._check_source, range(len(self._sources)), SMALL_REQUESTS_AT_ONCE)

    def read(self, part: Sequence[JoinedRange]) -> bytes:
        """Read the bytes of a part of the new object, from one or several of its sources.

        Args:
            part: Ranges of the sources, in order.

        Returns:
            The bytes of all ranges, concatenated.

        Raises:
            StorageError: A source that was read as a whole has another sha256 than expected.
            SourceChangedError: A source was replaced.
        """
        return b"".join(in_parallel(self._read_range, part, _READS_AT_ONCE))

    def _read_range(self, sent_range: JoinedRange) -> bytes:
        """Read a range of a source, and compare its sha256 if it is all of the source.

        Args:
            sent_range: The range.

        Raises:
            StorageError: The source has another sha256 than expected.
            SourceChangedError: It was replaced.
        """
        source = self._sources[sent_range.source]
        begin, end = _range_in_object(source, sent_range)
        data = self._store.read_range(source.name, begin, end, source.mark)

        # The expected sha256 is that of a whole source.
        expected_sha256 = self._sha256[sent_range.source]
        is_whole_source = len(data) == source.size
        if expected_sha256 is not None and is_whole_source:
            sha256 = hashlib.sha256(data).hexdigest()
            if sha256 != expected_sha256:
                raise damaged(
                    self._store.url(source.name),
                    found=f"sha256 {sha256}",
                    expected=f"sha256 {expected_sha256}",
                )
        return data

    def _copy(self, upload: Upload, number: int, copied_range: JoinedRange) -> None:
        """Let the bucket copy a part from one source, and check that it copied the right bytes.

        Args:
            upload: The upload of the new object.
            number: Number of the part, from 0.
            copied_range: The range of a source that becomes the part.

        Raises:
            StorageError: The copy has another sha256 than expected.
            SourceChangedError: The source was replaced.
        """
        source = self._sources[copied_range.source]
        begin, end = _range_in_object(source, copied_range)
        with self._store.reading(source.name, source.mark):  # raises the error if it was replaced
            copy = upload.copy(number, source.name, source.mark, begin, end)
        self._check_copy(copied_range, copy, etags_are_md5=upload.etags_are_md5)

    def _check_copy(
        self, copied_range: JoinedRange, copy: Mapping[str, Any], *, etags_are_md5: bool
    ) -> None:
        """Check that the bucket has copied the right bytes, by the best evidence that it gives.

        A part of the new object is copied from another object, its source. In this order:

            both sha256 are known         they must be equal
            equal MD5s                    the copy is right
            neither                       the source must still be the version that was listed
            different MD5s of all bytes   the copy is wrong

        Args:
            copied_range: The range of a source that was copied.
            copy: What the bucket says about the copy: its `ETag` and perhaps `ChecksumSHA256`.
            etags_are_md5: Whether the ETag of the copy is the MD5 of its bytes. It is in most
                buckets, unless they encrypt the bytes with a key of the customer.

        Raises:
            StorageError: The copy has another sha256 than expected.
            SourceChangedError: The source was replaced.
        """
        source = self._sources[copied_range.source]
        expected_sha256 = self._sha256[copied_range.source]
        n_copied_bytes = copied_range.end - copied_range.begin
        is_whole_source = n_copied_bytes == source.size

        # The best evidence: sha256. It is known for a whole source only.
        if is_whole_source and expected_sha256 is not None and "ChecksumSHA256" in copy:
            self._check_sha256_of_copy(source, copy["ChecksumSHA256"], expected_sha256)
            return

        # The next best: the ETags of the source and the copy are the same MD5.
        source_md5 = md5_of_etag(source.mark)
        if is_whole_source and source_md5 is not None and md5_of_etag(copy["ETag"]) == source_md5:
            return

        # The least: the source has not been replaced since it was listed.
        source_object = self._check_source(copied_range.source)

        # Different ETags prove that the server copied other bytes, if both are MD5 digests of the
        # same bytes. The ETag of the source is that of its object, of which it may be a range.
        is_whole_object = n_copied_bytes == source_object.size
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
        """Check that the copy of a whole object has the expected sha256.

        S3 writes a sha256 in base64 ("n4bQgYhM..."), and this program as hex ("9f86d081..."). Both
        are the same 32 bytes.

        Args:
            source: The object.
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
        """Check that an object that is joined is still the one that was listed.

        Another process may have replaced it since.

        Args:
            number: Index of the object.

        Returns:
            The object as the bucket describes it now.

        Raises:
            MissingError: It does not exist.
            SourceChangedError: It has another ETag (the name of its version), or fewer bytes.
            StorageError: The bucket stores another sha256 with it than expected.
        """
        source = self._sources[number]  # as it was listed; perhaps a range of an object
        url = self._store.url(source.name)
        present = self._store.stat(source.name)
        if present is None:
            raise gone(url)

        source_end = source.begin + source.size
        if present.mark != source.mark or present.size < source_end:
            raise changed(
                url,
                found=f"ETag {present.mark}, {present.size:,} bytes",
                expected=f"ETag {source.mark}, {source.size:,} bytes",
            )

        expected_sha256 = self._sha256[number]
        is_whole_object = present.size == source.size
        if is_whole_object and _differs(present.sha256, expected_sha256):
            raise damaged(
                url,
                found=f"sha256 {present.sha256}, as its writer noted it",
                expected=f"sha256 {expected_sha256}",
            )
        return present


def _differs(sha256: str | None, other_sha256: str | None) -> bool:
    """Return whether two checksums differ, which is not known if one of them is None."""
    return sha256 is not None and other_sha256 is not None and sha256 != other_sha256
