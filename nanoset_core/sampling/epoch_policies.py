"""Apply the policy for datasets that a nanoset would read more often than it may.

No trainer has limits on epochs. So the result of a policy is an error, or an ordinary configuration
with fewer samples or other weights, with which any trainer can be started. For example, a dataset
may be read once, but half of 1,000 samples are to be of it, and it has only 400: the policy `stop`
requests about 800 samples instead, and `redistribute` gives it a share of about 0.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from nanoset_core.errors import InputError
from nanoset_core.sampling.bisection import largest_that_fits
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.corpora import CorpusReader
from nanoset_core.sampling.epoch_limits import EpochLimits, ExceededLimit
from nanoset_core.sampling.redistribution import redistribute
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.sampling.splits import SPLITS, SplitName

Policy = Literal["raise", "repeat", "stop", "redistribute"]
"""What to do if a limit would be broken; `apply_epoch_limits` explains each."""


class LimitedConfig(NamedTuple):
    """A configuration after the limits were applied."""

    config: NanosetConfig
    exceeded: tuple[ExceededLimit, ...]
    """What the original configuration would have read too often."""


def apply_epoch_limits(
    config: NanosetConfig,
    limits: Mapping[str, float],
    policy: Policy,
    reader: LengthReader | None = None,
    corpora: CorpusReader | None = None,
) -> LimitedConfig:
    """Change what is trained so that no document is read more often than it may be.

    For example, half of 1,000 training samples are to be from a dataset of 400, which may be read
    once. There are four policies:

        raise           it is an error
        repeat          nothing is changed, and the dataset is read more often
        stop            about 800 samples are requested, half of which are 400
        redistribute    the dataset gets the weight 0.4 in place of 0.5, and others get more

    Args:
        config: What is trained: the datasets, their weights, and the number of samples.
        limits: Path of a dataset → how often it may be read; others have no limit.
        policy: One of the four.
        reader: Reads the lengths of documents from the datasets' `.idx` files; share it between
            calls for the same files.
        corpora: Finds documents that several datasets contain; None if there are none.

    Raises:
        InputError: A limit would be exceeded, and the policy is `raise`. Or the limits leave too
            few samples.
        ConfigError: There are no weights to redistribute, or for a reason of `plan_split`.
    """
    epoch_limits = EpochLimits(limits, reader or LengthReader(), corpora)
    exceeded: list[ExceededLimit] = []
    for split in SPLITS:
        exceeded += epoch_limits.exceeded(config, split)
    if not exceeded or policy == "repeat":
        limited = config
    elif policy == "raise":
        raise _read_too_often(exceeded)
    elif policy == "stop":
        limited = _stop(config, epoch_limits)
    else:
        limited = redistribute(config, epoch_limits)
    return LimitedConfig(limited, tuple(exceeded))


def _read_too_often(exceeded: list[ExceededLimit]) -> InputError:
    """Return the error for limits that would be broken."""
    texts = dict.fromkeys(limit.text for limit in exceeded)
    return InputError(
        "a corpus would be read more often than max_epochs allows",
        found="; ".join(texts),
        expected="no more than max_epochs, including the margin that the trainer adds "
        "to each corpus's samples",
        remedy="request fewer samples, lower its weight, raise max_epochs, "
        "or set on_exhaustion to repeat, stop or redistribute",
    )


def _stop(config: NanosetConfig, limits: EpochLimits) -> NanosetConfig:
    """Request fewer samples, so that training reads no dataset too often.

    For example, 1,000 samples are requested, but only 800 are possible. Then 800 are requested.

    Args:
        config: What is trained.
        limits: How often each dataset may be read.
    """
    samples: dict[SplitName, int | None] = {}
    for split in SPLITS:
        requested = config.samples(split)
        if requested is None:
            samples[split] = None  # everything is read once, which is always allowed
        else:
            samples[split] = _allowed_samples(config, split, requested, limits)
    return config.with_samples(samples)


def _allowed_samples(
    config: NanosetConfig, split: SplitName, requested: int, limits: EpochLimits
) -> int:
    """Return how many samples training can read without reading any dataset too often.

    For example, 1,000 samples are requested, half of them of a dataset of 400 samples that may be
    read once. About 800 are allowed: the number is found by trying, with a binary search.

    Args:
        config: What is trained.
        split: The split of the data: train, valid or test.
        requested: Samples that are requested: the largest possible result.
        limits: How often each dataset may be read.

    Raises:
        InputError: Not even one sample is allowed.
    """

    def fits(samples: int) -> bool:
        """Return whether no dataset is read too often with this number of samples."""
        return not limits.exceeded(config.with_samples({split: samples}), split)

    if fits(requested):
        return requested
    samples = largest_that_fits(requested, fits)
    if samples == 0:
        raise InputError(
            f"the limits on epochs leave no sample of the {split} split",
            found=f"{requested:,} samples requested",
            remedy="raise max_epochs, or give the split a larger share",
        )
    return samples
