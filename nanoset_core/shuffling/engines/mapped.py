"""The mmap engine: every shard's rows are looked up in the mapped files; for sources that the system's cache holds."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np

from nanoset_core.shuffling.contexts import TokenSource
from nanoset_core.shuffling.engines.runs import run_contexts, write_run
from nanoset_core.shuffling.gather import gather
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.shards import ShardFacts


def write_mapped(
    plan: ShufflePlan, sources: Sequence[TokenSource], shards: range, folder: Path
) -> Generator[ShardFacts]:
    """Write neighbouring shards, in order; each tile of a shard is a gather of its own."""
    contexts = run_contexts(plan, shards)

    def fill(begin: int, end: int, out: np.ndarray) -> None:
        gather(sources, plan.table, contexts[begin:end], out=out)

    yield from write_run(plan, shards, contexts, folder, fill)
