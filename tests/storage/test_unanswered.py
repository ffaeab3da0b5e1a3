"""A server that says nothing is named long before a request is given up."""

from __future__ import annotations

import http.server
import io
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from helpers.answering import answering, say
from nanoset_core.storage import unanswered
from nanoset_core.storage.filesystems import FilesystemStore
from nanoset_core.storage.s3 import S3Store
from nanoset_core.storage.s3_reading import S3Reader

ABOUT = {
    "ETag": '"e"',
    "Last_Modified": "Wed, 21 Oct 2015 07:28:00 GMT",
    "Content_Range": "bytes 0-999/1000",
}


@pytest.fixture
def silences(monkeypatch: pytest.MonkeyPatch) -> SimpleQueue[str]:
    """What is said of servers that are silent for a moment, by a process that has not warned yet."""
    said: SimpleQueue[str] = SimpleQueue()
    monkeypatch.setattr(unanswered, "_last_warning_at", -math.inf)
    monkeypatch.setattr(unanswered, "SILENT_SECONDS", 0.05)
    monkeypatch.setattr(unanswered.logger, "warning", lambda text, *about: said.put(text % about))
    return said


@pytest.mark.parametrize("kind", [S3Store, S3Reader])
@pytest.mark.parametrize("begins", [False, True], ids=["mute", "mute within a body"])
def test_a_silent_server_is_named_while_it_is_waited_for(silences, endpoint, kind, begins):
    told = threading.Event()

    def answer(to: http.server.BaseHTTPRequestHandler) -> None:
        body = b"x" * 1000
        if begins:
            say(to, 206, body[:10], Content_Length="1000", **ABOUT)
        assert told.wait(20)
        to.wfile.write(body[10:]) if begins else say(to, 206, body, **ABOUT)

    with answering(answer) as address:
        thread = ThreadPoolExecutor(1).submit(kind("b", "p", address).read_range, "k", 0, 1000)
        said = silences.get(timeout=20)
        told.set()
        assert thread.result() == b"x" * 1000
    assert said.startswith(f"s3://b/p/k at {address}: no answer for ")


def test_a_web_server_that_is_silent_is_named(silences):
    told = threading.Event()

    def answer(to: http.server.BaseHTTPRequestHandler) -> None:
        assert told.wait(20)
        say(to, 404, b"")

    with answering(answer) as address:
        thread = ThreadPoolExecutor(1).submit(FilesystemStore(address).stat, "web.jsonl")
        said = silences.get(timeout=20)
        told.set()
        assert thread.result() is None
    assert said.startswith(f"{address}/web.jsonl: no answer for ")


@pytest.mark.parametrize(
    ("patience", "heard_at", "now", "seconds"),
    [
        (0, None, 9, None),
        (0, None, 10, 10),
        (45, None, 54, None),
        (45, None, 55, 55),
        (0, 10, 19, None),
        (0, 10, 21, 11),
    ],
)
def test_silence_is_counted_from_the_last_sign_of_a_server(
    monkeypatch, caplog, patience, heard_at, now, seconds
):
    asked = unanswered.Unanswered()
    monkeypatch.setattr(unanswered, "_last_warning_at", -math.inf)
    if heard_at is not None:
        monkeypatch.setattr(unanswered.time, "monotonic", lambda: float(heard_at))
        asked.note_sign_of_server()
    monkeypatch.setattr(unanswered.time, "monotonic", lambda: float(now))
    asked.look(
        [
            unanswered.PendingRequest(0.0, patience, "s3://b/k"),
            unanswered.PendingRequest(1.0, patience, "s3://b/later"),
        ]
    )
    assert caplog.messages == (
        [] if seconds is None else [f"s3://b/k: no answer for {seconds} s, still waiting"]
    )


def test_each_block_of_a_body_is_a_sign(monkeypatch):
    signs = []
    monkeypatch.setattr(unanswered.Unanswered, "note_sign_of_server", lambda asked: signs.append(1))
    monkeypatch.setattr(unanswered, "BLOCK_BYTES", 4)
    body = unanswered.Body(io.BytesIO(b"0123456789"))
    assert (body.read(2), body.read(), len(signs)) == (b"01", b"23456789", 4)
