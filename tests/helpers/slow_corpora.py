"""A slow, obvious count of what a split reads of a corpus, by a look at each token.

The definitions are those of `nanoset_core/sampling/corpora.py`: a corpus is read through several
datasets, its members, and each member has some copies of a token.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanoset_core.formats.indexed.layout import idx_path, read_idx
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.corpora import CorpusPart, CorpusParts
from nanoset_core.stages.views.writing import write_view_idx


def write_view(folder: Path, name: str, base_prefix: str, documents: Sequence[int]) -> str:
    """Write a dataset of some documents of another one, over the same tokens.

    Returns:
        The prefix of the view.
    """
    prefix = folder / name
    os.link(f"{base_prefix}.bin", f"{prefix}.bin")
    blocks = []
    if len(documents) > 0:
        blocks.append(np.array(documents, np.int64))
    write_view_idx(idx_path(prefix), read_idx(idx_path(Path(base_prefix))), lambda: blocks)
    return str(prefix)


class SlowCorpora:
    """Members of one corpus, by the documents that they contain; a `CorpusReader`."""

    def __init__(
        self, lengths: Sequence[int], documents_by_prefix: Mapping[str, Sequence[int]]
    ) -> None:
        """Remember the members.

        Args:
            lengths: Tokens of each document of the corpus.
            documents_by_prefix: Prefix of each member → its documents, in order.
        """
        self.lengths = lengths
        self.documents_by_prefix = documents_by_prefix

    def documents(self, prefix: str, rows: tuple[int, int]) -> list[int]:
        """Return the documents in a half-open range of the sequences of a member."""
        start, stop = rows
        return list(self.documents_by_prefix[prefix])[start:stop]

    def parts(self, rows_by_prefix: Mapping[str, tuple[int, int]]) -> list[CorpusParts]:
        """Return the only corpus, as a `CorpusReader` does."""
        documents_of_members = []
        for prefix, rows in rows_by_prefix.items():
            documents_of_members.append(self.documents(prefix, rows))

        tokens_by_copies: Counter[tuple[int, ...]] = Counter()
        for document, length in enumerate(self.lengths):
            copies = tuple(documents.count(document) for documents in documents_of_members)
            if any(copies):
                tokens_by_copies[copies] += length

        parts = []
        for copies, n_tokens in sorted(tokens_by_copies.items()):
            if n_tokens > 0:
                parts.append(CorpusPart(copies, n_tokens))
        names = tuple(os.path.basename(prefix) for prefix in rows_by_prefix)
        return [CorpusParts("corpus", names, tuple(rows_by_prefix), tuple(parts))]


class SlowMember(NamedTuple):
    """What a split reads of one member."""

    tokens: int
    """Tokens of one epoch."""
    samples: int
    """Samples that are taken."""
    epochs: int
    """Epochs from which they are taken."""
    has_separate_last_epoch: bool
    """Whether the last of these epochs is shuffled by itself."""

    def epochs_read(self, config: NanosetConfig) -> float:
        """Return how many times the samples of an epoch are taken."""
        return self.samples / self._samples_of_epoch(config)

    def times_taken(self, config: NanosetConfig) -> float:
        """Return how many times a token is taken on average."""
        return self.samples * config.sequence_length / self.tokens

    def probability_read(self, config: NanosetConfig) -> float:
        """Return the probability that a token is taken at least once."""
        length = config.sequence_length
        epochs_together = self.epochs
        if self.has_separate_last_epoch:
            epochs_together -= 1

        if epochs_together > 1:
            # The samples are some of several epochs, in random order. In each of these epochs, a
            # token is taken with the same probability.
            samples_together = (epochs_together * self.tokens - 1) // length
            probability_in_epoch = min(self.samples / samples_together, 1)
            probability = 1 - (1 - probability_in_epoch) ** epochs_together
        elif self.epochs > 1:
            # The second epoch is read after the first one.
            probability = self.samples * length / self.tokens
        else:
            # The last tokens of the only epoch do not fill a sample.
            samples = min(self.samples, self._samples_of_epoch(config))
            probability = samples * length / self.tokens
        return min(probability, 1)

    def _samples_of_epoch(self, config: NanosetConfig) -> int:
        return max((self.tokens - 1) // config.sequence_length, 0)


class SlowCoverage(NamedTuple):
    """What a split reads of a corpus through all its members; numbers are expected values."""

    tokens_available: int
    """Tokens of the corpus that a member contains."""
    tokens: float
    """Tokens that are taken."""
    unique_tokens: float
    """Tokens that are taken at least once."""
    epochs: float
    """How many times a token is taken on average."""
    most_epochs: float
    """How many times those tokens are taken that are taken most often."""


def slow_coverage(
    copies_by_token: Iterable[Sequence[int]],
    members: Sequence[SlowMember],
    config: NanosetConfig,
) -> SlowCoverage:
    """Return what a split reads of a corpus, by a look at each token.

    Args:
        copies_by_token: For each token of the corpus, its copies in each member.
        members: The members.
        config: Settings of the split.
    """
    epochs_read = [member.epochs_read(config) for member in members]
    times_taken = [member.times_taken(config) for member in members]
    probabilities = [member.probability_read(config) for member in members]

    n_available = 0
    n_taken = 0.0
    n_unique = 0.0
    epochs_of_tokens = []
    for copies in copies_by_token:
        if not any(copies):
            continue
        n_available += 1

        epochs = 0.0
        probability_unread = 1.0
        for member, n_copies in enumerate(copies):
            epochs += n_copies * epochs_read[member]
            n_taken += n_copies * times_taken[member]
            probability_unread *= (1 - probabilities[member]) ** n_copies
        epochs_of_tokens.append(epochs)
        n_unique += 1 - probability_unread

    return SlowCoverage(
        tokens_available=n_available,
        tokens=n_taken,
        unique_tokens=n_unique,
        epochs=sum(epochs_of_tokens) / max(n_available, 1),
        most_epochs=max(epochs_of_tokens, default=0.0),
    )
