"""How long work reports where it is; who listens decides how to show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


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


Listener = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """The listener that shows nothing."""


class Meter:
    """Counts the units of one piece of work, and tells a listener after each step."""

    def __init__(self, listener: Listener, stage: str, name: str, total: int, unit: str = "bytes") -> None:
        self._listener = listener
        self._progress = Progress(stage, name, 0, total, unit)

    def advance(self, units: int) -> None:
        """So many more are done."""
        self._progress = replace(self._progress, done=self._progress.done + units)
        self._listener(self._progress)
