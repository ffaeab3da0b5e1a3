"""Tasks spread over the workers of a Dask cluster that somebody else runs."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nanoset_core.errors import ConfigError, MissingError, NanosetError
from nanoset_core.execution.compatibility import Meeting, meeting_in

if TYPE_CHECKING:
    from distributed import Client, Future

Task = TypeVar("Task")
Result = TypeVar("Result")

CONNECT_SECONDS = 8.0
"""after which a scheduler that does not answer is given up"""
CREW_SECONDS = 60.0
"""after which a cluster without workers is given up"""
_LOOK_SECONDS = 5.0
_IN_FLIGHT = 2
"""tasks handed out for each worker: one that it works on, one that is ready when it ends"""
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, slots=True)
class DaskExecutor:
    """Runs tasks on the workers of a Dask cluster; what they write must be on a file system that all share."""

    address: str
    """the scheduler's, such as tcp://scheduler:8786"""
    shared: Path
    """a folder that the workers must see; outputs lie in it"""
    where: str = "executor.address"
    """what names the address, for messages"""

    def run(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Run `work` on every task; yield (task number, result) as they end.

        The first error ends the run: tasks that have not begun never do. The same where the caller is interrupted, or
        stops listening; those under way end by themselves. A task whose worker dies is given to another: `work` must
        bear to be run twice, even at once.

        Raises:
            ConfigError: `distributed` is not installed, or nothing answers at the address.
            MissingError: a worker does not see the shared folder.
            StaleError: a worker has other software.
            NanosetError: no workers, each of several workers died of the same task, or the scheduler is gone.
        """
        if not tasks:
            return
        with self._connected() as client, meeting_in(self.shared) as meeting:
            yield from _Run(client, self.address, meeting, work).results(tasks)

    @contextmanager
    def _connected(self) -> Iterator[Client]:
        try:
            from distributed import Client
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
            client = Client(self.address, timeout=CONNECT_SECONDS, set_as_default=False, name="nanoset")
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
    from distributed.comm import connect

    comm = await asyncio.wait_for(connect(address, timeout=seconds), seconds + 1)  # it bounds all but the greeting
    await comm.close()


@dataclass(frozen=True, slots=True)
class _Job(Generic[Task, Result]):
    """A task with its work, as a worker gets it: one object, in which Dask looks for nothing of its own."""

    meeting: Meeting
    work: Callable[[Task], Result]
    task: Task


def _carry_out(job: _Job[Any, Result]) -> Result:
    """On a worker: one task at a time, whatever its number of threads, since engines are made for one."""
    with _one_at_a_time:
        job.meeting.check()
        return job.work(job.task)


class _Run(Generic[Task, Result]):
    """One call of `DaskExecutor.run`."""

    def __init__(self, client: Client, address: str, meeting: Meeting, work: Callable[[Task], Result]) -> None:
        self._client, self._address, self._meeting, self._work = client, address, meeting, work
        self._crew, self._looked = 0, float("-inf")

    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Keep a bounded number of tasks with the cluster."""
        waiting = enumerate(tasks)
        pending: dict[Future, int] = {}
        done: SimpleQueue[Future] = SimpleQueue()
        try:
            while True:
                for number, task in islice(waiting, max(0, self._workers() * _IN_FLIGHT - len(pending))):
                    future = self._client.submit(_carry_out, _Job(self._meeting, self._work, task), pure=False)
                    pending[future] = number
                    future.add_done_callback(done.put)
                if not pending:
                    return
                future = self._next(done)
                yield pending.pop(future), self._result(future)
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
            return self._crew
        os.utime(self._meeting.marker)  # one that nothing touches for an hour would be swept as left behind
        deadline = time.monotonic() + CREW_SECONDS
        while not (crew := len(self._ask())):
            if time.monotonic() > deadline:
                raise MissingError(
                    "the Dask cluster has no workers",
                    where=self._address,
                    found=f"none for {CREW_SECONDS:g} seconds",
                    remedy=f"start some with `dask worker {self._address} --nthreads 1`, and run again; one that "
                    "cannot load nanoset-platform leaves at its first task: see its log",
                )
            time.sleep(0.25)
        self._crew, self._looked = crew, time.monotonic()
        return crew

    def _ask(self) -> dict[str, int]:
        try:
            return self._client.nthreads()
        except (OSError, RuntimeError) as error:
            raise self._lost(error) from error

    def _result(self, future: Future) -> Result:
        from distributed import KilledWorker

        try:
            return future.result()
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
