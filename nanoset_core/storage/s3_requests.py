"""Requests to buckets: the client, failures and which are tried again, and what is sent, with its
digests.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import io
import itertools
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from nanoset_core.errors import NanosetError, StorageError
from nanoset_core.storage.unanswered import warn
from nanoset_core.untrusted import without_secrets

T = TypeVar("T")
ATTEMPTS = 10
FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 20.0
TOLD_AFTER_SECONDS = 5.0
"""How long a request may fail before a warning says so."""
READ_SECONDS = 60
"""How long an answer may take before the request is sent again."""
CONNECTIONS = 32
_TRANSIENT = re.compile(
    "BadDigest|BandwidthLimitExceeded|ConditionalRequestConflict|IncompleteBody|OperationAborted|PriorRequestNotComplete"
    "|RequestLimitExceeded|RequestTimeTooSkewed|RequestTimeout|SlowDown|Throttling|ThrottlingException"
    "|XAmzContentChecksumMismatch|XAmzContentSHA256Mismatch"
)
"""S3's codes, besides those of status 429 and from 500 on."""
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_CAUSES = 10
MULTIPART_BYTES = 64 << 20
"""Files above this are sent in parts of at least this size."""
MOST_PARTS = 10_000
_READ_BYTES = 4 << 20
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')
_jitter = random.Random()


class DamagedTransferError(Exception):
    """Bytes were damaged on their way to or from the server: worth another attempt."""


class Server(NamedTuple):
    """How a server is reached: fields of `S3Store`."""

    endpoint_url: str | None
    region: str | None
    profile: str | None
    anonymous: bool

    @property
    def address(self) -> str | None:
        """Its URL; None for AWS's own."""
        return (
            self.endpoint_url
            or os.environ.get("AWS_ENDPOINT_URL_S3")
            or os.environ.get("AWS_ENDPOINT_URL")
        )


@functools.cache
def new_client(process: int, server: Server, address: str | None, read_seconds: int) -> Any:
    """Return the S3 client of a process for all buckets of a server, shared by its threads.

    Args:
        process: ID of the process. A forked child must not share its parent's connections.
        server: how the server is reached.
        address: `server.address`. boto3 reads it from the environment when it creates a client, so
            a client that was created for another address is not reused.
        read_seconds: how long to wait for the next bytes of an answer.

    Raises:
        StorageError: boto3 is not installed, or the AWS configuration lacks what is named.
    """
    try:
        import boto3
        import botocore.session
        from botocore.config import Config
    except ImportError as error:
        what, remedy = "buckets need boto3", "pip install 'nanoset-platform[s3]'"
        raise StorageError(
            what, where=server.address or "S3", found=str(error), remedy=remedy
        ) from error
    with setting_up(server):
        inner = quick_times(botocore.session.Session())
        session = boto3.session.Session(
            region_name=server.region, botocore_session=inner, profile_name=server.profile
        )
        about = {
            "endpoint_url": server.endpoint_url,
            "config": Config(**client_settings(server, read_seconds)),
        }
        return session.client("s3", region_name=session.region_name or "us-east-1", **about)


@contextlib.contextmanager
def setting_up(server: Server) -> Iterator[None]:
    """Raise what botocore says of its configuration as a StorageError."""
    from botocore.exceptions import BotoCoreError

    try:
        yield
    except (BotoCoreError, ValueError) as error:
        what, remedy = (
            "the bucket's client cannot be set up",
            "correct `storage` in nanoset.yaml, or the AWS settings",
        )
        raise StorageError(
            what, where=server.address or "S3", found=str(error), remedy=remedy
        ) from error


def client_settings(server: Server, read_seconds: int) -> dict[str, Any]:
    """Return botocore's settings of a client."""
    import botocore

    # Retried by `with_retries`: botocore gives up sooner, for all threads at once, while a gateway
    # starts anew.
    settings: dict[str, Any] = {
        "retries": {"mode": "standard", "total_max_attempts": 1},
        "connect_timeout": 10,
        "read_timeout": read_seconds,
        "max_pool_connections": CONNECTIONS,
        "tcp_keepalive": True,
        # the default is put together anew for every request
        "user_agent": f"nanoset Botocore/{botocore.__version__}",
    }
    if server.address:
        settings["s3"] = {"addressing_style": "path"}
    if server.anonymous:
        settings["signature_version"] = botocore.UNSIGNED
    return settings


def quick_times(session: T) -> T:
    """Return a session of botocore that reads times faster: most of what a long listing costs is
    its times.
    """
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_time)  # type: ignore[attr-defined]
    return session


def _time(text: Any) -> datetime:
    """Read a time in an answer, as botocore does but faster."""
    try:
        return datetime.fromisoformat(text) if text[4:5] == "-" else parsedate_to_datetime(text)
    except (TypeError, ValueError):
        from botocore.utils import parse_timestamp

        found: datetime = parse_timestamp(text)
        return found


@functools.cache
def _failures() -> tuple[type[Exception], ...]:
    """Return what a request fails with that has no good answer, or none."""
    from botocore import exceptions as known
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    return (
        known.ConnectionError,
        known.HTTPClientError,  # connections refused, reset, closed, timed out; bodies cut off
        known.IncompleteReadError,
        known.FlexibleChecksumError,
        ResponseParserError,
        HTTPError,
        ConnectionError,
        TimeoutError,
        DamagedTransferError,
        KeyError,  # botocore also returns answers that were cut off within their headers
        ValueError,
    )


def status_of(error: BaseException | None) -> tuple[int, str]:
    """Return (HTTP status, S3's code) of an answered request; (0, "") where there was no answer."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return 0, ""
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return int(status), str(response.get("Error", {}).get("Code", ""))


def is_missing(error: Exception) -> bool:
    """Return whether the object, and not the bucket, is not there."""
    status, code = status_of(error)
    return code in ("NoSuchKey", "404", "NotFound") or (
        status == 404 and code not in ("NoSuchBucket", "NoSuchUpload")
    )


def is_redirect(error: BaseException) -> bool:
    """Return whether a server sent a request elsewhere, once or without end.

    botocore follows a redirect of S3 by asking the same endpoint again, until Python's stack is
    full.
    """
    cause: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if cause is None:
            return False
        is_endless = isinstance(cause, RecursionError) or type(cause).__name__ == "TooManyRedirects"
        if is_endless or status_of(cause)[0] in _REDIRECTS:
            return True
        inner = getattr(cause, "kwargs", None)  # botocore keeps what its HTTP client raised there
        wrapped = inner.get("error") if isinstance(inner, dict) else None
        cause = wrapped if isinstance(wrapped, BaseException) else cause.__cause__
    return False


def with_retries(request: Callable[[], T], where: str, *, reads: bool = True) -> T:
    """Send a request until it succeeds or fails for good: up to 10 times, after waits that double,
    with full jitter.

    Args:
        request: sends it.
        where: for messages.
        reads: it reads an object, which may be missing.

    Raises:
        StorageError: it kept failing, or failed in a way that does not pass. Missing objects that
            are read, and failed conditions (412), are raised as they are, since they are answers;
            so are ranges past the end (416), and parts of no upload.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    known = (BotoCoreError, ClientError, RecursionError, *_failures())

    def fate(error: Exception, attempt: int) -> Exception | None:
        status, code = status_of(error)
        is_answer = (reads and is_missing(error)) or status in (412, 416) or code == "NoSuchUpload"
        if is_answer or not isinstance(error, known):
            return error
        if is_redirect(error):
            return _failure(error, where, attempt)
        is_transient = (
            status >= 500
            or status == 429
            or _TRANSIENT.fullmatch(code)
            or isinstance(error, _failures())
        )
        return None if is_transient and attempt < ATTEMPTS else _failure(error, where, attempt)

    return retried(request, where, fate)


def retried(
    request: Callable[[], T], where: str, fate: Callable[[Exception, int], Exception | None]
) -> T:
    """Send a request until it succeeds, or fails for good, after waits that double, with full
    jitter.

    `fate`: takes a failure and the number of the attempt; returns what to raise, None to try again.
    """
    begun = time.monotonic()
    for attempt in itertools.count(1):
        try:
            return request()
        except Exception as error:
            if (ended := fate(error, attempt)) is error:
                raise
            if ended is not None:
                raise ended from error
            _warn(error, where, attempt, begun)
        time.sleep(_jitter.uniform(0, min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2**attempt)))
    raise AssertionError("unreachable")


def _warn(error: Exception, where: str, attempt: int, begun: float) -> None:
    """Log a failure once the wait is long."""
    waited = time.monotonic() - begun
    if waited >= TOLD_AFTER_SECONDS:
        warn(
            "%s: no good answer for %.0f s, attempt %d of %d: %s",
            where,
            waited,
            attempt,
            ATTEMPTS,
            _described(error),
        )


def unless_missing(call: Callable[[], T]) -> T | None:
    """Return what a call gives; None where there is no such object."""
    try:
        return call()
    except Exception as error:
        if is_missing(error):
            return None
        raise


def _described(error: Exception) -> str:
    """Return what failed."""
    return without_secrets(
        f"{status_of(error)[1] or type(error).__name__}: {error}".removesuffix(": ")
    )


def _failure(error: Exception, where: str, attempts: int) -> NanosetError:
    status, code = status_of(error)
    if status in (401, 403) or type(error).__name__ in (
        "NoCredentialsError",
        "PartialCredentialsError",
    ):
        remedy = (
            "give this process credentials that may read and write there, by the usual AWS chain"
        )
    elif is_redirect(error):
        remedy = (
            "correct storage.endpoint_url or AWS_ENDPOINT_URL, or storage.region: what answers "
            "there redirects requests"
        )
        found = f"a redirect ({status or 'without end'})"
        return StorageError("the bucket is elsewhere", where=where, found=found, remedy=remedy)
    elif code == "NoSuchBucket":
        remedy = "make the bucket, or correct its name"
    elif status == 404:
        remedy = (
            "correct storage.endpoint_url or AWS_ENDPOINT_URL: what answers there does not speak S3"
        )
    else:
        remedy = "see whether the store is up, then run again: what is finished is kept"
    what = (
        f"the bucket cannot be used, after {attempts} attempts"
        if attempts > 1
        else "the bucket refuses"
    )
    return StorageError(what, where=where, found=_described(error), remedy=remedy)


class Part(NamedTuple):
    """A part to be sent."""

    open: Callable[[], Any]
    """Opens its bytes, anew for each attempt."""
    sha256: bytes
    """Of the bytes."""


def encoded(digest: bytes) -> str:
    """Return a digest as S3's headers spell it."""
    return base64.b64encode(digest).decode()


def etag_of_bytes(data: bytes) -> str:
    """Return the ETag of bytes that are sent whole to a bucket without a KMS key."""
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def md5_of_etag(etag: str) -> str | None:
    """Return the MD5 that an ETag may be; None for an object in parts."""
    found = _MD5.fullmatch(etag)
    return None if found is None else found[1]


def etags_tell(answer: Any) -> bool:
    """Return whether the ETags of an answer's objects are digests: they are not where a key of
    one's own encrypts.
    """
    return (
        answer.get("ServerSideEncryption", "AES256") == "AES256"
        and "SSECustomerAlgorithm" not in answer
    )


def sent_etag(answer: Any, part: Part, *, is_md5: bool) -> str:
    """Compare what a bucket's answer says of bytes with what was sent; return their ETag.

    DamagedTransferError where its checksum, or else its ETag, where those are digests, is that of
    other bytes.
    """
    etag: str = answer["ETag"]
    if "ChecksumSHA256" in answer:
        is_same = answer["ChecksumSHA256"] == encoded(part.sha256)
    else:
        wanted = md5_of_etag(etag) if is_md5 else None
        is_same = wanted is None or wanted == _md5(part)
    if not is_same:
        raise DamagedTransferError("what the bucket holds is not what was sent")
    return etag


def _md5(part: Part) -> str:
    md5 = hashlib.md5(usedforsecurity=False)
    with part.open() as file:
        while block := file.read(_READ_BYTES):
            md5.update(block)
    return md5.hexdigest()


def file_parts(path: Path, least_bytes: int) -> tuple[str, list[Part]]:
    """Read a file once; return (hex sha256, its parts of at least so many bytes), one part where it
    is no larger.
    """
    from s3transfer.utils import ReadFileChunk

    size = path.stat().st_size
    part_bytes = max(least_bytes, -(-size // MOST_PARTS))
    whole, parts = hashlib.sha256(), list[Part]()
    with path.open("rb") as file:
        for begin in range(0, max(size, 1), part_bytes):
            left = min(part_bytes, size - begin)
            sha256 = whole if left == size else hashlib.sha256()
            opened = partial(ReadFileChunk.from_filename, str(path), begin, left)
            while left and (block := file.read(min(_READ_BYTES, left))):
                left -= len(block)
                for digest in {whole, sha256}:
                    digest.update(block)
            parts.append(Part(opened, sha256.digest()))
    return whole.hexdigest(), parts


def stream_parts(blocks: Iterable[bytes], part_bytes: int) -> Iterator[Part]:
    """Yield blocks of any size as parts of just `part_bytes`, but for the last; one empty part for
    no bytes.
    """
    held, is_first = bytearray(), True
    for block in blocks:
        held += block
        while len(held) >= part_bytes:
            data, is_first = bytes(memoryview(held)[:part_bytes]), False
            del held[:part_bytes]
            yield bytes_part(data)
    if held or is_first:
        yield bytes_part(bytes(held))


def bytes_part(data: bytes) -> Part:
    """Return bytes as a part."""
    return Part(partial(io.BytesIO, data), hashlib.sha256(data).digest())
