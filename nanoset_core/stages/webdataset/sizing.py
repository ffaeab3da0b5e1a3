"""Choose the engine that writes the tars of a plan, and compute the memory and disk that it needs.

There are two engines:

- `mmap` reads each token once, at random places of the mapped sources. It is fast if the sources
  fit into the system's cache of files, and slow otherwise.
- `buckets` reads the sources once from start to end, and sorts the rows into files that each fit
  into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nanoset_core.errors import ConfigError
from nanoset_core.execution.resources import free_memory
from nanoset_core.stages.webdataset.order import WINDOW
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.settings import DEPRECATED_ENGINES, ShuffleEngine
from nanoset_core.stages.webdataset.tars import TILE_BYTES
from nanoset_core.wording import format_bytes

NUMBER_BYTES = 8
"""Bytes of the context number before a row's tokens in a bucket file."""
CHUNK_BYTES = 8 << 20
"""Bytes of tokens read from the sources at once."""
ROW_BYTES = 80
"""Memory for each row in addition to its tokens: place, number and key, and sorting them."""
_ORDER_BYTES = 40
"""Memory for each context of a window of the order, while the window is sorted."""
_TILES = 16
"""Number of tiles (`TILE_BYTES`) in memory at once.

They are used by the shards that are written at the same time: for the rows that are gathered, and
for the members that are made from them.
"""
_DEFAULT_MEMORY = 1 << 30
"""Memory budget in bytes if none is set."""
_CACHE_SHARE = 0.8
"""Share of the free memory that the sources may take in the system's cache of files."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine that was chosen, and its greatest need of memory and disk."""

    engine: ShuffleEngine
    scratch_bytes: int
    """Disk space for bucket files."""
    memory_bytes: int
    """Memory of all workers together, without the system's cache of files."""
    reason: str
    """Why this engine was chosen."""
    shards_in_memory: int = 0
    """Shards whose rows a worker holds in memory at once; 0 for `mmap`, which holds none."""


def choose_engine(
    plan: ShufflePlan,
    available_memory: int | None = None,
    *,
    engine: ShuffleEngine = "auto",
    memory_bytes: int | None = None,
    workers: int = 1,
    shards: int | None = None,
) -> EngineChoice:
    """Choose how tokens are shuffled into tar files, and compute the memory and disk it needs.

    There are two ways, called engines:

        mmap       reads the tokens at random places. This is fast if they fit into memory, where
                   the operating system keeps files that were read.
        buckets    reads the tokens once from start to end, and sorts them into temporary files.

    With `auto`, 5 GB of tokens are shuffled with mmap if 10 GB of memory are free, and 50 GB with
    buckets.

    Args:
        plan: Says which sample goes into which tar (shard).
        available_memory: Bytes of memory that are free. None: the memory that is free now.
        engine: The engine that the user requests, or `auto`.
        memory_bytes: Memory that all workers together may use. None: 1 GiB, or half of the
            available memory if that is less.
        workers: Number of processes that write.
        shards: Number of tars to write. None: all tars of the plan.

    Raises:
        ConfigError: The memory does not hold the samples of one tar.
    """
    engine = DEPRECATED_ENGINES.get(engine, engine)  # the present name of the engine
    if available_memory is None:
        available_memory = free_memory()
    reason = "as requested"
    if engine == "auto":
        source_bytes = _source_bytes(plan)
        cache_bytes = int(available_memory * _CACHE_SHARE)
        engine = "mmap" if source_bytes <= cache_bytes else "buckets"
        reason = _reason(source_bytes, cache_bytes)

    # Files that the operating system keeps do not count as memory of the workers.
    if engine == "mmap":
        return EngineChoice("mmap", 0, workers * _fixed_bytes(plan), reason)
    if memory_bytes is None:
        memory_bytes = _default_budget(plan, available_memory, workers)
    n_shards = plan.shards if shards is None else shards
    return _buckets_choice(plan, memory_bytes, workers, n_shards, reason)


def _reason(source_bytes: int, cache_bytes: int) -> str:
    """Return in words whether all tokens fit into the memory in which the system keeps files.

    This is why one of two ways of shuffling was chosen, and is shown to the user:

        the sources (5.0 GiB) fit the system's cache (8.0 GiB free)
        the sources (50 GiB) exceed the cache

    Args:
        source_bytes: Size of the tokens of all sources.
        cache_bytes: Memory that is free for them.
    """
    if source_bytes > cache_bytes:
        return f"the sources ({format_bytes(source_bytes)}) exceed the cache"
    sizes = f"the sources ({format_bytes(source_bytes)}) fit the system's cache"
    return f"{sizes} ({format_bytes(cache_bytes)} free)"


def _source_bytes(plan: ShufflePlan) -> int:
    """Return the size of the tokens of all sources of a plan in bytes."""
    n_tokens = sum(source.tokens for source in plan.table.sources)
    return n_tokens * np.dtype(plan.dtype).itemsize


def _default_budget(plan: ShufflePlan, available_memory: int, workers: int) -> int:
    """Return how much memory shuffling may use if the user has not set it, in bytes.

        available memory     all workers together may use
        8 GiB                1 GiB
        1 GiB                512 MiB: half of it

    If the workers need more, since each must hold the samples of one tar file, it is that much.

    Args:
        plan: Says how large a tar is.
        available_memory: Bytes of memory that are free.
        workers: Number of processes that write.
    """
    least = workers * least_bytes(plan)
    return max(min(_DEFAULT_MEMORY, available_memory // 2), least)


def _buckets_choice(
    plan: ShufflePlan, memory_bytes: int, workers: int, n_shards: int, reason: str
) -> EngineChoice:
    """Compute the memory and disk for shuffling tokens by sorting them, the engine `buckets`.

    A worker process holds the samples of as many tar files (shards) as its memory can. If these are
    not all tars, the samples are sorted into temporary files first. For one worker, and 10 tars of
    1 GB:

        memory of a worker      tars in memory      disk for temporary files
        12 GB                   10                  0
        4 GB                    3                   10 GB

    Args:
        plan: Says which sample goes into which tar.
        memory_bytes: Memory that all workers together may use.
        workers: Number of processes that write.
        n_shards: Number of tars to write.
        reason: Why this engine was chosen, which becomes part of the result.

    Raises:
        ConfigError: The memory does not hold the samples of one tar.
    """
    worker_bytes = memory_bytes // workers
    _check_budget(plan, worker_bytes)

    tars_in_memory = _tars_in_memory(plan, worker_bytes)
    disk_bytes = 0
    if n_shards > tars_in_memory:
        disk_bytes = _bytes_of_temporary_files(plan, n_shards)
    return EngineChoice("buckets", disk_bytes, memory_bytes, reason, tars_in_memory)


def _tars_in_memory(plan: ShufflePlan, worker_bytes: int) -> int:
    """Return of how many tar files a worker process can hold the training samples in memory.

    Each sample takes its tokens, and ROW_BYTES (80) to sort it.

    Args:
        plan: Says how many samples a tar has, and how large they are.
        worker_bytes: Memory that the worker may use.
    """
    bytes_for_tars = worker_bytes - _fixed_bytes(plan)  # without what it needs in any case
    tar_bytes = _shard_rows(plan) * (plan.row_bytes + ROW_BYTES)
    return bytes_for_tars // tar_bytes


def _bytes_of_temporary_files(plan: ShufflePlan, n_shards: int) -> int:
    """Return the size of temporary files with all training samples of some tar files (shards).

    They have the tokens of each sample, and its number in NUMBER_BYTES (8).

    Args:
        plan: Says how many samples there are, and how large they are.
        n_shards: Number of tars, of all those in the plan.
    """
    # The samples of 4 of 10 tars are 4 / 10 of all samples, rounded up.
    n_samples = (plan.contexts * n_shards + plan.shards - 1) // plan.shards
    return n_samples * (plan.row_bytes + NUMBER_BYTES)


def _check_budget(plan: ShufflePlan, worker_bytes: int) -> None:
    """Check that a worker process can hold the training samples of at least one tar file in memory.

    The samples of a tar are shuffled in memory. For example, a tar of 1 GB cannot be written with
    500 MB for each worker. Then the user has to set more memory, fewer workers or smaller tars.

    Args:
        plan: Says how large a tar (shard) is.
        worker_bytes: Memory that a worker may use.

    Raises:
        ConfigError: It is too little.
    """
    least = least_bytes(plan)
    if worker_bytes < least:
        raise ConfigError(
            "the memory budget does not hold one shard",
            where="memory",
            found=f"{worker_bytes:,} bytes for each worker",
            expected=f"{least:,} bytes or more",
            remedy="give more memory, or use fewer workers or samples per shard",
        )


def _fixed_bytes(plan: ShufflePlan) -> int:
    """Return how much memory a worker needs for shuffling, apart from the samples.

    That is memory for samples that are being written to tar files, for tokens that are being read,
    and for sorting a part of the shuffled order.

    Args:
        plan: Says how large a sample is, and how many there are.
    """
    tiles = _TILES * max(TILE_BYTES, plan.row_bytes)
    order = _ORDER_BYTES * min(plan.table.contexts, WINDOW)
    return tiles + CHUNK_BYTES + order


def least_bytes(plan: ShufflePlan, rows: int = 0) -> int:
    """Return the least memory with which a worker process can shuffle samples into tar files.

    It must hold the training samples of at least one tar, and some buffers.

    Args:
        plan: Says how many samples a tar has, and how large they are.
        rows: Number of samples to hold, if that is more than a tar has.

    Returns:
        Bytes.
    """
    n_samples = max(_shard_rows(plan), rows)
    bytes_of_sample = plan.row_bytes + ROW_BYTES  # its tokens, and what sorting it needs
    bytes_of_buffers = _fixed_bytes(plan)
    return bytes_of_buffers + n_samples * bytes_of_sample


def _shard_rows(plan: ShufflePlan) -> int:
    """Return the number of rows of the largest shard."""
    return min(plan.shard_size, plan.contexts)


def runs_of(shards: Sequence[int], max_shards: int) -> Iterator[range]:
    """Divide ascending numbers of tar files (shards) into runs of neighbours.

    Neighbouring tars are written together, as many as memory can hold. With at most 3:

        tars to write     0  1  2  3  7  8
        runs              0  1  2 | 3 | 7  8

    Args:
        shards: Numbers of the tars, ascending.
        max_shards: The most tars of a run.

    Yields:
        range(0, 3), range(3, 4) and range(7, 9) in the example.
    """
    if not shards:
        return
    first_shard = shards[0]  # of the present run
    for previous, shard in pairwise(shards):
        is_neighbour = shard == previous + 1
        is_full = shard - first_shard == max_shards
        if is_full or not is_neighbour:
            yield range(first_shard, previous + 1)
            first_shard = shard  # begins a new run
    yield range(first_shard, shards[-1] + 1)
