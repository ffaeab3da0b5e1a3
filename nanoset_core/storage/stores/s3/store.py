"""A store below a prefix of an S3 bucket, with reads by range and checked writes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from nanoset_core.errors import StorageError
from nanoset_core.storage.requests import DamagedTransferError, check_length, in_parallel
from nanoset_core.storage.store import (
    OnJoin,
    Store,
    Stored,
    changed,
    checked_name,
    damaged,
    gone,
    no_progress,
)
from nanoset_core.storage.stores.long_listings import LongListing
from nanoset_core.storage.stores.s3 import requests as s3_requests
from nanoset_core.storage.stores.s3.client import Server, new_client
from nanoset_core.storage.stores.s3.parts import (
    MULTIPART_BYTES,
    Part,
    check_sent,
    encoded,
    etags_are_md5,
    file_parts,
    md5_of_etag,
    stream_parts,
)
from nanoset_core.storage.stores.s3.requests import (
    S3_SCHEME,
    is_missing,
    status_of,
    unless_missing,
    with_retries,
)
from nanoset_core.storage.stores.unanswered import Body, unanswered

T = TypeVar("T")
SHA256 = "nanoset-sha256"
"""Key of an object's metadata: the sha256 of its bytes, as hex."""
UPLOAD = "nanoset-upload"
"""Key of an object's metadata: a random mark of the upload in parts that made it."""
COPY_SECONDS = 900
"""How long to wait while a server copies a part of up to 5 GiB.

If the request were sent again sooner, the server would make two copies at the same time.
"""
_SOON_COPIED_BYTES = 64 << 20
"""Parts up to this size are copied within the usual time."""
SMALL_BYTES = 256 << 10
"""Files up to this size are sent without asking first whether the bucket has them already.

The question would take as long as sending them.
"""
_FILE_PARTS_AT_ONCE = 4
"""Parts of a file that are sent at the same time."""
_STREAM_PARTS_AT_ONCE = 2
"""Parts of a stream that are sent at the same time; they are in memory."""
_NEXT_OBJECTS = {"ContinuationToken": "NextContinuationToken"}
"""How to ask for the next page of objects: argument of the request → key in the last answer."""
_NEXT_UPLOADS = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
"""The same for the next page of uploads in parts."""
_ENTRY_KEYS = ("Contents", "CommonPrefixes", "Uploads")
"""Keys under which a page of a listing has its entries."""
_READING = ("get_object", "head_object", "upload_part_copy", "delete_object")
"""Requests that fail if an object does not exist."""
_SLOW = ("upload_part_copy", "complete_multipart_upload")
"""Requests for which the server copies or joins bytes before it answers."""
_SLOW_PATIENCE_SECONDS = 45.0
"""How much longer than usual a server may be silent on slow requests before a warning."""


@dataclass(frozen=True, slots=True)
class S3Store(Store):
    """The objects below a prefix of a bucket."""

    bucket: str
    """Name of the bucket."""
    prefix: str
    """What all keys begin with, without slashes at its ends; "" for the whole bucket."""
    endpoint_url: str | None = None
    """URL of the server; None for AWS, or for what the environment says."""
    region: str | None = None
    """Region of the bucket; None for what the AWS settings say."""
    profile: str | None = None
    """Profile of the AWS settings that has the credentials; None for the default one."""
    anonymous: bool = False
    """Whether requests are sent without a signature, as public buckets allow."""
    part_bytes: int = field(default=MULTIPART_BYTES, kw_only=True)
    """Objects larger than this are sent in parts of at least this size."""

    def url(self, name: str = "") -> str:
        """Return the address of an object, or of the whole store, such as s3://bucket/prefix/name."""
        return f"{S3_SCHEME}{self.bucket}/{self.key(name)}".rstrip("/")

    def key(self, name: str) -> str:
        """Return the key of an object in the bucket: the prefix and the object's name.

        Args:
            name: Name within this store, or "" for its top. With the prefix `nanoset`, `web/a.bin`
                gives `nanoset/web/a.bin`.
        """
        return f"{self.prefix}/{name}".strip("/")

    def below(self, folder: str) -> S3Store:
        """Return a folder of this store as a store."""
        return replace(self, prefix=self.key(folder))

    @property
    def copies_name(self) -> str:
        """Name of the local folder for working copies.

        It contains a digest of the endpoint, since two servers may have buckets of the same name.
        """
        if not self.endpoint_url:
            return f"{self.bucket}/{self.prefix}"
        digest = hashlib.blake2b(self.endpoint_url.encode(), digest_size=4).hexdigest()
        return f"{self.bucket}@{digest}/{self.prefix}"

    @property
    def server(self) -> Server:
        """How the server of the bucket is reached."""
        return Server(self.endpoint_url, self.region, self.profile, self.anonymous)

    def client(self, read_seconds: int | None = None) -> Any:
        """Return botocore's client for the bucket, which sends the requests.

        Args:
            read_seconds: How long to wait for the next bytes of an answer; None for the default.

        Returns:
            A client that the threads of this process share.

        Raises:
            StorageError: botocore is not installed, or the AWS settings are wrong.
        """
        timeout = read_seconds or s3_requests.READ_SECONDS
        return new_client(os.getpid(), self.server, self.server.address, timeout)

    def ask(
        self,
        operation: str,
        name: str | None,
        read_answer: Callable[[Any], T],
        *,
        body: Callable[[], Any] | None = None,
        read_seconds: int | None = None,
        **arguments: Any,
    ) -> T:
        """Send a request about an object or the bucket, with retries, and return what it answers.

        For example, this returns the size of an object:

            store.ask("head_object", "web/a.bin", lambda answer: answer["ContentLength"])

        Args:
            operation: botocore's name of the request, such as `get_object`.
            name: Name of the object; None for a request about the bucket.
            read_answer: Called with the answer. It may raise KeyError, ValueError or
                DamagedTransferError for a faulty answer; then the request is sent again.
            body: Opens the bytes that the request sends; it is called for each attempt.
            read_seconds: How long to wait for the next bytes of an answer; None for the default.
            arguments: Arguments of botocore's operation, except `Bucket`, `Key` and `Body`.

        Returns:
            What `read_answer` returns.
        """
        call = getattr(self.client(read_seconds), operation)
        if name is not None:
            arguments["Key"] = self.key(checked_name(name))

        # For messages: the object, or the folder that is listed.
        place = arguments.get("Key", arguments.get("Prefix", ""))
        where = f"{S3_SCHEME}{self.bucket}/{place}"
        object_and_server = f"{where} at {self.server.address or 'AWS'}"
        # If the server copies bytes before it answers, a warning that it is silent comes later.
        patience = _SLOW_PATIENCE_SECONDS if operation in _SLOW else 0.0

        def request() -> T:
            """Send the request once, and log a warning if the server does not answer for long."""
            with _content_of(body) as content, unanswered().asking(object_and_server, patience):
                answer = call(Bucket=self.bucket, **arguments, **content)
                if "Body" in answer:
                    # Each block that is read of it shows that the server is not silent.
                    answer["Body"] = Body(answer["Body"])
                return read_answer(answer)

        return with_retries(request, where, reads=operation in _READING)

    def now(self) -> int:
        """Return the time of the server's clock, in nanoseconds since 1970."""
        # Every answer has the time in a header: ask for something small.
        headers = self.ask("list_objects_v2", None, _headers, MaxKeys=1)
        return int(parsedate_to_datetime(headers["date"]).timestamp()) * 10**9

    def list(self, folder: str = "") -> Iterator[Stored]:
        """Yield all objects below a folder, in the order of their names."""
        prefix_length = len(self._prefix(""))  # names begin after it: keys have all of the path
        for page in self._pages("list_objects_v2", folder, _NEXT_OBJECTS):  # up to 1,000 each
            for entry in page.get("Contents", ()):
                etag = entry["ETag"]  # changes with each version of the object
                yield Stored(
                    name=entry["Key"][prefix_length:],
                    size=entry["Size"],
                    mark=etag,
                    written_ns=_written_ns(entry),
                    md5=md5_of_etag(etag),
                )

    def level(self, folder: str = "") -> tuple[Sequence[str], Sequence[str]]:
        """Return the names of the folders, and of the objects, directly in a folder."""
        prefix_length = len(self._prefix(folder))
        folder_names: set[str] = set()
        object_names: set[str] = set()
        for page in self._pages("list_objects_v2", folder, _NEXT_OBJECTS, Delimiter="/"):
            for entry in page.get("CommonPrefixes", ()):
                folder_names.add(entry["Prefix"][prefix_length:].removesuffix("/"))
            for entry in page.get("Contents", ()):
                object_names.add(entry["Key"][prefix_length:])
        return sorted(folder_names), sorted(object_names)

    def _prefix(self, folder: str) -> str:
        """Return what the keys of all objects below a folder begin with; "" if it is the bucket."""
        prefix = self.key(folder)
        return f"{prefix}/" if prefix else ""

    def _pages(
        self, operation: str, folder: str, next_page: Mapping[str, str], **arguments: Any
    ) -> Iterator[Any]:
        """Yield the pages of a listing, each of which is botocore's answer to a request.

        A bucket lists objects in pages of up to 1,000. Each page says how to ask for the next one:
        the value of `NextContinuationToken` in one answer is the argument `ContinuationToken` of
        the next request.

        Args:
            operation: botocore's name of the request, such as `list_objects_v2`.
            folder: The folder that is listed, with all folders in it.
            next_page: Argument of the next request → key in this answer that has its value, such as
                {"ContinuationToken": "NextContinuationToken"}.
            arguments: Further arguments of the request.

        Raises:
            StorageError: The server repeats pages, or the listing does not end.
        """
        arguments["Prefix"] = self._prefix(folder)
        listing = LongListing(self.url(folder), self.server.address or "AWS")
        while True:
            page = self.ask(operation, name=None, read_answer=_complete_page, **arguments)
            yield page
            if not page["IsTruncated"]:
                return  # this is the last page

            next_arguments = {argument: page[key] for argument, key in next_page.items()}
            arguments.update(next_arguments)
            entries = _entries_of(page)
            listing.turn_page(
                len(entries),
                next_token=repr(next_arguments),
                first_entry=repr(entries[:1]),
            )

    def stat(self, name: str) -> Stored | None:
        """Return the description of an object, or None if it does not exist."""
        describe = partial(_stored, name)
        return unless_missing(
            lambda: self.ask("head_object", name, describe, ChecksumMode="ENABLED")
        )

    def read_stored(self, name: str) -> tuple[bytes, Stored] | None:
        """Return the bytes and the description of a small object, or None if it does not exist.

        The description (size, version, time) comes with the bytes, so that one request is enough.
        """

        def read_answer(answer: Any) -> tuple[bytes, Stored]:
            """Read the bytes, and compare their size and, if it is known, their sha256.

            `ask` calls this with the answer. After a DamagedTransferError, it sends the request
            again.
            """
            data: bytes = answer["Body"].read()
            stored = _stored(name, answer)
            if not _has_bytes(stored, data):
                raise DamagedTransferError(
                    f"{len(data):,} bytes that are not those of {self.url(name)}"
                )
            return data, stored

        return unless_missing(lambda: self.ask("get_object", name, read_answer))

    def read_range(self, name: str, begin: int, end: int, mark: str | None = None) -> bytes:
        """Return the bytes from `begin` to `end`, exclusive, of one version of an object.

        A large object is read in ranges. If it is replaced meanwhile, the ranges must not be mixed.
        So the request has a condition, "if the ETag is still this one", and the bucket refuses it
        otherwise.

        Args:
            name: Name of the object.
            begin: Position of the first byte.
            end: Position after the last byte.
            mark: The version that is expected, by its ETag; None for any version.

        Raises:
            SourceChangedError: The object has another ETag, or fewer bytes.
            MissingError: The object does not exist.
        """
        if begin >= end:
            return b""
        condition = {} if mark is None else {"IfMatch": mark}
        with self.reading(name, mark):
            data, stored = self._request_range(name, begin, end, condition)
        if stored.size < end:
            raise changed(
                self.url(name),
                found=f"{stored.size:,} bytes",
                expected=f"at least {end:,}",
            )
        return data

    def open_range(self, name: str, begin: int, end: int) -> tuple[bytes, Stored] | None:
        """Return a range of an object together with the object's description.

        For an object of 80 bytes:

            bytes [0, 100)      the 80 bytes; one request returns them and the description
            bytes [100, 200)    no bytes: the bucket answers 416, and another request is needed

        Args:
            name: Name of the object.
            begin: Position of the first byte.
            end: Position after the last byte. It may be beyond the end of the object.

        Returns:
            (the bytes, the description), or None if the object does not exist.
        """
        try:
            return unless_missing(lambda: self._request_range(name, begin, end, {}))
        except Exception as error:
            status, _ = status_of(error)
            if status != 416:
                raise
        # 416: there is no byte in this range.
        stored = self.stat(name)
        return None if stored is None else (b"", stored)

    def _request_range(
        self, name: str, begin: int, end: int, condition: Mapping[str, Any]
    ) -> tuple[bytes, Stored]:
        """Return a range of an object, and the object's description, with one request.

        For the first 100 bytes of an object of 1,234 bytes, the answer says `bytes 0-99/1234`, so
        that it tells the size of the whole object as well.

        Args:
            name: Name of the object.
            begin: Position of the first byte.
            end: Position after the last byte. It may be beyond the end of the object.
            condition: Conditions of the request: {"IfMatch": '"d41d8"'} lets the bucket refuse if
                the object has another ETag than this, because somebody has replaced it.
        """

        def read_answer(answer: Any) -> tuple[bytes, Stored]:
            """Read the bytes, and check that none is missing.

            `ask` calls this with the answer. After a DamagedTransferError, it sends the request
            again.
            """
            object_bytes = _bytes_of_object(answer)
            data: bytes = answer["Body"].read()
            expected_bytes = min(end, object_bytes) - begin
            check_length(data, expected_bytes)
            return data, Stored(name, object_bytes, answer["ETag"], _written_ns(answer))

        byte_range = f"bytes={begin}-{end - 1}"
        return self.ask("get_object", name, read_answer, Range=byte_range, **condition)

    @contextlib.contextmanager
    def reading(self, name: str, mark: str | None) -> Iterator[None]:
        """Within the block, turn errors that mean "the object was replaced" into errors that say
        so.

        A program reads a large object in many requests. Another one may replace or delete it
        between them, and then the bucket answers:

            404    the object does not exist any more
            412    it has another ETag than the program expects
            416    it has fewer bytes than the program asks for

        Args:
            name: Name of the object that the block reads.
            mark: The expected ETag; None for any.

        Raises:
            MissingError: The answer was 404.
            SourceChangedError: The answer was 412 or 416.
        """
        try:
            yield
        except Exception as error:
            if is_missing(error):
                raise gone(self.url(name)) from error
            status, _ = status_of(error)
            is_changed = status in (412, 416)
            if not is_changed:
                raise
            raise changed(
                self.url(name),
                found="another ETag, or fewer bytes",
                expected=mark or "the bytes asked for",
            ) from error

    def check_writable(self, name: str) -> None:
        """Check that this process may write an object, by beginning an upload and aborting it."""
        Upload(self, name, {}).abandon()

    def put_parts(self, name: str, blocks: Iterable[bytes]) -> None:
        """Write an object from consecutive blocks, which are sent in parts of `part_bytes`."""
        self._put(name, stream_parts(blocks, self.part_bytes), {}, _STREAM_PARTS_AT_ONCE)

    def put_file(
        self, name: str, path: Path, *, sha256: str | None = None, is_new: bool = False
    ) -> None:
        """Write an object from a local file, unless it is large and has the same bytes already.

        The sha256 of a file is stored with the object. So a build that was interrupted, and is run
        again, recognises what it has sent before, and need not send many GB a second time.

        Args:
            name: Name of the object.
            path: The file.
            sha256: Expected sha256 of the file as hex; None: it is not compared.
            is_new: Whether the caller knows that the object does not exist, which saves a request.

        Raises:
            StorageError: The file has other bytes than expected, or the object cannot be written.
        """
        file = file_parts(path, self.part_bytes)
        if sha256 is not None and sha256 != file.sha256:
            raise damaged(
                str(path),
                found=f"sha256 {file.sha256}",
                expected=f"sha256 {sha256}",
            )

        size = path.stat().st_size
        may_be_stored = not is_new and size > SMALL_BYTES
        if may_be_stored and self._is_stored(name, size, file.sha256):
            return
        self._put(name, file.parts, {SHA256: file.sha256}, _FILE_PARTS_AT_ONCE)

    def _is_stored(self, name: str, size: int, sha256: str) -> bool:
        """Return whether an object exists, and was stored with this size and sha256."""
        stored = self.stat(name)
        return stored is not None and stored.size == size and stored.sha256 == sha256

    def _put(
        self, name: str, parts: Iterable[Part], metadata: dict[str, str], at_once: int
    ) -> None:
        """Write an object: by one request if it is a single part, otherwise part by part.

        A large object is sent in parts, several at a time, and the bucket joins them. How many
        parts there are is not known in advance, since they may come from a stream.

        Args:
            name: Name of the object.
            parts: The parts, at least one.
            metadata: Texts that the bucket stores with the object, if it has several parts. An
                object of one part gets the sha256 of this part.
            at_once: How many parts are sent at the same time.
        """
        # The parts may be read from a stream: find out whether there is a second one.
        remaining_parts = iter(parts)
        first = next(remaining_parts)
        second = next(remaining_parts, None)
        if second is None:
            self._put_single_part(name, first)
            return

        with uploading(self, name, metadata) as upload:

            def send(numbered_part: tuple[int, Part]) -> None:
                """Send a part with its number, from 0."""
                number, part = numbered_part
                upload.send(number, part)

            # Take parts from the stream only as fast as they are sent.
            all_parts = chain((first, second), remaining_parts)
            in_parallel(send, enumerate(all_parts), at_once, window=at_once)

    def _put_single_part(self, name: str, part: Part) -> None:
        """Write a small object by one request, and check that the bucket has received its bytes.

        The bucket's answer has a digest of the bytes that it has received. If that is not the
        digest of the bytes that were sent, they were damaged on the way, and are sent again.

        Args:
            name: Name of the object.
            part: All of its bytes. Their sha256 is stored with the object.

        Raises:
            StorageError: The object cannot be written, or the bucket has received other bytes in
                each attempt.
        """

        def check_received(answer: Any) -> None:
            """Raise DamagedTransferError if the digest in the answer is not that of the bytes.

            `ask` calls this with the answer. After such an error, it sends the request again.
            """
            # The digest may be the ETag, which is an MD5 in some buckets only.
            check_sent(answer, part, is_md5=etags_are_md5(answer))

        self.ask(
            "put_object",
            name,
            read_answer=check_received,
            body=part.open,
            ChecksumSHA256=encoded(part.sha256),
            Metadata={SHA256: part.sha256.hex()},
        )

    def compose(
        self,
        name: str,
        sources: Sequence[Stored],
        *,
        sha256: Sequence[str | None] | None = None,
        joined: OnJoin = no_progress,
    ) -> str | None:
        """Write an object that is the concatenation of others, without reading large ones.

        The bucket copies their bytes itself.

        Args:
            name: Name of the new object.
            sources: The other objects of this bucket, or ranges of them, in order.
            sha256: Expected sha256 of each source as hex, or None for those that are not known.
            joined: Called with numbers of bytes that were joined, to show progress.

        Returns:
            The sha256 of the new object as hex if all of its bytes were read here; otherwise None.
        """
        # Imported here, since that module imports this one.
        from nanoset_core.storage.stores.s3.joining import join

        return join(self, name, sources, sha256, joined)

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        # Some servers answer 404 if the object does not exist. It may have been deleted by this
        # request, if the first answer was lost and the request was sent again.
        unless_missing(lambda: self.ask("delete_object", name, _ignore))

    def abort_uploads(self, is_abandoned: Callable[[str], bool]) -> Sequence[str]:
        """Abort uploads in parts that will never be completed, since the bucket keeps their parts.

        If a process is killed while it sends the parts of a large object, nobody sees the parts,
        but the owner of the bucket pays for them.

        Args:
            is_abandoned: Returns, for the name of an object, whether its upload is abandoned.

        Returns:
            Names of the objects whose uploads were aborted.
        """
        aborted_names = []
        prefix_length = len(self._prefix(""))
        for page in self._pages("list_multipart_uploads", "", _NEXT_UPLOADS):
            for upload in page.get("Uploads", ()):
                name = upload["Key"][prefix_length:]
                if is_abandoned(name):
                    self._abort(name, upload["UploadId"])
                    aborted_names.append(name)
        return aborted_names

    def _abort(self, name: str, upload_id: str) -> None:
        """Abort an upload in parts, if it still exists."""
        try:
            self.ask("abort_multipart_upload", name, _ignore, UploadId=upload_id)
        except Exception as error:
            if not _is_missing_upload(error):
                raise


def _is_missing_upload(error: Exception) -> bool:
    """Return whether a bucket answered that an upload in parts does not exist."""
    _, code = status_of(error)
    return code == "NoSuchUpload"


def _ignore(answer: Any) -> None:
    """Use nothing of an answer that only says that the request has succeeded."""


def _headers(answer: Any) -> Mapping[str, str]:
    """Return the HTTP headers of an answer."""
    headers: Mapping[str, str] = answer["ResponseMetadata"]["HTTPHeaders"]
    return headers


def _complete_page(page: Any) -> Any:
    """Return a page of a listing unchanged, after checking that it was received completely.

    Raises:
        KeyError: The page was cut off. `S3Store.ask` then sends the request again.
    """
    _ = page["IsTruncated"]
    return page


def _stored(name: str, answer: Any) -> Stored:
    """Return the description of an object: its size, version, time and what is known of its bytes.

    For example, from the answer {"ContentLength": 80, "ETag": '"d41d..."', "Metadata": {...}, ...}.

    Args:
        name: Name of the object.
        answer: botocore's answer to `head_object` or `get_object`.
    """
    # Some servers and proxies return the names of metadata in capitals.
    metadata = {key.lower(): value for key, value in answer.get("Metadata", {}).items()}
    return Stored(
        name,
        size=answer["ContentLength"],
        mark=answer["ETag"],
        written_ns=_written_ns(answer),
        sha256=metadata.get(SHA256),
        upload=metadata.get(UPLOAD),
        is_digest=etags_are_md5(answer),
    )


def _written_ns(answer: Any) -> int:
    """Return when an object was written, in nanoseconds since 1970.

    Fractions of a second are cut off, since only some answers have them.
    """
    return int(answer["LastModified"].timestamp()) * 10**9


@contextlib.contextmanager
def _content_of(body: Callable[[], Any] | None) -> Iterator[dict[str, Body]]:
    """Yield the argument `Body` of botocore's operation, if the request sends bytes.

    Args:
        body: Opens the bytes; None for a request that sends none.

    Yields:
        {"Body": the bytes}, or {} for a request that sends none.
    """
    if body is None:
        yield {}
        return
    with body() as opened:
        yield {"Body": Body(opened)}


def _has_bytes(stored: Stored, data: bytes) -> bool:
    """Return whether an object has some bytes, by its size and, if it is known, its sha256."""
    if len(data) != stored.size:
        return False
    # The writer may have stored the sha256 with the object.
    return stored.sha256 is None or hashlib.sha256(data).hexdigest() == stored.sha256


def _entries_of(page: Mapping[str, Any]) -> list[Any]:
    """Return the entries of a page of a listing of all kinds: objects, folders and uploads."""
    entries: list[Any] = []
    for key in _ENTRY_KEYS:
        entries += page.get(key, ())
    return entries


def _bytes_of_object(answer: Mapping[str, Any]) -> int:
    """Return the size of the whole object, from an answer with a range of it.

    ContentRange "bytes 0-99/1234"              1234: the range has 100 of 1,234 bytes
    no ContentRange, and ContentLength 1234     1234: the server has sent the whole object
    """
    size_text = str(answer.get("ContentRange", answer["ContentLength"]))
    return int(size_text.rpartition("/")[2])


class Upload:
    """An upload in parts, which the bucket joins to one object at the end.

    S3 calls it a multipart upload. The object does not change before `complete`.
    """

    def __init__(self, store: S3Store, name: str, metadata: dict[str, str]) -> None:
        """Begin an upload in parts, which the bucket joins to one object at the end.

        The bucket answers with an id, which all further requests about the upload have to name.

        Args:
            store: The bucket.
            name: Name of the object.
            metadata: Texts that the bucket stores with the object.
        """
        self._store = store
        self._name = name
        self._mark = secrets.token_hex(8)
        """Stored with the object, so that it can be recognised as that of this upload."""

        def read_answer(answer: Any) -> tuple[str, bool]:
            """Return the id of the upload, and whether the ETags of its parts are MD5 digests."""
            return answer["UploadId"], etags_are_md5(answer)

        self._id, self.etags_are_md5 = store.ask(
            "create_multipart_upload",
            name,
            read_answer,
            ChecksumAlgorithm="SHA256",
            Metadata=metadata | {UPLOAD: self._mark},
        )
        self._finished_parts: dict[int, dict[str, Any]] = {}
        """Number of a part, from 0 → the values by which the request that joins the parts lists it.
        """

    def send(self, number: int, part: Part) -> None:
        """Send a part of an object, and check that the bucket has received its bytes.

        Args:
            number: Number of the part, from 0.
            part: Its bytes.

        Raises:
            StorageError: The bucket has received other bytes in each attempt, or another process
                aborted the upload.
        """

        def checked_etag(answer: Any) -> str:
            """Return the ETag in the answer, if the bucket has received the bytes of the part.

            If it has not, `check_sent` raises an error, after which `_ask` sends the part again.
            """
            return check_sent(answer, part, is_md5=self.etags_are_md5)

        part_number = number + 1  # S3 counts parts from 1
        sha256 = encoded(part.sha256)
        etag = self._ask(
            "upload_part",
            read_answer=checked_etag,
            body=part.open,
            PartNumber=part_number,
            ChecksumSHA256=sha256,
        )
        # The last request of the upload lists all parts with these values. The bucket joins them.
        self._finished_parts[number] = {
            "PartNumber": part_number,
            "ChecksumSHA256": sha256,
            "ETag": etag,
        }

    def copy(self, number: int, name: str, mark: str, begin: int, end: int) -> Any:
        """Let the bucket copy a part from another object, without sending its bytes.

        For example, part 3 of the new object becomes the bytes [0, 64 MiB) of the object
        `web/a.bin`.

        Args:
            number: Number of the part, from 0.
            name: Name of the other object.
            mark: Expected ETag of the other object.
            begin: Position of the first byte in it.
            end: Position after the last byte.

        Returns:
            A dictionary with the `ETag` of the part and, if the server reports it, its
            `ChecksumSHA256` in base64. The caller compares them with the source, since some servers
            ignore the expected ETag.
        """
        is_large = end - begin > _SOON_COPIED_BYTES
        # The bucket only answers when it has copied all bytes.
        read_seconds = COPY_SECONDS if is_large else None  # None: the usual time
        part_number = number + 1  # S3 counts parts from 1
        etag_and_sha256 = self._ask(
            "upload_part_copy",
            read_answer=_values_of_copy,
            read_seconds=read_seconds,
            PartNumber=part_number,
            CopySource={"Bucket": self._store.bucket, "Key": self._store.key(name)},
            CopySourceIfMatch=mark,
            CopySourceRange=f"bytes={begin}-{end - 1}",
        )
        # The last request of the upload lists all parts with these values. The bucket joins them.
        finished_part = {"PartNumber": part_number, **etag_and_sha256}
        self._finished_parts[number] = finished_part
        return finished_part

    def complete(self) -> None:
        """Let the bucket join the parts to the object, in the order of their numbers.

        If the bucket's answer is lost, the request is sent again. Then the bucket may answer that
        there is no such upload, since it has joined the parts at the first request. So look at the
        object: this upload has written it if it has the random text that this upload gave to it
        (`_mark`).

        Raises:
            StorageError: Another process aborted the upload.
        """

        def etag_of_object(answer: Any) -> str:
            """Return the ETag in the answer. KeyError: it was cut off, and `_ask` asks again."""
            etag: str = answer["ETag"]
            return etag

        numbers = sorted(self._finished_parts)
        parts = [self._finished_parts[number] for number in numbers]
        try:
            self._ask(
                "complete_multipart_upload",
                etag_of_object,
                MultipartUpload={"Parts": parts},
            )
        except UploadAbortedError:  # there is no such upload
            stored = self._store.stat(self._name)
            is_complete = stored is not None and stored.upload == self._mark
            if not is_complete:
                raise

    def _ask(self, operation: str, read_answer: Callable[[Any], Any], **arguments: Any) -> Any:
        """Send a request about this upload, with retries.

        The bucket identifies the upload by an id, which is added to the request. If it answers that
        there is no such upload, somebody has aborted or completed it.

        Args:
            operation: botocore's name of the request, such as `upload_part`.
            read_answer: Called with the answer, as in `S3Store.ask`.
            arguments: Further arguments of `S3Store.ask`.

        Returns:
            What `read_answer` returns.

        Raises:
            UploadAbortedError: The upload does not exist any more.
        """
        arguments["UploadId"] = self._id
        try:
            return self._store.ask(operation, self._name, read_answer, **arguments)
        except Exception as error:
            if not _is_missing_upload(error):
                raise
            raise UploadAbortedError(
                "the bucket does not hold what was sent",
                where=self._store.url(self._name),
                found="another process aborted the upload",
                remedy="run again, which uploads it again",
            ) from error

    def abandon(self) -> None:
        """Abort the upload; if that fails, the bucket's lifecycle rule removes its parts later."""
        from botocore.exceptions import BotoCoreError, ClientError

        with contextlib.suppress(BotoCoreError, ClientError):
            self._store.client().abort_multipart_upload(
                Bucket=self._store.bucket,
                Key=self._store.key(self._name),
                UploadId=self._id,
            )


def _values_of_copy(answer: Mapping[str, Any]) -> dict[str, str]:
    """Return the ETag of a part that the bucket has copied, and its sha256 if that is reported."""
    copy = answer["CopyPartResult"]
    values = {"ETag": copy["ETag"]}
    if "ChecksumSHA256" in copy:
        values["ChecksumSHA256"] = copy["ChecksumSHA256"]
    return values


class UploadAbortedError(StorageError):
    """An upload in parts does not exist any more: it was aborted, or has been completed."""


@contextlib.contextmanager
def uploading(store: S3Store, name: str, metadata: dict[str, str]) -> Iterator[Upload]:
    """Yield an upload in parts; it is completed at the end of the block, or aborted by an error.

        with uploading(store, "web/a.bin", {}) as upload:
            upload.send(0, first_part)
            upload.send(1, second_part)
        # now the object exists: the bucket has joined the parts

    Args:
        store: The bucket.
        name: Name of the object.
        metadata: Texts that the bucket stores with the object.

    Yields:
        The upload, to which the block passes the parts.

    Raises:
        StorageError: The bucket refuses, or has received other bytes than were sent.
    """
    upload = Upload(store, name, metadata)
    try:
        yield upload
        upload.complete()
    except BaseException:
        upload.abandon()
        raise
