"""Hand out tasks to the workers of a Dask cluster.

A worker reports progress and warnings while it works on a task. It sends them as events of one
topic, and the process that handed out the task receives them with the task's run.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Collection
from concurrent.futures import CancelledError
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from nanoset_core.execution.cluster import (
    ClusterClient,
    KilledWorkersError,
    LostClusterError,
    Message,
    UnloadableTaskError,
)
from nanoset_core.execution.cluster_worker import TaskWorker, run_on_worker
from nanoset_core.execution.compatibility import CompatibilityCheck
from nanoset_core.execution.progress import Amount, PartReport, TaskNote

Task = TypeVar("Task")
Result = TypeVar("Result")
TaskFuture: TypeAlias = Any
"""distributed.Future; the package has no types."""

_TOPIC = "nanoset"
"""Topic of the events of Dask by which workers report.

All runs have the same topic, because a scheduler never forgets a topic.
"""
_FIRST_WAIT_SECONDS = 5.0
"""How long to wait for a result before looking whether there are workers."""


class DaskClient(ClusterClient):
    """A connection of this process to a Dask scheduler."""

    def __init__(self, client: Any) -> None:
        """Use a client of Dask.

        Args:
            client: `distributed.Client`, which is connected.
        """
        self._client = client

    @property
    def is_connected(self) -> bool:
        """Whether the client is connected to its scheduler."""
        return bool(self._client.status == "running")

    def receive_messages(self, receive: Callable[[str, Message], None]) -> None:
        """Call a function for each message that a task on a worker sends, such as its progress.

        Dask calls it in one of its own threads.

        Args:
            receive: Called with a folder, which says to which run of tasks the message belongs, and
                with the message.
        """

        def receive_event(event: tuple[float, list[Any]]) -> None:
            """Decode a message that Dask has sent."""
            _, encoded_message = event  # the time, and the message as a list of simple values
            run_folder, message = _decode_message(encoded_message)
            receive(run_folder, message)

        self._client.subscribe_topic(_TOPIC, receive_event)

    def submit(
        self,
        check: CompatibilityCheck,
        work: Callable[[Any], Any],
        task: Any,
        receive_end: Callable[[TaskFuture], None],
    ) -> TaskFuture:
        """Hand out a task to the Dask cluster, and return Dask's future for it.

        Args:
            check: What the worker checks first: that it has the same software, and sees the same
                files.
            work: The function that the worker calls for the task.
            task: The argument of this function.
            receive_end: Called with the future when the task has ended, in a thread of Dask.
        """
        # Dask searches the arguments of a call for results of other tasks. The task has none, so
        # spare the search: hand out a call without arguments.
        call = partial(_run_on_dask_worker, check, work, task)
        # If calls were pure, Dask would run equal ones only once.
        future = self._client.submit(call, pure=False)
        future.add_done_callback(receive_end)
        return future

    def result(self, handle: TaskFuture, keep_waiting: Callable[[], float]) -> Any:
        """Return the result of a task that has ended, or raise its error.

        Dask's own errors are converted to those that are the same for all kinds of clusters:
        KilledWorkersError, LostClusterError, and UnloadableTaskError if this package is not
        installed.

        Args:
            handle: The task.
            keep_waiting: Called whenever the result has not arrived in time; see `ClusterClient`.
        """
        from distributed import KilledWorker
        from distributed.comm.core import CommClosedError

        try:
            return self._fetch(handle, keep_waiting)
        except KilledWorker as error:  # several workers died of the task
            raise KilledWorkersError(str(error)) from error
        except (CancelledError, CommClosedError) as error:
            # The scheduler forgot the task, or the connection was lost.
            raise LostClusterError(str(error) or type(error).__name__) from error
        except (ModuleNotFoundError, RuntimeError) as error:
            # A worker without nanoset raises the first error, and a scheduler without it the
            # second. But it may also be an error of the task itself.
            import_failure = _import_failure(error)
            if import_failure is None:
                raise
            raise UnloadableTaskError(import_failure) from error

    def _fetch(self, future: TaskFuture, keep_waiting: Callable[[], float]) -> Any:
        """Wait until the result of a task has arrived from the worker, and return it.

        The task has ended, so this is usually fast. But if the worker is lost with the result, Dask
        lets another worker run the task again, which may take long.

        Args:
            future: The task.
            keep_waiting: Called whenever the result has not arrived in time. It returns how many
                more seconds to wait, or raises an error, for example if there are no workers.
        """
        wait_seconds = _FIRST_WAIT_SECONDS
        while True:
            try:
                return future.result(timeout=wait_seconds)
            except TimeoutError:
                is_error_of_task = future.status == "error"
                if is_error_of_task:
                    raise
                wait_seconds = keep_waiting()

    def cancel(self, handles: Collection[TaskFuture]) -> None:
        """Take back tasks that no worker has begun. Those in progress end by themselves.

        Args:
            handles: The tasks.
        """
        if handles and self.is_connected:
            # An error means that the scheduler has just ended, and so have its tasks.
            with contextlib.suppress(OSError):
                self._client.cancel(list(handles))

    def n_workers(self) -> int:
        """Return how many workers the scheduler knows."""
        try:
            return len(self._client.nthreads())
        except (OSError, RuntimeError) as error:
            raise LostClusterError(str(error) or type(error).__name__) from error

    def close(self) -> None:
        """Disconnect from the scheduler, which then drops the tasks."""
        self._client.close()


def _import_failure(error: Exception) -> str | None:
    """Return why a machine of the cluster cannot import this package, or None if the error is
    another one.

    The package has to be installed on all of them. It may be missing in two places:

        on a worker          ModuleNotFoundError: No module named 'nanoset_core'
        on the scheduler     RuntimeError: Error during deserialization of the task graph. …

    Args:
        error: The error of a task.
    """
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("nanoset_core"):
        return str(error)
    if "deserialization of the task graph" in str(error):
        return str(error.__cause__ or error)
    return None


def _encode_message(run_folder: str, message: Message) -> list[Any]:
    """Convert a message of a task to a list, since Dask only sends values that JSON can hold.

        a message to the user     [".workers/4c2e90", "note", "the text"]
        progress of a part        [".workers/4c2e90", "part", "web-3", 4096, 12, 1000]
        a warning                 [".workers/4c2e90", "warning", "the text"]

    The numbers are the bytes, documents and tokens of the part that are done.

    Args:
        run_folder: Folder of the run in the store of the outputs, which identifies the run.
        message: The message.
    """
    if isinstance(message, TaskNote):
        return [run_folder, "note", message.text]
    if isinstance(message, PartReport):
        return [run_folder, "part", message.part, *astuple(message.amount)]
    return [run_folder, "warning", message]


def _decode_message(event: list[Any]) -> tuple[str, Message]:
    """Convert a list that `_encode_message` has made back to the folder and the message.

    Args:
        event: Such as [".workers/4c2e90", "part", "web-3", 4096, 12, 1000].
    """
    run_folder, kind, text, *amount = event
    if kind == "note":
        return run_folder, TaskNote(text)
    if kind == "part":
        return run_folder, PartReport(text, Amount(*amount))
    return run_folder, text


# On a worker


@dataclass(frozen=True, slots=True)
class _DaskWorker(TaskWorker):
    """The worker of Dask that runs a task."""

    worker: Any
    """`distributed.Worker`."""
    run_folder: str
    """Folder of the run to which the task belongs, which names the run in messages."""

    @property
    def folder(self) -> Path:
        # Dask removes its own folder (`--local-directory`) when the worker ends.
        return Path(self.worker.local_directory) / "nanoset"

    @property
    def place(self) -> str:
        return f"on the worker {self.worker.address} of {platform.node()}"

    def send(self, message: Message) -> None:
        self.worker.log_event(_TOPIC, _encode_message(self.run_folder, message))


def _run_on_dask_worker(
    check: CompatibilityCheck, work: Callable[[Task], Result], task: Task
) -> Result:
    """Run a task on a Dask worker. Dask calls this function there.

    Args:
        check: What is checked first: that this worker has the same software, and sees the same
            files.
        work: The function to call.
        task: The argument of this function.
    """
    from distributed import get_worker as untyped_get_worker

    get_worker: Any = untyped_get_worker
    worker = _DaskWorker(get_worker(), check.run_folder)
    return run_on_worker(worker, check, work, task)
