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
        raise ConfigError(
            "there are no weights to redistribute",
            where="on_exhaustion",
            found="redistribute, and one corpus without a weight",
            remedy="set on_exhaustion to stop, repeat or raise",
        )

    # Collect the limits of all splits: each must be kept.
    max_shares = dict.fromkeys(prefixes, math.inf)
    split_limits: list[_SplitLimit] = []
    for split in splits:
        size = config.samples(split)
        if not size:
            continue
        plan = plan_split(config, split, limits.reader)
        if plan is None:
            continue
        shared = limits.shared(plan, config)
        split_limits += _limits_in_split(shared, size, plan, config, limits)
        shared_prefixes = {limit.prefix for limit in shared}
        max_shares_in_split = _max_shares(plan, size, config, limits, except_for=shared_prefixes)
        for prefix, max_share in max_shares_in_split.items():
            max_shares[prefix] = min(max_shares[prefix], max_share)

    # Lower the shares that are too large.
    shares = dict(zip(prefixes, config.rules.normalized(weights), strict=True))
    if split_limits:
        filled = fill_shares_together(shares, max_shares, split_limits)
    else:
        filled = fill_shares(shares, max_shares)
    if filled is None:
        raise _too_few_samples(max_shares, split_limits)
    return filled


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
    """Return the largest share with which each dataset keeps its own limit.

    Args:
        plan: Plan of the split.
        size: Samples of the split.
        config: Configuration of the nanoset.
        limits: How often each dataset may be read.
        except_for: Prefixes of datasets that are left out: those whose documents other datasets
            contain, too, so that the limit holds for several datasets together.

    Returns:
        Prefix → share of the split's samples. Datasets without a limit are left out.

    Raises:
        InputError: Earlier phases of the run have read a dataset as often as it may be.
    """
    max_shares = {}
    for member in plan.members:
        limit = limits.by_prefix.get(member.prefix)
        if limit is not None and member.prefix not in except_for:
            max_shares[member.prefix] = _max_share(member, size, config, limit)
    return max_shares


def _samples_built(size: int, share: float, config: NanosetConfig, consumed: int) -> int:
    """Return how many samples this phase of a run builds of a dataset, if it has a certain share.

    The samples of the share that earlier phases have consumed are left out.

    Args:
        size: Samples of the split.
        share: The dataset's share of them.
        config: Configuration of the nanoset.
        consumed: Samples of the split that the run has consumed.
    """
    # The dataset may have given one sample less than its share, since blends are rounded.
    consumed_of_dataset = max(int(share * consumed) - 1, 0)
    _, samples = config.rules.member_sizes(size, share, config.surplus)
    return samples - consumed_of_dataset


def _max_share(member: MemberPlan, size: int, config: NanosetConfig, limit: float) -> float:
    """Return the largest share with which a dataset keeps its limit, a multiple of 2**-40.

    Args:
        member: Plan of the dataset.
        size: Samples of the split.
        config: Configuration of the nanoset.
        limit: How often the dataset may be read.

    Raises:
        InputError: Earlier phases of the run have read it as often as it may be.
    """
    # Samples that this phase may read.
    samples_allowed = most_samples(member.tokens, limit, config) - member.taken_before
    if samples_allowed <= 0:
        raise InputError(
            "earlier phases of the run have read a dataset as often as max_epochs allows",
            found=f"{Path(member.prefix).name}: {member.taken_before:,} samples",
            remedy="leave it out of the blend, or raise max_epochs",
        )
    consumed = _consumed(config, member.split)

    def fits(units: int) -> bool:
        """Return whether a share of this many units of 2**-40 keeps the limit."""
        # Test half a unit more, so that a share that is rounded up later keeps it, too.
        share = (units + 0.5) / _SHARE_UNITS
        return _samples_built(size, share, config, consumed) <= samples_allowed

    return largest_that_fits(_SHARE_UNITS, fits) / _SHARE_UNITS


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
        """Return whether the limit is kept if the datasets have these shares of the split."""
        # The epochs of each dataset. What earlier phases read of the split's own datasets is part
        # of `taken_before`, so the new number replaces that of the earlier phases.
        epochs = dict(self.epochs_before)
        consumed = _consumed(self.config, self.plan.split)
        for member in self.plan.members:
            if member.prefix in self.limit.copies:
                built = _samples_built(self.size, shares[member.prefix], self.config, consumed)
                epochs[member.prefix] = epochs_needed(
                    built + member.taken_before, member.tokens, self.config
                )
        return not self.limit.is_exceeded(epochs)


def _limits_in_split(
    shared: Sequence[SharedLimit],
    size: int,
    plan: SplitPlan,
    config: NanosetConfig,
    limits: EpochLimits,
) -> list[_SplitLimit]:
    """Return limits on documents with several copies, with what is needed to test them.

    Args:
        shared: The limits.
        size: Samples of the split.
        plan: Plan of the split.
        config: Configuration of the nanoset.
        limits: Reads the datasets of earlier phases.
    """
    epochs_before: Mapping[str, float] = {}
    if plan.split == "train" and shared:
        epochs_before = epochs_of_earlier_phases(config, limits.reader)
    return [_SplitLimit(limit, size, plan, config, epochs_before) for limit in shared]


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

    Args:
        shares: Prefix → share of the dataset.
        fixed: Prefix → share; the result has all other datasets.
    """
    free = {prefix: share for prefix, share in shares.items() if prefix not in fixed}
    rest = 1.0 - plain_sum(fixed.values())
    total = plain_sum(free.values())
    return {prefix: share / total * rest for prefix, share in free.items()}


def _above(shares: Shares, max_shares: Shares) -> set[str]:
    """Return the datasets whose share is larger than it may be."""
    return {prefix for prefix, share in shares.items() if share > max_shares[prefix]}


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
        growth = _Growth(fixed, _scaled_to_rest(shares, fixed), max_shares, split_limits)
        if not growth.full_shares:
            return None
        if not growth.over_limit(_SHARE_UNITS):
            return _in_order(shares, {**fixed, **growth.full_shares})

        # Fix the datasets that reach a limit first: those that exceed it one level higher.
        level = largest_that_fits(_SHARE_UNITS, growth.fits)
        for prefix in growth.over_limit(level + 1):
            share = growth.full_shares[prefix] * level / _SHARE_UNITS
            fixed[prefix] = min(share, max_shares[prefix])
            if fixed[prefix] == 0:
                return None  # nothing can be read of the dataset


@dataclass(frozen=True, slots=True)
class _Growth:
    """Shares that grow together in proportion, until one of them reaches a limit.

    At level 0 they are 0. At level `_SHARE_UNITS`, they and the fixed shares add up to 1.
    """

    fixed: Shares
    """Shares that do not grow any more."""
    full_shares: Shares
    """The growing shares at level `_SHARE_UNITS`."""
    max_shares: Shares
    """Largest share of each dataset."""
    split_limits: Sequence[_SplitLimit]
    """The limits that several datasets keep together."""

    def over_limit(self, level: int) -> set[str]:
        """Return the datasets with a growing share that exceed a limit at a level.

        Returns:
            Their prefixes. If a limit of several datasets is exceeded, these are all of them.
        """
        # Test half a level more, so that a share that is rounded up later keeps the limits, too.
        scale = (level + 0.5) / _SHARE_UNITS
        grown = {prefix: share * scale for prefix, share in self.full_shares.items()}
        over = _above(grown, self.max_shares)
        for split_limit in self.split_limits:
            if not split_limit.fits({**self.fixed, **grown}):
                over |= split_limit.limit.copies.keys() & self.full_shares.keys()
        return over

    def fits(self, level: int) -> bool:
        """Return whether all limits are kept at a level."""
        return not self.over_limit(level)
