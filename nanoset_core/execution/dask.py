"""Tasks spread over the workers of a Dask cluster that somebody else runs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

from nanoset_core.errors import ConfigError, MissingError, NanosetError
from nanoset_core.execution.compatibility import KEEP_SECONDS, CompatibilityCheck, compatibility_check
from nanoset_core.execution.processes import bounded
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.workplace import Workplace, working_at

Task = TypeVar("Task")
Result = TypeVar("Result")
Client: TypeAlias = Any
"""distributed.Client; the package has no types."""
Future: TypeAlias = Any
"""The same of distributed.Future."""

CONNECT_SECONDS = 8.0
"""After which a scheduler that does not answer is given up."""
WORKERS_SECONDS = 60.0
"""After which a cluster without workers is given up."""
_LOOK_SECONDS = 5.0
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, slots=True)
class DaskExecutor:
    """Runs tasks on the workers of a Dask cluster, which share nothing with this process but where outputs live."""

    address: str
    """The scheduler's, such as tcp://scheduler:8786."""
    shared: FileAccess
    """How the outputs are reached: all workers must see them, in a bucket or in a folder that all machines share."""
    where: str = "executor.address"
    """What names the address, for messages."""
    files: tuple[Path, ...] = ()
    """What workers may not have, and are brought: see `workplace.at_hand`."""

    def run(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[tuple[int, Result]]:
        """Run `work` on every task; yield (task number, result) as they end.

        The first error ends the run: tasks that have not begun never do. The same where the caller is interrupted, or
        stops listening; those under way end by themselves. A task whose worker dies is given to another: `work` must
        bear to be run twice, even at once.

        Raises:
            ConfigError: `distributed` is not installed, or nothing answers at the address.
            MissingError: a worker does not see the outputs.
            StaleError: a worker has other software.
            NanosetError: no workers, each of several workers died of the same task, or the scheduler is gone.
        """
        if not (known := list(tasks)):
            return
        with self._connected() as client, compatibility_check(self.shared, self.files) as check:
            yield from _Run(client, self.address, check, work).results(known)

    @contextmanager
    def _connected(self) -> Iterator[Client]:
        try:
            import distributed
        except ImportError as error:
            raise ConfigError(
                "the package `distributed` is not installed",
                where=self.where,
                found=str(error),
                remedy="pip install 'nanoset-platform[dask]', or set executor.kind to processes",
            ) from error
        try:
            if self.address.startswith("tcp:"):
                # A client would wait without end for the greeting of a program that takes connections and is mute;
                # in a thread of its own, since this one may run an event loop, as notebooks do.
                with ThreadPoolExecutor(1) as thread:
                    thread.submit(asyncio.run, _greet(self.address, CONNECT_SECONDS)).result()
            new_client: Any = distributed.Client
            client = new_client(self.address, timeout=CONNECT_SECONDS, set_as_default=False, name="nanoset")
        except (OSError, ValueError, RuntimeError) as error:  # TimeoutError is an OSError
            raise ConfigError(
                "no Dask scheduler answers at this address",
                where=self.where,
                found=f"{self.address}: {str(error) or 'it takes connections, and says nothing'}",
                expected=f"an answer within {CONNECT_SECONDS:g} seconds",
                remedy="start it with `dask scheduler`, or correct the address",
            ) from error
        with client:
            yield client


async def _greet(address: str, seconds: float) -> None:
    from distributed import comm as untyped

    connect: Any = untyped.core.connect
    comm = await asyncio.wait_for(connect(address, timeout=seconds), seconds + 1)  # it bounds all but the greeting
    await comm.close()


@dataclass(frozen=True, slots=True)
class _Job(Generic[Task, Result]):
    """A task with its work, as a worker gets it: one object, in which Dask looks for nothing of its own."""

    check: CompatibilityCheck
    work: Callable[[Task], Result]
    task: Task


def _carry_out(job: _Job[Any, Result]) -> Result:
    """On a worker: one task at a time, whatever its number of threads, since engines are made for one.

    Its own folder is the one that Dask gives it (`--local-directory`), and removes after it.
    """
    from distributed import get_worker as untyped

    get_worker: Any = untyped
    folder = Path(get_worker().local_directory) / "nanoset"
    with _one_at_a_time:
        job.check.check()
        with working_at(Workplace(folder, job.check.bring(folder))):
            return job.work(job.task)


class _Run(Generic[Task, Result]):
    """One call of `DaskExecutor.run`."""

    def __init__(self, client: Client, address: str, check: CompatibilityCheck, work: Callable[[Task], Result]) -> None:
        self._client, self._address, self._check, self._work = client, address, check, work
        self._count, self._looked, self._kept = 0, float("-inf"), time.monotonic()

    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Run all tasks; see `DaskExecutor.run`."""
        done: SimpleQueue[Future] = SimpleQueue()

        def submit(task: Task) -> Future:
            future = self._client.submit(_carry_out, _Job(self._check, self._work, task), pure=False)
            future.add_done_callback(done.put)
            return future

        pending: dict[Future, int] = {}
        try:
            yield from bounded(tasks, submit, lambda: [self._next(done)], self._workers, self._result, pending)
        finally:
            self._cancel(list(pending))

    def _next(self, done: SimpleQueue[Future]) -> Future:
        while True:
            try:
                return done.get(timeout=_LOOK_SECONDS)
            except Empty:
                self._workers()

    def _workers(self) -> int:
        """How many workers there are, asked for every few seconds; it waits a while for the first."""
        if time.monotonic() < self._looked + _LOOK_SECONDS:
            return self._count
        if time.monotonic() > self._kept + KEEP_SECONDS:
            self._check.keep()
            self._kept = time.monotonic()
        deadline = time.monotonic() + WORKERS_SECONDS
        while not (count := len(self._ask())):
            if time.monotonic() > deadline:
                raise MissingError(
                    "the Dask cluster has no workers",
                    where=self._address,
                    found=f"none for {WORKERS_SECONDS:g} seconds",
                    remedy=f"start some with `dask worker {self._address} --nthreads 1`, and run again; one that "
                    "cannot load nanoset-platform leaves at its first task: see its log",
                )
            time.sleep(0.25)
        self._count, self._looked = count, time.monotonic()
        return count

    def _ask(self) -> dict[str, int]:
        try:
            return dict(self._client.nthreads())
        except (OSError, RuntimeError) as error:
            raise self._lost(error) from error

    def _result(self, future: Future) -> Result:
        from distributed import KilledWorker

        try:
            found: Result = future.result()
            return found
        except KilledWorker as error:
            raise NanosetError(
                "workers were killed, one after the other, by the same task",
                where=getattr(self._work, "__name__", None),
                found=str(error),
                expected="a result or an error",
                remedy="run again (what is finished is kept), with more memory for each worker if memory is short",
            ) from error
        except CancelledError as error:
            raise self._lost(error) from error
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "nanoset_core":
                raise
            raise _not_installed(self._address, error) from error
        except RuntimeError as error:
            if "deserialization of the task graph" not in str(error):
                raise
            raise _not_installed(self._address, error.__cause__ or error) from error

    def _cancel(self, pending: list[Future]) -> None:
        if pending and self._client.status == "running":
            try:
                self._client.cancel(pending)
            except OSError:
                return  # the scheduler is gone, and the tasks with it

    def _lost(self, error: BaseException) -> NanosetError:
        return NanosetError(
            "the Dask scheduler dropped the tasks",
            where=self._address,
            found=str(error) or type(error).__name__,
            expected="a result or an error of each",
            remedy="see whether it still runs, and run again: what is finished is kept",
        )


def _not_installed(address: str, error: BaseException) -> ConfigError:
    return ConfigError(
        "the Dask scheduler or a worker cannot load this program",
        where=address,
        found=str(error),
        expected="nanoset-platform, in the same version, beside `distributed` on every machine of the cluster",
        remedy="install it there, and start scheduler and workers again",
    )
