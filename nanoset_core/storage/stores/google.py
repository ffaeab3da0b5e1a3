"""Write objects of Google Storage, `gs://`.

The package gcsfs provides the connection and the credentials. The requests are those of Google's
JSON API, since the methods of gcsfs for files send two or three requests where one is enough, and
do not say which version of an object they read.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from nanoset_core.errors import StorageError
from nanoset_core.storage.requests import (
    SMALL_REQUESTS_AT_ONCE,
    TRANSFERS_AT_ONCE,
    DamagedTransferError,
    check_length,
    in_parallel,
)
from nanoset_core.storage.store import (
    OnJoin,
    Store,
    Stored,
    checked_name,
    damaged,
    no_progress,
)
from nanoset_core.storage.stores.cloud_filesystem import (
    PART_STEP,
    CloudFilesystemStore,
    LostUploadError,
    ObjectVersion,
    PartsUpload,
    prefix_of,
)
from nanoset_core.storage.stores.filesystem_errors import http_status
from nanoset_core.storage.stores.filesystems import nanoseconds
from nanoset_core.storage.stores.long_listings import LongListing
from nanoset_core.storage.stores.temporary_objects import temporary_objects

T = TypeVar("T")
MAX_SOURCES = 32
"""Objects that one request can join; a limit of Google Storage."""
_SHA256 = "nanoset-sha256"
"""Key of an object's metadata: the sha256 of its bytes, as hex."""
_UPLOAD = "nanoset-upload"
"""Key of an object's metadata: a random mark of the upload that made it."""
_OBJECT_FIELDS = "name,size,generation,updated,metadata"
"""What is requested about an object."""
_LIST_FIELDS = "nextPageToken,prefixes,items(name,size,generation,updated,md5Hash)"
"""What is requested about the objects of a listing."""
_VERSION_HEADERS = ("X-Goog-Generation", "Last-Modified")
"""Headers by which an answer with bytes of an object says which version it has."""
_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+)")
"""The header by which an answer says which bytes it has."""
_BEYOND_END = 416
"""Status of answers to requests for bytes that an object does not have."""
_INCOMPLETE = 308
"""Status of answers to a part of an object, of which others are expected."""
_BYTES = "application/octet-stream"
_JSON = "application/json; charset=UTF-8"
"""Types of content, for headers of requests."""


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class GoogleStore(CloudFilesystemStore):
    """The objects below a prefix of a bucket of Google Storage."""

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        address = self.base.partition("://")[2]
        return address.partition("/")[0]

    def key(self, name: str) -> str:
        """Return the key of an object, or of a folder, in the bucket.

        Args:
            name: Name within this store, or "" for its top. With the base `gs://bucket/nanoset`,
                `web/a.bin` gives `nanoset/web/a.bin`.

        Returns:
            The key without slashes at its ends.
        """
        address = self.base.partition("://")[2]
        prefix = address.partition("/")[2]
        return f"{prefix}/{name}".strip("/")

    @property
    def objects_path(self) -> str:
        """The path of all objects of the bucket, relative to the URL of the JSON API."""
        return f"b/{quote(self.bucket, safe='')}/o"

    def object_path(self, name: str) -> str:
        """Return the path of an object, relative to the URL of the JSON API.

        Args:
            name: Name of the object within this store.

        Returns:
            A path such as `b/bucket/o/nanoset%2Fweb%2Fa.bin`, in which the key is quoted.

        Raises:
            ConfigError: The name would lead out of the store.
        """
        return f"{self.objects_path}/{quote(self.key(checked_name(name)), safe='')}"

    @property
    def upload_url(self) -> str:
        """The URL to which new objects are sent."""
        api = self.system().base  # https://storage.googleapis.com/storage/v1/
        server = api.removesuffix("storage/v1/")
        return f"{server}upload/storage/v1/{self.objects_path}"

    def request(
        self,
        name: str,
        method: str,
        path: str,
        read_answer: Callable[[Answer], T],
        *,
        may_be_missing: bool = False,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        **parameters: Any,
    ) -> T | None:
        """Send a request to Google's web interface (its JSON API), with retries, and return what it
        answers.

        For example, this asks for the size and time of an object:

            GET https://storage.googleapis.com/storage/v1/b/bucket/o/web%2Fa.bin
                ?fields=name,size,updated

        Args:
            name: Name of the object that it is about, for messages.
            method: Method of HTTP, such as GET.
            path: Path relative to the URL of the JSON API, such as `b/bucket/o/web%2Fa.bin`, or a
                whole URL.
            read_answer: Called with the answer. It may raise DamagedTransferError for a faulty one;
                then the request is sent again.
            may_be_missing: Whether the object may be missing. Otherwise it is an error about the
                bucket if the server finds nothing.
            headers: Headers of the request.
            data: The bytes that are sent.
            parameters: Parameters of the URL, such as `fields`; those that are None are left out.

        Returns:
            What `read_answer` returns, or None if the object does not exist.
        """

        def once() -> T:
            """Send the request once."""
            answer = self.send(method, path, headers=headers, data=data, **parameters)
            return read_answer(answer)

        return self._ask(name, once, may_be_missing=may_be_missing)

    def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        **parameters: Any,
    ) -> Answer:
        """Send a request to the JSON API once, without retries.

        Args:
            method: Method of HTTP, such as GET.
            path: Path relative to the URL of the JSON API, or a whole URL.
            headers: Headers of the request.
            data: The bytes that are sent.
            parameters: Parameters of the URL; those that are None are left out.

        Raises:
            OSError: The server could not be reached, or has refused the request. Google's packages
                raise other errors for this, too.
        """
        from fsspec.asyn import sync

        # gcsfs has no public method for any request, and the private one is wrapped in a loop that
        # sends a request again after long pauses: take the function without the wrapper. An upload
        # must not be continued before the server has said which bytes it has.
        system = self.system()
        send_once = inspect.unwrap(type(system)._request)

        # It is a coroutine function, which runs in the event loop of gcsfs, in another thread.
        status, answer_headers, _, body = sync(
            system.loop,
            send_once,
            system,
            method,
            path,
            headers=headers,
            data=data,
            **parameters,
        )
        return Answer(status, answer_headers, body)

    def retried(self, name: str, attempt: Callable[[], T]) -> T | None:
        """Call a function that sends requests until it succeeds, at most 10 times.

        Args:
            name: Name of the object that it is about, for messages.
            attempt: The function. It is called again after errors that may pass, such as a broken
                connection.

        Returns:
            What the function returns, or None if what it asks for does not exist.
        """
        return self._ask(name, attempt)

    def now(self) -> int:
        """Return the time of the server's clock, in nanoseconds since 1970."""
        # Every answer has the time in a header: ask for something small.
        date = self.request(
            "", "GET", self.objects_path, lambda answer: answer.headers["Date"], maxResults=1
        )
        return int(parsedate_to_datetime(str(date)).timestamp()) * 10**9

    def list(self, folder: str = "") -> Iterator[Stored]:
        """Yield all objects below a folder, in the order of their names."""
        prefix_length = len(prefix_of(self.key("")))
        for page in self._pages(folder):
            for item in page.get("items", ()):
                yield _stored(item["name"][prefix_length:], item)

    def level(self, folder: str = "") -> tuple[Sequence[str], Sequence[str]]:
        """Return the names of the folders, and of the objects, directly in a folder."""
        prefix_length = len(prefix_of(self.key(folder)))
        folder_names: set[str] = set()
        object_names: set[str] = set()
        for page in self._pages(folder, delimiter="/"):
            for prefix in page.get("prefixes", ()):
                folder_names.add(prefix[prefix_length:].removesuffix("/"))
            for item in page.get("items", ()):
                object_names.add(item["name"][prefix_length:])
        return sorted(folder_names), sorted(object_names)

    def holds(self, folder: str) -> bool:
        """Return whether there is any object below a folder."""
        return next(self.list(folder), None) is not None

    def _pages(self, folder: str, **parameters: Any) -> Iterator[Any]:
        """Yield the pages of a listing, as the JSON API of Google Cloud Storage describes them.

        The server lists the objects below a folder in pages of up to 1,000. Each page except the
        last names a token, with which the next one is requested:

            request                     answer
            without a token             1,000 objects, nextPageToken "CgNh"
            with pageToken "CgNh"       80 objects, no token: the last page

        Args:
            folder: The folder that is listed, with all folders in it, such as `datasets/web`.
            parameters: Further parameters of the request.

        Raises:
            StorageError: The server repeats pages, or the listing does not end.
        """
        listing = LongListing(self.url(folder))
        page_token = None  # asks for the first page
        while True:
            page: Any = self.request(
                folder,
                "GET",
                self.objects_path,
                _parsed_body,
                prefix=prefix_of(self.key(folder)),
                pageToken=page_token,
                fields=_LIST_FIELDS,
                **parameters,
            )
            yield page
            page_token = page.get("nextPageToken")
            if page_token is None:
                return  # this is the last page

            entries = [*page.get("items", ()), *page.get("prefixes", ())]
            first_entry = repr(entries[:1])
            listing.turn_page(len(entries), next_token=page_token, first_entry=first_entry)

    def stat(self, name: str) -> Stored | None:
        """Return the description of an object, or None if it does not exist."""
        return self.request(
            name,
            "GET",
            self.object_path(name),
            lambda answer: _stored(name, json.loads(answer.body)),
            may_be_missing=True,
            fields=_OBJECT_FIELDS,
        )

    def read_stored(self, name: str) -> tuple[bytes, Stored] | None:
        """Return the bytes and the description of a small object, or None if it does not exist.

        The description (size, version, time of change) is in the headers of the answer with the
        bytes, so that one request is enough. Only if the answer lacks something, two requests are
        sent: for the description, and for the bytes.
        """
        answer = self.request(
            name, "GET", self.object_path(name), _whole_answer, may_be_missing=True, alt="media"
        )
        if answer is None:
            return None
        if not _is_complete(answer) or not _has_version(answer):
            return CloudFilesystemStore.read_stored(self, name)
        return answer.body, _stored_in_headers(name, len(answer.body), answer.headers)

    def open_range(self, name: str, begin: int, end: int) -> tuple[bytes, Stored] | None:
        """Return a range of an object together with its description, if possible by one request.

        The description has the size and the version of the object. For an object of 80 bytes:

            range         requests
            [0, 50)       one, whose answer has both
            [50, 100)     the same: the answer says that it has the last 30 bytes
            [100, 200)    two: the server answers that there are no such bytes, and no more
            [50, 50)      one, for the description only

        Some servers never say which version an answer is from. Then two requests are needed, for
        the description and for the bytes.

        Args:
            name: Name of the object.
            begin: Position of the first byte.
            end: Position after the last byte. It may be beyond the end of the object.

        Returns:
            (the bytes, the description of the object), or None if the object does not exist.
        """
        if begin >= end:
            return Store.open_range(self, name, begin, end)  # requests the description only
        answer = self._range_answer(name, begin, end)
        if answer is None:
            return None
        range_and_description = _checked_range(name, answer, begin, end)
        if range_and_description is None:
            # The answer lacks something. This requests the description, and then the bytes, if any.
            return Store.open_range(self, name, begin, end)
        return range_and_description

    def _range_answer(self, name: str, begin: int, end: int) -> Answer | None:
        """Return the server's answer to a request for a range of an object.

        Args:
            name: Name of the object.
            begin: Position of the first byte.
            end: Position after the last byte.

        Returns:
            The answer. It has no bytes and no headers if the object ends before the range; None if
            the object does not exist.
        """
        path = self.object_path(name)

        def send_once() -> Answer:
            """Request the range. `_ask` calls this, and again if the server fails for a moment."""
            try:
                byte_range = f"bytes={begin}-{end - 1}"
                return self.send("GET", path, headers={"Range": byte_range}, alt="media")
            except Exception as error:
                if http_status(error) != _BEYOND_END:
                    raise
                # The object ends before this range. The answer says nothing about its description.
                return Answer(_BEYOND_END, headers={}, body=b"")

        return self._ask(name, send_once)

    def request_range(
        self, name: str, begin: int, end: int, version: ObjectVersion
    ) -> bytes | None:
        """Request bytes of an object, with the number of the version that has to answer.

        Google calls this number the *generation*.
        """

        def checked_bytes(answer: Answer) -> bytes:
            """Return the bytes, after checking that none is missing."""
            check_length(answer.body, end - begin)
            return answer.body

        return self.request(
            name,
            "GET",
            self.object_path(name),
            checked_bytes,
            may_be_missing=True,
            headers={"Range": f"bytes={begin}-{end - 1}"},
            alt="media",
            generation=version.identifier,
        )

    def check_writable(self, name: str) -> None:
        """Check that this process may write an object, by beginning an upload and cancelling it."""
        _GoogleUpload(self, name, None).abandon()

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        # It may have been deleted by this request, if the first answer was lost.
        self.request(name, "DELETE", self.object_path(name), _ignore, may_be_missing=True)

    def write_whole(self, name: str, data: bytes, sha256: str) -> None:
        """Write an object by one request; the server refuses bytes that were damaged on the way.

        The body of the request has two parts, each with a header of its own. They are separated by
        a random line, which occurs in neither:

            --7f3a...
            {"name": "web/a.bin", "md5Hash": "...", "metadata": {...}}    the description
            --7f3a...
            (the bytes of the object)
            --7f3a...--
        """
        md5 = hashlib.md5(data, usedforsecurity=False).digest()
        description = {
            "name": self.key(checked_name(name)),
            "md5Hash": base64.b64encode(md5).decode(),
            "metadata": {_SHA256: sha256},
        }

        boundary = secrets.token_hex(16)
        parts = [
            f"--{boundary}\r\nContent-Type: {_JSON}\r\n\r\n".encode(),
            json.dumps(description).encode(),
            f"\r\n--{boundary}\r\nContent-Type: {_BYTES}\r\n\r\n".encode(),
            data,
            f"\r\n--{boundary}--".encode(),
        ]
        self.request(
            name,
            "POST",
            self.upload_url,
            _ignore,
            headers={"Content-Type": f"multipart/related; boundary={boundary}"},
            data=b"".join(parts),
            uploadType="multipart",
        )

    def begin_upload(self, name: str, sha256: str | None) -> PartsUpload:
        """Begin to write an object in parts."""
        return _GoogleUpload(self, name, sha256)

    def compose(
        self,
        name: str,
        sources: Sequence[Stored],
        *,
        sha256: Sequence[str | None] | None = None,
        joined: OnJoin = no_progress,
    ) -> str | None:
        """Write an object that is the concatenation of others.

            many bytes         the server joins the objects, so that their bytes are not sent to us
            few bytes          they are read and written, which takes fewer requests
            ranges of objects  the same, since the server can only join whole objects

        Args:
            name: Name of the new object.
            sources: The other objects of this bucket, or ranges of them, in order.
            sha256: Expected sha256 of each source as hex, or None for those that are not known.
            joined: Called with numbers of bytes that were joined, to show progress.

        Returns:
            The sha256 of the new object as hex if its bytes were read and written here; None if the
            server has joined the objects.
        """
        size = sum(source.size for source in sources)
        is_small = size <= self.part_bytes
        are_whole_objects = all(_is_whole(source) for source in sources)
        if is_small or not are_whole_objects:
            # The method of the base class reads and writes the bytes.
            return Store.compose(self, name, sources, sha256=sha256, joined=joined)

        checked_name(name)
        self._check_sources(sources)
        if len(sources) > MAX_SOURCES:  # more than 32, which one request can join
            self._join_in_steps(name, sources, joined)
        else:
            self._join(name, sources)
            joined(size)
        return None

    def _join_in_steps(self, name: str, sources: Sequence[Stored], joined: OnJoin) -> None:
        r"""Join more objects than one request can, by way of temporary objects.

        Google joins at most 32 objects at once. So 70 objects take two steps:

            objects 0 to 31    →  temporary object 0  \
            objects 32 to 63   →  temporary object 1   →  the new object
            objects 64 to 69   →  temporary object 2  /

        Args:
            name: Name of the new object.
            sources: Whole objects, in the order in which they are joined.
            joined: Is called with the number of bytes that were joined, to show progress.
        """
        starts = range(0, len(sources), MAX_SOURCES)
        groups = [sources[start : start + MAX_SOURCES] for start in starts]
        with temporary_objects(self, name, len(groups)) as temporary_names:
            group_by_name = dict(zip(temporary_names, groups, strict=True))

            def join_group(temporary_name: str) -> Stored:
                """Join the sources of one temporary object, and return its description."""
                joined_group = self._join(temporary_name, group_by_name[temporary_name])
                joined(joined_group.size)
                return joined_group

            joined_groups = in_parallel(join_group, temporary_names, TRANSFERS_AT_ONCE)
            # If these are more than 32, this takes a further step. All bytes have been reported.
            self.compose(name, joined_groups)

    def _check_sources(self, sources: Sequence[Stored]) -> None:
        """Check that objects still exist in the versions that were listed, before they are joined.

        Args:
            sources: The objects, each with the mark of its version, such as
                "1700000000000000-1234".

        Raises:
            SourceChangedError: A source has another mark.
            MissingError: A source does not exist.
        """

        def check(source: Stored) -> None:
            """Check one object."""
            self._check_version(source.name, source.mark, min_size=source.size)

        in_parallel(check, sources, SMALL_REQUESTS_AT_ONCE)

    def _join(self, name: str, sources: Sequence[Stored]) -> Stored:
        """Let the server join up to 32 whole objects, and return the description of the result.

        The request names the version of each object, so that the server refuses to join others. The
        size of the result has to be the sum of their sizes.

        Args:
            name: Name of the new object.
            sources: The objects, in order.

        Raises:
            SourceChangedError: A source has another mark.
            MissingError: A source does not exist.
        """
        request = {
            "sourceObjects": [self._source_in_request(source) for source in sources],
            "destination": {"contentType": _BYTES},
        }
        try:
            stored = self.request(
                name,
                "POST",
                f"{self.object_path(name)}/compose",
                lambda answer: _stored(name, json.loads(answer.body)),
                headers={"Content-Type": _JSON},
                data=json.dumps(request).encode(),
            )
        except StorageError:
            # The reason may be a source that was deleted or replaced since it was checked.
            self._check_sources(sources)
            raise
        assert stored is not None, "a missing object is an error"

        expected_bytes = sum(source.size for source in sources)
        if stored.size != expected_bytes:
            raise damaged(
                self.url(name), found=f"{stored.size:,} bytes", expected=f"{expected_bytes:,} bytes"
            )
        return stored

    def _source_in_request(self, source: Stored) -> dict[str, Any]:
        """Return how a request to join objects names one of them.

        Google joins only the version that is named, by its number (generation).

        Args:
            source: A whole object.
        """
        generation = ObjectVersion.of_mark(source.mark).identifier
        return {
            "name": self.key(checked_name(source.name)),
            "generation": generation,
            "objectPreconditions": {"ifGenerationMatch": generation},
        }


def _stored(name: str, item: Mapping[str, Any]) -> Stored:
    """Return the description of an object: its size, version, time and checksums.

    The version is named by a mark, such as "1700000000000000-1234": Google's number of the version
    (generation) and the size.

    Args:
        name: Name of the object in the store.
        item: How Google's JSON API describes it, such as {"size": "1234", "generation":
            "1700000000000000", "updated": "2026-03-01T12:03:04Z", "md5Hash": ...}.
    """
    size = int(item["size"])
    metadata = item.get("metadata", {})
    md5 = None  # of objects that were joined by the server, it is not known
    if "md5Hash" in item:
        md5 = base64.b64decode(item["md5Hash"]).hex()
    return Stored(
        name,
        size=size,
        mark=f"{item['generation']}-{size}",
        # In whole seconds, since answers with the bytes of an object have no others.
        written_ns=nanoseconds(item["updated"]) // 10**9 * 10**9,
        sha256=metadata.get(_SHA256),
        upload=metadata.get(_UPLOAD),
        md5=md5,
    )


def _stored_in_headers(name: str, size: int, headers: Mapping[str, str]) -> Stored:
    """Return the description of an object whose bytes were requested.

    The answer with the bytes describes the object, too, in headers such as:

        X-Goog-Generation: 1700000000000000                 Google's number of the version
        Last-Modified: Sun, 01 Mar 2026 12:03:04 GMT

    Args:
        name: Name of the object in the store.
        size: Bytes of the whole object.
        headers: Headers of the answer.
    """
    return Stored(
        name,
        size=size,
        mark=f"{headers['X-Goog-Generation']}-{size}",
        written_ns=nanoseconds(headers["Last-Modified"]),
    )


def _is_complete(answer: Answer) -> bool:
    """Return whether an answer surely has all bytes of an object.

    If the connection breaks, the client returns what has arrived, perhaps nothing, and no error.
    """
    size = len(answer.body)
    return size > 0 and answer.headers.get("Content-Length") == str(size)


def _has_version(answer: Answer) -> bool:
    """Return whether an answer with bytes of an object says which version it has.

    Some servers do not.
    """
    return all(name in answer.headers for name in _VERSION_HEADERS)


def _is_whole(source: Stored) -> bool:
    """Return whether this describes a whole object, not a range of it."""
    return source.begin == 0 and source.size == ObjectVersion.of_mark(source.mark).size


def _parsed_body(answer: Answer) -> Any:
    """Return the JSON in the body of an answer."""
    return json.loads(answer.body)


def _whole_answer(answer: Answer) -> Answer:
    """Return an answer as it is, to a caller that needs its body and headers."""
    return answer


def _checked_range(name: str, answer: Answer, begin: int, end: int) -> tuple[bytes, Stored] | None:
    """Return the bytes and the description from an answer to a request for a range of an object.

    A header says which bytes of how many the answer has: "Content-Range: bytes 0-99/1234".

    Args:
        name: Name of the object.
        answer: The answer.
        begin: Position of the first byte that was requested.
        end: Position after the last one. It may be beyond the end of the object.

    Returns:
        (the bytes, the description of the object); None if the answer has other bytes than these,
        or does not say which version of the object they are from.
    """
    content_range = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if content_range is None or not _has_version(answer):
        return None
    first, last, size = (int(number) for number in content_range.groups())  # 0, 99, 1234
    is_requested_range = first == begin and last == min(end, size) - 1
    is_complete = len(answer.body) == last - first + 1
    if not is_requested_range or not is_complete:
        return None
    return answer.body, _stored_in_headers(name, size, answer.headers)


def _ignore(answer: Answer) -> None:
    """Use nothing of an answer that only says that the request has succeeded."""


def _received_bytes(answer: Answer, *, known_bytes: int) -> int:
    """Return how many bytes of an object the server has received so far.

    A large object is sent in parts. The server answers each part with the bytes that it keeps:

        header of the answer       bytes that the server has
        Range: bytes=0-262143      262,144
        no header                  0

    Args:
        answer: The answer to a part, of HTTP status 308.
        known_bytes: How many bytes earlier answers have confirmed.

    Raises:
        DamagedTransferError: The answer says fewer than earlier ones. This happens if the
            connection breaks within its headers, since aiohttp then returns the headers that have
            arrived.
    """
    # The header is such as "bytes=0-262143". Without it, the server has nothing.
    range_header = answer.headers.get("Range")
    n_bytes = 0
    if range_header is not None:
        last = int(range_header.rpartition("-")[2])
        # Google keeps multiples of 256 KiB. Other servers report "bytes=0-0" if they have nothing.
        n_bytes = (last + 1) // PART_STEP * PART_STEP
    if n_bytes < known_bytes:
        raise DamagedTransferError(f"{n_bytes:,} bytes, of which {known_bytes:,} are known")
    return n_bytes


class _GoogleUpload(PartsUpload):
    """A resumable upload, as Google calls it: the server keeps the parts until the last one.

    Parts are sent in order. If a request fails, the server is asked which bytes it has before the
    others are sent again. It forgets unfinished uploads after a week.
    """

    def __init__(self, store: GoogleStore, name: str, sha256: str | None) -> None:
        """Begin an upload in parts.

        The first request describes the object, such as {"name": "web/a.bin", "metadata": {...}}.
        Google answers with a URL, to which the parts are sent.

        Args:
            store: The bucket.
            name: Name of the object.
            sha256: The sha256 of the object as hex, to be stored with it; None if not known.
        """
        self._store = store
        self._name = checked_name(name)
        self._mark = secrets.token_hex(8)
        """Stored with the object, so that it can be recognised as that of this upload."""
        self._md5 = hashlib.md5(usedforsecurity=False)
        """Digest of all bytes that were sent."""
        self._position = 0
        """Number of bytes that the server has."""

        metadata = {_UPLOAD: self._mark}
        if sha256 is not None:
            metadata[_SHA256] = sha256
        description = {"name": store.key(name), "metadata": metadata}
        self._session = store.request(
            name,
            "POST",
            store.upload_url,
            lambda answer: answer.headers["Location"],
            headers={"Content-Type": _JSON, "X-Upload-Content-Type": _BYTES},
            data=json.dumps(description).encode(),
            uploadType="resumable",
        )
        """URL of the upload."""

    def send(self, part: bytes) -> None:
        """Send the next part, which is not the last one.

        Raises:
            LostUploadError: The server does not know the upload any more.
        """
        answer = self._send(part, total="*")
        # The server has to wait for the other parts.
        if answer is None or answer.status != _INCOMPLETE:
            raise self._lost_error()

    def complete(self, last_part: bytes) -> None:
        """Send the last part, and let the object appear.

        The server's answer describes the new object, so that its size and MD5 can be compared with
        the bytes that were sent.

        Args:
            last_part: Bytes of the last part.

        Raises:
            LostUploadError: The server does not know the upload any more.
            StorageError: The object has other bytes than were sent.
        """
        size = self._position + len(last_part)
        answer = self._send(last_part, total=str(size))
        if answer is None:
            self._check_completed_before(size)
            return

        description = json.loads(answer.body)  # of the new object
        self._check("size", str(description["size"]), str(size))
        md5 = base64.b64encode(self._md5.digest()).decode()
        self._check("MD5", description.get("md5Hash", md5), md5)  # not every server reports it

    def _check_completed_before(self, size: int) -> None:
        """Check that an upload that the server does not know has written the object nevertheless.

        Perhaps the server has completed the upload, but its answer was lost, and the last part was
        sent again: some servers forget an upload that is complete. Then the object has the random
        mark that this upload began with.

        Args:
            size: Bytes that the object must have.

        Raises:
            LostUploadError: The object does not exist, or another upload has written it.
            StorageError: It has another size.
        """
        stored = self._store.stat(self._name)
        if stored is None or stored.upload != self._mark:
            raise self._lost_error()
        self._check("size", str(stored.size), str(size))

    def _check(self, what: str, found: str, expected: str) -> None:
        """Compare the new object with what was sent, and delete the object if they differ.

        Args:
            what: What is compared: "size" or "MD5".
            found: Its value in the server's answer, such as "80".
            expected: Its value for the bytes that were sent.

        Raises:
            StorageError: The values differ.
        """
        if found != expected:
            self._store.delete(self._name)
            raise damaged(
                self._store.url(self._name),
                found=f"{what} {found}",
                expected=f"{what} {expected}",
            )

    def _send(self, part: bytes, total: str) -> Answer | None:
        """Send the next part of an object, with retries, until the server has all of it.

        Args:
            part: The part.
            total: Bytes of the object if this is the last part, else "*".

        Returns:
            The answer: status 308 if the server waits for the next part, 200 if the object is
            complete. None if the server does not know the upload any more.

        Raises:
            StorageError: The server does not take the part.
        """
        self._md5.update(part)
        begin = self._position  # of the part in the object
        is_first_attempt = True

        def attempt() -> Answer:
            """Send the part. `retried` calls this, and again if the connection breaks."""
            nonlocal is_first_attempt
            if is_first_attempt:
                is_first_attempt = False
                return self._send_rest(part, begin, total)
            return self._send_again(part, begin, total)

        return self._store.retried(self._name, attempt)

    def _send_again(self, part: bytes, begin: int, total: str) -> Answer:
        """Send those bytes of a part that the server does not have, after the connection broke.

            first attempt    send the bytes [16, 24) of the object: the connection breaks
            this call        ask how many bytes the server has: 20
                             send the bytes [20, 24)

        Args:
            part: All bytes of the part.
            begin: Position of the part in the object: 16.
            total: Bytes of the object if this is the last part, else "*".

        Returns:
            The answer: status 308 if the server waits for the next part, 200 if the object is
            complete.
        """
        answer = self._post(b"", total)  # without bytes, this only asks
        if answer.status != _INCOMPLETE:
            return answer  # all bytes had arrived, and the object is complete
        self._position = _received_bytes(answer, known_bytes=begin)
        return self._send_rest(part, begin, total)

    def _send_rest(self, part: bytes, begin: int, total: str) -> Answer:
        """Send those bytes of a part that the server does not have yet, by one request.

        For example, a part has the 8 bytes [16, 24) of an object, so `begin` is 16. The server has
        the first 20 bytes of the object (`self._position`). So the last 4 bytes of the part are
        sent.

        Args:
            part: All bytes of the part.
            begin: Position of the part in the object.
            total: Bytes of the object if this is the last part, else "*".

        Returns:
            The answer: status 308 if the server waits for the next part, 200 if the object is
            complete.

        Raises:
            DamagedTransferError: The server has not received all of the bytes. Then another attempt
                has to follow.
        """
        missing_bytes = part[self._position - begin :]
        answer = self._post(missing_bytes, total)
        if answer.status != _INCOMPLETE:
            return answer

        # The server waits for more bytes. That is right if it has this part, and others follow.
        self._position = _received_bytes(answer, known_bytes=begin)
        end = begin + len(part)
        is_last_part = total != "*"
        if is_last_part or self._position < end:
            raise DamagedTransferError(f"{self._position:,} bytes instead of {end:,}")
        return answer

    def _post(self, data: bytes, total: str) -> Answer:
        """Send the next bytes of an object that is uploaded in parts.

        The header Content-Range says which bytes these are. For an object of 300,000 bytes:

            bytes 0-262143/*              the first part; "*": the whole size is not known yet
            bytes 262144-299999/300000    the last part
            bytes */*                     sends nothing, and asks how many bytes the server has

        Args:
            data: The bytes that follow those that the server has; none to ask how many it has.
            total: The size of the whole object if these are its last bytes, otherwise "*".
        """
        content_range = f"bytes */{total}"
        if data:
            last = self._position + len(data) - 1
            content_range = f"bytes {self._position}-{last}/{total}"  # such as "bytes 0-262143/*"

        # Google's documentation has PUT for this, and POST works, too. If the connection breaks,
        # aiohttp would repeat a PUT by itself, before the server was asked what it has.
        return self._store.send(
            "POST",
            str(self._session),
            headers={"Content-Range": content_range, "Content-Type": _BYTES},
            data=data,
        )

    def _lost_error(self) -> LostUploadError:
        """Return the error for an upload that the server does not know any more."""
        return LostUploadError(
            "the bucket does not hold what was sent",
            where=self._store.url(self._name),
            found="the upload has ended",
            remedy="run again, which uploads it again",
        )

    def abandon(self) -> None:
        """Cancel the upload; if that fails, the server forgets it later."""
        # Google answers with status 499, which gcsfs does not report as an error.
        with suppress(Exception):
            self._store.send("DELETE", str(self._session))
