"""Count the padding inside the sequences of packed datasets, for the lists of a webdataset.

A plan does not know about this padding, and counts it as tokens.
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
"""Number of contexts that are looked up at once."""


@dataclass(frozen=True, slots=True)
class PackPadding:
    """The padding inside the packed datasets that a plan reads."""

    plan: ShufflePlan
    by_source: Mapping[int, NDArray[np.int64]]
    """Number of a packed source → padding tokens of each of its sequences, shape (n_sequences,)."""

    def counted(self, facts: TarFacts) -> TarFacts:
        """Return the facts of a tar, with the padding inside packs counted as padding.

        Args:
            facts: Facts that were recorded while it was written, in which it counts as tokens.
        """
        padding = self._padding(self.plan.shard_contexts(facts.shard))
        return replace(facts, tokens=facts.tokens - padding, pad_tokens=facts.pad_tokens + padding)

    def counted_sources(self) -> tuple[SourceContexts, ...]:
        """Return the counts of the plan's sources, in which no padding is counted as tokens.

        A source may be a packed dataset, whose sequences consist of documents and of padding. The
        plan counts this padding as tokens. If a context occurs several times, so does its padding.
        """
        table = self.plan.table
        sources = list(table.sources)
        # In chunks, since a source may have more contexts than memory holds.
        for number in self.by_source:
            first_context, stop_context = table.first_contexts[number : number + 2].tolist()
            padding = 0
            for chunk_start in range(first_context, stop_context, _CHUNK_CONTEXTS):
                chunk_stop = min(chunk_start + _CHUNK_CONTEXTS, stop_context)
                padding += self._padding(np.arange(chunk_start, chunk_stop, dtype=np.int64))
            source = sources[number]
            sources[number] = replace(
                source,
                tokens_used=source.tokens_used - padding,
                pad_tokens=source.pad_tokens + padding,
            )
        return tuple(sources)

    def _padding(self, contexts: NDArray[np.int64]) -> int:
        """Return the number of padding tokens in some contexts.

        Args:
            contexts: Numbers of the contexts, shape (n_contexts,).
        """
        if not self.by_source:
            return 0  # there is no packed dataset
        places = self.plan.table.locate(contexts)
        padding = 0
        for number, padding_of_sequences in self.by_source.items():
            # Packed sequences are as long as a row of the plan, so each row is one sequence.
            starts = places.starts[places.sources == number]  # first token of each row
            sequences = starts // self.plan.settings.row_tokens
            padding += int(padding_of_sequences[sequences].sum())
        return padding
