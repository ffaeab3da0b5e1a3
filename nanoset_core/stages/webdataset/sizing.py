"""Choose the engine that writes the shards of a plan, and state its memory and scratch, before a byte is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nanoset_core.errors import ConfigError
from nanoset_core.execution.processes import free_memory
from nanoset_core.records.text import format_bytes
from nanoset_core.stages.webdataset.order import WINDOW
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.settings import ShuffleEngine
from nanoset_core.stages.webdataset.shards import TILE_BYTES

NUMBER_BYTES = 8
"""Bytes of the context number before a row's tokens in a spill file."""
CHUNK_BYTES = 8 << 20
"""Bytes of tokens read from the sources at once."""
ROW_BYTES = 80
"""Bytes of place, number and key of a row, and what sorting them takes."""
_ORDER_BYTES = 40  # a context of a window of the order, while it is sorted
_MEMORY_BYTES = 1 << 30  # the budget when none is given
_CACHE_SHARE = 0.8  # of free memory, that the system's cache of the sources may take
_MOST_PASSES = 8  # sweeps over the sources that cost less than writing and reading scratch


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine, why it is taken, and what it takes at the most."""

    engine: ShuffleEngine
    passes: int
    """Sweeps over the sources; 1 for `mmap`, which reads every token once, in no order."""
    scratch_bytes: int
    memory_bytes: int
    """Of all workers together, without the system's cache of files."""
    reason: str
    shards_held: int = 0
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
    """Choose the engine for a plan, and compute its cost; raise ConfigError where the budget does not hold one shard.

    `auto` takes `mmap` where the sources fit the system's cache, of which `available_memory` is free (None = what is
    free now); else `tiled` where at most 8 sweeps do; else `buckets`. `memory_bytes` is the budget of all workers
    together (None = 1 GiB, or half of what is available), `shards` how many are to be written (None = all).
    """
    available = free_memory() if available_memory is None else available_memory
    least = least_bytes(plan)
    budget = max(min(_MEMORY_BYTES, available // 2), workers * least) if memory_bytes is None else memory_bytes
    size = sum(source.tokens for source in plan.table.sources) * np.dtype(plan.dtype).itemsize
    cache, reason = int(available * _CACHE_SHARE), "as asked"
    if engine == "mmap" or (engine == "auto" and size <= cache):
        if engine == "auto":
            reason = f"the sources ({format_bytes(size)}) fit the system's cache ({format_bytes(cache)} free)"
        return EngineChoice("mmap", 1, 0, workers * _fixed_bytes(plan), reason)
    if budget // workers < least:
        what, found = "the memory budget does not hold one shard", f"{budget // workers:,} bytes for each worker"
        expected, remedy = f"{least:,} bytes or more", "give more memory, or use fewer workers or samples per shard"
        raise ConfigError(what, where="memory", found=found, expected=expected, remedy=remedy)
    count = plan.shards if shards is None else shards
    held = (budget // workers - _fixed_bytes(plan)) // (_shard_rows(plan) * (plan.row_bytes + ROW_BYTES))
    passes = -(-count // held)
    if engine == "auto":
        engine = "tiled" if passes <= _MOST_PASSES else "buckets"
        why = "need no scratch" if engine == "tiled" else f"are more than {_MOST_PASSES}"
        reason = f"the sources ({format_bytes(size)}) exceed the cache; {passes} sweeps {why}"
    if engine == "tiled":
        return EngineChoice("tiled", passes, 0, budget, reason, held)
    rows = -(-plan.contexts * count // plan.shards)
    return EngineChoice("buckets", 1, rows * (plan.row_bytes + NUMBER_BYTES), budget, reason, held)


def _fixed_bytes(plan: ShufflePlan) -> int:
    tiles = 16 * max(TILE_BYTES, plan.row_bytes)  # shards at once, each with a tile, its headers, and gathering
    return tiles + CHUNK_BYTES + _ORDER_BYTES * min(plan.table.contexts, WINDOW)


def least_bytes(plan: ShufflePlan, rows: int = 0) -> int:
    """Return the least budget with which every engine works, holding so many rows or at least those of one shard."""
    return _fixed_bytes(plan) + max(_shard_rows(plan), rows) * (plan.row_bytes + ROW_BYTES)


def _shard_rows(plan: ShufflePlan) -> int:
    return min(plan.shard_size, plan.contexts)


def runs_of(shards: Sequence[int], most: int) -> Iterator[range]:
    """Cut ascending shards into runs of neighbours, at most so many each."""
    begin = 0
    for i in range(1, len(shards) + 1):
        if i == len(shards) or i - begin == most or shards[i] != shards[i - 1] + 1:
            yield range(shards[begin], shards[i - 1] + 1)
            begin = i
