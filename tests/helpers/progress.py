"""A display that records what progress it was shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from nanoset_core.execution.progress import Display, Progress, RunningWork


class ShownWork(NamedTuple):
    """What a display was shown of a piece of work at one moment."""

    stage: str
    name: str
    done: int
    total: int
    unit: str
    documents: int
    tokens: int


class RecordingDisplay(Display):
    """Records everything that the progress `self.progress` shows."""

    def __init__(self, on_work: Callable[[ShownWork], None] | None = None) -> None:
        """Begin with nothing recorded.

        Args:
            on_work: Called with everything that is shown of work.
        """
        self.progress = Progress(self)
        self.works: list[ShownWork] = []
        self.notes: list[str] = []
        self.steps: list[str] = []
        self._on_work = on_work

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self) -> None:
        self.steps.append(self.progress.state().step.about)

    def work(self, work: RunningWork, *, is_new: bool) -> None:
        done = work.done
        shown = ShownWork(
            work.stage, work.name, done.units, work.total, work.unit, done.documents, done.tokens
        )
        self.works.append(shown)
        if self._on_work is not None:
            self._on_work(shown)
