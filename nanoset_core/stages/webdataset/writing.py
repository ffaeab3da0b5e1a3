"""Write the tars of a plan that are not written yet, by any number of processes.

The shards are divided into runs of neighbours, and each run is written by one process. `rows.py`
supplies the rows of a run. How shards are divided, and which supplier is used, depends on the
engine, the memory and the disk; the bytes of the tars do not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.processes import run_tasks
from nanoset_core.rounding import ceil_division
from nanoset_core.stages.webdataset.buckets import write_buckets
from nanoset_core.stages.webdataset.markers import read_markers, write_markers
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.rows import (
    MappedRows,
    RowsFromBucket,
    RowsFromStore,
    RowSupplier,
    RunRows,
    SweptRows,
)
from nanoset_core.stages.webdataset.settings import ShuffleEngine
from nanoset_core.stages.webdataset.sizing import EngineChoice, choose_engine, runs_of
from nanoset_core.stages.webdataset.sources import TokenSource
from nanoset_core.stages.webdataset.stored_rows import ROWS, is_worth_storing, store_rows
from nanoset_core.stages.webdataset.tars import TarFacts, output_bytes, write_tar
from nanoset_core.stages.webdataset.write_options import WriteOptions
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import claim_scratch, fsync_folder, sweep_abandoned
from nanoset_core.storage.copies.worker_folders import for_a_task
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.writing.uploads import drop_copies, upload_files

_MAPPED_SHARDS = 8
"""Shards in a run of the engine `mmap`, which holds no rows in memory."""
_SHARDS_AT_ONCE = {"npy": 3, "json.gz": 2}
"""Format of the members → shards that a worker writes at once.

While one shard is written to the disk, the next ones are encoded.
"""
_UPLOADS_AT_ONCE = 8
"""Tars that a worker sends to a bucket at once. Each is sent by several requests at a time."""


@dataclass(frozen=True, slots=True)
class _Target:
    """The tars that all workers of a call write. It can be pickled."""

    plan: ShufflePlan
    folder: Path
    """Folder of the tars."""
    made_from: str
    """Digest of what the tars are made from, which their markers record."""
    access: FileAccess
    """Access to the folder, which may be in a store."""
    stored_sizes: Mapping[str, int] | None
    """Tars that the store had before: name in the store → bytes; None if that is not known."""


@dataclass(frozen=True, slots=True)
class _ShardRun:
    """Neighbouring shards that one worker writes."""

    shards: range
    rows: RowSupplier


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
    """Write some tar files (shards) of shuffled training samples into a folder.

    Each tar is written whole or not at all. A finished tar gets a marker, a small file in the
    folder `.shards` that records its size and what it was made from. If this call is killed, the
    next one skips the tars that have one.

    Args:
        plan: Says which sample goes into which tar.
        sources: The tokens of each source of text, such as web and code.
        shards: Numbers of the tars to write, such as range(0, 4).
        folder: Where the tars go.
        options: How they are written: memory, number of processes, and so on.
        made_from: Digest of the plan and the tokens. Tars whose markers have another one are
            written again.
        force: Write all tars again.

    Returns:
        Counts, size and sha256 of each of these tars, in ascending order.

    Raises:
        StaleError: The sources are not those of the plan, or this machine's compressor writes other
            bytes than the planned one.
        ConfigError: The memory does not hold the samples of one tar.
        StorageError: The disk is full. Tars that were whole by then stay, and the next call
            resumes after them.
    """
    plan.check_sources(sources)
    plan.check_compressor()
    numbers = sorted(set(shards))
    if numbers:
        plan.shard_ranks(numbers[-1])  # raises if there is no such tar
    folder.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(folder)  # deletes temporary files of calls that were killed

    # Skip the tars that earlier calls have finished.
    access = options.access or FileAccess(folder)
    facts: dict[int, TarFacts] = {}
    if not force:
        facts = read_markers(folder, numbers, made_from, access)
    missing = [shard for shard in numbers if shard not in facts]
    if missing:
        scratch = options.scratch or folder
        target = _Target(plan, folder, made_from, access, options.stored_sizes)
        room = f"room for the shards in {folder}, and for buckets in {scratch}"
        with explained(folder, expected=room):  # if the disk is full, the error says what needs it
            for tar in _write_missing(target, tuple(sources), missing, scratch, options):
                facts[tar.shard] = tar
    return [facts[shard] for shard in numbers]


def _write_missing(
    target: _Target,
    sources: tuple[TokenSource, ...],
    shards: list[int],
    scratch: Path,
    options: WriteOptions,
) -> list[TarFacts]:
    """Write tar files of shuffled samples, in the way that suits the tokens, memory and disk.

    The samples of a tar are scattered over the sources of text. There are several ways to collect
    them, which write the same tars:

        the tokens are                            the samples of a tar are collected by
        in a bucket                               `_rows_of_stored_tokens` chooses
        on this machine, and fit into its memory  reading at random places (engine `mmap`)
        larger, but one reading is enough         reading all tokens once (engine `buckets`)
        larger                                    sorting them into temporary files, also `buckets`

    Args:
        target: The plan, which says which sample goes into which tar, and where the tars go.
        sources: The tokens of each source of text, such as web and code.
        shards: Numbers of the tars, ascending.
        scratch: Folder for temporary files.
        options: The user's choice of the engine, the memory, and the number of processes.

    Returns:
        What is recorded of the tars, in the order in which they were finished.
    """
    choice = _engine_choice(target.plan, sources, shards, options)
    worker_memory = choice.memory_bytes // options.workers

    # Divide the tars into runs of neighbours, which memory and disk can hold.
    max_shards = choice.shards_in_memory or _MAPPED_SHARDS
    access = options.access
    if access is not None and access.is_space_limited:
        division = _fitting_division(target.plan, access, options)
        max_shards = min(max_shards, division.run_shards)
        options = replace(options, workers=min(options.workers, division.workers))
        sources = tuple(source.sharing(division.workers) for source in sources)
    runs = list(runs_of(shards, max_shards))

    # Choose what supplies the samples (rows of tokens) of each run.
    supplier: RowSupplier
    if _are_in_store(sources):
        supplier = _rows_of_stored_tokens(target, sources, max_shards, worker_memory, options)
    elif choice.engine == "mmap":
        supplier = MappedRows(sources)
    elif len(runs) == 1:  # memory holds the samples of all tars
        supplier = SweptRows(sources)
    else:
        return _write_by_buckets(target, sources, runs, choice, scratch, options)
    return _write_runs(target, [_ShardRun(run, supplier) for run in runs], options)


def _are_in_store(sources: Iterable[TokenSource]) -> bool:
    """Return whether tokens are read from a store, such as a bucket, rather than from files."""
    return any(source.access is not None for source in sources)


def _engine_choice(
    plan: ShufflePlan,
    sources: Sequence[TokenSource],
    shards: Sequence[int],
    options: WriteOptions,
) -> EngineChoice:
    """Choose how the tar files of a shuffled dataset are written, and with how much memory.

    There are two ways, called engines, which write the same tars:

        mmap       for each tar, read the tokens of its samples at random places
        buckets    read all tokens once from start to end, and sort the samples into files

    The first one is faster if all tokens fit into memory.

    Args:
        plan: Says which sample goes into which tar.
        sources: The tokens of each source of text, such as web and code.
        shards: Numbers of the tars to write.
        options: The user's choice of the engine, the memory and the number of processes.
    """
    engine = _permitted_engine(options, are_tokens_in_store=_are_in_store(sources))
    return choose_engine(
        plan,
        engine=engine,
        memory_bytes=options.memory_bytes,
        workers=options.workers,
        shards=len(shards),
    )


def _permitted_engine(options: WriteOptions, *, are_tokens_in_store: bool) -> ShuffleEngine:
    """Return how tar files of shuffled samples are written: as the user wants, if it is possible.

    - If the tokens are in a bucket, only `buckets` is possible, which reads them from start to end.
      The engine `mmap` reads at random places, and would fetch the same blocks again and again.
    - Otherwise, if the disk is limited, only `mmap` is possible. The engine `buckets` needs disk
      space for all samples.
    - Otherwise, the user chooses.

    Both write the same tars, so the user's choice can be overruled.

    Args:
        options: The user's choice, and whether the disk is limited.
        are_tokens_in_store: Whether the tokens are in a store, such as a bucket.
    """
    if are_tokens_in_store:
        return "buckets"
    if options.has_bounded_disk:
        return "mmap"
    return options.supported_engine


def _rows_of_stored_tokens(
    target: _Target,
    sources: tuple[TokenSource, ...],
    max_shards: int,
    worker_memory: int,
    options: WriteOptions,
) -> RowSupplier:
    """Choose how to get the samples of tar files, if the tokens are in a bucket.

    The samples of each tar are spread over all tokens. There are two ways to get them:

        SweptRows        read all tokens again for every few tars, and keep what these need
        RowsFromStore    read all tokens once, and store them in the bucket in shuffled order; then
                         read just what each tar needs

    Args:
        target: The plan, which says which sample goes into which tar, and where the tars go.
        sources: The tokens of each source of text, in a bucket.
        max_shards: How many tars (shards) a worker process writes at a time.
        worker_memory: Memory of each worker, in bytes.
        options: How the tars are written, such as the number of processes.
    """
    are_tars_in_bucket = target.access.takes_requests
    if not are_tars_in_bucket:
        return SweptRows(sources)  # there is no place for stored samples next to the tars
    if not is_worth_storing(target.plan, sources, max_shards, options.supported_engine):
        return SweptRows(sources)

    path = target.access.name(target.folder / ROWS)  # such as .../tars/.rows
    folder = target.access.store.below(path)
    stored_rows = store_rows(target.plan, sources, folder, worker_memory, options)
    return RowsFromStore(stored_rows, sources)


def _write_by_buckets(
    target: _Target,
    sources: tuple[TokenSource, ...],
    runs: list[range],
    choice: EngineChoice,
    scratch: Path,
    options: WriteOptions,
) -> list[TarFacts]:
    """Sort the samples of all tar files into temporary files, and write the tars from these.

    The tars (shards) are divided into runs of neighbouring ones, such that memory holds the samples
    of a run. Each run gets a temporary file, called a bucket:

        run 0: tars 0 to 3    bucket-000000
        run 1: tars 4 to 7    bucket-000001

    All tokens are read once, and each sample is appended to the file of its run. Then each file is
    read, its samples are put into order, and the tars of its run are written.

    Args:
        target: The plan, which says which sample goes into which tar, and where the tars go.
        sources: The tokens of each source of text, such as web and code.
        runs: The tars of each run: [range(0, 4), range(4, 8)].
        choice: Says how much memory may be used.
        scratch: Folder for the temporary files.
        options: How the tars are written, such as the number of processes.

    Returns:
        What is recorded of the tars, in the order in which they were finished.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(scratch)  # deletes the files of builds that were killed
    # `claim_scratch` deletes the folder, with all buckets in it, at the end of the block.
    with claim_scratch(scratch / "buckets") as folder:
        run_by_file = {folder / f"bucket-{number:06d}": run for number, run in enumerate(runs)}

        # Append each sample to the file of its run. Half of the memory is for the samples, since
        # sorting them takes additional arrays.
        memory_for_samples = choice.memory_bytes // 2
        write_buckets(target.plan, sources, run_by_file, memory_for_samples, options)

        # Write the tars of each run, with the samples in its file.
        bucket_runs = [_ShardRun(run, RowsFromBucket(file)) for file, run in run_by_file.items()]
        return _write_runs(target, bucket_runs, options)


@dataclass(frozen=True, slots=True)
class _WritingDivision:
    """How the work is divided if the disk for files of the output is bounded.

    Tars that are not sent to the store yet take at most half of it. Tokens that are fetched may
    need the other half.
    """

    run_shards: int
    """Shards of a run, which one worker writes."""
    workers: int
    """Processes of a machine that write such runs at the same time."""


def _fitting_division(
    plan: ShufflePlan, access: FileAccess, options: WriteOptions
) -> _WritingDivision:
    """Decide how many tar files each worker process writes at a time, so that the disk holds them.

    The tars are sent to a bucket, but each is written to this machine's disk first. If it has room
    for 10 tars:

        4 workers       all of them write, each 10 // 4 = 2 tars at a time
        20 workers      only 10 of them write, each 1 tar at a time

    Args:
        plan: Says how many samples a tar has.
        access: Access to the folder of the tars, from which old copies of files are deleted.
        options: How the tars are written, such as the number of workers.

    Raises:
        StorageError: The disk has no room for a single tar.
    """
    n_tars = _tars_on_disk(plan, access)  # 10

    # The workers share this machine's disk. On a cluster, each has disk space of its own.
    n_workers_per_disk = options.workers if options.executor is None else 1
    n_writing = min(n_workers_per_disk, n_tars)
    return _WritingDivision(run_shards=n_tars // n_writing, workers=n_writing)


def _tars_on_disk(plan: ShufflePlan, access: FileAccess) -> int:
    """Make room for tar files on the disk, and return how many fit until they are sent to a bucket.

    The user limits the disk space for copies of files. Part of it is for tars that are not sent
    yet. To make room for them, old copies are deleted:

        part for unsent tars    size of a tar    room that is made    result
        10 GB                   3 GB             10 GB                3
        10 GB                   12 GB            12 GB                1, the least possible

    Args:
        plan: Says how many samples a tar has.
        access: Access to the folder of the tars.

    Raises:
        StorageError: The disk has no room for a single tar.
    """
    room_for_tars = access.room_for_unsent or 0  # 10 GB
    total_bytes, _ = output_bytes(plan)  # of all tars
    tar_bytes = ceil_division(total_bytes, plan.shards)  # of an average tar

    # Room for at least one tar. The text is for the error if the disk is too small for it.
    needed_bytes = max(room_for_tars, tar_bytes)
    access.make_room(needed_bytes, f"a tar of {plan.shard_size:,} samples")
    return max(1, room_for_tars // tar_bytes)


def _write_runs(
    target: _Target,
    runs: Sequence[_ShardRun],
    options: WriteOptions,
) -> list[TarFacts]:
    """Write the tar files of a shuffled dataset in worker processes.

    The tars (shards) are divided into runs of neighbouring ones, such as the tars 0 to 3 and 4 to
    7. Each run is a task, which any worker can take.

    Args:
        target: The plan, which says which sample goes into which tar, and where the tars go.
        runs: The tars of each run, and where their samples are taken from.
        options: How the tars are written, such as the number of workers.

    Returns:
        Counts, size and sha256 of each tar, in the order in which they were finished.
    """
    n_tars = sum(len(run.shards) for run in runs)
    progress = options.progress.work("tars", options.name, n_tars, unit="tars")
    tars: list[TarFacts] = []
    write = partial(_write_run, target)
    # Runs end in any order: `number` says which one has just ended.
    for number, run_tars in run_tasks(write, runs, options.workers, options.executor):
        tars += run_tars
        runs[number].rows.release()  # deletes temporary files with the samples of this run
        progress.advance(len(run_tars))
    return tars


def _write_run(target: _Target, run: _ShardRun) -> list[TarFacts]:
    """Write some neighbouring tar files of a shuffled dataset, in a worker process.

    If the process is killed, the next build skips the tars that are finished.

    Args:
        target: The plan, which says which sample goes into which tar, and where the tars go.
        run: Numbers of the tars (shards), and where their samples are taken from.

    Returns:
        Counts, size and sha256 of each tar, in order.
    """
    target.plan.check_compressor()  # the worker may run on another machine
    rows = run.rows.open(target.plan, run.shards)  # the samples of all these tars

    # Tars that go to a bucket are written to a folder of this machine, and sent from there.
    with for_a_task(target.access) as access:
        folder = access.folder / target.access.name(target.folder)
        folder.mkdir(parents=True, exist_ok=True)
        tars = _write_and_publish(target, run.shards, rows, folder, access)
        fsync_folder(folder)
    return tars


def _write_and_publish(
    target: _Target, shards: range, rows: RunRows, folder: Path, access: FileAccess
) -> list[TarFacts]:
    """Write some tar files, a few at the same time, and publish each one when it is finished.

    To publish a tar is to send it to the bucket, if there is one, and to write a marker, which says
    that it is finished.

    Args:
        target: The plan, which says which sample goes into which tar.
        shards: Numbers of the tars.
        rows: Their samples.
        folder: Folder of this machine for the tars.
        access: Access to the folder, which may stand for a folder in a bucket.

    Returns:
        Counts, size and sha256 of each tar, in order.
    """
    write = partial(_write_shard, target.plan, shards, rows, folder)
    publish = partial(_publish_tar, folder, target.made_from, access, target.stored_sizes)
    n_threads = _SHARDS_AT_ONCE[target.plan.settings.member]  # 2 or 3, by the format of the samples
    with ThreadPoolExecutor(n_threads) as pool:
        try:
            written_tars = pool.map(write, shards)  # yields them in their order
            if access.takes_requests:
                return _publish_in_parallel(publish, written_tars)
            return [publish(facts) for facts in written_tars]
        finally:
            pool.shutdown(cancel_futures=True)  # after an error, do not begin further tars


def _publish_in_parallel(
    publish: Callable[[TarFacts], TarFacts], written_tars: Iterable[TarFacts]
) -> list[TarFacts]:
    """Send tars to a bucket while the next ones are written, several at the same time.

    If a tar cannot be written, those that were written before it are still sent, so that the next
    build need not write them again.

    Args:
        publish: Sends a tar, and returns its facts.
        written_tars: Facts of each tar, which are yielded when it is written.

    Returns:
        Facts of all tars, in their order.
    """
    tars: list[TarFacts] = []
    uploads: deque[Future[TarFacts]] = deque()
    # The end of the block waits for all tars that are being sent, also after an error.
    with ThreadPoolExecutor(_UPLOADS_AT_ONCE) as pool:
        for facts in written_tars:
            # Do not go on writing if tars cannot be sent: the disk may have no room for them.
            if len(uploads) == _UPLOADS_AT_ONCE:
                tars.append(uploads.popleft().result())
            uploads.append(pool.submit(publish, facts))
    tars += [upload.result() for upload in uploads]
    return tars


def _publish_tar(
    folder: Path,
    made_from: str,
    access: FileAccess,
    stored_sizes: Mapping[str, int] | None,
    facts: TarFacts,
) -> TarFacts:
    """Send a finished tar file to the bucket, if there is one, and record that it is finished.

    The record is a marker, a small file next to the tar with its counts and checksum. A build that
    continues after an interruption skips tars that have one.

    Args:
        folder: Folder of the tar on this machine.
        made_from: Digest of everything the tar is made from. It is recorded in the marker, so that
            a marker of other settings is not taken for one of these.
        access: Access to the folder, which may stand for a folder in a bucket.
        stored_sizes: Tars that the bucket had before: name in the bucket → bytes. If this is one of
            them, it is looked up, and only sent if it differs. None: look up any tar.
        facts: Counts, size and sha256 of the tar. They are also returned.
    """
    tar = folder / f"{facts.stem}.tar"
    upload_files(access, [tar], {tar: facts.sha256}, stored_sizes=stored_sizes)
    # Write the marker after the tar was sent, since it says that the tar exists.
    write_markers(folder, [facts], made_from, access)
    drop_copies(access, [tar])  # it is in the bucket now
    return facts


def _write_shard(
    plan: ShufflePlan,
    run: range,
    rows: RunRows,
    folder: Path,
    shard: int,
) -> TarFacts:
    """Write one tar file of a shuffled dataset, from the collected samples of several tars.

    The samples of a few neighbouring tars (shards) were collected together. With 100 samples in a
    tar, and the samples of the tars 2 and 3:

        tar                                      2            3
        positions among all shuffled samples     200-299      300-399
        rows of the collected samples            0-99         100-199

    So tar 3 gets the rows 100 to 199.

    Args:
        plan: Says which sample goes into which tar.
        run: The tars whose samples were collected, such as range(2, 4).
        rows: The collected samples, in shuffled order.
        folder: Where the tar goes.
        shard: Number of the tar to write, such as 3.
    """
    run_start, _ = plan.shard_ranks(run[0])  # 200
    shard_start, shard_stop = plan.shard_ranks(shard)  # 300 and 400
    first_row = shard_start - run_start  # 100
    stop_row = shard_stop - run_start  # 200

    def fill(start: int, stop: int, out: NDArray[np.integer[Any]]) -> None:
        """Write the tokens of the samples [start, stop) of this tar into an array."""
        rows.fill(first_row + start, first_row + stop, out)

    return write_tar(plan, shard, rows.contexts[first_row:stop_row], folder, fill)
