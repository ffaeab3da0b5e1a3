"""Find what a split would read more often than it may.

A limit on a dataset holds for each of its documents. If other datasets of the blend contain a
document, too, as a view of a corpus does, all readings of it count. `corpora.py` defines how often
a document is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.corpora import CorpusReader, SharedLimit, epochs_drawn, shared_limits
from nanoset_core.sampling.plan import plan_split
from nanoset_core.sampling.planned import MemberPlan, SplitPlan
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.sampling.splits import SplitName


@dataclass(frozen=True, slots=True)
class ExceededLimit:
    """A dataset that a split would read more often than it may."""

    prefix: str
    split: SplitName
    epochs: float
    """How often it would be read; of documents with several copies, those that would be read most
    often.
    """
    limit: float
    """How often it may be read."""
    holders: tuple[str, ...] = ()
    """If documents have several copies: names of the datasets that contain those read most often."""

    @property
    def text(self) -> str:
        """What would be read how often, in one clause."""
        times = f"{self.epochs:.2f} times in {self.split} (at most {self.limit:g})"
        if not self.holders:
            return f"{Path(self.prefix).name} {times}"
        if len(self.holders) == 1:
            return f"documents that {self.holders[0]} repeats {times}"
        return f"documents that {' and '.join(self.holders)} share {times}"


def most_samples(tokens: int, limit: float, config: NanosetConfig) -> int:
    """Return how many samples may be built of a dataset.

    Args:
        tokens: Tokens of one epoch.
        limit: How often it may be read.
        config: Configuration of the nanoset.
    """
    if config.rules.one_epoch:
        return int(limit * config.samples_in(tokens))
    return config.samples_in(int(limit * tokens))


def epochs_needed(samples: int, tokens: int, config: NanosetConfig) -> float:
    """Return how often a dataset has to be read for a number of samples: the inverse of
    `most_samples`.
    """
    if samples <= 0 or not tokens:
        return 0.0
    if config.rules.one_epoch:
        samples_of_epoch = config.samples_in(tokens)
        return samples / samples_of_epoch if samples_of_epoch else math.inf
    return (samples * config.step + config.overlap) / tokens


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
    """Prefix → how often the dataset may be read; one that is no key has no limit."""
    reader: LengthReader
    corpora: CorpusReader | None
    """Finds documents that several datasets contain; None if each dataset is a corpus of its own."""

    def shared(self, plan: SplitPlan, config: NanosetConfig) -> list[SharedLimit]:
        """Return the limits on documents with several copies in the datasets of a split and of
        earlier phases.
        """
        if self.corpora is None or not self.by_prefix:
            return []
        rows = {}
        if plan.split == "train":
            rows = {prefix: order.rows for prefix, order in config.orders.items()}
        rows |= {member.prefix: member.rows for member in plan.members}
        return shared_limits(self.corpora.parts(rows), self.by_prefix)

    def exceeded(self, config: NanosetConfig, split: SplitName) -> list[ExceededLimit]:
        """Return the limits that a split would break, with the margin that the trainer adds to each
        dataset.
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
        reader: Shared by splits that are planned together.
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


def _shared_exceeded(
    plan: SplitPlan,
    config: NanosetConfig,
    shared: Sequence[SharedLimit],
    reader: LengthReader,
    *,
    has_margin: bool = True,
) -> list[ExceededLimit]:
    """Return for each dataset with a broken limit the documents that would be read most often.

    Args:
        plan: Plan of the split.
        config: Configuration of the nanoset.
        shared: The limits on documents with several copies.
        reader: Reads the datasets' `.idx` files.
        has_margin: Whether the samples count that are built of a dataset, or only those that the
            blend takes.
    """
    if not shared:
        return []

    # Prefix → epochs that are built, epochs that are drawn, and the epochs by which these may be
    # rounded up.
    built = {}
    if plan.split == "train":
        built = epochs_of_earlier_phases(config, reader)
    drawn = dict(built)
    rounding = dict.fromkeys(built, 0.0)
    for member in plan.members:
        before = member.taken_before - member.begin
        requested = member.samples_requested
        if requested is None:
            requested = member.samples_given
        built[member.prefix] = epochs_needed(requested + before, member.tokens, config)
        drawn[member.prefix] = epochs_drawn(_samples_drawn(member) + before, member.tokens, config)
        rounding[member.prefix] = 2 * config.step / max(member.tokens, 1)

    worst: dict[str, ExceededLimit] = {}
    for limit in shared:
        if has_margin:
            is_exceeded = limit.is_exceeded(built)
        else:
            is_exceeded = limit.is_exceeded(drawn, tolerance=limit.times(rounding))
        times = limit.times(drawn)
        known = worst.get(limit.prefix)
        if is_exceeded and (known is None or times > known.epochs):
            worst[limit.prefix] = ExceededLimit(
                limit.prefix, plan.split, times, limit.limit, limit.holders
            )
    return list(worst.values())
