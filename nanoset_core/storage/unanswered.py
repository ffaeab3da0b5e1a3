"""Requests that no server answers: a warning names what is waited for, long before a request is
given up.
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
from functools import partial
from typing import Any

from nanoset_core.untrusted import safe_logger

SILENT_SECONDS = 10.0
"""How long servers may send and take nothing before a warning says so."""
TOLD_SECONDS = 30.0
"""Between two warnings of a process, since a server fails many requests at once."""
BLOCK_BYTES = 1 << 20
logger = safe_logger(__name__)
_told_at = -math.inf
"""When this process warned last."""


def warn(text: str, *about: object) -> None:
    """Log a warning about a server, unless there was one just now."""
    global _told_at
    now = time.monotonic()
    if now - _told_at >= TOLD_SECONDS:
        _told_at = now
        logger.warning(text, *about)


def safe_warning(text: str, *about: object) -> None:
    """Log a warning about a server that answers, but not to an end."""
    logger.warning(text, *about)


class Unanswered:
    """The requests of a process that have no answer yet; while there are any, a thread looks for
    silence.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[object, tuple[float, float, str]] = {}
        self._is_watched = False
        self._heard_at = -math.inf

    @contextlib.contextmanager
    def asking(self, what: str, patience: float = 0.0) -> Iterator[None]:
        """Count a request as unanswered until the block ends.

        Args:
            what: the object and its server, for the warning.
            patience: seconds that the server may take longer than usual.
        """
        request = object()
        with self._lock:
            self._asked[request] = time.monotonic(), patience, what
            begins, self._is_watched = not self._is_watched, True
        if begins:
            threading.Thread(target=self._watch, name="unanswered", daemon=True).start()
        try:
            yield
        finally:
            self.heard()
            del self._asked[request]

    def heard(self) -> None:
        """Note that a server has just sent or taken something."""
        self._heard_at = time.monotonic()

    def _watch(self) -> None:
        """Look for silence; end once nothing is asked for, so that no thread stays."""
        pause = threading.Event()
        while not pause.wait(SILENT_SECONDS / 5):
            with self._lock:
                asked = list(self._asked.values())
                self._is_watched = bool(asked)
            if not asked:
                return
            self.look(asked)

    def look(self, asked: Iterable[tuple[float, float, str]]) -> None:
        """Warn where servers have been silent for too long since one of these requests was sent."""
        now = time.monotonic()
        for since, patience, what in asked:
            silence = now - max(since, self._heard_at)
            if silence >= SILENT_SECONDS + patience:
                warn("%s: no answer for %.0f s, still waiting", what, silence)


@functools.cache
def of_process(process: int) -> Unanswered:
    """Return the requests of a process, which has none of those that the one it was forked from
    waits for.
    """
    return Unanswered()


def unanswered() -> Unanswered:
    """Return the requests of this process."""
    return of_process(os.getpid())


class Body(io.BufferedIOBase):
    """Bytes that are sent or received; each block of them is a sign of the server."""

    def __init__(self, file: Any) -> None:
        self._file, self._requests = file, unanswered()

    def read(self, size: int | None = -1) -> bytes:
        """Read up to so many bytes; all that are left without a number."""
        if size is None or size < 0:
            return b"".join(iter(partial(self.read, BLOCK_BYTES), b""))
        self._requests.heard()
        data: bytes = self._file.read(size)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return int(self._file.tell())
