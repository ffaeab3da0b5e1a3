"""What every cluster offers to the process that hands out tasks, be it one of Dask or of Ray.

`ClusterExecutor` hands out tasks, passes on what they report, and cancels them. It does so through
a `ClusterClient`, of which each kind of cluster has a class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any, Protocol, TypeAlias

from nanoset_core.execution.compatibility import CompatibilityCheck
from nanoset_core.execution.progress import Progress, TaskReport

Message: TypeAlias = TaskReport | str
"""What a task on a worker reports: progress, or a warning."""
TaskHandle: TypeAlias = Any
"""A task that was handed out, in the form that the library of the cluster has for it."""


class KilledWorkersError(Exception):
    """Several workers died while they ran the same task; the text says what is known of them."""


class LostClusterError(Exception):
    """The cluster forgot its tasks, or cannot be reached any more; the text says why."""


class UnloadableTaskError(Exception):
    """A machine of the cluster cannot import nanoset; the text says why."""


class ClusterClient(ABC):
    """A connection of this process to a cluster.

    All its methods may raise LostClusterError.
    """

    @property
    @abstractmethod
    def is_connected(self) -> bool:
        """Whether the connection can be used; a connection that is lost stays so."""

    @abstractmethod
    def receive_messages(self, receive: Callable[[str, Message], None]) -> None:
        """Call a function for each message that a task sends from its worker, as it arrives.

        The messages of a task are received before its result.

        Args:
            receive: Called with the folder of the run, which names the run, and the message; maybe
                in another thread.
        """

    @abstractmethod
    def submit(
        self,
        check: CompatibilityCheck,
        work: Callable[[Any], Any],
        task: Any,
        receive_end: Callable[[TaskHandle], None],
    ) -> TaskHandle:
        """Hand out a task to the cluster, which lets one of its workers do it.

        For example, `work` is a function that tokenizes a part of a text collection, and `task`
        says which part. This method returns at once. When the task has ended, `receive_end` is
        called, and the caller gets what the function returned from `result`.

        Args:
            check: Sent along with the task. The worker calls it first, to be sure that it has the
                same software and sees the same files as this process.
            work: The function that the worker calls with the task.
            task: The argument of the function.
            receive_end: Called with the handle of the task when it has ended, perhaps by another
                thread.

        Returns:
            A handle, which stands for the task in calls of `result` and `cancel`.
        """

    @abstractmethod
    def result(self, handle: TaskHandle, keep_waiting: Callable[[], float]) -> Any:
        """Return the result of a task that has ended, when it has arrived from the worker.

        Args:
            handle: The task.
            keep_waiting: Called whenever the result has not arrived in time. It returns how many
                seconds to wait next, such as 5.0; or it raises an error to stop the waiting, for
                example since the whole cluster is lost. That error is passed on.

        Raises:
            KilledWorkersError: Several workers died of the task.
            UnloadableTaskError: A machine of the cluster cannot import nanoset.
            Exception: The task raised this error.
        """

    @abstractmethod
    def cancel(self, handles: Collection[TaskHandle]) -> None:
        """Take back tasks that have not ended. It does nothing if the cluster is lost."""

    @abstractmethod
    def n_workers(self) -> int:
        """Return how many workers the cluster has at the moment."""

    @abstractmethod
    def close(self) -> None:
        """End the connection, and with it all tasks that were handed out over it."""


class TaskCluster(Protocol):
    """Where a cluster is. Objects that are equal mean the same cluster.

    Its texts appear in messages to the user.
    """

    @property
    def software(self) -> str:
        """Name of the program that the cluster consists of: `Dask` or `Ray`."""
        ...

    @property
    def name(self) -> str:
        """Address of the cluster, or what else distinguishes it."""
        ...

    @property
    def start_workers(self) -> str:
        """How to start workers."""
        ...

    @property
    def where(self) -> str:
        """The setting that names the cluster."""
        ...

    @property
    def wait_seconds(self) -> float:
        """How long to wait for the cluster, and then for its workers."""
        ...

    def connect(self, stack: ExitStack, progress: Progress) -> ClusterClient:
        """Connect to this cluster of worker machines, waiting until it runs.

        A user may start the cluster and this program at the same time, so it may not run yet. This
        waits up to `wait_seconds`. Each kind of cluster, such as Dask or Ray, has its own version
        of this method.

        Args:
            stack: Gets what has to be closed at the end: the connection, and processes that were
                started for it. The caller closes the stack when it no longer needs the cluster.
            progress: Shows the user how long was waited.

        Returns:
            The connection, by which tasks are handed out.

        Raises:
            ConfigError: A package is not installed, or the cluster cannot be reached in time.
        """
        ...
