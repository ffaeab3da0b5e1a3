"""How far long work has come; the caller's callback decides how to show it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

WAITING = "waiting"
"""The stage of progress while something is waited for."""
STEP = "step"
"""The stage of progress when a step of a build begins: `done` is its number among `total` steps."""
NOTE = "note"
"""The stage of what is only to be said once; its name is the text."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one piece of long work has come."""

    stage: str
    """What is being done, such as tokenization."""
    name: str
    """To what: a corpus, a nanoset, a webdataset."""
    done: int
    """Units done so far."""
    total: int
    """Units in all."""
    unit: str = "bytes"
    """What is counted."""
    documents: int = 0
    """Documents so far, where they are counted."""
    tokens: int = 0
    """Tokens so far, where they are counted."""


ProgressCallback = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Show nothing."""


def note(text: str) -> Progress:
    """Return progress that is a text to be said once."""
    return Progress(NOTE, text, 1, 1)


_told: ContextVar[ProgressCallback] = ContextVar("told", default=silent)


def tell(progress: Progress) -> None:
    """Report from within a task, in whatever process of this machine, to the `hearing` around its
    run.
    """
    _told.get()(progress)


@contextmanager
def hearing(listener: ProgressCallback) -> Iterator[None]:
    """Hear what tasks tell that are run in the block."""
    before = _told.set(listener)
    try:
        yield
    finally:
        _told.reset(before)


def tell_by(listener: ProgressCallback) -> None:
    """Let all later tasks of a worker process tell this."""
    _told.set(listener)


class Meter:
    """Counts the units of one piece of work, and reports after each step."""

    def __init__(
        self, listener: ProgressCallback, stage: str, name: str, total: int, unit: str = "bytes"
    ) -> None:
        self._listener = listener
        self._progress = Progress(stage, name, 0, total, unit)

    def advance(self, units: int) -> None:
        """Report that so many more units are done."""
        self._progress = replace(self._progress, done=self._progress.done + units)
        self._listener(self._progress)


class Waiting:
    """Waits for other programs up to a limit, and reports the seconds so far as progress."""

    def __init__(self, listener: ProgressCallback, name: str, limit: float) -> None:
        self._listener, self._name, self.limit = listener, name, limit
        self._since: float | None = None

    def goes_on(self) -> bool:
        """Report that it is still not there; return whether there is time left to wait."""
        now = time.monotonic()
        waited = 0.0 if self._since is None else now - self._since
        if waited >= self.limit:
            self.end()
            return False
        self._since = now - waited
        self._report(int(waited))
        return True

    def end(self) -> None:
        """Report that it is there, or is waited for no longer."""
        if self._since is not None:
            self._report(self._total)
        self._since = None

    @property
    def _total(self) -> int:
        return max(math.ceil(self.limit), 1)

    def _report(self, seconds: int) -> None:
        self._listener(Progress(WAITING, self._name, seconds, self._total, "seconds"))
