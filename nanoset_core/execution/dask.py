"""Tasks spread over the workers of a Dask cluster, which share only the store of the outputs.

While a run has tasks for workers, it keeps a folder in that store. The folder holds a marker, which
a worker has to read there, and files that workers may lack, such as the tokenizer.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import platform
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import astuple, dataclass
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

from nanoset_core.errors import ConfigError, MissingError, NanosetError, StaleError, StorageError
from nanoset_core.execution.dask_connection import TOPIC, Connection, DaskCluster, Told, connected
from nanoset_core.execution.processes import bounded
from nanoset_core.execution.progress import (
    Progress,
    ProgressCallback,
    Waiting,
    hearing,
    silent,
    tell,
)
from nanoset_core.records.text import format_age
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import new_mark, sha256_file
from nanoset_core.storage.leases import is_live, kept_fresh
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.store import Store
from nanoset_core.storage.working_copies import WorkerFolder, working_at
from nanoset_core.untrusted import safe_logger

Task = TypeVar("Task")
Result = TypeVar("Result")
Future: TypeAlias = Any
"""distributed.Future; the package has no types."""

FOLDER = ".workers"
"""Below the root; holds the folders of all runs."""
_MARKER = "marker"
_SEEN_WITHIN_SECONDS = 3.0
"""How long a file that another machine wrote may take to appear on a network's file system."""
_WRITERS = ("numpy", "pyarrow", "tokenizers", "orjson", "isal")
"""Packages that tokens or files go through."""
_LOOK_SECONDS = 5.0
"""Between two looks at the workers."""
_PAUSE_SECONDS = 0.5
"""The same where there are none."""
_HANDED_OUT = 4096
"""Tasks that are handed out from the start: a cluster that grows with its work starts no worker
without.
"""
logger = safe_logger(__name__)
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, slots=True)
class DaskExecutor:
    """Runs tasks on the workers of a Dask cluster, which share only the store of the outputs with
    this process.
    """

    cluster: DaskCluster
    """Where the workers are."""
    shared: FileAccess
    """How the outputs are reached: all workers must see them, in a bucket or in a folder that all
    machines share.
    """
    files: tuple[Path, ...] = ()
    """Files that workers may lack, and download: see `local_copy_of` in
    `storage/working_copies.py`.
    """
    listener: ProgressCallback = silent
    """Called with what is waited for."""

    def run(
        self, work: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[int, Result]]:
        """Run `work` on every task; yield (task number, result) as they end.

        Tasks are handed out before there are workers, so that a cluster can grow with its work. The
        first error ends the run: tasks that have not begun never do. The same where the caller is
        interrupted, or closes the iterator; those under way end by themselves. A task whose worker
        dies is given to another: `work` must allow to be run twice, even at once.

        Raises:
            ConfigError: `distributed` is not installed, or no scheduler answers in time.
            MissingError: no workers in time, or a worker does not see the outputs.
            StaleError: a worker has other software.
            NanosetError: each of several workers died of the same task, or the scheduler is gone.
        """
        waiting = iter(tasks)
        if not (known := list(islice(waiting, 1))):
            return
        with connected(self.cluster) as connection:
            client = connection.open(self.listener)
            with compatibility_check(self.shared, self.files) as check:
                news: SimpleQueue[Future | Told] = SimpleQueue()
                crew, pending = _Crew(connection, client, self.listener), dict[Future, int]()
                ended = _ended(news, crew)

                def submit(task: Task) -> Future:
                    # One object, so that Dask does not search the task.
                    future = client.submit(partial(_carry_out, check, work, task), pure=False)
                    future.add_done_callback(news.put)
                    return future

                result = partial(_result, crew, work)
                connection.hearers[check.place] = news.put
                try:
                    yield from bounded(
                        chain(known, waiting),
                        submit,
                        lambda: [next(ended)],
                        _HANDED_OUT,
                        result,
                        pending,
                    )
                finally:
                    del connection.hearers[check.place]
                    if pending and client.status == "running":
                        # the scheduler is gone, and the tasks with it
                        with contextlib.suppress(OSError):
                            client.cancel(list(pending))


def _carry_out(check: CompatibilityCheck, work: Callable[[Task], Result], task: Task) -> Result:
    """Run a task on a worker: one at a time, whatever its number of threads, since engines are made
    for one.

    Files go to the folder that Dask gives the worker (`--local-directory`), and removes after it.
    """
    from distributed import get_worker as untyped

    get_worker: Any = untyped
    worker = get_worker()
    folder = Path(worker.local_directory) / "nanoset"
    here = f"on the worker {worker.address} of {platform.node()}"

    def tell_owner(told: Told) -> None:
        worker.log_event(
            TOPIC,
            [check.place, *astuple(told)] if isinstance(told, Progress) else [check.place, told],
        )

    with (
        _one_at_a_time,
        hearing(tell_owner),
        _warnings_of_stores(lambda text: tell_owner(f"{text} ({here})")),
    ):
        try:
            check.check()
            with working_at(WorkerFolder(folder, check.download(folder))):
                return work(task)
        except NanosetError as error:
            # After the place, by which a build knows what it may make again.
            raise error.at(f"{error.where}, {here}" if error.where else here) from error


@contextlib.contextmanager
def _warnings_of_stores(hear: Callable[[str], None]) -> Iterator[None]:
    """Hear in the block what is logged of buckets that are waited for."""
    handler, log = logging.Handler(logging.WARNING), logging.getLogger("nanoset_core.storage")
    handler.emit = lambda record: hear(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Crew:
    """Whether a cluster has workers; without, they are waited for as long as the cluster says."""

    def __init__(self, connection: Connection, client: Any, listener: ProgressCallback) -> None:
        self.cluster, self._connection, self._client = connection.cluster, connection, client
        self._waiting = Waiting(
            listener, f"for workers of {self.cluster.name}", connection.wait_seconds
        )

    def look(self) -> float:
        """Look at the workers; return after how many seconds to look again."""
        try:
            workers = len(self._client.nthreads())
        except (OSError, RuntimeError) as error:
            raise _lost(self.cluster, error) from error
        if workers:
            self.seen()
        elif not self._waiting.goes_on():
            self._connection.wait_seconds = 0.0
            raise MissingError(
                "the Dask cluster has no workers",
                where=self.cluster.name,
                found=f"none for {format_age(self.cluster.wait_seconds)}",
                remedy=f"{self.cluster.start_workers}, and run again, or set executor.wait to more; one that cannot "
                "load nanoset-platform leaves at its first task: see its log",
            )
        return _LOOK_SECONDS if workers else _PAUSE_SECONDS

    def seen(self) -> None:
        """Note that there was a worker just now."""
        self._waiting.end()
        self._connection.wait_seconds = self._waiting.limit = self.cluster.wait_seconds


def _ended(news: SimpleQueue[Future | Told], crew: _Crew) -> Iterator[Future]:
    """Yield tasks as they end, and tell what they tell."""
    pause = 0.0
    while True:
        try:
            ended = news.get(timeout=pause)
        except Empty:
            pause = crew.look()
            continue
        crew.seen()
        if isinstance(ended, str):
            logger.warning("%s", ended)
        elif isinstance(ended, Progress):
            tell(ended)
        else:
            yield ended


def _result(crew: _Crew, work: Callable[..., Any], future: Future) -> Any:
    """Return a task's result, which is computed again where its worker ended before it was fetched."""
    from distributed import KilledWorker
    from distributed.comm.core import CommClosedError

    pause = _LOOK_SECONDS
    try:
        while True:
            try:
                return future.result(timeout=pause)
            except TimeoutError:
                if future.status == "error":  # of the task itself
                    raise
                pause = crew.look()
    except KilledWorker as error:
        what, name = (
            "workers were killed, one after the other, by one task",
            getattr(work, "__name__", None),
        )
        remedy = "run again (what is finished is kept), with more memory for each worker if memory is short"
        raise NanosetError(what, where=name, found=str(error), remedy=remedy) from error
    except (CancelledError, CommClosedError) as error:
        raise _lost(crew.cluster, error) from error
    except (ModuleNotFoundError, RuntimeError) as error:
        lacks_us = isinstance(error, ModuleNotFoundError) and (error.name or "").startswith(
            "nanoset_core"
        )
        if not lacks_us and "deserialization of the task graph" not in str(error):
            raise
        raise ConfigError(
            "the Dask scheduler or a worker cannot load this program",
            where=crew.cluster.name,
            found=str(error if lacks_us else error.__cause__ or error),
            expected="nanoset-platform, in the same version, beside `distributed` on every machine of the cluster",
            remedy="install it there, and start scheduler and workers again",
        ) from error


def _lost(cluster: DaskCluster, error: BaseException) -> NanosetError:
    what, found = "the Dask scheduler dropped the tasks", str(error) or type(error).__name__
    remedy = "see whether it still runs, and run again: what is finished is kept"
    return NanosetError(what, where=cluster.name, found=found, remedy=remedy)


@dataclass(frozen=True, slots=True)
class CompatibilityCheck:
    """What a worker must find before it may begin; a task carries it."""

    store: Store
    """Where the outputs live."""
    place: str
    """The run's folder there, as long as the run."""
    token: bytes
    """What the marker in it holds."""
    software: tuple[tuple[str, str], ...]
    """Name → version of what reaches the bytes, as the run's owner has it."""
    files: tuple[tuple[Path, str, str], ...] = ()
    """(path where the run's owner has it, name in the store, hex sha256) of what else is there."""

    def check(self) -> None:
        """Check a worker, from within it.

        StaleError where it runs other software; MissingError where it does not see the marker, or
        the run has ended.
        """
        found = software()
        if found != self.software:
            what = "a worker runs other software than the process that hands out its tasks, and might write other bytes"
            theirs, ours = _format(found, self.software), _format(self.software, found)
            remedy = "install the same versions on all machines, and start the workers again"
            raise StaleError(what, found=theirs, expected=ours, remedy=remedy)
        deadline = time.monotonic() + _SEEN_WITHIN_SECONDS
        while (found_token := self.store.read(f"{self.place}/{_MARKER}")) != self.token:
            if time.monotonic() > deadline:
                raise self._unseen(found_token)
            time.sleep(0.1)

    def download(self, folder: Path) -> dict[Path, Path]:
        """Copy the run's files into a folder of this process, those that are not there yet; → path
        there → copy.

        MissingError where the run has ended; StorageError where the bytes are not those of the run.
        """
        copies = {}
        for path, name, sha256 in self.files:
            # Files of one folder stay together under their names: a tokenizer is read with those
            # next to it.
            together = "".join(
                digest for other, _, digest in self.files if other.parent == path.parent
            )
            copy = folder / hashlib.sha256(together.encode()).hexdigest() / path.name
            copies[path] = copy
            if not copy.is_file() and not self.store.fetch(name, copy, sha256=sha256):
                raise self._unseen(None)
        return copies

    def _unseen(self, seen: bytes | None) -> MissingError:
        what = "a worker reaches another store"
        remedy = "the same endpoint and credentials: see storage.endpoint_url and AWS_ENDPOINT_URL"
        if isinstance(self.store, LocalStore):
            what = "a worker does not see the output folder"
            remedy = (
                "one file system, mounted under the same path, or let raw and root be in a bucket"
            )
        return MissingError(
            what,
            where=self.store.url(),
            found="no such file" if seen is None else "another file of that name",
            expected=f"{self.place}/{_MARKER}, which the run that gives it work wrote there",
            remedy=f"give all machines {remedy}",
        )


@contextlib.contextmanager
def compatibility_check(
    access: FileAccess, files: Sequence[Path] = ()
) -> Iterator[CompatibilityCheck]:
    """Keep a marker, and files that workers may lack, where outputs live until the block ends."""
    store, token = access.store, secrets.token_hex(16).encode()
    place = f"{FOLDER}/{new_mark()}"
    try:
        carried = [
            (path, f"{place}/{number}-{path.name}", sha256_file(path))
            for number, path in enumerate(files)
        ]
        for path, name, digest in carried:
            store.put_file(name, path, sha256=digest, is_new=True)
        with kept_fresh(store, f"{place}/{_MARKER}", lambda: token):
            yield CompatibilityCheck(store, place, token, software(), tuple(carried))
    finally:
        # it is swept later; the error that ended the run counts
        with contextlib.suppress(StorageError):
            _remove(access, place)


def _remove(access: FileAccess, place: str) -> None:
    for found in list(access.store.list(place)):
        access.store.delete(found.name)
    # in a bucket there are no folders, and other runs may have theirs
    with contextlib.suppress(OSError):
        (access.folder / place).rmdir()
        (access.folder / FOLDER).rmdir()


def sweep_runs(access: FileAccess) -> None:
    """Remove the folders of runs that were killed."""
    newest: dict[str, int] = {}
    for found in access.store.list(FOLDER):
        place = found.name.rpartition("/")[0]
        newest[place] = max(newest.get(place, 0), found.written_ns)
    now_ns = access.store.now() if newest else 0
    for place, written_ns in newest.items():
        if not is_live(place.rpartition("/")[2], written_ns, now_ns):
            _remove(access, place)


@lru_cache(maxsize=1)
def software() -> tuple[tuple[str, str], ...]:
    """Return name → version of what reaches the bytes of outputs; of the core itself, a digest of
    its source.
    """
    from importlib.metadata import PackageNotFoundError, version

    found = {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "nanoset_core": _source_digest(),
    }
    for package in _WRITERS:
        found[package] = "none"
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return tuple(found.items())


def _source_digest() -> str:
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _format(these: tuple[tuple[str, str], ...], others: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(
        f"{name} {version}" for name, version in these if (name, version) not in others
    )
