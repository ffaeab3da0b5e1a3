"""Reading many contexts by one sweep over the sources, front to back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nanoset_core.shuffling.contexts import TokenSource
from nanoset_core.shuffling.engines.budget import CHUNK_BYTES, row_bytes
from nanoset_core.shuffling.engines.sources import let_go
from nanoset_core.shuffling.gather import gather
from nanoset_core.shuffling.plan import ShufflePlan


def sweep(plan: ShufflePlan, sources: Sequence[TokenSource], contexts: np.ndarray, rows: np.ndarray) -> None:
    """Put the contexts int64[n] into ``rows`` (n, sequence_length), in that order, read in the order they lie in.

    Of the sources' files no more than the pages of a chunk of 8 MiB are held.
    """
    step = max(1, CHUNK_BYTES // row_bytes(plan))
    order = np.argsort(contexts)  # contexts are numbered in the order in which they lie
    for begin in range(0, len(contexts), step):
        places = order[begin : begin + step]
        gather(sources, plan.table, contexts[places], out=rows, places=places)
        let_go(sources)
