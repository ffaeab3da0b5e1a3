"""Writing a range of shards with any engine: the same bytes from each, what is there already is left alone."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from nanoset_core.config.webdataset import ShuffleEngine
from nanoset_core.errors import StaleError, StorageError
from nanoset_core.execution.processes import Executor, run_tasks
from nanoset_core.execution.progress import Progress, ProgressCallback, silent
from nanoset_core.shuffling.contexts import TokenSource
from nanoset_core.shuffling.engines import buckets
from nanoset_core.shuffling.engines.choice import (
    bytes_for,
    choose_engine,
    default_budget,
    free_memory,
    least_bytes,
    row_bytes,
    rows_held,
    runs_within,
)
from nanoset_core.shuffling.engines.gather_engines import write_mapped, write_tiled
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.receipts import read_receipts, send_tars, sources_digest, write_receipt
from nanoset_core.shuffling.shards import TarFacts, output_bytes
from nanoset_core.storage.access import FileAccess, for_a_task
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.scratch import claim_scratch, sweep_abandoned
from nanoset_core.tokenization.files import stamp

_SHARDS_AT_ONCE = 8  # of the mmap engine's tasks


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
    access: FileAccess | None = None
    """How the file is reached, where it lives in a store."""

    def open(self) -> TokenSource:
        """The source, its file mapped.

        Raises:
            StaleError: the file has another size by now.
        """
        dtype = np.dtype(self.dtype)
        stored = None if self.access is None else TokenSource.stored(self.name, self.access, self.path, dtype)
        found = self.path.stat().st_size if stored is None else stored.tokens.nbytes
        if found != self.tokens * dtype.itemsize:
            raise StaleError(
                "the file of a source does not hold its tokens",
                where=self.path,
                found=f"{found} bytes",
                expected=f"{self.tokens} tokens of {dtype.itemsize} bytes",
                remedy="plan the shuffle again",
            )
        if stored is not None:
            return stored
        mapped = np.memmap(self.path, dtype, mode="r") if self.tokens else np.empty(0, dtype)
        return TokenSource(self.name, mapped, self.path)


def source_files(sources: Sequence[TokenSource]) -> list[SourceFile] | None:
    """The sources as tasks carry them; None when one of them has no file."""
    if any(source.path is None for source in sources):
        return None
    return [
        SourceFile(source.name, source.path, source.tokens.dtype.name, len(source.tokens), source.access)
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
    access: FileAccess | None = None
    bucket: buckets.Bucket | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How shards are written; nothing of it reaches their bytes."""

    engine: ShuffleEngine = "auto"
    """`auto`, `mmap`, `tiled` or `buckets`: see `choose_engine`."""
    memory_bytes: int | None = None
    """For all workers together, without the system's cache of files; None = see `choose_engine`."""
    scratch: Path | None = None
    """Where buckets lie, in a folder of this run's own; None = within the folder of the tars."""
    workers: int = 1
    """Processes; 1 when a source has no path."""
    executor: Executor | None = None
    """Where else the work is done; each of its workers then gets the memory of one of `workers`."""
    listener: ProgressCallback = silent
    """Told about progress."""
    name: str = "shards"
    """What the listener is told is being written."""
    access: FileAccess | None = None
    """How the folder is reached, where it is one of outputs that live in a store: each tar is sent there, and then its
    receipt, by whoever made it. What is there already is what the store has."""


def write_shards(
    plan: ShufflePlan,
    sources: Sequence[TokenSource],
    shards: Iterable[int],
    folder: Path,
    options: WriteOptions,
    *,
    made_from: str | None = None,
    again: bool = False,
) -> list[TarFacts]:
    """Write these shards of the plan into a folder, each whole or not at all, and return their facts, ascending.

    Args:
        plan: decides every byte.
        sources: the plan's; those with a `path` can be read by several workers.
        shards: numbers of the shards.
        folder: where the tars go, with receipts in `.shards` by which a later call knows what is done.
        options: how they are written.
        made_from: digest of plan and tokens: shards with receipts for another are made again. None = by the sources'
            files.
        again: make shards though they are there.

    Raises:
        StaleError: sources or compressor are not the plan's.
        ConfigError: the memory does not hold one shard.
        StorageError: the disk is full; shards that were whole by then stay, and the next call goes on after them.
    """
    plan.check_sources(sources)
    plan.check_compressor()
    numbers = sorted(set(shards))
    for shard in numbers:
        plan.shard_ranks(shard)
    folder.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(folder)
    made_from = made_from if made_from is not None else sources_digest(plan, sources)
    facts = {} if again else read_receipts(folder, numbers, made_from, options.access)
    todo = [shard for shard in numbers if shard not in facts]
    if source_files(sources) is None:
        options = replace(options, workers=1, executor=None)
    run = _Run(plan, sources, folder, made_from, options, len(todo))
    room = f"room for the shards in {folder}, and for buckets in {run.scratch}"
    with explained(folder, expected=room), contextlib.closing(run.write(todo)) as finished:
        facts |= {fact.shard: fact for fact in finished}
    return [facts[shard] for shard in numbers]


@dataclass(frozen=True, slots=True)
class _Run:
    """One call of `write_shards`."""

    plan: ShufflePlan
    sources: Sequence[TokenSource]
    folder: Path
    made_from: str
    options: WriteOptions
    total: int

    @property
    def scratch(self) -> Path:
        return self.options.scratch or self.folder

    def write(self, todo: list[int]) -> Generator[TarFacts]:
        """Facts of the shards as they are finished, in any order."""
        if not todo:
            return
        options, available = self.options, free_memory()
        budget = options.memory_bytes
        if budget is None:
            budget = default_budget(self.plan, available, options.workers)
        if options.access is not None and options.access.room is not None:
            budget = min(budget, options.workers * self._within(options.access.room // 2))
        # Of sources in a store, what was brought has to go again: the other engines read here and there.
        in_store = any(source.access is not None for source in self.sources)
        choice = choose_engine(
            self.plan,
            available,
            engine="tiled" if in_store else options.engine,
            memory_bytes=budget,
            workers=options.workers,
            shards=len(todo),
        )
        if choice.engine == "mmap":
            rows = _SHARDS_AT_ONCE * self.plan.shard_size
            yield from self._finish(_write_mapped, [self._task(run) for run in runs_within(self.plan, todo, rows)])
            return
        rows = rows_held(self.plan, budget // options.workers)
        runs = list(runs_within(self.plan, todo, rows))
        if choice.engine == "tiled":
            yield from self._finish(_write_tiled, [self._task(run) for run in runs])
        else:
            yield from self._through_buckets(runs, budget // 2)

    def _within(self, room: int) -> int:
        """Memory for so many rows that their tars have room on the disk together; one shard's at least."""
        rows = room * self.plan.contexts // max(output_bytes(self.plan)[0], 1)
        return max(bytes_for(self.plan, rows), least_bytes(self.plan))

    def _through_buckets(self, runs: Sequence[range], chunk_bytes: int) -> Generator[TarFacts]:
        if self.scratch != self.folder:
            self.scratch.mkdir(parents=True, exist_ok=True)
            sweep_abandoned(self.scratch)
        with claim_scratch(self.scratch / "buckets") as own:
            made = buckets.make_buckets(self.plan, runs, own)
            _check_room(self.scratch, buckets.scratch_bytes(self.plan, made))
            files = source_files(self.sources)
            sources = self.sources if files is None else [file.open() for file in files]
            buckets.distribute(self.plan, sources, made, chunk_bytes, self._distributing)
            yield from self._finish(_write_bucket, [self._task(bucket.shards, bucket) for bucket in made])

    def _distributing(self, contexts: int) -> None:
        size = row_bytes(self.plan)
        self.options.listener(Progress("buckets", self.options.name, contexts * size, self.plan.table.contexts * size))

    def _task(self, shards: range, bucket: buckets.Bucket | None = None) -> _Task:
        sources: tuple[SourceFile, ...] | Sequence[TokenSource] = ()
        if bucket is None:
            here = self.options.workers <= 1 and self.options.executor is None
            sources = self.sources if here else tuple(source_files(self.sources) or ())
        return _Task(self.plan, sources, shards, self.folder, self.made_from, self.options.access, bucket)

    def _finish(self, work: Callable[[_Task], list[TarFacts]], tasks: Sequence[_Task]) -> Generator[TarFacts]:
        done = 0
        for _, facts in run_tasks(work, tasks, self.options.workers, self.options.executor):
            done += len(facts)
            self.options.listener(Progress("tars", self.options.name, done, self.total, unit="shards"))
            yield from facts


def _write_mapped(task: _Task) -> list[TarFacts]:
    return _with_receipts(task, lambda folder: write_mapped(task.plan, _open(task.sources), task.shards, folder))


def _write_tiled(task: _Task) -> list[TarFacts]:
    return _with_receipts(task, lambda folder: write_tiled(task.plan, _open(task.sources), task.shards, folder))


def _write_bucket(task: _Task) -> list[TarFacts]:
    bucket = task.bucket
    if bucket is None:
        raise TypeError("a task for the bucket engine without a bucket")
    if not bucket.path.exists():  # a worker that died before it could say so had finished
        facts = read_receipts(task.folder, task.shards, task.made_from, task.access)
        if len(facts) == len(task.shards):
            return list(facts.values())
    return _with_receipts(task, lambda folder: buckets.write_bucket(task.plan, bucket, folder))


def _with_receipts(task: _Task, write: Callable[[Path], Generator[TarFacts]]) -> list[TarFacts]:
    """Write tars, each with a receipt that goes where it goes."""
    task.plan.check_compressor()  # a worker may be of another machine
    done = []
    # closing: shards under way are ended before an error leaves
    with _reached(task) as (folder, access), contextlib.closing(write(folder)) as facts:
        for fact in facts:
            write_receipt(folder, fact, task.made_from)
            if access is not None:
                send_tars(access, folder, [fact])
                access.drop([folder / f"{fact.stem}.tar"])
            done.append(fact)
    return done


@contextlib.contextmanager
def _reached(task: _Task) -> Iterator[tuple[Path, FileAccess | None]]:
    """(the folder of the tars as this process reaches it, how, where it is in a store)"""
    if task.access is None:
        yield task.folder, None
        return
    with for_a_task(task.access) as access:
        folder = access.folder / task.access.name(task.folder)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder, access


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
