"""Count the padding within packs, which a plan counts as tokens: to it, a pack is a row like any
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.webdataset.contexts import SourceContexts
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.tars import TarFacts

_CHUNK_CONTEXTS = 1 << 20
"""Contexts looked up at once."""


@dataclass(frozen=True, slots=True)
class PackPadding:
    """The padding within the packs of a plan."""

    plan: ShufflePlan
    by_source: Mapping[int, NDArray[np.int64]]
    """Number of a source that consists of packs → tokens of each pack that are padding, shape
    (packs,).
    """

    def counted(self, facts: TarFacts) -> TarFacts:
        """Return the facts of a tar with the padding within its packs counted as padding."""
        padding = self._padding(self.plan.shard_contexts(facts.shard))
        return replace(facts, tokens=facts.tokens - padding, pad_tokens=facts.pad_tokens + padding)

    def counted_sources(self) -> tuple[SourceContexts, ...]:
        """Return the counts of the sources with the padding within packs counted as padding."""
        table = self.plan.table
        sources = list(table.sources)
        # By chunks, since a source may have more contexts than memory holds.
        for number in self.by_source:
            first, stop = table.first_contexts[number : number + 2].tolist()
            padding = 0
            for chunk_start in range(first, stop, _CHUNK_CONTEXTS):
                chunk_stop = min(chunk_start + _CHUNK_CONTEXTS, stop)
                padding += self._padding(np.arange(chunk_start, chunk_stop, dtype=np.int64))
            source = sources[number]
            sources[number] = replace(
                source,
                tokens_used=source.tokens_used - padding,
                pad_tokens=source.pad_tokens + padding,
            )
        return tuple(sources)

    def _padding(self, contexts: NDArray[np.int64]) -> int:
        """Return the padding within packs of some contexts, int64, shape (contexts,)."""
        if not self.by_source:
            return 0
        places = self.plan.table.locate(contexts)
        padding = 0
        for number, padding_of_packs in self.by_source.items():
            # Every row of packs is one pack, since both have one length.
            packs = places.starts[places.sources == number] // self.plan.settings.row_tokens
            padding += int(padding_of_packs[packs].sum())
        return padding
