"""Servers in the process of a test, whose answers the test decides.

Real servers give such answers too, but not on request.
"""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def answering(answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Yield the address of a server that answers every request in this way."""

    class Handler(http.server.BaseHTTPRequestHandler):
        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def say(to: http.server.BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    """Send an answer; its length is that of the body, unless a header says otherwise."""
    to.send_response(status)
    for name, value in ({"Content_Length": str(len(body))} | headers).items():
        to.send_header(name.replace("_", "-"), value)
    to.end_headers()
    if to.command != "HEAD":
        to.wfile.write(body)
