"""Run many tasks with a bounded number of them in progress at any time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Handle = TypeVar("Handle")


class BoundedRun(ABC, Generic[Task, Handle]):
    """Runs many tasks on workers, and hands out only a limited number of them at any time.

    There may be millions of tasks, which an iterator produces one by one. If all were handed out at
    once, they would fill the memory. A derived class says what the workers are, such as processes
    or machines of a cluster. A *handle* is the object that stands for a task until it has ended,
    such as a future.
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
        """Wait until some of the pending tasks have ended.

        Returns:
            Handles of tasks in `pending` that have ended. There may be none, for example if the
            workers only reported progress. Then this method is called again.
        """

    @abstractmethod
    def result(self, handle: Handle) -> Any:
        """Return the result of a task that has ended, or raise its error."""

    def results(self, tasks: Iterable[Task]) -> Iterator[tuple[int, Any]]:
        """Run all tasks, and yield their results as they end.

        For example, with at most 2 tasks at a time:

            handed out    pending    ended         yielded
            0 and 1       0, 1       1             (1, its result)
            2             0, 2       0 and 2       (0, …), (2, …)

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
