"""The tiled engine: for every memoryful of shards one sweep over the sources, in order; no scratch."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np

from nanoset_core.shuffling.contexts import TokenSource
from nanoset_core.shuffling.engines.runs import run_contexts, write_run
from nanoset_core.shuffling.engines.sweeping import sweep
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.shards import ShardFacts


def write_tiled(
    plan: ShufflePlan, sources: Sequence[TokenSource], shards: range, folder: Path
) -> Generator[ShardFacts]:
    """Write neighbouring shards whose rows fit in memory at once, in order."""
    contexts = run_contexts(plan, shards)
    rows = np.empty((len(contexts), plan.sequence_length), dtype=plan.dtype)
    sweep(plan, sources, contexts, rows)

    def fill(begin: int, end: int, out: np.ndarray) -> None:
        out[:] = rows[begin:end]

    yield from write_run(plan, shards, contexts, folder, fill)
