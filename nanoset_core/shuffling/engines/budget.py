"""How a memory budget is spent: what an engine needs in any case, and how many rows the rest holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nanoset_core.errors import ConfigError
from nanoset_core.shuffling.order import WINDOW
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.shards import TILE_BYTES

CHUNK_BYTES = 8 << 20
"""tokens read from the sources at once"""
_ORDER_BYTES = 40  # a context of a window of the order, while it is sorted
_ROW_BYTES = 80  # place, number and key of a row, and what sorting them takes


def row_bytes(plan: ShufflePlan) -> int:
    """Bytes of one row's tokens."""
    return plan.sequence_length * np.dtype(plan.dtype).itemsize


def fixed_bytes(plan: ShufflePlan) -> int:
    """What every engine needs: tiles and chunks under way, and a window of the order."""
    tiles = 16 * max(TILE_BYTES, row_bytes(plan))  # two shards at once, of two tiles each, with headers, and gathering
    return tiles + CHUNK_BYTES + _ORDER_BYTES * min(plan.table.contexts, WINDOW)


def rows_held(plan: ShufflePlan, memory_bytes: int) -> int:
    """Rows that can be held in memory at once; at least those of one shard. Raises ConfigError when they cannot."""
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
    return fixed_bytes(plan) + (last - first) * (row_bytes(plan) + _ROW_BYTES)


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
