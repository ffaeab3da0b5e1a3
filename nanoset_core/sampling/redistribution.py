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
    """Change the weights of datasets so that training reads no document too often.

    Without that, a small dataset with a large weight would be read again and again. For example,
    books has the weight 0.5, but is so small that it may have at most 0.3 of the samples. The other
    0.7 are divided among web and code, 3 to 2 as before:

        dataset    old weight    new weight
        books      0.5           0.3
        web        0.3           0.42          0.7 * 3 / 5
        code       0.2           0.28          0.7 * 2 / 5

    The splits train, valid and test of the data may have different weights. Then each is changed on
    its own. If they have the same, so will they afterwards, and the new ones keep the limits in all
    splits.

    Args:
        config: What is trained: the datasets, their weights, and the number of samples.
        limits: How often each dataset may be read.

    Raises:
        InputError: The limits leave too few samples, whatever the weights.
        ConfigError: The datasets have no weights.
    """
    if config.blend_per_split is None:
        return replace(config, data_path=_limited_weights(config, SPLITS, limits))
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
    """Return weights of datasets with which training reads no document too often.

    A limit may hold for a single dataset: books may have at most 0.3 of the samples. Then it is
    lowered to 0.3, and the others share the rest in their old proportion:

        weights in the settings    books 5,      web 3,       code 2
        shares                     books 0.5,    web 0.3,     code 0.2
        result                     books 0.3,    web 0.42,    code 0.28

    A limit may also hold for several datasets together, because they contain the same documents:
    web and books may have at most 0.6 together. This takes another function, which is slower.

    Args:
        config: What is trained.
        splits: The splits of the data (train, valid, test) that have these weights.
        limits: How often each dataset may be read.

    Returns:
        Path of each dataset → its share.

    Raises:
        InputError: The limits leave too few samples, whatever the weights.
        ConfigError: The datasets have no weights.
    """
    blend = config.blend(splits[0])
    if blend is None:
        raise _no_weights_error()
    prefixes, weights = blend
    if weights is None:
        raise _no_weights_error()
    normalized_weights = config.rules.normalized(weights)  # they add up to 1
    shares = dict(zip(prefixes, normalized_weights, strict=True))

    max_shares, joint_limits = _limits_of_all(splits, prefixes, config, limits)
    if joint_limits:
        limited_shares = fill_shares_together(shares, max_shares, joint_limits)
    else:
        limited_shares = fill_shares(shares, max_shares)
    if limited_shares is None:
        raise _too_few_samples(max_shares, joint_limits)
    return limited_shares


def _limits_of_all(
    splits: Sequence[SplitName], prefixes: Sequence[str], config: NanosetConfig, limits: EpochLimits
) -> _ShareLimits:
    """Return the limits on the shares of datasets that hold in all of some splits.

    If train and valid have the same weights, these must be small enough for both:

        dataset                      limit in train     in valid           result
        books                        at most 0.4        at most 0.3        at most 0.3
        code                         none               none               infinity
        web and best-web together    a joint limit      a joint limit      both joint limits

    Joint limits cannot be compared, so all of them are kept.

    Args:
        splits: The splits (train, valid and test) that have the same weights.
        prefixes: Paths of all datasets.
        config: What is trained.
        limits: How often each dataset may be read.

    Raises:
        InputError: An earlier part of this training run has read a dataset as often as it may be.
    """
    max_shares = dict.fromkeys(prefixes, math.inf)  # no limit so far
    joint_limits: list[_JointLimit] = []
    for split in splits:
        limits_of_split = _limits_of(split, config, limits)
        joint_limits += limits_of_split.joint_limits
        for prefix, max_share in limits_of_split.max_shares.items():
            max_shares[prefix] = min(max_shares[prefix], max_share)  # 0.4 and 0.3 give 0.3
    return _ShareLimits(max_shares, joint_limits)


def _no_weights_error() -> ConfigError:
    """Return the error for a blend without weights that could be changed."""
    return ConfigError(
        "there are no weights to redistribute",
        where="on_exhaustion",
        found="redistribute, and one corpus without a weight",
        remedy="set on_exhaustion to stop, repeat or raise",
    )


class _ShareLimits(NamedTuple):
    """The limits on which shares of the training samples datasets may have."""

    max_shares: Shares
    """Path of a dataset → its largest share."""
    joint_limits: Sequence[_JointLimit]
    """Limits that several datasets keep together, since they contain the same documents."""


_NO_LIMITS = _ShareLimits(max_shares={}, joint_limits=())


def _limits_of(split: SplitName, config: NanosetConfig, limits: EpochLimits) -> _ShareLimits:
    """Return which shares of a split's samples its datasets may have.

    Limits on how often datasets are read become limits on their shares. For example, training reads
    1,000 samples, and all datasets may be read once. Best-web contains some documents of web:

        dataset     samples    limit
        books       400        a share of at most 0.4
        web         600        a *joint limit* with best-web, since their common documents are read
                               through both datasets

    Args:
        split: The split of the data: train, valid or test.
        config: What is trained.
        limits: How often each dataset may be read.

    Raises:
        InputError: An earlier part of this training run has read a dataset as often as it may be.
    """
    n_samples = config.samples(split)
    if not n_samples:
        return _NO_LIMITS  # the split reads each dataset once, or nothing
    plan = plan_split(config, split, limits.reader)
    if plan is None:
        return _NO_LIMITS  # the split has no data

    n_consumed = config.consumed_samples if split == "train" else 0
    samples = _SamplesByShare(config, n_samples, n_consumed)
    limits_on_copies = limits.on_copies(plan, config)  # that of web
    joint_limits = _joint_limits(limits_on_copies, plan, samples, limits.reader)
    limits_on_datasets = limits.on_datasets(limits_on_copies)  # that of books
    max_shares = _max_shares(plan.members, samples, limits_on_datasets)
    return _ShareLimits(max_shares, joint_limits)


def _joint_limits(
    limits_on_copies: Sequence[SharedLimit],
    plan: SplitPlan,
    samples: _SamplesByShare,
    reader: LengthReader,
) -> list[_JointLimit]:
    """Return how large the shares of datasets may be together that contain the same documents.

    Args:
        limits_on_copies: How often these documents may be read.
        plan: What training reads, with the sizes of all datasets.
        samples: Says how many samples the trainer prepares of a dataset with some share.
        reader: Reads the sizes of datasets that were only read before the weights were changed.
    """
    if not limits_on_copies:
        return []
    epochs_before = epochs_of_earlier_phases(samples.config, plan.split, reader)
    return [_JointLimit(limit, plan.members, samples, epochs_before) for limit in limits_on_copies]


def _too_few_samples(max_shares: Shares, joint_limits: Sequence[_JointLimit]) -> InputError:
    """Return the error for datasets that may not be read often enough for the requested samples.

    The message lists all limits:

        books: at most 0.3000 of the samples
        documents in web and best-web: at most 2 times

    The second one is a *joint limit*, on documents that both datasets contain.

    Args:
        max_shares: Path of a dataset → its largest share of the samples; infinity for no limit.
        joint_limits: The limits on documents that several datasets contain.
    """
    texts = []
    for prefix, share in max_shares.items():
        if share < math.inf:
            texts.append(f"{Path(prefix).name}: at most {share:.4f} of the samples")
    for joint_limit in joint_limits:
        texts.append(joint_limit.text)
    unique_texts = dict.fromkeys(texts)  # splits may have the same limits
    return InputError(
        "with these limits on epochs, the datasets have too few samples",
        found=", ".join(unique_texts),
        expected="limits with which the shares can add up to 1",
        remedy="request fewer samples, add text, raise max_epochs, or set on_exhaustion to stop",
    )


def _max_shares(
    datasets: Sequence[MemberPlan], samples: _SamplesByShare, max_epochs: Mapping[str, float]
) -> dict[str, float]:
    """Return the largest share of the training samples that each dataset may have.

    For example, training reads 1,000 samples. A dataset of 400 samples that may be read once has
    at most the share 0.4.

    Args:
        datasets: The datasets, with their sizes.
        samples: Says how many samples the trainer prepares of a dataset with some share.
        max_epochs: Path of a dataset → how often it may be read.

    Returns:
        Path of a dataset → its largest share. Datasets without a limit are left out.

    Raises:
        InputError: An earlier part of this training run has read a dataset as often as it may be.
    """
    max_shares = {}
    for dataset in datasets:
        if dataset.prefix in max_epochs:
            epochs = max_epochs[dataset.prefix]
            n_allowed = most_samples(dataset.tokens, epochs, samples.config)  # 400
            n_allowed -= dataset.taken_before
            if n_allowed <= 0:
                raise _read_already_error(dataset)
            max_shares[dataset.prefix] = samples.largest_share(n_allowed)
    return max_shares


@dataclass(frozen=True, slots=True)
class _SamplesByShare:
    """How many samples the trainer prepares of a dataset that has some share of all samples."""

    config: NanosetConfig
    n_samples: int
    """Samples that training reads in all."""
    n_consumed: int
    """How many of these it read before the weights were changed; 0 if they never were."""

    def prepared(self, share: float) -> int:
        """Return how many samples of a dataset the trainer prepares for this training.

        For example, training reads 1,000 samples, and the share is 0.5. The trainer prepares 0.5 %
        more than it reads (`surplus`), to be safe:

            read         500
            prepared     503

        If a training run changes its weights after 400 samples, it prepares the same number, but
        skips 199 or more of these (`_fewest_skipped`). The others are at most 304.

        Args:
            share: The dataset's share of all samples: 0.5.

        Returns:
            The number of samples, without those that are skipped.
        """
        config = self.config
        sizes = config.rules.member_sizes(self.n_samples, share, config.surplus)
        return sizes.built - self._fewest_skipped(share)

    def _fewest_skipped(self, share: float) -> int:
        """Return how many prepared samples of a dataset the trainer skips, at least.

        It skips samples if a training run has changed its weights. For example, it has read 400
        samples until then, and a dataset has the new share 0.5. Then it skips 0.5 * 400 = 200
        samples of the dataset, as if this share had held from the start. It may be one more or
        fewer, since datasets take turns. So the result is 199.
        """
        n_skipped = int(share * self.n_consumed)  # 200, or 0 if weights never changed
        return max(n_skipped - 1, 0)

    def epochs_of(self, dataset: MemberPlan, share: float) -> float:
        """Return how often a training run reads a dataset that has some share, from its start on.

        For example, the dataset has 100 samples. 50 were read before the weights were changed, and
        200 are prepared now. So it is read 2.5 times.

        Args:
            dataset: The dataset, with its size, and how many samples were read before.
            share: Its share of all samples.
        """
        n_samples = dataset.taken_before + self.prepared(share)
        return epochs_needed(n_samples, dataset.tokens, self.config)

    def largest_share(self, n_allowed: int) -> float:
        """Return the largest share with which the trainer prepares at most some samples.

        For example, training reads 1,000 samples, and 400 are allowed of a dataset. As trainers
        prepare some more samples than they read, the share must be slightly below 0.4:

            share     samples read    prepared
            0.3990    399             401         too many
            0.3980    398             400         allowed

        Each trainer rounds these numbers in another way, so there is no formula. The share is found
        by a binary search among the multiples of 2**-40.

        The caller divides the shares of all datasets by their sum, which is 1 except for rounding.
        That may raise a share slightly, but by less than half of 2**-40. So the result is a share
        that is allowed even if it is raised by as much.

        Args:
            n_allowed: Largest number of samples that may be prepared: 400.
        """

        def is_allowed(n_units: int) -> bool:
            """Return whether `n_units` * 2**-40 is small enough, even if it is raised slightly."""
            raised_share = (n_units + 0.5) / _SHARE_UNITS
            return self.prepared(raised_share) <= n_allowed

        n_units = largest_that_fits(_SHARE_UNITS, is_allowed)
        return n_units / _SHARE_UNITS


def _read_already_error(member: MemberPlan) -> InputError:
    """Return the error for a dataset of which earlier phases have read all that may be read."""
    return InputError(
        "earlier phases of the run have read a dataset as often as max_epochs allows",
        found=f"{Path(member.prefix).name}: {member.taken_before:,} samples",
        remedy="leave it out of the blend, or raise max_epochs",
    )


@dataclass(frozen=True, slots=True)
class _JointLimit:
    """A limit on how often documents are read that are in several datasets."""

    limit: SharedLimit
    """How often the documents may be read, and the copies of them in each dataset."""
    datasets: Sequence[MemberPlan]
    """All datasets of a split, with their sizes."""
    samples: _SamplesByShare
    """Says how many samples of each dataset the trainer prepares."""
    epochs_before: Mapping[str, float]
    """Path of each dataset → how often it was read before the weights were changed."""

    @property
    def prefixes(self) -> Collection[str]:
        """Paths of the datasets that contain the documents."""
        return self.limit.copies.keys()

    @property
    def text(self) -> str:
        """The limit as a part of a message: "documents in web and best-web: at most 2 times"."""
        names = " and ".join(self.limit.holders)
        return f"documents in {names}: at most {self.limit.limit:g} times"

    def fits(self, shares: Shares) -> bool:
        """Return whether the documents are read seldom enough with some shares of the datasets.

        For example, the documents are in two datasets and may be read twice:

            dataset     share of the samples    so it is read
            web         0.6                     1 time
            best-web    0.4                     2 times
            sum                                 3 times           too often

        Args:
            shares: Path of each dataset → its share of the training samples.
        """
        # Datasets that are not read any more count as often as earlier phases have read them.
        epochs_by_path = dict(self.epochs_before)
        for dataset in self.datasets:
            path = dataset.prefix
            contains_documents = path in self.prefixes
            if contains_documents:
                epochs_by_path[path] = self.samples.epochs_of(dataset, shares[path])
        return not self.limit.is_exceeded(epochs_by_path)


def fill_shares(shares: Shares, max_shares: Shares) -> dict[str, float] | None:
    """Lower shares that are too large, and divide what they lose among the others.

    The others grow in proportion, so one of them may become too large, too. Then that is repeated.
    For example:

        dataset             books    web     code
        largest share       0.2      0.4     1
        old share           0.5      0.3     0.2     books has too much: fix it at 0.2
        second round        0.2      0.48    0.32    web has too much: fix it at 0.4
        third round         0.2      0.4     0.4     the result

    Args:
        shares: Path of each dataset → its share of the training samples. They add up to 1.
        max_shares: Path of each dataset → its largest share.

    Returns:
        Path of each dataset → its new share. They add up to 1. None if the largest shares add up to
        less than 1.
    """
    fixed_shares: dict[str, float] = {}  # of the datasets that have their largest share
    while True:
        other_shares = _scaled_to_rest(shares, fixed_shares)  # they divide what is left
        if not other_shares:
            return None  # all have their largest share, and something is left
        too_large = _above(other_shares, max_shares)
        if not too_large:
            return _in_order(shares, {**fixed_shares, **other_shares})
        for prefix in too_large:
            fixed_shares[prefix] = max_shares[prefix]


def _scaled_to_rest(shares: Shares, fixed: Shares) -> dict[str, float]:
    """Divide what fixed shares leave among the other datasets, in proportion to their shares.

    For example, books is fixed at 0.2, which leaves 0.8:

        dataset    share    result
        books      0.5      -         fixed at 0.2
        web        0.3      0.48      0.3 / 0.5 * 0.8
        code       0.2      0.32      0.2 / 0.5 * 0.8

    Args:
        shares: Path of each dataset → its share.
        fixed: Path → share of the datasets that are fixed: {"books": 0.2}.

    Returns:
        Path → share of the others: {"web": 0.48, "code": 0.32}.
    """
    other_shares = {prefix: share for prefix, share in shares.items() if prefix not in fixed}
    rest = 1.0 - plain_sum(fixed.values())
    total = plain_sum(other_shares.values())
    return {prefix: share / total * rest for prefix, share in other_shares.items()}


def _above(shares: Shares, max_shares: Shares) -> list[str]:
    """Return the datasets whose share is larger than it may be, in the order of the shares."""
    return [prefix for prefix, share in shares.items() if share > max_shares[prefix]]


def _in_order(shares: Shares, filled: Shares) -> dict[str, float]:
    """Return the values of `filled` in the order of the keys of `shares`."""
    return {prefix: filled[prefix] for prefix in shares}


def fill_shares_together(
    shares: Shares, max_shares: Shares, joint_limits: Sequence[_JointLimit]
) -> dict[str, float] | None:
    """Lower shares that are too large, if some limits hold for several datasets together.

    Imagine that all shares grow from 0 in proportion, until they add up to 1. When a limit is
    reached, the datasets for which it holds stop growing, and the others get more. For example, web
    and best-web contain the same documents, and may have 0.4 together:

        dataset                      web     best-web    code
        old share                    0.5     0.3         0.2
        when the limit is reached    0.25    0.15        0.1      web and best-web stop
        result                       0.25    0.15        0.6      code grows to what is left

    Args:
        shares: Path of each dataset → its share of the training samples. They add up to 1.
        max_shares: Path of each dataset → its largest share.
        joint_limits: The limits that hold for several datasets together.

    Returns:
        Path of each dataset → its new share. They add up to 1. None if the limits do not allow
        that.
    """
    stopped_shares: dict[str, float] = {}  # of the datasets that have stopped
    while True:
        # What the other datasets have in the end, if they reach no limit.
        final_shares = _scaled_to_rest(shares, stopped_shares)
        if not final_shares:
            return None  # all have stopped, and add up to less than 1
        growth = _Growth(stopped_shares, final_shares, max_shares, joint_limits)
        if growth.keeps_limits_at(_SHARE_UNITS):  # after the last step
            return _in_order(shares, {**stopped_shares, **final_shares})

        shares_at_limit = growth.shares_at_limit()  # {"web": 0.25, "best-web": 0.15}
        if 0 in shares_at_limit.values():
            return None  # a dataset may not be read at all
        stopped_shares |= shares_at_limit


@dataclass(frozen=True, slots=True)
class _Growth:
    """Shares of datasets that grow from 0 in 2**40 equal steps (`_SHARE_UNITS`).

    There are so many steps that it hardly matters in which of them a limit is reached.
    """

    stopped_shares: Shares
    """Shares of the datasets that do not grow any more."""
    final_shares: Shares
    """The growing shares after the last step. They and the stopped shares add up to 1."""
    max_shares: Shares
    """Largest share of each dataset."""
    joint_limits: Sequence[_JointLimit]
    """The limits that several datasets keep together."""

    def shares_after(self, steps: float) -> dict[str, float]:
        """Return the growing shares after some of the 2**40 steps; after half of them, half."""
        return {prefix: share * steps / _SHARE_UNITS for prefix, share in self.final_shares.items()}

    def datasets_over_limit(self, steps: int) -> list[str]:
        """Return which growing datasets have too large a share after some steps.

        For example, books and old-books contain the same documents. They have a *joint limit* on
        how often these are read through both. After half of the steps:

            dataset      final share    share now    limit
            web          0.4            0.2          at most 0.1: too large
            code         0.2            0.1          at most 1
            books        0.2            0.1          joint limit with old-books: too large
            old-books    -              0.2          (has stopped growing before)

        Args:
            steps: How many steps the shares have grown: half of 2**40.

        Returns:
            Their paths: web and books, always in the same order. The shares are added later, and
            the order decides how their sum is rounded.
        """
        # The caller later divides all shares by their sum, which is 1 except for rounding. That may
        # raise a share by less than half a step, so try shares that are half a step larger.
        growing_shares = self.shares_after(steps + 0.5)
        over_limit = set(_above(growing_shares, self.max_shares))  # web
        all_shares = {**self.stopped_shares, **growing_shares}
        for joint_limit in self.joint_limits:
            if not joint_limit.fits(all_shares):
                over_limit.update(joint_limit.prefixes)  # books and old-books
        return [prefix for prefix in growing_shares if prefix in over_limit]

    def keeps_limits_at(self, steps: int) -> bool:
        """Return whether no share is too large after some steps."""
        return not self.datasets_over_limit(steps)

    def shares_at_limit(self) -> dict[str, float]:
        """Let shares grow until some reach a limit, and return these.

        For an example with 10 steps, web would have 0.6 after the last step, but may have at most
        0.3:

            after step       4       5       6              10
            share of web     0.24    0.30    0.36    ...    0.6
            share of code    0.16    0.20    0.24    ...    0.4

        Up to step 5, all limits are kept. At step 6, the share of web is too large. So web stops
        growing at step 5, and the result is {"web": 0.3}.

        Returns:
            Path of each dataset that stops → its share.
        """
        # The last step at which all limits are kept, found by a binary search.
        last_step = largest_that_fits(_SHARE_UNITS, self.keeps_limits_at)  # 5
        shares = self.shares_after(last_step)  # web 0.3, code 0.2
        stopping = self.datasets_over_limit(last_step + 1)  # web
        # Rounding could make a share slightly larger than it may be.
        return {prefix: min(shares[prefix], self.max_shares[prefix]) for prefix in stopping}
