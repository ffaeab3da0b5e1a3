"""A store that is a place in a bucket: objects are read by ranges, and written whole and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from nanoset_core.errors import StorageError
from nanoset_core.storage.atomic import atomic_file
from nanoset_core.storage.location import S3Place
from nanoset_core.storage.pieces import PieceCheck, PieceDigest
from nanoset_core.storage.s3_requests import (
    DamagedTransferError,
    client,
    is_missing,
    require_fields,
    send,
    status_of,
    unless_missing,
    with_retries,
)
from nanoset_core.storage.s3_uploads import (
    MULTIPART_BYTES,
    SHA256,
    Part,
    Upload,
    bytes_part,
    check_sent,
    encoded,
    etags_tell,
    file_parts,
    noted_sha256,
    stream_parts,
)
from nanoset_core.storage.store import (
    THREADS,
    OnJoin,
    Store,
    Stored,
    changed,
    checked_name,
    damaged,
    gone,
    in_parallel,
    no_progress,
)

RANGE_BYTES = 8 << 20
SMALL_BYTES = 256 << 10
"""Files up to this are sent without asking first whether they are there already: the question takes as long."""
_ABOUT_OBJECT = ("ContentLength", "ETag", "LastModified")
_FILE_PARTS_AT_ONCE = 4
_STREAM_PARTS_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class S3Store(Store):
    """The objects below a place in a bucket."""

    place: S3Place
    part_bytes: int = MULTIPART_BYTES
    """Objects above this are sent in parts of it."""

    def url(self, name: str = "") -> str:
        return f"s3://{self.place.bucket}/{self.place.key(name)}"

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
            answer = require_fields(client(self.place).get_object(**self._where(name)), *_ABOUT_OBJECT)
            data = answer["Body"].read()
            noted = noted_sha256(answer)
            if len(data) != answer["ContentLength"] or (noted and hashlib.sha256(data).hexdigest() != noted):
                raise DamagedTransferError(f"{len(data):,} bytes that are not those of {self.url(name)}")
            return data, _stored(name, answer)

        return unless_missing(lambda: with_retries(request, self.url(name)))

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
            return _body(answer, end - begin)

        try:
            return with_retries(request, self.url(name))
        except Exception as error:
            raise self.translate_error(error, name, mark) from error

    def open_range(self, name: str, begin: int, end: int) -> tuple[bytes, Stored] | None:
        """With one request, unless nothing lies between."""

        def request() -> tuple[bytes, Stored]:
            answer = client(self.place).get_object(**self._where(name), Range=f"bytes={begin}-{end - 1}")
            size = int(require_fields(answer, "ContentRange", *_ABOUT_OBJECT)["ContentRange"].rpartition("/")[2])
            data = _body(answer, min(end, size) - begin)
            return data, Stored(name, size, answer["ETag"], _written_ns(answer))

        try:
            return unless_missing(lambda: with_retries(request, self.url(name)))
        except Exception as error:
            if status_of(error)[0] != 416:
                raise
        found = self.stat(name)
        return None if found is None else (b"", found)

    def translate_error(self, error: Exception, name: str, mark: str | None) -> Exception:
        """Return the error of ours for an answer about an object that was to be read, or else the error itself."""
        if is_missing(error):
            return gone(self.url(name))
        if status_of(error)[0] in (412, 416):
            return changed(self.url(name), "another ETag, or fewer bytes", mark or "the bytes asked for")
        return error

    def check_writable(self, name: str) -> None:
        """Begin an object of this name, and abort it.

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
            for _ in range(2):  # once more where the bytes are others: they may have been damaged on their way
                file.seek(0)
                file.truncate()
                check = None if pieces is None else PieceCheck(pieces)
                found = self._stream(_stored(name, head), file.write if check is None else _both(file.write, check))
                fault = check and check.fault()
                if wanted in (None, found) and fault is None:
                    return True
            expected = f"sha256 {wanted}" if wanted else "the digests of its pieces"
            raise damaged(self.url(name), fault or f"sha256 {found}", expected)

    def _stream(self, stored: Stored, write: Callable[[bytes], object]) -> str:
        """Give an object's bytes in order, fetched by ranges in parallel; return their sha256."""
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

    def put(self, name: str, data: bytes) -> None:
        part = bytes_part(data)
        self._put_whole(name, part, part.sha256.hex())

    def put_file(self, name: str, path: Path, *, sha256: str | None = None, is_new: bool = False) -> None:
        found, parts = file_parts(path, self.part_bytes)
        if sha256 not in (None, found):
            raise StorageError(
                "a file that is to be sent has other bytes than were written",
                where=path,
                found=f"sha256 {found}",
                expected=f"sha256 {sha256}",
                remedy=f"delete {path.parent}, and run again: it is made anew",
            )
        size = path.stat().st_size
        there = None if is_new or size <= SMALL_BYTES else self.head(name)
        if there is not None and (there["ContentLength"], noted_sha256(there)) == (size, found):
            return
        if len(parts) == 1:
            self._put_whole(name, parts[0], found)
        else:
            upload = partial(self._put_in_parts, name, parts, {SHA256: found}, size, _FILE_PARTS_AT_ONCE)
            with_retries(upload, self.url(name), reads=False)

    def put_parts(self, name: str, blocks: Iterable[bytes]) -> None:
        parts = stream_parts(blocks, self.part_bytes)
        first, second = next(parts), next(parts, None)
        if second is None:
            self._put_whole(name, first, first.sha256.hex())
            return
        try:
            self._put_in_parts(name, chain((first, second), parts), {}, None, _STREAM_PARTS_AT_ONCE)
        except DamagedTransferError as error:
            raise StorageError(
                "the bucket does not hold what was sent", where=self.url(name), found=str(error),
                remedy="run again: it is made anew",
            ) from error  # fmt: skip

    def _put_whole(self, name: str, part: Part, sha256: str) -> None:
        send(
            self.place, "put_object", checked_name(name), "ETag",
            body=part.open, check=lambda answer: check_sent(answer, part, is_md5=etags_tell(answer)),
            ChecksumSHA256=encoded(part.sha256), Metadata={SHA256: sha256},
        )  # fmt: skip

    def _put_in_parts(
        self, name: str, parts: Iterable[Part], metadata: dict[str, str], size: int | None, at_once: int
    ) -> None:
        """Send an object in parts once.

        Raises:
            DamagedTransferError: the upload was aborted by another process.
        """
        with Upload(self.place, checked_name(name), metadata) as upload:
            upload.send_all(parts, at_once)
            before = self.stat(name) if upload.etag is None else None  # else the ETag tells the new object
            is_complete = upload.complete()
        if not is_complete:  # its answer may have been lost: what stands there may be of another process, and is left
            found = self.stat(name)
            if found is None or found == before or not _is_of(found, size, upload.etag):
                raise DamagedTransferError("the upload was aborted by another process")

    def compose(
        self,
        name: str,
        sources: Sequence[Stored],
        *,
        sha256: Sequence[str] | None = None,
        joined: OnJoin = no_progress,
    ) -> str | None:
        from nanoset_core.storage.s3_joining import join

        return join(self, name, sources, sha256, joined)

    def delete(self, name: str) -> None:
        # Some stores answer 404 where it is gone already, also where the first answer was lost on its way.
        unless_missing(lambda: send(self.place, "delete_object", checked_name(name)))

    def abort_uploads(self, is_abandoned: Callable[[str], bool]) -> Sequence[str]:
        aborted, about = [], {"Bucket": self.place.bucket, "Prefix": self._prefix("")}
        cut = len(self._prefix(""))
        while True:
            page = with_retries(partial(client(self.place).list_multipart_uploads, **about), self.url(), reads=False)
            for upload in page.get("Uploads", ()):
                name = upload["Key"][cut:]
                if is_abandoned(name):
                    self._abort(name, upload["UploadId"])
                    aborted.append(name)
            if not page.get("IsTruncated"):
                return aborted
            about |= {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _abort(self, name: str, upload: str) -> None:
        try:
            send(self.place, "abort_multipart_upload", name, UploadId=upload)
        except Exception as error:
            if status_of(error)[1] != "NoSuchUpload":
                raise

    def head(self, name: str) -> Any:
        """Return all that the bucket says of an object; None where there is none."""
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
        return with_retries(
            lambda: require_fields(call(Bucket=self.place.bucket, Prefix=prefix, **about), "Name"),
            f"s3://{self.place.bucket}/{prefix}",
            reads=False,
        )


def _is_of(found: Stored, size: int | None, etag: str | None) -> bool:
    """Return whether an object has this size and this ETag, where they are known."""
    return size in (None, found.size) and etag in (None, found.mark)


def _body(answer: Any, size: int) -> bytes:
    data: bytes = answer["Body"].read()
    if len(data) != size:
        raise DamagedTransferError(f"{len(data):,} bytes instead of {size:,}")
    return data


def _stored(name: str, answer: Any) -> Stored:
    return Stored(name, answer["ContentLength"], answer["ETag"], _written_ns(answer))


def _written_ns(answer: Any) -> int:
    """Return whole seconds, in ns: all that every answer tells."""
    return int(answer["LastModified"].timestamp()) * 10**9


def _both(write: Callable[[bytes], object], check: PieceCheck) -> Callable[[bytes], None]:
    def take(block: bytes) -> None:
        write(block)
        check.add(block)

    return take
