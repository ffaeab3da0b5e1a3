"""Change the weights of a blend so that no dataset is read more often than it may be read.

The share of a dataset that would be read too often is lowered to the largest that keeps its limit;
the other datasets share what is left in their old proportion. For example, with the shares 0.5, 0.3
and 0.2, and at most 0.3 for the first dataset, the others get 0.7: 0.42 and 0.28.

If several datasets contain the same documents, their limit holds for the sum of what is read of
them. `fill_shares` handles limits of single datasets, and `fill_shares_together` both kinds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.sampling.bisection import largest_that_fits
from nanoset_core.sampling.config import Blend, NanosetConfig
from nanoset_core.sampling.corpora import SharedLimit
from nanoset_core.sampling.epoch_limits import (
    EpochLimits,
    epochs_needed,
    epochs_of_earlier_phases,
    most_samples,
)
from nanoset_core.sampling.plan import plan_split
from nanoset_core.sampling.planned import MemberPlan, SplitPlan
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.sampling.splits import SPLITS, SplitName, plain_sum

Shares = Mapping[str, float]
"""Prefix → share of a split's samples, or the largest share."""
_SHARE_UNITS = 1 << 40
"""Shares are searched for in multiples of 2**-40.

This is so coarse that dividing the weights by their sum cannot raise a share above its limit, and
so fine that no sample is lost in splits of less than 2**40 samples.
"""


def redistribute(config: NanosetConfig, limits: EpochLimits) -> NanosetConfig:
    """Return a configuration with new weights, so that no document is read too often.

    Splits that share a blend also share the new weights, which keep the limits in all of them.

    Args:
        config: Configuration of the nanoset.
        limits: How often each dataset may be read.

    Raises:
        InputError: The limits leave too few samples, whatever the weights.
        ConfigError: A blend has no weights.
    """
    # All splits share one blend.
    if config.blend_per_split is None:
        return replace(config, data_path=_limited_weights(config, SPLITS, limits))

    # Each split has a blend: change those with which a limit is exceeded.
    blends: list[Blend | None] = []
    for split, blend in zip(SPLITS, config.blend_per_split, strict=True):
        if limits.exceeded(config, split):
            blends.append(_limited_weights(config, (split,), limits))
        else:
            blends.append(blend)
    return replace(config, blend_per_split=blends)


def _limited_weights(
    config: NanosetConfig, splits: tuple[SplitName, ...], limits: EpochLimits
) -> dict[str, float]:
    """Return weights with which a blend keeps the limits in all splits that read it.

    Args:
        config: Configuration of the nanoset.
        splits: The splits that read the blend.
        limits: The limits.

    Returns:
        Prefix → share.

    Raises:
        InputError: The limits leave too few samples, whatever the weights.
        ConfigError: The blend has no weights.
    """
    prefixes, weights = config.blend(splits[0]) or ([], None)
    if weights is None:
        raise _no_weights_error()
    shares = dict(zip(prefixes, config.rules.normalized(weights), strict=True))
    max_shares, split_limits = _limits_of_all(splits, prefixes, config, limits)

    # Lower the shares that are too large.
    if split_limits:
        limited_shares = fill_shares_together(shares, max_shares, split_limits)
    else:
        limited_shares = fill_shares(shares, max_shares)
    if limited_shares is None:
        raise _too_few_samples(max_shares, split_limits)
    return limited_shares


def _limits_of_all(
    splits: Sequence[SplitName], prefixes: Sequence[str], config: NanosetConfig, limits: EpochLimits
) -> _LimitsOfSplit:
    """Return limits that are kept in several splits at once: the lowest one for each dataset.

    For example, a dataset may have 0.4 of train, and 0.3 of valid: then it may have 0.3 of both.

    Args:
        splits: The splits, which share a blend.
        prefixes: The datasets of the blend. Those without a limit may have any share.
        config: Configuration of the nanoset.
        limits: How often each dataset may be read.

    Raises:
        InputError: Earlier phases of the run have read a dataset as often as it may be.
    """
    max_shares = dict.fromkeys(prefixes, math.inf)
    together: list[_SplitLimit] = []
    for split in splits:
        limits_of_split = _limits_of(split, config, limits)
        together += limits_of_split.together
        for prefix, max_share in limits_of_split.max_shares.items():
            max_shares[prefix] = min(max_shares[prefix], max_share)
    return _LimitsOfSplit(max_shares, together)


def _no_weights_error() -> ConfigError:
    """Return the error for a blend without weights that could be changed."""
    return ConfigError(
        "there are no weights to redistribute",
        where="on_exhaustion",
        found="redistribute, and one corpus without a weight",
        remedy="set on_exhaustion to stop, repeat or raise",
    )


class _LimitsOfSplit(NamedTuple):
    """The limits on what one split reads."""

    max_shares: Shares
    """Prefix → largest share of the split's samples, by the limit of the dataset itself."""
    together: Sequence[_SplitLimit]
    """Limits on documents that several datasets contain. They hold for these datasets together."""


def _limits_of(split: SplitName, config: NanosetConfig, limits: EpochLimits) -> _LimitsOfSplit:
    """Return the limits on what a split reads; none if it has no data, or reads one epoch.

    Most limits are for one dataset, and so for its share. But several datasets may contain copies
    of the same documents, as `web` and a selection of it do. Then a limit is for their sum.

    Args:
        split: The split.
        config: Configuration of the nanoset.
        limits: How often each dataset may be read.

    Raises:
        InputError: Earlier phases of the run have read a dataset as often as it may be.
    """
    no_limits = _LimitsOfSplit(max_shares={}, together=())
    size = config.samples(split)
    if not size:
        return no_limits  # the split reads one epoch, or nothing
    plan = plan_split(config, split, limits.reader)
    if plan is None:
        return no_limits  # the split has no data

    limits_on_copies = limits.on_copies(plan, config)
    prefixes_with_copies = {limit.prefix for limit in limits_on_copies}
    return _LimitsOfSplit(
        together=_limits_in_split(limits_on_copies, size, plan, config, limits.reader),
        max_shares=_max_shares(plan, size, config, limits, except_for=prefixes_with_copies),
    )


def _too_few_samples(max_shares: Shares, split_limits: Sequence[_SplitLimit]) -> InputError:
    """Return the error for limits that no shares of the datasets can keep.

    Args:
        max_shares: Prefix → largest share of the dataset.
        split_limits: The limits that several datasets keep together.
    """
    texts = [*_describe_max_shares(max_shares), *_describe_split_limits(split_limits)]
    return InputError(
        "the limits on epochs leave too few samples, whatever the shares",
        found=", ".join(texts),
        expected="limits that add up to 1 or more",
        remedy="request fewer samples, add text, raise max_epochs, or set on_exhaustion to stop",
    )


def _describe_max_shares(max_shares: Shares) -> list[str]:
    """Describe the largest shares of datasets, for a message."""
    texts = []
    for prefix, share in max_shares.items():
        if share < math.inf:
            texts.append(f"{Path(prefix).name} at most {share:.4f}")
    return texts


def _describe_split_limits(split_limits: Sequence[_SplitLimit]) -> list[str]:
    """Describe the limits that several datasets keep together, for a message."""
    texts = []
    for split_limit in split_limits:
        holders = " and ".join(split_limit.limit.holders)
        texts.append(f"documents in {holders} at most {split_limit.limit.limit:g} times")
    return list(dict.fromkeys(texts))


def _consumed(config: NanosetConfig, split: SplitName) -> int:
    """Return the samples of a split that the run has consumed in earlier phases."""
    return config.consumed_samples if split == "train" else 0


def _max_shares(
    plan: SplitPlan,
    size: int,
    config: NanosetConfig,
    limits: EpochLimits,
    *,
    except_for: Collection[str],
) -> dict[str, float]:
    """Return the largest share of the split with which each dataset is not read too often.

    Args:
        plan: Plan of the split.
        size: Samples of the split.
        config: Configuration of the nanoset.
        limits: How often each dataset may be read.
        except_for: Prefixes of datasets to leave out, whose limits hold for several together.

    Returns:
        Prefix → largest share of the split's samples. Datasets without a limit are left out.

    Raises:
        InputError: Earlier phases of the run have read a dataset as often as it may be.
    """
    max_shares = {}
    for dataset in plan.members:
        limit = limits.by_prefix.get(dataset.prefix)
        if limit is not None and dataset.prefix not in except_for:
            max_shares[dataset.prefix] = _max_share(dataset, size, config, limit)
    return max_shares


def _samples_built(
    split_size: int, share: float, config: NanosetConfig, consumed_samples: int
) -> int:
    """Return how many samples of a dataset are built, given its share of a split.

    If a run continues with another blend, the trainer skips as many samples of the split as were
    consumed, and the dataset's share of these is not built.

    Args:
        split_size: Samples of the split, in all phases of the run.
        share: Share of these samples that the dataset has.
        config: Configuration of the nanoset.
        consumed_samples: Samples of the split that earlier phases have consumed.

    Returns:
        The number of samples, which may be one too high.
    """
    # An example: the share is 0.5 of 1,000 samples. Trainers add a margin, such as 0.5 %, so 503
    # samples are built in all phases.
    sizes = config.rules.member_sizes(split_size, share, config.surplus)

    # If earlier phases consumed 400 samples, 200 of them should be of this dataset, but the blend
    # may have taken one less: 199. So this phase builds 304.
    taken_before = max(int(share * consumed_samples) - 1, 0)
    return sizes.built - taken_before


def _max_share(member: MemberPlan, size: int, config: NanosetConfig, limit: float) -> float:
    """Return the largest share of a split that a dataset may have without being read too often.

    For example, a dataset has 400 samples and may be read once. Of a split of 1,000 samples, its
    share may be slightly less than 0.4, since trainers build a few samples more than they need. How
    many more is rounded, so the share is found by trial, with bisection.

    Args:
        member: Plan of the dataset.
        size: Samples of the split.
        config: Configuration of the nanoset.
        limit: How often the dataset may be read.

    Returns:
        The share of the split's samples, as a multiple of 2**-40.

    Raises:
        InputError: Earlier phases of the run have read it as often as it may be.
    """
    # How many samples this phase may build: those of the limit that no earlier phase has read.
    samples_allowed = most_samples(member.tokens, limit, config) - member.taken_before
    if samples_allowed <= 0:
        raise _read_already_error(member)
    consumed_samples = _consumed(config, member.split)

    def is_allowed(share_in_units: int) -> bool:
        """Return whether the trainer builds few enough samples with a share, in units of 2**-40."""
        # Try half a unit more: the caller divides all shares by their sum, which may round up.
        share = (share_in_units + 0.5) / _SHARE_UNITS
        n_built = _samples_built(size, share, config, consumed_samples)
        return n_built <= samples_allowed

    max_share_in_units = largest_that_fits(_SHARE_UNITS, is_allowed)
    return max_share_in_units / _SHARE_UNITS


def _read_already_error(member: MemberPlan) -> InputError:
    """Return the error for a dataset of which earlier phases have read all that may be read."""
    return InputError(
        "earlier phases of the run have read a dataset as often as max_epochs allows",
        found=f"{Path(member.prefix).name}: {member.taken_before:,} samples",
        remedy="leave it out of the blend, or raise max_epochs",
    )


@dataclass(frozen=True, slots=True)
class _SplitLimit:
    """A limit on documents that several datasets of a split contain, or one several times."""

    limit: SharedLimit
    """The limit, and the copies of the documents in each dataset."""
    size: int
    """Samples of the split."""
    plan: SplitPlan
    """Plan of the split with the old weights, which has the sizes of its datasets."""
    config: NanosetConfig
    epochs_before: Mapping[str, float]
    """Prefix → epochs that earlier phases read."""

    def fits(self, shares: Shares) -> bool:
        """Return whether the documents are not read too often with these shares of the datasets.

        For example, documents that are once in each of two datasets are read 3 times with shares
        that take 1 and 2 epochs of these.

        Args:
            shares: Prefix → share of the split's samples.
        """
        epochs = dict(self.epochs_before)  # of datasets that only earlier phases of the run read
        for dataset in self.plan.members:
            has_documents = dataset.prefix in self.limit.copies
            if has_documents:
                epochs[dataset.prefix] = self._epochs_of_run(dataset, shares[dataset.prefix])
        return not self.limit.is_exceeded(epochs)

    def _epochs_of_run(self, dataset: MemberPlan, share: float) -> float:
        """Return how often the run reads a dataset, in earlier phases and in this one.

        Args:
            dataset: Plan of the dataset.
            share: Its share of the split's samples.
        """
        consumed_samples = _consumed(self.config, self.plan.split)
        n_built = _samples_built(self.size, share, self.config, consumed_samples)
        samples_of_run = dataset.taken_before + n_built
        return epochs_needed(samples_of_run, dataset.tokens, self.config)


def _limits_in_split(
    limits_on_copies: Sequence[SharedLimit],
    size: int,
    plan: SplitPlan,
    config: NanosetConfig,
    reader: LengthReader,
) -> list[_SplitLimit]:
    """Prepare limits for documents that several datasets contain, so that shares can be tried.

    For example, a document is in `web` and in `news`, and may be read twice. Whether some shares of
    `web` and `news` keep this depends on the sizes of the split and its datasets, and on what
    earlier phases of the run have read.

    Args:
        limits_on_copies: The limits.
        size: Samples of the split.
        plan: Plan of the split.
        config: Configuration of the nanoset.
        reader: Reads the `.idx` files of datasets that earlier phases of the run have read.
    """
    # Only train continues what earlier phases read.
    epochs_before: Mapping[str, float] = {}
    if plan.split == "train" and limits_on_copies:
        epochs_before = epochs_of_earlier_phases(config, reader)
    return [_SplitLimit(limit, size, plan, config, epochs_before) for limit in limits_on_copies]


def fill_shares(shares: Shares, max_shares: Shares) -> dict[str, float] | None:
    """Lower shares to their maxima, and raise the others in their old proportion.

    Raising a share may lift it above its maximum, too, so this is repeated until no share is. For
    example, with the shares 0.5, 0.3 and 0.2, and the maxima 0.2, 0.4 and 1:

        round 1     0.5   0.3   0.2      the first is too large: it is fixed at 0.2
        round 2     0.2   0.48  0.32     the second is too large: it is fixed at 0.4
        round 3     0.2   0.4   0.4

    Args:
        shares: Prefix → share of the dataset.
        max_shares: Prefix → largest share of the dataset.

    Returns:
        Prefix → share, which add up to 1; None if the maxima add up to less than 1.
    """
    fixed: dict[str, float] = {}
    while True:
        scaled = _scaled_to_rest(shares, fixed)
        if not scaled:
            return None
        too_large = _above(scaled, max_shares)
        if not too_large:
            return _in_order(shares, {**fixed, **scaled})
        for prefix in too_large:
            fixed[prefix] = max_shares[prefix]


def _scaled_to_rest(shares: Shares, fixed: Shares) -> dict[str, float]:
    """Return the shares that are not fixed, scaled so that all shares add up to 1.

    For example, the shares 0.5, 0.3 and 0.2, of which the first is fixed at 0.2: the others divide
    0.8, in their proportion of 3 to 2, and become 0.48 and 0.32.

    Args:
        shares: Prefix → share of the dataset.
        fixed: Prefix → share; the result has all other datasets.
    """
    free = {prefix: share for prefix, share in shares.items() if prefix not in fixed}
    rest = 1.0 - plain_sum(fixed.values())
    total = plain_sum(free.values())
    return {prefix: share / total * rest for prefix, share in free.items()}


def _above(shares: Shares, max_shares: Shares) -> list[str]:
    """Return the datasets whose share is larger than it may be, in the order of the shares."""
    return [prefix for prefix, share in shares.items() if share > max_shares[prefix]]


def _in_order(shares: Shares, filled: Shares) -> dict[str, float]:
    """Return the values of `filled` in the order of the keys of `shares`."""
    return {prefix: filled[prefix] for prefix in shares}


def fill_shares_together(
    shares: Shares, max_shares: Shares, split_limits: Sequence[_SplitLimit]
) -> dict[str, float] | None:
    """Lower shares to their maxima, if some limits hold for several datasets together.

    All shares grow from 0 in their old proportion. When a limit is reached, the datasets for which
    it holds keep the share that they have, and the others continue to grow until all shares add up
    to 1. For example, with the shares 0.5, 0.3 and 0.2, where the first two may have 0.4 together:

        shares grow until     0.25  0.15  0.1     the limit is reached: two shares are fixed
        and then until        0.25  0.15  0.6     they add up to 1

    Args:
        shares: Prefix → share of each dataset.
        max_shares: Prefix → its largest share.
        split_limits: The limits of several datasets together.

    Returns:
        Prefix → share, which add up to 1; None if the limits do not allow that.
    """
    fixed: dict[str, float] = {}
    while True:
        # Let the other shares grow until all shares add up to 1.
        final_shares = _scaled_to_rest(shares, fixed)
        if not final_shares:
            return None  # all shares are fixed, and add up to less than 1
        growth = _Growth(fixed, final_shares, max_shares, split_limits)
        if growth.keeps_limits_at(_SHARE_UNITS):
            return _in_order(shares, {**fixed, **final_shares})

        stopped_shares = growth.shares_at_limit()
        if 0 in stopped_shares.values():
            return None  # nothing can be read of a dataset
        fixed |= stopped_shares


@dataclass(frozen=True, slots=True)
class _Growth:
    """Shares that grow together in proportion, in `_SHARE_UNITS` steps.

    After step 0 they are 0. After the last step, they and the fixed shares add up to 1.
    """

    fixed: Shares
    """Shares that do not grow any more."""
    final_shares: Shares
    """The growing shares after the last step."""
    max_shares: Shares
    """Largest share of each dataset."""
    split_limits: Sequence[_SplitLimit]
    """The limits that several datasets keep together."""

    def datasets_over_limit(self, step: int) -> list[str]:
        """Return which of the growing datasets are read too often after some steps.

        All growing shares rise from 0 to their final value in 2**40 equal steps. For example,
        halfway, shares that end at 0.6 and 0.2 are 0.3 and 0.1.

        Args:
            step: Number of the step.

        Returns:
            Prefixes of the datasets, in the order of the shares. If the limit holds for several
            datasets together, these are all of them that still grow.
        """
        # Dividing the shares by their sum may round them up a little. So they are tried half a step
        # larger.
        fraction = (step + 0.5) / _SHARE_UNITS
        grown = {prefix: share * fraction for prefix, share in self.final_shares.items()}

        over_limit = set(_above(grown, self.max_shares))
        for split_limit in self.split_limits:
            if not split_limit.fits({**self.fixed, **grown}):
                over_limit.update(split_limit.limit.copies)  # the datasets with these documents

        # The order decides how the sum of their shares is rounded. That of a set differs between
        # processes.
        return [prefix for prefix in self.final_shares if prefix in over_limit]

    def shares_at_limit(self) -> dict[str, float]:
        """Return prefix → share of the datasets that reach a limit first, when they reach it.

        For example, a share grows to 0.6 but may be at most 0.3. Then it stops after half of all
        steps.
        """
        last_step = largest_that_fits(_SHARE_UNITS, self.keeps_limits_at)
        stopped_shares = {}
        for prefix in self.datasets_over_limit(last_step + 1):
            share = self.final_shares[prefix] * last_step / _SHARE_UNITS
            stopped_shares[prefix] = min(share, self.max_shares[prefix])
        return stopped_shares

    def keeps_limits_at(self, step: int) -> bool:
        """Return whether the shares keep all limits after some steps."""
        return not self.datasets_over_limit(step)
