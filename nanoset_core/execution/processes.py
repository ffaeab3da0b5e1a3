"""Work spread over a pool of processes that dies with its owner, or over another executor."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
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
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from nanoset_core.errors import NanosetError
from nanoset_core.execution.interruption import ignore_sigint
from nanoset_core.execution.progress import Progress, tell, tell_by

Task = TypeVar("Task")
Result = TypeVar("Result")
Handle = TypeVar("Handle")
_IN_FLIGHT = 2
"""Tasks for each worker: one in work, one ready when it ends. More take quadratic time to wait for."""
_GROUPS = Path("/sys/fs/cgroup")
_LOOK_SECONDS = 0.5
"""Between two looks at what workers tell, while none of them ends a task."""


class Executor(Protocol):
    """Another place to do work in than processes of this machine."""

    def run(
        self, work: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[int, Result]]:
        """Run `work` on every task; yield (task number, result) as they end. The first error ends
        the run.
        """
        ...


def available_processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory() -> int:
    """Return the bytes that this process could still take by the machine, its own limit and its
    control groups; caches of files count as free."""
    page = os.sysconf("SC_PAGE_SIZE")
    free = [os.sysconf("SC_AVPHYS_PAGES") * page]
    with suppress(OSError, ValueError, KeyError):
        free[0] = _counts(Path("/proc/meminfo"))["MemAvailable:"] * 1024
    with suppress(OSError, ValueError, IndexError):
        limit, pages = (
            resource.getrlimit(resource.RLIMIT_AS)[0],
            Path("/proc/self/statm").read_text("utf-8").split()[0],
        )
        free += [] if limit == resource.RLIM_INFINITY else [limit - int(pages) * page]
    with suppress(OSError, ValueError, IndexError):
        own = _GROUPS / Path("/proc/self/cgroup").read_text("utf-8").splitlines()[-1].split(":", 2)[
            2
        ].lstrip("/")
        for group in (own, *own.parents):
            with suppress(OSError, ValueError, KeyError):  # without a limit, or above all groups
                used = (
                    int((group / "memory.current").read_text("utf-8"))
                    - _counts(group / "memory.stat")["file"]
                )
                free.append(int((group / "memory.max").read_text("utf-8")) - used)
    return max(0, min(free))


def _counts(path: Path) -> dict[str, int]:
    return {
        name: int(count) for name, count, *_ in map(str.split, path.read_text("utf-8").splitlines())
    }


def run_tasks(
    work: Callable[[Task], Result],
    tasks: Iterable[Task],
    workers: int,
    executor: Executor | None = None,
) -> Iterator[tuple[int, Result]]:
    """Run `work` on every task in up to `workers` processes; yield (task number, result) as they
    end.

    An `executor` runs all tasks in its own way instead, whatever `workers` says.

    The first error ends the run: tasks not yet started are dropped, those under way are awaited.
    When the caller is interrupted, or closes the iterator, workers are ended at once. `work` must
    be importable by name.

    Raises:
        NanosetError: a worker process was killed from outside (often by the system for want of
            memory).
    """
    if executor is not None:
        yield from executor.run(work, tasks)
        return
    waiting = iter(tasks)
    known = list(islice(waiting, workers)) if workers > 1 else []
    if len(known) > 1:
        with _Pool(len(known), "spawn") as pool:
            yield from pool.run(work, chain(known, waiting))
        return
    for number, task in enumerate(chain(known, waiting)):
        yield number, work(task)


@contextmanager
def forked_workers(workers: int) -> Iterator[Executor | None]:
    """Fork worker processes, which begin with all that this one has loaded.

    None where there would be one worker only, and where forking is not safe: beside other threads,
    which may hold locks, and on systems whose libraries do not support it.
    """
    if workers <= 1 or sys.platform != "linux" or threading.active_count() > 1:
        yield None
        return
    with _Pool(workers, "fork") as pool:
        yield pool


class _Pool:
    """An Executor of processes that die with their owner."""

    def __init__(self, workers: int, method: str) -> None:
        context = multiprocessing.get_context(method)
        with ignore_sigint():  # or a terminal's hang-up ends the process that takes care of locks
            resource_tracker.ensure_running()
        # The system closes our end when this process ends, in whatever way; workers wait for that.
        self._theirs, self._ours = context.Pipe(duplex=False)
        self._workers = workers
        self._heard, self._told = context.Pipe(duplex=False)
        os.set_blocking(self._told.fileno(), False)  # nobody may be there to read it
        ends = (self._theirs, self._ours if method == "fork" else None, self._told)
        self._pool = ProcessPoolExecutor(
            workers, mp_context=context, initializer=_end_with_owner, initargs=ends
        )
        if method == "fork":  # all of them at once, before there are threads
            with ignore_sigint(), warnings.catch_warnings():
                # of threads, which are not Python's
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pool.submit(os.getpid)

    def run(
        self, work: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[int, Result]]:
        """Run `work` on every task, one run at a time; see run_tasks."""
        pending: dict[Future[Result], int] = {}

        def ended() -> list[Future[Result]]:
            done = wait(pending, _LOOK_SECONDS, FIRST_COMPLETED).done
            while self._heard.poll():
                tell(self._heard.recv())
            return sorted(done, key=pending.__getitem__)

        def submit(task: Task) -> Future[Result]:
            return _submit(self._pool, work, task)

        try:
            yield from bounded(
                tasks, submit, ended, self._workers * _IN_FLIGHT, lambda one: one.result(), pending
            )
        except BrokenProcessPool as error:
            # ends a worker that was being started when another died; the pool does not know it
            self._ours.close()
            found = "it ended without a result, as when the system runs out of memory"
            remedy = "run again (what is finished is kept), with fewer workers if memory is short"
            name = getattr(work, "__name__", None)
            raise NanosetError(
                "a worker process was killed", where=name, found=found, remedy=remedy
            ) from error
        except BaseException as error:
            self._end_at_once(error)
            raise

    def _end_at_once(self, error: object) -> None:
        """End workers in mid-task where the run was interrupted, or its iterator closed."""
        if isinstance(error, BaseException) and not isinstance(error, Exception):
            self._ours.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end_at_once(exception[1])
        self._pool.shutdown(wait=True, cancel_futures=True)
        for end in (self._ours, self._theirs, self._told, self._heard):
            end.close()


def bounded(
    tasks: Iterable[Task],
    submit: Callable[[Task], Handle],
    wait_for: Callable[[], Iterable[Handle]],
    most: int,
    result: Callable[[Handle], Result],
    pending: dict[Handle, int],
) -> Iterator[tuple[int, Result]]:
    """Keep up to `most` tasks under way, in their order; all of them at once would take memory for
    all.

    `submit` gives a task's handle, `wait_for` waits until some have ended, `result` takes one of
    these, and an error of it ends the loop; `pending` is filled with handle → task number of what
    is under way.
    """
    waiting = enumerate(tasks)
    while True:
        for number, task in islice(waiting, most - len(pending)):
            pending[submit(task)] = number
        if not pending:
            return
        for handle in wait_for():
            yield pending.pop(handle), result(handle)


def _submit(
    pool: ProcessPoolExecutor, work: Callable[[Task], Result], task: Task
) -> Future[Result]:
    """Submit a task, which may start a worker; BrokenProcessPool also where another died at that
    moment.
    """
    try:
        with _without_main(), ignore_sigint():
            return pool.submit(work, task)
    except OSError as error:
        if error.errno not in (None, errno.EPIPE):
            raise
        raise BrokenProcessPool("a worker died while another was started") from error


@contextmanager
def _without_main() -> Iterator[None]:
    """Start workers without running the caller's script again in each.

    A spawned process imports the main module of its owner, in case the work was defined there. Ours
    never is, and a script without an `if __name__ == "__main__"` guard, or one read from a pipe,
    would fail.
    """
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {
        name: main.__dict__[name] for name in ("__file__", "__spec__") if name in main.__dict__
    }
    main.__dict__.pop("__file__", None)
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)


def _end_with_owner(owner: Connection, its_end: Connection | None, told: Connection) -> None:
    """Exit this worker when its owner does, or by SIGTERM, and tell the owner how tasks come on; a
    forked one drops the owner's end of the pipe and its handlers."""

    def tell_owner(progress: Progress) -> None:
        with suppress(OSError):  # a full pipe takes no part of it
            told.send(progress)

    tell_by(tell_owner)
    if its_end is not None:
        its_end.close()
        signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def watch() -> None:
        try:
            owner.poll(None)  # nothing is ever sent: it returns when the other end is closed
        finally:
            os._exit(1)

    threading.Thread(target=watch, daemon=True, name="end-with-owner").start()
