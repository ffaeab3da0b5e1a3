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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nanoset_core.sampling.config import NanosetConfig, Order
from nanoset_core.sampling.planned import SplitPlan
from nanoset_core.sampling.splits import Rows, plain_sum

_ROUNDING = 1e-9
"""Numbers of epochs that differ by less are equal."""
MAX_ROUNDING_SAMPLES = 2
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

    def times_read(self, epochs: Sequence[float]) -> float:
        """Return how often each of these tokens is read, through all of its copies.

        For example, one dataset has one copy of each token and is read 0.5 times. Another one has
        two copies and is read 3 times: 1 * 0.5 + 2 * 3 = 6.5.

        Args:
            epochs: How often each dataset is read: [0.5, 3].
        """
        return math.fsum(n * times for n, times in zip(self.copies, epochs, strict=True))

    def probability_read(self, shares_read: Sequence[float]) -> float:
        """Return the probability that a token of these is read at least once.

        For example, two datasets have one copy each. Training reads half of the first dataset, and
        a fifth of the second one, both at random:

            copy in the first dataset is not read      0.5
            copy in the second dataset is not read     0.8
            neither is read                            0.5 * 0.8 = 0.4
            at least one is read                       0.6

        Args:
            shares_read: The share that is read of each dataset: [0.5, 0.2].
        """
        probability_unread = 1.0
        for n_copies, share in zip(self.copies, shares_read, strict=True):
            probability_unread *= (1.0 - share) ** n_copies
        return 1.0 - probability_unread


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

    def copies_by_prefix(self, part: CorpusPart) -> dict[str, int]:
        """Return the datasets that contain the tokens of a part, and how many copies they have.

        Returns:
            Path of each dataset → copies: {"data/web": 1, "data/best-web": 2}.
        """
        copies = zip(self.prefixes, part.copies, strict=True)
        return {prefix: n_copies for prefix, n_copies in copies if n_copies > 0}

    def holders_of(self, part: CorpusPart) -> tuple[str, ...]:
        """Return the names of the datasets that contain the tokens of a part."""
        copies = zip(self.members, part.copies, strict=True)
        return tuple(name for name, n_copies in copies if n_copies > 0)


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
    """Return the datasets of a split as collections of documents that have nothing in common.

    Each becomes a *corpus*, a collection of documents, which could be in several datasets. Use this
    if it is not known whether they are. For example, the dataset data/web has 1,000 tokens:

        corpus     web
        members    web                                 the only dataset with these documents
        parts      1,000 tokens, with one copy each

    Args:
        plan: What was planned for the split, such as train.
    """
    return [_corpus_of_dataset(dataset.prefix, dataset.tokens) for dataset in plan.members]


def _corpus_of_dataset(prefix: str, tokens: int) -> CorpusParts:
    """Return a corpus whose documents are in one dataset, each of them once.

    Args:
        prefix: Path of the dataset without .bin and .idx. Its last part is the name of the corpus.
        tokens: Tokens of the dataset.
    """
    name = os.path.basename(prefix)
    parts: tuple[CorpusPart, ...] = ()
    if tokens > 0:
        parts = (CorpusPart(copies=(1,), tokens=tokens),)
    return CorpusParts(corpus=name, members=(name,), prefixes=(prefix,), parts=parts)


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
    order: Order
    """How the run shuffles the dataset, and how many samples its earlier phases took."""
    samples_taken: int
    """Samples that the split takes."""
    samples_in_blend_epoch: int | None = None
    """Samples of the dataset in the mixture that the trainer repeats, if it shuffles one epoch of
    the blend and repeats it; otherwise None.
    """

    @property
    def samples_before(self) -> int:
        """Samples that earlier phases of the run took."""
        return self.order.taken

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

            tokens            1,000
            order             2 epochs; whether the second one is shuffled on its own; and how many
                              samples the run had read before it changed the weights, if it has
            samples_taken     150

        Args:
            plan: What was planned for a split of the data, such as train.
            config: What is trained.
            sample_counts: How many samples are read of each dataset, in the order of the plan.

        Returns:
            Path of each dataset → what is read of it.
        """
        counts_in_blend_epoch = _samples_in_blend_epoch(plan, config)
        reads: dict[str, MemberReads] = {}
        for number, dataset in enumerate(plan.members):
            reads[dataset.prefix] = MemberReads(
                tokens=dataset.tokens,
                order=dataset.order_of_run,
                samples_taken=sample_counts[number],
                samples_in_blend_epoch=counts_in_blend_epoch[number],
            )
        return reads

    def most_reads(self, config: NanosetConfig) -> int:
        """Return how often training reads any document of the dataset, at most.

        Samples are read in random order. So a document can be read more often than the dataset is
        on average. For example, training reads 130 samples of a dataset of 100:

            shuffled               any document is read
            each epoch alone       at most 2 times, since the second epoch is begun
            3 epochs together      at most 3 times: of the 300 samples, the 130 that come first may
                                   have all 3 copies of the document

        Args:
            config: What is trained: the trainer, and the length of samples.
        """
        if self.samples_of_run == 0 or not self.tokens:
            return 0
        if self.samples_in_blend_epoch is not None:
            return self._most_reads_in_blend(self.samples_in_blend_epoch, config)
        n_samples = _before_rounding(self.samples_of_run)
        epochs_begun = math.ceil(self._epochs_in(n_samples, config))  # 1.3, rounded up to 2
        return max(epochs_begun, self.order.epochs_shuffled_together, 1)

    def _epochs_in(self, n_samples: int, config: NanosetConfig) -> float:
        """Return how many epochs of the dataset some samples are: 1.3 for 130 of 100 samples."""
        if config.rules.one_epoch:
            # The trainer repeats the samples of one epoch.
            return epochs_drawn(n_samples, self.tokens, config)
        # The trainer joins the tokens of all epochs, and cuts these into samples.
        return self.share_of_tokens(n_samples, config)

    def _most_reads_in_blend(self, samples_in_blend: int, config: NanosetConfig) -> int:
        """Return how often any document is read at most, by a trainer that repeats a blend.

        A *blend* is a mixture of samples of several datasets. Such a trainer reads one blend again
        and again. For example:

            samples of this dataset                100
            samples of it in the blend             150    so the blend has some samples twice
            samples of it that training reads      400    so the blend is read 2.7 times, and
                                                          begun 3 times

        So a document is read at most 2 * 3 = 6 times.

        Args:
            samples_in_blend: Samples of this dataset in the blend: 150.
            config: What is trained: the trainer, and the length of samples.
        """
        samples_of_dataset = max(config.samples_in(self.tokens), 1)  # 100
        copies_in_blend = math.ceil(_before_rounding(samples_in_blend) / samples_of_dataset)  # 2
        times_begun = math.ceil(_before_rounding(self.samples_of_run) / samples_in_blend)  # 3
        return max(copies_in_blend, 1) * max(times_begun, 1)

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
        """Return which share of the dataset's tokens is read, if some of its samples are read.

        A token that is read twice counts once. For a dataset of 1,000 tokens, which are 100 samples
        of 10 tokens:

            samples that are read                      result
            60                                         0.6
            150                                        1: these are all 100, and 50 of them again
            60 of 200, as two epochs are shuffled      0.51: a few of them have the same tokens
            together

        Args:
            samples: Number of samples that are read: 60.
            config: What is trained.

        Returns:
            From 0 to 1. If several epochs are shuffled together, it is an expected value.
        """
        if samples <= 0 or not self.tokens:
            return 0.0
        if self.order.epochs_shuffled_together > 1:
            return self._share_read_of_shuffled_epochs(samples, config)
        # No sample of an epoch is repeated before all others were read.
        n_different = self._different_samples(samples, config)  # 60; 150 from two epochs
        return min(self.share_of_tokens(n_different, config), 1.0)  # 1.5 is all of them

    def _different_samples(self, samples: int, config: NanosetConfig) -> int:
        """Return how many of some samples are different ones, as trainers may repeat samples.

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
        if self.order.epochs <= 1:
            samples_of_epoch = config.samples_in(self.tokens)  # 100
            n_different = min(n_different, samples_of_epoch)
        if self.samples_in_blend_epoch is not None:  # of the repeated mixture: 80
            n_different = min(n_different, self.samples_in_blend_epoch)
        return n_different

    def _share_read_of_shuffled_epochs(self, samples: int, config: NanosetConfig) -> float:
        """Return which share of the dataset's tokens is read, if epochs are shuffled together.

        Each token is in one sample of each epoch. For example, two epochs have 200 samples, and 60
        of them are read:

            one copy of a token is not read        with the probability 1 - 60 / 200 = 0.7
            neither copy is read                   0.7 * 0.7 = 0.49
            the token is read                      1 - 0.49 = 0.51

        Args:
            samples: How many samples are read: 60.
            config: What is trained.
        """
        n_epochs = self.order.epochs_shuffled_together  # 2
        n_shuffled = config.samples_in(n_epochs * self.tokens)  # 200
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
        if self.samples_in_blend_epoch is not None:
            return None

        # Several epochs that are shuffled together, of which not all samples are read.
        n_epochs = self.order.epochs_shuffled_together
        n_shuffled = config.samples_in(n_epochs * self.tokens)
        if n_epochs > 1 and samples < n_shuffled:
            return _binomial(n_epochs, samples / n_shuffled)

        # Otherwise, all tokens are read equally often, except for those of the last epoch.
        share_in_samples = 1.0
        epochs = self.share_of_tokens(samples, config)  # 2.5
        if self.order.epochs <= 1:
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


def _before_rounding(n_samples: int) -> int:
    """Return the smallest whole number that may have been rounded up to a number of samples.

    Numbers are rounded up by less than 2 samples: 150 may have been 148.1, so the result is 148.
    Without this, 201 samples of a dataset of 100 would count as a third epoch, where 2 are meant.
    """
    return max(n_samples - MAX_ROUNDING_SAMPLES, 0)


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
        members = [reads_by_prefix[prefix] for prefix in corpus.prefixes]
        reads_by_member = _reads_of_copies(members, config)
        if reads_by_member is not None:
            n_tokens = _tokens_by_reads_of(corpus, reads_by_member)
            counts_by_corpus[corpus.corpus] = np.rint(n_tokens).astype(np.int64).tolist()
    return counts_by_corpus


def _reads_of_copies(
    members: Iterable[MemberReads], config: NanosetConfig
) -> list[NDArray[np.float64]] | None:
    """Return how likely it is, for each of some datasets, that a token is read 0, 1, 2, … times.

    Args:
        members: What is read of each dataset.
        config: What is trained.

    Returns:
        An array of shape (MANY_READS + 1,) for each dataset; None if one of them is not known.
    """
    reads_by_member = []
    for member in members:
        reads = member.reads_of_copy(config)
        if reads is None:
            return None
        reads_by_member.append(reads)
    return reads_by_member


def _tokens_by_reads_of(
    corpus: CorpusParts, reads_by_member: Sequence[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return how many tokens of a corpus are expected to be read 0, 1, 2, … times.

    Args:
        corpus: The corpus. Each of its parts has the tokens that are in the same datasets.
        reads_by_member: For each dataset, how likely it is that a token is read 0, 1, 2, … times,
            shape (MANY_READS + 1,).

    Returns:
        Shape (MANY_READS + 1,).
    """
    n_tokens = np.zeros(MANY_READS + 1)
    for part in corpus.parts:
        n_tokens += part.tokens * _reads_of_part(part, reads_by_member)
    return n_tokens


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


def _samples_in_blend_epoch(plan: SplitPlan, config: NanosetConfig) -> Sequence[int | None]:
    """Return how many samples of each dataset a trainer repeats, if it repeats a mixture of them.

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

    A *corpus* is a collection of documents, and several datasets may have copies of them. For
    example, web is read twice, and best-web, which has some documents of web, three times:

        tokens    copies in web    copies in best-web    times read    tokens read
        900       1                0                     2             1,800
        100       1                1                     2 + 3           500
        all                                                            2,300

    Args:
        corpus: The corpus. Its `parts` are the first two rows.
        members: How many samples are read of each dataset: web and best-web.
        config: What is trained: how many tokens apart samples start, for example.
    """
    # How often is each dataset read now? [2.0, 3.0]
    epochs = [dataset.share_of_tokens(dataset.samples_taken, config) for dataset in members]
    return plain_sum(part.tokens * part.times_read(epochs) for part in corpus.parts)


def _tokens_read_first(
    corpus: CorpusParts, members: Sequence[MemberReads], config: NanosetConfig
) -> float:
    """Return how many tokens of a corpus training reads that it has not read before.

    A training run may be stopped, and continue with other weights of its datasets. For example, a
    dataset has 1,000 tokens. Of these, 300 were read before the stop, and 800 in the end. So 500
    are read for the first time after the stop.

    Args:
        corpus: The corpus, a collection of documents. Several datasets may have copies of them.
        members: How many samples are read of each of these datasets, before the stop and after it.
        config: What is trained.

    Returns:
        An expected value, since it is random which tokens of a shuffled dataset are read.
    """
    # The share that is read of each dataset.
    shares_before = [dataset.share_read(dataset.samples_before, config) for dataset in members]
    shares_in_the_end = [dataset.share_read(dataset.samples_of_run, config) for dataset in members]

    n_tokens = 0.0
    for part in corpus.parts:  # tokens that are in the same datasets
        probability_before = part.probability_read(shares_before)  # 0.3
        probability_in_the_end = part.probability_read(shares_in_the_end)  # 0.8
        n_tokens += part.tokens * (probability_in_the_end - probability_before)
    return n_tokens


def _epochs_of_parts(
    corpus: CorpusParts, members: Sequence[MemberReads], config: NanosetConfig
) -> list[float]:
    """Return how often a training run reads the documents of a corpus, from its start on.

    Several datasets may have copies of the documents. A *part* of the corpus has those with equal
    numbers of copies. For example, dataset a is read 0.5 times, and b 3 times:

        part    copies in a    copies in b    times read
        0       1              0              1 * 0.5 + 0 * 3 = 0.5
        1       1              2              1 * 0.5 + 2 * 3 = 6.5

    Args:
        corpus: The corpus.
        members: How many samples the run reads of each dataset: a and b.
        config: What is trained.

    Returns:
        The last column, a number for each part.
    """
    # How often is each dataset read? [0.5, 3]
    epochs = [epochs_drawn(dataset.samples_of_run, dataset.tokens, config) for dataset in members]
    return [part.times_read(epochs) for part in corpus.parts]


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

    For example, best-web is a selection of the documents of web, and web may be read twice. So
    there are two kinds of documents. Those that were selected are read through both datasets:

        part          copies in web    in best-web    limit
        selected      1                1              reads of web + reads of best-web <= 2
        all others    1                0              reads of web <= 2

    Args:
        corpora: Collections of documents. The `parts` of one have the documents that have the same
            number of copies in each dataset.
        limits: Path of a dataset → how often it may be read: {"data/web": 2}.

    Returns:
        The limits of all parts. None for corpora whose documents have only one copy, since the
        limit of their dataset is enough.
    """
    limits_on_copies: list[SharedLimit] = []
    for corpus in corpora:
        if corpus.is_shared:
            for part in corpus.parts:  # selected, all others
                limits_on_copies += _limits_of_part(corpus, part, limits)
    return limits_on_copies


def _limits_of_part(
    corpus: CorpusParts, part: CorpusPart, limits: Mapping[str, float]
) -> list[SharedLimit]:
    """Return how often documents may be read that are in the same datasets.

    The limit of each dataset that contains them applies. For example:

        dataset                      web    code    best-web
        copies of each document      1      0       2
        limit of the dataset         2      3       none

    There is one limit, that of web: the documents may be read twice, through web and best-web
    together. Code does not contain them.

    Args:
        corpus: The corpus that has the documents, with all its datasets.
        part: The documents, with their copies in each dataset: (1, 0, 2).
        limits: Path of a dataset → how often it may be read: {"data/web": 2, "data/code": 3}.
    """
    copies_by_prefix = corpus.copies_by_prefix(part)  # {"data/web": 1, "data/best-web": 2}
    limits_of_part = []
    for prefix in copies_by_prefix:
        if prefix in limits:
            shared_limit = SharedLimit(
                prefix=prefix,
                corpus=corpus.corpus,
                holders=corpus.holders_of(part),
                copies=copies_by_prefix,
                limit=limits[prefix],
            )
            limits_of_part.append(shared_limit)
    return limits_of_part
