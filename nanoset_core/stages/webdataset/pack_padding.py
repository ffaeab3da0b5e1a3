"""Count the padding inside the sequences of packed datasets, for the lists of a webdataset.

A packed dataset fits whole documents into sequences of one length, and pads the rest: documents of
900 and 100 tokens fill a sequence of 1,024 with 24 pad tokens. A plan does not know about this
padding, and counts it as tokens.
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
    padding_by_source: Mapping[int, NDArray[np.int64]]
    """Number of a packed source → padding tokens of each of its sequences, shape (n_sequences,)."""

    def counted(self, facts: TarFacts) -> TarFacts:
        """Return the facts of a tar, with the padding inside packs counted as padding.

        Args:
            facts: Facts that were recorded while it was written, in which it counts as tokens.

        Returns:
            Facts in which fewer `tokens` and as many more `pad_tokens` are counted.
        """
        padding = self._padding(self.plan.shard_contexts(facts.shard))
        return replace(facts, tokens=facts.tokens - padding, pad_tokens=facts.pad_tokens + padding)

    def counted_sources(self) -> tuple[SourceContexts, ...]:
        """Return the counts of all sources, with the padding inside packs counted as padding.

        A pack is a sequence of whole documents, whose padding counts as tokens in the plan.
        """
        sources = list(self.plan.table.sources)
        for number in self.padding_by_source:
            padding = self._padding_of_source(number)
            source = sources[number]
            sources[number] = replace(
                source,
                tokens_used=source.tokens_used - padding,
                pad_tokens=source.pad_tokens + padding,
            )
        return tuple(sources)

    def _padding_of_source(self, number: int) -> int:
        """Return how many tokens of all contexts of a source are padding inside packs.

        A pack is a sequence of whole documents, which is padded. The contexts are looked up in
        chunks, since a source may have more than memory holds.

        Args:
            number: Number of the source.
        """
        # The contexts of a source have consecutive numbers.
        first_context = int(self.plan.table.first_contexts[number])
        stop_context = int(self.plan.table.first_contexts[number + 1])
        padding = 0
        for chunk_start in range(first_context, stop_context, _CHUNK_CONTEXTS):
            chunk_stop = min(chunk_start + _CHUNK_CONTEXTS, stop_context)
            padding += self._padding(np.arange(chunk_start, chunk_stop, dtype=np.int64))
        return padding

    def _padding(self, contexts: NDArray[np.int64]) -> int:
        """Return how many tokens of some contexts are padding inside packed sequences.

        A packed dataset consists of sequences that are exactly as long as a context of the plan.
        So each context has the tokens of one sequence.

        Args:
            contexts: Numbers of the contexts, shape (n_contexts,).
        """
        if not self.padding_by_source:
            return 0  # there is no packed dataset
        sequence_tokens = self.plan.settings.row_tokens
        places = self.plan.table.locate(contexts)
        n_padding = 0
        for source, padding_of_sequences in self.padding_by_source.items():
            # Sequence 0 begins at token 0 of the source, sequence 1 at token `sequence_tokens`, …
            starts = places.starts[places.sources == source]  # first token of each context
            sequences = starts // sequence_tokens
            n_padding += int(padding_of_sequences[sequences].sum())
        return n_padding
