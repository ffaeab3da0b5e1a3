"""The S3 server that takes part in tests: moto, unless S3_SERVER=ceph or S3_SERVER=swift names a
real one.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from helpers import s3_server, swift_server
from helpers.ceph_server import ceph_server

SERVER = os.environ.get("S3_SERVER", "moto")
CREDENTIALS = s3_server.CREDENTIALS | (swift_server.CREDENTIALS if SERVER == "swift" else {})
"""Credentials of the server, as environment variables."""


def chosen_server(folder: Path) -> AbstractContextManager[str]:
    """Run the server until the block ends, with its data in an empty folder; yield its address."""
    if SERVER == "moto":
        return s3_server.s3_server()
    return {"ceph": ceph_server, "swift": swift_server.swift_server}[SERVER](folder)
