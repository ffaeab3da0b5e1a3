"""A reverse proxy in front of a server of buckets that lets a share of the requests fail.

It can also kill a process at a certain request.
"""

from __future__ import annotations

import http.client
import multiprocessing
import os
import random
import signal
import socket
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import urlsplit

from helpers.buckets import CLOUDS, Cloud


class ErrorAnswer(NamedTuple):
    """An answer that reports an error."""

    status: int
    """HTTP status."""
    code: str
    """Name of the error in S3's XML."""


ANSWERS = {
    "500": ErrorAnswer(500, "InternalError"),
    "503": ErrorAnswer(503, "SlowDown"),
    "429": ErrorAnswer(429, "TooManyRequests"),
    "500 after it was done": ErrorAnswer(500, "InternalError"),
}
"""Fault → answer that the client gets."""
_NEVER_DONE = ("500", "503", "429", "reset", "reset in mid-upload")
"""Faults of requests that the server never sees. With all others, it does what is requested."""
FAULTS = (*ANSWERS, "reset", "reset in mid-upload", "reset after it was done", "truncated", "slow")
"""All faults. The resets end the connection instead of an answer. A truncated answer is shorter
than it says, and a slow one arrives in pieces.
"""
_HOP_BY_HOP = {
    "connection",
    "keep-alive",
    "transfer-encoding",
    "te",
    "upgrade",
    "proxy-connection",
    "expect",
}
"""Headers about a single connection, which HTTP forbids a proxy to forward."""
_NOT_FORWARDED = _HOP_BY_HOP | {"content-length"}
"""Headers that the proxy leaves out: it sends a Content-Length of its own."""
_SLOW_PIECES = 5
"""Number of pieces of a slow answer."""
Headers = list[tuple[str, str]]
"""Names and values of HTTP headers."""


@dataclass(slots=True)
class Plan:
    """What happens to requests from now on."""

    rate: float = 0.0
    """Share of the requests that are spoiled."""
    faults: tuple[str, ...] = FAULTS
    """Faults, of which one is drawn for each spoiled request."""
    kill: int = 0
    """Id of a process group that is killed; 0 for none."""
    kill_at: int = 0
    """Number, from 1, of the request that kills it."""
    kill_after: bool = False
    """Whether it is killed after the server has done the request, and not before."""
    slow_seconds: float = 0.3
    """Longest duration of a slow answer."""


@dataclass(slots=True)
class Counts:
    """What has happened to requests under one plan."""

    requests: int = 0
    """Number of all requests."""
    spoiled: Counter[str] = field(default_factory=Counter)
    """Number of requests with each fault."""


class _Request(NamedTuple):
    """What the proxy does with one request."""

    number: int
    """Number of the request under the plan, from 1."""
    fault: str | None
    """Its fault, or None."""
    rng: random.Random
    """Random numbers of this request."""


class _Answer(NamedTuple):
    """An answer of the server."""

    status: int
    reason: str
    headers: Headers
    body: bytes


class FaultProxy:
    """Forwards requests to a server, and spoils some of them.

    A seed and the number of a request decide what happens to it.

    Args:
        host: Host of the server.
        port: Its port.
        seed: The seed.
    """

    def __init__(self, host: str, port: int, seed: int) -> None:
        self.upstream = (host, port)
        """Host and port of the server."""
        self.plan = Plan()
        """What happens to requests now."""
        self._seed = seed
        self._counts = Counts()
        self._n_requests = 0  # under all plans
        # Guards the plan and the counts: each connection has a thread of its own.
        self._lock = threading.Lock()

        # http.server wants a class, of which it makes an instance for each connection.
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        """Port at which the proxy listens."""

    def __enter__(self) -> FaultProxy:
        """Start to serve in a thread."""
        poll_seconds = 0.05
        threading.Thread(
            target=self._server.serve_forever, args=(poll_seconds,), daemon=True
        ).start()
        return self

    def __exit__(self, *_exception: object) -> None:
        """Stop to serve, and close the port."""
        self._server.shutdown()
        self._server.server_close()

    def follow(self, plan: Plan) -> Counts:
        """Replace the plan, and return what has happened under the previous plan."""
        with self._lock:
            previous_counts = self._counts
            self.plan = plan
            self._counts = Counts()
        return previous_counts

    def draw(self, *, has_body: bool) -> _Request:
        """Count a request, and decide what happens to it.

        Args:
            has_body: Whether the request has a body; without one, no upload can be interrupted.
        """
        with self._lock:
            self._n_requests += 1
            self._counts.requests += 1
            rng = random.Random(self._seed << 32 | self._n_requests)
            fault = None
            if rng.random() < self.plan.rate:
                fault = rng.choice(self.plan.faults)
            if fault == "reset in mid-upload" and not has_body:
                fault = "reset"
            if fault is not None:
                self._counts.spoiled[fault] += 1
            return _Request(self._counts.requests, fault, rng)

    def kill(self, number: int, *, after: bool) -> None:
        """Kill the process group of the plan, if the plan names this moment.

        Args:
            number: Number of the current request under the plan.
            after: Whether the server has done the request.
        """
        plan = self.plan
        if plan.kill and number == plan.kill_at and after == plan.kill_after:
            # It may have ended by itself.
            with suppress(ProcessLookupError):
                os.killpg(plan.kill, signal.SIGKILL)


class _Handler(BaseHTTPRequestHandler):
    """Serves the requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    # Buffer answers, so that head and body leave together. If they leave one by one, the client
    # acknowledges the head late, and each answer takes some 40 ms longer.
    wbufsize = -1
    proxy: FaultProxy

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing about requests."""

    def handle(self) -> None:
        """Serve requests until the client closes the connection, or is killed."""
        with suppress(ConnectionError, ValueError):
            super().handle()

    def handle_expect_100(self) -> bool:
        """Tell the client to send the body of its request."""
        proceed = super().handle_expect_100()
        # The client sends nothing before it has read this: it must not wait in the buffer.
        self.wfile.flush()
        return proceed

    def __getattr__(self, name: str) -> object:
        """Return the same function for each method of HTTP: http.server looks up `do_GET` etc."""
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def _serve(self) -> None:
        """Forward a request and its answer, or do what its fault says."""
        body_bytes = int(self.headers.get("Content-Length") or 0)
        is_chunked = "chunked" in (self.headers.get("Transfer-Encoding") or "")
        number, fault, rng = self.proxy.draw(has_body=body_bytes > 0)
        self.proxy.kill(number, after=False)
        is_forwarded = fault not in _NEVER_DONE
        if not is_forwarded:
            # The process must be killed at this request, even if the server never does it.
            self.proxy.kill(number, after=True)

        # Read the body, or half of it.
        if fault == "reset in mid-upload":
            self.rfile.read(body_bytes // 2)
            self._reset()
            return
        body = _read_chunks(self.rfile) if is_chunked else self.rfile.read(body_bytes)
        if len(body) < body_bytes:
            # The client died while it sent the request, so the server must not see it.
            self._reset()
            return

        answer: _Answer | None = None
        if is_forwarded:
            answer = self._forward(body)
            self.proxy.kill(number, after=True)

        # Answer.
        if fault in ANSWERS:
            self._send_error_answer(ANSWERS[fault])
        elif answer is None or fault == "reset after it was done":
            self._reset()
        else:
            self._send_answer(answer, fault, rng)

    def _forward(self, body: bytes) -> _Answer:
        """Send the request to the server, and return the server's answer."""
        connection = http.client.HTTPConnection(*self.proxy.upstream, timeout=60)
        try:
            # The headers Host and Accept-Encoding are the client's, like all others.
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in _NOT_FORWARDED:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            return _Answer(
                status=response.status,
                reason=response.reason,
                headers=response.getheaders(),
                body=response.read(),
            )
        finally:
            connection.close()

    def _send_answer(self, answer: _Answer, fault: str | None, rng: random.Random) -> None:
        """Send an answer of the server to the client.

        Args:
            answer: The answer.
            fault: `truncated`, `slow` or None.
            rng: Random numbers, which decide how short or slow the answer is.
        """
        self.send_response_only(answer.status, answer.reason)
        content_length: str | None = None
        for name, value in answer.headers:
            if name.lower() == "content-length":
                content_length = value
            elif name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)

        # An answer to HEAD has no body, but the Content-Length of one.
        body = answer.body
        if self.command == "HEAD" or answer.status in (204, 304):
            body = b""
        else:
            content_length = str(len(body))
        if content_length is not None:
            self.send_header("Content-Length", content_length)

        if fault == "truncated":
            self._truncate(body, rng)
            return
        self.end_headers()
        if fault == "slow":
            self._send_slowly(body, seconds=rng.uniform(0, self.proxy.plan.slow_seconds))
        else:
            self.wfile.write(body)
            self.wfile.flush()

    def _send_slowly(self, body: bytes, seconds: float) -> None:
        """Send a body in pieces, with a pause after each.

        Args:
            body: The body.
            seconds: Duration of all pauses.
        """
        for piece in range(_SLOW_PIECES):
            start_byte = len(body) * piece // _SLOW_PIECES
            stop_byte = len(body) * (piece + 1) // _SLOW_PIECES
            self.wfile.write(body[start_byte:stop_byte])
            self.wfile.flush()
            time.sleep(seconds / _SLOW_PIECES)

    def _truncate(self, body: bytes, rng: random.Random) -> None:
        """Send the start of an answer, and close the connection.

        An answer without a body ends in its headers.

        Args:
            body: The body; the headers are in the buffer of http.server.
            rng: Random numbers, which decide where the answer ends.
        """
        if body:
            self.end_headers()
            self.wfile.write(body[: rng.randrange(len(body))])
        else:
            head = b"".join(self._headers_buffer)
            # Without its last 5 bytes, even the last header is incomplete.
            self.wfile.write(head[: rng.randrange(1, len(head) - 5)])
            self._headers_buffer = []
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _send_error_answer(self, answer: ErrorAnswer) -> None:
        """Answer with an error, in the XML of S3."""
        text = (
            f"<?xml version='1.0'?><Error><Code>{answer.code}</Code>"
            "<Message>a fault on purpose</Message></Error>"
        )
        body = text.encode()
        self.send_response_only(answer.status, answer.code)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def _reset(self) -> None:
        """Break the connection, so that the client gets an error instead of an end of file."""
        # With a linger time of 0, `close` sends RST and not FIN.
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        # The socket is closed only when no file uses it any more.
        self.rfile.close()
        self.connection.close()


def _read_chunks(file: BinaryIO) -> bytes:
    """Read the body of a request whose Transfer-Encoding is `chunked`."""
    chunks: list[bytes] = []
    while True:
        # A line such as `1a0; extension`: the size of the next chunk, in hexadecimal digits.
        size = int(file.readline().split(b";")[0], 16)
        if size == 0:
            break
        chunks.append(file.read(size))
        file.readline()  # the end of line after the chunk
    # Headers may follow, and then an empty line.
    while file.readline().strip():
        pass
    return b"".join(chunks)


@dataclass(slots=True)
class FaultyServer:
    """A server of buckets and the proxy in front of it, both in another process."""

    cloud: Cloud
    """The kind of its buckets."""
    endpoint: str
    """Address of the server."""
    proxy_endpoint: str
    """Address of the proxy."""
    _pipe: Connection
    """Sends plans to the other process, which answers with counts."""

    def follow(self, plan: Plan) -> Counts:
        """Replace the plan of the proxy, and return what has happened under the previous plan."""
        self._pipe.send(plan)
        return self._pipe.recv()


@contextmanager
def running_server(seed: int, cloud_name: str) -> Iterator[FaultyServer]:
    """Run a server of buckets and a proxy in front of it until the block ends.

    The environment of this process gets what it needs to use the server without the proxy.

    Args:
        seed: Decides which requests fail.
        cloud_name: Kind of the buckets, a key of CLOUDS.
    """
    cloud = CLOUDS[cloud_name]
    context = multiprocessing.get_context("spawn")
    pipe, server_pipe = context.Pipe()
    process = context.Process(target=_run_servers, args=(server_pipe, seed, cloud_name))
    process.start()
    try:
        endpoint, proxy_endpoint = pipe.recv()
        os.environ.update(cloud.environment(endpoint))
        yield FaultyServer(cloud, endpoint, proxy_endpoint, pipe)
    finally:
        # None asks the process to end. It may have ended already.
        with suppress(OSError):
            pipe.send(None)
        process.join(60)
        process.kill()


def _run_servers(pipe: Connection, seed: int, cloud_name: str) -> None:
    """Run the server and the proxy in this process, and do what the parent process asks.

    Args:
        pipe: To the parent. First, both addresses are sent. Then each plan that arrives replaces
            the plan of the proxy, and the counts of the previous plan are sent. None ends all.
        seed: Decides which requests fail.
        cloud_name: Kind of the buckets, a key of CLOUDS.
    """
    serve = CLOUDS[cloud_name].serve
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder)) as address:
        upstream = urlsplit(address)
        with FaultProxy(str(upstream.hostname), upstream.port or 80, seed) as proxy:
            pipe.send((address, f"http://127.0.0.1:{proxy.port}"))
            # The pipe ends if the parent was killed.
            with suppress(EOFError):
                while (plan := pipe.recv()) is not None:
                    pipe.send(proxy.follow(plan))
