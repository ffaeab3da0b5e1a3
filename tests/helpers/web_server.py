"""A web server over a folder, with listings, with or without ranges, and with failures on demand."""

from __future__ import annotations

import http.server
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread


class WebServer(http.server.ThreadingHTTPServer):
    """Serves a folder."""

    daemon_threads = True

    def __init__(self, folder: Path, *, ranges: bool, sends_times: bool) -> None:
        """Serve a folder.

        Args:
            folder: The folder.
            ranges: Whether it answers requests for parts of files.
            sends_times: Whether it says when files were written.
        """
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.ranges = ranges
        self.sends_times = sends_times
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests: list[str] = []
        """Method and path of each request."""
        self.answers: list[int] = []
        """Statuses with which the next requests for a file's bytes are refused; 0 = the connection
        is cut.
        """

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore that clients close connections in the middle of an answer."""


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"
    server: WebServer

    def __init__(self, request, client_address, server):
        super().__init__(request, client_address, server, directory=str(server.folder))

    def log_message(self, *message: object) -> None:
        self.server.requests.append(f"{self.command} {self.path}")

    def send_header(self, keyword: str, value: str) -> None:
        if keyword != "Last-Modified" or self.server.sends_times:
            super().send_header(keyword, value)

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if path.is_file() and self.server.answers:
            self._refuse(self.server.answers.pop(0))
            return

        byte_range = re.match(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "")
        if byte_range is not None and self.server.ranges and path.is_file():
            self._send_range(path.read_bytes(), int(byte_range[1]), int(byte_range[2]) + 1)
        else:
            with suppress(BrokenPipeError, ConnectionResetError):
                super().do_GET()

    def _refuse(self, status: int) -> None:
        """Answer with an error, or with nothing if the status is 0, and close the connection."""
        if status:
            self.send_error(status)
        self.close_connection = True

    def _send_range(self, data: bytes, start: int, stop: int) -> None:
        """Answer with a part of a file, which ends with the file at the latest."""
        if start >= len(data):
            self.send_error(416)
            return
        part = data[start:stop]
        self.send_response(206)
        last = start + len(part) - 1
        self.send_header("Content-Range", f"bytes {start}-{last}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


@contextmanager
def web_server(
    folder: Path, *, ranges: bool = True, sends_times: bool = True
) -> Iterator[WebServer]:
    """Serve a folder on a free port of this machine."""
    with WebServer(folder, ranges=ranges, sends_times=sends_times) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
