"""Choose the engine that writes the tars of a plan, and compute its memory and scratch before a
byte is read.

`mmap` reads every token once, at random places of the mapped sources: fast if the system's cache
holds these, and slow otherwise. `buckets` sweeps once over the sources and sorts the rows into
files, of which each fits the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nanoset_core.errors import ConfigError
from nanoset_core.execution.resources import free_memory
from nanoset_core.records.text import format_bytes
from nanoset_core.stages.webdataset.order import WINDOW
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.settings import DEPRECATED_ENGINES, ShuffleEngine
from nanoset_core.stages.webdataset.tars import TILE_BYTES

NUMBER_BYTES = 8
"""Bytes of the context number before a row's tokens in a bucket file."""
CHUNK_BYTES = 8 << 20
"""Bytes of tokens read from the sources at once."""
ROW_BYTES = 80
"""Bytes of place, number and key of a row, and what sorting them takes."""
_ORDER_BYTES = 40
"""Bytes of a context of a window of the order, while it is sorted."""
_TILES = 16
"""Tiles in memory at once: of the shards that are written at once, with headers, and of what is
gathered for them.
"""
_DEFAULT_MEMORY = 1 << 30
_CACHE_SHARE = 0.8
"""Share of the free memory that the system's cache of the sources may take."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine, why it is taken, and the most that it takes."""

    engine: ShuffleEngine
    scratch_bytes: int
    memory_bytes: int
    """Of all workers together, without the system's cache of files."""
    reason: str
    shards_in_memory: int = 0
    """Shards whose rows each worker holds in memory at once; 0 for `mmap`, which holds none."""


def choose_engine(
    plan: ShufflePlan,
    available_memory: int | None = None,
    *,
    engine: ShuffleEngine = "auto",
    memory_bytes: int | None = None,
    workers: int = 1,
    shards: int | None = None,
) -> EngineChoice:
    """Choose the engine for a plan, and compute its cost.

    Args:
        plan: Of the tars.
        available_memory: Memory that is free. None: as much as is free now.
        engine: `auto` takes `mmap` if the sources fit the system's cache, and `buckets` otherwise.
        memory_bytes: Budget of all workers together. None: 1 GiB, or half of what is available.
        workers: Processes that write.
        shards: How many shards are to be written. None: all.

    Raises:
        ConfigError: The budget does not hold one shard.
    """
    engine = DEPRECATED_ENGINES.get(engine, engine)
    if available_memory is None:
        available_memory = free_memory()
    source_tokens = sum(source.tokens for source in plan.table.sources)
    source_bytes = source_tokens * np.dtype(plan.dtype).itemsize
    cache_bytes = int(available_memory * _CACHE_SHARE)
    reason = "as asked"

    # Mapped sources take no memory of ours: the system's cache holds them.
    if engine == "mmap" or (engine == "auto" and source_bytes <= cache_bytes):
        if engine == "auto":
            sizes = f"the sources ({format_bytes(source_bytes)}) fit the system's cache"
            reason = f"{sizes} ({format_bytes(cache_bytes)} free)"
        return EngineChoice("mmap", 0, workers * _fixed_bytes(plan), reason)

    # Each worker must hold the rows of at least one shard.
    least = least_bytes(plan)
    if memory_bytes is None:
        memory_bytes = max(min(_DEFAULT_MEMORY, available_memory // 2), workers * least)
    worker_bytes = memory_bytes // workers
    if worker_bytes < least:
        raise ConfigError(
            "the memory budget does not hold one shard",
            where="memory",
            found=f"{worker_bytes:,} bytes for each worker",
            expected=f"{least:,} bytes or more",
            remedy="give more memory, or use fewer workers or samples per shard",
        )
    if engine == "auto":
        reason = f"the sources ({format_bytes(source_bytes)}) exceed the cache"

    # More shards than a worker holds at once are sorted into files of as many as it does.
    n_shards = plan.shards if shards is None else shards
    shard_bytes = _shard_rows(plan) * (plan.row_bytes + ROW_BYTES)
    shards_in_memory = (worker_bytes - _fixed_bytes(plan)) // shard_bytes
    scratch_bytes = 0  # rows of one bucket stay in memory
    if n_shards > shards_in_memory:
        rows = -(-plan.contexts * n_shards // plan.shards)
        scratch_bytes = rows * (plan.row_bytes + NUMBER_BYTES)
    return EngineChoice("buckets", scratch_bytes, memory_bytes, reason, shards_in_memory)


def _fixed_bytes(plan: ShufflePlan) -> int:
    """Return the memory that a worker takes with either engine."""
    tiles = _TILES * max(TILE_BYTES, plan.row_bytes)
    order = _ORDER_BYTES * min(plan.table.contexts, WINDOW)
    return tiles + CHUNK_BYTES + order


def least_bytes(plan: ShufflePlan, rows: int = 0) -> int:
    """Return the least budget of a worker with which both engines work.

    Args:
        plan: Of the tars.
        rows: Rows to hold in memory, at least those of one shard.
    """
    rows_in_memory = max(_shard_rows(plan), rows)
    return _fixed_bytes(plan) + rows_in_memory * (plan.row_bytes + ROW_BYTES)


def _shard_rows(plan: ShufflePlan) -> int:
    return min(plan.shard_size, plan.contexts)


def runs_of(shards: Sequence[int], max_shards: int) -> Iterator[range]:
    """Cut ascending shards into runs of neighbours, of at most `max_shards` each."""
    first = shards[0] if shards else 0
    for previous, shard in pairwise(shards):
        if shard != previous + 1 or shard - first == max_shards:
            yield range(first, previous + 1)
            first = shard
    if shards:
        yield range(first, shards[-1] + 1)
