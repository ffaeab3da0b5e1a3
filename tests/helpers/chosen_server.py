"""The S3 server of the tests: moto, unless the environment variable S3_SERVER names a real one.

The real ones are `ceph` and `swift`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from helpers import s3_server, swift_server
from helpers.ceph_server import ceph_server
from nanoset_core.storage.stores.s3 import joining as s3_joining

SERVER = os.environ.get("S3_SERVER", "moto")
CREDENTIALS = dict(s3_server.CREDENTIALS)
if SERVER == "swift":
    CREDENTIALS |= swift_server.CREDENTIALS
"""Credentials of the server, as environment variables."""

LEAST_BYTES = 512 << 10 if SERVER == "moto" else s3_joining.LEAST_BYTES
"""Least bytes of a part of an upload, except the last one, in the block of `small_parts`."""


@contextmanager
def small_parts() -> Iterator[None]:
    """Let the server accept smaller parts of uploads than S3 does, if it is moto.

    So a bucket joins objects of half a megabyte as it joins objects of 5 MiB otherwise.
    """
    with pytest.MonkeyPatch.context() as patch:
        if SERVER == "moto":
            patch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", LEAST_BYTES)
        patch.setattr(s3_joining, "LEAST_BYTES", LEAST_BYTES)
        yield


def chosen_server(folder: Path) -> AbstractContextManager[str]:
    """Run the server until the block ends, with its data in an empty folder; yield its address."""
    if SERVER == "ceph":
        return ceph_server(folder)
    if SERVER == "swift":
        return swift_server.swift_server(folder)
    assert SERVER == "moto", f"S3_SERVER={SERVER} is not known"
    return s3_server.s3_server()
