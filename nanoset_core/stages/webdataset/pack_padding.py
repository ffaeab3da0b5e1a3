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
        """Correct the recorded counts of a tar file: count padding of its samples as padding.

        Samples from a packed dataset hold whole documents, and padding after them. When the tar was
        written, this padding was not distinguished from other tokens. If a tar has 1,000 tokens, of
        which 30 are such padding:

            before      tokens 1000    pad_tokens 0
            after       tokens 970     pad_tokens 30

        Args:
            facts: The counts of the tar, as they were recorded when it was written.
        """
        padding = self._padding(self.plan.shard_contexts(facts.shard))
        return replace(facts, tokens=facts.tokens - padding, pad_tokens=facts.pad_tokens + padding)

    def counted_sources(self) -> tuple[SourceContexts, ...]:
        """Return the counts of each source of text, with padding inside its samples as padding.

        Some sources are packed: their samples are whole documents, with padding after them. When
        the samples were shuffled, this padding was counted like any other token. For example, if 30
        of 1,000 tokens are such padding:

                             as counted     corrected
            tokens_used      1000           970
            pad_tokens       0              30
        """
        sources = list(self.plan.table.sources)
        for number in self.padding_by_source:  # only packed sources
            padding = self._padding_of_source(number)
            source = sources[number]
            sources[number] = replace(
                source,
                tokens_used=source.tokens_used - padding,
                pad_tokens=source.pad_tokens + padding,
            )
        return tuple(sources)

    def _padding_of_source(self, number: int) -> int:
        """Return how many tokens in all training samples of a packed source are padding.

        Args:
            number: Number of the source, which consists of sequences of whole documents, with
                padding after them. Each sample (context) has the tokens of one sequence.
        """
        # The samples of a source have consecutive numbers.
        first_context = int(self.plan.table.first_contexts[number])
        stop_context = int(self.plan.table.first_contexts[number + 1])

        # Look them up in chunks, since there may be more than memory holds.
        padding = 0
        for chunk_start in range(first_context, stop_context, _CHUNK_CONTEXTS):
            chunk_stop = min(chunk_start + _CHUNK_CONTEXTS, stop_context)
            padding += self._padding(np.arange(chunk_start, chunk_stop, dtype=np.int64))
        return padding

    def _padding(self, contexts: NDArray[np.int64]) -> int:
        """Return how many tokens of some training samples are padding of packed datasets.

        A packed dataset consists of sequences of one length. Each holds whole documents, and
        padding after them. Each sample (context) from it is one of its sequences. With 4 tokens
        each:

            sample     its first token in the dataset    its sequence    padding of the sequence
            first      0                                 0               0
            second     8                                 2               1
            third      4                                 1               3
                                                                         4 in all: the result

        Args:
            contexts: Numbers of the samples, shape (n_contexts,).
        """
        if not self.padding_by_source:
            return 0  # there is no packed dataset
        sequence_tokens = self.plan.settings.row_tokens  # 4
        places = self.plan.table.locate(contexts)  # the dataset and the first token of each sample
        n_padding = 0
        for number, padding_of_sequences in self.padding_by_source.items():
            is_from_dataset = places.sources == number  # (n_contexts,)
            first_tokens = places.starts[is_from_dataset]  # [0, 8, 4]
            sequences = first_tokens // sequence_tokens  # [0, 2, 1]
            n_padding += int(padding_of_sequences[sequences].sum())  # 0 + 1 + 3
        return n_padding
