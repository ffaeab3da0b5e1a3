"""How long work reports where it is; who listens decides how to show it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

WAITING = "waiting"
"""The stage of news that something is waited for."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One piece of news from long work."""

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
    """The listener that shows nothing."""


class Meter:
    """Counts the units of one piece of work, and tells a listener after each step."""

    def __init__(self, listener: ProgressCallback, stage: str, name: str, total: int, unit: str = "bytes") -> None:
        self._listener = listener
        self._progress = Progress(stage, name, 0, total, unit)

    def advance(self, units: int) -> None:
        """So many more are done."""
        self._progress = replace(self._progress, done=self._progress.done + units)
        self._listener(self._progress)


class Waiting:
    """Waits for something that others have to do: says so as progress, in seconds of the limit, and ends some day."""

    def __init__(self, listener: ProgressCallback, name: str, limit: float) -> None:
        self._listener, self._name, self.limit = listener, name, limit
        self._since: float | None = None
        self._told = False

    def goes_on(self) -> bool:
        """Tell that it is still not there; → whether there is time left to wait."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since >= self.limit:
            self.end()
            return False
        self._told = True
        self._tell(int(now - self._since))
        return True

    def end(self) -> None:
        """Tell that it is there, or is waited for no longer."""
        if self._told:
            self._tell(self._total)
        self._since, self._told = None, False

    @property
    def _total(self) -> int:
        return max(math.ceil(self.limit), 1)

    def _tell(self, seconds: int) -> None:
        self._listener(Progress(WAITING, self._name, seconds, self._total, "seconds"))
