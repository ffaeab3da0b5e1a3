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

    A sample has a fixed number of tokens, such as 10. For 150 samples:

        tokens of the dataset    samples of one epoch    times read
        1,000                    100                     150 / 100 = 1.5
        5                        0: too few tokens       150 * 10 / 5 = 300
        0                        0                       0

    Args:
        samples: Samples that are taken.
        tokens: Tokens of the dataset.
        config: What is trained: the length of samples, for example.
    """
    samples_of_epoch = config.samples_in(tokens)
    if samples_of_epoch > 0:
        return samples / samples_of_epoch
    if tokens > 0:
        return samples * config.sequence_length / tokens
    return 0.0


def separate_corpora(plan: SplitPlan) -> list[CorpusParts]:
    """Return the datasets of a split as if no two of them had a document in common.

    In general, the documents of one corpus can be in several datasets. If that is unknown, each
    dataset counts as a corpus of its own. For example, data/web with 1,000 tokens becomes the
    corpus "web", all of whose 1,000 tokens have one copy in one dataset.

    Args:
        plan: What was planned for the split, such as train.
    """
    corpora = []
    for dataset in plan.members:
        name = os.path.basename(dataset.prefix)
        parts: tuple[CorpusPart, ...] = ()
        if dataset.tokens > 0:
            # A part has the tokens with equally many copies in each dataset. These are all tokens.
            parts = (CorpusPart(copies=(1,), tokens=dataset.tokens),)
        corpora.append(
            CorpusParts(corpus=name, members=(name,), prefixes=(dataset.prefix,), parts=parts)
        )
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
        """Collect how many samples are read of a dataset, and how they are shuffled, for a report.

        For example:

            samples_before         50       read before the weights were changed; mostly 0
            samples_taken          900      read now
            epochs                 2        how many copies of the dataset are shuffled
            separate_last_epoch    False    all together; True: the last one after the others
            distinct_samples       None     no other limit

        `distinct_samples` is a number only for trainers that mix all datasets for one epoch, and
        repeat that. If this epoch has 200 samples of the dataset, at most 200 different ones are
        ever read.

        Args:
            plan: What was planned for a split of the data, such as train.
            config: What is trained.
            member: What was planned for the dataset.
            n_samples: How many samples of the dataset the split takes: 900.
        """
        distinct_samples = None
        if config.rules.shuffles_blend and plan.blend is not None:
            # One epoch is repeated. It limits how many different samples of the dataset are read.
            distinct_samples = _samples_in_blend_epoch(plan, plan.blend, member)

        # `order` says how the dataset was first read. It is None if this is the first time.
        shuffled = member if member.order is None else member.order
        return MemberReads(
            tokens=member.tokens,
            samples_before=member.taken_before,
            samples_taken=n_samples,
            epochs=shuffled.epochs,
            separate_last_epoch=shuffled.separate_last_epoch,
            distinct_samples=distinct_samples,
        )

    @staticmethod
    def by_prefix(
        plan: SplitPlan, config: NanosetConfig, sample_counts: Sequence[int]
    ) -> dict[str, MemberReads]:
        """Return how many samples training reads of each dataset of a split.

        Args:
            plan: What was planned for the split, such as train.
            config: What is trained.
            sample_counts: Samples that the split takes of each dataset, in the order of the plan:
                900, 300.

        Returns:
            Path of each dataset → its samples and how they are shuffled.
        """
        reads: dict[str, MemberReads] = {}
        for member, samples in zip(plan.members, sample_counts, strict=True):
            reads[member.prefix] = MemberReads.of(plan, config, member, samples)
        return reads

    def share_of_tokens(self, samples: int, config: NanosetConfig) -> float:
        """Return how many times some samples fit a dataset's tokens into them.

        For example, samples start 10 tokens apart, and the dataset has 200 tokens: 30 samples are
        300 tokens, which is 1.5 times the dataset.

        Args:
            samples: Number of samples.
            config: What is trained: how many tokens apart samples start.

        Returns:
            The quotient; 0 if the dataset has no tokens.
        """
        if not self.tokens:
            return 0.0
        return samples * config.step / self.tokens

    def share_read(self, samples: int, config: NanosetConfig) -> float:
        """Return which share of a dataset's tokens is read at least once in a number of samples.

        For example, the samples below are read of a dataset, one epoch of which has 100 samples:

            samples    order                               share of the tokens
            60         the first epoch comes first         0.6
            60         two epochs are shuffled together    0.51: some tokens come twice
            200        two epochs are shuffled together    1

        Args:
            samples: How many samples of the dataset training reads.
            config: What is trained.

        Returns:
            From 0 to 1. If several epochs are shuffled together, it is an expected value.
        """
        if samples <= 0 or not self.tokens:
            return 0.0

        # The trainer may shuffle the last epoch on its own. The epochs before it are shuffled
        # together.
        n_shuffled_together = self.epochs
        if self.separate_last_epoch:
            n_shuffled_together -= 1
        if n_shuffled_together <= 1:
            return self._share_read_of_first_epoch(samples, config)
        return self._share_read_of_shuffled_epochs(samples, n_shuffled_together, config)

    def _share_read_of_first_epoch(self, samples: int, config: NanosetConfig) -> float:
        """Return which share of a dataset is read, if all of it is read before any is repeated.

        For example, a dataset has 100 samples. Then 60 samples have 0.6 of its tokens, and 150 have
        all of them. Two things can make it less than all:

        - Only one epoch was shuffled (`epochs` is 1), and is repeated. Tokens at its end that are
          too few for a sample are never read: of 1,009 tokens, 1,000 are.
        - All datasets were mixed for one epoch, which is repeated. If it has only 80 samples of
          this dataset (`distinct_samples`), these are read again and again: the share is 0.8.

        Args:
            samples: How many samples of the dataset training reads.
            config: What is trained: how many tokens apart samples start, for example.
        """
        n_distinct = samples
        if self.epochs <= 1:
            # Further samples repeat those of the only epoch, such as 100.
            n_distinct = min(n_distinct, config.samples_in(self.tokens))
        if self.distinct_samples is not None:
            # Further samples repeat those of the epoch of all datasets, such as 80.
            n_distinct = min(n_distinct, self.distinct_samples)
        return min(self.share_of_tokens(n_distinct, config), 1.0)

    def _share_read_of_shuffled_epochs(
        self, samples: int, n_epochs: int, config: NanosetConfig
    ) -> float:
        """Return which share of a dataset's tokens is read, if epochs are shuffled together.

        Each token is in one sample of each epoch. For example, two epochs have 200 samples, and 60
        of them are read:

            one copy of a token is not read        with the probability 1 - 60 / 200 = 0.7
            neither copy is read                   0.7 * 0.7 = 0.49
            the token is read                      1 - 0.49 = 0.51

        Args:
            samples: How many samples of the dataset training reads.
            n_epochs: Number of epochs that are shuffled together.
            config: What is trained.
        """
        n_shuffled = config.samples_in(n_epochs * self.tokens)
        if samples >= n_shuffled:
            return 1.0
        probability_copy_is_unread = 1.0 - samples / n_shuffled
        return 1.0 - probability_copy_is_unread**n_epochs


def _samples_in_blend_epoch(plan: SplitPlan, blend: BlendPlan, member: MemberPlan) -> int:
    """Return how many samples of a dataset are in one epoch of a trainer that mixes datasets.

    Some trainers mix the datasets for one epoch, and repeat that. The epoch has as many samples as
    all datasets together, but in proportion to the weights:

        dataset    samples    weight    in one epoch
        web        300        0.5       200
        books      100        0.5       200             so each sample comes twice

    Args:
        plan: What was planned for the split, such as train.
        blend: How its datasets are mixed.
        member: What was planned for the dataset.
    """
    weight_by_prefix: dict[str, float] = {}
    for other, weight in zip(plan.members, blend.weights, strict=True):
        weight_by_prefix[other.prefix] = weight
    share = weight_by_prefix[member.prefix] / math.fsum(weight_by_prefix.values())
    epoch_size = sum(other.samples_given for other in plan.members)
    return math.ceil(epoch_size * share)  # at most so many


def corpus_coverage(
    corpora: Sequence[CorpusParts],
    reads_by_prefix: Mapping[str, MemberReads],
    config: NanosetConfig,
) -> list[CorpusCoverage]:
    """Count how much training reads of each corpus, which is a collection of documents.

    One row of the result is, for example: of the 1,000 tokens of the corpus "web", 2,300 are read;
    these are 2.3 epochs on average, and 1,300 tokens are repeated.

    A training run may have been stopped and continued with other corpora. So there are these cases:

        read now    read before the change    row
        yes         yes or no                 listed
        no          yes                       left out: it is not part of the training any more
        no          no                        listed with zeros

    Args:
        corpora: The corpora. The documents of a corpus may be in several datasets.
        reads_by_prefix: Path of each dataset → how many samples are read of it now
            (`samples_taken`), and were before (`samples_before`).
        config: What is trained.

    Returns:
        A row for each corpus, except for those that are left out.
    """
    rows = []
    for corpus in corpora:
        datasets = [reads_by_prefix[prefix] for prefix in corpus.prefixes]
        is_read_now = any(dataset.samples_taken > 0 for dataset in datasets)
        was_read_before = any(dataset.samples_before > 0 for dataset in datasets)
        if was_read_before and not is_read_now:
            continue
        # A corpus of which nothing was ever read is listed, with zeros.
        rows.append(_coverage_of(corpus, datasets, config))
    return rows


def _coverage_of(
    corpus: CorpusParts, members: Sequence[MemberReads], config: NanosetConfig
) -> CorpusCoverage:
    """Count what training reads of a corpus, which is a collection of documents.

    The documents may be in several datasets, for example in one with the whole corpus and in one
    with its best tenth. Then the best documents are read through both. For a corpus of 1,000 tokens
    of which 900 are read twice, and 100 five times:

        tokens                                 900 * 2 + 100 * 5 = 2,300
        unique tokens, read for the first time                     1,000
        repeated tokens                                            1,300
        epochs, on average                                           2.3
        most epochs                                                    5
        padding of 240 samples of 10 tokens          2,400 - 2,300 = 100

    Padding is what fills up samples that have too few tokens of documents.

    Args:
        corpus: The corpus, with the datasets that contain its documents.
        members: How many samples are read of each of these datasets, in the same order.
        config: What is trained: the length of samples, for example.
    """
    # Both may be expected values such as 999.6, since it is random which documents are read.
    tokens = round(_tokens_read(corpus, members, config))
    unique_tokens = round(_tokens_read_first(corpus, members, config))
    unique_tokens = min(unique_tokens, tokens)  # despite rounding

    # Each sample adds `step` tokens (10) to what is read. Those that are not from the corpus are
    # padding.
    n_samples = sum(member.samples_taken for member in members)  # 240
    padding = max(n_samples * config.step - tokens, 0)  # 240 * 10 - 2,300

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
    """Return how many tokens of a corpus training reads, each counted as often as it is read.

    The corpus is a collection of documents, which may be in several datasets. For example, all are
    in the dataset web, and the best ones also in best-web:

        tokens    copies in web    copies in best-web    times read
        900       1                0                     2
        100       1                1                     2 + 3

    web is read twice and best-web three times. So 900 * 2 + 100 * 5 = 2,300 tokens are read.

    Args:
        corpus: The corpus. Its `parts` are the rows of the table.
        members: How many samples are read of each dataset: web and best-web.
        config: What is trained: how many tokens apart samples start, for example.
    """
    # How often each dataset is read, such as [2.0, 3.0].
    epochs = [member.share_of_tokens(member.samples_taken, config) for member in members]
    return plain_sum(part.tokens * _sum_over_copies(part, epochs) for part in corpus.parts)


def _tokens_read_first(
    corpus: CorpusParts, members: Sequence[MemberReads], config: NanosetConfig
) -> float:
    """Return how many tokens of a corpus are read that this training run has not read before.

    A run can be stopped, and continue with other weights of its datasets. What it has read of the
    corpus (a collection of documents) by then was not new afterwards. For example:

        share of the tokens that were read at least once    before 0.3    in the end 0.8
        new tokens of 1,000                                 1,000 * (0.8 - 0.3) = 500

    Args:
        corpus: The corpus. Its documents may be in several datasets. Tokens that have equally many
            copies in each dataset are a *part* of it.
        members: How many samples are read of each of these datasets, before and now.
        config: What is trained.

    Returns:
        An expected value, since it is random which tokens of a shuffled dataset are read.
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
    """Return how often training reads the documents of a corpus, including what it has read before.

    The documents may be in several datasets. They are grouped by how many copies each dataset has
    of them. Suppose that dataset a is read 0.5 times, and b 3 times:

        documents    copies in a    copies in b    times read
        part 0       1              0              1 * 0.5 + 0 * 3 = 0.5
        part 1       1              2              1 * 0.5 + 2 * 3 = 6.5

    Args:
        corpus: The corpus, which is a collection of documents. Its `parts` are the rows of the
            table.
        members: How many samples are read of each dataset: a and b.
        config: What is trained.

    Returns:
        The last column, a number for each part.
    """
    # One number for each member.
    epochs = [epochs_drawn(member.samples_of_run, member.tokens, config) for member in members]
    return [_sum_over_copies(part, epochs) for part in corpus.parts]


def _mean_epochs(corpus: CorpusParts, epochs_by_part: Sequence[float]) -> float:
    """Return how often the tokens of a corpus are read on average.

    For example, 900 tokens are read twice and 100 tokens 5 times: (1,800 + 500) / 1,000 = 2.3.

    Args:
        corpus: The corpus, whose tokens are grouped by the datasets that contain them.
        epochs_by_part: How often the tokens of each group are read: 2 and 5.
    """
    if not corpus.tokens:
        return 0.0
    parts = zip(corpus.parts, epochs_by_part, strict=True)
    tokens_read = plain_sum(part.tokens * epochs for part, epochs in parts)
    return tokens_read / corpus.tokens


def _sum_over_copies(part: CorpusPart, values: Sequence[float]) -> float:
    """Return how often documents are read that several datasets contain.

    For example, dataset a is read 0.5 times and has one copy of each document. b is read 3 times
    and has two copies. So the documents are read 1 * 0.5 + 2 * 3 = 6.5 times.

    Args:
        part: Documents with the same number of copies in each dataset: (1, 2).
        values: How often each dataset is read: [0.5, 3].
    """
    return math.fsum(copies * value for copies, value in zip(part.copies, values, strict=True))


def _probability_read(part: CorpusPart, shares_read: Sequence[float]) -> float:
    """Return the probability that a document is read at least once, if several datasets contain it.

    For example, two datasets have one copy each, and training reads half of the first one, and a
    fifth of the second one, both at random:

        copy in the first dataset is not read      0.5
        copy in the second dataset is not read     0.8
        the document is not read                   0.5 * 0.8 = 0.4
        the document is read                       0.6

    Args:
        part: Documents with the same number of copies in each dataset: (1, 1).
        shares_read: The share that is read of each dataset: [0.5, 0.2].
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
        """Return how often training reads documents that are in several datasets.

        For example, a dataset with 2 copies of each of them is read 1.5 times, and one with 1 copy
        is read twice. That makes 2 * 1.5 + 1 * 2 = 5.

        Args:
            epochs: Path of each dataset → how often it is read.
        """
        return math.fsum(copies * epochs[prefix] for prefix, copies in self.copies.items())

    def is_exceeded(self, epochs: Mapping[str, float], tolerance: float = _ROUNDING) -> bool:
        """Return whether training reads documents too often that are in several datasets.

        Args:
            epochs: Path of each dataset → how often it is read.
            tolerance: By how much the limit may be exceeded.
        """
        return self.times_read(epochs) > self.limit + tolerance


def shared_limits(corpora: Sequence[CorpusParts], limits: Mapping[str, float]) -> list[SharedLimit]:
    """Return the limits on how often training may read documents that several datasets contain.

    For example, the dataset best-web has the best documents of the dataset web:

        dataset      may be read
        web          2 times
        best-web     5 times

    If each were read as often, the best documents would be read 2 + 5 = 7 times, although web says
    that they may be read twice. So limits are put on the sum of what is read of all copies:

        documents      because of    limit
        the best       web           times(web) + times(best-web) <= 2
        the best       best-web      times(web) + times(best-web) <= 5
        all others     web           times(web) <= 2

    Args:
        corpora: The collections of documents that the datasets contain. In each, documents are
            grouped by how many copies each dataset has of them.
        limits: Path of a dataset → how often it may be read; others have no limit.
    """
    limits_on_copies: list[SharedLimit] = []
    for corpus in corpora:
        if not corpus.is_shared:
            continue  # each of its documents has one copy
        # A part is all documents that have equally many copies: (1, 1) for the best ones.
        for part in corpus.parts:
            limits_on_copies += _limits_of_part(corpus, part, limits)
    return limits_on_copies


def _limits_of_part(
    corpus: CorpusParts, part: CorpusPart, limits: Mapping[str, float]
) -> list[SharedLimit]:
    """Return the limits on how often training may read some documents of a corpus.

    The documents are in several datasets, and some datasets have a limit. For example:

        dataset                                web    code    best-web
        copies of each of the documents        1      0       2
        the dataset may be read                2      3       no limit

    The result is one limit, that of web: a document is read at most 2 times, through web and
    best-web together. The limit of code does not matter, since it does not contain the documents.

    Args:
        corpus: The corpus, with its datasets.
        part: Documents that all have these numbers of copies: (1, 0, 2).
        limits: Path of a dataset → how often it may be read: {"data/web": 2, "data/code": 3}.
    """
    # The datasets that contain the documents: web and best-web.
    copies_by_prefix: dict[str, int] = {}
    names = []
    for name, prefix, copies in zip(corpus.members, corpus.prefixes, part.copies, strict=True):
        if copies > 0:
            copies_by_prefix[prefix] = copies
            names.append(name)

    limits_of_part = []
    for prefix in copies_by_prefix:
        if prefix in limits:
            limit = SharedLimit(
                prefix=prefix,
                corpus=corpus.corpus,
                holders=tuple(names),
                copies=copies_by_prefix,
                limit=limits[prefix],
            )
            limits_of_part.append(limit)
    return limits_of_part
