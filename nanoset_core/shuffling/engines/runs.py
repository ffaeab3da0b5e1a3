"""Writing neighbouring shards of one worker, two at a time."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.shards import Fill, ShardFacts, write_rows
from nanoset_core.storage.atomic import fsync_folder

_AT_ONCE = 2  # while one shard goes to the disk, the next one is made


def run_contexts(plan: ShufflePlan, shards: range) -> np.ndarray:
    """Context numbers of neighbouring shards, in their order, int64[n]."""
    return np.concatenate([plan.shard_contexts(shard) for shard in shards])


def write_run(
    plan: ShufflePlan, shards: range, contexts: np.ndarray, folder: Path, fill: Fill
) -> Generator[ShardFacts]:
    """Write the shards whose contexts these are; ``fill`` counts rows from the run's first. Facts come in order."""
    first = plan.shard_ranks(shards[0])[0]

    def write(shard: int) -> ShardFacts:
        begin, end = (rank - first for rank in plan.shard_ranks(shard))

        def fill_shard(low: int, high: int, out: np.ndarray) -> None:
            fill(begin + low, begin + high, out)

        return write_rows(plan, shard, contexts[begin:end], folder, fill_shard, sync=False)

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="shard") as pool:
        yield from pool.map(write, shards)
    fsync_folder(folder)
