"""Run a task on a worker of a cluster, which shares only the store of the outputs."""

from __future__ import annotations

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from nanoset_core.errors import NanosetError
from nanoset_core.execution.cluster import Message
from nanoset_core.execution.compatibility import CompatibilityCheck
from nanoset_core.execution.progress import progress_reported_to
from nanoset_core.storage.access import ROOM
from nanoset_core.storage.copies.worker_folders import WorkerFolder, working_at
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.store import Store
from nanoset_core.storage.stores.local import LocalStore

Task = TypeVar("Task")
Result = TypeVar("Result")

_one_task_at_a_time = threading.Lock()
"""Held during a task, since tokenizer engines are made for one task at a time.

A worker of Dask may have several threads, each of which runs tasks.
"""


class TaskWorker(ABC):
    """The worker that runs a task."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Folder on the worker's disk that only this worker uses. It need not exist yet."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the worker is, for messages: `on the worker <address> of <machine>`."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Send a message to the process that handed out the task."""

    def send_warning(self, text: str) -> None:
        """Send a warning to the process that handed out the task, with the name of this worker.

        Args:
            text: The warning, without the name.
        """
        self.send(f"{text} ({self.place})")

    def with_place(self, error: NanosetError) -> NanosetError:
        """Return an error of a task that also says on which machine it happened, for the user.

        For example, "web/a.jsonl" becomes "web/a.jsonl, on the worker tcp://10.0.0.7:40123 of
        node7".

        Args:
            error: The error. It is not changed.
        """
        # The worker comes last: a build knows by the start of `where` what it may rebuild.
        where = f"{error.where}, {self.place}" if error.where else self.place
        return error.at(where)


def run_on_worker(
    worker: TaskWorker, check: CompatibilityCheck, work: Callable[[Task], Result], task: Task
) -> Result:
    """Run a task on this worker of a cluster, for the machine that has handed out the task.

    The user watches only that machine. So progress and warnings are sent to it, and every error
    says on which worker it happened: without this, the user would think that the disk of the other
    machine is full, for example.

    Args:
        worker: This worker.
        check: What the two machines must have in common, such as the versions of packages that
            decide the bytes of outputs. It also knows the files that the task needs.
        work: The function that is called with the task.
        task: The task.

    Returns:
        The result of the function.

    Raises:
        NanosetError: The machines differ, the task failed, or this machine has no more disk space
            or memory.
        Exception: The task raised this error, which is not one of nanoset or of the system.
    """
    with (
        _one_task_at_a_time,
        progress_reported_to(worker.send),
        _storage_warnings_to(worker.send_warning),
    ):
        try:
            check.check()
            return _run_with_copies(worker.folder, check, work, task)
        except NanosetError as error:
            raise worker.with_place(error) from error


def _run_with_copies(
    worker_folder: Path, check: CompatibilityCheck, work: Callable[[Task], Result], task: Task
) -> Result:
    """Copy the files that a task needs to this machine, such as the tokenizer, and run the task.

    Python reports a full disk only as OSError "No space left on device". Such an error is replaced
    by one that also names the folder, and says what to do.

    Args:
        worker_folder: The worker's folder, for the copies and for temporary files.
        check: Knows the files, and the store (a folder or bucket) from which they are copied.
        work: The function that is called with the task.
        task: The task.

    Raises:
        NanosetError: A file cannot be copied, the task failed, or this machine has no more disk
            space or memory.
        Exception: The task raised another error.
    """
    with explained(worker_folder, expected=ROOM):
        copy_by_path = check.download(worker_folder)

    with (
        _full_disk_explained(check.store, worker_folder),
        working_at(WorkerFolder(worker_folder, files=copy_by_path)),
    ):
        return work(task)


def _full_disk_explained(
    store: Store, worker_folder: Path
) -> contextlib.AbstractContextManager[None]:
    """Return a context in which a task is run, so that errors say which folder has a full disk.

    The operating system reports a full disk without naming a folder. Which one it is depends on
    where the outputs are:

        in a folder that all machines share    this folder: the task writes its output there
        in a bucket                            the worker's folder: the output is written there
                                               first, and uploaded

    For the worker's folder, the error also names the setting (ROOM) by which the user can choose
    one with more room.

    Args:
        store: The store of the outputs: a folder or a bucket.
        worker_folder: The worker's folder for temporary files.
    """
    if isinstance(store, LocalStore):
        return explained(store.folder)
    return explained(worker_folder, expected=ROOM)


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
    """Within the `with` block, also pass the logged warnings about buckets to a function.

    A worker logs them where the user does not see them, such as that a bucket does not answer.

    Args:
        receive: The function, which is called with the text of each warning. It sends the text to
            the machine that the user sees.
    """
    handler = _PassingHandler(receive)
    storage_logger = logging.getLogger("nanoset_core.storage")
    storage_logger.addHandler(handler)
    try:
        yield
    finally:
        storage_logger.removeHandler(handler)
