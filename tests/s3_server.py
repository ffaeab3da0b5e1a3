"""A server that speaks S3, in this process, for tests; and a bucket as a folder of checksums."""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

import pytest

from nanoset_core.storage.location import S3Place
from nanoset_core.storage.s3_requests import client

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "an-example-key",
    "AWS_SECRET_ACCESS_KEY": "an-example-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def s3_server() -> Iterator[str]:
    """A moto server on a free port; → its address."""
    moto = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
        forget_all(f"http://{host}:{port}")
    finally:
        server.stop()


def forget_all(endpoint: str) -> None:
    """Drop what the server holds, which is in the memory, and partly in temporary files, of this process."""
    with urlopen(Request(f"{endpoint}/moto-api/reset", method="POST")) as answer:
        assert answer.status == 200


def new_bucket(endpoint: str, prefix: str = "") -> S3Place:
    """A new bucket on the server."""
    place = S3Place(f"bucket-{uuid.uuid4().hex[:12]}", prefix, endpoint)
    client(place).create_bucket(Bucket=place.bucket)
    return place


def objects(place: S3Place) -> dict[str, str]:
    """Key below the place → sha256 of every object."""
    s3, found = client(place), {}
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=place.bucket, Prefix=place.prefix)
    for entry in (entry for page in pages for entry in page.get("Contents", ())):
        data = s3.get_object(Bucket=place.bucket, Key=entry["Key"])["Body"].read()
        found[entry["Key"].removeprefix(place.prefix).lstrip("/")] = hashlib.sha256(data).hexdigest()
    return found
