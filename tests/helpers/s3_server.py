"""An S3 server in the process of the test (moto), and what its buckets hold."""

from __future__ import annotations

import hashlib
import io
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread
from typing import Any, NamedTuple

import pytest

from nanoset_core.storage.s3 import S3Store

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "an-example-key",
    "AWS_SECRET_ACCESS_KEY": "an-example-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}

MEMORY = ".fingerprints.json"

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
    from moto.moto_server.werkzeug_app import MotoRequestHandler
    from werkzeug.serving import DechunkedInput

    one_at_a_time = Lock()  # moto looks whether an object is there, and then writes it

    class Handler(MotoRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # head and body leave together

        def handle_expect_100(self) -> bool:
            proceed = super().handle_expect_100()
            self.wfile.flush()  # the client waits for it with its body
            return proceed

        def run_wsgi(self) -> None:
            is_chunked = "chunked" in self.headers.get("Transfer-Encoding", "")
            length = int(self.headers.get("Content-Length") or 0)
            body = (
                io.BufferedReader(DechunkedInput(self.rfile)).read()
                if is_chunked
                else self.rfile.read(length)
            )
            if len(body) < length:
                self.close_connection = True
                return
            self.environ = environ = self.make_environ()
            environ |= {"wsgi.input": io.BytesIO(body), "wsgi.input_terminated": True}
            begun: list[Any] = []
            requests_answered[f"http://{self.server.host}:{self.server.port}"] += 1
            with one_at_a_time:
                answer = b"".join(self.server.app(environ, lambda *head: begun.extend(head)))
            status, _, reason = begun[0].partition(" ")
            bytes_answered[f"http://{self.server.host}:{self.server.port}"] += len(answer)
            bodiless = self.command == "HEAD" or status in ("204", "304")
            for listener in listeners:
                listener(environ["PATH_INFO"], len(body), 0 if bodiless else len(answer))
            self.send_response(int(status), reason)
            for name, value in begun[1]:
                self.send_header(name, value)
            if not bodiless and "content-length" not in {name.lower() for name, _ in begun[1]}:
                self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(b"" if bodiless else answer)
            self.wfile.flush()

    return Handler


def forget_all(endpoint: str) -> None:
    """Delete everything that a server in this process holds."""
    if _is_moto(endpoint):
        _backend().reset()


def new_bucket(endpoint: str, prefix: str = "") -> S3Store:
    """Create a bucket, and return the place below a prefix in it."""
    place = S3Store(f"bucket-{uuid.uuid4().hex[:12]}", prefix, endpoint)
    place.client().create_bucket(Bucket=place.bucket)
    return place


def upload_raw(folder: Path, place: S3Store) -> S3Store:
    """Upload a folder of raw text next to the prefix of the outputs, and return its place."""
    raw = S3Store(place.bucket, "raw text", place.endpoint_url)
    for path in folder.rglob("*"):
        if path.is_file():
            raw.put_file(path.relative_to(folder).as_posix(), path)
    return raw


def root_in(place: S3Store) -> dict[str, str]:
    """Return replacements in the sample project's settings that put its outputs into a bucket."""
    root = f"root: {place.url()}\nstorage: {{endpoint_url: {place.endpoint_url!r}}}"
    return {"root: data": root}


def total_bytes(ranges: Iterable[tuple[str, int, int]]) -> int:
    """Return the bytes of ranges of objects, each as (name, start, stop)."""
    return sum(stop - start for _, start, stop in ranges)


def objects(place: S3Store) -> dict[str, str]:
    """Return the sha256 of every object below a place, by key; not of files that only save time."""
    found = snapshot(place).items()
    return {
        name: hashlib.sha256(kept.data).hexdigest()
        for name, kept in found
        if not name.endswith(MEMORY)
    }


def versions(place: S3Store) -> dict[str, str]:
    """Return ETag and time of every object below a place, by key.

    They tell whether an object was written again, even with the same bytes.
    """
    start = f"{place.prefix}/".lstrip("/")
    if not _is_moto(place.endpoint_url):
        pages = (
            place.client()
            .get_paginator("list_objects_v2")
            .paginate(Bucket=place.bucket, Prefix=start)
        )
        found = [
            (one["Key"], one["ETag"], one["LastModified"])
            for page in pages
            for one in page.get("Contents", ())
        ]
    else:
        stored = _backend().buckets[place.bucket].keys.items()
        found = [(key, one.etag, one.last_modified) for key, one in stored if key.startswith(start)]
    return {key.removeprefix(start): f"{etag} {written}" for key, etag, written in found}


class Kept(NamedTuple):
    """An object with its metadata."""

    data: bytes
    metadata: dict[str, str]
    checksum: tuple[str | None, str | None]
    """Algorithm and value of the checksum."""


def snapshot(place: S3Store) -> dict[str, Kept]:
    """Return every object below a place, by key.

    They are taken from moto's memory: requests for each would take longer than most tests.
    """
    start, found = f"{place.prefix}/".lstrip("/"), {}
    if not _is_moto(place.endpoint_url):
        for name in [stored.name for stored in place.list()]:
            answer = place.client().get_object(Bucket=place.bucket, Key=start + name)
            found[name] = Kept(answer["Body"].read(), answer["Metadata"], (None, None))
        return found
    for key, stored in _backend().buckets[place.bucket].keys.items():
        if key.startswith(start):
            checksum = stored.checksum_algorithm, stored.checksum_value
            found[key.removeprefix(start)] = Kept(stored.value, dict(stored.metadata), checksum)
    return found


def restore(place: S3Store, snapshot: Mapping[str, Kept]) -> None:
    """Put all objects of a snapshot into a bucket."""
    for name, kept in snapshot.items():
        key = f"{place.prefix}/{name}".lstrip("/")
        if not _is_moto(place.endpoint_url):
            place.client().put_object(
                Bucket=place.bucket, Key=key, Body=kept.data, Metadata=kept.metadata
            )
            continue
        stored = _backend().put_object(place.bucket, key, kept.data)
        stored.set_metadata(kept.metadata)
        stored.checksum_algorithm, stored.checksum_value = kept.checksum


def _is_moto(endpoint: str | None) -> bool:
    return endpoint in _moto


def _backend() -> Any:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
