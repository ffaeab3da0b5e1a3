"""Writing a range of shards with any engine: the same bytes from each, what is there already is left alone."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from nanoset_core.errors import StaleError, StorageError
from nanoset_core.execution.processes import Executor, run_tasks
from nanoset_core.execution.progress import Listener, Progress, silent
from nanoset_core.shuffling.contexts import TokenSource
from nanoset_core.shuffling.engines import buckets
from nanoset_core.shuffling.engines.choice import (
    choose_engine,
    default_budget,
    free_memory,
    row_bytes,
    rows_held,
    runs_within,
)
from nanoset_core.shuffling.engines.gather_engines import write_mapped, write_tiled
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.receipts import read_receipts, sources_digest, write_receipt
from nanoset_core.shuffling.shards import TarFacts
from nanoset_core.storage.scratch import claim_scratch, sweep_abandoned
from nanoset_core.tokenization.tokenizer import stamp

_SHARDS_AT_ONCE = 8  # of the mmap engine's tasks
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A source whose tokens are a file's, as a task for a worker process carries it."""

    name: str
    """Name of the source."""
    path: Path
    """File that holds its tokens and nothing else."""
    dtype: str
    """Their dtype."""
    tokens: int
    """How many."""

    def open(self) -> TokenSource:
        """The source, its file mapped. Raises StaleError when the file has another size by now."""
        dtype = np.dtype(self.dtype)
        found = self.path.stat().st_size
        if found != self.tokens * dtype.itemsize:
            raise StaleError(
                "the file of a source does not hold its tokens",
                where=self.path,
                found=f"{found} bytes",
                expected=f"{self.tokens} tokens of {dtype.itemsize} bytes",
                remedy="plan the shuffle again",
            )
        mapped = np.memmap(self.path, dtype, mode="r") if self.tokens else np.empty(0, dtype)
        return TokenSource(self.name, mapped, self.path)


def source_files(sources: Sequence[TokenSource]) -> list[SourceFile] | None:
    """The sources as tasks carry them; None when one of them has no file."""
    if any(source.path is None for source in sources):
        return None
    return [
        SourceFile(source.name, source.path, source.tokens.dtype.name, len(source.tokens))
        for source in sources
        if source.path is not None
    ]


@dataclass(frozen=True, slots=True)
class _Task:
    """Some neighbouring shards, for one worker."""

    plan: ShufflePlan
    sources: tuple[SourceFile, ...] | Sequence[TokenSource]
    """The sources themselves where this process does all the work."""
    shards: range
    folder: Path
    made_from: str
    bucket: buckets.Bucket | None = None


def write_shards(
    plan: ShufflePlan,
    sources: Sequence[TokenSource],
    shards: Iterable[int],
    folder: Path | str,
    *,
    engine: str = "auto",
    memory_bytes: int | None = None,
    scratch: Path | str | None = None,
    workers: int = 1,
    executor: Executor | None = None,
    listener: Listener = silent,
    name: str = "shards",
    made_from: str | None = None,
    again: bool = False,
) -> list[TarFacts]:
    """Write these shards of the plan into ``folder``, each whole or not at all, and return their facts, ascending.

    Args:
        plan: decides every byte.
        sources: the plan's; those with a ``path`` can be read by several workers.
        shards: numbers of the shards.
        folder: where the tars go, with notes in ``.shards`` by which a later call knows what is done.
        engine: ``auto``, ``mmap``, ``tiled`` or ``buckets``: see `choose_engine`.
        memory_bytes: for all workers together, without the system's cache of files; None = see `choose_engine`.
        scratch: where buckets lie, in a folder of this run's own; None = within ``folder``.
        workers: processes; 1 when a source has no path.
        executor: where else the work is done; each of its workers then gets the memory of one of ``workers``.
        listener: told about progress.
        name: what the listener is told is being written.
        made_from: digest of plan and tokens: shards noted under another are made again. None = by the sources' files.
        again: make shards though they are there.

    Raises StaleError where sources or compressor are not the plan's, ConfigError for a budget below one shard,
    StorageError for a full disk; shards that were whole by then stay, and the next call goes on after them.
    """
    plan.check_sources(sources)
    plan.check_compressor()
    folder, numbers = Path(folder), sorted(set(shards))
    for shard in numbers:
        plan.shard_ranks(shard)
    folder.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(folder)
    made_from = made_from if made_from is not None else sources_digest(plan, sources)
    facts = {} if again else read_receipts(folder, numbers, made_from)
    todo = [shard for shard in numbers if shard not in facts]
    if source_files(sources) is None:
        workers, executor = 1, None
    scratch = Path(scratch) if scratch is not None else folder
    run = _Run(plan, sources, folder, made_from, scratch, workers, executor, listener, name, len(todo))
    with _explained(folder, scratch), contextlib.closing(run.write(todo, engine, memory_bytes)) as finished:
        facts |= {fact.shard: fact for fact in finished}
    return [facts[shard] for shard in numbers]


@dataclass(frozen=True, slots=True)
class _Run:
    """One call of `write_shards`."""

    plan: ShufflePlan
    sources: Sequence[TokenSource]
    folder: Path
    made_from: str
    scratch: Path
    workers: int
    executor: Executor | None
    listener: Listener
    name: str
    total: int

    def write(self, todo: list[int], engine: str, memory_bytes: int | None) -> Generator[TarFacts]:
        """Facts of the shards as they are finished, in any order."""
        if not todo:
            return
        available = free_memory()
        budget = memory_bytes if memory_bytes is not None else default_budget(self.plan, available, self.workers)
        choice = choose_engine(
            self.plan, available, engine=engine, memory_bytes=budget, workers=self.workers, shards=len(todo)
        )
        if choice.engine == "mmap":
            rows = _SHARDS_AT_ONCE * self.plan.shard_size
            yield from self._finish(_write_mapped, [self._task(run) for run in runs_within(self.plan, todo, rows)])
            return
        rows = rows_held(self.plan, budget // self.workers)
        runs = list(runs_within(self.plan, todo, rows))
        if choice.engine == "tiled":
            yield from self._finish(_write_tiled, [self._task(run) for run in runs])
        else:
            yield from self._through_buckets(runs, budget // 2)

    def _through_buckets(self, runs: Sequence[range], chunk_bytes: int) -> Generator[TarFacts]:
        if self.scratch != self.folder:
            self.scratch.mkdir(parents=True, exist_ok=True)
            sweep_abandoned(self.scratch)
        with claim_scratch(self.scratch / "buckets") as own:
            dealt = buckets.make_buckets(self.plan, runs, own)
            _check_room(self.scratch, buckets.scratch_bytes(self.plan, dealt))
            files = source_files(self.sources)
            sources = self.sources if files is None else [file.open() for file in files]
            buckets.distribute(self.plan, sources, dealt, chunk_bytes, self._dealing)
            yield from self._finish(_write_bucket, [self._task(bucket.shards, bucket) for bucket in dealt])

    def _dealing(self, contexts: int) -> None:
        size = row_bytes(self.plan)
        self.listener(Progress("buckets", self.name, contexts * size, self.plan.table.contexts * size))

    def _task(self, shards: range, bucket: buckets.Bucket | None = None) -> _Task:
        sources: tuple[SourceFile, ...] | Sequence[TokenSource] = ()
        if bucket is None:
            here = self.workers <= 1 and self.executor is None
            sources = self.sources if here else tuple(source_files(self.sources) or ())
        return _Task(self.plan, sources, shards, self.folder, self.made_from, bucket)

    def _finish(self, work: Callable[[_Task], list[TarFacts]], tasks: Sequence[_Task]) -> Generator[TarFacts]:
        done = 0
        for _, facts in run_tasks(work, tasks, self.workers, self.executor):
            done += len(facts)
            self.listener(Progress("tars", self.name, done, self.total, unit="shards"))
            yield from facts


def _write_mapped(task: _Task) -> list[TarFacts]:
    return _noted(task, write_mapped(task.plan, _open(task.sources), task.shards, task.folder))


def _write_tiled(task: _Task) -> list[TarFacts]:
    return _noted(task, write_tiled(task.plan, _open(task.sources), task.shards, task.folder))


def _write_bucket(task: _Task) -> list[TarFacts]:
    if task.bucket is None:
        raise TypeError("a task for the bucket engine without a bucket")
    if not task.bucket.path.exists():  # a worker that died before it could say so had finished
        facts = read_receipts(task.folder, task.shards, task.made_from)
        if len(facts) == len(task.shards):
            return list(facts.values())
    return _noted(task, buckets.write_bucket(task.plan, task.bucket, task.folder))


def _noted(task: _Task, facts: Generator[TarFacts]) -> list[TarFacts]:
    task.plan.check_compressor()  # a worker may be of another machine
    noted = []
    with contextlib.closing(facts):  # shards under way are ended before an error leaves
        for fact in facts:
            write_receipt(task.folder, fact, task.made_from)
            noted.append(fact)
    return noted


def _open(sources: tuple[SourceFile, ...] | Sequence[TokenSource]) -> Sequence[TokenSource]:
    files = tuple(source for source in sources if isinstance(source, SourceFile))
    if files:
        return _mapped(files, tuple(stamp(file.path) for file in files))
    return [source for source in sources if isinstance(source, TokenSource)]


@lru_cache(maxsize=1)
def _mapped(files: tuple[SourceFile, ...], _stamps: object) -> tuple[TokenSource, ...]:
    return tuple(file.open() for file in files)


def _check_room(scratch: Path, needed: int) -> None:
    free = shutil.disk_usage(scratch).free
    if free < needed:
        raise StorageError(
            "too little room for the buckets",
            where=scratch,
            found=f"{free:,} bytes free",
            expected=f"{needed:,} bytes",
            remedy="name a scratch folder on a larger disk, give more memory, or take the engine tiled (no scratch)",
        )


@contextlib.contextmanager
def _explained(folder: Path, scratch: Path) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise StorageError(
            "the disk is full",
            where=error.filename or folder,
            found=str(error),
            expected=f"room for the shards in {folder}, and for buckets in {scratch}",
            remedy="make room and run again: finished shards are kept, nothing else was",
        ) from error
