"""Run tasks in processes of this machine, which end when their owner does, or by another executor.

Workers must not outlive their owner, even if it is killed with SIGKILL. So every worker waits at
one end of a pipe whose other end only the owner has. Nothing is ever sent through this pipe: when
the owner ends, in whatever way, the system closes its end, and the workers exit. A second pipe
carries the progress that workers report.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from itertools import chain, islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, Literal, Protocol, Self, TypeVar

from nanoset_core.errors import NanosetError
from nanoset_core.execution.bounded import BoundedRun
from nanoset_core.execution.interruption import children_shielded
from nanoset_core.execution.progress import TaskReport, report_progress, set_progress_receiver

Task = TypeVar("Task")
Result = TypeVar("Result")

_TASKS_PER_WORKER = 2
"""Tasks that are handed out for each worker: one in progress, and one that is ready when it ends.

Waiting for many tasks takes time that grows with the square of their number.
"""
_LOOK_SECONDS = 0.5
"""Time between two looks at the progress of workers, while none of them ends a task."""


class Executor(Protocol):
    """Runs tasks somewhere, such as in a pool of processes or on a cluster."""

    def run(
        self, work: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[int, Result]]:
        """Call a function for every task, and yield the results in the order in which tasks end.

            for number, result in executor.run(tokenize, ["a.jsonl", "b.jsonl"]):
                print(number, result)        perhaps first 1, then 0

        Executors differ in where the function is called: in this process, in other processes, or on
        other machines. The first error of a task is raised, and ends the run.

        Args:
            work: The function. Another process must be able to import it by its name.
            tasks: The tasks, which may come from a long iterator.

        Yields:
            (number of the task, from 0; its result)

        Raises:
            Exception: The first error that the function raised.
        """
        ...


def run_tasks(
    work: Callable[[Task], Result],
    tasks: Iterable[Task],
    workers: int,
    executor: Executor | None = None,
) -> Iterator[tuple[int, Result]]:
    """Call a function for every task in several processes, and yield the results as tasks end.

        for number, n_tokens in run_tasks(count_tokens, ["a.txt", "b.txt", "c.txt"], workers=2):
            ...  # such as (1, 250), then (0, 900), then (2, 40): b.txt was done first

    If a task raises an error, those in progress are finished, no others are begun, and the error is
    raised here. If the caller is interrupted, or stops iterating, the workers are ended at once.

    Args:
        work: The function. Another process must be able to import it by its name.
        tasks: The tasks, which may come from a long iterator; a few are in memory at any time.
        workers: Number of processes, at most. With one, the tasks run in this process.
        executor: Runs all tasks elsewhere, such as on a cluster; then `workers` is not used.

    Yields:
        (number of the task, from 0; its result)

    Raises:
        NanosetError: A worker process was killed from outside, often because the system was short
            of memory.
    """
    if executor is not None:
        yield from executor.run(work, tasks)
        return

    # Take the first tasks, one for each worker, to start no more workers than there are tasks.
    remaining = iter(tasks)
    first_tasks: list[Task] = []
    if workers > 1:
        first_tasks = list(islice(remaining, workers))
    all_tasks = chain(first_tasks, remaining)
    if len(first_tasks) > 1:
        with _Pool(len(first_tasks), "spawn") as pool:
            yield from pool.run(work, all_tasks)
        return

    # A single task, or all tasks of a single worker, run in this process.
    for number, task in enumerate(all_tasks):
        yield number, work(task)


@contextmanager
def forked_workers(workers: int) -> Iterator[Executor | None]:
    """Start worker processes as copies of this process, with everything that it has in memory.

    A large tokenizer, for example, takes seconds to load. Workers that are forked, which means
    copied by the system, have it from the start:

        tokenizer = load("tokenizer.json")
        with forked_workers(4) as executor:
            for number, result in executor.run(tokenize, tasks): …

    Args:
        workers: Number of processes.

    Yields:
        An executor, whose `run` gives tasks to the workers. None if there would be a single worker,
        or if forking is not safe: this process has other threads, whose locks would stay locked
        forever in the copy, or the system is not Linux. Then the caller does the work without it.
    """
    if workers <= 1 or sys.platform != "linux" or threading.active_count() > 1:
        yield None
        return
    with _Pool(workers, "fork") as pool:
        yield pool


class _Pool:
    """An executor with worker processes that end with this process, their owner."""

    def __init__(self, workers: int, method: Literal["spawn", "fork"]) -> None:
        """Create the pipes and the pool. Spawned workers start when they are needed.

        Args:
            workers: Number of processes.
            method: Whether workers are new processes, or copies of this one with its memory.
        """
        context = multiprocessing.get_context(method)
        # A hang-up of the terminal would otherwise end the process that takes care of locks.
        with children_shielded():
            resource_tracker.ensure_running()
        self._n_workers = workers

        # Nothing is sent through the first pipe. Workers wait at one end of it, and exit when the
        # other end is closed, which also happens if this process is killed. Through the second
        # pipe, they send reports.
        self._exit_receiver, self._exit_sender = context.Pipe(duplex=False)
        self._progress_receiver, self._progress_sender = context.Pipe(duplex=False)
        # A worker must not wait if nobody reads its progress.
        os.set_blocking(self._progress_sender.fileno(), False)

        # A forked worker has a copy of the sender, and must close it.
        inherited_sender = self._exit_sender if method == "fork" else None
        self._pool = ProcessPoolExecutor(
            workers,
            mp_context=context,
            initializer=_start_worker,
            initargs=(self._exit_receiver, inherited_sender, self._progress_sender),
        )
        if method == "fork":
            self._fork_all()

    def _fork_all(self) -> None:
        """Start all worker processes now, as copies of this process with all its memory.

        Copying a process is only safe while it has a single thread. The pool gets threads of its
        own as soon as it has tasks, so all workers are started before.
        """
        with children_shielded(), warnings.catch_warnings():
            # Python also warns of threads that libraries have started outside of it, such as those
            # of numpy. `forked_workers` has checked that there are no others.
            warnings.simplefilter("ignore", DeprecationWarning)
            # Any first task makes the pool fork all its workers.
            self._pool.submit(os.getpid)

    def run(
        self, work: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[int, Result]]:
        """Call a function for every task in the worker processes, and yield the results as tasks
        end.

        Three things can go wrong:

            a task raises an error      it is raised here, after tasks in progress have ended
            Ctrl-C                      the workers are ended at once
            a worker is killed          the others are ended; perhaps memory is short

        Args:
            work: The function. A worker must be able to import it by its name.
            tasks: The tasks; a few of them are in memory at any time.

        Yields:
            (number of the task, from 0; its result)

        Raises:
            NanosetError: A worker process was killed from outside.
        """
        run = _PoolRun(self._pool, work, self._progress_receiver, self._n_workers)
        try:
            yield from run.results(tasks)
        except BrokenProcessPool as error:
            # The pool has ended its other workers, but may miss one that was just starting.
            self._end_workers()
            raise NanosetError(
                "a worker process was killed",
                found="it ended without a result, as when the system runs out of memory",
                remedy="run again (what is finished is kept), "
                "with fewer workers if memory is short",
            ) from error
        except BaseException as error:
            if _is_interruption(error):
                self._end_workers()
            raise

    def _end_workers(self) -> None:
        """End all workers, even those that are doing a task: they exit when this pipe is closed."""
        self._exit_sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """End the worker processes.

        After an error of a task, those in progress are finished first. After Ctrl-C, they are not.

        Args:
            kind: Type of the exception with which the block has ended, or None.
            error: The exception.
            traceback: Its traceback.
        """
        if _is_interruption(error):
            self._end_workers()

        # Drop tasks that have not begun, wait for those in progress, and end the workers.
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._exit_sender.close()
        self._exit_receiver.close()
        self._progress_sender.close()
        self._progress_receiver.close()


class _PoolRun(BoundedRun[Any, Future[Any]]):
    """One run of tasks in a pool of processes."""

    def __init__(
        self,
        pool: ProcessPoolExecutor,
        work: Callable[[Any], Any],
        progress_receiver: Connection,
        n_workers: int,
    ) -> None:
        """Begin a run without tasks.

        Args:
            pool: The worker processes.
            work: Called for each task, in a worker.
            progress_receiver: The end of a pipe at which reports of workers arrive.
            n_workers: Number of workers.
        """
        super().__init__(n_workers * _TASKS_PER_WORKER)
        self._pool = pool
        self._work = work
        self._progress_receiver = progress_receiver

    def submit(self, task: Any) -> Future[Any]:
        """Hand out a task to the pool of worker processes, which may have to start a worker for it.

        A new worker does not import the user's script, and does not receive Ctrl-C from the
        terminal: only this process does, which ends the workers itself.

        Args:
            task: The argument for the function that the workers call.

        Returns:
            The future result.

        Raises:
            BrokenProcessPool: A worker has died.
        """
        try:
            with _without_main_module(), children_shielded():
                return self._pool.submit(self._work, task)
        except OSError as error:
            if not _is_broken_pipe(error):
                raise
            raise BrokenProcessPool("a worker died while another was started") from error

    def wait(self) -> list[Future[Any]]:
        """Wait until a task has ended, but at most half a second, and return the ended tasks.

        Reports of the workers on their progress are passed on.

        Returns:
            The tasks that have ended, in the order in which they were handed out; perhaps none.
        """
        ended = wait(self.pending, _LOOK_SECONDS, FIRST_COMPLETED).done
        while self._progress_receiver.poll():
            report_progress(self._progress_receiver.recv())
        # `pending` has the number of each task, in the order in which they were handed out.
        return sorted(ended, key=lambda future: self.pending[future])

    def result(self, handle: Future[Any]) -> Any:
        """Return the result of a task that has ended, or raise its error."""
        return handle.result()


def _is_interruption(error: object) -> bool:
    """Return whether an exception means that the user or the caller has ended a run of tasks.

        KeyboardInterrupt          yes: Ctrl-C
        GeneratorExit              yes: the caller has closed the iterator of results
        any Exception, or None     no: a task has failed, or nothing was raised

    Args:
        error: The exception, or None.
    """
    return isinstance(error, BaseException) and not isinstance(error, Exception)


def _is_broken_pipe(error: OSError) -> bool:
    """Return whether a pipe of the pool is broken, since a worker died while another was started.

    The pipe may also be closed already: then the error has no number. Any other error means
    something else, such as too many open files.

    Args:
        error: The error of the pool.
    """
    return error.errno in (None, errno.EPIPE)


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Keep workers that are started in the `with` block from importing the user's script.

    Suppose that a user runs `python train.py`, and `train.py` calls this package, which starts
    worker processes. Python's `multiprocessing` lets each worker import `train.py`, in case the
    work is defined there. It never is, and the import would run the whole script again in every
    worker.

    `multiprocessing` learns from the module `__main__` what was run:

        python train.py            __file__ is "train.py"
        python -m my_package       __spec__ names the package

    If both are missing, workers import nothing. So they are hidden until the block ends.
    """
    names = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {}
    for name in ("__file__", "__spec__"):
        if name in names:
            hidden[name] = names.pop(name)
    names["__spec__"] = None  # `multiprocessing` requires this one, but it may be None
    try:
        yield
    finally:
        names.update(hidden)


# In a worker


def _start_worker(
    exit_receiver: Connection,
    inherited_sender: Connection | None,
    progress_sender: Connection,
) -> None:
    """Prepare a worker process: let it end with its owner, and report progress to the owner.

    The owner is the process that has started the worker. If the owner is killed, nobody is left to
    end the worker. So the two are connected by a pipe, through which nothing is ever sent:

        owner  (sender) ═════════════ (receiver)  worker

    When the owner ends, the system closes the sender. The worker notices that at its end, and
    exits.

    Args:
        exit_receiver: The worker's end of this pipe.
        inherited_sender: The owner's end, if the worker was forked, and so has a copy of it.
        progress_sender: Another pipe, through which the worker reports its progress.
    """

    def send(report: TaskReport) -> None:
        """Send a report to the owner, or drop it if the pipe is full."""
        with suppress(OSError):
            progress_sender.send(report)

    set_progress_receiver(send)

    # A forked worker begins as a copy of its owner. It must not keep what only the owner should
    # have: the owner's end of the pipe, which counts as closed only once all copies are, and the
    # pipe to which Python writes the signals that the owner receives.
    if inherited_sender is not None:
        inherited_sender.close()
        signal.set_wakeup_fd(-1)
    # Let SIGTERM end the worker at once, even if its owner handles this signal in another way.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    # Wait for the end of the owner in a thread, while the worker runs tasks.
    thread = threading.Thread(
        target=_exit_with_owner, args=(exit_receiver,), daemon=True, name="end-with-owner"
    )
    thread.start()


def _exit_with_owner(exit_receiver: Connection) -> None:
    """Wait until the process that started this worker has ended, and then end this worker, too.

    The owner never sends anything through the pipe. When it ends, in whatever way, the system
    closes its side of the pipe, which ends the waiting.

    Args:
        exit_receiver: This worker's side of the pipe.
    """
    try:
        exit_receiver.poll(None)
    finally:
        os._exit(1)
