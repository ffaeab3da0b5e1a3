"""Write shards of a plan: the same bytes from each engine; shards that are there already are left alone.

The engines differ in how the rows of a run of shards are gathered: `mmap` gathers each tile from the mapped sources as
it is written, `tiled` holds the rows of the whole run, read in one sweep over the sources, and `buckets` reads them
from a spill file, to which one sweep for all runs wrote them. Of each row it holds the number of its context, int64,
then the tokens. The shards of a run are an interval of the keys that define the global order: sorted by them, the rows
are in order. Of sources that stay in a store, `buckets` puts the rows of all contexts there, once for all runs and all
calls (`stored_rows.py`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, MissingError, StorageError
from nanoset_core.execution.processes import Executor, run_tasks
from nanoset_core.execution.progress import Progress, ProgressCallback, silent
from nanoset_core.stages.webdataset.order import context_keys, keys_at, keys_of
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.settings import ShuffleEngine
from nanoset_core.stages.webdataset.shards import Fill, TarFacts, output_bytes, read_markers, write_markers, write_tar
from nanoset_core.stages.webdataset.sizing import CHUNK_BYTES, NUMBER_BYTES, ROW_BYTES, choose_engine, runs_of
from nanoset_core.stages.webdataset.sources import STORED_ROW_BYTES, TokenSource, gather, opened_once
from nanoset_core.stages.webdataset.stored_rows import ROWS, StoredRows
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import claim_scratch, fsync_folder, sweep_abandoned
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.s3_requests import MULTIPART_BYTES
from nanoset_core.storage.store import Store
from nanoset_core.storage.working_copies import for_a_task
from nanoset_core.tokenizers.files import stat_signature

_MAPPED_SHARDS = 8  # in a task of the mmap engine
_SHARDS_AT_ONCE = {"npy": 3, "json.gz": 2}  # while one goes to the disk, the next ones are made
_MOST_SWEEPS = 3  # over tokens in a store: to read them once, store their rows, and read these takes as many
_SENDING_BYTES = 5 * MULTIPART_BYTES  # of an object on its way, in memory
_STORED_BYTES = 64 << 20  # so much at once takes several requests, which are on their way together


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How shards are written; nothing of it reaches their bytes."""

    engine: ShuffleEngine = "auto"
    memory_bytes: int | None = None
    """For all workers together, without the system's cache of files; None = see `choose_engine`."""
    scratch: Path | None = None
    """Where spill files go, in a folder of this run's own; None = within the folder of the tars."""
    workers: int = 1
    executor: Executor | None = None
    """Where else the work is done; each of its workers then gets the memory of one of `workers`."""
    listener: ProgressCallback = silent
    name: str = "shards"
    """What progress reports call the output."""
    access: FileAccess | None = None
    """How the folder is reached; None = as a local one. Where outputs are in a store, each tar is sent there, and then
    its marker, by the worker that made it. What is there already is what the store has."""


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

    Markers in `.shards` say which are done; those for another digest of plan and tokens than `made_from`, or all with
    `force`, are made again.

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
    access, scratch = options.access or FileAccess(folder), options.scratch or folder
    facts = {} if force else read_markers(folder, numbers, made_from, access)
    todo = [shard for shard in numbers if shard not in facts]
    if todo:
        with explained(folder, expected=f"room for the shards in {folder}, and for buckets in {scratch}"):
            work = partial(_write, plan, folder, made_from, access)
            rows = access.store.below(access.name(folder / ROWS)) if access.has_copies else None
            made = _write_all(work, plan, tuple(sources), todo, scratch, options, rows)
            facts |= {fact.shard: fact for fact in made}
    return [facts[shard] for shard in numbers]


def _write_all(
    work: Callable[[_Run], list[TarFacts]],
    plan: ShufflePlan,
    sources: tuple[TokenSource, ...],
    todo: list[int],
    scratch: Path,
    options: WriteOptions,
    place: Store | None,
) -> list[TarFacts]:
    engine, is_stored = options.engine, any(source.access is not None for source in sources)
    if is_stored:
        engine = "tiled"  # the others read sources in a store at random places, which would fetch all of them
    elif options.access is not None and options.access.capacity is not None:
        engine = "mmap"  # without temporary files
    memory, workers = options.memory_bytes, options.workers
    choice = choose_engine(plan, engine=engine, memory_bytes=memory, workers=workers, shards=len(todo))
    most = choice.shards_held or _MAPPED_SHARDS
    if options.access is not None and options.access.capacity is not None:
        fitting, share = _fitting(plan, options.access, 1 if options.executor else workers)
        most, options = min(most, fitting), replace(options, workers=min(workers, share))
        sources = tuple(source.sharing(share) for source in sources)
    runs = list(runs_of(todo, most))
    if is_stored and place is not None and _is_worth_storing(plan, sources, most, options.engine):
        rows = _store_rows(plan, sources, place, choice.memory_bytes // workers, options)
        return _run(work, [(run, sources, True, rows) for run in runs], options)
    if choice.engine != "buckets":
        return _run(work, [(run, sources, choice.engine == "tiled", None) for run in runs], options)
    scratch.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(scratch)
    with claim_scratch(scratch / "buckets") as own:
        files = {own / f"bucket-{number:06d}": run for number, run in enumerate(runs)}
        _spill(plan, sources, files, choice.memory_bytes // 2, options)
        return _run(work, [(run, (), True, path) for path, run in files.items()], options)


def _fitting(plan: ShufflePlan, access: FileAccess, workers: int) -> tuple[int, int]:
    """Return (tars of a run, processes of a machine that make such runs at once), so that these take half the capacity.

    StorageError where there is no room for one tar.
    """
    room, size = (access.capacity or 0) // 2, -(-output_bytes(plan)[0] // plan.shards)
    access.make_room(max(room, size), f"a tar of {plan.shard_size:,} samples")
    workers = max(1, min(workers, room // size))
    return max(1, room // workers // size), workers


def _is_worth_storing(plan: ShufflePlan, sources: Sequence[TokenSource], most: int, engine: ShuffleEngine) -> bool:
    """Return whether rows are put into the store: asked for, or all tars would take more than three sweeps."""
    if engine in ("auto", "mmap"):
        size = sum(source.bytes for source in sources)
        return plan.shards > _MOST_SWEEPS * most and size > _STORED_BYTES
    return engine == "buckets"


def _store_rows(
    plan: ShufflePlan, sources: tuple[TokenSource, ...], place: Store, memory_bytes: int, options: WriteOptions
) -> StoredRows:
    """Put the rows of all contexts into the store, those parts that are not there yet; reads each token once."""
    contexts, room = plan.table.contexts, max(memory_bytes // 4, memory_bytes - _SENDING_BYTES)
    rows, missing = StoredRows.of(place, contexts, max(1, room // (plan.row_bytes + ROW_BYTES)))
    done = contexts - sum(map(len, missing))
    work = partial(_put_part, plan, sources, rows)
    for number, _ in run_tasks(work, missing, options.workers, options.executor):
        done += len(missing[number])
        options.listener(Progress("buckets", options.name, done * plan.row_bytes, contexts * plan.row_bytes))
    return rows


def _put_part(plan: ShufflePlan, sources: tuple[TokenSource, ...], rows: StoredRows, part: range) -> None:
    if rows.is_there(part):  # another build has made it meanwhile
        return
    sources = opened_once(sources, tuple(stat_signature(source.path) for source in sources))
    contexts = part.start + np.argsort(context_keys(part.start, part.stop, plan.settings.seed))
    held = np.empty((len(contexts), plan.sequence_length), dtype=plan.dtype)
    _sweep(plan, sources, contexts, held)
    rows.put(part, held)


_Run = tuple[range, tuple[TokenSource, ...], bool, Path | StoredRows | None]
"""Neighbouring shards for one worker; their sources; whether all rows are held in memory; where they were spilled."""


def _run(work: Callable[[_Run], list[TarFacts]], runs: Sequence[_Run], options: WriteOptions) -> list[TarFacts]:
    total, made = sum(len(run[0]) for run in runs), list[TarFacts]()
    for number, facts in run_tasks(work, runs, options.workers, options.executor):
        made += facts
        if isinstance(spilled := runs[number][-1], Path):
            spilled.unlink()
        options.listener(Progress("tars", options.name, len(made), total, unit="tars"))
    return made


def _write(plan: ShufflePlan, folder: Path, made_from: str, access: FileAccess, run: _Run) -> list[TarFacts]:
    plan.check_compressor()  # a worker may be of another machine
    contexts, fill = _rows(plan, *run)
    first, done = plan.shard_ranks(run[0][0])[0], list[TarFacts]()

    def write(shard: int) -> TarFacts:
        begin, end = (rank - first for rank in plan.shard_ranks(shard))
        return write_tar(plan, shard, contexts[begin:end], here, lambda a, b, out: fill(begin + a, begin + b, out))

    with for_a_task(access) as reached, ThreadPoolExecutor(_SHARDS_AT_ONCE[plan.settings.member]) as pool:
        here = reached.folder / access.name(folder)
        here.mkdir(parents=True, exist_ok=True)
        try:
            for fact in pool.map(write, run[0]):
                tar = here / f"{fact.stem}.tar"
                reached.send([tar], {tar: fact.sha256})
                write_markers(here, [fact], made_from, reached)
                reached.drop([tar])
                done.append(fact)
        finally:
            pool.shutdown(cancel_futures=True)
        fsync_folder(here)
    return done


def _rows(
    plan: ShufflePlan, shards: range, sources: tuple[TokenSource, ...], hold: bool, spilled: Path | StoredRows | None
) -> tuple[NDArray[np.int64], Fill]:
    if isinstance(spilled, Path):
        numbers, rows = _records(np.fromfile(spilled, dtype=np.uint8), len(_ranks(plan, shards)), plan, spilled)
        order = np.argsort(keys_of(numbers.astype(np.uint64), plan.settings.seed))
        return numbers[order], lambda begin, end, out: np.copyto(out, rows[order[begin:end]])
    sources = opened_once(sources, tuple(stat_signature(source.path) for source in sources))
    contexts = np.concatenate([plan.shard_contexts(shard) for shard in shards])
    if not hold:
        return contexts, lambda begin, end, out: gather(sources, plan.table, contexts[begin:end], out=out)
    held = np.empty((len(contexts), plan.sequence_length), dtype=plan.dtype)
    try:
        if spilled is not None:
            spilled.read(plan, contexts, held)
    except MissingError:  # another build finished the webdataset, and removed them
        spilled = None
    if spilled is None:
        _sweep(plan, sources, contexts, held)
    return contexts, lambda begin, end, out: np.copyto(out, held[begin:end])


def _sweep(
    plan: ShufflePlan, sources: Sequence[TokenSource], contexts: NDArray[np.int64], rows: NDArray[np.integer[Any]]
) -> None:
    """Put contexts into `rows`, shape (contexts, sequence_length), holding 8 MiB of the sources (64 MiB in a store)."""
    stored = [source.access.capacity for source in sources if source.access is not None]
    rooms = [capacity // 4 for capacity in stored if capacity is not None]
    steps = [room // (STORED_ROW_BYTES + plan.row_bytes) for room in rooms]
    step = max(1, min([(_STORED_BYTES if stored else CHUNK_BYTES) // plan.row_bytes, *steps]))
    stays = stored and sum(source.bytes for source in sources) <= min(rooms, default=_STORED_BYTES)
    order = np.argsort(contexts)  # contexts are numbered in the order in which they lie
    for begin in range(0, len(contexts), step):
        places = order[begin : begin + step]
        gather(sources, plan.table, contexts[places], out=rows, places=places)
        for source in () if stays else sources:  # the next run of this process finds what stays
            source.evict()


def _spill(
    plan: ShufflePlan,
    sources: Sequence[TokenSource],
    files: Mapping[Path, range],
    memory_bytes: int,
    options: WriteOptions,
) -> None:
    """Append every row to the spill file of its run, in one sweep over the sources."""
    ranks = [_ranks(plan, run) for run in files.values()]
    paths, record = list(files), NUMBER_BYTES + plan.row_bytes
    needed, free = sum(map(len, ranks)) * record, shutil.disk_usage(paths[0].parent).free
    if free < needed:
        where, found, expected = paths[0].parent.parent, f"{free:,} bytes free", f"{needed:,} bytes"
        remedy = "name a scratch folder on a larger disk, give more memory, or take the engine tiled (no scratch)"
        what = "too little room for the buckets"
        raise StorageError(what, where=where, found=found, expected=expected, remedy=remedy)
    contexts, seed = plan.table.contexts, plan.settings.seed
    step = max(1, min(memory_bytes // (record + ROW_BYTES), contexts))
    records = np.empty((step, record), dtype=np.uint8)
    numbers, rows = _records(records, step, plan, paths[0])
    low, high = keys_at(contexts, seed, np.array([[own[0], own[-1]] for own in ranks]).ravel()).reshape(-1, 2).T
    for begin in range(0, contexts, step):
        end = min(begin + step, contexts)
        keys = context_keys(begin, end, seed)
        place = np.searchsorted(low, keys, side="right") - 1
        chosen = np.flatnonzero((place >= 0) & (keys <= high[place]))
        order = chosen[np.argsort(place[chosen], kind="stable")]
        numbers[: len(order)] = order + begin
        _sweep(plan, sources, numbers[: len(order)], rows[: len(order)])
        ends = np.searchsorted(place[order], np.arange(len(paths) + 1))
        for i in np.flatnonzero(np.diff(ends)):
            with paths[i].open("ab") as file:
                file.write(records[ends[i] : ends[i + 1]].data)
        options.listener(Progress("buckets", options.name, end * plan.row_bytes, contexts * plan.row_bytes))


def _ranks(plan: ShufflePlan, run: range) -> range:
    return range(plan.shard_ranks(run[0])[0], plan.shard_ranks(run[-1])[1])


def _records(
    records: NDArray[np.uint8], count: int, plan: ShufflePlan, path: Path
) -> tuple[NDArray[np.int64], NDArray[np.integer[Any]]]:
    if records.size != (size := count * (NUMBER_BYTES + plan.row_bytes)):
        what = "a spill file does not hold the rows that were written to it"
        remedy = "run again; nothing else may write to the scratch folder"
        raise FormatError(what, where=path, found=f"{records.size:,} bytes", expected=f"{size:,} bytes", remedy=remedy)
    table = records.reshape(count, -1)
    return table[:, :NUMBER_BYTES].view(np.int64)[:, 0], table[:, NUMBER_BYTES:].view(plan.dtype)
