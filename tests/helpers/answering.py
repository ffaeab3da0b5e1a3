"""Servers in the process of a test, whose answers the test decides.

Real servers give such answers too, but not on request.
"""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Request = http.server.BaseHTTPRequestHandler
"""A request of a client, with the connection on which it is answered."""


@contextmanager
def answering(answer: Callable[[Request], None]) -> Iterator[str]:
    """Start a server, and yield its address.

    Args:
        answer: Answers a request, of whichever kind.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def send_answer(request: Request, status: int, body: bytes, **headers: str) -> None:
    """Answer a request.

    Args:
        request: The request.
        status: The status code.
        body: The body, which is not sent if the method is HEAD.
        headers: Headers, with `_` for `-`. By default, Content-Length is the length of the body.
    """
    headers = {"Content_Length": str(len(body))} | headers
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)
