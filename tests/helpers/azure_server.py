"""An emulator of Azure Blob Storage of one's own on loopback: Azurite, with a private folder.

npm install azurite; then let AZURITE name the program node_modules/.bin/azurite-blob, or put its
folder on PATH.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.daemons import free_ports, running, wait_for
from nanoset_core.storage.azure_store import AzureStore

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The only account of Azurite and its key, which its documentation lists."""


@contextlib.contextmanager
def azure_server(folder: Path) -> Iterator[str]:
    """Run Azurite until the block ends, and yield its address; skip the test without it.

    Args:
        folder: An empty folder for its log.
    """
    pytest.importorskip("adlfs", reason="adlfs is not installed: nanoset-platform[azure]")
    program = os.environ.get("AZURITE") or shutil.which("azurite-blob")
    if program is None:
        pytest.skip("no azurite-blob: see tests/helpers/azure_server.py")
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


def new_container(prefix: str = "") -> AzureStore:
    """Create a container on the server that the environment names; return a place below a prefix.

    Args:
        prefix: What the names of all blobs begin with.
    """
    container = f"container-{uuid.uuid4().hex[:12]}"
    place = AzureStore(f"abfs://{container}/{prefix}".rstrip("/"))
    place.system().mkdir(container)
    return place
