"""The proxy that spoils requests, in front of a plain HTTP server: each fault is what it says, and
is counted.
"""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
from collections import Counter
from contextlib import closing

import pytest

from campaigns.interruptions.proxy import ANSWERS, FaultProxy, Plan
from helpers.answering import answering

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
    with (
        answering(_answer) as address,
        FaultProxy("127.0.0.1", int(address.rpartition(":")[2]), seed=5) as running,
    ):
        yield running


def ask(proxy, method="GET", body=None):
    """(status, headers, body)."""
    with closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)) as connection:
        connection.request(method, "/a/b?c=d", body=body)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


@pytest.mark.parametrize("plan", [Plan(), Plan(rate=1.0, faults=("slow",), slow_seconds=0.1)])
def test_what_is_not_spoiled_passes_unchanged(proxy, plan):
    proxy.follow(plan)
    status, headers, body = ask(proxy)
    assert (status, headers["ETag"], body) == (200, '"mark"', BODY)
    status, headers, body = ask(proxy, "HEAD")
    assert (status, headers["Content-Length"], body) == (200, str(len(BODY)), b"")
    assert ask(proxy, "PUT", BODY)[0] == 200
    counts = proxy.follow(Plan())
    assert (kept[BODY], counts.requests, counts.spoiled["slow"]) == (1, 3, 3 * plan.rate)


@pytest.mark.parametrize(
    "fault", [*ANSWERS, "reset", "reset in mid-upload", "reset after it was done"]
)
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
    assert proxy.follow(Plan()).spoiled.total() == 2


def test_truncated_answers_are_shorter_than_announced(proxy):
    proxy.follow(Plan(rate=1.0, faults=("truncated",)))
    with pytest.raises(http.client.IncompleteRead) as found:
        ask(proxy)
    assert BODY.startswith(found.value.partial)
    assert len(found.value.partial) < len(BODY)
    # an answer without a body is cut within its head, which some clients take for a whole one
    for _ in range(10):
        with contextlib.suppress(http.client.HTTPException, ConnectionError):
            assert ask(proxy, "PUT", BODY)[1].get("Content-Length") != "0"
    assert kept[BODY] == 10, "the requests were done, only their answers were lost"


@pytest.mark.parametrize("fault", [None, "reset in mid-upload", "reset after it was done"])
@pytest.mark.parametrize("after", [False, True])
def test_a_process_group_is_killed_by_the_request_of_a_number(proxy, fault, after):
    victim = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    )
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
