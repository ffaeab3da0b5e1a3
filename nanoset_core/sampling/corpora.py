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

import numpy as np
from numpy.typing import NDArray

from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.planned import SplitPlan
from nanoset_core.sampling.splits import Rows, plain_sum

_ROUNDING = 1e-9
"""Numbers of epochs that differ by less are equal."""
_MAX_ROUNDING = 2
"""Numbers of samples are rounded up, by fewer samples than this."""
_FLOAT_ERROR = 1e-14
"""Part of a float by which a few rounding errors may change it, at most."""
MANY_READS = 5
"""Tokens that are read this many times or more are counted together."""


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
        return samples * config.step / tokens
    return 0.0


def separate_corpora(plan: SplitPlan) -> list[CorpusParts]:
    """Return each dataset of a split as a corpus of its own.

    Use this if nothing is known about documents that several datasets contain. For example,
    data/web with 1,000 tokens becomes the corpus "web", whose tokens have one copy in one dataset.

    Args:
        plan: What was planned for the split, such as train.
    """
    corpora = []
    for dataset in plan.members:
        name = os.path.basename(dataset.prefix)
        parts: tuple[CorpusPart, ...] = ()
        if dataset.tokens > 0:
            # One copy of each document, in the only dataset.
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
    def by_prefix(
        plan: SplitPlan, config: NanosetConfig, sample_counts: Sequence[int]
    ) -> dict[str, MemberReads]:
        """Collect, for each dataset, how much of it training reads, and how it is shuffled.

        For example, training reads 150 samples of web, which has 1,000 tokens, or 100 samples. The
        trainer takes them from two epochs:

            tokens                 1,000
            samples_before         0       more if the run was stopped and continues, with other
                                           weights of the datasets
            samples_taken          150
            epochs                 2
            separate_last_epoch    True    the second epoch is shuffled after the first; False
                                           shuffles the samples of both together
            distinct_samples       None    each of the 100 samples may be read; or 80 if the trainer
                                           repeats a mixture of datasets with 80 samples of web

        Args:
            plan: What was planned for a split of the data, such as train.
            config: What is trained.
            sample_counts: How many samples are read of each dataset, in the order of the plan.

        Returns:
            Path of each dataset → what is read of it.
        """
        distinct_counts = _distinct_samples(plan, config)
        reads: dict[str, MemberReads] = {}
        for number, member in enumerate(plan.members):
            epochs = member.epochs
            separate_last_epoch = member.separate_last_epoch
            order = member.order  # in which the run has read the dataset before it was stopped
            if order is not None:
                # The run continues in this order. So these epochs were shuffled, not those that are
                # needed now.
                epochs = order.epochs
                separate_last_epoch = order.separate_last_epoch
            reads[member.prefix] = MemberReads(
                tokens=member.tokens,
                samples_before=member.taken_before,
                samples_taken=sample_counts[number],
                epochs=epochs,
                separate_last_epoch=separate_last_epoch,
                distinct_samples=distinct_counts[number],
            )
        return reads

    def most_reads(self, config: NanosetConfig) -> int:
        """Return how often a single document of the dataset may be read, at most.

        Samples are read in random order, so some documents are read more often than others. For
        example, the dataset has 100 samples. If several epochs are shuffled together, several of
        the samples that come first may have the same document:

            samples read    shuffled               result
            130             each epoch alone       2: 30 samples are read a second time
            60              each epoch alone       1: the 60 samples are all different
            60              two epochs together    2: 60 of 200 samples, where each occurs twice

        Args:
            config: What is trained: the trainer, and the length of samples.
        """
        if self.samples_of_run == 0 or not self.tokens:
            return 0

        # The number of samples is rounded up, by less than 2 samples (_MAX_ROUNDING). Without
        # subtracting these, 2.01 epochs would count as 3.
        n_samples = max(self.samples_of_run - _MAX_ROUNDING, 0)

        if self.distinct_samples is not None:
            # The trainer mixes all datasets, and repeats this mixture.
            return self._most_reads_in_blend_epochs(n_samples, self.distinct_samples, config)

        # Each epoch that is begun may have the document, even if only 1.3 epochs are read. And each
        # of those that are shuffled together, even if only a part of them is read.
        epochs_begun = math.ceil(self._epochs_in(n_samples, config))  # 2
        return max(epochs_begun, self._epochs_shuffled_together, 1)

    def _epochs_in(self, n_samples: int, config: NanosetConfig) -> float:
        """Return how many epochs of the dataset some samples are: 1.3 for 130 of 100 samples."""
        if config.rules.one_epoch:
            # The trainer repeats the samples of one epoch.
            return epochs_drawn(n_samples, self.tokens, config)
        # The trainer joins the tokens of all epochs, and cuts these into samples.
        return self.share_of_tokens(n_samples, config)

    def _most_reads_in_blend_epochs(
        self, n_samples: int, samples_in_blend: int, config: NanosetConfig
    ) -> int:
        """Return how often any document may be read by a trainer that repeats a blend of datasets.

        Such a trainer mixes samples of several datasets, and reads this mixture, the blend, again
        and again. For example, the dataset has 100 samples, and the blend 150 of it, so that some
        occur twice. The trainer stops when it has read 400 samples of the dataset:

            in the blend, a document occurs at most    150 / 100, rounded up    2 times
            the blend is read                          400 / 150, rounded up    3 times
            a document is read at most                 2 * 3                    6 times

        Args:
            n_samples: How many samples of the dataset are read: 400.
            samples_in_blend: How many of them the blend has: 150.
            config: What is trained: the trainer, and the length of samples.
        """
        samples_in_dataset = max(config.samples_in(self.tokens), 1)  # 100

        # `samples_in_blend` is rounded up, by less than 2 samples. Subtract these: otherwise, 201
        # samples of the blend would count as 3 copies of some documents, where 2 are meant.
        fewest_samples_in_blend = max(samples_in_blend - _MAX_ROUNDING, 1)  # 148
        copies_in_blend = math.ceil(fewest_samples_in_blend / samples_in_dataset)  # 2

        times_blend_is_read = max(math.ceil(n_samples / samples_in_blend), 1)  # 3
        return copies_in_blend * times_blend_is_read

    @property
    def _epochs_shuffled_together(self) -> int:
        """How many epochs are shuffled together. The last one may be shuffled on its own."""
        return self.epochs - 1 if self.separate_last_epoch else self.epochs

    def share_of_tokens(self, samples: int, config: NanosetConfig) -> float:
        """Return how many tokens some samples have, as a multiple of the dataset's tokens.

        For example, samples start 10 tokens apart. So 30 samples have 300 tokens, which is 1.5
        times a dataset of 200 tokens.

        Args:
            samples: Number of samples.
            config: What is trained: how many tokens apart samples start.

        Returns:
            The multiple; 0 if the dataset has no tokens.
        """
        if not self.tokens:
            return 0.0
        return samples * config.step / self.tokens

    def share_read(self, samples: int, config: NanosetConfig) -> float:
        """Return which share of a dataset's tokens training reads at least once.

        For example, the dataset has 1,000 tokens, which are 100 samples of 10 tokens. Of these,
        training reads:

            60 samples of one epoch            600 / 1,000 = 0.6
            150 samples of two epochs, each    1: after 100 samples, all tokens were read
            shuffled alone
            60 samples of two epochs that      1 - 0.7 ** 2 = 0.51: each token is in 2 of 200
            are shuffled together              samples, and 0.7 of the samples are not read

        Args:
            samples: How many samples of the dataset are read: 60.
            config: What is trained.

        Returns:
            From 0 to 1. If several epochs are shuffled together, it is an expected value.
        """
        if samples <= 0 or not self.tokens:
            return 0.0

        n_shuffled_together = self._epochs_shuffled_together
        if n_shuffled_together > 1:
            return self._share_read_of_shuffled_epochs(samples, n_shuffled_together, config)

        # The first epoch is shuffled on its own. So all its tokens come before any is repeated.
        n_different = self._n_different(samples, config)  # samples that are not the same
        tokens_in_samples = n_different * config.step  # 600, and 1,500 in the second example
        return min(tokens_in_samples / self.tokens, 1.0)

    def _n_different(self, samples: int, config: NanosetConfig) -> int:
        """Return how many samples of the dataset are different, as trainers may repeat them.

        For example, 150 samples are read of a dataset of 100 samples:

            how the trainer gets 150 samples                                  different
            cuts them from the joined tokens of two epochs                    150
            repeats the 100 samples of one epoch                              100
            repeats a mixture of datasets that has 80 samples of this one     80

        Args:
            samples: How many samples of the dataset are read: 150.
            config: What is trained.
        """
        n_different = samples
        has_one_epoch = self.epochs <= 1
        if has_one_epoch:  # the samples beyond it can only be repetitions
            samples_of_epoch = config.samples_in(self.tokens)  # 100
            n_different = min(n_different, samples_of_epoch)
        samples_in_mixture = self.distinct_samples  # None if the trainer repeats no mixture
        if samples_in_mixture is not None:
            n_different = min(n_different, samples_in_mixture)  # 80
        return n_different

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
            samples: How many samples are read: 60.
            n_epochs: Number of epochs that are shuffled together: 2.
            config: What is trained.
        """
        n_shuffled = config.samples_in(n_epochs * self.tokens)
        if samples >= n_shuffled:
            return 1.0
        probability_copy_is_unread = 1.0 - samples / n_shuffled
        return 1.0 - probability_copy_is_unread**n_epochs

    def reads_of_copy(self, config: NanosetConfig) -> NDArray[np.float64] | None:
        """Return how likely it is that a token of the dataset is read 0, 1, 2, … times.

        For example, the dataset has 1,000 tokens, which are 100 samples of 10 tokens. Of these,
        training reads:

            250 samples of epochs, each          half of the tokens are read 2 times, and half of
            shuffled alone                       them 3 times: [0, 0, 0.5, 0.5, 0, 0]
            100 samples of two epochs that       each of the 2 copies of a token is read with the
            are shuffled together                probability 0.5: [0.25, 0.5, 0.25, 0, 0, 0]

        The first entry agrees with `share_read`.

        Args:
            config: What is trained.

        Returns:
            Shape (MANY_READS + 1,): the last entry is for MANY_READS times or more. None if it is
            not known, because the trainer repeats a mixture of all datasets.
        """
        samples = self.samples_of_run
        if samples <= 0 or not self.tokens:
            return _folded(np.array([1.0]))
        if self.distinct_samples is not None:
            return None

        # Several epochs that are shuffled together, of which not all samples are read.
        n_epochs = self._epochs_shuffled_together
        n_shuffled = config.samples_in(n_epochs * self.tokens)
        if n_epochs > 1 and samples < n_shuffled:
            return _binomial(n_epochs, samples / n_shuffled)

        # Otherwise, all tokens are read equally often, except for those of the last epoch.
        share_in_samples = 1.0
        epochs = self.share_of_tokens(samples, config)  # 2.5
        if self.epochs <= 1:
            # The samples of one epoch may be repeated. They lack the last tokens.
            n_samples = max(config.samples_in(self.tokens), 1)
            share_in_samples = min(self.share_of_tokens(n_samples, config), 1.0)
            epochs = samples / n_samples
        whole_epochs = math.floor(epochs)  # 2
        share_of_last_epoch = epochs - whole_epochs  # 0.5

        probabilities = np.zeros(whole_epochs + 2)
        probabilities[whole_epochs] = share_in_samples * (1.0 - share_of_last_epoch)
        probabilities[whole_epochs + 1] = share_in_samples * share_of_last_epoch
        probabilities[0] += 1.0 - share_in_samples
        return _folded(probabilities)


def _binomial(n_trials: int, probability: float) -> NDArray[np.float64]:
    """Return the probabilities of 0, 1, 2, … successes in some independent trials.

    The time does not depend on the number of trials: a tiny dataset may be read a million times.

    Args:
        n_trials: The number of trials.
        probability: The probability that a trial is a success.

    Returns:
        Shape (MANY_READS + 1,): the last entry is for MANY_READS successes or more.
    """
    probabilities = np.zeros(MANY_READS + 1)
    for successes in range(min(n_trials + 1, MANY_READS)):
        failures = n_trials - successes
        orders = math.comb(n_trials, successes)  # of so many successes and failures
        probabilities[successes] = orders * probability**successes * (1.0 - probability) ** failures
    # Rounding errors can make the sum slightly larger than 1.
    probabilities[MANY_READS] = max(1.0 - probabilities.sum(), 0.0)
    return probabilities


def _folded(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return probabilities of 0, 1, 2, … reads, with MANY_READS or more added up in the last entry.

    Args:
        probabilities: Shape (n,), for 0 to n - 1 reads.

    Returns:
        Shape (MANY_READS + 1,).
    """
    folded = np.zeros(MANY_READS + 1)
    n_kept = min(len(probabilities), MANY_READS)
    folded[:n_kept] = probabilities[:n_kept]
    folded[MANY_READS] = probabilities[MANY_READS:].sum()
    return folded


def tokens_by_reads(
    corpora: Sequence[CorpusParts],
    reads_by_prefix: Mapping[str, MemberReads],
    config: NanosetConfig,
) -> dict[str, list[int]]:
    """Count the tokens of each corpus that training reads 0, 1, 2, … times.

    For example, of 1,000 tokens of `web`, 600 are read once and 400 twice: [0, 600, 400, 0, 0, 0].
    The numbers are those of the whole run, with its earlier phases. If epochs are shuffled
    together, or documents are in several datasets, they are expected values.

    Args:
        corpora: The corpora. The documents of a corpus may be in several datasets.
        reads_by_prefix: Path of each dataset → what is read of it.
        config: What is trained.

    Returns:
        Name of the corpus → tokens that are read 0, 1, …, MANY_READS - 1 times, and MANY_READS
        times or more. A corpus is left out if it is not known.
    """
    counts_by_corpus: dict[str, list[int]] = {}
    for corpus in corpora:
        reads_by_member = []
        for prefix in corpus.prefixes:
            reads = reads_by_prefix[prefix].reads_of_copy(config)
            if reads is not None:
                reads_by_member.append(reads)
        if len(reads_by_member) < len(corpus.prefixes):
            continue  # it is not known for a dataset

        n_tokens = np.zeros(MANY_READS + 1)
        for part in corpus.parts:  # tokens that are in the same datasets
            n_tokens += part.tokens * _reads_of_part(part, reads_by_member)
        counts_by_corpus[corpus.corpus] = np.rint(n_tokens).astype(np.int64).tolist()
    return counts_by_corpus


def _reads_of_part(
    part: CorpusPart, reads_by_member: Sequence[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return how likely it is that a token is read 0, 1, 2, … times through all of its copies.

    For example, a token is in two datasets. Training reads all of the first one once, and half of
    the second one: [0, 1, 0, …] and [0.5, 0.5, 0, …]. Then it reads the token once with the
    probability 0.5, and twice with 0.5: [0, 0.5, 0.5, …].

    Args:
        part: Tokens with the same number of copies in each dataset: (1, 1).
        reads_by_member: For each dataset, probabilities for a copy, shape (MANY_READS + 1,).
    """
    reads = _folded(np.array([1.0]))  # no copy yet: read 0 times
    for copies, reads_of_copy in zip(part.copies, reads_by_member, strict=True):
        for _ in range(copies):
            reads = _folded(np.convolve(reads, reads_of_copy))
    return reads


def _distinct_samples(plan: SplitPlan, config: NanosetConfig) -> Sequence[int | None]:
    """Return how many samples of each dataset are different, if the trainer repeats a mixture.

    Some trainers mix the samples of all datasets for one epoch, and then repeat this mixture. So
    only the samples in it can be read, such as 80 of the 100 samples of a dataset.

    Args:
        plan: What was planned for a split of the data, such as train.
        config: What is trained.

    Returns:
        A number for each dataset. None for all of them if the trainer repeats no mixture.
    """
    if plan.blend is None or not config.rules.shuffles_blend:
        return [None] * len(plan.members)
    dataset_sizes = [member.samples_given for member in plan.members]
    return samples_of_blend_epoch(dataset_sizes, plan.blend.weights)


def samples_of_blend_epoch(dataset_sizes: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Return how many samples of each dataset a trainer takes for one epoch of a mixture.

    The epoch has as many samples as all datasets together. The weights divide them:

        dataset    samples    weight    in the epoch
        web        300        0.5       200
        books      100        0.5       200             so each sample comes twice

    Args:
        dataset_sizes: Samples of each dataset: 300, 100.
        weights: Weight of each dataset.
    """
    epoch_size = sum(dataset_sizes)  # 400
    weight_sum = math.fsum(weights)
    counts = []
    for weight in weights:
        # Rounded up: the number may be one too high, but not too low. Floats may be slightly too
        # large, such as 30.000000000000004, which must not count as 31.
        exact_count = epoch_size * weight / weight_sum
        counts.append(math.ceil(exact_count * (1 - _FLOAT_ERROR)))
    return counts


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

    For example, web is read twice, and best-web, which has some of the same documents, three times:

        tokens    copies in web    copies in best-web    times read    tokens read
        900       1                0                     2             1,800
        100       1                1                     2 + 3           500

    The result is 2,300.

    Args:
        corpus: The documents of both datasets, grouped by their copies: the rows of the table.
        members: How many samples are read of each dataset: web and best-web.
        config: What is trained: how many tokens apart samples start, for example.
    """
    # How often is each dataset read? [2.0, 3.0]
    epochs = [member.share_of_tokens(member.samples_taken, config) for member in members]
    tokens_of_parts = []
    for part in corpus.parts:
        times_read = _sum_over_copies(part, epochs)  # 2, and then 5
        tokens_of_parts.append(part.tokens * times_read)
    return plain_sum(tokens_of_parts)


def _tokens_read_first(
    corpus: CorpusParts, members: Sequence[MemberReads], config: NanosetConfig
) -> float:
    """Return how many tokens of a corpus training reads for the first time.

    For example, the training run was stopped after it had read 300 of 1,000 tokens. In the end, it
    has read 800 of them. So 500 were read for the first time after the stop.

    Args:
        corpus: The corpus, whose documents may be in several datasets.
        members: How many samples are read of each of these datasets, before the stop and after it.
        config: What is trained.

    Returns:
        An expected value, since it is random which tokens of a shuffled dataset are read.
    """
    # Which share of each dataset has been read at the stop, and in the end?
    shares_before = [member.share_read(member.samples_before, config) for member in members]
    shares_after = [member.share_read(member.samples_of_run, config) for member in members]

    n_tokens = 0.0
    for part in corpus.parts:  # tokens that are in the same datasets
        probability_before = _probability_read(part, shares_before)  # 0.3
        probability_after = _probability_read(part, shares_after)  # 0.8
        n_tokens += part.tokens * (probability_after - probability_before)
    return n_tokens


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
    """Return limits for documents that several datasets contain.

    For example, best-web is a selection of the documents of web, and web may be read twice. The
    documents of web have two parts. Those that were selected have a copy in each of the datasets,
    so they are read through both:

        part          copies in web    in best-web    limit
        selected      1                1              reads of web + reads of best-web <= 2
        all others    1                0              reads of web <= 2

    Args:
        corpora: Collections of documents. Each is divided into parts, whose documents have the same
            number of copies in each dataset.
        limits: Path of a dataset → how often it may be read: {"data/web": 2}.

    Returns:
        Limits for each part; none for corpora whose documents have only one copy.
    """
    limits_on_copies: list[SharedLimit] = []
    for corpus in corpora:
        if not corpus.is_shared:
            continue  # each document has one copy, so the limit of its dataset is enough
        for part in corpus.parts:  # selected, all others
            limits_on_copies += _limits_of_part(corpus, part, limits)
    return limits_on_copies


def _limits_of_part(
    corpus: CorpusParts, part: CorpusPart, limits: Mapping[str, float]
) -> list[SharedLimit]:
    """Return the limits for documents that are in the same datasets.

    Each dataset that contains them may have a limit. For example:

        dataset                          web    code    best-web
        copies of each document          1      0       2
        the dataset may be read          2      3       without limit

    The result is one limit, that of web: at most 2 times through web and best-web together. Code
    does not contain the documents.

    Args:
        corpus: The corpus that contains the documents, with its datasets.
        part: The documents, with their copies in each dataset: (1, 0, 2).
        limits: Path of a dataset → how often it may be read: {"data/web": 2, "data/code": 3}.
    """
    # The datasets that contain the documents: web and best-web.
    names = []
    copies_by_prefix: dict[str, int] = {}
    for name, prefix, copies in zip(corpus.members, corpus.prefixes, part.copies, strict=True):
        if copies > 0:
            names.append(name)
            copies_by_prefix[prefix] = copies

    limits_of_part = []
    for prefix in copies_by_prefix:
        if prefix in limits:
            limits_of_part.append(
                SharedLimit(prefix, corpus.corpus, tuple(names), copies_by_prefix, limits[prefix])
            )
    return limits_of_part
