"""An S3 server in the process of the test (moto), and what its buckets hold."""

from __future__ import annotations

import io
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from http import HTTPStatus
from threading import Lock, Thread
from typing import NamedTuple
from urllib.parse import unquote

import pytest

from helpers.quick_moto import Answer, Request, backend, quick_answer
from nanoset_core.storage.stores.s3.store import S3Store

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "an-example-key",
    "AWS_SECRET_ACCESS_KEY": "an-example-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}

requests_answered: Counter[str] = Counter()
"""Address of a server in this process → requests that it has answered."""
bytes_answered: Counter[str] = Counter()
"""Address of a server in this process → bytes in the bodies of its answers."""
listeners: list[Callable[[str, int, int], None]] = []
"""Called with path, bytes of the body and bytes of the answer of each request to a server in this
process.
"""
_moto: set[str] = set()
"""Addresses of servers in this process."""


@contextmanager
def s3_server() -> Iterator[str]:
    """Run moto's S3 on a free port until the block ends, and yield its address.

    Connections are kept open, as by real servers: a new connection and thread for each request
    would double the time. Moto's search for the AWS service that a request is meant for is skipped.
    The most frequent requests take a short cut: see `helpers.quick_moto`.
    """
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    from moto.moto_server.werkzeug_app import create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = create_backend_app("s3")
    with make_server("127.0.0.1", 0, app, threaded=True, request_handler=_handler()) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.port}"
        _moto.add(address)
        try:
            yield address
            forget_all(address)
        finally:
            _moto.discard(address)
            server.shutdown()


def _handler() -> type:
    """Return the class that serves the connections of a server.

    It is made in a function, since moto is not always installed.
    """
    from moto.moto_server.werkzeug_app import MotoRequestHandler
    from werkzeug.serving import DechunkedInput

    # Moto checks whether an object exists and then writes it, without a lock of its own.
    moto_lock = Lock()

    class Handler(MotoRequestHandler):
        """Serves the requests of one connection, and counts them."""

        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        # Buffer answers, so that head and body leave together.
        wbufsize = -1

        def handle_expect_100(self) -> bool:
            """Tell the client to send the body of its request."""
            proceed = super().handle_expect_100()
            # The client sends nothing before it has read this: it must not wait in the buffer.
            self.wfile.flush()
            return proceed

        def run_wsgi(self) -> None:
            """Read a request, let moto answer it, and send the answer."""
            # Read the whole body first: if the client dies meanwhile, moto must not see it.
            content_length = int(self.headers.get("Content-Length") or 0)
            if "chunked" in self.headers.get("Transfer-Encoding", ""):
                body = io.BufferedReader(DechunkedInput(self.rfile)).read()
            else:
                body = self.rfile.read(content_length)
            if len(body) < content_length:
                self.close_connection = True
                return
            request = Request(self.command, self.path, self.headers, body)
            with moto_lock:
                answer = quick_answer(request) or self._answer_of_moto(body)

            address = f"http://{self.server.host}:{self.server.port}"
            requests_answered[address] += 1
            bytes_answered[address] += len(answer.body)
            path = unquote(self.path.partition("?")[0])
            for listener in listeners:
                listener(path, len(body), len(answer.body))
            self._send(answer)

        def _answer_of_moto(self, body: bytes) -> Answer:
            """Let moto's application answer the request with a body."""
            self.environ = self.make_environ()
            self.environ["wsgi.input"] = io.BytesIO(body)
            self.environ["wsgi.input_terminated"] = True

            # A WSGI application calls `start_response` before it returns the body.
            status = 0
            headers: dict[str, str] = {}

            def start_response(
                status_line: str, response_headers: list[tuple[str, str]], _error: object = None
            ) -> None:
                nonlocal status
                status = int(status_line.partition(" ")[0])
                headers.update(response_headers)

            answer_body = b"".join(self.server.app(self.environ, start_response))
            return Answer(status, headers, answer_body)

        def _send(self, answer: Answer) -> None:
            """Send an answer to the client."""
            has_body = self.command != "HEAD" and answer.status not in (204, 304)
            names = {name.lower() for name in answer.headers}
            lines = [
                f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
                f"Date: {formatdate(usegmt=True)}",
            ]
            for name, value in answer.headers.items():
                lines.append(f"{name}: {value}")
            if has_body and "content-length" not in names:
                lines.append(f"Content-Length: {len(answer.body)}")
            if self.close_connection:
                lines.append("Connection: close")
            head = "\r\n".join(lines) + "\r\n\r\n"
            self.wfile.write(head.encode("latin-1"))
            if has_body:
                self.wfile.write(answer.body)
            self.wfile.flush()

    return Handler


def forget_all(endpoint: str) -> None:
    """Delete everything that a server in this process holds."""
    if _is_moto(endpoint):
        backend().reset()


def new_bucket(endpoint: str, prefix: str = "") -> S3Store:
    """Create a bucket, and return the place below a prefix in it."""
    place = S3Store(f"bucket-{uuid.uuid4().hex[:12]}", prefix, endpoint)
    place.client().create_bucket(Bucket=place.bucket)
    return place


def total_bytes(ranges: Iterable[tuple[str, int, int]]) -> int:
    """Return the bytes of ranges of objects, each as (name, start, stop)."""
    return sum(stop - start for _, start, stop in ranges)


def versions(place: S3Store) -> dict[str, str]:
    """Return ETag and time of every object below a place, by key.

    They show whether an object was written again, even with the same bytes.
    """
    key_prefix = f"{place.prefix}/".lstrip("/")
    version_by_name: dict[str, str] = {}
    if _is_moto(place.endpoint_url):
        # From moto's memory: requests would take longer.
        for key, stored in backend().buckets[place.bucket].keys.items():
            if key.startswith(key_prefix):
                name = key.removeprefix(key_prefix)
                version_by_name[name] = f"{stored.etag} {stored.last_modified}"
        return version_by_name

    paginator = place.client().get_paginator("list_objects_v2")
    for page in paginator.paginate(Bucket=place.bucket, Prefix=key_prefix):
        for entry in page.get("Contents", ()):
            name = entry["Key"].removeprefix(key_prefix)
            version_by_name[name] = f"{entry['ETag']} {entry['LastModified']}"
    return version_by_name


class StoredObject(NamedTuple):
    """An object with its metadata."""

    data: bytes
    metadata: dict[str, str]
    checksum: Mapping[str, object]
    """Attributes of moto's object that belong to its checksum."""


CHECKSUM_ATTRIBUTES = (
    "checksum_algorithm",
    "checksum_value",
    "checksum_type",
    "checksum_parts",
)
"""What moto knows of the checksum of an object."""


def snapshot(place: S3Store) -> dict[str, StoredObject]:
    """Return every object below a place, by key."""
    key_prefix = f"{place.prefix}/".lstrip("/")
    object_by_name: dict[str, StoredObject] = {}
    if _is_moto(place.endpoint_url):
        # From moto's memory: requests for all objects would take longer than most tests.
        for key, stored in backend().buckets[place.bucket].keys.items():
            if key.startswith(key_prefix):
                checksum = {name: getattr(stored, name) for name in CHECKSUM_ATTRIBUTES}
                stored_object = StoredObject(stored.value, dict(stored.metadata), checksum)
                object_by_name[key.removeprefix(key_prefix)] = stored_object
        return object_by_name

    names = [stored.name for stored in place.list()]
    for name in names:
        response = place.client().get_object(Bucket=place.bucket, Key=key_prefix + name)
        data = response["Body"].read()
        object_by_name[name] = StoredObject(data, response["Metadata"], checksum={})
    return object_by_name


def restore(place: S3Store, snapshot: Mapping[str, StoredObject]) -> None:
    """Put all objects of a snapshot into a bucket."""
    for name, stored_object in snapshot.items():
        key = f"{place.prefix}/{name}".lstrip("/")
        if not _is_moto(place.endpoint_url):
            place.client().put_object(
                Bucket=place.bucket,
                Key=key,
                Body=stored_object.data,
                Metadata=stored_object.metadata,
            )
            continue
        stored = backend().put_object(place.bucket, key, stored_object.data)
        stored.set_metadata(stored_object.metadata)
        for attribute, value in stored_object.checksum.items():
            setattr(stored, attribute, value)


def _is_moto(endpoint: str | None) -> bool:
    """Return whether an address is that of a server in this process."""
    return endpoint in _moto
