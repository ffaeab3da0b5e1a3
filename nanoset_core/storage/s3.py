"""A store that is a place in a bucket: objects are read by ranges, written whole and checked, never half there."""

from __future__ import annotations

import contextlib
import hashlib
import io
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from nanoset_core.errors import MissingError, ObjectExistsError, StorageError
from nanoset_core.storage.atomic import atomic_file
from nanoset_core.storage.compose import copied_bytes, plan_parts, runs_of, sent_bytes
from nanoset_core.storage.location import S3Place
from nanoset_core.storage.pieces import PieceCheck, PieceDigest
from nanoset_core.storage.s3_digests import (
    MULTIPART_BYTES,
    SHA256,
    LocalDigests,
    digests_of,
    digests_of_bytes,
    etag_of,
    etag_of_bytes,
    noted_sha256,
)
from nanoset_core.storage.s3_joining import Joining, OtherBytesError
from nanoset_core.storage.s3_requests import (
    DamagedTransferError,
    client,
    is_missing,
    persist,
    send,
    status_of,
    unless_missing,
    whole,
)
from nanoset_core.storage.s3_uploads import StreamDigests, Upload, parts_of, send_stream
from nanoset_core.storage.scratch import UNFINISHED
from nanoset_core.storage.store import THREADS, Joined, Store, Stored, changed, checked_name, in_parallel, unheard

R = TypeVar("R")
RANGE_BYTES = 8 << 20
_ABOUT_OBJECT = ("ContentLength", "ETag", "LastModified")
"""What every answer about an object says."""
PARTS_AT_ONCE = 4
SMALL_BYTES = 256 << 10
"""Files up to this are sent without asking first whether they are there already: the question takes as long."""


@dataclass(frozen=True, slots=True)
class S3Store(Store):
    """The objects below a place in a bucket."""

    place: S3Place
    part_bytes: int = MULTIPART_BYTES
    """Files above this are sent in parts of it."""

    def url(self, name: str = "") -> str:
        return f"s3://{self.place.bucket}/{self.place.key(name)}"

    def below(self, folder: str) -> S3Store:
        return S3Store(self.place.below(checked_name(folder)), self.part_bytes)

    def now(self) -> int:
        answer = self._page(self._prefix(""), {"MaxKeys": 1})
        date = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        return int(date.timestamp()) * 10**9

    def list(self, folder: str = "") -> Iterator[Stored]:
        cut = len(self.place.prefix) + 1 if self.place.prefix else 0
        for page in self._pages(self._prefix(folder), {}):
            for entry in page.get("Contents", ()):
                yield Stored(entry["Key"][cut:], entry["Size"], entry["ETag"], _written_ns(entry))

    def level(self, folder: str = "") -> tuple[Sequence[str], Sequence[str]]:
        prefix = self._prefix(folder)
        folders: set[str] = set()
        files: set[str] = set()
        for page in self._pages(prefix, {"Delimiter": "/"}):
            folders |= {entry["Prefix"][len(prefix) : -1] for entry in page.get("CommonPrefixes", ())}
            files |= {entry["Key"][len(prefix) :] for entry in page.get("Contents", ())}
        return sorted(folders), sorted(files)

    def stat(self, name: str) -> Stored | None:
        found = self.head(name)
        return None if found is None else _stored(name, found)

    def read_stored(self, name: str) -> tuple[bytes, Stored] | None:
        def request() -> tuple[bytes, Stored]:
            answer = whole(client(self.place).get_object(**self._where(name)), *_ABOUT_OBJECT)
            data = answer["Body"].read()
            noted = noted_sha256(answer)
            if len(data) != answer["ContentLength"] or (noted and hashlib.sha256(data).hexdigest() != noted):
                raise DamagedTransferError(f"{len(data):,} bytes that are not those of {self.url(name)}")
            return data, _stored(name, answer)

        return unless_missing(lambda: persist(request, self.url(name)))

    def read_range(self, name: str, begin: int, end: int, mark: str | None = None) -> bytes:
        if begin >= end:
            return b""
        condition = {} if mark is None else {"IfMatch": mark}

        def request() -> bytes:
            answer = client(self.place).get_object(**self._where(name), Range=f"bytes={begin}-{end - 1}", **condition)
            size = int(answer.get("ContentRange", f"/{end}").rpartition("/")[2])
            if size < end:
                answer["Body"].close()
                raise changed(self.url(name), f"{size:,} bytes", f"at least {end:,}")
            data: bytes = answer["Body"].read()
            if len(data) != end - begin:
                raise DamagedTransferError(f"{len(data):,} bytes instead of {end - begin:,}")
            return data

        try:
            return persist(request, self.url(name))
        except Exception as error:
            raise self.known(error, name, mark) from error

    def open_range(self, name: str, begin: int, end: int) -> tuple[bytes, Stored] | None:
        """With one request, unless nothing lies between."""

        def request() -> tuple[bytes, Stored]:
            call = client(self.place).get_object
            answer = whole(call(**self._where(name), Range=f"bytes={begin}-{end - 1}"), "ContentRange", *_ABOUT_OBJECT)
            size, data = int(answer["ContentRange"].rpartition("/")[2]), answer["Body"].read()
            if len(data) != min(end, size) - begin:
                raise DamagedTransferError(f"{len(data):,} bytes instead of {min(end, size) - begin:,}")
            return data, Stored(name, size, answer["ETag"], _written_ns(answer))

        try:
            return unless_missing(lambda: persist(request, self.url(name)))
        except Exception as error:
            if status_of(error)[0] != 416:
                raise
        found = self.stat(name)
        return None if found is None else (b"", found)

    def known(self, error: Exception, name: str, mark: str | None) -> Exception:
        """What an answer that is an error says of an object that was to be read."""
        if is_missing(error):
            return MissingError("the object is gone", where=self.url(name), remedy="build again")
        if status_of(error)[0] in (412, 416):
            return changed(self.url(name), "another ETag, or fewer bytes", mark or "the bytes asked for")
        return error

    def check_writable(self, name: str) -> None:
        """Begin an object of this name, and let go of it: nobody sees it, and none is there afterwards.

        Raises:
            StorageError: there is no such bucket, or this process may not write there.
        """
        Upload(self.place, checked_name(name), {}).abandon()

    def sha256(self, name: str) -> str | None:
        found = self.stat(name)
        return None if found is None else self._stream(found, lambda block: None)

    def fetch(
        self,
        name: str,
        target: Path,
        *,
        sha256: str | None = None,
        pieces: Sequence[PieceDigest] | None = None,
    ) -> bool:
        head = self.head(name)
        if head is None:
            return False
        wanted = sha256 or noted_sha256(head)
        with atomic_file(target) as file:
            for _ in range(2):  # once more where the bytes are others: it may have been the way
                file.seek(0)
                file.truncate()
                check = None if pieces is None else PieceCheck(pieces)
                found = self._stream(_stored(name, head), _both(file.write, check))
                fault = check and check.fault()
                if wanted in (None, found) and fault is None:
                    return True
            raise StorageError(
                "an object has other bytes than were written",
                where=self.url(name),
                found=fault or f"sha256 {found}",
                expected=f"sha256 {wanted}" if wanted else "the digests of its pieces",
                remedy="remove the object, and build again: it is made anew",
            )

    def _stream(self, stored: Stored, write: Callable[[bytes], object]) -> str:
        """Give an object's bytes in order, fetched by ranges in parallel; → their sha256."""
        sha, window = hashlib.sha256(), RANGE_BYTES * THREADS
        for begin in range(0, stored.size, window):
            starts = range(begin, min(begin + window, stored.size), RANGE_BYTES)
            blocks = in_parallel(
                lambda start: self.read_range(stored.name, start, min(start + RANGE_BYTES, stored.size), stored.mark),
                starts,
            )
            for block in blocks:
                sha.update(block)
                write(block)
        return sha.hexdigest()

    def put(self, name: str, data: bytes, *, once: bool = False) -> None:
        digests, sent_before = digests_of_bytes(data), False

        def attempt() -> None:
            nonlocal sent_before
            try:
                answer = self._put(name, lambda: io.BytesIO(data), digests, once=once)
            except Exception as error:
                # Refused by the object that an earlier attempt made, whose answer was lost on its way?
                if not _is_conflict(error) or not (sent_before and self.read(name) == data):
                    raise
                return
            finally:
                sent_before = True
            if not self._holds(answer, digests, lambda: etag_of_bytes(data), name):
                raise DamagedTransferError("what the bucket holds is not what was sent")

        self._persist(attempt, name)

    def put_file(
        self, name: str, path: Path, *, sha256: str | None = None, is_new: bool = False, once: bool = False
    ) -> None:
        digests = digests_of(path, self.part_bytes)
        if sha256 not in (None, digests.sha256):
            raise StorageError(
                "a file that is to be sent has other bytes than were written",
                where=path,
                found=f"sha256 {digests.sha256}",
                expected=f"sha256 {sha256}",
                remedy=f"delete {path.parent}, and run again: it is made anew",
            )
        there = None if is_new or (digests.size <= SMALL_BYTES and not once) else self.head(name)
        if there is not None and once:
            raise self._exists(name)
        if there is not None and (there["ContentLength"], noted_sha256(there)) == (digests.size, digests.sha256):
            return

        def attempt() -> None:
            answer = (self._put_file_parts if digests.part_bytes else self._put_whole)(path, name, digests, once)
            if not self._holds(answer, digests, lambda: etag_of(path, digests.part_bytes), name):
                raise DamagedTransferError("what the bucket holds is not what was sent")

        self._persist(attempt, name)

    def put_parts(self, name: str, blocks: Iterable[bytes], *, once: bool = False) -> None:
        parts = parts_of(blocks, self.part_bytes)
        first, second = next(parts, b""), next(parts, None)
        if second is None:
            self.put(name, first, once=once)
            return
        if once and self.stat(name) is not None:
            raise self._exists(name)
        digests = StreamDigests(self.part_bytes)
        with Upload(self.place, checked_name(name), {}) as upload:
            try:
                send_stream(upload, chain((first, second), parts), digests)
            except DamagedTransferError as error:
                raise self._unsent(name, digests) from error
            answer = self._persist(lambda: upload.complete(**_condition(once)), name)
        if not self._holds(answer, digests.result(), digests.etag, name):
            raise self._unsent(name, digests)  # what stands there may be somebody else's: it is left

    def _unsent(self, name: str, digests: StreamDigests) -> StorageError:
        return StorageError(
            "the bucket does not hold what was sent",
            where=self.url(name),
            expected=f"sha256 {digests.result().sha256}",
            remedy="run again: it is made anew",
        )

    def compose(
        self,
        name: str,
        sources: Sequence[Stored],
        *,
        sha256: Sequence[str] | None = None,
        once: bool = False,
        joined: Joined = unheard,
    ) -> str | None:
        before = self.stat(name)
        if once and before is not None:
            raise self._exists(name)
        sizes = [source.size for source in sources]
        most = copied_bytes(sizes)
        if len(runs := runs_of(sizes, most=most)) > 1:
            with self._joined_first(name, sources, sha256, runs, joined) as first:
                return self.compose(name, first, once=once)
        known: Sequence[str | None] = sha256 or [None] * len(sources)
        joining = Joining(self, sources, known, plan_parts(sizes, most=most), joined)
        joining.check_sources()
        if (data := joining.sent_whole()) is not None:
            self.put(name, data, once=once)
            joined(len(data))
            return hashlib.sha256(data).hexdigest()
        try:
            self._persist(lambda: self._join(name, joining, before, once), name)
        except OtherBytesError:
            joined(-joining.size)
            sending = Joining(self, sources, known, plan_parts(sizes, most=sent_bytes(sizes)), joined, copies=False)
            self._persist(lambda: self._join(name, sending, before, once), name)
        return None

    def _join(self, name: str, joining: Joining, before: Stored | None, once: bool) -> None:
        """One attempt."""
        with Upload(self.place, checked_name(name), {}) as upload:
            in_parallel(lambda number: joining.make_part(upload, number), range(len(joining.plan)))
            with joining.judging():
                answer = upload.complete(**_condition(once))
        found = self.stat(name)
        if not answer and found == before:
            raise DamagedTransferError("the upload was aborted by somebody else")
        with joining.judging():
            if found is None or found.size != joining.size:  # what stands there may be somebody else's: it is left
                raise changed(self.url(name), f"{found and found.size} bytes", f"{joining.size:,}, as its sources")

    @contextlib.contextmanager
    def _joined_first(
        self,
        name: str,
        sources: Sequence[Stored],
        sha256: Sequence[str] | None,
        runs: Sequence[slice],
        joined: Joined,
    ) -> Iterator[Sequence[Stored]]:
        """Objects that hold runs of the sources, under unfinished names beside `name`; gone when the block ends."""
        folder, slash, base = checked_name(name).rpartition("/")
        start = f"{folder}{slash}{UNFINISHED}{base}-{secrets.token_hex(4)}"
        names = [f"{start}-{number}" for number in range(len(runs))]
        first = []
        try:
            for run, part in zip(runs, names, strict=True):
                self.compose(part, sources[run], sha256=None if sha256 is None else sha256[run], joined=joined)
                first.append(self._there(part))
            yield first
        finally:
            with contextlib.suppress(StorageError):  # `nanoset gc` knows them by their names
                in_parallel(self.delete, names)

    def _there(self, name: str) -> Stored:
        found = self.stat(name)
        if found is None:
            raise MissingError("the object is gone", where=self.url(name), remedy="build again")
        return found

    def _put(self, name: str, body: Callable[[], Any], digests: LocalDigests, *, once: bool = False) -> Any:
        """One attempt; body: opens what is sent."""
        about = {"ChecksumSHA256": digests.checksum, "Metadata": {SHA256: digests.sha256}, **_condition(once)}
        with body() as opened:
            return whole(client(self.place).put_object(**self._where(name), Body=opened, **about), "ETag")

    def _put_whole(self, path: Path, name: str, digests: LocalDigests, once: bool) -> Any:
        return self._put(name, lambda: path.open("rb"), digests, once=once)

    def _put_file_parts(self, path: Path, name: str, digests: LocalDigests, once: bool) -> Any:
        from s3transfer.utils import ReadFileChunk

        with Upload(self.place, checked_name(name), {SHA256: digests.sha256}) as upload:

            def part(number: int) -> None:
                span = digests.part(number)
                upload.send(number, lambda: ReadFileChunk.from_filename(path, *span), digests.part_sha256[number])

            in_parallel(part, range(len(digests.part_sha256)), threads=PARTS_AT_ONCE)
            return upload.complete(**_condition(once))

    def _holds(self, answer: Any, digests: LocalDigests, etag: Callable[[], str], name: str) -> bool:
        """Whether the bucket holds the bytes that were sent, by the checksum or ETag that it has made of them itself.

        Where it tells neither in its answer to the upload (with KMS, an ETag says nothing), it is asked, and in the
        end the bytes are read back.
        """
        if answer.get("ChecksumSHA256") == digests.checksum:
            return True
        own = etag()
        if answer.get("ETag") == own:
            return True
        found = self.head(name)
        if found is None or found["ContentLength"] != digests.size:
            return False
        known = (found.get("ChecksumSHA256"), found["ETag"])
        return digests.checksum == known[0] or own == known[1] or self.sha256(name) == digests.sha256

    def delete(self, name: str) -> None:
        # Some stores answer 404 where it is gone already, also where the first answer was lost on its way.
        unless_missing(lambda: persist(lambda: client(self.place).delete_object(**self._where(name)), self.url(name)))

    def abort_uploads(self, is_abandoned: Callable[[str], bool]) -> Sequence[str]:
        gone, about = [], {"Bucket": self.place.bucket, "Prefix": self._prefix("")}
        cut = len(self._prefix(""))
        while True:
            page = persist(partial(client(self.place).list_multipart_uploads, **about), self.url(), reads=False)
            for upload in page.get("Uploads", ()):
                name = upload["Key"][cut:]
                if is_abandoned(name):
                    self._abort(name, upload["UploadId"])
                    gone.append(name)
            if not page.get("IsTruncated"):
                return gone
            about |= {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _abort(self, name: str, upload: str) -> None:
        try:
            send(self.place, "abort_multipart_upload", name, UploadId=upload)
        except Exception as error:
            if status_of(error)[1] != "NoSuchUpload":
                raise

    def _persist(self, attempt: Callable[[], R], name: str) -> R:
        """As `persist`, of what is written once."""
        try:
            return persist(attempt, self.url(name), reads=False)
        except Exception as error:
            if _is_conflict(error):
                raise self._exists(name) from error
            raise

    def _exists(self, name: str) -> ObjectExistsError:
        return ObjectExistsError("there is such an object already", where=self.url(name))

    def head(self, name: str) -> Any:
        """All that the bucket says of an object; None where there is none."""
        return unless_missing(
            lambda: send(self.place, "head_object", checked_name(name), *_ABOUT_OBJECT, ChecksumMode="ENABLED")
        )

    def _where(self, name: str) -> dict[str, str]:
        return {"Bucket": self.place.bucket, "Key": self.place.key(checked_name(name))}

    def _prefix(self, folder: str) -> str:
        prefix = self.place.key(folder)
        return f"{prefix}/" if prefix else ""

    def _pages(self, prefix: str, about: dict[str, Any]) -> Iterator[Any]:
        while True:
            page = self._page(prefix, about)
            yield page
            if not page.get("IsTruncated"):
                return
            about = about | {"ContinuationToken": page["NextContinuationToken"]}

    def _page(self, prefix: str, about: dict[str, Any]) -> Any:
        call = client(self.place).list_objects_v2
        return persist(
            lambda: whole(call(Bucket=self.place.bucket, Prefix=prefix, **about), "Name"),
            f"s3://{self.place.bucket}/{prefix}",
            reads=False,
        )


def _stored(name: str, answer: Any) -> Stored:
    return Stored(name, answer["ContentLength"], answer["ETag"], _written_ns(answer))


def _written_ns(answer: Any) -> int:
    """Whole seconds: all that every answer tells."""
    return int(answer["LastModified"].timestamp()) * 10**9


def _both(write: Callable[[bytes], object], check: PieceCheck | None) -> Callable[[bytes], None]:
    """Writes a block, and gives it to the check."""

    def take(block: bytes) -> None:
        write(block)
        if check is not None:
            check.add(block)

    return take


def _is_conflict(error: Exception) -> bool:
    return status_of(error)[0] == 412


def _condition(once: bool) -> dict[str, str]:
    return {"IfNoneMatch": "*"} if once else {}
