"""Warn about requests that no server answers, long before they time out.

Without such a warning, a command that waits for a silent server does not say what it waits for.
Each request to a bucket or web server is counted while it is pending (`Unanswered.asking`), and
each block of bytes that is transferred is noted as a sign of the servers (`Unanswered.heard`). A
thread watches the pending requests, and logs a warning if no server has given a sign for too long.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from nanoset_core.untrusted import safe_logger

SILENT_SECONDS = 10.0
"""Duration for which no byte was sent or received, after which a warning is logged."""
SECONDS_BETWEEN_WARNINGS = 30.0
"""Least time between two warnings of a process, since a server fails many requests at once."""
BLOCK_BYTES = 1 << 20
"""Bytes that are transferred at once if the whole of a body is read."""
logger = safe_logger(__name__)
_last_warning_at = -math.inf
"""When `warn` last logged a warning in this process, by the monotonic clock."""


def warn(text: str, *args: object) -> None:
    """Log a warning about a server, unless one was logged within the last 30 seconds.

    If a server fails, all of the many requests that are sent to it fail at the same time. One
    warning is enough.

    Args:
        text: The message, with placeholders such as `%s`.
        args: Values of the placeholders.
    """
    global _last_warning_at
    now = time.monotonic()
    if now - _last_warning_at >= SECONDS_BETWEEN_WARNINGS:
        _last_warning_at = now
        logger.warning(text, *args)


def safe_warning(text: str, *args: object) -> None:
    """Log a warning, without secrets and control characters that a server may have sent.

    Unlike `warn`, it does not limit how many warnings are logged.

    Args:
        text: The message, with placeholders such as `%s`.
        args: Values of the placeholders.
    """
    logger.warning(text, *args)


class PendingRequest(NamedTuple):
    """A request that a server has not answered completely."""

    sent_at: float
    """When the request was sent, by the monotonic clock."""
    patience: float
    """Seconds that the server may be silent in addition to `SILENT_SECONDS`."""
    subject: str
    """The object and its server, for the warning."""


class Unanswered:
    """The pending requests of a process, and the thread that watches them.

    The thread runs only while there are pending requests.
    """

    def __init__(self) -> None:
        """Begin without pending requests."""
        self._lock = threading.Lock()
        self._pending: dict[object, PendingRequest] = {}
        """An arbitrary key for each request → the request."""
        self._is_watched = False
        """Whether the thread is running."""
        self._last_sign_at = -math.inf
        """When any server sent or took bytes last, by the monotonic clock."""

    @contextlib.contextmanager
    def asking(self, what: str, patience: float = 0.0) -> Iterator[None]:
        """Log a warning if no server sends anything for ten seconds while the block runs.

            with requests.asking("s3://bucket/a.bin"):
                client.get_object(...)    # after 10 s: "s3://bucket/a.bin: no answer for 10 s"

        Args:
            what: The object that the block requests, and its server, for the warning.
            patience: How many seconds more than ten (SILENT_SECONDS) the server may be silent: 50
                for an operation that may take a minute.
        """
        key = object()  # stands for this request alone
        with self._lock:
            self._pending[key] = PendingRequest(time.monotonic(), patience, what)
            # One thread watches all requests. It ends when there are none, and sets this to False.
            if not self._is_watched:
                self._is_watched = True
                threading.Thread(target=self._watch, name="unanswered", daemon=True).start()
        try:
            yield
        finally:
            self.note_sign_of_server()  # the answer has just come: all requests wait from now on
            with self._lock:
                del self._pending[key]

    def note_sign_of_server(self) -> None:
        """Note that a server has just sent or taken bytes."""
        self._last_sign_at = time.monotonic()

    def _watch(self) -> None:
        """Look for silent servers until no request is pending, so that no idle thread remains."""
        pause = threading.Event()
        # The event is never set: waiting for it is a pause of a fifth of the silence.
        while not pause.wait(SILENT_SECONDS / 5):
            with self._lock:
                pending = list(self._pending.values())
                self._is_watched = bool(pending)
            if not pending:
                return
            self.look(pending)

    def look(self, pending: Iterable[PendingRequest]) -> None:
        """Log a warning for each request since which servers have been silent for too long.

        For example, a request was sent 40 seconds ago, and some server sent bytes 12 seconds ago.
        The servers are silent for 12 seconds, which is too long: 10 are allowed (SILENT_SECONDS).

        Args:
            pending: The requests to look at.
        """
        now = time.monotonic()
        for request in pending:
            # A sign of any server counts, not only of the one that this request was sent to.
            silence = now - max(request.sent_at, self._last_sign_at)  # 12 s in the example
            if silence >= SILENT_SECONDS + request.patience:
                warn("%s: no answer for %.0f s, still waiting", request.subject, silence)


@functools.cache
def of_process(process: int) -> Unanswered:
    """Return the pending requests of a process: those that no server has answered yet.

    All threads of a process share one object, which the cache returns for later calls. A forked
    process has to start with an empty object: it inherits the memory of its parent, but neither the
    thread that watches the requests, nor the requests. So the cache distinguishes processes by
    their ids.

    Args:
        process: Id of the current process.

    Returns:
        The same object for each call with this id.
    """
    return Unanswered()


def unanswered() -> Unanswered:
    """Return the pending requests of this process."""
    return of_process(os.getpid())


class Body(io.BufferedIOBase):
    """The bytes of a request or an answer; each block that is read counts as a sign of a server."""

    def __init__(self, file: Any) -> None:
        """Wrap the bytes.

        Args:
            file: Has a method `read`; those that are sent also have `seek` and `tell`.
        """
        self._file = file
        self._requests = unanswered()

    def read(self, size: int | None = -1) -> bytes:
        """Read bytes, and note that the server sends or takes them.

        Such a note resets the clock of the warning "no answer for 10 s".

        Args:
            size: Bytes to read at most; None or a negative number for all that remain.

        Returns:
            The bytes; b"" at the end.
        """
        if size is None or size < 0:
            return self._read_all()
        self._requests.note_sign_of_server()
        data: bytes = self._file.read(size)
        return data

    def _read_all(self) -> bytes:
        """Read all remaining bytes in blocks, so that each block counts as a sign of the server."""
        blocks: list[bytes] = []
        while block := self.read(BLOCK_BYTES):
            blocks.append(block)
        return b"".join(blocks)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, so that the bytes of a request can be sent again.

        Args:
            offset: Bytes from the place that `whence` names.
            whence: As for `io.IOBase.seek`.

        Returns:
            The new position from the start.
        """
        self._file.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        """Return the current position."""
        return int(self._file.tell())
