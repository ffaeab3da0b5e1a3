"""Which engine a shuffle takes, and what it will cost, decided before a byte is read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from nanoset_core.errors import ConfigError
from nanoset_core.serialization.text import format_bytes
from nanoset_core.shuffling.order import WINDOW
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.shards import TILE_BYTES

EngineName = Literal["mmap", "tiled", "buckets"]
Storage = Literal["memory", "local", "network"]

KEY_BYTES = 8
"""Bytes of the key before a row's tokens in a bucket."""
CHUNK_BYTES = 8 << 20
"""Bytes of tokens read from the sources at once."""
_ORDER_BYTES = 40  # a context of a window of the order, while it is sorted
_ROW_BYTES = 80  # place, number and key of a row, and what sorting them takes
MEMORY_BYTES = 1 << 30
"""The budget when none is given."""
_CACHE_SHARE = 0.8  # of free memory, that the system's cache of the sources may take
_PASSES = {"local": 8, "network": 2}  # sweeps over the sources that cost less than writing and reading scratch


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine, and what it takes."""

    engine: EngineName
    """`mmap`, `tiled` or `buckets`."""
    passes: int
    """Sweeps over the sources; 1 for `mmap`, which reads every token once, in no order."""
    scratch_bytes: int
    """Bytes of scratch at the most."""
    memory_bytes: int
    """Bytes of memory at the most, all workers together; without the system's cache of files."""
    reason: str
    """Why this one."""


def choose_engine(
    plan: ShufflePlan,
    available_memory: int | None = None,
    storage: Storage = "local",
    *,
    engine: str = "auto",
    memory_bytes: int | None = None,
    workers: int = 1,
    shards: int | None = None,
) -> EngineChoice:
    """The engine for a plan, and its cost.

    Args:
        plan: what is to be written.
        available_memory: bytes that the sources can take up in the system's cache; None = what is free now.
        storage: where the sources lie: `memory` (a RAM disk), `local` or `network`.
        engine: `auto`, or the one to take.
        memory_bytes: the budget of all workers together; None = 1 GiB, or half of what is available.
        workers: processes that share the budget.
        shards: how many shards are to be written; None = all of the plan.

    `auto` takes `mmap` where the sources fit the cache; else `tiled` where at most 8 sweeps do (2 on a network);
    else `buckets`.

    Raises:
        ConfigError: there is no such engine, or the budget does not hold one shard.
    """
    available = available_memory if available_memory is not None else free_memory()
    budget = memory_bytes if memory_bytes is not None else default_budget(plan, available, workers)
    share = min(1.0, plan.shards and (shards if shards is not None else plan.shards) / plan.shards)
    rows = max(1, round(plan.contexts * share))
    source_bytes = sum(source.tokens for source in plan.table.sources) * np.dtype(plan.dtype).itemsize
    if engine == "auto":
        name, reason = _pick(plan, rows, source_bytes, available, budget // workers, storage)
    elif engine in get_args(EngineName):
        name, reason = engine, "as asked"
    else:
        raise ConfigError(
            "no such engine",
            where="engine",
            found=repr(engine),
            expected=f"auto, {', '.join(get_args(EngineName))}",
            remedy="choose one of them",
        )
    if name == "mmap":
        return EngineChoice("mmap", 1, 0, workers * fixed_bytes(plan), reason)
    held = rows_held(plan, budget // workers)
    if name == "tiled":
        return EngineChoice("tiled", _runs(plan, held, share), 0, budget, reason)
    return EngineChoice("buckets", 1, rows * (row_bytes(plan) + KEY_BYTES), budget, reason)


def _pick(
    plan: ShufflePlan, rows: int, source_bytes: int, available: int, budget: int, storage: Storage
) -> tuple[str, str]:
    cache = int(available * _CACHE_SHARE)
    sources = f"the sources ({format_bytes(source_bytes)})"
    if storage == "memory" or source_bytes <= cache:
        where = "lie in memory" if storage == "memory" else f"fit the system's cache ({format_bytes(cache)} free)"
        return "mmap", f"{sources} {where}"
    passes = -(-rows // rows_held(plan, budget))
    limit = _PASSES[storage]
    if passes <= limit:
        return "tiled", f"the sources ({format_bytes(source_bytes)}) exceed the cache; {passes} sweeps need no scratch"
    return (
        "buckets",
        f"the sources ({format_bytes(source_bytes)}) exceed the cache; {passes} sweeps are more than {limit}",
    )


def _runs(plan: ShufflePlan, rows: int, share: float) -> int:
    whole = sum(1 for _ in runs_within(plan, range(plan.shards), rows))
    return max(1, -(-whole * round(share * 1_000_000) // 1_000_000))


def default_budget(plan: ShufflePlan, available: int, workers: int) -> int:
    """1 GiB, or half of the available memory where that is less; in any case what the workers need."""
    return max(min(MEMORY_BYTES, available // 2), workers * least_bytes(plan))


def free_memory() -> int:
    """Bytes that this process could still take, its control group's limit included; a cache of files counts as free."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="utf-8").splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = (Path(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if limit.exists() and used.exists() and (text := limit.read_text(encoding="utf-8").strip()).isdecimal():
        free = min(free, max(0, int(text) - int(used.read_text(encoding="utf-8"))))
    return free


def row_bytes(plan: ShufflePlan) -> int:
    """Bytes of one row's tokens."""
    return plan.sequence_length * np.dtype(plan.dtype).itemsize


def fixed_bytes(plan: ShufflePlan) -> int:
    """What every engine needs: tiles and chunks under way, and a window of the order."""
    tiles = 16 * max(TILE_BYTES, row_bytes(plan))  # two shards at once, of two tiles each, with headers, and gathering
    return tiles + CHUNK_BYTES + _ORDER_BYTES * min(plan.table.contexts, WINDOW)


def rows_held(plan: ShufflePlan, memory_bytes: int) -> int:
    """Rows that can be held in memory at once; at least those of one shard.

    Raises:
        ConfigError: the memory does not hold one shard.
    """
    rows = (memory_bytes - fixed_bytes(plan)) // (row_bytes(plan) + _ROW_BYTES)
    first, last = plan.shard_ranks(0)
    if rows < last - first:
        raise ConfigError(
            "the memory budget does not hold one shard",
            where="memory",
            found=f"{memory_bytes:,} bytes for each worker",
            expected=f"at least {least_bytes(plan):,} bytes",
            remedy="give more memory, use fewer workers, or put fewer samples in a shard",
        )
    return rows


def least_bytes(plan: ShufflePlan) -> int:
    """The least budget with which every engine works."""
    first, last = plan.shard_ranks(0)
    return bytes_for(plan, last - first)


def bytes_for(plan: ShufflePlan, rows: int) -> int:
    """The least budget with which so many rows are held."""
    return fixed_bytes(plan) + rows * (row_bytes(plan) + _ROW_BYTES)


def runs_within(plan: ShufflePlan, shards: Sequence[int], rows: int) -> Iterator[range]:
    """Cut ascending shards into runs of neighbours that hold at most so many rows each."""
    begin, held = 0, 0
    for i, shard in enumerate(shards):
        first, last = plan.shard_ranks(shard)
        if i > begin and (held + last - first > rows or shard != shards[i - 1] + 1):
            yield range(shards[begin], shards[i - 1] + 1)
            begin, held = i, 0
        held += last - first
    if shards:
        yield range(shards[begin], shards[-1] + 1)
