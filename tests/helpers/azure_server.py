"""Azurite, an emulator of Azure Blob Storage on this machine, which stores blobs in memory.

`make clouds` installs it by `npm install azurite`. Put its program azurite-blob on PATH, or let
AZURITE name it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers.daemons import free_ports, running, wait_for
from nanoset_core.storage.stores.azure import AzureStore

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The only account of Azurite and its key, which its documentation lists."""


def why_missing() -> str | None:
    """Return why there is no Azurite on this machine, or None if it can be used."""
    if find_spec("adlfs") is None:
        return "adlfs is not installed: nanoset-platform[azure]"
    if _program() is None:
        return "Azurite is not installed: see tests/helpers/azure_server.py"
    return None


def _program() -> str | None:
    """Return the path of Azurite, or None if it is not installed."""
    return os.environ.get("AZURITE") or shutil.which("azurite-blob")


@contextlib.contextmanager
def azure_server(folder: Path) -> Iterator[str]:
    """Run Azurite until the block ends, and yield its address; skip the test without it.

    Args:
        folder: An empty folder for its log.
    """
    program = _program()
    reason = why_missing()
    if program is None or reason is not None:
        pytest.skip(str(reason))
    [port] = free_ports(1)
    command = [program, "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]
    command += ["--silent", "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with running(command, folder / "azurite.log", folder=folder):
        wait_for(f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"


def environment(address: str) -> dict[str, str]:
    """Return the environment variables with which adlfs finds the server and its credentials.

    Args:
        address: Address of the server, or of a proxy before it.
    """
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
        f"BlobEndpoint={address}/{ACCOUNT};"
    )
    return {"AZURE_STORAGE_CONNECTION_STRING": connection}


def new_container(address: str, prefix: str = "") -> AzureStore:
    """Create a container, and return the place below a prefix in it.

    Args:
        address: Address of the server.
        prefix: What the names of all blobs begin with.
    """
    from azure.storage.blob import BlobServiceClient

    container = f"container-{uuid.uuid4().hex[:12]}"
    connection = environment(address)["AZURE_STORAGE_CONNECTION_STRING"]
    with BlobServiceClient.from_connection_string(connection) as client:
        client.create_container(container)
    return AzureStore(f"abfs://{container}/{prefix}".rstrip("/"))
