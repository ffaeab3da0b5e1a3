"""Run many tasks with a bounded number of them in progress at any time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Handle = TypeVar("Handle")


class BoundedRun(ABC, Generic[Task, Handle]):
    """One run of tasks, which hands out a limited number of them to workers at any time.

    The tasks may come from an iterator that is too long to be held in memory. A derived class says
    how a task is handed out, and what a *handle* is: the object that represents a task until it has
    ended, such as a future.
    """

    def __init__(self, max_pending: int) -> None:
        """Begin a run without tasks.

        Args:
            max_pending: Number of tasks that may be handed out at the same time.
        """
        self._max_pending = max_pending
        self.pending: dict[Handle, int] = {}
        """Handle of each task that was handed out and has not ended → its number."""

    @abstractmethod
    def submit(self, task: Task) -> Handle:
        """Hand out a task to a worker, and return its handle."""

    @abstractmethod
    def wait(self) -> Iterable[Handle]:
        """Wait until pending tasks have ended.

        Returns:
            Handles of tasks in `pending` that have ended. There may be none: then this method is
            called again.
        """

    @abstractmethod
    def result(self, handle: Handle) -> Any:
        """Return the result of a task that has ended, or raise its error."""

    def results(self, tasks: Iterable[Task]) -> Iterator[tuple[int, Any]]:
        """Run all tasks, and yield their results as they end.

        There may be millions of tasks, so only a limited number is handed out at any time: when one
        ends, the next one is taken from the iterator.

        Args:
            tasks: The tasks, which may come from a long iterator.

        Yields:
            (number of the task, from 0; its result)

        Raises:
            Exception: The first error of a task. It ends the run.
        """
        remaining = enumerate(tasks)
        while True:
            # Hand out as many tasks as have ended since the last look.
            n_free = self._max_pending - len(self.pending)
            for number, task in islice(remaining, n_free):
                handle = self.submit(task)
                self.pending[handle] = number
            if not self.pending:
                return
            for handle in self.wait():
                number = self.pending.pop(handle)
                yield number, self.result(handle)
