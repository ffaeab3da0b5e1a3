"""Send requests to S3 again if they fail for a reason that may pass.

A bucket answers some requests with an error even though nothing is wrong: it is overloaded, a
gateway restarts, a connection breaks. `with_retries` repeats these requests, with growing pauses.
Other errors are raised at once, as a StorageError that says what to do.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TypeVar

from nanoset_core.errors import NanosetError, StorageError
from nanoset_core.storage.requests import Attempts, DamagedTransferError, description_of

T = TypeVar("T")
S3_SCHEME = "s3://"
"""Beginning of the addresses of buckets of S3."""
READ_SECONDS = 60
"""How long to wait for the next bytes of an answer before the request is sent again."""
_TRANSIENT_CODES = re.compile(
    "BadDigest|BandwidthLimitExceeded|ConditionalRequestConflict|IncompleteBody|OperationAborted"
    "|PriorRequestNotComplete|RequestLimitExceeded|RequestTimeTooSkewed|RequestTimeout|SlowDown"
    "|Throttling|ThrottlingException|XAmzContentChecksumMismatch|XAmzContentSHA256Mismatch"
)
"""S3's codes of errors that may pass, in addition to all with HTTP status 429 or 500 and above."""
_REDIRECTS = (301, 302, 303, 307, 308)
"""HTTP statuses of redirects."""
_MAX_CAUSES = 10
"""Causes of an error that are looked at; a chain of causes may be endless."""
_CREDENTIAL_ERRORS = ("NoCredentialsError", "PartialCredentialsError")
"""Names of botocore's errors about missing credentials."""
_RETRY_REMEDY = "see whether the store is up, then run again: what is finished is kept"


def with_retries(request: Callable[[], T], where: str, *, reads: bool = True) -> T:
    """Send a request to a bucket until it succeeds, at most 10 times, and return its result.

    What happens with an error depends on what it means:

        the server is overloaded, a connection broke    wait a moment, and send the request again
        "there is no such object"                       an answer, which is passed on to the caller
        "access denied", a redirect                     a StorageError at once, with what to do

    Args:
        request: Sends the request once.
        where: Address of the bucket or object, for messages.
        reads: Whether the request reads an object, so that "there is no such object" is an answer.
            Otherwise it is a failure.

    Raises:
        StorageError: The request failed each time, or for a reason that does not pass.
        botocore.exceptions.ClientError: The bucket answered that the object that is read does not
            exist, that a condition does not hold (status 412), that a range begins after the end
            (416) or that there is no such upload. The caller decides what follows from that.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    # Errors of other types are faults of this program, and are raised unchanged.
    request_errors = (BotoCoreError, ClientError, RecursionError, *_transient_errors())
    attempts = Attempts(where)
    while True:
        try:
            return request()
        except request_errors as error:
            # The caller expects this answer, such as that an object does not exist.
            if _is_answer(error, reads=reads):
                raise
            # A server that redirects a request, since the bucket is elsewhere, will do so again.
            may_pass = _is_transient(error) and not is_redirect(error)
            if attempts.is_last or not may_pass:
                raise _failure(error, where, attempts.number) from error
            attempts.pause(_description(error))


def _is_answer(error: Exception, *, reads: bool) -> bool:
    """Return whether an error of botocore is an answer that the caller of a request may expect.

    botocore raises every answer with an HTTP status of 400 or more as an error. These are no
    failures:

        404     the object does not exist (if the request reads one)
        412     a condition does not hold, such as "only if the object still has this ETag"
        416     the range of bytes begins after the end of the object
        NoSuchUpload    an upload in parts was completed or given up already

    Args:
        error: What the request raised.
        reads: Whether the request reads an object, which may be missing.
    """
    if reads and is_missing(error):
        return True
    status, code = status_of(error)
    return status in (412, 416) or code == "NoSuchUpload"


def _is_transient(error: Exception) -> bool:
    """Return whether the same request may succeed later.

    It may if the server is overloaded (status 429, or 500 and above, or codes such as "SlowDown"),
    or if no complete answer has arrived, since the connection broke.
    """
    status, code = status_of(error)
    is_transient_answer = (
        status >= 500 or status == 429 or _TRANSIENT_CODES.fullmatch(code) is not None
    )
    return is_transient_answer or isinstance(error, _transient_errors())


@functools.cache
def _transient_errors() -> tuple[type[Exception], ...]:
    """Return the errors of requests that were not answered, or not completely.

    Such a request is sent again. The errors are returned by a function, and not listed in a
    constant, since botocore is imported only if it is needed.
    """
    from botocore import exceptions as botocore_errors
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    return (
        # Connections that were refused, reset or closed, or timed out; bodies that were cut off.
        botocore_errors.ConnectionError,
        botocore_errors.HTTPClientError,
        botocore_errors.IncompleteReadError,
        botocore_errors.FlexibleChecksumError,
        ResponseParserError,
        HTTPError,
        ConnectionError,
        TimeoutError,
        DamagedTransferError,
        # If the connection breaks within the headers of an answer, botocore returns the headers
        # that it has received, as if they were all. The code that reads the answer then raises one
        # of these: a header is missing, or its value is cut off.
        KeyError,
        ValueError,
    )


def status_of(error: BaseException | None) -> tuple[int, str]:
    """Return the HTTP status and S3's error code of an answer that botocore raised as an error.

    Args:
        error: What a request raised, or None.

    Returns:
        (status, code), such as (404, "NoSuchKey"); (0, "") if the error is not an answer.
    """
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return 0, ""
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = response.get("Error", {}).get("Code", "")
    return int(status), str(code)


def is_missing(error: Exception) -> bool:
    """Return whether a bucket answered that an object does not exist.

        status 404, code "NoSuchKey"       True
        status 404, without a code         True
        status 404, code "NoSuchBucket"    False: then the address of the bucket is wrong
        status 404, code "NoSuchUpload"    False: it is about an upload in parts

    Args:
        error: What the request raised.
    """
    status, code = status_of(error)
    if code in ("NoSuchKey", "404", "NotFound"):
        return True
    return status == 404 and code not in ("NoSuchBucket", "NoSuchUpload")


def unless_missing(call: Callable[[], T]) -> T | None:
    """Call a function that asks for an object; return None if the object does not exist.

    botocore raises an error for an object that does not exist. Callers want None instead.

    Args:
        call: Sends the request.

    Returns:
        The result of the function, or None.

    Raises:
        Exception: Any other error of the function is raised unchanged.
    """
    try:
        return call()
    except Exception as error:
        if is_missing(error):
            return None
        raise


def is_redirect(error: BaseException) -> bool:
    """Return whether a request failed because the server redirected it to another address.

    A server of AWS does that if the bucket is in another region. The libraries report it in three
    ways:

        an answer with a status such as 301    they did not follow the redirect
        TooManyRedirects                       they followed it to the same server again and again
        RecursionError                         the same: botocore follows by calling itself, until
                                               Python's stack is full

    Each of them may be the error itself, or the cause of another one, as in the chain
    HTTPClientError → TooManyRedirects.

    Args:
        error: What the request raised. Its causes are looked at, too, at most ten (_MAX_CAUSES).
    """
    # Look at the error and at its causes, which may lead back to each other.
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return False
        is_endless = isinstance(cause, RecursionError) or type(cause).__name__ == "TooManyRedirects"
        status, _ = status_of(cause)
        if is_endless or status in _REDIRECTS:
            return True
        cause = _cause_of(cause)
    return False


def _cause_of(error: BaseException) -> BaseException | None:
    """Return the error that led to another one, or None."""
    # botocore stores an error of its HTTP client in `kwargs`, not as Python's `__cause__`.
    details = getattr(error, "kwargs", None)
    if isinstance(details, dict) and isinstance(details.get("error"), BaseException):
        http_error: BaseException = details["error"]
        return http_error
    return error.__cause__


def _description(error: Exception) -> str:
    """Return S3's code or the kind of an error, and its text, without passwords."""
    _, code = status_of(error)
    return description_of(error, code)


def _failure(error: Exception, where: str, attempts: int) -> NanosetError:
    """Return the error for a request that failed for good. Its message says what to do.

    For example: "the bucket refuses: AccessDenied; give this process credentials that may read and
    write there, by the usual AWS chain". A redirect has a message of its own: "the bucket is
    elsewhere".

    Args:
        error: What the last attempt raised.
        where: Address that the request was sent to.
        attempts: Number of attempts.
    """
    if is_redirect(error):
        status, _ = status_of(error)
        return StorageError(
            "the bucket is elsewhere",
            where=where,
            found=f"a redirect ({status or 'without end'})",
            remedy=(
                "correct storage.endpoint_url or AWS_ENDPOINT_URL, or storage.region: the server "
                "at this address redirects requests"
            ),
        )

    message = "the bucket refuses"
    if attempts > 1:
        message = f"the bucket cannot be used, after {attempts} attempts"
    return StorageError(message, where=where, found=_description(error), remedy=_remedy(error))


def _remedy(error: Exception) -> str:
    """Return what to do about a request that failed for good, other than by a redirect.

    no credentials, or too few rights    "give this process credentials that may read ..."
    there is no such bucket              "make the bucket, or correct its name"
    another 404                          "correct storage.endpoint_url": this is no S3 server
    anything else                        "see whether the store is up, then run again"
    """
    status, code = status_of(error)
    if status in (401, 403) or type(error).__name__ in _CREDENTIAL_ERRORS:
        return "give this process credentials that may read and write there, by the usual AWS chain"
    if code == "NoSuchBucket":
        return "make the bucket, or correct its name"
    # Requests for objects treat a missing object as an answer, not as a failure. So if a 404 comes
    # here, the server does not know this kind of request at all: it is a web server, for example.
    if status == 404:
        return (
            "correct storage.endpoint_url or AWS_ENDPOINT_URL: the server at this address does not "
            "speak S3"
        )
    return _RETRY_REMEDY
