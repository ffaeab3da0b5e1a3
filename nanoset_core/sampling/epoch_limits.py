"""Find the datasets that a split would read more often than they may be read.

The limit of a dataset holds for each of its documents. If other datasets of the blend contain the
document, too, as a view of a corpus does, it counts how often they are read, too. `corpora.py`
defines how often a document is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.corpora import CorpusReader, SharedLimit, epochs_drawn, shared_limits
from nanoset_core.sampling.plan import plan_split
from nanoset_core.sampling.planned import MemberPlan, SplitPlan
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.sampling.splits import SplitName


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

    This is the inverse of `most_samples`.

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
    """Return prefix → how often earlier phases of the run have read the dataset."""
    epochs = {}
    for prefix, order in config.orders.items():
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

    def shared(self, plan: SplitPlan, config: NanosetConfig) -> list[SharedLimit]:
        """Return the limits on documents of which the datasets have several copies.

        Args:
            plan: Plan of the split. For train, the datasets of earlier phases count, too.
            config: Configuration with which it was planned.
        """
        if self.corpora is None or not self.by_prefix:
            return []
        rows = {}
        if plan.split == "train":
            rows = {prefix: order.rows for prefix, order in config.orders.items()}
        rows |= {member.prefix: member.rows for member in plan.members}
        return shared_limits(self.corpora.parts(rows), self.by_prefix)

    def exceeded(self, config: NanosetConfig, split: SplitName) -> list[ExceededLimit]:
        """Return the limits that a split would exceed.

        The samples of a dataset include the margin that the trainer adds.

        Args:
            config: Configuration of the nanoset.
            split: The split.
        """
        if config.samples(split) is None:
            return []  # one epoch, whatever the limit
        plan = plan_split(config, split, self.reader)
        if plan is None:
            return []

        # Documents with several copies: the readings of all datasets that contain them count.
        shared = self.shared(plan, config)
        exceeded = _shared_exceeded(plan, config, shared, self.reader)
        _, weights = config.blend(split) or ([], None)
        if plan.blend is not None and weights is None:
            return exceeded  # each dataset is read once

        # Datasets whose documents are in no other one.
        shared_prefixes = {limit.prefix for limit in shared}
        for member in plan.members:
            limit = self.by_prefix.get(member.prefix)
            if limit is None or member.prefix in shared_prefixes:
                continue
            # Samples of earlier phases of the run count, too. If the trainer counts the samples of
            # the whole run, the requested ones include the first `begin` of them.
            before = member.taken_before - member.begin
            samples = (member.samples_requested or 0) + before
            if samples > most_samples(member.tokens, limit, config):
                epochs = epochs_drawn(_samples_drawn(member) + before, member.tokens, config)
                exceeded.append(ExceededLimit(member.prefix, split, epochs, limit))
        return exceeded


def documents_read_too_often(
    config: NanosetConfig,
    split: SplitName,
    limits: Mapping[str, float],
    reader: LengthReader,
    corpora: CorpusReader,
) -> list[ExceededLimit]:
    """Return the documents with several copies that a split reads more often than it may.

    The margin that the trainer adds does not count, and neither do the samples by which a share is
    rounded up.

    Args:
        config: Configuration of the nanoset.
        split: The split.
        limits: Prefix → how often a dataset may be read.
        reader: Reads the datasets' `.idx` files; share it between splits that are planned together.
        corpora: Finds documents that several datasets contain.
    """
    plan = plan_split(config, split, reader)
    if plan is None:
        return []
    shared = EpochLimits(limits, reader, corpora).shared(plan, config)
    return _shared_exceeded(plan, config, shared, reader, has_margin=False)


def _samples_drawn(member: MemberPlan) -> int:
    """Return the samples that the split takes of a dataset, without the margin."""
    return member.samples_given if member.samples_target is None else member.samples_target


class _EpochCounts(NamedTuple):
    """How often a run reads datasets, counted in three ways; the keys are prefixes."""

    built: dict[str, float]
    """Epochs in the index files, which include the margin that the trainer adds."""
    drawn: dict[str, float]
    """Epochs of the samples that are taken."""
    rounding: dict[str, float]
    """Epochs by which `drawn` may be too high, since numbers of samples are rounded up."""


def _count_epochs(plan: SplitPlan, config: NanosetConfig, reader: LengthReader) -> _EpochCounts:
    """Return how often a run reads the datasets of a split, including earlier phases of the run.

    Args:
        plan: Plan of the split.
        config: Configuration of the nanoset.
        reader: Reads the datasets' `.idx` files.
    """
    earlier = {}
    if plan.split == "train":
        earlier = epochs_of_earlier_phases(config, reader)
    counts = _EpochCounts(
        built=dict(earlier), drawn=dict(earlier), rounding=dict.fromkeys(earlier, 0.0)
    )

    # The numbers of the split's own datasets include what earlier phases read of them, so they
    # replace those of the earlier phases. If the trainer counts the samples of the whole run, the
    # requested ones include the first `begin` of them already.
    for member in plan.members:
        tokens = member.tokens
        before = member.taken_before - member.begin
        requested = member.samples_requested
        if requested is None:
            requested = member.samples_given
        counts.built[member.prefix] = epochs_needed(requested + before, tokens, config)
        counts.drawn[member.prefix] = epochs_drawn(_samples_drawn(member) + before, tokens, config)
        counts.rounding[member.prefix] = 2 * config.step / max(tokens, 1)
    return counts


def _shared_exceeded(
    plan: SplitPlan,
    config: NanosetConfig,
    shared: Sequence[SharedLimit],
    reader: LengthReader,
    *,
    has_margin: bool = True,
) -> list[ExceededLimit]:
    """Return, for each dataset whose limit is exceeded, the documents that are read most often.

    Args:
        plan: Plan of the split.
        config: Configuration of the nanoset.
        shared: The limits on documents with several copies.
        reader: Reads the datasets' `.idx` files.
        has_margin: True checks the samples that are built of a dataset, False those that the blend
            takes.
    """
    if not shared:
        return []

    counts = _count_epochs(plan, config, reader)
    worst_by_prefix: dict[str, ExceededLimit] = {}
    for limit in shared:
        if has_margin:
            is_exceeded = limit.is_exceeded(counts.built)
        else:
            tolerance = limit.times(counts.rounding)
            is_exceeded = limit.is_exceeded(counts.drawn, tolerance=tolerance)
        if not is_exceeded:
            continue

        epochs = limit.times(counts.drawn)
        worst = worst_by_prefix.get(limit.prefix)
        if worst is None or epochs > worst.epochs:
            worst_by_prefix[limit.prefix] = ExceededLimit(
                prefix=limit.prefix,
                split=plan.split,
                epochs=epochs,
                limit=limit.limit,
                holders=limit.holders,
            )
    return list(worst_by_prefix.values())
