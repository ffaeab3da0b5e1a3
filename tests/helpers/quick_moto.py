"""Quick answers to the most frequent requests to moto's S3.

Moto needs 3 ms to find out which request it has got, and most of the tests with buckets spend their
time on that. Here, requests that read, write, delete or list objects are handed directly to the
method of moto that answers them, with what this method needs to know. All others, and those that
fail, are left to moto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape


class Request(NamedTuple):
    """A request to a bucket or an object."""

    method: str
    """Such as `GET`."""
    target: str
    """Path and query, as they were sent."""
    headers: Mapping[str, str]
    """The headers, whose names have upper or lower case letters."""
    body: bytes


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    """The code, such as 200."""
    headers: Mapping[str, str]
    body: bytes


class OtherRequestError(Exception):
    """Moto must answer a request itself."""


LISTING_OPTIONS = {
    "list-type",
    "prefix",
    "delimiter",
    "max-keys",
    "start-after",
    "encoding-type",
    "continuation-token",
}
"""What the query of a listing may contain."""
OTHER_HEADERS = ("x-amz-copy-source", "Content-Type", "Transfer-Encoding", "Origin")
"""Headers of requests that moto must answer itself."""


def quick_answer(request: Request) -> Answer | None:
    """Return moto's answer to a request, or None if moto must answer it itself."""
    if any(name in request.headers for name in OTHER_HEADERS):
        return None
    # Without a signature, moto looks at the permissions of the object.
    if "Authorization" not in request.headers:
        return None
    if request.headers.get("x-amz-content-sha256", "").startswith("STREAMING"):
        return None

    path, _, query = request.target.partition("?")
    bucket_name, _, key = unquote(path).removeprefix("/").partition("/")
    bucket = backend().buckets.get(bucket_name)
    if bucket is None or bucket.policy is not None or bucket.object_lock_enabled:
        return None

    from moto.s3.exceptions import S3ClientError

    response = quick_response()(request, bucket_name, key, query)
    try:
        if key and not query:
            return response.answer_about_object()
        if not key and request.method == "GET":
            return response.answer_with_listing()
    except (OtherRequestError, S3ClientError):
        # These methods of moto raise errors before they change anything.
        return None
    return None


def backend() -> Any:
    """Return the object in which moto holds all buckets."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]


@cache
def quick_response() -> type:
    """Return the class that answers a request by the methods of moto.

    It is made in a function, since moto is not always installed.
    """
    from moto.s3.responses import S3Response

    class QuickResponse(S3Response):
        """Moto's answers to a request that is already known."""

        backend = property(lambda _: backend())

        def __init__(self, request: Request, bucket_name: str, key: str, query: str) -> None:
            """Set those attributes that the methods of moto look at.

            Args:
                request: The request.
                bucket_name: The bucket in its path.
                key: The key of the object in its path, or "".
                query: What follows its path.
            """
            self.method = request.method
            self.headers = request.headers
            self.raw_body = request.body
            self.body = request.body
            self.bucket_name = bucket_name
            self.key = key
            self.querystring = parse_qs(query, keep_blank_values=True)
            # Methods of moto set or pass these on.
            self.data: dict[str, Any] = {}
            self.request = None
            self.uri = ""

        def parse_key_name(self) -> str:
            """Return the key in the path of the request."""
            return self.key

        def _get_querystring(self, request: Any, full_url: str) -> dict[str, Any]:
            """Return the values of each option in the query."""
            return self.querystring

        def _get_param(self, param_name: str, if_none: object = None) -> object:
            """Return the first value of an option in the query, or else a default."""
            values = self.querystring.get(param_name, [if_none])
            return values[0]

        def _authenticate_and_authorize_s3_action(self, **_: object) -> None:
            """Allow everything, as moto does by default."""

        def answer_about_object(self) -> Answer:
            """Answer a request that reads, writes or deletes an object."""
            if self.method == "GET":
                status, headers, body = self.get_object()
            elif self.method == "HEAD":
                status, headers, body = self.head_object(
                    self.bucket_name, {}, self.key, self.headers
                )
            elif self.method == "PUT":
                status, headers, body = self.put_object()
            elif self.method == "DELETE":
                status, headers, body = self.delete_object()
            else:
                raise OtherRequestError

            if status == 200 and self.headers.get("Range"):
                # The method of moto looks at these attributes of a request.
                status, headers, body = self._handle_range_header(self, headers, body)
            if isinstance(body, str):
                body = body.encode()
            return Answer(status, headers, body)

        def answer_with_listing(self) -> Answer:
            """Answer a request that lists objects."""
            is_listing = self.querystring.get("list-type") == ["2"]
            if not is_listing or not self.querystring.keys() <= LISTING_OPTIONS:
                raise OtherRequestError
            return self.list_objects_v2()

        def serialized(self, action_result: Any) -> Answer:
            """Return the answer that consists of the XML of a listing."""
            body = listing_xml(action_result.result).encode()
            return Answer(200, {"Content-Type": "application/xml"}, body)

    return QuickResponse


# Listings as XML

ELEMENTS_BEFORE_OBJECTS = ("IsTruncated",)
ELEMENTS_AFTER_OBJECTS = ("Name", "Prefix", "Delimiter", "MaxKeys")
ELEMENTS_AFTER_FOLDERS = ("EncodingType", "KeyCount", "NextContinuationToken", "StartAfter")
ELEMENTS_OF_OBJECTS = (
    "Key",
    "LastModified",
    "ETag",
    "ChecksumAlgorithm",
    "Size",
    "StorageClass",
)
"""What a listing says of objects, in the order of S3's answer."""


def listing_xml(listing: Mapping[str, Any]) -> str:
    """Return a listing of objects as the XML that S3 answers."""
    parts = [
        '<?xml version="1.0" encoding="utf-8"?>\n'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
        elements(listing, ELEMENTS_BEFORE_OBJECTS),
    ]
    for entry in listing["Contents"]:
        parts.append(object_xml(entry))
    parts.append(elements(listing, ELEMENTS_AFTER_OBJECTS))
    for folder in listing.get("CommonPrefixes", ()):
        parts.append(f"<CommonPrefixes>{elements(folder, ('Prefix',))}</CommonPrefixes>")
    parts.append(elements(listing, ELEMENTS_AFTER_FOLDERS))
    parts.append("</ListBucketResult>")
    return "".join(parts)


def object_xml(entry: Mapping[str, Any]) -> str:
    """Return the XML of an object in a listing."""
    seconds, _, _ = entry["LastModified"].partition(".")
    values = {**entry, "LastModified": f"{seconds}.000Z"}
    if "ChecksumAlgorithm" in entry:
        [values["ChecksumAlgorithm"]] = entry["ChecksumAlgorithm"]
    return f"<Contents>{elements(values, ELEMENTS_OF_OBJECTS)}</Contents>"


def elements(values: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the XML elements of those values that exist."""
    parts: list[str] = []
    for name in names:
        if name not in values:
            continue
        text = str(values[name])
        if isinstance(values[name], bool):
            text = text.lower()
        parts.append(f"<{name}>{escape(text)}</{name}>")
    return "".join(parts)
