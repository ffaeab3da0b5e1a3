"""Requests that no server answers: a warning names the server long before the request times out."""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from queue import SimpleQueue
from typing import NamedTuple

import pytest

from helpers.answering import answering, send_answer
from nanoset_core.storage.stores import unanswered
from nanoset_core.storage.stores.filesystems import FilesystemStore
from nanoset_core.storage.stores.s3.reading import S3Reader
from nanoset_core.storage.stores.s3.store import S3Store

BODY = b"x" * 1000
HEADERS = {
    "ETag": '"e"',
    "Last_Modified": "Wed, 21 Oct 2015 07:28:00 GMT",
    "Content_Range": "bytes 0-999/1000",
}
"""Headers of an answer with all bytes of an object."""


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> SimpleQueue[str]:
    """Warnings about servers that are silent for a moment, of a process that has not warned yet."""
    warnings: SimpleQueue[str] = SimpleQueue()
    monkeypatch.setattr(unanswered, "_last_warning_at", -math.inf)
    monkeypatch.setattr(unanswered, "SILENT_SECONDS", 0.05)
    monkeypatch.setattr(
        unanswered.logger, "warning", lambda text, *values: warnings.put(text % values)
    )
    return warnings


class SilentServer:
    """A server that does not answer a request before `go_on` is set."""

    def __init__(self) -> None:
        """Create a server that is silent."""
        self.go_on = threading.Event()

    def not_found(self, request: BaseHTTPRequestHandler) -> None:
        """Be silent, then answer that there is no such file."""
        assert self.go_on.wait(20)
        send_answer(request, 404, b"")

    def silent_before_answer(self, request: BaseHTTPRequestHandler) -> None:
        """Be silent, then answer."""
        assert self.go_on.wait(20)
        send_answer(request, 206, BODY, **HEADERS)

    def silent_within_body(self, request: BaseHTTPRequestHandler) -> None:
        """Begin to answer, be silent, then send the other bytes of the body."""
        send_answer(request, 206, BODY[:10], Content_Length=str(len(BODY)), **HEADERS)
        assert self.go_on.wait(20)
        request.wfile.write(BODY[10:])


@pytest.fixture
def server() -> SilentServer:
    """A server that is silent."""
    return SilentServer()


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    """A thread that waits for an answer."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.mark.parametrize("store_class", [S3Store, S3Reader])
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(SilentServer.silent_before_answer, id="before the answer"),
        pytest.param(SilentServer.silent_within_body, id="within the body"),
    ],
)
def test_a_bucket_whose_server_is_silent_is_named_meanwhile(
    warnings, endpoint, server, executor, store_class, answer
):
    with answering(lambda request: answer(server, request)) as address:
        store = store_class("b", "p", address)
        request = executor.submit(store.read_range, "k", 0, len(BODY))
        warning = warnings.get(timeout=20)
        server.go_on.set()
        data = request.result()

    assert warning.startswith(f"s3://b/p/k at {address}: no answer for ")
    assert data == BODY


def test_a_web_server_that_is_silent_is_named_meanwhile(warnings, server, executor):
    with answering(lambda request: server.not_found(request)) as address:
        store = FilesystemStore(address)
        request = executor.submit(store.stat, "web.jsonl")
        warning = warnings.get(timeout=20)
        server.go_on.set()
        status = request.result()

    assert warning.startswith(f"{address}/web.jsonl: no answer for ")
    assert status is None


class Silence(NamedTuple):
    """A moment at which a request, sent at 0 seconds, has not been answered."""

    now: int
    patience: int = 0
    """Seconds that the server may be silent for longer, since the operation takes long."""
    last_sign_at: int | None = None
    """When any server sent or took bytes last."""


def warnings_at(silence: Silence, monkeypatch: pytest.MonkeyPatch, caplog) -> list[str]:
    """Return the warnings that are logged at a moment.

    There is another request, which was sent a second later.
    """
    requests = unanswered.Unanswered()
    monkeypatch.setattr(unanswered, "_last_warning_at", -math.inf)
    if silence.last_sign_at is not None:
        set_clock(monkeypatch, silence.last_sign_at)
        requests.note_sign_of_server()
    set_clock(monkeypatch, silence.now)
    requests.look(
        [
            unanswered.PendingRequest(0.0, silence.patience, "s3://b/k"),
            unanswered.PendingRequest(1.0, silence.patience, "s3://b/later"),
        ]
    )
    return caplog.messages


def set_clock(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """Set the clock by which silence is measured."""
    monkeypatch.setattr(unanswered.time, "monotonic", lambda: float(seconds))


@pytest.mark.parametrize(
    "silence",
    [
        pytest.param(Silence(now=9), id="less than 10 s"),
        pytest.param(Silence(now=54, patience=45), id="within its patience"),
        pytest.param(Silence(now=19, last_sign_at=10), id="less than 10 s after a sign"),
    ],
)
def test_a_short_silence_is_not_warned_about(monkeypatch, caplog, silence):
    assert warnings_at(silence, monkeypatch, caplog) == []


@pytest.mark.parametrize(
    ("silence", "seconds"),
    [
        pytest.param(Silence(now=10), 10, id="10 s"),
        pytest.param(Silence(now=55, patience=45), 55, id="10 s longer than its patience"),
        pytest.param(Silence(now=21, last_sign_at=10), 11, id="11 s after a sign"),
    ],
)
def test_a_long_silence_is_warned_about_with_the_seconds_since_the_last_sign(
    monkeypatch, caplog, silence, seconds
):
    message = f"s3://b/k: no answer for {seconds} s, still waiting"

    assert warnings_at(silence, monkeypatch, caplog) == [message]


def test_each_block_of_a_body_is_a_sign_of_the_server(monkeypatch):
    n_signs = 0

    def note_sign(_requests: unanswered.Unanswered) -> None:
        nonlocal n_signs
        n_signs += 1

    monkeypatch.setattr(unanswered.Unanswered, "note_sign_of_server", note_sign)
    monkeypatch.setattr(unanswered, "BLOCK_BYTES", 4)
    body = unanswered.Body(io.BytesIO(b"0123456789"))

    assert body.read(2) == b"01"
    assert body.read() == b"23456789"

    assert n_signs == 4, "of the first two bytes, of two blocks of 4 bytes, and of the end"
