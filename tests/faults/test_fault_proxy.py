"""The proxy that spoils requests, in front of a plain HTTP server: each fault is what it says, and is counted."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from faults.interruptions.proxy import FAULTS, FaultProxy, Plan
from faults.interruptions.servers import Store

BODY = bytes(range(256)) * 64


class _Store(BaseHTTPRequestHandler):
    """Gives BODY, and keeps the last body that it was given."""

    protocol_version = "HTTP/1.1"
    kept: ClassVar[Counter[bytes]] = Counter()

    def log_message(self, format, *arguments):
        pass

    def _answer(self, body):
        self.send_response(200, "OK")
        self.send_header("Content-Length", str(len(BODY if self.command == "HEAD" else body)))
        self.send_header("ETag", '"mark"')
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self._answer(BODY)

    def do_HEAD(self):
        self._answer(b"")

    def do_PUT(self):
        self.kept[self.rfile.read(int(self.headers["Content-Length"]))] += 1
        self._answer(b"")


@pytest.fixture
def proxy():
    _Store.kept = Counter()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Store)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    with FaultProxy("127.0.0.1", server.server_address[1], seed=5) as running:
        yield running
    server.shutdown()
    server.server_close()


def ask(proxy, method="GET", body=None):
    """(status, headers, body)."""
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
    try:
        connection.request(method, "/a/b?c=d", body=body)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_without_a_plan_everything_passes_unchanged(proxy):
    status, headers, body = ask(proxy)
    assert (status, headers["ETag"], body) == (200, '"mark"', BODY)
    status, headers, body = ask(proxy, "HEAD")
    assert (status, headers["Content-Length"], body) == (200, str(len(BODY)), b"")
    assert ask(proxy, "PUT", BODY)[0] == 200
    assert _Store.kept == {BODY: 1}
    assert proxy.follow(Plan()).requests == 3


@pytest.mark.parametrize(
    ("fault", "status"), [("500", 500), ("503", 503), ("429", 429), ("500 after it was done", 500)]
)
def test_errors_are_answered_before_or_after_the_request_is_done(proxy, fault, status):
    proxy.follow(Plan(rate=1.0, faults=(fault,)))
    found, _, body = ask(proxy, "PUT", BODY)
    assert found == status
    assert b"<Code>" in body
    assert _Store.kept[BODY] == (fault == "500 after it was done")
    assert ask(proxy, "HEAD")[2] == b""


@pytest.mark.parametrize("fault", ["reset", "reset in mid-upload", "reset after it was done"])
def test_connections_are_reset_before_or_after_the_request_is_done(proxy, fault):
    proxy.follow(Plan(rate=1.0, faults=(fault,)))
    with pytest.raises(ConnectionError):
        ask(proxy, "PUT", BODY)
    assert _Store.kept[BODY] == (fault == "reset after it was done")
    with pytest.raises(ConnectionError):
        ask(proxy)


def test_truncated_answers_are_shorter_than_announced(proxy):
    proxy.follow(Plan(rate=1.0, faults=("truncated",)))
    with pytest.raises(http.client.IncompleteRead) as found:
        ask(proxy)
    assert BODY.startswith(found.value.partial)
    assert len(found.value.partial) < len(BODY)
    for _ in range(10):  # an answer without a body is cut within its head, which some clients take for a whole one
        try:
            _, headers, _ = ask(proxy, "PUT", BODY)
        except (http.client.HTTPException, ConnectionError):
            continue
        assert headers.get("Content-Length") != "0"
    assert _Store.kept[BODY] == 10, "the requests were done, only their answers were lost"


def test_slow_answers_are_whole(proxy):
    proxy.follow(Plan(rate=1.0, faults=("slow",)))
    assert ask(proxy)[2] == BODY


def test_the_share_of_spoiled_requests_is_as_planned_and_counted(proxy):
    proxy.follow(Plan(rate=0.2, slow_seconds=0.01))
    failed = 0
    for _ in range(400):
        try:
            status, _, body = ask(proxy)
            failed += status != 200 or body != BODY
        except (http.client.HTTPException, ConnectionError):
            failed += 1
    counts = proxy.follow(Plan())
    assert counts.requests == 400
    assert set(counts.spoiled) == set(FAULTS) - {"reset in mid-upload"}
    assert failed == sum(counts.spoiled.values()) - counts.spoiled["slow"]
    assert 50 < sum(counts.spoiled.values()) < 110


@pytest.mark.parametrize("after", [False, True])
def test_a_process_group_is_killed_by_the_request_of_a_number(proxy, after):
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        proxy.follow(Plan(kill=victim.pid, kill_at=2, kill_after=after))
        ask(proxy, "PUT", BODY)
        assert victim.poll() is None
        ask(proxy, "PUT", BODY)
        assert victim.wait(10) == -9
    finally:
        victim.kill()
        victim.wait()


@pytest.mark.parametrize("fault", ["503", "reset", "reset in mid-upload", "reset after it was done"])
@pytest.mark.parametrize("after", [False, True])
def test_also_by_a_request_that_fails(proxy, fault, after):
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        proxy.follow(Plan(rate=1.0, faults=(fault,), kill=victim.pid, kill_at=1, kill_after=after))
        with contextlib.suppress(OSError, http.client.HTTPException):
            ask(proxy, "PUT", BODY)
        assert victim.wait(10) == -9
    finally:
        victim.kill()
        victim.wait()


def test_it_runs_as_a_process_of_its_own(proxy):
    command = [sys.executable, "-m", "faults.interruptions.proxy", *map(str, (*proxy.upstream, 3))]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        store = Store("", f"http://127.0.0.1:{process.stdout.readline().strip()}", process)
        assert store.follow(Plan(rate=1.0, faults=("503",))).requests == 0
        connection = http.client.HTTPConnection("127.0.0.1", int(store.spoiled.rpartition(":")[2]), timeout=10)
        connection.request("GET", "/")
        assert connection.getresponse().status == 503
        connection.close()
        counts = store.follow(Plan())
        assert (counts.requests, dict(counts.spoiled)) == (1, {"503": 1})
