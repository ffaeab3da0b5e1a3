"""A server for all tests of this room, a new bucket for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import s3_server

from nanoset_core.storage.location import S3Place


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.CREDENTIALS.items():
            patch.setenv(name, value)
        with s3_server.s3_server() as address:
            yield address


@pytest.fixture
def place(endpoint: str) -> Iterator[S3Place]:
    yield s3_server.new_bucket(endpoint, "some/prefix")
    s3_server.forget_all(endpoint)


@pytest.fixture
def remote_project(make_project, place):
    """Writes a project whose root is the bucket; → its nanoset.yaml."""

    def make(name: str = "project") -> Path:
        root = f"root: {place.url}\nstorage: {{endpoint_url: {place.endpoint_url!r}}}"
        return make_project(name, {"root: data": root})

    return make
