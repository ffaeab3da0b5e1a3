"""Each fault of the proxy does to requests what its name says, and is counted.

The proxy stands in front of a plain HTTP server, which counts the bodies that it receives.
"""

from __future__ import annotations

import contextlib
import http.client
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple

import pytest

from campaigns.interruptions.proxy import ANSWERS, FaultProxy, Plan
from helpers.answering import answering

BODY = bytes(range(256)) * 64
n_puts_by_body: Counter[bytes] = Counter()
"""Body → number of PUT requests in which the server received it."""


class Response(NamedTuple):
    """What a client receives."""

    status: int
    headers: dict[str, str]
    body: bytes


def answer_with_body(handler: BaseHTTPRequestHandler) -> None:
    """Answer a request: the body is BODY for GET and HEAD, and empty for others."""
    n_bytes = int(handler.headers.get("Content-Length", 0))
    received_body = handler.rfile.read(n_bytes)
    if handler.command == "PUT":
        n_puts_by_body[received_body] += 1
    body = b""
    if handler.command in ("GET", "HEAD"):
        body = BODY

    handler.protocol_version = "HTTP/1.1"
    handler.send_response(200, "OK")
    handler.send_header("Content-Length", str(len(body)))
    handler.send_header("ETag", '"mark"')
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    """A running proxy in front of a running server."""
    n_puts_by_body.clear()
    with answering(answer_with_body) as address:
        _host, _, port = address.rpartition(":")
        with FaultProxy("127.0.0.1", int(port), seed=5) as proxy:
            yield proxy


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process, in a group of its own, that runs until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    yield process
    process.kill()
    process.wait()


def send(proxy: FaultProxy, method: str = "GET", body: bytes | None = None) -> Response:
    """Send a request through the proxy, and return the response."""
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
    with closing(connection):
        connection.request(method, "/a/b?c=d", body=body)
        response = connection.getresponse()
        return Response(response.status, dict(response.getheaders()), response.read())


def always(fault: str) -> Plan:
    """Return a plan in which every request meets a fault."""
    return Plan(rate=1.0, faults=(fault,), slow_seconds=0.1)


# Requests that succeed


@pytest.mark.parametrize(
    "plan", [pytest.param(Plan(), id="no fault"), pytest.param(always("slow"), id="slow")]
)
def test_requests_that_do_not_fail_pass_unchanged(proxy, plan):
    proxy.follow(plan)

    get = send(proxy, "GET")
    head = send(proxy, "HEAD")
    put = send(proxy, "PUT", BODY)

    assert get.status == 200
    assert get.headers["ETag"] == '"mark"'
    assert get.body == BODY
    assert head.status == 200
    assert head.headers["Content-Length"] == str(len(BODY))
    assert head.body == b""
    assert put.status == 200
    assert n_puts_by_body[BODY] == 1


def test_slow_requests_are_counted(proxy):
    proxy.follow(always("slow"))
    for _ in range(3):
        send(proxy)

    counts = proxy.follow(Plan())

    assert counts.requests == 3
    assert counts.spoiled == {"slow": 3}


def test_requests_that_do_not_fail_are_counted(proxy):
    for _ in range(3):
        send(proxy)

    counts = proxy.follow(Plan())

    assert counts.requests == 3
    assert counts.spoiled == {}


# Faults


@pytest.mark.parametrize("fault", ANSWERS)
def test_an_error_answer_has_the_status_of_its_fault(proxy, fault):
    proxy.follow(always(fault))

    response = send(proxy, "PUT", BODY)

    assert response.status == ANSWERS[fault].status
    assert b"<Code>" in response.body


@pytest.mark.parametrize("fault", ANSWERS)
def test_an_error_answer_to_a_head_request_has_no_body(proxy, fault):
    proxy.follow(always(fault))

    response = send(proxy, "HEAD")

    assert response.body == b""


@pytest.mark.parametrize("fault", ["reset", "reset in mid-upload", "reset after it was done"])
@pytest.mark.parametrize(
    ("method", "body"), [pytest.param("PUT", BODY, id="PUT"), pytest.param("GET", None, id="GET")]
)
def test_a_reset_breaks_the_connection(proxy, fault, method, body):
    proxy.follow(always(fault))

    with pytest.raises(ConnectionError):
        send(proxy, method, body)


@pytest.mark.parametrize(
    ("fault", "n_puts"),
    [
        ("500", 0),
        ("503", 0),
        ("429", 0),
        ("reset", 0),
        ("reset in mid-upload", 0),
        ("500 after it was done", 1),
        ("reset after it was done", 1),
    ],
)
def test_the_name_of_a_fault_says_whether_the_server_does_the_request(proxy, fault, n_puts):
    proxy.follow(always(fault))

    with contextlib.suppress(ConnectionError):
        send(proxy, "PUT", BODY)

    assert n_puts_by_body[BODY] == n_puts
    assert proxy.follow(Plan()).spoiled == {fault: 1}


def test_a_truncated_answer_is_shorter_than_its_content_length(proxy):
    proxy.follow(always("truncated"))

    with pytest.raises(http.client.IncompleteRead) as caught:
        send(proxy)

    received_body = caught.value.partial
    assert BODY.startswith(received_body)
    assert len(received_body) < len(BODY)


def test_a_truncated_answer_without_a_body_ends_within_its_headers(proxy):
    proxy.follow(always("truncated"))

    # The answer is cut at a random byte. Some clients, such as this one, take what arrives for
    # a complete answer, but the last header is never in it.
    for _ in range(10):
        with contextlib.suppress(http.client.HTTPException, ConnectionError):
            response = send(proxy, "PUT", BODY)
            assert response.headers.get("Content-Length") != "0"

    assert n_puts_by_body[BODY] == 10, "the server must do requests whose answers are truncated"


@pytest.mark.parametrize("fault", [None, "reset in mid-upload", "reset after it was done"])
@pytest.mark.parametrize("kill_after", [False, True], ids=["before it is done", "after"])
def test_the_request_with_the_number_of_the_plan_kills_a_process_group(
    proxy, victim, fault, kill_after
):
    plan = Plan(kill=victim.pid, kill_at=2, kill_after=kill_after)
    if fault is not None:
        plan.rate = 1.0
        plan.faults = (fault,)
    proxy.follow(plan)

    for _ in range(2):
        # It lives until the second request.
        assert victim.poll() is None
        with contextlib.suppress(OSError, http.client.HTTPException):
            send(proxy, "PUT", BODY)

    assert victim.wait(10) == -signal.SIGKILL
