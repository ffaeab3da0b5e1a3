"""Run many tasks with a bounded number of them in progress at any time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Handle = TypeVar("Handle")


class BoundedRun(ABC, Generic[Task, Handle]):
    """One run of tasks, which are handed out in their order, a limited number at a time.

    The tasks may come from an iterator that is too long to be held in memory.
    """

    def __init__(self, max_pending: int) -> None:
        self._max_pending = max_pending
        self.pending: dict[Handle, int] = {}
        """Handle of each task that was handed out and has not ended → its number."""

    @abstractmethod
    def submit(self, task: Task) -> Handle:
        """Hand out a task."""

    @abstractmethod
    def wait(self) -> Iterable[Handle]:
        """Wait until some of the pending tasks have ended, and return their handles."""

    @abstractmethod
    def result(self, handle: Handle) -> Any:
        """Return the result of a task that has ended, or raise its error."""

    def results(self, tasks: Iterable[Task]) -> Iterator[tuple[int, Any]]:
        """Run all tasks; yield (task number, result) as they end. The first error ends the run."""
        remaining = enumerate(tasks)
        while True:
            # Hand out as many tasks as have ended since the last look.
            for number, task in islice(remaining, self._max_pending - len(self.pending)):
                self.pending[self.submit(task)] = number
            if not self.pending:
                return
            for handle in self.wait():
                number = self.pending.pop(handle)
                yield number, self.result(handle)
