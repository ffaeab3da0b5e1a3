"""Run tasks on the workers of a cluster, which share only the store of the outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from nanoset_core.errors import ConfigError, MissingError, NanosetError, joined_lines
from nanoset_core.execution.bounded import BoundedRun
from nanoset_core.execution.cluster import (
    ClusterClient,
    KilledWorkersError,
    LostClusterError,
    Message,
    TaskCluster,
    TaskHandle,
    UnloadableTaskError,
)
from nanoset_core.execution.cluster_connection import ClusterConnection, connected
from nanoset_core.execution.compatibility import CompatibilityCheck, compatibility_check
from nanoset_core.execution.progress import SILENT, Progress, report_progress
from nanoset_core.storage.access import FileAccess
from nanoset_core.untrusted import safe_logger
from nanoset_core.wording import format_age

Task = TypeVar("Task")
Result = TypeVar("Result")

_CHECK_SECONDS = 5.0
"""Time between two checks whether there are workers."""
_CHECK_SECONDS_WITHOUT_WORKERS = 0.5
"""The same while the cluster has no workers, so that the first one is noticed soon."""
_MAX_PENDING = 4096
"""Tasks that are handed out at once.

They are handed out even if there are no workers yet: a cluster that grows with its work starts none
otherwise.
"""

logger = safe_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterExecutor:
    """Runs tasks on the workers of a cluster, such as one of Dask or of Ray."""

    cluster: TaskCluster
    """Where the workers are."""
    shared: FileAccess
    """Access to the outputs. All workers must see them, in a bucket or in a folder that all
    machines share.
    """
    files: tuple[Path, ...] = ()
    """Files such as the tokenizer, which workers download if they do not have them."""
    progress: Progress = SILENT
    """Shows what is waited for."""

    def run(
        self, work: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[int, Result]]:
        """Call a function for every task on the workers of a cluster, and yield the results.

        Results come in the order in which tasks end, each with the number of its task:

            for number, result in executor.run(tokenize, ["a.jsonl", "b.jsonl"]):
                print(number, result)        perhaps first 1, then 0

        The first error of a task is raised, and all other tasks are cancelled. They are also
        cancelled if the caller is interrupted or closes the iterator. If a worker dies, another one
        gets its task. So the function may be called twice for a task, even at the same time.

        Args:
            work: The function. A worker must be able to import it by its name.
            tasks: The tasks, perhaps from a long iterator: a few thousand are in memory at any
                time.

        Raises:
            ConfigError: A package is not installed, or the cluster cannot be reached in time.
            MissingError: No worker joins in time, or one does not see the folder or bucket for the
                results.
            StaleError: A worker has other software.
            NanosetError: Several workers died of the same task, or the cluster was lost.
        """
        # Do not connect if there are no tasks.
        remaining = iter(tasks)
        first_task = list(islice(remaining, 1))
        if not first_task:
            return
        with (
            connected(self.cluster) as connection,
            _cluster_run(self, connection, work) as run,
        ):
            yield from run.results(chain(first_task, remaining))


@contextlib.contextmanager
def _cluster_run(
    executor: ClusterExecutor, connection: ClusterConnection, work: Callable[[Any], Any]
) -> Iterator[_ClusterRun]:
    """Prepare to run tasks on a cluster, and cancel those that are not done when the block ends.

    Args:
        executor: What runs the tasks.
        connection: The connection to its cluster.
        work: Called for each task, on a worker.
    """
    client = connection.open(executor.progress)
    worker_watch = _WorkerWatch(connection, client, executor.progress)
    # Before each task, a worker makes this check: does it have the same software, and does it see
    # the same folder or bucket of the outputs?
    with compatibility_check(executor.shared, executor.files) as check:
        run = _ClusterRun(work, client, check, worker_watch)
        try:
            with connection.messages_passed_to(run.events.put, check.run_folder):
                yield run
        finally:
            client.cancel(run.pending)  # the tasks that are not done


@dataclass(frozen=True, slots=True)
class _TaskEnd:
    """The event that a task has ended, in the queue of events of a run."""

    handle: TaskHandle
    """The task."""


class _ClusterRun(BoundedRun[Any, TaskHandle]):
    """One run of tasks on a cluster of workers.

    Whatever happens to its tasks is put into a queue, from which `wait` takes one event after the
    other: a task has ended, or a worker reports progress or a warning.
    """

    def __init__(
        self,
        work: Callable[[Any], Any],
        client: ClusterClient,
        check: CompatibilityCheck,
        workers: _WorkerWatch,
    ) -> None:
        """Begin a run without tasks.

        Args:
            work: Called for each task, on a worker.
            client: The connection to the cluster.
            check: What a worker checks before each task.
            workers: Waits for workers if there are none.
        """
        super().__init__(_MAX_PENDING)
        self._work = work
        self._client = client
        self._check = check
        self._workers = workers
        self.events: SimpleQueue[_TaskEnd | Message] = SimpleQueue()
        """Ends of tasks, and messages of tasks in progress, as they arrive."""
        self._check_seconds = 0.0
        """How long to wait for an event before checking that there are workers."""

    def submit(self, task: Any) -> TaskHandle:
        """Hand out a task to the cluster, and return a handle to ask for its result later.

        Before the task, the worker makes the check of the run: that it has the same software, and
        so on.

        Args:
            task: The argument for the function that the workers call.

        Raises:
            NanosetError: The connection to the cluster was lost. The error says which cluster it
                was, and what the user can do.
        """
        try:
            return self._client.submit(self._check, self._work, task, self._receive_end)
        except LostClusterError as error:
            raise self._workers.lost_cluster_error(error) from error

    def _receive_end(self, handle: TaskHandle) -> None:
        """Put the event that a task has ended into the queue. The cluster's library calls this in
        any thread.

        Args:
            handle: The task.
        """
        self.events.put(_TaskEnd(handle))

    def wait(self) -> Iterable[TaskHandle]:
        """Wait for the next event of the run, and return the task that has ended, if one has.

            event                              what is done                       returned
            a task has ended                                                      [the task]
            a warning, or a progress report    it is logged, or shown             []
            none for a while                   check that there are workers       []

        The caller repeats this until all tasks have ended.

        Returns:
            A list with the handle of one task, or an empty one.

        Raises:
            MissingError: The cluster has had no workers for too long.
            NanosetError: The cluster was lost.
        """
        try:
            event = self.events.get(timeout=self._check_seconds)
        except Empty:
            # The result says when to check again: soon if there are no workers.
            self._check_seconds = self._workers.check_for_workers()
            return []

        self._workers.worker_seen()  # any event shows that a worker is alive
        if isinstance(event, _TaskEnd):
            return [event.handle]
        _show_message(event)
        return []

    def result(self, handle: TaskHandle) -> Any:
        """Return the result of a task that has ended, or raise its error.

        Errors of the cluster are replaced by errors that say what the user can do:

            workers were killed, one after the other, by this task      give them more memory
            the cluster was lost                                        see whether it still runs
            a machine cannot import this package                        install it there

        Args:
            handle: The task.

        Raises:
            MissingError: The worker with the result was lost, and there has been no other one.
            NanosetError: The task killed several workers, or the cluster was lost.
            ConfigError: A machine of the cluster cannot import nanoset.
            Exception: The task raised this error.
        """
        try:
            # The result may still have to arrive from the worker. While the client waits for it, it
            # calls `check_for_workers`, which raises an error if there are none for too long.
            return self._client.result(handle, self._workers.check_for_workers)
        except KilledWorkersError as error:
            raise NanosetError(
                "workers were killed, one after the other, by one task",
                found=str(error),
                remedy="run again (what is finished is kept), "
                "with more memory for each worker if memory is short",
            ) from error
        except LostClusterError as error:
            raise self._workers.lost_cluster_error(error) from error
        except UnloadableTaskError as error:
            cluster = self._workers.cluster
            raise ConfigError(
                f"a machine of the {cluster.software} cluster cannot load this program",
                where=cluster.name,
                found=str(error),
                expected=f"nanoset-platform, in the same version, next to {cluster.software} "
                "on every machine of the cluster",
                remedy="install it there, and start the cluster again",
            ) from error


def _show_message(message: Message) -> None:
    """Log a warning from a task in progress, or show the progress that it has reported.

    Args:
        message: The warning, or the report.
    """
    if isinstance(message, str):
        logger.warning("%s", message)
    else:
        report_progress(message)


class _WorkerWatch:
    """Raises an error if a cluster has had no workers for too long, as the settings say.

    A cluster may exist before its workers do: for example, if a batch system starts them when
    machines become free.
    """

    def __init__(
        self, connection: ClusterConnection, client: ClusterClient, progress: Progress
    ) -> None:
        """Prepare to look at the workers.

        Args:
            connection: The connection to the cluster.
            client: The client of this connection.
            progress: Shows how long was waited.
        """
        self.cluster = connection.cluster
        self._connection = connection
        self._client = client
        name = f"for workers of {self.cluster.name}"
        self._wait_for_workers = progress.wait(name, connection.wait_seconds)
        """Measures and shows how long there have been no workers."""

    def check_for_workers(self) -> float:
        """Raise an error if the cluster has had no workers for too long.

        Workers may join a cluster late, for example when a batch system starts their jobs. The
        settings say for how long to wait for the first one, such as 10 minutes. A build that has
        waited in vain does not wait again for its other outputs, of which it may have hundreds.

        Returns:
            Seconds after which to check again.

        Raises:
            MissingError: The cluster has had no workers for too long.
            NanosetError: The connection to the cluster was lost.
        """
        try:
            n_workers = self._client.n_workers()
        except LostClusterError as error:
            raise self.lost_cluster_error(error) from error
        if n_workers:
            self.worker_seen()
            return _CHECK_SECONDS
        if self._wait_for_workers.has_time_left():
            return _CHECK_SECONDS_WITHOUT_WORKERS

        self._connection.wait_seconds = 0.0  # until a worker is seen
        raise MissingError(
            f"the {self.cluster.software} cluster has no workers",
            where=self.cluster.name,
            found=f"none for {format_age(self.cluster.wait_seconds)}",
            remedy=f"{self.cluster.start_workers}, and run again, or set executor.wait to more; "
            "a worker that cannot load nanoset-platform leaves at its first task: see its log",
        )

    def worker_seen(self) -> None:
        """Note that there is a worker, so that the time to wait for one begins anew if it gets
        lost.
        """
        self._wait_for_workers.restart(self.cluster.wait_seconds)
        self._connection.wait_seconds = self.cluster.wait_seconds

    def lost_cluster_error(self, error: LostClusterError) -> NanosetError:
        """Return the error for a cluster that has ended, or that was restarted and forgot the
        tasks.

        Args:
            error: What the library of the cluster says.
        """
        return NanosetError(
            f"the {self.cluster.software} cluster dropped the tasks",
            where=self.cluster.name,
            found=joined_lines(error),
            remedy="see whether it still runs, and run again: what is finished is kept",
        )
