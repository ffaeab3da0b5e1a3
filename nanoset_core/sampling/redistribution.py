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

    # A limit may hold for a single dataset, or for several ones that contain the same documents.
    max_shares, limits_of_several = _limits_of_all(splits, prefixes, config, limits)
    if limits_of_several:
        limited_shares = fill_shares_together(shares, max_shares, limits_of_several)
    else:
        limited_shares = fill_shares(shares, max_shares)
    if limited_shares is None:
        raise _too_few_samples(max_shares, limits_of_several)
    return limited_shares


def _limits_of_all(
    splits: Sequence[SplitName], prefixes: Sequence[str], config: NanosetConfig, limits: EpochLimits
) -> _LimitsOfSplit:
    """Return which share of the samples each dataset may have, in several splits of the data.

    For example, a dataset may be read only twice. That limits its share in each split. The lowest
    limit is kept in all of them, since they have the same weights:

        dataset    largest share of train    of valid    result
        books      0.4                       0.3         0.3
        web        no limit                  no limit    inf

    Documents may also be in several datasets. Then a limit holds for these datasets *together*,
    such as "at most 2 times through web and best-web". All such limits of all splits are kept, so
    they are put in one list.

    Args:
        splits: The splits (train, valid and test) that have the same weights.
        prefixes: Paths of all datasets.
        config: What is trained.
        limits: How often each dataset may be read.

    Raises:
        InputError: An earlier part of this training run has read a dataset as often as it may be.
    """
    max_shares = dict.fromkeys(prefixes, math.inf)  # no limit so far
    together: list[_SplitLimit] = []  # limits that hold for several datasets together
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
    """Return which share of the samples of a split each dataset may have.

    Limits say how often training may read a document. For example, books and web may be read once.
    Each has 400 samples, and training reads 1,000. There are two kinds of limits:

    - The documents of books are in no other dataset. So the limit is one on its share of the
      samples: `max_shares` is {"books": 0.4}.
    - The best documents of web are also in the dataset best-web. So the limit is one on what is
      read of web and best-web *together*.

    (All limits of web are of the second kind then, also that on its other documents.)

    Args:
        split: The split of the data: train, valid or test.
        config: What is trained.
        limits: How often each dataset may be read.

    Raises:
        InputError: An earlier part of this training run has read a dataset as often as it may be.
    """
    no_limits = _LimitsOfSplit(max_shares={}, together=())
    n_samples = config.samples(split)
    if not n_samples:
        return no_limits  # the split reads each dataset once, or nothing
    plan = plan_split(config, split, limits.reader)
    if plan is None:
        return no_limits  # the split has no data

    # Limits of the second kind. Leave out web, for which they are configured, from the first kind.
    limits_of_several = limits.on_copies(plan, config)
    prefixes_of_several = {limit.prefix for limit in limits_of_several}
    return _LimitsOfSplit(
        together=_limits_in_split(limits_of_several, n_samples, plan, config, limits.reader),
        max_shares=_max_shares(plan, n_samples, config, limits, except_for=prefixes_of_several),
    )


def _too_few_samples(max_shares: Shares, split_limits: Sequence[_SplitLimit]) -> InputError:
    """Return the error for limits of datasets that do not leave enough samples for training.

    For example, there are two datasets, and the message says: "books at most 0.3000, web at most
    0.5000". These add up to less than 1.

    Args:
        max_shares: Path of a dataset → the largest share of the samples that it may have.
        split_limits: Limits on documents that several datasets contain.
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
    """Return the largest share of the training samples that each dataset may have.

    A larger share would read it too often. For example, training reads 1,000 samples. A dataset of
    400 samples, which may be read once, has at most the share 0.4.

    Args:
        plan: What was planned for the split of the data, with the size of each dataset.
        size: Number of samples that are read.
        config: What is trained.
        limits: How often each dataset may be read.
        except_for: Paths of datasets to leave out.

    Returns:
        Path of a dataset → its largest share. Datasets without a limit are left out, too.

    Raises:
        InputError: An earlier part of this training run has read a dataset as often as it may be.
    """
    max_shares = {}
    for dataset in plan.members:
        max_epochs = limits.by_prefix.get(dataset.prefix)
        if max_epochs is None or dataset.prefix in except_for:
            continue
        max_shares[dataset.prefix] = _max_share(dataset, size, config, max_epochs)
    return max_shares


def _samples_built(
    split_size: int, share: float, config: NanosetConfig, consumed_samples: int
) -> int:
    """Return how many samples of a dataset the trainer builds if the dataset has some share.

    It builds a few more than it takes, to be safe. If training was stopped and continues with other
    weights, it skips the samples that it would have read by now with these weights. For example,
    1,000 samples are read in all, 400 of them before the change, and the share is 0.5:

        share of all samples                          500
        with the trainer's margin, such as 0.5 %      503
        share of the samples that are skipped         200, or 199
        built                                         503 - 199 = 304

    A trainer mixes datasets sample by sample. So at any time, the samples of a dataset differ from
    its exact share by a fraction of a sample. Therefore 200 can be 199, and this is supposed.

    Args:
        split_size: Samples that are read in all, before and after the change: 1,000.
        share: The dataset's share of these: 0.5.
        config: What is trained.
        consumed_samples: Samples that were read before the change: 400; 0 if there was none.

    Returns:
        The number of samples; it may be one too high, but never too low.
    """
    sizes = config.rules.member_sizes(split_size, share, config.surplus)  # sizes.built is 503
    n_skipped = max(int(share * consumed_samples) - 1, 0)  # 199
    return sizes.built - n_skipped


def _max_share(member: MemberPlan, size: int, config: NanosetConfig, max_epochs: float) -> float:
    """Return the largest share of the training samples with which a dataset is not read too often.

    For example, training reads 1,000 samples. A dataset of 400 samples, which may be read once,
    could have the share 0.4. But trainers build some more samples than they read:

        share     samples    samples that the trainer builds    allowed: 400
        0.3990    399        401                                no
        0.3980    398        400                                yes

    How many more is rounded in a different way by each trainer, so there is no formula. Instead,
    shares are tried: only multiples of 2**-40 (`step` / `_SHARE_UNITS`), to find the largest that
    is allowed by a binary search.

    Args:
        member: What was planned for the dataset, with its size, and how many of its samples were
            read before the weights were changed (`taken_before`; 0 if there was no change).
        size: Number of samples that are read.
        config: What is trained.
        max_epochs: How often the dataset may be read.

    Raises:
        InputError: An earlier part of this training run has read it as often as it may be.
    """
    samples_allowed = most_samples(member.tokens, max_epochs, config) - member.taken_before
    if samples_allowed <= 0:
        raise _read_already_error(member)
    consumed_samples = _consumed(config, member.split)

    def is_allowed(step: int) -> bool:
        """Return whether the trainer builds at most the allowed samples, for a share in steps."""
        # The caller later divides all shares by their sum, which may round this one up. So try a
        # share that is half a step larger.
        share = (step + 0.5) / _SHARE_UNITS
        return _samples_built(size, share, config, consumed_samples) <= samples_allowed

    # A binary search can be used, since more steps never mean fewer samples.
    last_step = largest_that_fits(_SHARE_UNITS, is_allowed)
    return last_step / _SHARE_UNITS


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
        """Return whether some documents are read seldom enough if the datasets have these shares.

        The documents are in several datasets, so they are read through all of them. Datasets are of
        different sizes: with a share of 0.4 of the training samples, a small one is read more often
        than a large one with 0.6. For example:

            dataset     share    so it is read    copies of the documents    the documents are read
            web         0.6      1 time           1                          1 time
            best-web    0.4      2 times          1                          2 times
            sum                                                              3 times

        They fit if they may be read 3 times or more.

        Args:
            shares: Path of each dataset → its share of the samples.
        """
        # Start with the datasets that were only read earlier, before training changed its datasets.
        epochs = dict(self.epochs_before)
        for dataset in self.plan.members:
            if dataset.prefix in self.limit.copies:  # the dataset has the documents
                epochs[dataset.prefix] = self._epochs_of_run(dataset, shares[dataset.prefix])
        return not self.limit.is_exceeded(epochs)

    def _epochs_of_run(self, dataset: MemberPlan, share: float) -> float:
        """Return how often training reads a dataset that has some share of the samples.

        It counts from the start of the training run, also what was read before its weights were
        changed. For example, a dataset has 100 samples, and 50 of them were read before:

            samples that the trainer builds now       200 for this share, with a few more to be safe
            samples of the whole run                  50 + 200 = 250
            so it is read                             2.5 times

        Args:
            dataset: What was planned for the dataset, with its size.
            share: Its share of the samples: 0.2.
        """
        # If the weights were changed, the trainer skips as many samples as were read before.
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
    """Prepare limits on documents that several datasets contain, so that weights can be tried.

    For example, documents that are in both `web` and `news` may be read twice. Weights such as 0.7
    and 0.3 are tried later, to see whether they keep this limit. For that, one has to know how
    often they read each dataset. So each result has, together with its limit:

        size             1,000: how many samples training reads of the split
        plan             how large the datasets are
        epochs_before    {"data/web": 0.5}: how often they were read before, if training was stopped
                         and continues with other weights; otherwise {}

    Args:
        limits_on_copies: The limits.
        size: Number of samples that are read of the split.
        plan: What was planned for the split (train, valid or test) with the old weights.
        config: What is trained.
        reader: Reads the sizes of datasets that are not read any more.
    """
    epochs_before: Mapping[str, float] = {}
    if plan.split == "train" and limits_on_copies:  # valid and test start anew
        epochs_before = epochs_of_earlier_phases(config, reader)

    split_limits = []
    for limit in limits_on_copies:
        split_limits.append(_SplitLimit(limit, size, plan, config, epochs_before))
    return split_limits


def fill_shares(shares: Shares, max_shares: Shares) -> dict[str, float] | None:
    """Lower shares that are too large, and divide what they lose among the others.

    The shares say how many of the training samples each dataset has. The others grow in proportion,
    so one of them may become too large, too. Then that is repeated. For example:

        dataset             books    web     code
        largest share       0.2      0.4     1
        old share           0.5      0.3     0.2     books has too much: fix it at 0.2
        second round        0.2      0.48    0.32    web has too much: fix it at 0.4
        third round         0.2      0.4     0.4     the result

    Args:
        shares: Path of each dataset → its share. They add up to 1.
        max_shares: Path of each dataset → its largest share.

    Returns:
        Path of each dataset → its new share. They add up to 1. None if the largest shares add up to
        less than 1.
    """
    fixed_shares: dict[str, float] = {}
    while True:
        other_shares = _scaled_to_rest(shares, fixed_shares)
        if not other_shares:
            return None  # all are at their maxima, and something is left
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
    shares: Shares, max_shares: Shares, split_limits: Sequence[_SplitLimit]
) -> dict[str, float] | None:
    """Lower shares that are too large, if some limits hold for several datasets together.

    The shares say how many of the training samples each dataset has. Imagine that all of them grow
    from 0 in proportion. When a limit is reached, the datasets for which it holds stop growing. The
    others grow until all shares add up to 1. For example, the limit of web and best-web, which
    contain the same documents, is reached at 0.4 together:

        dataset                      web     best-web    code
        old share                    0.5     0.3         0.2
        when the limit is reached    0.25    0.15        0.1      web and best-web stop
        result                       0.25    0.15        0.6      code grows to what is left

    Each round of the loop lets the shares grow to the next limit. To grow is not computed step by
    step, but as a fraction: in 2**40 steps (`_SHARE_UNITS`), all shares reach their final values.

    Args:
        shares: Path of each dataset → its share. They add up to 1.
        max_shares: Path of each dataset → its largest share.
        split_limits: The limits that hold for several datasets together.

    Returns:
        Path of each dataset → its new share. They add up to 1. None if the limits do not allow
        that.
    """
    fixed_shares: dict[str, float] = {}
    while True:
        # What the datasets that still grow have in the end, if they reach no limit. At first, these
        # are all of them.
        final_shares = _scaled_to_rest(shares, fixed_shares)
        if not final_shares:
            return None  # all have stopped, and add up to less than 1
        growth = _Growth(fixed_shares, final_shares, max_shares, split_limits)
        if growth.keeps_limits_at(_SHARE_UNITS):  # at the last step, so in the end
            return _in_order(shares, {**fixed_shares, **final_shares})

        stopped_shares = growth.shares_at_limit()  # {"web": 0.25, "best-web": 0.15}
        if 0 in stopped_shares.values():
            return None  # a dataset may not be read at all
        fixed_shares |= stopped_shares


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
        """Return which datasets would be read too often if their shares had grown for some steps.

        The shares say how many of the training samples each dataset has. They grow from 0 to their
        final values in 2**40 equal steps (`_SHARE_UNITS`). For example, after half of these:

            dataset    final share    share now    largest share
            web        0.6            0.3          0.25             too much
            code       0.2            0.1          1

        Other datasets have reached a limit before, and do not grow any more: books has a fixed
        share of 0.2. It matters for limits on documents that several datasets contain, since these
        add up what is read of all of them.

        Args:
            step: How many steps the shares have grown.

        Returns:
            Paths of the growing datasets that exceed a limit: web. If a limit on documents of
            several datasets is exceeded, these are all of them that still grow.
        """
        # The caller later divides the shares by their sum, which may round them up. So try shares
        # that are half a step larger.
        fraction = (step + 0.5) / _SHARE_UNITS
        grown = {prefix: share * fraction for prefix, share in self.final_shares.items()}

        over_limit = set(_above(grown, self.max_shares))
        for split_limit in self.split_limits:
            if not split_limit.fits({**self.fixed, **grown}):
                over_limit.update(split_limit.limit.copies)  # all datasets with these documents

        # A set has no fixed order. But the shares are added up later, and the order decides how
        # their sum is rounded.
        return [prefix for prefix in self.final_shares if prefix in over_limit]

    def shares_at_limit(self) -> dict[str, float]:
        """Return which datasets reach a limit first, and their shares at that moment.

        The shares say how many of the training samples each dataset has. All of them grow from 0 to
        their final values in equal steps. For example, with 10 steps (really 2**40, so rounding
        hardly matters):

            step               4       5       6
            share of web       0.24    0.30    0.36     its largest share is 0.3
            share of code      0.16    0.20    0.24     its largest share is 1
            limits are kept    yes     yes     no

        Step 5 is the last one at which all limits are kept. The datasets over their limits in step
        6 stop there, so the result is {"web": 0.3}.
        """
        # A binary search for the last step at which all limits are kept: 5.
        last_step = largest_that_fits(_SHARE_UNITS, self.keeps_limits_at)
        stopped_shares = {}
        for prefix in self.datasets_over_limit(last_step + 1):
            share = self.final_shares[prefix] * last_step / _SHARE_UNITS  # 0.6 * 5 / 10
            stopped_shares[prefix] = min(share, self.max_shares[prefix])
        return stopped_shares

    def keeps_limits_at(self, step: int) -> bool:
        """Return whether no dataset is read too often after its share has grown for some steps."""
        return not self.datasets_over_limit(step)
