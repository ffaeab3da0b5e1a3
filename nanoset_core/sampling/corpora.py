"""Count what a split reads of each corpus, whichever datasets of the blend contain its documents.

A blend may read a corpus through several datasets: that of the corpus itself, and ones that were
made from it. These datasets are the *members* of the corpus. A document may be in several
members, and several times in one of them. All numbers here follow from one definition:

    epochs of a document = sum over all members of
        copies of the document among the sequences that the split has of the member
        * epochs that the split takes of these sequences

For example, a split takes 2 epochs of the corpus "web", and 3 epochs of a view with its best tenth.
Documents of the view are read 2 + 3 = 5 times, and all others 2 times. With 1,000 tokens of web,
100 of them in the view, that gives

    epochs             (100 * 5 + 900 * 2) / 1,000 = 2.3: the mean over all tokens of the corpus
    unique tokens      1,000: those that are read at least once
    repeated tokens    2,300 - 1,000 = 1,300: all others that are taken

The epochs of a member are the samples taken over the samples of one epoch. If that is not a whole
number, the shuffle decides which documents are read once more. Then the epochs of a document are an
expected value, and a copy of a document is read with the probability that `share_read` returns,
independently of other copies.

Tokens with equal numbers of copies in all members are counted together, as a *part*. The example
has two parts: a corpus of a billion documents in two datasets has at most three, unless a view
repeats documents.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.planned import BlendPlan, MemberPlan, SplitPlan
from nanoset_core.sampling.splits import Rows, plain_sum

_ROUNDING = 1e-9
"""Numbers of epochs that differ by less are equal."""


@dataclass(frozen=True, slots=True)
class CorpusPart:
    """Tokens of a corpus that have equal numbers of copies in all its members."""

    copies: tuple[int, ...]
    """Number of copies in each member, in the order of the members; not all are 0."""
    tokens: int
    """How many tokens these are, each counted once."""


@dataclass(frozen=True, slots=True)
class CorpusParts:
    """The tokens of a corpus that a split may read."""

    corpus: str
    members: tuple[str, ...]
    """Names of the datasets through which the split reads it."""
    prefixes: tuple[str, ...]
    """Paths of these datasets without .bin and .idx."""
    parts: tuple[CorpusPart, ...]
    """The tokens, grouped by their copies in the members."""

    @property
    def tokens(self) -> int:
        """Tokens that the members contain, where each document counts once."""
        return sum(part.tokens for part in self.parts)

    @property
    def is_shared(self) -> bool:
        """Whether a document is in several members, or several times in one."""
        return any(sum(part.copies) > 1 for part in self.parts)


def epochs_drawn(samples: int, tokens: int, config: NanosetConfig) -> float:
    """Return how often a dataset is read if a number of samples is taken of it.

    For example, 150 samples of a dataset whose epoch has 100 samples are 1.5 epochs. If the dataset
    is too small for a single sample, it is the number of tokens in the samples divided by that of
    the dataset.

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
    """Return the datasets of a split as if each were a corpus of its own, named by its file.

    Use this if it is not known whether datasets have documents in common. What the split reads of
    the corpora is then what it reads of the datasets.

    Args:
        plan: Plan of the split.
    """
    corpora = []
    for dataset in plan.members:
        name = os.path.basename(dataset.prefix)
        # The dataset has one copy of each of its tokens. A corpus without tokens has no parts.
        all_tokens = CorpusPart(copies=(1,), tokens=dataset.tokens)
        parts = (all_tokens,) if dataset.tokens else ()
        corpus = CorpusParts(corpus=name, members=(name,), prefixes=(dataset.prefix,), parts=parts)
        corpora.append(corpus)
    return corpora


class CorpusReader(Protocol):
    """Finds which datasets contain documents of the same corpora."""

    def parts(self, rows_by_prefix: Mapping[str, Rows]) -> Sequence[CorpusParts]:
        """Return the corpora that some datasets contain.

        Args:
            rows_by_prefix: Prefix of each dataset → the sequences that count, as a half-open range.

        Returns:
            For each corpus, the datasets that contain documents of it, and how many tokens each of
            them has in common with others.
        """


@dataclass(frozen=True, slots=True)
class CorpusCoverage:
    """What a split reads of one corpus, through all its members together."""

    corpus: str
    members: tuple[str, ...]
    """Names of the datasets through which it is read."""
    tokens_available: int
    """Tokens of the corpus in the split, where each document counts once."""
    tokens: int
    """Tokens that the split takes, without padding."""
    unique_tokens: int
    """Tokens that are taken for the first time, in this split and all earlier phases of the run."""
    repeated_tokens: int
    """All other tokens taken."""
    padding: int
    """Tokens of padding in the samples taken."""
    epochs: float
    """How often its tokens are read on average, including earlier phases of the run."""
    most_epochs: float
    """How often those documents are read that are read most often."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain types.

        Returns:
            Name of each field → value, with the members as a list.
        """
        values = asdict(self)
        values["members"] = list(self.members)
        return values


@dataclass(frozen=True, slots=True)
class MemberReads:
    """The samples that a run takes of one dataset, and how they are shuffled."""

    tokens: int
    """Tokens of the sequences that the split has of it: those of one epoch."""
    samples_before: int
    """Samples that earlier phases of the run took."""
    samples_taken: int
    """Samples that the split takes."""
    epochs: int
    """Epochs that the first phase of the run shuffles."""
    separate_last_epoch: bool
    """Whether the last of these epochs is shuffled on its own."""
    distinct_samples: int | None = None
    """Largest number of different samples that can be taken, if the trainer repeats one shuffled
    epoch of the blend; otherwise None.
    """

    @property
    def samples_of_run(self) -> int:
        """Samples that the run has taken at the end of the split, in all its phases."""
        return self.samples_before + self.samples_taken

    @staticmethod
    def of(
        plan: SplitPlan, config: NanosetConfig, member: MemberPlan, n_samples: int
    ) -> MemberReads:
        """Return what a run reads of one dataset of a split, up to the end of the split.

        A run has *phases* if it was stopped and continued with another blend. All phases read a
        dataset in one order, which the first phase decides: how many epochs are shuffled together,
        and whether
        the last one is shuffled on its own.

        Args:
            plan: Plan of the split.
            config: Configuration of the nanoset.
            member: Plan of the dataset.
            n_samples: Samples that the split takes of the dataset.
        """
        # Some trainers shuffle one epoch of the blend, and repeat it. Then they take no other
        # samples of the dataset than those of this epoch.
        distinct_samples = None
        if config.rules.shuffles_blend and plan.blend is not None:
            distinct_samples = _samples_in_blend_epoch(plan, plan.blend, member)

        first_phase = member if member.order is None else member.order
        return MemberReads(
            tokens=member.tokens,
            samples_before=member.taken_before,
            samples_taken=n_samples,
            epochs=first_phase.epochs,
            separate_last_epoch=first_phase.separate_last_epoch,
            distinct_samples=distinct_samples,
        )

    @staticmethod
    def by_prefix(
        plan: SplitPlan, config: NanosetConfig, sample_counts: Sequence[int]
    ) -> dict[str, MemberReads]:
        """Return what a run reads of each dataset of a split.

        Args:
            plan: Plan of the split.
            config: Configuration of the nanoset.
            sample_counts: Samples that the split takes of each dataset, in the order of the plan.
        """
        reads: dict[str, MemberReads] = {}
        for member, samples in zip(plan.members, sample_counts, strict=True):
            reads[member.prefix] = MemberReads.of(plan, config, member, samples)
        return reads

    def share_of_tokens(self, samples: int, config: NanosetConfig) -> float:
        """Return the tokens of some samples, divided by the tokens of one epoch.

        Args:
            samples: Number of samples.
            config: Configuration of the nanoset, which says how many tokens apart samples start.

        Returns:
            The quotient, which may be above 1: 30 samples of 10 tokens from 200 tokens give 1.5. It
            is 0 if the dataset has no tokens.
        """
        if not self.tokens:
            return 0.0
        return samples * config.step / self.tokens

    def share_read(self, samples: int, config: NanosetConfig) -> float:
        """Return the share of the dataset's tokens that the first samples of a run contain.

        For example, 60 of 100 samples of one epoch contain 0.6 of its tokens. If two epochs are
        shuffled together, 60 of their 200 samples have some tokens twice, and so only about 0.51.

        Args:
            samples: How many of the dataset's samples the run has taken.
            config: Configuration of the nanoset.

        Returns:
            From 0 to 1. If several epochs are shuffled together, it is an expected value.
        """
        if samples <= 0 or not self.tokens:
            return 0.0

        # The last epoch may be shuffled on its own. How many come before it?
        epochs_together = self.epochs
        if self.separate_last_epoch:
            epochs_together -= 1
        if epochs_together <= 1:
            return self._share_read_of_first_epoch(samples, config)
        return self._share_read_of_shuffled_epochs(samples, epochs_together, config)

    def _share_read_of_first_epoch(self, samples: int, config: NanosetConfig) -> float:
        """Return the share of the tokens that are read, if the first epoch is shuffled alone.

        The first epoch repeats no token. So the share grows in proportion to the samples, until all
        tokens are read.

        Args:
            samples: How many of the dataset's samples the run has taken.
            config: Configuration of the nanoset.
        """
        n_distinct = samples
        if self.epochs <= 1:
            # Further samples repeat those of the only epoch.
            n_distinct = min(n_distinct, config.samples_in(self.tokens))
        if self.distinct_samples is not None:
            # Further samples repeat those of the blend's epoch.
            n_distinct = min(n_distinct, self.distinct_samples)
        return min(self.share_of_tokens(n_distinct, config), 1.0)

    def _share_read_of_shuffled_epochs(
        self, samples: int, n_epochs: int, config: NanosetConfig
    ) -> float:
        """Return the expected share of the tokens that are read, if epochs are shuffled together.

        A token has a copy in each epoch. For example, 60 of the 200 samples of two epochs are read:
        each copy is unread with a probability of 0.7, and both with 0.7 * 0.7. So 0.51 are read.

        Args:
            samples: How many of the dataset's samples the run has taken.
            n_epochs: Number of epochs that are shuffled together.
            config: Configuration of the nanoset.
        """
        n_shuffled = config.samples_in(n_epochs * self.tokens)
        if samples >= n_shuffled:
            return 1.0
        probability_copy_is_unread = 1.0 - samples / n_shuffled
        return 1.0 - probability_copy_is_unread**n_epochs


def _samples_in_blend_epoch(plan: SplitPlan, blend: BlendPlan, member: MemberPlan) -> int:
    """Return how many samples of a dataset are in one epoch of a blend.

    Some trainers build one epoch of the blend, and repeat it. It has as many samples as all
    datasets together. For example, two datasets have 300 and 100 samples, and equal weights: the
    epoch has 400 samples, and so 200 of each dataset.

    Args:
        plan: Plan of the split.
        blend: Plan of the blend, which is part of it.
        member: Plan of the dataset.
    """
    prefixes = [other.prefix for other in plan.members]
    weight_by_prefix = dict(zip(prefixes, blend.weights, strict=True))
    share = weight_by_prefix[member.prefix] / math.fsum(weight_by_prefix.values())
    epoch_size = sum(other.samples_given for other in plan.members)
    return math.ceil(epoch_size * share)


def corpus_coverage(
    corpora: Sequence[CorpusParts],
    reads_by_prefix: Mapping[str, MemberReads],
    config: NanosetConfig,
) -> list[CorpusCoverage]:
    """Return what a split reads of each corpus: tokens, epochs and repetitions.

    Corpora that the run has only read before, with another blend, are left out.

    Args:
        corpora: Corpora of the split's datasets, and of those that earlier phases have read.
        reads_by_prefix: Prefix of each of these datasets → the samples that are taken of it.
        config: Configuration of the nanoset.
    """
    rows = []
    for corpus in corpora:
        datasets = [reads_by_prefix[prefix] for prefix in corpus.prefixes]
        is_read_by_split = any(dataset.samples_taken > 0 for dataset in datasets)
        was_read_before = any(dataset.samples_before > 0 for dataset in datasets)
        if was_read_before and not is_read_by_split:
            continue  # of earlier phases only
        # A corpus of the split is listed even if no sample is taken of it.
        rows.append(_coverage_of(corpus, datasets, config))
    return rows


def _coverage_of(
    corpus: CorpusParts, members: Sequence[MemberReads], config: NanosetConfig
) -> CorpusCoverage:
    """Return what a split reads of one corpus, through all datasets that contain its documents.

    Args:
        corpus: The corpus. Its *members* are these datasets: its own, and views of it.
        members: The samples that are taken of each member, in order.
        config: Configuration of the nanoset.
    """
    # Tokens can be expected values, so they are rounded.
    tokens = round(_tokens_read(corpus, members, config))
    unique_tokens = min(round(_tokens_read_first(corpus, members, config)), tokens)

    # What the samples contain in addition is padding. Samples start `step` tokens apart.
    n_samples = sum(member.samples_taken for member in members)
    padding = max(n_samples * config.step - tokens, 0)

    epochs_by_part = _epochs_of_parts(corpus, members, config)
    return CorpusCoverage(
        corpus=corpus.corpus,
        members=corpus.members,
        tokens_available=corpus.tokens,
        tokens=tokens,
        unique_tokens=unique_tokens,
        repeated_tokens=tokens - unique_tokens,
        padding=padding,
        epochs=_mean_epochs(corpus, epochs_by_part),
        most_epochs=max(epochs_by_part, default=0.0),
    )


def _tokens_read(
    corpus: CorpusParts, members: Sequence[MemberReads], config: NanosetConfig
) -> float:
    """Return how many tokens of a corpus a split reads, each counted as often as it is read.

    For example, a corpus has 1,000 tokens, and 100 of them are also in a second dataset. The split
    reads two epochs of the first dataset, and three of the second: 900 * 2 + 100 * (2 + 3) = 2,300.

    Args:
        corpus: The corpus. Its *members* are the datasets that contain its documents. Tokens with
            equal numbers of copies in each member are a *part*: there are two in the example.
        members: The samples that are taken of each member, in order.
        config: Configuration of the nanoset.
    """
    # How often each member is read: [2.0, 3.0] in the example.
    reads = [member.share_of_tokens(member.samples_taken, config) for member in members]
    return plain_sum(part.tokens * _sum_over_copies(part, reads) for part in corpus.parts)


def _tokens_read_first(
    corpus: CorpusParts, members: Sequence[MemberReads], config: NanosetConfig
) -> float:
    """Return how many tokens of a corpus a split reads that the run has not read before.

    A run may have read some before it continued with another blend. For example, 30% of the tokens
    were read when the split starts, and 80% when it ends. Of 1,000 tokens, it reads 500 for the
    first time.

    Args:
        corpus: The corpus. Its *members* are the datasets that contain its documents. Tokens with
            equal numbers of copies in each member are a *part*.
        members: The samples that are taken of each member, in order.
        config: Configuration of the nanoset.
    """
    # The share of each member that the run has read when the split starts, and when it ends.
    shares_before = [member.share_read(member.samples_before, config) for member in members]
    shares_after = [member.share_read(member.samples_of_run, config) for member in members]
    tokens = 0.0
    for part in corpus.parts:
        probability_before = _probability_read(part, shares_before)
        probability_after = _probability_read(part, shares_after)
        tokens += part.tokens * (probability_after - probability_before)
    return tokens


def _epochs_of_parts(
    corpus: CorpusParts, members: Sequence[MemberReads], config: NanosetConfig
) -> list[float]:
    """Return how often the whole run reads the documents of each part of a corpus.

    The documents are read through several datasets, the *members* of the corpus. A *part* has the
    documents that are equally often in each member. For example, a part with 1 copy in member a and
    2 in b is read 1 * 0.5 + 2 * 3 = 6.5 times in 0.5 epochs of a and 3 epochs of b.

    Args:
        corpus: The corpus.
        members: The samples that are taken of each member, in order.
        config: Configuration of the nanoset.

    Returns:
        One number for each part.
    """
    # One number for each member.
    epochs = [epochs_drawn(member.samples_of_run, member.tokens, config) for member in members]
    return [_sum_over_copies(part, epochs) for part in corpus.parts]


def _mean_epochs(corpus: CorpusParts, epochs_by_part: Sequence[float]) -> float:
    """Return how often the tokens of a corpus are read on average.

    Args:
        corpus: The corpus.
        epochs_by_part: How often the documents of each of its parts are read.
    """
    if not corpus.tokens:
        return 0.0
    parts = zip(corpus.parts, epochs_by_part, strict=True)
    return plain_sum(part.tokens * epochs for part, epochs in parts) / corpus.tokens


def _sum_over_copies(part: CorpusPart, values: Sequence[float]) -> float:
    """Return the sum of the datasets' values, each times the copies of the part in the dataset.

    For example, 1 copy in a dataset that is read 0.5 times, and 2 in one that is read 3 times, are
    read 1 * 0.5 + 2 * 3 = 6.5 times.

    Args:
        part: Tokens with equal numbers of copies in each dataset.
        values: A value of each dataset, such as its epochs.
    """
    return math.fsum(copies * value for copies, value in zip(part.copies, values, strict=True))


def _probability_read(part: CorpusPart, shares_read: Sequence[float]) -> float:
    """Return the probability that a token of a part is read at least once.

    For example, it has one copy in each of two datasets, of which 0.5 and 0.2 are read. Neither
    copy is read with a probability of 0.5 * 0.8 = 0.4, so the token is read with 0.6.

    Args:
        part: Tokens with equal numbers of copies in each dataset.
        shares_read: Share of each dataset's tokens that is read.
    """
    probability_unread = 1.0
    for copies, share in zip(part.copies, shares_read, strict=True):
        probability_unread *= (1.0 - share) ** copies
    return 1.0 - probability_unread


@dataclass(frozen=True, slots=True)
class SharedLimit:
    """A limit on how often documents are read that the datasets contain more than once."""

    prefix: str
    """Prefix of the dataset for which the limit is configured."""
    corpus: str
    """The corpus that contains the documents."""
    holders: tuple[str, ...]
    """Names of the datasets that contain the documents."""
    copies: Mapping[str, int]
    """Prefix of each of these datasets → copies of a document in it."""
    limit: float
    """How often the documents may be read."""

    def times_read(self, epochs: Mapping[str, float]) -> float:
        """Return how often these documents are read: once in each epoch for each of their copies.

        Args:
            epochs: Prefix of each dataset → its epochs.

        Returns:
            The sum over the datasets: 2 copies in a dataset with 1.5 epochs, and 1 copy in one with
            2 epochs, give 5.
        """
        return math.fsum(copies * epochs[prefix] for prefix, copies in self.copies.items())

    def is_exceeded(self, epochs: Mapping[str, float], tolerance: float = _ROUNDING) -> bool:
        """Return whether these documents are read more often than the limit allows.

        Args:
            epochs: Prefix of each dataset → its epochs.
            tolerance: Epochs above the limit that are ignored.

        Returns:
            Whether `times_read` is above the limit by more than the tolerance.
        """
        return self.times_read(epochs) > self.limit + tolerance


def shared_limits(corpora: Sequence[CorpusParts], limits: Mapping[str, float]) -> list[SharedLimit]:
    """Return the limits on documents that the datasets contain more than once.

    For example, documents of the dataset "web" are also in the view "best-web". If web may be read
    twice and best-web 5 times, these documents have two limits: through both datasets together,
    they may be read at most twice, and at most 5 times.

    Args:
        corpora: Corpora of the datasets of a split. Each groups its documents by their copies.
        limits: Prefix → how often the dataset may be read; other datasets have no limit.
    """
    limits_on_copies: list[SharedLimit] = []
    for corpus in corpora:
        if not corpus.is_shared:
            continue  # each of its documents has one copy
        for part in corpus.parts:
            limits_on_copies += _limits_of_part(corpus, part, limits)
    return limits_on_copies


def _limits_of_part(
    corpus: CorpusParts, part: CorpusPart, limits: Mapping[str, float]
) -> list[SharedLimit]:
    """Return the limits on the documents of a part: one for each dataset that has them and a limit.

    For example, documents with the copies (1, 0, 2) are in the first and the third dataset of the
    corpus, and may have the limits of these two.

    Args:
        corpus: The corpus, with the names and prefixes of its datasets.
        part: Its documents with these numbers of copies in each dataset.
        limits: Prefix → how often the dataset may be read.
    """
    # Leave out the datasets that do not contain the documents.
    copies_by_prefix: dict[str, int] = {}
    holders = []
    for name, prefix, copies in zip(corpus.members, corpus.prefixes, part.copies, strict=True):
        if copies > 0:
            copies_by_prefix[prefix] = copies
            holders.append(name)

    limits_of_part = []
    for prefix in copies_by_prefix:
        if prefix in limits:
            limit = SharedLimit(
                prefix=prefix,
                corpus=corpus.corpus,
                holders=tuple(holders),
                copies=copies_by_prefix,
                limit=limits[prefix],
            )
            limits_of_part.append(limit)
    return limits_of_part
