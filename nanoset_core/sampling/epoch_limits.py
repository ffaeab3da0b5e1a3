"""Find the datasets that a split would read more often than they may be read.

The limit of a dataset holds for each of its documents. If other datasets of the blend contain the
document, too, as a view of a corpus does, it counts how often they are read, too. For example, the
split reads web twice, and a view of it three times: documents of the view are read five times.
`corpora.py` defines how often a document is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nanoset_core.rounding import ceil_division
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.corpora import (
    MAX_ROUNDING_SAMPLES,
    CorpusParts,
    CorpusReader,
    MemberReads,
    SharedLimit,
    epochs_drawn,
    shared_limits,
)
from nanoset_core.sampling.plan import plan_split, separate_last_epoch
from nanoset_core.sampling.planned import MemberPlan, SplitPlan
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.sampling.splits import Rows, SplitName


@dataclass(frozen=True, slots=True)
class ExceededLimit:
    """A dataset that a split would read more often than it may be read."""

    prefix: str
    """Path of the dataset without .bin and .idx."""
    split: SplitName
    epochs: float
    """How often it would be read. If documents have several copies, how often those would be read
    that are read most often.
    """
    limit: float
    """How often it may be read."""
    holders: tuple[str, ...] = ()
    """Names of the datasets that contain the documents that are read most often, if these documents
    have several copies; otherwise empty.
    """

    @property
    def text(self) -> str:
        """What would be read how often, as a clause of a message."""
        times = f"{self.epochs:.2f} times in {self.split} (at most {self.limit:g})"
        if not self.holders:
            name = Path(self.prefix).name
            return f"{name} {times}"
        holders = " and ".join(self.holders)
        if len(self.holders) == 1:
            return f"documents that {holders} repeats {times}"
        return f"documents that {holders} share {times}"


@dataclass(frozen=True, slots=True)
class UnevenReads:
    """Documents that keep a limit on average, but some of which may be read more often."""

    holders: tuple[str, ...]
    """Names of the datasets that contain the documents."""
    limit: float
    """How often they may be read on average."""
    most_reads: int
    """How often some of them may be read."""


def most_samples(tokens: int, limit: float, config: NanosetConfig) -> int:
    """Return how many training samples may be taken of a dataset that may be read `limit` times.

    Trainers repeat a dataset in two ways. For a dataset of 105 tokens that may be read twice, and
    samples of 10 tokens:

        repeats the samples of one epoch        10 samples, twice           20
        joins the tokens of all epochs          210 tokens in samples       21

    Args:
        tokens: Tokens of the dataset.
        limit: How often it may be read, such as 2 or 1.5.
        config: What is trained: the trainer, and the length of samples.
    """
    if config.rules.one_epoch:
        # The trainer repeats the samples of one epoch.
        return int(limit * config.samples_in(tokens))
    # The trainer joins epochs, and cuts samples from all their tokens.
    return config.samples_in(int(limit * tokens))


def epochs_shuffled_together(prepared: int, tokens: int, config: NanosetConfig) -> int:
    """Return how many epochs of a dataset the trainer shuffles together.

    A run that reads only a few of these samples may already read a document that many times. The
    last epoch does not count if the trainer shuffles it on its own. For example, samples have 10
    tokens:

        tokens    prepared samples    epochs    shuffled together
        1,000     190                 2         2
        1,000     203                 3         2: the third epoch is shuffled on its own
        25        10                  5         5: few samples are as much as an epoch

    Args:
        prepared: Samples that the trainer prepares: those that it reads, and a reserve.
        tokens: Tokens of one epoch of the dataset, more than 0.
        config: What is trained: the trainer, and the length of samples.
    """
    if config.rules.one_epoch:
        return 1  # the trainer repeats the samples of one epoch
    tokens_needed = prepared * config.step + config.overlap
    n_epochs = max(ceil_division(tokens_needed, tokens), 1)
    if separate_last_epoch(n_epochs, tokens, prepared, config.step, config.overlap):
        return n_epochs - 1
    return n_epochs


def epochs_needed(samples: int, tokens: int, config: NanosetConfig) -> float:
    """Return how often a dataset must be read to get a number of training samples from it.

    For example, a dataset has 1,000 tokens, and a sample has 10. Then 150 samples need 1.5 epochs,
    or slightly more, since the last sample also needs the token after it.

    Args:
        samples: Number of samples.
        tokens: Tokens of the dataset.
        config: What is trained: the trainer, and the length of samples.

    Returns:
        Number of times. 0 if there are no samples, or no tokens at all. Infinity if the dataset has
        too few tokens for a single sample, and the trainer does not join several epochs.
    """
    if samples <= 0 or tokens == 0:
        return 0.0
    if not config.rules.one_epoch:
        # The trainer joins the tokens of all epochs, and cuts these into samples.
        tokens_needed = samples * config.step + config.overlap  # 150 * 10 + 1
        return tokens_needed / tokens

    # The trainer cuts one epoch into samples, and repeats these.
    samples_of_epoch = config.samples_in(tokens)
    if samples_of_epoch == 0:
        return math.inf
    return samples / samples_of_epoch


def epochs_of_earlier_phases(
    config: NanosetConfig, split: SplitName, reader: LengthReader
) -> dict[str, float]:
    """Return how often a training run has read each dataset before its weights were changed.

    For example, it had read 125 samples of web, which has 100 samples: {"data/web": 1.25}. The
    result is empty if the weights were never changed.

    Args:
        config: What is trained with the new weights. `orders` says what was read of each dataset
            before: how many samples (`taken`: 125), of which documents (`rows`: (0, 900)).
        split: Name of the split. The result is empty for valid and test: these are read from their
            start after each change.
        reader: Reads the lengths of documents from the datasets' `.idx` files.

    Raises:
        MissingError: An `.idx` file is missing.
        FormatError: An `.idx` file is damaged.
    """
    epochs: dict[str, float] = {}
    if split == "train":
        for prefix, order in config.orders.items():
            tokens_of_epoch = reader.tokens_of(prefix, order.rows)
            epochs[prefix] = epochs_needed(order.taken, tokens_of_epoch, config)
    return epochs


@dataclass(frozen=True, slots=True)
class EpochLimits:
    """Limits on how often datasets are read, and what is needed to check them."""

    by_prefix: Mapping[str, float]
    """Prefix → how often the dataset may be read; other datasets have no limit."""
    reader: LengthReader
    """Reads the datasets' `.idx` files."""
    corpora: CorpusReader | None
    """Finds documents that several datasets contain; None if datasets have none in common."""

    def on_copies(self, plan: SplitPlan, config: NanosetConfig) -> list[SharedLimit]:
        """Return limits for the documents that several datasets contain.

        Such a document is read through each of these datasets. For example, best-web is a selection
        of web, and no document of web may be read more than twice. So for the documents in both:

            times web is read + times best-web is read <= 2

        Args:
            plan: What training reads.
            config: Its settings.

        Returns:
            The limits; none if no two datasets have documents in common.
        """
        if self.corpora is None or not self.by_prefix:
            return []
        # The documents that are read: {"data/web": (0, 900), "data/best-web": (0, 80)}
        rows_by_prefix = _rows_of_run(plan, config)
        # Collections of these, in which documents in the same datasets are grouped.
        corpora = self.corpora.parts(rows_by_prefix)
        return shared_limits(corpora, self.by_prefix)

    def on_datasets(self, limits_on_copies: Sequence[SharedLimit]) -> dict[str, float]:
        """Return the limits of the datasets whose documents have no copies in other datasets.

        Args:
            limits_on_copies: The limits for documents that have, as `on_copies` returns them.

        Returns:
            Path of a dataset → how often it may be read: {"data/code": 2}.
        """
        with_copies = {limit.prefix for limit in limits_on_copies}
        return {
            prefix: limit for prefix, limit in self.by_prefix.items() if prefix not in with_copies
        }

    def exceeded(self, config: NanosetConfig, split: SplitName) -> list[ExceededLimit]:
        """Return the limits that training would exceed.

        A document is read through each dataset that contains it. For example, web and code may be
        read twice, and best-web is a selection of web's documents:

            dataset     times read    documents are read
            web         1.5           those of best-web 1.5 + 1 = 2.5 times: exceeds the limit
            best-web    1
            code        2.2           2.2 times: exceeds the limit

        Args:
            config: What is trained, with the number of samples.
            split: The split of the data: train, valid or test.

        Returns:
            The exceeded limits, each with how often the documents would be read.
        """
        if config.samples(split) is None:
            return []  # each sample is read once, which is always allowed
        plan = plan_split(config, split, self.reader)
        if plan is None:
            return []  # the split has no data

        limits_on_copies = self.on_copies(plan, config)  # that of web
        exceeded = _exceeded_on_copies(plan, config, limits_on_copies, self.reader)
        limits_on_datasets = self.on_datasets(limits_on_copies)  # that of code
        exceeded += _exceeded_on_datasets(plan, config, limits_on_datasets)
        return exceeded


def _rows_of_run(plan: SplitPlan, config: NanosetConfig) -> dict[str, Rows]:
    """Return which documents of each dataset a training run reads, from its start to its end.

    For example, train has the documents 0 to 899 of web: {"data/web": (0, 900)}. If the run was
    stopped and continued with other datasets, the old datasets are included.

    Args:
        plan: What training reads now.
        config: Its settings. `orders` has the datasets that it read before.

    Returns:
        Path of each dataset → its first document, and the one after the last.
    """
    rows_by_prefix: dict[str, Rows] = {}
    if plan.split == "train":  # valid and test always start again
        for prefix, order in config.orders.items():
            rows_by_prefix[prefix] = order.rows
    for dataset in plan.members:
        rows_by_prefix[dataset.prefix] = dataset.rows
    return rows_by_prefix


def _reads_datasets_once(plan: SplitPlan, config: NanosetConfig) -> bool:
    """Return whether a split reads no dataset more than once, because datasets have no weights.

    Samples are taken of several datasets in proportion to weights, or else each sample once.
    """
    blend = config.blend(plan.split)
    if blend is None:
        has_weights = False
    else:
        _, weights = blend
        has_weights = weights is not None
    return plan.blend is not None and not has_weights


def documents_read_too_often(
    config: NanosetConfig,
    split: SplitName,
    limits: Mapping[str, float],
    reader: LengthReader,
    corpora: CorpusReader,
) -> list[ExceededLimit]:
    """Return which documents training reads too often because several datasets contain them.

    For example, best-web has copies of some documents of web, and web may be read twice. If each of
    the two datasets is read 1.5 times, the copied documents are read 3 times.

    The samples that trainers prepare in addition to those that they read do not count. And limits
    may be exceeded by as much as rounding explains.

    Args:
        config: What is trained.
        split: The split of the data: train, valid or test.
        limits: Path of a dataset → how often its documents may be read: {"data/web": 2}.
        reader: Reads the sizes of datasets from their `.idx` files; share it between splits.
        corpora: Finds the documents that several datasets contain.

    Returns:
        One entry for each dataset whose limit is exceeded, with how often the documents are read.
    """
    plan = plan_split(config, split, reader)
    if plan is None:
        return []  # the split has no data
    limits_on_copies = EpochLimits(limits, reader, corpora).on_copies(plan, config)
    if not limits_on_copies:
        return []  # no two datasets have documents in common

    epochs = _epochs_of_run(plan, config, reader).epochs_taken  # how often each dataset is read
    exceeded = []
    for limit in limits_on_copies:
        tolerance = _epochs_of_rounding(limit, plan, config)
        if limit.is_exceeded(epochs, tolerance):
            exceeded.append(limit)
    return _worst_of_each_dataset(exceeded, split, epochs)


def unevenly_read(
    corpora: Sequence[CorpusParts],
    reads_by_prefix: Mapping[str, MemberReads],
    limits: Mapping[str, float],
    config: NanosetConfig,
) -> list[UnevenReads]:
    """Return which documents may be read more often than their limit, because they have copies.

    Limits hold for the average number of times that documents are read. For example, documents of
    web may be read once. Some of them are also in half, a selection of web's documents:

        dataset                                  web     half    sum
        how often it is read                     0.5     0.4     0.9    within the limit of 1
        how often any document is read at most   1       1       2      exceeds the limit by 1

    A limit of 1.5 counts as 2 here: half of the documents are read twice, even without copies.

    Args:
        corpora: Collections of documents, each grouped by the datasets that contain a document.
        reads_by_prefix: Path of each dataset → how many samples are read of it.
        limits: Path of a dataset → how often it may be read: {"data/web": 1}.
        config: What is trained.

    Returns:
        At most one entry for each corpus: the documents that may exceed their limit by most. None
        for documents that are in a single dataset, once.
    """
    # How often any document is read through each dataset, at most: 1 for web, and 1 for half.
    most_reads_by_prefix: dict[str, int] = {}
    for prefix, reads in reads_by_prefix.items():
        most_reads_by_prefix[prefix] = reads.most_reads(config)

    # Look at documents that are in the same datasets, such as those in both web and half.
    worst_by_corpus: dict[str, UnevenReads] = {}
    largest_excess: dict[str, int] = {}
    for limit in shared_limits(corpora, limits):
        n_copies = sum(limit.copies.values())  # one in web, and one in half
        if n_copies == 1:
            continue
        most_reads = int(limit.times_read(most_reads_by_prefix))  # 1 + 1
        excess = most_reads - math.ceil(limit.limit)  # 2 - 1
        if excess > largest_excess.get(limit.corpus, 0):
            largest_excess[limit.corpus] = excess
            dataset_names = limit.holders  # ("web", "half")
            worst_by_corpus[limit.corpus] = UnevenReads(dataset_names, limit.limit, most_reads)
    return list(worst_by_corpus.values())


def _samples_built(member: MemberPlan) -> int:
    """Return how many samples of a dataset the trainer builds. It builds more than it reads."""
    if member.samples_requested is None:
        return member.samples_given  # no number was requested: the dataset gives all its samples
    return member.samples_requested


def _samples_of_blend(member: MemberPlan) -> int:
    """Return how many samples of a dataset are read, without those that are built to be safe."""
    if member.samples_target is None:
        return member.samples_given  # no number was requested: the dataset gives all its samples
    return member.samples_target


def _samples_of_run(member: MemberPlan, samples: int) -> int:
    """Return how many samples of a dataset a training run reads, before and after a change.

    A run can be stopped, and continue with new weights of its datasets. For the new weights, the
    trainer makes a new list of samples, and skips the start of it:

        samples of the list                             300
        skipped at its start                             70
        read now                            300 - 70 =  230
        read before the change                           50
        read in all                         50 + 230 =  280

    Args:
        member: What was planned for the dataset: `begin` (70) and `taken_before` (50). Both are 0
            if the weights were never changed.
        samples: Samples of the list: 300.
    """
    n_read_now = samples - member.begin
    return member.taken_before + n_read_now


def _is_built_too_often(member: MemberPlan, limit: float, config: NanosetConfig) -> bool:
    """Return whether the trainer prepares more samples of a dataset than its limit allows.

    For example, a dataset of 100 samples may be read twice, so 200 samples are allowed. Trainers
    prepare a few more samples than they read, to be safe. These count, too:

        read    prepared
        199     200         allowed
        200     201         too many

    Args:
        member: What was planned for the dataset: how many samples are prepared
            (`samples_requested`), or None to read each once, which every limit allows.
        limit: How often the dataset may be read: 2.
        config: What is trained.
    """
    if member.samples_requested is None:
        return False
    # Samples that a run read before it changed its weights count, too.
    n_prepared = _samples_of_run(member, member.samples_requested)
    return n_prepared > most_samples(member.tokens, limit, config)


def _epochs_built(member: MemberPlan, config: NanosetConfig) -> float:
    """Return how often the trainer must read a dataset for all samples that it prepares.

    Trainers prepare a few more samples than they read, such as 201 in place of 200. For a dataset
    of 100 samples, that is 2.01 times.
    """
    samples = _samples_of_run(member, _samples_built(member))
    return epochs_needed(samples, member.tokens, config)


def _epochs_taken(member: MemberPlan, config: NanosetConfig) -> float:
    """Return how often training reads a dataset: 200 of its 100 samples are 2.0 times."""
    samples = _samples_of_run(member, _samples_of_blend(member))
    return epochs_drawn(samples, member.tokens, config)


def _epochs_of_rounding(limit: SharedLimit, plan: SplitPlan, config: NanosetConfig) -> float:
    """Return by how much rounding may raise the number of times that documents are read.

    The weights give an exact number of samples of each dataset, such as 750.25. It is rounded up,
    by less than 2 samples. For samples of 10 tokens, these are 20 tokens. For example, some
    documents are in two datasets:

        dataset     tokens    copies of each document    may be read more often by
        web         1,000     1                          1 * 20 / 1,000 = 0.02
        best-web      500     1                          1 * 20 /   500 = 0.04
        sum                                                               0.06

    Args:
        limit: The limit on these documents. `copies` has the number of copies in each dataset.
        plan: What training reads: the datasets, with their tokens.
        config: Its settings.
    """
    rounding_tokens = MAX_ROUNDING_SAMPLES * config.step  # 2 * 10
    epochs = []
    for dataset in plan.members:
        n_copies = limit.copies.get(dataset.prefix, 0)
        epochs.append(n_copies * (rounding_tokens / max(dataset.tokens, 1)))
    return math.fsum(epochs)


class _RunEpochs(NamedTuple):
    """How often a training run reads each dataset, from its start to its end."""

    epochs_taken: Mapping[str, float]
    """Path of a dataset → how often it is read."""
    epochs_built: Mapping[str, float]
    """The same if all samples were read that the trainer prepares, to be safe."""


def _epochs_of_run(plan: SplitPlan, config: NanosetConfig, reader: LengthReader) -> _RunEpochs:
    """Return how often a training run reads each dataset, from its start to its end.

    This includes datasets that were only read before the weights were changed.

    Args:
        plan: What training reads now.
        config: Its settings.
        reader: Reads the sizes of datasets from their `.idx` files.
    """
    epochs_taken = epochs_of_earlier_phases(config, plan.split, reader)
    epochs_built = dict(epochs_taken)
    for dataset in plan.members:  # `plan` says what was read of these before, too
        epochs_taken[dataset.prefix] = _epochs_taken(dataset, config)
        epochs_built[dataset.prefix] = _epochs_built(dataset, config)
    return _RunEpochs(epochs_taken, epochs_built)


def _exceeded_on_copies(
    plan: SplitPlan,
    config: NanosetConfig,
    limits_on_copies: Sequence[SharedLimit],
    reader: LengthReader,
) -> list[ExceededLimit]:
    """Return which documents training reads too often, of those that several datasets contain.

    For example, best-web is a selection of web, and web may be read twice. If training reads each
    of them 1.5 times, the selected documents are read 3 times. Samples that the trainer prepares in
    addition to those that it reads count, too.

    Args:
        plan: What training reads.
        config: Its settings.
        limits_on_copies: The limits on such documents.
        reader: Reads the sizes of datasets from their `.idx` files.

    Returns:
        The exceeded limits, at most one for each dataset: that of the documents that are read most
        often.
    """
    if not limits_on_copies:
        return []
    run = _epochs_of_run(plan, config, reader)
    exceeded = [limit for limit in limits_on_copies if limit.is_exceeded(run.epochs_built)]
    return _worst_of_each_dataset(exceeded, plan.split, run.epochs_taken)


def _exceeded_on_datasets(
    plan: SplitPlan, config: NanosetConfig, limits: Mapping[str, float]
) -> list[ExceededLimit]:
    """Return which datasets training reads too often, if their documents have no copies in others.

    Args:
        plan: What training reads.
        config: Its settings.
        limits: Path of a dataset → how often it may be read: {"data/code": 2}.
    """
    if _reads_datasets_once(plan, config):
        return []  # every limit allows this
    exceeded = []
    for dataset in plan.members:
        limit = limits.get(dataset.prefix)
        if limit is not None and _is_built_too_often(dataset, limit, config):
            epochs = _epochs_taken(dataset, config)
            exceeded.append(ExceededLimit(dataset.prefix, plan.split, epochs, limit))
    return exceeded


def _worst_of_each_dataset(
    limits: Sequence[SharedLimit], split: SplitName, epochs: Mapping[str, float]
) -> list[ExceededLimit]:
    """Return, for each dataset, its exceeded limit whose documents are read most often.

    Args:
        limits: The exceeded limits. A dataset has several if its documents have different numbers
            of copies in other datasets.
        split: The split of the data, for the message.
        epochs: Path of each dataset → how often it is read.
    """
    worst_by_prefix: dict[str, ExceededLimit] = {}
    for limit in limits:
        times_read = limit.times_read(epochs)
        worst = worst_by_prefix.get(limit.prefix)
        if worst is None or times_read > worst.epochs:
            worst_by_prefix[limit.prefix] = ExceededLimit(
                limit.prefix, split, times_read, limit.limit, limit.holders
            )
    return list(worst_by_prefix.values())
