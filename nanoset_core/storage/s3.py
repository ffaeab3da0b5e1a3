"""A store below a prefix of an S3 bucket, with reads by range and checked writes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from nanoset_core.errors import StorageError
from nanoset_core.storage import s3_requests
from nanoset_core.storage.long_listings import LongListing
from nanoset_core.storage.s3_requests import (
    MULTIPART_BYTES,
    DamagedTransferError,
    Part,
    Server,
    encoded,
    etags_tell,
    file_parts,
    is_missing,
    new_client,
    sent_etag,
    status_of,
    stream_parts,
    unless_missing,
    with_retries,
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
from nanoset_core.storage.unanswered import Body, unanswered

T = TypeVar("T")
SCHEME = "s3://"
SHA256 = "nanoset-sha256"
"""Key of an object's metadata: hex sha256 of its bytes."""
UPLOAD = "nanoset-upload"
"""Key of an object's metadata: random mark of the upload in parts that made it."""
COPY_SECONDS = 900
"""How long a server may take to copy a part of up to 5 GiB: asked again sooner, it would copy twice
at once.
"""
_SOON_COPIED_BYTES = 64 << 20
SMALL_BYTES = 256 << 10
"""Files up to this are sent without asking first whether they are there already: the question takes
as long.
"""
_FILE_PARTS_AT_ONCE = 4
_STREAM_PARTS_AT_ONCE = 2
_TURN = {"ContinuationToken": "NextContinuationToken"}
_ENTRIES = ("Contents", "CommonPrefixes", "Uploads")
"""Keys of a listing's page that hold what is listed."""
_READING = ("get_object", "head_object", "upload_part_copy", "delete_object")
"""Requests that find out that there is no such object."""
_WORKING = ("upload_part_copy", "complete_multipart_upload")
_WORK_SECONDS = 45.0
"""How much longer than usual a server may be silent over requests that let it work."""


@dataclass(frozen=True, slots=True)
class S3Store(Store):
    """The objects below a prefix of a bucket."""

    bucket: str
    prefix: str
    """Without slashes at its ends; "" = the whole bucket."""
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False
    part_bytes: int = field(default=MULTIPART_BYTES, kw_only=True)
    """Objects above this are sent in parts of it."""

    def url(self, name: str = "") -> str:
        return f"{SCHEME}{self.bucket}/{self.key(name)}".rstrip("/")

    def key(self, name: str) -> str:
        """Return the key of a name below the prefix."""
        return f"{self.prefix}/{name}".strip("/")

    def below(self, folder: str) -> S3Store:
        return replace(self, prefix=self.key(folder))

    @property
    def copies_name(self) -> str:
        """By endpoint, bucket and prefix."""
        server = hashlib.blake2b((self.endpoint_url or "").encode(), digest_size=4).hexdigest()
        return f"{self.bucket}{f'@{server}' if self.endpoint_url else ''}/{self.prefix}"

    @property
    def server(self) -> Server:
        """How its server is reached."""
        return Server(self.endpoint_url, self.region, self.profile, self.anonymous)

    def client(self, read_seconds: int | None = None) -> Any:
        """Return boto3's client; `read_seconds`: how long an answer may take, where that is not as
        usual.
        """
        timeout = read_seconds or s3_requests.READ_SECONDS
        return new_client(os.getpid(), self.server, self.server.address, timeout)

    def ask(
        self,
        operation: str,
        name: str | None,
        take: Callable[[Any], T],
        *,
        body: Callable[[], Any] | None = None,
        read_seconds: int | None = None,
        **about: Any,
    ) -> T:
        """Send a request, as `with_retries`; return what `take` makes of its answer.

        Args:
            operation: boto3's name of it.
            name: of the object; None for a request about the bucket.
            take: raises KeyError, ValueError or DamagedTransferError for an answer that another
                attempt may better.
            body: opens what is sent with it, anew for each attempt.
            read_seconds: see `client`.
            about: arguments of the request.
        """
        call = getattr(self.client(read_seconds), operation)
        if name is not None:
            about["Key"] = self.key(checked_name(name))

        where = f"{SCHEME}{self.bucket}/{about.get('Key', about.get('Prefix', ''))}"
        asked = f"{where} at {self.server.address or 'AWS'}"
        patience = _WORK_SECONDS if operation in _WORKING else 0.0

        def request() -> T:
            with contextlib.ExitStack() as opened:
                more = {} if body is None else {"Body": Body(opened.enter_context(body()))}
                opened.enter_context(unanswered().asking(asked, patience))
                answer = call(Bucket=self.bucket, **more, **about)
                if "Body" in answer:
                    answer["Body"] = Body(answer["Body"])
                return take(answer)

        return with_retries(request, where, reads=operation in _READING)

    def now(self) -> int:
        headers = self.ask(
            "list_objects_v2", None, lambda page: page["ResponseMetadata"]["HTTPHeaders"], MaxKeys=1
        )
        return int(parsedate_to_datetime(headers["date"]).timestamp()) * 10**9

    def list(self, folder: str = "") -> Iterator[Stored]:
        cut = len(self._prefix(""))
        for page in self._pages("list_objects_v2", folder, _TURN):
            for entry in page.get("Contents", ()):
                yield Stored(entry["Key"][cut:], entry["Size"], entry["ETag"], _written_ns(entry))

    def level(self, folder: str = "") -> tuple[Sequence[str], Sequence[str]]:
        cut = len(self._prefix(folder))
        names: tuple[set[str], set[str]] = set(), set()
        for page in self._pages("list_objects_v2", folder, _TURN, Delimiter="/"):
            names[0].update(entry["Prefix"][cut:-1] for entry in page.get("CommonPrefixes", ()))
            names[1].update(entry["Key"][cut:] for entry in page.get("Contents", ()))
        return sorted(names[0]), sorted(names[1])

    def _prefix(self, folder: str) -> str:
        prefix = self.key(folder)
        return f"{prefix}/" if prefix else ""

    def _pages(
        self, operation: str, folder: str, turn: dict[str, str], **about: Any
    ) -> Iterator[Any]:
        """Yield the pages of a listing; `turn`: argument of the next request → where the answer has
        it.
        """
        listing = LongListing(self.url(folder), self.server.address or "AWS")
        goes_on = True
        while goes_on:
            page, goes_on = self.ask(
                operation,
                None,
                lambda page: (page, page["IsTruncated"]),
                Prefix=self._prefix(folder),
                **about,
            )
            entries = [entry for kind in _ENTRIES for entry in page.get(kind, ())]
            yield page
            if goes_on:
                next_turn = {name: page[key] for name, key in turn.items()}
                listing.turn_page(len(entries), repr(next_turn), repr(entries[:1]))
                about |= next_turn

    def stat(self, name: str) -> Stored | None:
        return unless_missing(
            lambda: self.ask("head_object", name, partial(_head, name), ChecksumMode="ENABLED")
        )

    def read_stored(self, name: str) -> tuple[bytes, Stored] | None:
        def take(answer: Any) -> tuple[bytes, Stored]:
            data, stored = answer["Body"].read(), _head(name, answer)
            if len(data) != stored.size or stored.sha256 not in (
                None,
                hashlib.sha256(data).hexdigest(),
            ):
                raise DamagedTransferError(
                    f"{len(data):,} bytes that are not those of {self.url(name)}"
                )
            return data, stored

        return unless_missing(lambda: self.ask("get_object", name, take))

    def read_range(self, name: str, begin: int, end: int, mark: str | None = None) -> bytes:
        if begin >= end:
            return b""
        with self.reading(name, mark):
            data, found = self._ranged(name, begin, end, {} if mark is None else {"IfMatch": mark})
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

    def _ranged(
        self, name: str, begin: int, end: int, condition: dict[str, Any]
    ) -> tuple[bytes, Stored]:
        def take(answer: Any) -> tuple[bytes, Stored]:
            size = int(str(answer.get("ContentRange", answer["ContentLength"])).rpartition("/")[2])
            data = answer["Body"].read()
            if len(data) != min(end, size) - begin:
                raise DamagedTransferError(
                    f"{len(data):,} bytes instead of {min(end, size) - begin:,}"
                )
            return data, Stored(name, size, answer["ETag"], _written_ns(answer))

        return self.ask("get_object", name, take, Range=f"bytes={begin}-{end - 1}", **condition)

    @contextlib.contextmanager
    def reading(self, name: str, mark: str | None) -> Iterator[None]:
        """Raise answers about an object that is read in the block as errors of ours."""
        try:
            yield
        except Exception as error:
            if is_missing(error):
                raise gone(self.url(name)) from error
            if status_of(error)[0] not in (412, 416):
                raise
            wanted = mark or "the bytes asked for"
            raise changed(self.url(name), "another ETag, or fewer bytes", wanted) from error

    def blocks(self, stored: Stored) -> Iterator[bytes]:
        """Fetched by ranges in parallel."""
        window, end = RANGE_BYTES * THREADS, stored.begin + stored.size
        for begin in range(stored.begin, end, window):
            starts = range(begin, min(begin + window, end), RANGE_BYTES)
            yield from in_parallel(
                lambda start: self.read_range(
                    stored.name, start, min(start + RANGE_BYTES, end), stored.mark
                ),
                starts,
            )

    def check_writable(self, name: str) -> None:
        """Begin an object of this name, and abort it."""
        Upload(self, name, {}).abandon()

    def put_parts(self, name: str, blocks: Iterable[bytes]) -> None:
        self._put(name, stream_parts(blocks, self.part_bytes), {}, _STREAM_PARTS_AT_ONCE)

    def put_file(
        self, name: str, path: Path, *, sha256: str | None = None, is_new: bool = False
    ) -> None:
        found, parts = file_parts(path, self.part_bytes)
        if sha256 not in (None, found):
            raise damaged(str(path), f"sha256 {found}", f"sha256 {sha256}")
        size = path.stat().st_size
        there = None if is_new or size <= SMALL_BYTES else self.stat(name)
        if there is None or (there.size, there.sha256) != (size, found):
            self._put(name, parts, {SHA256: found}, _FILE_PARTS_AT_ONCE)

    def _put(
        self, name: str, parts: Iterable[Part], metadata: dict[str, str], at_once: int
    ) -> None:
        waiting = iter(parts)
        first, second = next(waiting), next(waiting, None)
        if second is None:
            self.ask(
                "put_object",
                name,
                lambda answer: sent_etag(answer, first, is_md5=etags_tell(answer)),
                body=first.open,
                ChecksumSHA256=encoded(first.sha256),
                Metadata={SHA256: first.sha256.hex()},
            )
            return
        with uploading(self, name, metadata) as upload:
            numbered = enumerate(chain((first, second), waiting))
            in_parallel(lambda one: upload.send(*one), numbered, at_once, window=at_once)

    def compose(
        self,
        name: str,
        sources: Sequence[Stored],
        *,
        sha256: Sequence[str | None] | None = None,
        joined: OnJoin = no_progress,
    ) -> str | None:
        from nanoset_core.storage.s3_joining import join

        return join(self, name, sources, sha256, joined)

    def delete(self, name: str) -> None:
        # Some stores answer 404 where it is gone already, also where the first answer was lost on
        # its way.
        unless_missing(lambda: self.ask("delete_object", name, bool))

    def abort_uploads(self, is_abandoned: Callable[[str], bool]) -> Sequence[str]:
        aborted, cut = [], len(self._prefix(""))
        turn = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
        for page in self._pages("list_multipart_uploads", "", turn):
            for upload in page.get("Uploads", ()):
                name = upload["Key"][cut:]
                if is_abandoned(name):
                    self._abort(name, upload["UploadId"])
                    aborted.append(name)
        return aborted

    def _abort(self, name: str, upload: str) -> None:
        try:
            self.ask("abort_multipart_upload", name, bool, UploadId=upload)
        except Exception as error:
            if status_of(error)[1] != "NoSuchUpload":
                raise


def _head(name: str, answer: Any) -> Stored:
    # Some servers and proxies answer in capitals.
    noted = {key.lower(): value for key, value in answer.get("Metadata", {}).items()}
    about = (name, answer["ContentLength"], answer["ETag"], _written_ns(answer))
    return Stored(*about, noted.get(SHA256), noted.get(UPLOAD), etags_tell(answer))


def _written_ns(answer: Any) -> int:
    """Return whole seconds, in ns: all that every answer tells."""
    return int(answer["LastModified"].timestamp()) * 10**9


class Upload:
    """One upload in parts."""

    def __init__(self, store: S3Store, name: str, metadata: dict[str, str]) -> None:
        """metadata: of the object."""
        self._store, self._name, self._mark = store, name, secrets.token_hex(8)
        self._upload, self.etags_tell = store.ask(
            "create_multipart_upload",
            name,
            lambda answer: ({"UploadId": answer["UploadId"]}, etags_tell(answer)),
            ChecksumAlgorithm="SHA256",
            Metadata=metadata | {UPLOAD: self._mark},
        )
        self._sent: dict[int, dict[str, Any]] = {}

    def send(self, number: int, part: Part) -> None:
        """Send part `number`, from 0."""
        about = {"PartNumber": number + 1, "ChecksumSHA256": encoded(part.sha256)}
        check = partial(sent_etag, part=part, is_md5=self.etags_tell)
        self._sent[number] = about | {
            "ETag": self._ask("upload_part", check, body=part.open, **about)
        }

    def copy(self, number: int, name: str, mark: str, begin: int, end: int) -> Any:
        """Let the bucket take part `number` from bytes [begin, end) of an object that has this
        ETag.

        Some servers ignore the ETag: returns what the bucket says of the part, for the caller to
        compare.
        """
        found = self._ask(
            "upload_part_copy",
            lambda answer: (
                {"PartNumber": number + 1, "ETag": answer["CopyPartResult"]["ETag"]}
                | {
                    key: sha256
                    for key, sha256 in answer["CopyPartResult"].items()
                    if key == "ChecksumSHA256"
                }
            ),
            read_seconds=COPY_SECONDS if end - begin > _SOON_COPIED_BYTES else None,
            PartNumber=number + 1,
            CopySource={"Bucket": self._store.bucket, "Key": self._store.key(name)},
            CopySourceIfMatch=mark,
            CopySourceRange=f"bytes={begin}-{end - 1}",
        )
        self._sent[number] = found
        return found

    def _ask(self, operation: str, take: Callable[[Any], Any], **about: Any) -> Any:
        try:
            return self._store.ask(operation, self._name, take, **about, **self._upload)
        except Exception as error:
            if status_of(error)[1] != "NoSuchUpload":
                raise
            # There is no such upload any more, also where the answer to its completion was lost on
            # its way.
            head = (
                self._store.stat(self._name) if operation == "complete_multipart_upload" else None
            )
            if head is not None and head.upload == self._mark:
                return head.mark
            what, found = (
                "the bucket does not hold what was sent",
                "another process aborted the upload",
            )
            where, remedy = self._store.url(self._name), "run again: it is made anew"
            raise StorageError(what, where=where, found=found, remedy=remedy) from error

    def complete(self) -> None:
        """Make the object of the parts; StorageError where another process aborted the upload."""
        parts = [self._sent[number] for number in sorted(self._sent)]
        self._ask(
            "complete_multipart_upload",
            lambda answer: answer["ETag"],
            MultipartUpload={"Parts": parts},
        )

    def abandon(self) -> None:
        """Abort the upload; what fails here is left to the bucket's lifecycle rule."""
        from botocore.exceptions import BotoCoreError, ClientError

        with contextlib.suppress(BotoCoreError, ClientError):
            key = self._store.key(self._name)
            self._store.client().abort_multipart_upload(
                Bucket=self._store.bucket, Key=key, **self._upload
            )


@contextlib.contextmanager
def uploading(store: S3Store, name: str, metadata: dict[str, str]) -> Iterator[Upload]:
    """Yield an upload in parts, which becomes the object when the block ends well, and is aborted
    when it fails.
    """
    upload = Upload(store, name, metadata)
    try:
        yield upload
        upload.complete()
    except BaseException:
        upload.abandon()
        raise
