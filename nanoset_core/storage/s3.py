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

from nanoset_core.storage.location import S3Place
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
    RANGE_BYTES,
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
        try:
            data, found = self._ranged(name, begin, end, {} if mark is None else {"IfMatch": mark})
        except Exception as error:
            raise self.translate_error(error, name, mark) from error
        if found.size < end:
            raise changed(self.url(name), f"{found.size:,} bytes", f"at least {end:,}")
        return data

    def open_range(self, name: str, begin: int, end: int) -> tuple[bytes, Stored] | None:
        """With one request, unless nothing lies between."""
        try:
            return unless_missing(lambda: self._ranged(name, begin, end, {}))
        except Exception as error:
            if status_of(error)[0] != 416:
                raise
        found = self.stat(name)
        return None if found is None else (b"", found)

    def _ranged(self, name: str, begin: int, end: int, condition: dict[str, str]) -> tuple[bytes, Stored]:
        span = f"bytes={begin}-{end - 1}"

        def request() -> tuple[bytes, Stored]:
            answer = client(self.place).get_object(**self._where(name), Range=span, **condition)
            require_fields(answer, *_ABOUT_OBJECT)
            size = int(str(answer.get("ContentRange", answer["ContentLength"])).rpartition("/")[2])
            data = answer["Body"].read()
            if len(data) != min(end, size) - begin:
                raise DamagedTransferError(f"{len(data):,} bytes instead of {min(end, size) - begin:,}")
            return data, Stored(name, size, answer["ETag"], _written_ns(answer))

        return with_retries(request, self.url(name))

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

    def stat_noted(self, name: str) -> tuple[Stored, str | None] | None:
        head = self.head(name)
        return None if head is None else (_stored(name, head), noted_sha256(head))

    def blocks(self, stored: Stored) -> Iterator[bytes]:
        """Fetched by ranges in parallel."""
        window = RANGE_BYTES * THREADS
        for begin in range(0, stored.size, window):
            starts = range(begin, min(begin + window, stored.size), RANGE_BYTES)
            yield from in_parallel(
                lambda start: self.read_range(stored.name, start, min(start + RANGE_BYTES, stored.size), stored.mark),
                starts,
            )

    def put(self, name: str, data: bytes) -> None:
        part = bytes_part(data)
        self._put_whole(name, part, part.sha256.hex())

    def put_file(self, name: str, path: Path, *, sha256: str | None = None, is_new: bool = False) -> None:
        found, parts = file_parts(path, self.part_bytes)
        if sha256 not in (None, found):
            raise damaged(str(path), f"sha256 {found}", f"sha256 {sha256}")
        size = path.stat().st_size
        there = None if is_new or size <= SMALL_BYTES else self.head(name)
        if there is not None and (there["ContentLength"], noted_sha256(there)) == (size, found):
            return
        if len(parts) == 1:
            self._put_whole(name, parts[0], found)
        else:
            self._put_in_parts(name, parts, {SHA256: found}, _FILE_PARTS_AT_ONCE)

    def put_parts(self, name: str, blocks: Iterable[bytes]) -> None:
        parts = stream_parts(blocks, self.part_bytes)
        first, second = next(parts), next(parts, None)
        if second is None:
            self._put_whole(name, first, first.sha256.hex())
        else:
            self._put_in_parts(name, chain((first, second), parts), {}, _STREAM_PARTS_AT_ONCE)

    def _put_whole(self, name: str, part: Part, sha256: str) -> None:
        send(
            self.place, "put_object", checked_name(name), "ETag",
            body=part.open, check=lambda answer: check_sent(answer, part, is_md5=etags_tell(answer)),
            ChecksumSHA256=encoded(part.sha256), Metadata={SHA256: sha256},
        )  # fmt: skip

    def _put_in_parts(self, name: str, parts: Iterable[Part], metadata: dict[str, str], at_once: int) -> None:
        with Upload(self.place, checked_name(name), metadata) as upload:
            upload.send_all(parts, at_once)
            upload.complete()

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


def _stored(name: str, answer: Any) -> Stored:
    return Stored(name, answer["ContentLength"], answer["ETag"], _written_ns(answer))


def _written_ns(answer: Any) -> int:
    """Return whole seconds, in ns: all that every answer tells."""
    return int(answer["LastModified"].timestamp()) * 10**9
