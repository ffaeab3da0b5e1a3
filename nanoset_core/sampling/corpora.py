"""Count what a split reads of each corpus, whichever datasets of the blend contain its documents.

A blend may read a corpus through several datasets: that of the corpus itself, and ones that were
chosen or packed from it. These are its *members*. A document may be in several of them, or in a
view several times. All numbers here follow from one definition:

    The **epochs of a document** are the sum over all members of: its copies among the rows that the
    split has of the member, times the epochs that the split takes of these rows.

The epochs of a member's rows are the samples taken over the samples of one epoch. If that is not a
whole number, the shuffle decides which documents are read once more, so that the epochs of a
document are an expected value. From them follow

- the epochs of a corpus: the mean over the tokens that the members contain, each document counted once;
- its unique tokens: those that are read at least once. A copy of a document in a member is read with the probability
  that `share_read` returns, independently of other copies;
- its repeated tokens: all other tokens that are taken.

Tokens with equal numbers of copies in all members are counted together, as a *part*: a corpus of a
billion documents in two datasets has at most three parts, unless a view repeats documents.
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
    """Tokens of a corpus that have equal numbers of copies in all its members."""

    copies: tuple[int, ...]
    """Copies in each member, in the order of the members; at least one has a copy."""
    tokens: int
    """How many tokens these are, each counted once."""


@dataclass(frozen=True, slots=True)
class CorpusParts:
    """The tokens of a corpus that a split may read."""

    corpus: str
    members: tuple[str, ...]
    """Names of the datasets through which the split reads it."""
    prefixes: tuple[str, ...]
    """Prefixes of the members' datasets."""
    parts: tuple[CorpusPart, ...]

    @property
    def tokens(self) -> int:
        """Tokens that the members contain, each document counted once."""
        return sum(part.tokens for part in self.parts)

    @property
    def is_shared(self) -> bool:
        """Whether a document has several copies: in several members, or in one that repeats it."""
        return any(sum(part.copies) > 1 for part in self.parts)


def epochs_drawn(samples: int, tokens: int, config: NanosetConfig) -> float:
    """Return how often a dataset is read.

    This is counted in samples of one epoch, or in tokens if these are too few for a sample.

    Args:
        samples: Samples that are taken.
        tokens: Tokens of one epoch of the dataset.
        config: Configuration of the nanoset.
    """
    samples_of_epoch = config.samples_in(tokens)
    if samples_of_epoch:
        return samples / samples_of_epoch
    if tokens:
        return samples * config.sequence_length / tokens
    return 0.0


def separate_corpora(plan: SplitPlan) -> list[CorpusParts]:
    """Return the datasets of a split as corpora of their own, named by their files."""
    corpora = []
    for member in plan.members:
        name = os.path.basename(member.prefix)
        parts: tuple[CorpusPart, ...] = ()
        if member.tokens:
            parts = (CorpusPart((1,), member.tokens),)
        corpora.append(CorpusParts(name, (name,), (member.prefix,), parts))
    return corpora


class CorpusReader(Protocol):
    """Finds which datasets contain documents of the same corpora."""

    def parts(self, rows_by_prefix: Mapping[str, Rows]) -> Sequence[CorpusParts]:
        """Return the corpora of datasets; `rows_by_prefix` maps each to the sequences of it that
        count.
        """


@dataclass(frozen=True, slots=True)
class CorpusCoverage:
    """What a split reads of one corpus, through all members together."""

    corpus: str
    members: tuple[str, ...]
    """Names of the datasets through which it is read."""
    tokens_available: int
    """Tokens that the members contain in the split, each document counted once."""
    tokens: int
    """Tokens that the split takes, without padding."""
    unique_tokens: int
    """Tokens taken that the run has not read before, neither in this split nor in an earlier phase."""
    repeated_tokens: int
    """All other tokens taken."""
    padding: int
    """Tokens of padding in the samples taken."""
    epochs: float
    """Mean number of times that its documents are read, earlier phases of the run included."""
    most_epochs: float
    """Number of times that the documents are read that are read most often."""

    def to_json(self) -> dict[str, Any]:
        """Return plain types."""
        values = asdict(self)
        values["members"] = list(self.members)
        return values


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
    """Epochs that the run's first phase shuffles."""
    separate_last_epoch: bool
    """Whether the last of these is shuffled on its own."""
    distinct_samples: int | None = None
    """Samples of it that can differ at most, if the trainer repeats one shuffled epoch of the
    blend.
    """

    @staticmethod
    def of(plan: SplitPlan, config: NanosetConfig, member: MemberPlan, taken: int) -> MemberReads:
        """Return the reads of a member of a split.

        Args:
            plan: Plan of the split.
            config: Configuration of the nanoset.
            member: The member.
            taken: Samples that the split takes of it.
        """
        distinct_samples = None
        if config.rules.shuffles_blend and plan.blend is not None:
            prefixes = [each.prefix for each in plan.members]
            weight_by_prefix = dict(zip(prefixes, plan.blend.weights, strict=True))
            share = weight_by_prefix[member.prefix] / math.fsum(weight_by_prefix.values())
            epoch_size = sum(each.samples_given for each in plan.members)
            distinct_samples = math.ceil(epoch_size * share)

        # The first phase of a run decides the order of its epochs.
        first = member if member.order is None else member.order
        return MemberReads(
            tokens=member.tokens,
            before=member.taken_before,
            taken=taken,
            epochs=first.epochs,
            separate_last_epoch=first.separate_last_epoch,
            distinct_samples=distinct_samples,
        )

    def share_of_tokens(self, samples: int, config: NanosetConfig) -> float:
        """Return the tokens of a number of samples over the tokens of one epoch."""
        if not self.tokens:
            return 0.0
        return samples * config.step / self.tokens

    def share_read(self, samples: int, config: NanosetConfig) -> float:
        """Return the share of its tokens that the first samples of the run contain.

        It is exact for a whole number of epochs that are shuffled one by one. If epochs are
        shuffled together, it is the probability that at least one copy of a token is among the
        samples.

        Args:
            samples: Number of these samples.
            config: Configuration of the nanoset.
        """
        if samples <= 0 or not self.tokens:
            return 0.0

        # Epochs that are shuffled one by one: the first samples differ.
        epochs_together = self.epochs
        if self.separate_last_epoch:
            epochs_together -= 1
        if epochs_together <= 1:
            n_distinct = samples
            if self.epochs <= 1:
                n_distinct = min(n_distinct, config.samples_in(self.tokens))
            if self.distinct_samples is not None:
                n_distinct = min(n_distinct, self.distinct_samples)
            return min(self.share_of_tokens(n_distinct, config), 1.0)

        # Epochs that are shuffled together: a token has as many copies, each among the samples or
        # not.
        samples_together = config.samples_in(epochs_together * self.tokens)
        if samples >= samples_together:
            return 1.0
        probability_unread = (1.0 - samples / samples_together) ** epochs_together
        return 1.0 - probability_unread


def corpus_coverage(
    corpora: Sequence[CorpusParts], reads: Mapping[str, MemberReads], config: NanosetConfig
) -> list[CorpusCoverage]:
    """Return what a split reads of each corpus.

    Args:
        corpora: Corpora of the split's datasets, and of those that earlier phases of the run read.
        reads: Prefix → samples that are taken of each of these datasets.
        config: Configuration of the nanoset.
    """
    rows = []
    for corpus in corpora:
        members = [reads[prefix] for prefix in corpus.prefixes]
        is_read = any(member.taken for member in members)
        was_read_before = any(member.before for member in members)
        if is_read or not was_read_before:
            rows.append(_coverage_of(corpus, members, config))
    return rows


def _coverage_of(
    corpus: CorpusParts, members: Sequence[MemberReads], config: NanosetConfig
) -> CorpusCoverage:
    # For each member: the epochs that the run has read at the end of the split, the tokens that the
    # split takes over those of one epoch, and the share of its tokens that the run has read at the
    # start and at the end of the split.
    epochs = []
    shares_taken = []
    shares_before = []
    shares_after = []
    for member in members:
        samples_of_run = member.before + member.taken
        epochs.append(epochs_drawn(samples_of_run, member.tokens, config))
        shares_taken.append(member.share_of_tokens(member.taken, config))
        shares_before.append(member.share_read(member.before, config))
        shares_after.append(member.share_read(samples_of_run, config))

    # Add up the parts of the corpus.
    taken = 0.0
    unique = 0.0
    epochs_of_tokens = 0.0
    most_epochs = 0.0
    for part in corpus.parts:
        taken += part.tokens * _weighted(part, shares_taken)
        probability_new = _probability(part, shares_after) - _probability(part, shares_before)
        unique += part.tokens * probability_new
        part_epochs = _weighted(part, epochs)
        epochs_of_tokens += part.tokens * part_epochs
        most_epochs = max(most_epochs, part_epochs)

    samples = sum(member.taken for member in members)
    tokens = round(taken)
    unique_tokens = min(round(unique), tokens)
    available = corpus.tokens
    mean_epochs = 0.0
    if available:
        mean_epochs = epochs_of_tokens / available
    return CorpusCoverage(
        corpus=corpus.corpus,
        members=corpus.members,
        tokens_available=available,
        tokens=tokens,
        unique_tokens=unique_tokens,
        repeated_tokens=tokens - unique_tokens,
        padding=max(samples * config.step - tokens, 0),
        epochs=mean_epochs,
        most_epochs=most_epochs,
    )


def _weighted(part: CorpusPart, values: Sequence[float]) -> float:
    """Return the sum of a value of each member, such as its epochs, times the copies of the part in
    that member.
    """
    return math.fsum(copies * value for copies, value in zip(part.copies, values, strict=True))


def _probability(part: CorpusPart, shares_read: Sequence[float]) -> float:
    """Return the probability that a token of a part is read at least once."""
    probability_unread = 1.0
    for copies, share in zip(part.copies, shares_read, strict=True):
        probability_unread *= (1.0 - share) ** copies
    return 1.0 - probability_unread


@dataclass(frozen=True, slots=True)
class SharedLimit:
    """A limit on the epochs of documents that several members contain, or one member several times."""

    prefix: str
    """Prefix of the member that has the limit."""
    corpus: str
    holders: tuple[str, ...]
    """Names of the members that contain the documents."""
    copies: Mapping[str, int]
    """Prefix → copies of these documents."""
    limit: float
    """How often they may be read."""

    def times(self, epochs: Mapping[str, float]) -> float:
        """Return how often these documents are read; `epochs` maps the prefix of each dataset to
        its epochs.
        """
        return math.fsum(copies * epochs[prefix] for prefix, copies in self.copies.items())

    def is_exceeded(self, epochs: Mapping[str, float], tolerance: float = _ROUNDING) -> bool:
        """Return whether these documents are read too often; `epochs` as in `times`."""
        return self.times(epochs) > self.limit + tolerance


def shared_limits(corpora: Sequence[CorpusParts], limits: Mapping[str, float]) -> list[SharedLimit]:
    """Return the limits on documents with several copies.

    A limit of a member holds for all its documents, so that each part of a corpus may have several
    limits.

    Args:
        corpora: Corpora of the datasets of a split.
        limits: Prefix → how often a dataset may be read; one that is no key has no limit.
    """
    shared = []
    for corpus in corpora:
        if not corpus.is_shared:
            continue
        for part in corpus.parts:
            holders = [number for number, copies in enumerate(part.copies) if copies]
            names = tuple(corpus.members[number] for number in holders)
            copies_by_prefix = {corpus.prefixes[number]: part.copies[number] for number in holders}
            for prefix in copies_by_prefix:
                if prefix in limits:
                    shared.append(
                        SharedLimit(prefix, corpus.corpus, names, copies_by_prefix, limits[prefix])
                    )
    return shared
