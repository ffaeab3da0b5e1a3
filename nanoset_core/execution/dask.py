"""Run tasks on the workers of a Dask cluster, which share only the store of the outputs.

A worker reports progress and warnings while it works on a task. It sends them as events of one
topic, and the process that handed out the task receives them with the task's run.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

from nanoset_core.errors import ConfigError, MissingError, NanosetError
from nanoset_core.execution.bounded import BoundedRun
from nanoset_core.execution.compatibility import CompatibilityCheck, compatibility_check
from nanoset_core.execution.dask_connection import (
    TOPIC,
    Connection,
    DaskCluster,
    Message,
    connected,
    encode_message,
)
from nanoset_core.execution.progress import (
    SILENT,
    Progress,
    TaskReport,
    progress_reported_to,
    report_progress,
)
from nanoset_core.records.text import format_age
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.worker_folders import WorkerFolder, working_at
from nanoset_core.untrusted import safe_logger

Task = TypeVar("Task")
Result = TypeVar("Result")
TaskFuture: TypeAlias = Any
"""distributed.Future; the package has no types."""

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
class DaskExecutor:
    """Runs tasks on the workers of a Dask cluster."""

    cluster: DaskCluster
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
        """Call a function for every task on the workers, and yield the results as tasks end.

        The first error of a task is raised: tasks that have not begun are dropped, and those in
        progress end by themselves. The same happens if the caller is interrupted or closes the
        iterator. If a worker dies, another one gets its task: so `work` may be called twice for a
        task, even at the same time.

        Args:
            work: The function. A worker must be able to import it by its name.
            tasks: The tasks; a few thousand of them are in memory at any time.

        Yields:
            (number of the task, from 0; its result)

        Raises:
            ConfigError: `distributed` is not installed, or no scheduler answers in time.
            MissingError: No worker joins in time, or one does not see the outputs.
            StaleError: A worker has other software.
            NanosetError: Several workers died of the same task, or the scheduler is gone.
        """
        # Do not connect if there are no tasks.
        remaining = iter(tasks)
        first_task = list(islice(remaining, 1))
        if not first_task:
            return
        with (
            connected(self.cluster) as connection,
            _dask_run(self, connection, work) as run,
        ):
            yield from run.results(chain(first_task, remaining))


@contextlib.contextmanager
def _dask_run(
    executor: DaskExecutor, connection: Connection, work: Callable[[Any], Any]
) -> Iterator[_DaskRun]:
    """Yield a run of tasks on a cluster; tasks that are pending at the end are cancelled.

    Args:
        executor: What runs the tasks.
        connection: The connection to its cluster.
        work: Called for each task, on a worker.
    """
    client = connection.open(executor.progress)
    # Raises an error if the cluster has no workers for too long.
    worker_watch = _WorkerWatch(connection, client, executor.progress)
    with compatibility_check(executor.shared, executor.files) as check:
        run = _DaskRun(work, client, check, worker_watch)
        # Workers send messages, such as their progress, with the name of the run's folder. Several
        # runs may share the connection.
        connection.receivers[check.run_folder] = run.events.put
        try:
            yield run
        finally:
            del connection.receivers[check.run_folder]
            _cancel_pending(run, client)


def _cancel_pending(run: _DaskRun, client: Any) -> None:
    """Cancel the tasks of a run that have not ended, if the scheduler still runs.

    Args:
        run: The run.
        client: `distributed.Client` of the cluster.
    """
    if run.pending and client.status == "running":
        # An error means that the scheduler has just ended, and so have its tasks.
        with contextlib.suppress(OSError):
            client.cancel(list(run.pending))


class _DaskRun(BoundedRun[Any, TaskFuture]):
    """One run of tasks on a cluster."""

    def __init__(
        self,
        work: Callable[[Any], Any],
        client: Any,
        check: CompatibilityCheck,
        workers: _WorkerWatch,
    ) -> None:
        """Begin a run without tasks.

        Args:
            work: Called for each task, on a worker.
            client: `distributed.Client` of the cluster.
            check: What a worker checks before each task.
            workers: Waits for workers if there are none.
        """
        super().__init__(_MAX_PENDING)
        self._work = work
        self._client = client
        self._check = check
        self._workers = workers
        self.events: SimpleQueue[TaskFuture | Message] = SimpleQueue()
        """Tasks that have ended, and messages of tasks in progress, as they arrive."""
        self._check_seconds = 0.0
        """How long to wait for an event before checking that there are workers."""

    def submit(self, task: Any) -> TaskFuture:
        """Hand out a task to the cluster, and return its future."""
        # One callable without arguments, so that Dask does not search the task for futures.
        call = partial(_carry_out, self._check, self._work, task)
        future = self._client.submit(call, pure=False)
        future.add_done_callback(self.events.put)
        return future

    def wait(self) -> Iterable[TaskFuture]:
        """Wait for the next event, and return the future of a task if it has ended.

        Other events are messages of tasks in progress: a text for the log, or a report of progress.
        They are passed on here. The caller calls this method again and again.

        Returns:
            A list with the future of a task, or an empty one.

        Raises:
            MissingError: The cluster has had no workers for too long.
            NanosetError: The scheduler has ended.
        """
        try:
            event = self.events.get(timeout=self._check_seconds)
        except Empty:
            # Nothing has happened for a while: check that there are still workers.
            self._check_seconds = self._workers.check_for_workers()
            return []

        self._workers.worker_seen()
        if isinstance(event, str):
            logger.warning("%s", event)
            return []
        if isinstance(event, TaskReport):
            report_progress(event)
            return []
        return [event]

    def result(self, handle: TaskFuture) -> Any:
        """Return the result of a task that has ended.

        Args:
            handle: The future of the task.

        Raises:
            NanosetError: The task killed several workers, or the scheduler has ended.
            ConfigError: A machine of the cluster cannot import nanoset.
            Exception: The task raised this error.
        """
        from distributed import KilledWorker
        from distributed.comm.core import CommClosedError

        try:
            return self._fetch(handle)
        except KilledWorker as error:
            raise NanosetError(
                "workers were killed, one after the other, by one task",
                where=getattr(self._work, "__name__", None),
                found=str(error),
                remedy="run again (what is finished is kept), "
                "with more memory for each worker if memory is short",
            ) from error
        except (CancelledError, CommClosedError) as error:
            raise _lost_scheduler(self._workers.cluster, error) from error
        except (ModuleNotFoundError, RuntimeError) as error:
            # Dask raises such errors if it cannot import the task, but a task may raise them, too.
            import_failure = _import_failure(error)
            if import_failure is None:
                raise
            raise ConfigError(
                "the Dask scheduler or a worker cannot load this program",
                where=self._workers.cluster.name,
                found=import_failure,
                expected="nanoset-platform, in the same version, next to `distributed` "
                "on every machine of the cluster",
                remedy="install it there, and start scheduler and workers again",
            ) from error

    def _fetch(self, future: TaskFuture) -> Any:
        """Return the result of a task that has ended, as soon as it has arrived from the worker.

        If that worker ends first, Dask lets another one run the task again. This waits for it as
        long as there are workers.

        Raises:
            MissingError: The cluster has had no workers for too long.
            Exception: The task raised this error, or Dask an error of its own.
        """
        check_seconds = _CHECK_SECONDS
        while True:
            try:
                return future.result(timeout=check_seconds)
            except TimeoutError:
                if future.status == "error":
                    raise  # The task itself raised this TimeoutError.
                check_seconds = self._workers.check_for_workers()


def _import_failure(error: Exception) -> str | None:
    """Return why a machine of the cluster cannot import nanoset; None if the error says otherwise.

    Args:
        error: The error of a task. A worker that cannot import the task raises a
            ModuleNotFoundError, and a scheduler that cannot fails to deserialize the task.
    """
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("nanoset_core"):
        return str(error)
    if "deserialization of the task graph" in str(error):
        return str(error.__cause__ or error)
    return None


def _lost_scheduler(cluster: DaskCluster, error: BaseException) -> NanosetError:
    """Return the error for a scheduler that ended, or that forgot the tasks."""
    return NanosetError(
        "the Dask scheduler dropped the tasks",
        where=cluster.name,
        found=str(error) or type(error).__name__,
        remedy="see whether it still runs, and run again: what is finished is kept",
    )


class _WorkerWatch:
    """Waits for workers if a cluster has none, for as long as the settings of the cluster say."""

    def __init__(self, connection: Connection, client: Any, progress: Progress) -> None:
        """Prepare to look at the workers.

        Args:
            connection: The connection to the cluster.
            client: `distributed.Client` of the cluster.
            progress: Shows how long was waited.
        """
        self.cluster = connection.cluster
        self._connection = connection
        self._client = client
        name = f"for workers of {self.cluster.name}"
        self._wait_for_workers = progress.wait(name, connection.wait_seconds)
        """Measures and shows how long there have been no workers."""

    def check_for_workers(self) -> float:
        """Check that there are workers, or that there is time left to wait for some.

        Returns:
            Seconds after which to check again.

        Raises:
            MissingError: The cluster has had no workers for too long.
            NanosetError: The scheduler has ended.
        """
        if self._n_workers():
            self.worker_seen()
            return _CHECK_SECONDS
        if self._wait_for_workers.has_time_left():
            return _CHECK_SECONDS_WITHOUT_WORKERS

        # Other outputs that are made over this connection need not wait for workers again, until
        # one is seen.
        self._connection.wait_seconds = 0.0
        raise MissingError(
            "the Dask cluster has no workers",
            where=self.cluster.name,
            found=f"none for {format_age(self.cluster.wait_seconds)}",
            remedy=f"{self.cluster.start_workers}, and run again, or set executor.wait to more; "
            "a worker that cannot load nanoset-platform leaves at its first task: see its log",
        )

    def _n_workers(self) -> int:
        """Return the number of workers of the cluster.

        Raises:
            NanosetError: The scheduler has ended.
        """
        try:
            return len(self._client.nthreads())
        except (OSError, RuntimeError) as error:
            raise _lost_scheduler(self.cluster, error) from error

    def worker_seen(self) -> None:
        """Note that there is a worker, so that the time to wait for one begins again."""
        self._wait_for_workers.restart(self.cluster.wait_seconds)
        self._connection.wait_seconds = self.cluster.wait_seconds


# On a worker

_one_task_at_a_time = threading.Lock()
"""Held during a task, since tokenizer engines are made for one task at a time.

A worker may have several threads, each of which runs tasks.
"""


@dataclass(frozen=True, slots=True)
class _ThisWorker:
    """The worker that runs a task."""

    worker: Any
    """`distributed.Worker`."""
    run_folder: str
    """Folder of the run to which the task belongs, which names the run in messages."""

    @classmethod
    def of_run(cls, run_folder: str) -> _ThisWorker:
        """Return the worker that this function is called on."""
        from distributed import get_worker as untyped_get_worker

        get_worker: Any = untyped_get_worker
        return cls(get_worker(), run_folder)

    @property
    def folder(self) -> Path:
        """Folder for temporary files, in the one that Dask gives the worker.

        Dask removes that one (`--local-directory`) when the worker ends.
        """
        return Path(self.worker.local_directory) / "nanoset"

    @property
    def place(self) -> str:
        """Where the worker is, for messages."""
        return f"on the worker {self.worker.address} of {platform.node()}"

    def send(self, message: Message) -> None:
        """Send a message to the process that handed out the task."""
        self.worker.log_event(TOPIC, encode_message(self.run_folder, message))

    def send_warning(self, text: str) -> None:
        """Send a warning about a bucket, with the name of this worker."""
        self.send(f"{text} ({self.place})")

    def with_place(self, error: NanosetError) -> NanosetError:
        """Return an error of a task with the name of this worker."""
        # The worker comes last: a build knows by the start of `where` what it may rebuild.
        where = f"{error.where}, {self.place}" if error.where else self.place
        return error.at(where)


def _carry_out(check: CompatibilityCheck, work: Callable[[Task], Result], task: Task) -> Result:
    """Run a task on a worker, which calls this function, and return its result.

    Args:
        check: What this machine must have in common with the one that handed out the task.
        work: Called for the task.
        task: The task.

    Raises:
        NanosetError: The machine does not pass the check, or the task failed. The error names the
            worker.
    """
    worker = _ThisWorker.of_run(check.run_folder)
    with (
        _one_task_at_a_time,
        progress_reported_to(worker.send),
        _storage_warnings_to(worker.send_warning),
    ):
        try:
            check.check()
            with working_at(WorkerFolder(worker.folder, check.download(worker.folder))):
                return work(task)
        except NanosetError as error:
            raise worker.with_place(error) from error


class _PassingHandler(logging.Handler):
    """A handler of log records that passes their messages to a function."""

    def __init__(self, receive: Callable[[str], None]) -> None:
        """Create a handler of warnings and errors.

        Args:
            receive: The function.
        """
        super().__init__(logging.WARNING)
        self._receive = receive

    def emit(self, record: logging.LogRecord) -> None:
        self._receive(record.getMessage())


@contextlib.contextmanager
def _storage_warnings_to(receive: Callable[[str], None]) -> Iterator[None]:
    """Pass warnings about buckets, such as that one does not answer, to a function in the block.

    Args:
        receive: The function, which is called with the text of each warning.
    """
    handler = _PassingHandler(receive)
    storage_logger = logging.getLogger("nanoset_core.storage")
    storage_logger.addHandler(handler)
    try:
        yield
    finally:
        storage_logger.removeHandler(handler)
