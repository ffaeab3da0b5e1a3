"""Progress of long work: how far it has come. The caller's callback decides how to show it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

WAITING = "waiting"
"""Stage of progress while something is waited for."""
STEP = "step"
"""Stage of progress when a step of a build begins: `done` is its number among `total` steps."""
NOTE = "note"
"""Stage of a message that is shown once; the progress's name is the text."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one piece of long work has come."""

    stage: str
    """What is being done, such as tokenization."""
    name: str
    """What it is done to: a corpus, a nanoset, a webdataset."""
    done: int
    """Units done so far."""
    total: int
    """Units in all."""
    unit: str = "bytes"
    """What is counted."""
    documents: int = 0
    """Documents so far, or 0 if they are not counted."""
    tokens: int = 0
    """Tokens so far, or 0 if they are not counted."""


ProgressCallback = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Show nothing."""


def note(text: str) -> Progress:
    """Return progress that is a message to show once."""
    return Progress(NOTE, text, 1, 1)


# Tasks run in other processes, far from the callback of the process that waits for them. They
# report to the listener of their context; workers pass what it receives on to the owner of the run.

_listener: ContextVar[ProgressCallback] = ContextVar("listener", default=silent)


def report_progress(progress: Progress) -> None:
    """Report from within a task, in any process, to the `progress_reported_to` around its run."""
    _listener.get()(progress)


@contextmanager
def progress_reported_to(listener: ProgressCallback) -> Iterator[None]:
    """Let tasks that are run in the block report to a listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def set_progress_listener(listener: ProgressCallback) -> None:
    """Let all later tasks of this process, a worker, report to a listener."""
    _listener.set(listener)


class Meter:
    """Counts the units of one piece of work that are done, and reports after each step."""

    def __init__(
        self, listener: ProgressCallback, stage: str, name: str, total: int, unit: str = "bytes"
    ) -> None:
        """Begin with no unit done; see `Progress` for the parameters."""
        self._listener = listener
        self._progress = Progress(stage, name, 0, total, unit)

    def advance(self, units: int) -> None:
        """Report that this many more units are done."""
        self._progress = replace(self._progress, done=self._progress.done + units)
        self._listener(self._progress)


class Waiting:
    """Limits how long other programs are waited for, and reports the seconds so far as progress."""

    def __init__(self, listener: ProgressCallback, name: str, limit: float) -> None:
        """Begin to wait at the first call of `has_time_left`.

        Args:
            listener: Is called with the progress.
            name: What is waited for, such as "for workers".
            limit: Seconds.
        """
        self._listener = listener
        self._name = name
        self._limit = limit
        self._since: float | None = None

    def has_time_left(self) -> bool:
        """Report that it is still missing; return whether there is time left to wait for it."""
        now = time.monotonic()
        seconds = 0.0 if self._since is None else now - self._since
        if seconds >= self._limit:
            self.end()
            return False
        self._since = now - seconds
        self._report(int(seconds))
        return True

    def end(self) -> None:
        """Report that it was found, or is waited for no longer."""
        if self._since is not None:
            self._report(self._total)
        self._since = None

    def restart(self, limit: float) -> None:
        """Report that it was found; if it gets lost, wait again, up to a limit in seconds."""
        self.end()
        self._limit = limit

    @property
    def _total(self) -> int:
        return max(math.ceil(self._limit), 1)

    def _report(self, seconds: int) -> None:
        self._listener(Progress(WAITING, self._name, seconds, self._total, "seconds"))
