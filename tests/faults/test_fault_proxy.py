"""The proxy that spoils requests, in front of a plain HTTP server: each fault is what it says, and is counted."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
from collections import Counter
from contextlib import closing

import pytest
from chosen_server import CREDENTIALS
from faults.interruptions.proxy import ANSWERS, FAULTS, FaultProxy, Plan, running_store
from storage.answering import answering

BODY = bytes(range(256)) * 64


kept: Counter[bytes] = Counter()
"""Bodies that the server was given."""


def _answer(to):
    kept[to.rfile.read(int(to.headers.get("Content-Length", 0)))] += to.command == "PUT"
    body = BODY if to.command in ("GET", "HEAD") else b""
    to.protocol_version = "HTTP/1.1"
    to.send_response(200, "OK")
    to.send_header("Content-Length", str(len(body)))
    to.send_header("ETag", '"mark"')
    to.end_headers()
    to.wfile.write(b"" if to.command == "HEAD" else body)


@pytest.fixture
def proxy():
    kept.clear()
    with answering(_answer) as address, FaultProxy("127.0.0.1", int(address.rpartition(":")[2]), seed=5) as running:
        yield running


def ask(proxy, method="GET", body=None):
    """(status, headers, body)."""
    with closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)) as connection:
        connection.request(method, "/a/b?c=d", body=body)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


def test_without_a_plan_everything_passes_unchanged(proxy):
    status, headers, body = ask(proxy)
    assert (status, headers["ETag"], body) == (200, '"mark"', BODY)
    status, headers, body = ask(proxy, "HEAD")
    assert (status, headers["Content-Length"], body) == (200, str(len(BODY)), b"")
    assert ask(proxy, "PUT", BODY)[0] == 200
    assert kept[BODY] == 1
    assert proxy.follow(Plan()).requests == 3


@pytest.mark.parametrize("fault", [*ANSWERS, "reset", "reset in mid-upload", "reset after it was done"])
def test_a_request_fails_before_or_after_it_is_done(proxy, fault):
    proxy.follow(Plan(rate=1.0, faults=(fault,)))
    if fault in ANSWERS:
        status, _, body = ask(proxy, "PUT", BODY)
        assert (status, b"<Code>" in body) == (ANSWERS[fault][0], True)
        assert ask(proxy, "HEAD")[2] == b""
    else:
        for method, body in (("PUT", BODY), ("GET", None)):
            with pytest.raises(ConnectionError):
                ask(proxy, method, body)
    assert kept[BODY] == fault.endswith("after it was done")


def test_truncated_answers_are_shorter_than_announced(proxy):
    proxy.follow(Plan(rate=1.0, faults=("truncated",)))
    with pytest.raises(http.client.IncompleteRead) as found:
        ask(proxy)
    assert BODY.startswith(found.value.partial)
    assert len(found.value.partial) < len(BODY)
    for _ in range(10):  # an answer without a body is cut within its head, which some clients take for a whole one
        with contextlib.suppress(http.client.HTTPException, ConnectionError):
            assert ask(proxy, "PUT", BODY)[1].get("Content-Length") != "0"
    assert kept[BODY] == 10, "the requests were done, only their answers were lost"


def test_slow_answers_are_whole(proxy):
    proxy.follow(Plan(rate=1.0, faults=("slow",)))
    assert ask(proxy)[2] == BODY


def test_the_share_of_spoiled_requests_is_as_planned_and_counted(proxy):
    proxy.follow(Plan(rate=0.2, slow_seconds=0.01))
    good = 0
    for _ in range(400):
        with contextlib.suppress(http.client.HTTPException, ConnectionError):
            good += ask(proxy)[::2] == (200, BODY)
    counts = proxy.follow(Plan())
    assert counts.requests == 400
    assert set(counts.spoiled) == set(FAULTS) - {"reset in mid-upload"}
    assert 400 - good == sum(counts.spoiled.values()) - counts.spoiled["slow"]
    assert 50 < sum(counts.spoiled.values()) < 110


@pytest.mark.parametrize("fault", [None, "503", "reset", "reset in mid-upload", "reset after it was done"])
@pytest.mark.parametrize("after", [False, True])
def test_a_process_group_is_killed_by_the_request_of_a_number(proxy, fault, after):
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        faults = {} if fault is None else {"rate": 1.0, "faults": (fault,)}
        proxy.follow(Plan(**faults, kill=victim.pid, kill_at=2, kill_after=after))
        for _ in range(2):
            assert victim.poll() is None
            with contextlib.suppress(OSError, http.client.HTTPException):
                ask(proxy, "PUT", BODY)
        assert victim.wait(10) == -9
    finally:
        victim.kill()
        victim.wait()


def test_it_runs_before_a_server_in_a_process_of_its_own(monkeypatch):
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    for name in CREDENTIALS:
        monkeypatch.setenv(name, "")  # so that they are as before afterwards
    with running_store(3) as store:
        assert store.follow(Plan(rate=1.0, faults=("503",))).requests == 0
        with closing(http.client.HTTPConnection("127.0.0.1", int(store.spoiled.rpartition(":")[2]), timeout=10)) as to:
            to.request("GET", "/")
            assert to.getresponse().status == 503
        counts = store.follow(Plan())
        assert (counts.requests, dict(counts.spoiled)) == (1, {"503": 1})
