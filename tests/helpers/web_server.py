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

    def __init__(self, folder: Path, *, ranges: bool, told: bool) -> None:
        """Serve a folder.

        Args:
            folder: The folder.
            ranges: Whether it answers requests for parts of files.
            told: Whether it says when files were written.
        """
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.ranges, self.told = folder, ranges, told
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[str] = []
        """Method and path of each request."""
        self.answers: list[int] = []
        """Statuses with which the next requests for a file's bytes are refused; 0 = the connection
        is cut.
        """

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients go away in the middle of an answer."""


class _Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WebServer

    def __init__(self, request, client_address, server):
        super().__init__(request, client_address, server, directory=str(server.folder))

    def log_message(self, *told: object) -> None:
        self.server.asked.append(f"{self.command} {self.path}")

    def send_header(self, keyword: str, value: str) -> None:
        if keyword != "Last-Modified" or self.server.told:
            super().send_header(keyword, value)

    def do_GET(self) -> None:
        path, part = (
            Path(self.translate_path(self.path)),
            re.match(r"bytes=(\d+)-(\d+)", self.headers["Range"] or ""),
        )
        if path.is_file() and self.server.answers:
            if status := self.server.answers.pop(0):
                self.send_error(status)
            self.close_connection = True
            return
        if not (part and self.server.ranges and path.is_file()):
            with suppress(BrokenPipeError, ConnectionResetError):
                super().do_GET()
            return
        data, begin = path.read_bytes(), int(part[1])
        if begin >= len(data):
            self.send_error(416)
            return
        end = min(int(part[2]) + 1, len(data))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        self.wfile.write(data[begin:end])


@contextmanager
def web_server(folder: Path, *, ranges: bool = True, told: bool = True) -> Iterator[WebServer]:
    """Serve a folder on a free port of this machine."""
    with WebServer(folder, ranges=ranges, told=told) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
