"""Count what a split reads of each corpus, whichever datasets of the blend hold its documents.

A blend may read a corpus through several datasets: the corpus itself, views of it, packs. These are its *members*. A
document may be in several of them, or in a view several times. All numbers here follow from one definition:

    The **epochs of a document** are the sum, over the members, of its copies in the rows of the member that the split
    has, times the epochs that the split takes of these rows.

The epochs of a member's rows are the samples taken over the samples of one epoch. If that is not a whole number, which
documents are read once more depends on the shuffle, so that the epochs of a document are an expected value. From them
follow

- the epochs of a corpus: the mean over the tokens that the members hold, each document counted once;
- its unique tokens: those that are read at least once. A copy of a document in a member is read with the probability
  that `share_read` returns, and copies are read independently of each other;
- its repeated tokens: all other tokens that are taken.

Tokens with equal numbers of copies in all members are counted together, as a *part*: a corpus of a billion documents in
two datasets has at most three parts, unless a view repeats documents.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.planned import MemberPlan, SplitPlan
from nanoset_core.sampling.splits import Rows

_ROUNDING = 1e-9
"""Difference of epochs below which two numbers are the same."""


@dataclass(frozen=True, slots=True)
class CorpusPart:
    """Tokens of a corpus that each of its members holds equally often."""

    copies: tuple[int, ...]
    """How often each member holds them, in the order of the members; at least one holds them."""
    tokens: int
    """How many these are, each counted once."""


@dataclass(frozen=True, slots=True)
class CorpusParts:
    """The tokens of a corpus that a split may read."""

    corpus: str
    members: tuple[str, ...]
    """Names of the corpus, views and packs through which the split reads it."""
    prefixes: tuple[str, ...]
    """Of the members' datasets."""
    parts: tuple[CorpusPart, ...]

    @property
    def tokens(self) -> int:
        """Tokens that the members hold, each document counted once."""
        return sum(part.tokens for part in self.parts)

    @property
    def is_shared(self) -> bool:
        """Whether a document has several copies: in several members, or in one that repeats it."""
        return any(sum(part.copies) > 1 for part in self.parts)


def epochs_drawn(samples: int, tokens: int, config: NanosetConfig) -> float:
    """Return how often samples read a dataset: in samples of one epoch, or in tokens if these are too few for a sample.

    Args:
        samples: that are taken.
        tokens: of one epoch of the dataset.
        config: of the split.
    """
    samples_of_epoch = config.samples_in(tokens)
    if samples_of_epoch:
        return samples / samples_of_epoch
    return samples * config.sequence_length / tokens if tokens else 0.0


def separate_corpora(plan: SplitPlan) -> list[CorpusParts]:
    """Return the datasets of a split as corpora of their own, named by their files."""
    corpora = []
    for member in plan.members:
        name = os.path.basename(member.prefix)
        parts = (CorpusPart((1,), member.tokens),) if member.tokens else ()
        corpora.append(CorpusParts(name, (name,), (member.prefix,), parts))
    return corpora


class CorpusReader(Protocol):
    """Finds which datasets hold the documents of the same corpora."""

    def parts(self, rows_by_prefix: Mapping[str, Rows]) -> Sequence[CorpusParts]:
        """Return the corpora of some datasets, of which only these rows (sequences) count."""


@dataclass(frozen=True, slots=True)
class CorpusCoverage:
    """What a split reads of one corpus, through all members together."""

    corpus: str
    members: tuple[str, ...]
    """Names of the corpus, views and packs through which it is read."""
    tokens_available: int
    """Tokens that the members hold in the split, each document counted once."""
    tokens: int
    """Tokens that the split takes; the padding of packs is not among them."""
    unique_tokens: int
    """Tokens taken that the run has not read before, neither in this split nor in an earlier phase."""
    repeated_tokens: int
    """All other tokens taken."""
    padding: int
    """Tokens of padding in the samples taken."""
    epochs: float
    """Mean number of times that its documents are read, earlier phases of the run included."""
    most_epochs: float
    """The same of the documents that are read most often."""

    def to_json(self) -> dict[str, Any]:
        """Return plain types."""
        return asdict(self) | {"members": list(self.members)}


@dataclass(frozen=True, slots=True)
class MemberReads:
    """Samples that a run takes of one dataset."""

    tokens: int
    """Tokens of its rows."""
    before: int
    """Samples that earlier phases of the run took."""
    taken: int
    """Samples that the split takes."""
    epochs: int
    """Epochs in the order of its first phase."""
    separate_last_epoch: bool
    """Whether the last of these is shuffled apart from the others."""
    distinct_samples: int | None = None
    """Most samples of it that differ, if the trainer repeats one shuffled epoch of the blend."""

    @staticmethod
    def of(plan: SplitPlan, config: NanosetConfig, member: MemberPlan, taken: int) -> MemberReads:
        """Return the reads of a member of a split, which takes so many samples of it."""
        distinct = None
        if config.rules.shuffles_blend and plan.blend is not None:
            weights = dict(zip((one.prefix for one in plan.members), plan.blend.weights, strict=True))
            share = weights[member.prefix] / math.fsum(weights.values())
            distinct = math.ceil(sum(one.samples_given for one in plan.members) * share)
        order = member.order
        if order is None:
            return MemberReads(member.tokens, 0, taken, member.epochs, member.separate_last_epoch, distinct)
        return MemberReads(member.tokens, order.taken, taken, order.epochs, order.separate_last_epoch, distinct)

    def share_of_tokens(self, samples: int, config: NanosetConfig) -> float:
        """Return the tokens of so many samples over those of one epoch."""
        return samples * config.step / self.tokens if self.tokens else 0.0

    def share_read(self, samples: int, config: NanosetConfig) -> float:
        """Return the share of its tokens that the first so many samples of the run hold.

        Exact for a whole number of epochs that are shuffled one by one. If epochs are shuffled together, it is the
        probability that at least one copy of a token is among the samples.
        """
        if samples <= 0 or not self.tokens:
            return 0.0
        samples_of_epoch = config.samples_in(self.tokens)
        together = self.epochs - 1 if self.separate_last_epoch else self.epochs
        if together <= 1:
            distinct = samples if self.epochs > 1 else min(samples, samples_of_epoch)
            if self.distinct_samples is not None:
                distinct = min(distinct, self.distinct_samples)
            return min(self.share_of_tokens(distinct, config), 1.0)

        samples_together = config.samples_in(together * self.tokens)
        if samples >= samples_together:
            return 1.0
        return 1.0 - (1.0 - samples / samples_together) ** together


def corpus_coverage(
    corpora: Sequence[CorpusParts], reads: Mapping[str, MemberReads], config: NanosetConfig
) -> list[CorpusCoverage]:
    """Return what a split reads of each corpus.

    Args:
        corpora: of the split's datasets, and of those that earlier phases of the run read.
        reads: prefix → samples that are taken of each of these datasets.
        config: of the split.
    """
    rows = []
    for corpus in corpora:
        members = [reads[prefix] for prefix in corpus.prefixes]
        if not any(member.taken for member in members) and any(member.before for member in members):
            continue  # only earlier phases read it
        rows.append(_coverage_of(corpus, members, config))
    return rows


def _coverage_of(corpus: CorpusParts, members: Sequence[MemberReads], config: NanosetConfig) -> CorpusCoverage:
    # Of each member: epochs that the run has read at the end of the split, tokens that the split takes over those of an
    # epoch, and the share of its tokens that the run has read at the start and at the end.
    epochs = [epochs_drawn(member.before + member.taken, member.tokens, config) for member in members]
    shares_taken = [member.share_of_tokens(member.taken, config) for member in members]
    shares_before = [member.share_read(member.before, config) for member in members]
    shares_after = [member.share_read(member.before + member.taken, config) for member in members]

    taken = 0.0
    unique = 0.0
    epochs_of_tokens = 0.0
    most_epochs = 0.0
    for part in corpus.parts:
        taken += part.tokens * _weighted(part, shares_taken)
        unique += part.tokens * (_probability(part, shares_after) - _probability(part, shares_before))
        part_epochs = _weighted(part, epochs)
        epochs_of_tokens += part.tokens * part_epochs
        most_epochs = max(most_epochs, part_epochs)

    samples = sum(member.taken for member in members)
    tokens = round(taken)
    unique_tokens = min(round(unique), tokens)
    available = corpus.tokens
    return CorpusCoverage(
        corpus=corpus.corpus,
        members=corpus.members,
        tokens_available=available,
        tokens=tokens,
        unique_tokens=unique_tokens,
        repeated_tokens=tokens - unique_tokens,
        padding=max(samples * config.step - tokens, 0),
        epochs=epochs_of_tokens / available if available else 0.0,
        most_epochs=most_epochs,
    )


def _weighted(part: CorpusPart, epochs: Sequence[float]) -> float:
    """Return the epochs of a part's documents, from those of each member."""
    return math.fsum(copies * times for copies, times in zip(part.copies, epochs, strict=True))


def _probability(part: CorpusPart, shares_read: Sequence[float]) -> float:
    """Return the probability that a token of a part is read at least once."""
    unread = 1.0
    for copies, share in zip(part.copies, shares_read, strict=True):
        unread *= (1.0 - share) ** copies
    return 1.0 - unread


@dataclass(frozen=True, slots=True)
class SharedLimit:
    """A limit on the epochs of documents that several members hold, or one member several times."""

    prefix: str
    """Of the member that has the limit."""
    corpus: str
    holders: tuple[str, ...]
    """Names of the members that hold the documents."""
    copies: Mapping[str, int]
    """Prefix → copies of these documents."""
    limit: float
    """How often they may be read."""

    def times(self, epochs: Mapping[str, float]) -> float:
        """Return how often these documents are read, by the epochs of each dataset."""
        return math.fsum(copies * epochs[prefix] for prefix, copies in self.copies.items())

    def is_exceeded(self, epochs: Mapping[str, float], tolerance: float = _ROUNDING) -> bool:
        """Return whether these documents are read too often, by the epochs of each dataset."""
        return self.times(epochs) > self.limit + tolerance


def shared_limits(corpora: Sequence[CorpusParts], limits: Mapping[str, float]) -> list[SharedLimit]:
    """Return the limits on documents with several copies: each limit of a member holds for all of its documents.

    Args:
        corpora: of the datasets of a split.
        limits: prefix → most epochs; a dataset that is not named has none.
    """
    found = []
    for corpus in corpora:
        if not corpus.is_shared:
            continue
        for part in corpus.parts:
            holders = [number for number, copies in enumerate(part.copies) if copies]
            copies = {corpus.prefixes[number]: part.copies[number] for number in holders}
            names = tuple(corpus.members[number] for number in holders)
            for prefix in copies:
                if prefix in limits:
                    found.append(SharedLimit(prefix, corpus.corpus, names, copies, limits[prefix]))
    return found
