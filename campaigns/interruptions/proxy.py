"""A reverse proxy that spoils a share of the requests that pass through it: a store on a bad day."""

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
from typing import BinaryIO
from urllib.parse import urlsplit

from helpers.chosen_server import CREDENTIALS, chosen_server

ANSWERS = {
    "500": (500, "InternalError"),
    "503": (503, "SlowDown"),
    "429": (429, "TooManyRequests"),
    "500 after it was done": (500, "InternalError"),
}
"""fault → status and S3's code"""
_NEVER_DONE = ("500", "503", "429", "reset", "reset in mid-upload")
FAULTS = (*ANSWERS, "reset", "reset in mid-upload", "reset after it was done", "truncated", "slow")
_HOP_BY_HOP = {
    "connection",
    "keep-alive",
    "transfer-encoding",
    "te",
    "upgrade",
    "proxy-connection",
    "expect",
}
_PIECES = 5
Headers = list[tuple[str, str]]


@dataclass(slots=True)
class Plan:
    """What is to happen to requests from now on."""

    rate: float = 0.0
    """share of the requests that are spoiled"""
    faults: tuple[str, ...] = FAULTS
    """from which one is drawn for each of them"""
    kill: int = 0
    """a process group that is killed; 0 = none"""
    kill_at: int = 0
    """by the request of this number, from 1"""
    kill_after: bool = False
    """once it is done, and not before"""
    slow_seconds: float = 0.3
    """how long a slow answer takes at most"""


@dataclass(slots=True)
class Counts:
    """What happened since the plan was made."""

    requests: int = 0
    """all"""
    spoiled: Counter[str] = field(default_factory=Counter)
    """fault → requests"""


class FaultProxy:
    """Forwards requests to one server, and spoils some, chosen by a seed and their number."""

    def __init__(self, host: str, port: int, seed: int) -> None:
        self.upstream, self.seed = (host, port), seed
        self.plan, self.counts = Plan(), Counts()
        self._lock, self._drawn = threading.Lock(), 0
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self})
        )
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]

    def __enter__(self) -> FaultProxy:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def follow(self, plan: Plan) -> Counts:
        """Replace the plan; → what happened under the last one."""
        with self._lock:
            self.plan, (counts, self.counts) = plan, (self.counts, Counts())
        return counts

    def draw(self, has_body: bool) -> tuple[int, str | None, random.Random]:
        """(number of this request under the plan, its fault, a generator of its own)."""
        with self._lock:
            self._drawn += 1
            self.counts.requests += 1
            rng = random.Random(self.seed << 32 | self._drawn)
            fault = rng.choice(self.plan.faults) if rng.random() < self.plan.rate else None
            if fault == "reset in mid-upload" and not has_body:
                fault = "reset"
            if fault is not None:
                self.counts.spoiled[fault] += 1
            return self.counts.requests, fault, rng

    def kill(self, number: int, *, after: bool) -> None:
        """Kill the plan's process group, if this is the request."""
        plan = self.plan
        if plan.kill and number == plan.kill_at and after == plan.kill_after:
            with suppress(ProcessLookupError):
                os.killpg(plan.kill, signal.SIGKILL)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    # head and body leave together: else each answer waits for the client's delayed acknowledgement
    wbufsize = -1
    proxy: FaultProxy

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: faults are counted."""

    def handle(self) -> None:
        with suppress(ConnectionError, ValueError):  # the client is gone, perhaps killed
            super().handle()

    def handle_expect_100(self) -> bool:
        proceed = super().handle_expect_100()
        self.wfile.flush()  # the client waits for it with its body
        return proceed

    def __getattr__(self, name: str) -> object:
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        chunked = "chunked" in (self.headers.get("Transfer-Encoding") or "")
        number, fault, rng = self.proxy.draw(length > 0)
        self.proxy.kill(number, after=False)
        if fault in _NEVER_DONE:
            self.proxy.kill(number, after=True)
        if fault == "reset in mid-upload":
            self.rfile.read(length // 2)
            return self._reset()
        body = _dechunked(self.rfile) if chunked else self.rfile.read(length)
        if len(body) < length:
            # the client is gone in the middle of its request, which is no whole one
            return self._reset()
        if fault not in _NEVER_DONE:
            answer = self._forward(body)
            self.proxy.kill(number, after=True)
        if fault in ANSWERS:
            return self._answer_error(*ANSWERS[fault])
        if fault in ("reset", "reset after it was done"):
            return self._reset()
        self._answer(*answer, fault, rng)

    def _forward(self, body: bytes) -> tuple[int, str, Headers, bytes]:
        connection = http.client.HTTPConnection(*self.proxy.upstream, timeout=60)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP | {"content-length"}:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.reason, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(
        self,
        status: int,
        reason: str,
        headers: Headers,
        body: bytes,
        fault: str | None,
        rng: random.Random,
    ) -> None:
        self.send_response_only(status, reason)
        for name, value in headers:
            if name.lower() not in _HOP_BY_HOP | {"content-length"}:
                self.send_header(name, value)
        length = next((value for name, value in headers if name.lower() == "content-length"), None)
        if self.command == "HEAD" or status in (204, 304):
            body = b""
        else:
            length = str(len(body))
        if length is not None:
            self.send_header("Content-Length", length)
        if fault == "truncated":
            return self._truncate(body, rng)
        self.end_headers()
        seconds = rng.uniform(0, self.proxy.plan.slow_seconds) if fault == "slow" else 0.0
        pieces = _PIECES if seconds else 1
        for piece in range(pieces):
            self.wfile.write(body[len(body) * piece // pieces : len(body) * (piece + 1) // pieces])
            self.wfile.flush()
            time.sleep(seconds / pieces)

    def _truncate(self, body: bytes, rng: random.Random) -> None:
        """Send less than was announced, of an answer without a body less than its head, and hang
        up.
        """
        if body:
            self.end_headers()
            self.wfile.write(body[: rng.randrange(len(body))])
        else:
            head = b"".join(self._headers_buffer)
            self.wfile.write(head[: rng.randrange(1, len(head) - 5)])
            self._headers_buffer = []
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _answer_error(self, status: int, code: str) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>a fault on purpose</Message></Error>".encode()
        self.send_response_only(status, code)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)
        self.wfile.flush()

    def _reset(self) -> None:
        """Hang up by RST, so that the client reads no end but a broken connection."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.rfile.close()
        self.connection.close()


def _dechunked(file: BinaryIO) -> bytes:
    pieces = []
    while size := int(file.readline().split(b";")[0] or b"", 16):
        pieces.append(file.read(size))
        file.readline()
    while file.readline().strip():
        pass
    return b"".join(pieces)


@dataclass(slots=True)
class Store:
    """A store that speaks S3."""

    endpoint: str
    """the server's own address"""
    spoiled: str
    """that of the proxy before it"""
    _pipe: Connection

    def follow(self, plan: Plan) -> Counts:
        """Tell the proxy what to do from now on; → what happened until now."""
        self._pipe.send(plan)
        return self._pipe.recv()


@contextmanager
def running_store(seed: int) -> Iterator[Store]:
    """Both, until the block ends. This process gets credentials for them."""
    os.environ.update(CREDENTIALS)
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(theirs, seed))
    server.start()
    try:
        yield Store(*pipe.recv(), pipe)
    finally:
        with suppress(OSError):
            pipe.send(None)
        server.join(60)
        server.kill()


def _serve(pipe: Connection, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder, chosen_server(Path(folder)) as address:
        upstream = urlsplit(address)
        with FaultProxy(str(upstream.hostname), upstream.port or 80, seed) as proxy:
            pipe.send((address, f"http://127.0.0.1:{proxy.port}"))
            with suppress(EOFError):
                while (plan := pipe.recv()) is not None:
                    pipe.send(proxy.follow(plan))
