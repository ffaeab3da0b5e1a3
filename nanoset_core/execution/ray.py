"""Hand out tasks to the workers of a Ray cluster, over its client server.

A process could also join the cluster itself, as a driver. But Ray ends such a process at once if
the head of the cluster is lost. A client gets an error then, and can clean up. It can also run on a
machine that is not part of the cluster.

A worker reports progress and warnings while it works on a task. It sends them to an actor of Ray,
the mailbox, from which the process that handed out the tasks takes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import tempfile
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from nanoset_core.execution.cluster import (
    ClusterClient,
    KilledWorkersError,
    LostClusterError,
    Message,
    UnloadableTaskError,
)
from nanoset_core.execution.cluster_worker import TaskWorker, run_on_worker
from nanoset_core.execution.compatibility import CompatibilityCheck
from nanoset_core.execution.interruption import signals_dropped
from nanoset_core.execution.progress import PartReport
from nanoset_core.storage.atomic import sweep_abandoned, unfinished_name
from nanoset_core.untrusted import safe_logger

Task = TypeVar("Task")
Result = TypeVar("Result")

_CPUS_PER_TASK = 1
"""Processors that Ray reserves for a task, which works in one thread."""
_MAX_SENDERS = 100_000
"""Tasks that may send a message to the mailbox at the same time."""
_DELIVERY_SECONDS = 10.0
"""How long a task waits at its end until its last message has arrived."""
_END_SECONDS = 5.0
"""How long to wait for the end of the thread that receives messages."""

logger = safe_logger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class RayTask:
    """A task that was handed out to Ray."""

    reference: Any
    """`ray.ObjectRef` of its result."""
    outcome: Future[Any]
    """Its result or error, which arrives when the task ends."""


class RayClient(ClusterClient):
    """The connection of this process to the client server of a Ray cluster.

    Ray has one such connection for the whole process.
    """

    def __init__(self) -> None:
        """Use the connection that `ray.init` has opened, and start a mailbox in the cluster."""
        import ray

        self._n_workers = 0
        """Number of workers at the last look."""
        self._run_task = ray.remote(num_cpus=_CPUS_PER_TASK)(_run_on_ray_worker)
        # Without a processor of its own, the mailbox does not take one away from tasks. If its
        # machine is lost, Ray starts it again elsewhere.
        new_mailbox = ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=_MAX_SENDERS)(Mailbox)
        self._mailbox = new_mailbox.remote()
        self._receiver: threading.Thread | None = None
        self._is_closing = False

    @property
    def is_connected(self) -> bool:
        """Whether the connection works, or is being restored by Ray."""
        import ray

        return bool(ray.is_initialized())

    def receive_messages(self, receive: Callable[[str, Message], None]) -> None:
        """Call a function for each message that a task on a worker sends, such as its progress.

        It is called in a thread of its own.

        Args:
            receive: Called with the folder that identifies a run of tasks, and the message.
        """
        self._receiver = threading.Thread(
            target=self._take_messages, args=(receive,), daemon=True, name="ray-messages"
        )
        self._receiver.start()

    def _take_messages(self, receive: Callable[[str, Message], None]) -> None:
        """Pass on the messages of tasks, such as their progress, until the connection ends.

        Tasks run on other machines, and cannot call this process. So they put their messages into a
        mailbox, a process in the cluster. This function takes the messages out of it again and
        again:

            task on machine 3  ──put──→  mailbox in the cluster  ──take──→  this process

        Args:
            receive: Called with each message, and with the folder that says which run it belongs
                to.
        """
        import ray
        from ray.exceptions import ActorDiedError, ActorUnavailableError

        while True:
            try:
                messages = ray.get(self._mailbox.take.remote())  # waits for the next messages
            except ActorUnavailableError:
                continue  # Its machine was lost: Ray starts the mailbox again, on another one.
            except ActorDiedError as error:
                # The mailbox has ended for good, by `close` or by a fault.
                if not self._is_closing:
                    reason = _last_line(error)
                    logger.warning("the progress of tasks on Ray is not shown: %s", reason)
                return
            except Exception:  # noqa: BLE001 - Ray has no class for the end of a connection
                return  # `RayClient.result` reports that the connection is lost.
            for run_folder, message in messages:
                receive(run_folder, message)

    def submit(
        self,
        check: CompatibilityCheck,
        work: Callable[[Any], Any],
        task: Any,
        receive_end: Callable[[RayTask], None],
    ) -> RayTask:
        """Hand out a task to the Ray cluster.

        Args:
            check: What the worker checks first: that it has the same software, and sees the same
                files.
            work: Called with the task, on the worker.
            task: The argument of `work`.
            receive_end: Called with the handle when the task has ended, in a thread of Ray.

        Returns:
            A handle, by which the task can be cancelled, and its result be asked for.

        Raises:
            LostClusterError: The connection to the cluster was lost.
        """
        try:
            # A worker will run the task. While it does, it puts messages into the mailbox.
            reference = self._run_task.remote(self._mailbox, check, work, task)
            outcome = reference.future()  # gets the result when the task has ended
        except Exception as error:
            if self.is_connected:
                raise  # For example, the task cannot be pickled.
            raise LostClusterError(_last_line(error)) from error

        handle = RayTask(reference, outcome)
        outcome.add_done_callback(lambda _: receive_end(handle))
        return handle

    def result(self, handle: RayTask, keep_waiting: Callable[[], float]) -> Any:
        """Return the result of a task that has ended, or raise its error.

        Args:
            handle: The task.
            keep_waiting: Not used; other kinds of clusters need it.

        Raises:
            Exception: The error that the task itself has raised.
            UnloadableTaskError: Nanoset is not installed on the machine that had the task.
            KilledWorkersError: The process of the task was killed.
            LostClusterError: The connection to the cluster was lost.
        """
        from ray.exceptions import RayTaskError

        error = handle.outcome.exception()
        if error is None:
            return handle.outcome.result()

        if not isinstance(error, RayTaskError):
            raise _as_cluster_error(error) from error  # Ray itself has failed

        # Ray wraps the error of a task. If a machine cannot import nanoset, the error looks as if
        # the task had raised it, but the machine is to blame.
        task_error = error.cause
        lacks_nanoset = _import_failure(task_error) is not None
        if lacks_nanoset:
            raise _as_cluster_error(error) from error
        raise task_error from error

    def cancel(self, handles: Collection[RayTask]) -> None:
        """Interrupt tasks that are in progress, as if by Ctrl-C, and drop those that have not
        begun.

        Args:
            handles: The tasks.
        """
        import ray

        for handle in handles:
            if not self.is_connected:
                return
            with contextlib.suppress(Exception):  # The connection may be lost at any moment.
                ray.cancel(handle.reference)

    def n_workers(self) -> int:
        """Return how many tasks the processors of the cluster can run at the same time.

        If the cluster does not answer for a moment, the number of the last look is returned.

        Raises:
            LostClusterError: The connection was lost for good.
        """
        import ray
        from grpc import RpcError

        if not self.is_connected:
            raise LostClusterError("the connection to the head of the cluster was lost")
        try:
            resources = ray.cluster_resources()
        except (RpcError, ValueError, OSError):
            # The connection is interrupted. Ray itself tries to restore it for half a minute. Until
            # it works again, or `is_connected` becomes false, assume the number of the last look.
            return self._n_workers
        self._n_workers = int(resources.get("CPU", 0) // _CPUS_PER_TASK)
        return self._n_workers

    def close(self) -> None:
        """End the connection; Ray then kills the processes that run tasks of it."""
        import ray

        self._is_closing = True
        with signals_dropped():
            ray.shutdown()  # It only ends the connection, even if that was lost.
            if self._receiver is not None:
                self._receiver.join(_END_SECONDS)


def _as_cluster_error(error: BaseException) -> Exception:
    """Return what an error of Ray means for a run of tasks, as one of three exceptions.

        the worker cannot import this program    UnloadableTaskError: it must be installed there
        workers were killed                      KilledWorkersError: perhaps too little memory
        anything else                            LostClusterError: the cluster is gone

    Args:
        error: An error that Ray raised, and not the task itself.
    """
    from ray.exceptions import NodeDiedError, OutOfMemoryError, RayTaskError, WorkerCrashedError

    # Ray may wrap the error of an import like that of a task.
    cause = error.cause if isinstance(error, RayTaskError) else error
    import_failure = _import_failure(cause)
    if import_failure is not None:
        return UnloadableTaskError(import_failure)
    text = str(error) or type(error).__name__
    if isinstance(error, (WorkerCrashedError, OutOfMemoryError, NodeDiedError)):
        return KilledWorkersError(text)
    return LostClusterError(text)


def _import_failure(error: BaseException) -> str | None:
    """Return why a machine of the cluster cannot import nanoset, or None if it can.

    Nanoset has to be installed on every machine of the cluster. The error that arrives from a
    machine without it depends on when nanoset was imported there:

    - While the task was running: a ModuleNotFoundError whose `name` is "nanoset_core".
    - Earlier, when Ray loaded the function that runs tasks: an error of Ray, whose text is a whole
      traceback. Its last line is "ModuleNotFoundError: No module named 'nanoset_core'".

    Args:
        error: The error of a task, or one of Ray.

    Returns:
        "No module named 'nanoset_core'" in the first case, and the last line in the second one.
    """
    # A task itself may lack another package, so its error counts only if nanoset is missing.
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("nanoset_core"):
        return str(error)
    # When Ray loads the function that runs tasks, only nanoset is imported. So any import error
    # means that nanoset is missing. An AttributeError means that the machine has an old version of
    # it, which lacks the function.
    last_line = _last_line(error)
    if last_line.startswith(("ModuleNotFoundError:", "ImportError:", "AttributeError:")):
        return last_line
    return None


def _last_line(error: BaseException) -> str:
    """Return the last line of an error's text; the type of the error if it has none.

    For example, of a whole traceback: "ModuleNotFoundError: No module named 'nanoset_core'".

    Args:
        error: The error.
    """
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


# In the cluster


@dataclass(frozen=True, slots=True)
class _Letter:
    """A message in the mailbox."""

    run_folder: str
    """Folder of the run that it belongs to."""
    message: Message
    has_arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set as soon as the process that handed out the tasks has received it."""


class Mailbox:
    """Keeps messages of tasks until the process that handed out the tasks takes them.

    Workers of Ray cannot call that process, but both can reach the cluster. So the mailbox runs
    there: it is an actor of Ray, a process whose methods can be called from elsewhere.
    """

    def __init__(self) -> None:
        """Begin without messages."""
        self._letters: list[_Letter] = []
        """The messages to take next."""
        self._taken: list[_Letter] = []
        """What the last call of `take` has returned."""
        self._has_letters = asyncio.Event()

    async def put(self, run_folder: str, message: Message) -> None:
        """Add a message, and wait until the process that handed out the tasks has received it.

        So a task cannot send messages faster than they are received.

        Args:
            run_folder: Folder of the run that the message belongs to.
            message: The message.
        """
        letter = _Letter(run_folder, message)
        self._letters.append(letter)
        self._has_letters.set()  # a waiting `take` continues
        await letter.has_arrived.wait()

    async def take(self) -> list[tuple[str, Message]]:
        """Wait until there are messages, and return all of them.

        The process that handed out the tasks calls this in a loop. Each call shows that it has
        received what the call before returned, so only then the senders of that may continue.

        Returns:
            (folder of the run, message) for each, in the order in which they came.
        """
        for letter in self._taken:
            letter.has_arrived.set()  # its `put` returns

        await self._has_letters.wait()  # until `put` adds a letter
        self._has_letters.clear()
        self._taken = self._letters
        self._letters = []
        return [(letter.run_folder, letter.message) for letter in self._taken]


class _RayWorker(TaskWorker):
    """The worker process of Ray that runs a task."""

    def __init__(self, mailbox: Any, run_folder: str) -> None:
        """Describe the worker that this is called on.

        Args:
            mailbox: Handle of the `Mailbox`.
            run_folder: Folder of the run, which names the run in messages.
        """
        self._mailbox = mailbox
        self._run_folder = run_folder
        self._last_put: Any = None
        """Reference of the last message that was sent, which is ready once that has arrived."""

    @property
    def folder(self) -> Path:
        return _folder_of_process()

    @property
    def place(self) -> str:
        import ray

        address = ray.util.get_node_ip_address()
        return f"on the Ray worker {address} (process {os.getpid()}) of {platform.node()}"

    def send(self, message: Message) -> None:
        # If the last message has not arrived yet, leave out progress: later reports include it.
        if isinstance(message, PartReport) and not self._has_delivered(within_seconds=0.0):
            return
        self._last_put = self._mailbox.put.remote(self._run_folder, message)

    def deliver(self) -> None:
        """Wait until all messages have arrived, but not for long."""
        self._has_delivered(within_seconds=_DELIVERY_SECONDS)

    def _has_delivered(self, within_seconds: float) -> bool:
        """Return whether all messages of this worker have arrived, after waiting for that if
        necessary.

        Messages are sent one after the other, to an actor (a process of Ray) that keeps them in
        order for the process that handed out the task. So all have arrived if the last one has.

        If the actor was lost, for example because its machine was switched off, nobody can receive
        the messages any more, so there is nothing to wait for. Then the result is True as well: Ray
        counts a call as ready also if it has failed.

        Args:
            within_seconds: How long to wait at most.
        """
        import ray

        if self._last_put is None:  # no message was sent
            return True
        # `put` of the mailbox returns once the message has been received, or fails if it was lost.
        arrived, _ = ray.wait([self._last_put], timeout=within_seconds)
        return bool(arrived)


@lru_cache(maxsize=1)
def _folder_of_process() -> Path:
    """Return a new folder in the one for temporary files, which only this process uses.

    Ray ends its processes without letting them clean up. So the first task of each process removes
    the folders of processes that have ended.
    """
    temporary_folder = Path(tempfile.gettempdir())
    name = "nanoset-ray"
    sweep_abandoned(temporary_folder, name)
    folder = unfinished_name(temporary_folder / name)
    folder.mkdir(mode=0o700)
    return folder


def _run_on_ray_worker(
    mailbox: Any, check: CompatibilityCheck, work: Callable[[Task], Result], task: Task
) -> Result:
    """Run a task, and return its result. Ray calls this on a worker of the cluster.

    Args:
        mailbox: Takes the messages of the task, such as its progress; see `Mailbox`.
        check: Checks first that this machine has the same software as the one that handed out the
            task, and sees the same files.
        work: Called with the task.
        task: The argument of `work`, such as a range of text to tokenize.
    """
    worker = _RayWorker(mailbox, check.run_folder)
    try:
        return run_on_worker(worker, check, work, task)
    finally:
        # Let the last messages arrive before the result, since the run may end with it.
        worker.deliver()
