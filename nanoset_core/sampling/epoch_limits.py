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
    """Return how many samples may be taken of a dataset without exceeding its limit.

    Args:
        tokens: Tokens of one epoch.
        limit: How often it may be read.
        config: Configuration of the nanoset.
    """
    if config.rules.one_epoch:
        # The trainer repeats the samples of one epoch.
        return int(limit * config.samples_in(tokens))
    # The trainer joins epochs, and cuts samples from all their tokens.
    return config.samples_in(int(limit * tokens))


def epochs_needed(samples: int, tokens: int, config: NanosetConfig) -> float:
    """Return how often a dataset must be read to get a number of samples from it.

    For example, 150 samples of 10 tokens, which share one token with the next sample, have 1,501
    tokens. From a dataset of 1,000 tokens, that takes 1.501 epochs.

    Args:
        samples: Number of samples.
        tokens: Tokens of one epoch.
        config: Configuration of the nanoset.

    Returns:
        Number of epochs, with a fraction. 0 if no samples are needed, or if the dataset has no
        tokens, so that it cannot be read at all. Infinite if the dataset has tokens, but too few
        for one sample, and the trainer does not join epochs.
    """
    if samples <= 0 or tokens == 0:
        return 0.0
    if config.rules.one_epoch:
        # The trainer repeats the samples of one epoch.
        samples_of_epoch = config.samples_in(tokens)
        if samples_of_epoch == 0:
            return math.inf
        return samples / samples_of_epoch

    # The trainer joins epochs. Samples start `step` tokens apart, and the last one extends by
    # `overlap` tokens beyond its step.
    tokens_needed = samples * config.step + config.overlap
    return tokens_needed / tokens


def epochs_of_earlier_phases(config: NanosetConfig, reader: LengthReader) -> dict[str, float]:
    """Return how often a run has read each dataset before it continued with another blend.

    For example, earlier phases of the run took 125 samples of a dataset of 100: 1.25 epochs.

    Args:
        config: Configuration of the present phase. Its `orders` say what earlier phases took.
        reader: Reads the lengths in the `.idx` files of these datasets.

    Returns:
        Prefix of a dataset → epochs, with a fraction such as 1.25; empty in the first phase.

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
        """Return the limits on documents that the datasets contain more than once.

        For example, a document of the dataset "web" may also be in a view of "web". Then it is read
        through both datasets, and its limit holds for the sum. Documents with a single copy need no
        such limit: they are read as often as their dataset.

        Args:
            plan: Plan of the split.
            config: Configuration with which it was planned.
        """
        if self.corpora is None or not self.by_prefix:
            return []
        corpora = self.corpora.parts(_rows_of_run(plan, config))
        return shared_limits(corpora, self.by_prefix)

    def exceeded(self, config: NanosetConfig, split: SplitName) -> list[ExceededLimit]:
        """Return the limits on epochs that a split would exceed.

        For a blend, a trainer builds slightly more samples of each dataset than the blend takes.
        This margin counts, too.

        Args:
            config: Settings of the nanoset, with the number of samples of the split.
            split: The split to be planned.

        Returns:
            Each dataset that would be read too often; empty for a split of one epoch or without
            data.
        """
        if config.samples(split) is None:
            return []  # one epoch of each dataset is always allowed
        plan = plan_split(config, split, self.reader)
        if plan is None:
            return []  # the split has no data

        limits_on_copies = self.on_copies(plan, config)
        exceeded = _exceeded_on_copies(plan, config, limits_on_copies, self.reader)
        if not _reads_datasets_once(plan, config):
            prefixes_with_copies = {limit.prefix for limit in limits_on_copies}
            exceeded += self._exceeded_without_copies(plan, config, prefixes_with_copies)
        return exceeded

    def _exceeded_without_copies(
        self, plan: SplitPlan, config: NanosetConfig, prefixes_with_copies: Set[str]
    ) -> list[ExceededLimit]:
        """Return the exceeded limits of datasets whose documents are in no other dataset.

        Args:
            plan: Plan of the split.
            config: Configuration of the nanoset.
            prefixes_with_copies: Prefixes of the datasets to leave out: other datasets contain some
                of their documents.
        """
        exceeded = []
        for member in plan.members:
            limit = self.by_prefix.get(member.prefix)
            if limit is None or member.prefix in prefixes_with_copies:
                continue
            # The samples that the trainer builds must keep the limit, with its margin. The message
            # has the epochs that the blend takes of them.
            n_built = _samples_of_run(member, member.samples_requested or 0)
            if n_built > most_samples(member.tokens, limit, config):
                n_taken = _samples_of_run(member, _samples_of_blend(member))
                epochs = epochs_drawn(n_taken, member.tokens, config)
                exceeded.append(ExceededLimit(member.prefix, member.split, epochs, limit))
        return exceeded


def _rows_of_run(plan: SplitPlan, config: NanosetConfig) -> dict[str, Rows]:
    """Return the sequences that a run reads of each dataset of a split, as half-open ranges.

    If the run continues with another blend, train also counts what the earlier blends have read, so
    their datasets are included.

    Args:
        plan: Plan of the split.
        config: Configuration of the nanoset.

    Returns:
        Prefix of the dataset → its sequences: {"/data/web": (0, 900)}.
    """
    rows_by_prefix: dict[str, Rows] = {}
    if plan.split == "train":
        for prefix, order in config.orders.items():
            rows_by_prefix[prefix] = order.rows
    for member in plan.members:
        rows_by_prefix[member.prefix] = member.rows
    return rows_by_prefix


def _reads_datasets_once(plan: SplitPlan, config: NanosetConfig) -> bool:
    """Return whether a split is a blend without weights, which reads no dataset more than once."""
    _, weights = config.blend(plan.split) or ([], None)
    return plan.blend is not None and weights is None


def documents_read_too_often(
    config: NanosetConfig,
    split: SplitName,
    limits: Mapping[str, float],
    reader: LengthReader,
    corpora: CorpusReader,
) -> list[ExceededLimit]:
    """Return the documents that a split reads too often through several copies of them.

    For example, a document of the dataset "web" may also be in a view of "web". Then the split
    reads it through both. Only samples that the blend takes count, not those that trainers build in
    addition.

    Args:
        config: Configuration of the nanoset.
        split: The split.
        limits: Prefix → how often a dataset may be read.
        reader: Reads the datasets' `.idx` files; share it between splits that are planned together.
        corpora: Finds documents that several datasets contain.
    """
    plan = plan_split(config, split, reader)
    if plan is None:
        return []  # the split has no data
    epoch_limits = EpochLimits(by_prefix=limits, reader=reader, corpora=corpora)
    limits_on_copies = epoch_limits.on_copies(plan, config)
    return _exceeded_on_copies(plan, config, limits_on_copies, reader, with_margin=False)


def _samples_built(member: MemberPlan) -> int:
    """Return the samples of a dataset that the trainer builds, with its margin for blends."""
    if member.samples_requested is None:
        return member.samples_given  # no number was requested: the dataset gives all its samples
    return member.samples_requested


def _samples_of_blend(member: MemberPlan) -> int:
    """Return the samples of a dataset that the blend takes, without those of the margin."""
    if member.samples_target is None:
        return member.samples_given  # no number was requested: the dataset gives all its samples
    return member.samples_target


def _samples_of_run(member: MemberPlan, samples: int) -> int:
    """Return the samples of a dataset that a run takes, up to the end of the split.

    Args:
        member: Plan of the dataset.
        samples: Samples up to the end of the split, in the order of this phase's shuffle index.
    """
    # A later phase of a run starts to read at position `begin` of its shuffle index.
    samples_of_phase = samples - member.begin
    return member.taken_before + samples_of_phase


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
    """Return how often a run reads each dataset, in earlier phases and in a split.

    A run has *phases* if it was stopped and continued with another blend. Some datasets may be read
    only by earlier phases.

    Args:
        plan: Plan of the split.
        config: Configuration of the nanoset.
        reader: Reads the datasets' `.idx` files.
    """
    # Prefix of each dataset → its epochs. Only train can have earlier phases.
    earlier_epochs: dict[str, float] = {}
    if plan.split == "train":
        earlier_epochs = epochs_of_earlier_phases(config, reader)

    # For the datasets of the split, the right operands replace the earlier epochs: they are epochs
    # of the whole run. Datasets that only earlier phases read keep theirs, which are exact.
    no_tolerance = dict.fromkeys(earlier_epochs, 0.0)
    return _EpochCounts(
        built=earlier_epochs | _epochs_built(plan, config),
        taken_by_blend=earlier_epochs | _epochs_taken(plan, config),
        tolerance=no_tolerance | _epochs_of_rounding(plan, config),
    )


def _epochs_built(plan: SplitPlan, config: NanosetConfig) -> dict[str, float]:
    """Return prefix → epochs that a run needs for the samples that are built of each dataset."""
    epochs = {}
    for member in plan.members:
        samples = _samples_of_run(member, _samples_built(member))
        epochs[member.prefix] = epochs_needed(samples, member.tokens, config)
    return epochs


def _epochs_taken(plan: SplitPlan, config: NanosetConfig) -> dict[str, float]:
    """Return prefix → epochs that a run takes of each dataset of a split, without margins."""
    epochs = {}
    for member in plan.members:
        samples = _samples_of_run(member, _samples_of_blend(member))
        epochs[member.prefix] = epochs_drawn(samples, member.tokens, config)
    return epochs


def _epochs_of_rounding(plan: SplitPlan, config: NanosetConfig) -> dict[str, float]:
    """Return prefix → epochs of two samples, the most that rounding adds to a dataset.

    A sample has `step` tokens that no other sample has.
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
    """Return which documents a split reads too often, if several datasets contain copies of them.

    For example, documents of "web" are also in a view of it, and may be read twice. With 1.5 epochs
    of each dataset, they are read 3 times. Of several such limits on one dataset, the one whose
    documents are read most often is returned.

    Args:
        plan: Plan of the split.
        config: Configuration of the nanoset.
        limits_on_copies: All limits on such documents.
        reader: Reads the datasets' `.idx` files.
        with_margin: Trainers build slightly more samples of a dataset than the blend takes. True
            checks the samples that are built, False those that are taken.
    """
    if not limits_on_copies:
        return []
    counts = _count_epochs(plan, config, reader)
    is_exceeded = counts.builds_too_often if with_margin else counts.takes_too_often
    exceeded = []
    for limit in limits_on_copies:
        if is_exceeded(limit):
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
