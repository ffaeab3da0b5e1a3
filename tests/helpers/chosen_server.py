"""The S3 server of the tests: moto, unless the environment variable S3_SERVER names a real one.

The real ones are `ceph` and `swift`.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from helpers import s3_server, swift_server
from helpers.ceph_server import ceph_server

SERVER = os.environ.get("S3_SERVER", "moto")
CREDENTIALS = dict(s3_server.CREDENTIALS)
if SERVER == "swift":
    CREDENTIALS |= swift_server.CREDENTIALS
"""Credentials of the server, as environment variables."""


def chosen_server(folder: Path) -> AbstractContextManager[str]:
    """Run the server until the block ends, with its data in an empty folder; yield its address."""
    if SERVER == "ceph":
        return ceph_server(folder)
    if SERVER == "swift":
        return swift_server.swift_server(folder)
    assert SERVER == "moto", f"S3_SERVER={SERVER} is not known"
    return s3_server.s3_server()
