"""Google Storage and Azure while requests fail, and after the process that writes was killed."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from campaigns.interruptions.proxy import FaultProxy, Plan
from helpers import azure_server, google_server
from nanoset_core.storage import requests
from nanoset_core.storage.stores.cloud_filesystem import CloudFilesystemStore

PART_BYTES = 1 << 20
"""Objects are written in parts of this size."""
SIZES = (0, 10, PART_BYTES, 3 * PART_BYTES, 3 * PART_BYTES + 17)
"""Bytes of objects: some are written by one request, and some in parts."""
# gcsfs sends bytes as they are, which aiohttp advises against if they are more than 1 MiB.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


class FaultyCloud(NamedTuple):
    """A place in a cloud, behind a proxy that can spoil requests."""

    store: CloudFilesystemStore
    proxy: FaultProxy
    environment: dict[str, str]
    """Environment variables with which other processes find the proxy."""


SERVERS = {
    "google": google_server.resumable_google_server,
    "google, with versions": google_server.google_server,
    "azure": azure_server.azure_server,
}
"""Names of clouds in this file, with the emulator of each. Of those of Google, one knows what it has
of an upload, and the other one has versions of objects.
"""


@pytest.fixture(params=["google", "azure"])
def faulty_cloud(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultyCloud]:
    """A new place on an emulator, whose requests do not fail yet."""
    with ExitStack() as servers:
        address = servers.enter_context(SERVERS[request.param](tmp_path))
        upstream = urlsplit(address)
        proxy = FaultProxy(str(upstream.hostname), upstream.port or 80, seed=1)
        servers.enter_context(proxy)

        proxy_address = f"http://127.0.0.1:{proxy.port}"
        is_google = request.param != "azure"
        if is_google:
            environment = google_server.environment(proxy_address)
        else:
            environment = azure_server.environment(proxy_address)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        # Repeat requests soon.
        monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.01)

        place: CloudFilesystemStore
        if is_google:
            place = google_server.new_google_bucket(proxy_address, "root")
        else:
            place = azure_server.new_container(proxy_address, "root")
        yield FaultyCloud(replace(place, part_bytes=PART_BYTES), proxy, environment)


def blocks_of(data: bytes) -> Iterator[bytes]:
    """Yield bytes in blocks that are no parts."""
    for start in range(0, len(data), 70_000):
        yield data[start : start + 70_000]


def test_objects_have_all_their_bytes_although_a_fifth_of_the_requests_fails(
    faulty_cloud, tmp_path
):
    store = faulty_cloud.store
    rng = random.Random(0)
    faulty_cloud.proxy.follow(Plan(rate=0.2, slow_seconds=0.05))
    expected: dict[str, bytes] = {}

    for number, size in enumerate(SIZES):
        data = rng.randbytes(size)
        (tmp_path / "file").write_bytes(data)
        store.put(f"put/{number}", data)
        store.put_parts(f"parts/{number}", blocks_of(data))
        store.put_file(f"file/{number}", tmp_path / "file")
        for folder in ("put", "parts", "file"):
            expected[f"{folder}/{number}"] = data
    sources = list(store.list())
    store.compose("whole", sources)
    expected["whole"] = b"".join(expected[source.name] for source in sources)
    for name in ("put/1", "file/3"):
        store.delete(name)
        del expected[name]

    listed = {stored.name: stored.size for stored in store.list()}
    assert listed == {name: len(data) for name, data in expected.items()}
    for name, data in expected.items():
        assert store.sha256(name) == hashlib.sha256(data).hexdigest()
    counts = faulty_cloud.proxy.follow(Plan())
    assert counts.spoiled.total() > 10


@pytest.mark.parametrize("faulty_cloud", ["google, with versions", "azure"], indirect=True)
def test_objects_are_read_whole_although_answers_are_truncated(faulty_cloud):
    """Answers may end within their headers, too."""
    store = faulty_cloud.store
    data = bytes(range(256))
    store.put("object", data)
    stored = store.stat("object")
    faulty_cloud.proxy.follow(Plan(rate=0.4, faults=("truncated",)))

    for _ in range(30):
        assert store.read_stored("object") == (data, stored)
        assert store.open_range("object", 100, 300) == (data[100:], stored)

    counts = faulty_cloud.proxy.follow(Plan())
    assert counts.spoiled["truncated"] > 20
    assert counts.requests < 150, "most of the 60 reads need only one request that succeeds"


UPLOAD = """\
import sys
from dataclasses import replace
from pathlib import Path
from nanoset_core.storage.location import remote_location

store = replace(remote_location(sys.argv[1], where="store").place, part_bytes=1 << 20)
sys.stdin.readline()
store.put_file("object", Path(sys.argv[2]))
"""
"""Uploads a file once it is told to."""


def upload(cloud: FaultyCloud, file: Path, kill_at: int = 0, *, kill_after: bool = False) -> int:
    """Upload a file in another process, and return that process's exit code.

    Args:
        cloud: Where to.
        file: The file.
        kill_at: Number of the request at which the process is killed; 0 if it is not.
        kill_after: Whether it is killed after the server has done this request, and not before.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", UPLOAD, cloud.store.url(), file],
        stdin=subprocess.PIPE,
        env=os.environ | cloud.environment,
        start_new_session=True,
    )
    kill = process.pid if kill_at else 0
    cloud.proxy.follow(Plan(kill=kill, kill_at=kill_at, kill_after=kill_after))
    process.communicate(b"\n", timeout=120)
    cloud.proxy.follow(Plan())
    return process.returncode


@pytest.mark.parametrize("kill_at", [2, 4])
@pytest.mark.parametrize("kill_after", [False, True], ids=["before a request", "after a request"])
def test_a_killed_upload_leaves_the_object_as_it_was(faulty_cloud, tmp_path, kill_at, kill_after):
    """The upload of four parts takes six requests: the first looks at the object."""
    store = faulty_cloud.store
    store.put("object", b"before")
    file = tmp_path / "file"
    file.write_bytes(os.urandom(3 * PART_BYTES + 17))

    exit_code = upload(faulty_cloud, file, kill_at, kill_after=kill_after)

    assert exit_code == -signal.SIGKILL
    assert store.read("object") == b"before"
    assert [stored.name for stored in store.list()] == ["object"]

    # It can be uploaded again.
    assert upload(faulty_cloud, file) == 0
    assert store.read("object") == file.read_bytes()
