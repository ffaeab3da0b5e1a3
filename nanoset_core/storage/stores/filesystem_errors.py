"""Classify the errors of file systems that fsspec reads, each of which has errors of its own."""

from __future__ import annotations

from nanoset_core.errors import NanosetError
from nanoset_core.storage.requests import DamagedTransferError

_TRANSIENT_ERRORS = (ConnectionError, TimeoutError, DamagedTransferError)
_BROKEN_CONNECTIONS = frozenset(
    [
        # aiohttp, for web servers and gs://
        "ClientConnectionError",
        "ClientPayloadError",
        # google-auth
        "TransportError",
        # gcsfs: the answer of a proxy, and bytes that were damaged on their way
        "ProxyError",
        "ChecksumError",
        # azure-core
        "ServiceRequestError",
        "ServiceResponseError",
        "IncompleteReadError",
    ]
)
"""Names of errors about connections; their packages need not be installed."""
_REFUSED_STATUSES = (401, 403)
"""HTTP statuses of requests for which the client has no right."""
_STATUS_NAMES = ("status", "status_code", "code")
"""Names under which packages store the HTTP status of an answer."""


def cause_of(error: BaseException) -> BaseException:
    """Return why a request really failed, if a library has raised FileNotFoundError for it.

    Some libraries do so for every failure. The original error is its `__cause__`:

        FileNotFoundError from status 404                  the file is missing: return it unchanged
        FileNotFoundError from a closed connection         return the error of the connection
        FileNotFoundError from status 403 ("Forbidden")    return the error with the status

    Args:
        error: What the request raised. Errors of other classes are returned unchanged.
    """
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or cause is None:
        return error

    # Does the original error say something else than that the file is missing?
    was_refused = http_status(cause) in _REFUSED_STATUSES
    is_other_failure = isinstance(cause, NanosetError) or is_transient(cause) or was_refused
    return cause if is_other_failure else error


def is_missing_file(error: BaseException) -> bool:
    """Return whether a request failed because the file or folder does not exist.

    Args:
        error: What the request raised: a FileNotFoundError, or any error with the HTTP status 404.
    """
    is_local_error = isinstance(error, (FileNotFoundError, NotADirectoryError))
    return is_local_error or http_status(error) == 404


def is_refusal(error: BaseException) -> bool:
    """Return whether a server refused a request for lack of rights.

    Args:
        error: What the request raised: a PermissionError, an error with the HTTP status 401 or 403,
            or gcsfs's OSError that begins with "Forbidden".
    """
    if isinstance(error, PermissionError) or http_status(error) in _REFUSED_STATUSES:
        return True
    # gcsfs raises a plain OSError with this text for status 403.
    return isinstance(error, OSError) and str(error).startswith("Forbidden")


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later, so that it is worth sending it again.

        status 500, 503 or 429 (too many requests)      True
        status 401 from Google, "Invalid Credentials"   True: they have just expired
        status 404 or 403                               False: the server refuses the request
        aiohttp's ClientConnectionError                 True: the connection broke

    Args:
        error: What the request raised.
    """
    status = http_status(error)  # 0 if the server has not answered
    if status >= 500 or status in (408, 429) or isinstance(error, _TRANSIENT_ERRORS):
        return True
    # Google refuses credentials that have expired a moment ago. The next request renews them.
    if status == 401 and "Invalid Credentials" in str(error):
        return True
    if status >= 400:
        return False  # the server refused the request

    return _is_broken_connection(error)


def _is_broken_connection(error: BaseException) -> bool:
    """Return whether a connection broke, before the server's answer or within it.

    Each library has errors of its own for that. It need not be installed, so the names of the
    classes are compared.

    Args:
        error: What the request raised, which is not about an answer.
    """
    inner_error = getattr(error, "inner_exception", None)  # only Azure's errors have one
    classes = {*type(error).__mro__, *type(inner_error).__mro__}
    class_names = {error_class.__name__ for error_class in classes}
    return not class_names.isdisjoint(_BROKEN_CONNECTIONS)


def http_status(error: BaseException) -> int:
    """Return the HTTP status of the answer that an error is about.

    Each package stores it under another name: `error.status`, `error.code`,
    `error.response.status_code` and others are tried.

    Args:
        error: What a request raised.

    Returns:
        The status, such as 404; 0 if the error is not about an answer.
    """
    # Return the first one without looking further: to read some attributes logs a warning.
    for owner in (error, getattr(error, "response", None)):
        for name in _STATUS_NAMES:
            status = str(getattr(owner, name, None))
            if status.isdecimal():
                return int(status)
    return 0
