"""Find the datasets that a split would read more often than they may be read.

The limit of a dataset holds for each of its documents. If other datasets of the blend contain the
document, too, as a view of a corpus does, it counts how often they are read, too. For example, the
split reads web twice, and a view of it three times: documents of the view are read five times.
`corpora.py` defines how often a document is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.corpora import CorpusReader, SharedLimit, epochs_drawn, shared_limits
from nanoset_core.sampling.plan import plan_split
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


def epochs_needed(samples: int, tokens: int, config: NanosetConfig) -> float:
    """Return how often a dataset must be read to get a number of training samples from it.

    For example, a sample has 10 tokens, and also the first token of the next one, which the model
    learns to predict. So 150 samples need 1,501 tokens. If the dataset has 1,000, it is read 1.501
    times.

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
    if config.rules.one_epoch:
        # The trainer cuts one epoch into samples, and repeats these.
        samples_of_epoch = config.samples_in(tokens)
        if samples_of_epoch == 0:
            return math.inf
        return samples / samples_of_epoch

    # The trainer joins the tokens of all epochs, and cuts these into samples. A sample starts
    # `step` (10) tokens after the previous one. The last one needs `overlap` (1) more.
    tokens_needed = samples * config.step + config.overlap
    return tokens_needed / tokens


def epochs_of_earlier_phases(config: NanosetConfig, reader: LengthReader) -> dict[str, float]:
    """Return how often a training run read each dataset before its weights were changed.

    A run can be stopped, and continue with other weights. It must not read a dataset too often in
    all, so what it read before counts, too. For example, it took 125 samples of a dataset of 100
    samples: {"data/web": 1.25}.

    Args:
        config: What the run continues with. Its `orders` say what it took of each dataset before.
        reader: Reads the sizes of the datasets from their `.idx` files.

    Returns:
        Path of a dataset → how often it was read; empty if the run has not been changed.

    Raises:
        MissingError: An `.idx` file is missing.
        FormatError: An `.idx` file is damaged.
    """
    epochs = {}
    for prefix, order in config.orders.items():
        # Tokens of one epoch: those of the sequences that train has of the dataset.
        lengths, _ = reader.read(prefix)
        start, stop = order.rows
        tokens = int(lengths[start:stop].sum(dtype=np.int64))
        epochs[prefix] = epochs_needed(order.taken, tokens, config)
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
        """Return the limits on how often documents may be read that several datasets contain.

        For example, the dataset best-web has the best documents of web, and web may be read twice.
        Then the best documents may be read twice through both datasets together:

            limits of datasets                      {"data/web": 2}
            copies of the best documents            web 1, best-web 1
            result                                  1 * times(web) + 1 * times(best-web) <= 2

        Documents that are in one dataset only need no such limit: they are read as often as the
        dataset.

        Args:
            plan: What was planned for a split of the data, such as train: its datasets.
            config: What is trained.

        Returns:
            The limits; none if no dataset has a limit, or no two datasets have documents in common.
        """
        if self.corpora is None or not self.by_prefix:
            return []
        # Find out which of the documents that are read have copies in which datasets.
        rows_by_prefix = _rows_of_run(plan, config)  # {"data/web": (0, 900), ...}
        corpora = self.corpora.parts(rows_by_prefix)
        return shared_limits(corpora, self.by_prefix)

    def exceeded(self, config: NanosetConfig, split: SplitName) -> list[ExceededLimit]:
        """Return which datasets training would read too often.

        A dataset has a limit such as 2: it may be read twice. There are two ways to exceed it:

        - Other datasets contain some of its documents, and these are read too often in all. For
          example, web is read 1.5 times, and so is best-web, which has the best documents of web.
          Then these are read 3 times.
        - It is read too often itself. This cannot happen if datasets have no weights, since then
          each is read once at most.

        Args:
            config: What is trained, with the number of samples.
            split: The split of the data: train, valid or test.

        Returns:
            The limits that would be exceeded, each with how often the documents would be read.
        """
        if config.samples(split) is None:
            return []  # everything is read once, which is always allowed
        plan = plan_split(config, split, self.reader)
        if plan is None:
            return []  # the split has no data

        # Datasets whose documents are also in other datasets.
        limits_on_copies = self.on_copies(plan, config)
        exceeded = _exceeded_on_copies(plan, config, limits_on_copies, self.reader)

        # All other datasets. They can only be read several times if they have weights.
        if not _reads_datasets_once(plan, config):
            prefixes_with_copies = {limit.prefix for limit in limits_on_copies}
            exceeded += self._exceeded_without_copies(plan, config, prefixes_with_copies)
        return exceeded

    def _exceeded_without_copies(
        self, plan: SplitPlan, config: NanosetConfig, prefixes_with_copies: Set[str]
    ) -> list[ExceededLimit]:
        """Return which datasets training would read too often, except for those with copies.

        Trainers build a few more samples of a dataset than they read, to be safe. The limit is for
        what is built. For example, a dataset of 100 samples may be read twice, so at most 200 may
        be built of it:

            read    built to be safe
            199     200                 allowed
            200     201                 too many: the user is told that it is read 2.00 times

        A run may have been stopped and continued with other weights. Then `_samples_of_run` adds
        the samples that it had read before.

        Args:
            plan: What was planned for a split of the data, such as train.
            config: What is trained.
            prefixes_with_copies: Paths of datasets to leave out, since others have the same
                documents.
        """
        exceeded = []
        for dataset in plan.members:
            limit = self.by_prefix.get(dataset.prefix)
            if limit is None or dataset.prefix in prefixes_with_copies:
                continue
            n_built = _samples_of_run(dataset, dataset.samples_requested or 0)  # 201
            if n_built > most_samples(dataset.tokens, limit, config):  # 200
                # The user is told what is read, without the samples that are built to be safe.
                n_read = _samples_of_run(dataset, _samples_of_blend(dataset))  # 200
                epochs = epochs_drawn(n_read, dataset.tokens, config)
                exceeded.append(ExceededLimit(dataset.prefix, dataset.split, epochs, limit))
        return exceeded


def _rows_of_run(plan: SplitPlan, config: NanosetConfig) -> dict[str, Rows]:
    """Return which documents of each dataset training reads.

    A split of the data has a range of them. For example, train has the documents 0 to 899 of a
    dataset of 1,000: {"data/web": (0, 900)}. A training run that was stopped and continued with
    other datasets has also read documents of the old ones, so these are included.

    Args:
        plan: What was planned for the split.
        config: What is trained. Its `orders` say what was read before.

    Returns:
        Path of a dataset → first document, and the one after the last. (If documents are divided
        into several sequences, it is a range of these.)
    """
    rows_by_prefix: dict[str, Rows] = {}
    if plan.split == "train":  # valid and test always start anew
        for prefix, order in config.orders.items():
            rows_by_prefix[prefix] = order.rows
    for member in plan.members:
        rows_by_prefix[member.prefix] = member.rows
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

    For example, the dataset best-web has the best documents of web, which may be read twice. If
    each of both datasets is read 1.5 times, the best documents are read 3 times, which is too
    often.

    Args:
        config: What is trained.
        split: The split of the data: train, valid or test.
        limits: Path of a dataset → how often its documents may be read.
        reader: Reads the sizes of datasets from their `.idx` files; share it between splits.
        corpora: Finds the documents that several datasets contain.

    Returns:
        One entry for each dataset whose limit is exceeded, with how often the documents are read.
    """
    plan = plan_split(config, split, reader)
    if plan is None:
        return []  # the split has no data
    epoch_limits = EpochLimits(by_prefix=limits, reader=reader, corpora=corpora)
    limits_on_copies = epoch_limits.on_copies(plan, config)
    return _exceeded_on_copies(plan, config, limits_on_copies, reader, with_margin=False)


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
    """Return how many samples of a dataset a training run reads in all.

    A run that was stopped and continues with other weights plans as if it had had the new weights
    from the start. So it reads a new order of samples, and skips as many of them as the new weights
    would have taken by now. These need not be as many as were really read with the old weights:

        length of the new order                   300
        skipped at its start                       70
        read now                                  300 - 70 = 230
        read before, with the old weights          50
        read in all                               50 + 230 = 280

    Args:
        member: What was planned for the dataset: `begin` (70) and `taken_before` (50). Both are 0
            if the weights were not changed.
        samples: Length of the new order: 300.
    """
    n_read_now = samples - member.begin
    return member.taken_before + n_read_now


@dataclass(frozen=True, slots=True)
class _EpochCounts:
    """How often a run reads datasets, counted in three ways; the keys are prefixes."""

    built: dict[str, float]
    """Epochs of the samples that are built, with the margin that the trainer adds."""
    taken_by_blend: dict[str, float]
    """Epochs of the samples that the blend takes, without the margin."""
    tolerance: dict[str, float]
    """Epochs by which `taken_by_blend` may be too high, since numbers of samples are rounded up."""

    def builds_too_often(self, limit: SharedLimit) -> bool:
        """Return whether documents are built more often than they may be read."""
        return limit.is_exceeded(self.built)

    def takes_too_often(self, limit: SharedLimit) -> bool:
        """Return whether a blend takes documents more often than they may be read."""
        tolerance = limit.times_read(self.tolerance)
        return limit.is_exceeded(self.taken_by_blend, tolerance=tolerance)


def _count_epochs(plan: SplitPlan, config: NanosetConfig, reader: LengthReader) -> _EpochCounts:
    """Count how often a training run reads each dataset, in three ways.

    Each number is in epochs, that is, divided by the size of the dataset. For one of 100 samples:

                          samples                                                  epochs
        taken by blend    200, which training reads                                2.0
        built             201, as the trainer makes a few more to be safe          2.01
        tolerance           2, as rounding can add up to two to the first row      0.02

    So if the dataset may be read 2 times, the first row is allowed up to 2.02.

    A run may have been stopped and continued with other datasets. What it read before counts, too,
    including datasets that it does not read any more.

    Args:
        plan: What was planned for a split of the data, such as train.
        config: What is trained.
        reader: Reads the sizes of datasets from their `.idx` files.
    """
    # Path of each dataset → how often it was read before. Valid and test always start anew.
    earlier_epochs: dict[str, float] = {}
    if plan.split == "train":
        earlier_epochs = epochs_of_earlier_phases(config, reader)

    # `earlier | all` takes the value of `all` for a dataset that is still read: this value includes
    # what was read before. A dataset that is not read any more is only in `earlier`. What was read
    # of it is known exactly, so its tolerance is 0.
    no_tolerance = dict.fromkeys(earlier_epochs, 0.0)
    return _EpochCounts(
        built=earlier_epochs | _epochs_built(plan, config),
        taken_by_blend=earlier_epochs | _epochs_taken(plan, config),
        tolerance=no_tolerance | _epochs_of_rounding(plan, config),
    )


def _epochs_built(plan: SplitPlan, config: NanosetConfig) -> dict[str, float]:
    """Return path of each dataset → how often it must be read to build the samples of a run."""
    epochs = {}
    for member in plan.members:
        samples = _samples_of_run(member, _samples_built(member))
        epochs[member.prefix] = epochs_needed(samples, member.tokens, config)
    return epochs


def _epochs_taken(plan: SplitPlan, config: NanosetConfig) -> dict[str, float]:
    """Return path of each dataset → how often the samples that are read contain its tokens."""
    epochs = {}
    for member in plan.members:
        samples = _samples_of_run(member, _samples_of_blend(member))
        epochs[member.prefix] = epochs_drawn(samples, member.tokens, config)
    return epochs


def _epochs_of_rounding(plan: SplitPlan, config: NanosetConfig) -> dict[str, float]:
    """Return path of each dataset → by how many epochs other numbers may be too high.

    Numbers of samples are rounded up, by less than two samples. For example, two samples of 10
    tokens are 0.02 epochs of a dataset of 1,000 tokens.
    """
    tokens_of_rounding = 2 * config.step
    return {member.prefix: tokens_of_rounding / max(member.tokens, 1) for member in plan.members}


def _exceeded_on_copies(
    plan: SplitPlan,
    config: NanosetConfig,
    limits_on_copies: Sequence[SharedLimit],
    reader: LengthReader,
    *,
    with_margin: bool = True,
) -> list[ExceededLimit]:
    """Return which documents training reads too often, of those that several datasets contain.

    For example, the dataset best-web has the best documents of web, which may be read twice:

        dataset     read
        web         1.5 times
        best-web    1.5 times

    So the best documents are read 3 times, which is too often.

    Args:
        plan: What was planned for a split of the data, such as train.
        config: What is trained.
        limits_on_copies: The limits on such documents.
        reader: Reads the sizes of datasets from their `.idx` files.
        with_margin: Whether to count the samples that the trainer builds. It builds a few more than
            it reads. False counts those that are read.

    Returns:
        The exceeded limits. If a dataset has several of them, only the one whose documents are read
        most often.
    """
    if not limits_on_copies:
        return []
    counts = _count_epochs(plan, config, reader)
    exceeded = []
    for limit in limits_on_copies:
        if with_margin:
            is_exceeded = counts.builds_too_often(limit)
        else:
            is_exceeded = counts.takes_too_often(limit)
        if is_exceeded:
            exceeded.append(
                ExceededLimit(
                    prefix=limit.prefix,
                    split=plan.split,
                    epochs=limit.times_read(counts.taken_by_blend),
                    limit=limit.limit,
                    holders=limit.holders,
                )
            )
    return _worst_of_each_dataset(exceeded)


def _worst_of_each_dataset(exceeded: Sequence[ExceededLimit]) -> list[ExceededLimit]:
    """Return, for each dataset, its exceeded limit whose documents are read most often."""
    worst_by_prefix: dict[str, ExceededLimit] = {}
    for limit in exceeded:
        worst = worst_by_prefix.get(limit.prefix)
        if worst is None or limit.epochs > worst.epochs:
            worst_by_prefix[limit.prefix] = limit
    return list(worst_by_prefix.values())
