"""Write shards of a plan: the same bytes from each engine; shards that are there already are left alone.

The engines differ in how the rows of a run of shards are gathered: `mmap` gathers each tile from the mapped sources as
it is written, `tiled` holds the rows of the whole run, read in one sweep over the sources, and `buckets` reads them
from a spill file, to which one sweep for all runs wrote them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.config.webdataset import ShuffleEngine
from nanoset_core.execution.processes import Executor, run_tasks
from nanoset_core.execution.progress import Progress, ProgressCallback, silent
from nanoset_core.shuffling import sizing, spill
from nanoset_core.shuffling.markers import read_markers, send_tars, write_marker
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.shards import Fill, TarFacts, output_bytes, write_tar
from nanoset_core.shuffling.sources import BLOCK_BYTES, TokenSource, gather, opened_once
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import claim_scratch, fsync_folder, sweep_abandoned
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.working_copies import for_a_task
from nanoset_core.tokenization.files import stat_signature

_MAPPED_SHARDS = 8  # in a task of the mmap engine
_SHARDS_AT_ONCE = {"npy": 3, "json.gz": 2}  # while one goes to the disk, the next ones are made
_STORED_BYTES = 64 << 20  # so much at once takes several requests, which are on their way together


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How shards are written; nothing of it reaches their bytes."""

    engine: ShuffleEngine = "auto"
    """`auto`, `mmap`, `tiled` or `buckets`: see `choose_engine`."""
    memory_bytes: int | None = None
    """For all workers together, without the system's cache of files; None = see `choose_engine`."""
    scratch: Path | None = None
    """Where spill files go, in a folder of this run's own; None = within the folder of the tars."""
    workers: int = 1
    """Processes."""
    executor: Executor | None = None
    """Where else the work is done; each of its workers then gets the memory of one of `workers`."""
    listener: ProgressCallback = silent
    """Progress callback."""
    name: str = "shards"
    """What progress reports call the output."""
    access: FileAccess | None = None
    """How the folder is reached, where it is one of outputs that are in a store: each tar is sent there, and then its
    marker, by the worker that made it. What is there already is what the store has."""


@dataclass(frozen=True, slots=True)
class _Task:
    """Some neighbouring shards, for one worker."""

    plan: ShufflePlan
    sources: tuple[TokenSource, ...]
    shards: range
    folder: Path
    made_from: str
    access: FileAccess | None
    hold: bool
    """Whether all rows of the run are held in memory."""
    spilled: Path | None = None
    """Its spill file, where its rows are in one."""


def write_shards(
    plan: ShufflePlan,
    sources: Sequence[TokenSource],
    shards: Iterable[int],
    folder: Path,
    options: WriteOptions,
    *,
    made_from: str,
    force: bool = False,
) -> list[TarFacts]:
    """Write these shards of the plan into a folder, each whole or not at all, and return their facts, ascending.

    Args:
        plan: decides every byte.
        sources: the plan's.
        shards: numbers of the shards.
        folder: where the tars go, with markers in `.shards` by which a later call knows what is done.
        options: how they are written.
        made_from: digest of plan and tokens: shards with markers for another are made again.
        force: make shards though they are there.

    Raises:
        StaleError: sources or compressor are not the plan's.
        ConfigError: the memory does not hold one shard.
        StorageError: the disk is full; shards that were whole by then stay, and the next call goes on after them.
    """
    plan.check_sources(sources)
    plan.check_compressor()
    numbers = sorted(set(shards))
    plan.shard_ranks(max(numbers, default=0))
    folder.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(folder)
    facts = {} if force else read_markers(folder, numbers, made_from, options.access)
    todo = [shard for shard in numbers if shard not in facts]
    scratch = options.scratch or folder
    if todo:
        with explained(folder, expected=f"room for the shards in {folder}, and for buckets in {scratch}"):
            made = _write_missing(plan, tuple(sources), todo, folder, scratch, options, made_from)
            facts |= {fact.shard: fact for fact in made}
    return [facts[shard] for shard in numbers]


def _write_missing(
    plan: ShufflePlan,
    sources: tuple[TokenSource, ...],
    todo: list[int],
    folder: Path,
    scratch: Path,
    options: WriteOptions,
    made_from: str,
) -> list[TarFacts]:
    available, budget = sizing.free_memory(), options.memory_bytes
    if budget is None:
        budget = sizing.default_budget(plan, available, options.workers)
    if options.access is not None and options.access.capacity is not None:  # rows whose tars fit the scratch quota
        rows = options.access.capacity // 2 * plan.contexts // max(output_bytes(plan)[0], 1)
        budget = min(budget, options.workers * sizing.least_bytes(plan, rows))
    # Other engines read sources in a store at random places, which would fetch all of them.
    in_store = any(source.access is not None for source in sources)
    engine = sizing.choose_engine(
        plan,
        available,
        engine="tiled" if in_store else options.engine,
        memory_bytes=budget,
        workers=options.workers,
        shards=len(todo),
    ).engine
    most = _MAPPED_SHARDS if engine == "mmap" else sizing.shards_held(plan, budget // options.workers)
    tasks = [
        _Task(plan, sources, run, folder, made_from, options.access, engine != "mmap")
        for run in sizing.runs_of(todo, most)
    ]
    if engine != "buckets":
        return _run(tasks, options)
    scratch.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(scratch)
    with claim_scratch(scratch / "buckets") as own:
        tasks = [replace(task, sources=(), spilled=own / f"bucket-{number:06d}") for number, task in enumerate(tasks)]

        def progress(contexts: int) -> None:
            done, total = contexts * plan.row_bytes, plan.table.contexts * plan.row_bytes
            options.listener(Progress("buckets", options.name, done, total))

        files = {task.spilled: task.shards for task in tasks if task.spilled is not None}
        spill.spill_rows(plan, files, budget // 2, partial(_sweep, plan, sources), progress)
        return _run(tasks, options)


def _run(tasks: Sequence[_Task], options: WriteOptions) -> list[TarFacts]:
    total, made = sum(len(task.shards) for task in tasks), list[TarFacts]()
    for number, facts in run_tasks(_write, tasks, options.workers, options.executor):
        made += facts
        if (spilled := tasks[number].spilled) is not None:
            spilled.unlink()
        options.listener(Progress("tars", options.name, len(made), total, unit="shards"))
    return made


def _write(task: _Task) -> list[TarFacts]:
    """Write the tars of a task, each with a marker that goes where the tar goes."""
    plan = task.plan
    plan.check_compressor()  # a worker may be of another machine
    contexts, fill = _rows(task)
    first, done = plan.shard_ranks(task.shards[0])[0], list[TarFacts]()

    def write(shard: int) -> TarFacts:
        begin, end = (rank - first for rank in plan.shard_ranks(shard))
        return write_tar(plan, shard, contexts[begin:end], folder, lambda a, b, out: fill(begin + a, begin + b, out))

    with _reached(task) as (folder, access), ThreadPoolExecutor(_SHARDS_AT_ONCE[plan.settings.member]) as pool:
        try:
            for fact in pool.map(write, task.shards):
                write_marker(folder, fact, task.made_from)
                if access is not None:
                    send_tars(access, folder, [fact])
                    access.drop([folder / f"{fact.stem}.tar"])
                done.append(fact)
        finally:
            pool.shutdown(cancel_futures=True)
        fsync_folder(folder)
    return done


def _rows(task: _Task) -> tuple[NDArray[np.int64], Fill]:
    """Return the context numbers of a run of shards, in their order, and what fills in their rows."""
    plan, table = task.plan, task.plan.table
    if task.spilled is not None:
        contexts, spilled, order = spill.read_spill(plan, task.spilled, task.shards)
        return contexts, lambda begin, end, out: np.copyto(out, spilled[order[begin:end]])
    sources = opened_once(task.sources, tuple(stat_signature(source.path) for source in task.sources))
    contexts = np.concatenate([plan.shard_contexts(shard) for shard in task.shards])
    if not task.hold:
        return contexts, lambda begin, end, out: gather(sources, table, contexts[begin:end], out=out)
    rows = np.empty((len(contexts), plan.sequence_length), dtype=plan.dtype)
    _sweep(plan, sources, contexts, rows)
    return contexts, lambda begin, end, out: np.copyto(out, rows[begin:end])


def _sweep(
    plan: ShufflePlan, sources: Sequence[TokenSource], contexts: NDArray[np.int64], rows: NDArray[np.integer[Any]]
) -> None:
    """Put contexts into `rows`, shape (contexts, sequence_length), reading the sources from front to back.

    Of the sources' files no more than the pages of a chunk of 8 MiB are held; of those in a store, the blocks of chunks
    of 64 MiB.
    """
    step = max(1, sizing.CHUNK_BYTES // plan.row_bytes)
    stored = [source.access for source in sources if source.access is not None]
    if stored:
        rooms = [
            access.capacity // 4 // (BLOCK_BYTES + plan.row_bytes) for access in stored if access.capacity is not None
        ]
        step = max(1, min([_STORED_BYTES // plan.row_bytes, *rooms]))
    order = np.argsort(contexts)  # contexts are numbered in the order in which they lie
    for begin in range(0, len(contexts), step):
        places = order[begin : begin + step]
        gather(sources, plan.table, contexts[places], out=rows, places=places)
        for source in sources:
            source.evict()


@contextlib.contextmanager
def _reached(task: _Task) -> Iterator[tuple[Path, FileAccess | None]]:
    """Give the folder of the tars as this process reaches it, and how, where it is in a store."""
    if task.access is None:
        yield task.folder, None
        return
    with for_a_task(task.access) as access:
        folder = access.folder / task.access.name(task.folder)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder, access
