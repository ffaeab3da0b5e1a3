"""Compute what a planned split takes of each dataset: shares, epochs and unread tokens.

For example, a split of 1,000 samples takes 750 of web, whose epoch has 1,500, and 250 of books,
whose epoch has 100: their shares are 0.75 and 0.25, and they are read 0.5 and 2.5 times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nanoset_core.sampling.blending import samples_taken
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.corpora import epochs_drawn
from nanoset_core.sampling.planned import BlendPlan, MemberPlan, SplitPlan
from nanoset_core.sampling.splits import plain_sum

_EXACT_SAMPLES = 1 << 20
"""Blends with at most this many samples are computed, in less than half a second, to count the
samples of each dataset; larger ones are only estimated.
"""


@dataclass(frozen=True, slots=True)
class MemberCoverage:
    """What a split takes of one dataset."""

    prefix: str
    """Path of the dataset without .bin and .idx."""
    sequences: int
    """Sequences of the dataset that belong to the split."""
    tokens: int
    """Tokens of one epoch, that is, of these sequences."""
    weight: float
    """Share in the blend's weights, from 0 to 1."""
    share: float
    """Share of the split's samples that are taken of it, from 0 to 1."""
    samples_asked: int
    """Samples that the blend plans to take; for a plain dataset, those requested, or all."""
    samples_given: int
    """Samples that are taken. Before a blend of over a million samples is built, this is an
    estimate.
    """
    samples_built: int
    """Samples in its index files; those that are not taken are surplus."""
    tokens_taken: int
    """Tokens of the samples that are taken, including the padding of packed samples."""
    epochs: float
    """How often the dataset is read, as `epochs_drawn` counts it."""
    max_epochs: float | None
    """How often it may be read; None for no limit."""
    tokens_unseen: int | None
    """Tokens that no taken sample contains, up to one token for each sample; None if that depends
    on how epochs were shuffled.
    """
    before: int = 0
    """Samples that earlier phases of the run took; they count in `epochs`, too."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain types, and the surplus.

        Returns:
            Name of each field → value. `surplus` is the number of samples that are built, but not
            taken. `before` is left out if it is 0.
        """
        values = asdict(self)
        values["surplus"] = self.samples_built - self.samples_given
        if not self.before:
            del values["before"]
        return values


def coverage(
    plan: SplitPlan,
    config: NanosetConfig,
    limits: Mapping[str, float] | None = None,
    samples_given: Sequence[int] | None = None,
) -> list[MemberCoverage]:
    """Return what a split takes of each dataset.

    Args:
        plan: Plan of the split.
        config: Configuration with which it was planned.
        limits: Prefix → how often a dataset may be read.
        samples_given: Samples taken of each dataset, counted in a built blend; None computes or
            estimates them.
    """
    if samples_given is None:
        samples_given = _planned_samples(plan, config)
    # Samples that this phase of a run takes of each dataset.
    sample_counts = [
        count - member.begin for member, count in zip(plan.members, samples_given, strict=True)
    ]
    total = sum(sample_counts)
    shares = _blend_shares(plan)
    blend_epochs = _samples_of_blend_epoch(plan, config)
    limit_by_prefix = limits or {}

    rows = []
    for number, member in enumerate(plan.members):
        start, stop = member.rows
        count = sample_counts[number]
        row = MemberCoverage(
            prefix=member.prefix,
            sequences=stop - start,
            tokens=member.tokens,
            weight=shares[number],
            share=count / total if total else 0.0,
            samples_asked=_samples_asked(member, count),
            samples_given=count,
            samples_built=_samples_built(member, count, config),
            tokens_taken=count * config.step,
            epochs=epochs_drawn(member.taken_before + count, member.tokens, config),
            max_epochs=limit_by_prefix.get(member.prefix),
            tokens_unseen=_tokens_unseen(member, count, config, blend_epochs[number]),
            before=member.taken_before,
        )
        rows.append(row)
    return rows


def _blend_weights(plan: SplitPlan) -> Sequence[float]:
    """Return the weight of each dataset in the blend; 1 for a single dataset without a blend."""
    return (1.0,) if plan.blend is None else plan.blend.weights


def _blend_shares(plan: SplitPlan) -> list[float]:
    """Return the weight of each dataset in the blend, divided by the sum of all weights."""
    weights = _blend_weights(plan)
    weight_sum = plain_sum(weights)
    return [weight / weight_sum for weight in weights]


def _samples_asked(member: MemberPlan, n_samples: int) -> int:
    """Return the samples that the blend plans to take of a dataset in this phase of a run.

    Args:
        member: Plan of the dataset.
        n_samples: Samples that are taken of it: the result if no number is planned.
    """
    if member.samples_target is None:
        return n_samples
    return max(member.samples_target - member.begin, 0)


def _samples_built(member: MemberPlan, n_samples: int, config: NanosetConfig) -> int:
    """Return the samples that the index files have of a dataset for this phase of a run."""
    if config.rules.shuffles_blend:
        # The trainer repeats one shuffled epoch of the blend, and so may take more than were built.
        return max(member.samples_given, n_samples)
    return member.samples_given - member.begin


def _samples_of_blend_epoch(plan: SplitPlan, config: NanosetConfig) -> Sequence[int | None]:
    """Return how many samples of each dataset are in one epoch of the blend.

    Some trainers build one epoch of the blend, and repeat it. It has as many samples as all
    datasets together. For example, two datasets have 300 and 100 samples, and equal weights: the
    epoch has 400 samples, and so 200 of each dataset.

    Args:
        plan: Plan of the split.
        config: Configuration with which it was planned.

    Returns:
        One number for each dataset; None for trainers that do not repeat an epoch of the blend.
    """
    weights = _blend_weights(plan)
    if not config.rules.shuffles_blend:
        return [None] * len(weights)
    weight_sum = plain_sum(weights)
    epoch_size = sum(member.samples_given for member in plan.members)
    # A blend takes whole samples of each dataset, at most these numbers rounded up.
    return [math.ceil(epoch_size * weight / weight_sum) for weight in weights]


def _planned_samples(plan: SplitPlan, config: NanosetConfig) -> list[int]:
    """Return how many samples a split takes of each dataset; for a large blend, an estimate."""
    dataset_sizes = [member.samples_given for member in plan.members]

    # Without a blend, the split reads a single dataset.
    if plan.blend is None:
        n_available = dataset_sizes[0]
        n_requested = config.samples(plan.split)
        if n_requested is None:
            return [n_available]
        return [min(n_requested, n_available)]

    # An exhaustive blend takes all samples of all datasets.
    if plan.blend.exhaustive:
        return dataset_sizes

    # Only computing the blend gives exact numbers. That takes too long for a large one.
    if plan.blend.size <= _EXACT_SAMPLES:
        return list(samples_taken(plan.blend.weights, 0, plan.blend.size))
    return _samples_by_weight(plan.blend)


def _samples_by_weight(blend: BlendPlan) -> list[int]:
    """Divide the samples of a blend in proportion to its weights, without computing the blend.

    Numbers are rounded down; the datasets that lose most by that get one of the remaining samples.
    For example, 10 samples with the weights 0.55, 0.27 and 0.18:

        in proportion    5.5  2.7  1.8
        rounded down     5    2    1       2 samples remain, for the losses 0.8 and 0.7
        result           5    3    2
    """
    weights = np.array(blend.weights, np.float64)  # (n_datasets,)
    exact_counts = weights / weights.sum() * blend.size  # (n_datasets,)
    counts = np.floor(exact_counts).astype(np.int64)
    n_remaining = blend.size - int(counts.sum())
    largest_loss_first = np.argsort(counts - exact_counts, kind="stable")
    counts[largest_loss_first[:n_remaining]] += 1
    return [int(count) for count in counts]


def _tokens_unseen(
    member: MemberPlan, n_samples: int, config: NanosetConfig, blend_epoch_samples: int | None
) -> int | None:
    """Return how many tokens of a dataset a run has not read at the end of a split.

    For example, the dataset has 1,000 tokens, and samples start every 10 tokens. After 60 samples
    of its only epoch, 400 tokens are unread.

    Args:
        member: Plan of the dataset.
        n_samples: Samples of the dataset that the split takes.
        config: Configuration of the nanoset.
        blend_epoch_samples: For trainers that shuffle one epoch of the blend and repeat it: how
            many samples of the dataset this epoch has. None for others.

    Returns:
        The number of tokens, or None if it depends on how samples were shuffled.
    """
    n_different = _different_samples(member, n_samples, blend_epoch_samples)
    if n_different is None:
        return None
    n_read = member.taken_before + n_different
    if n_read == 0:
        return member.tokens

    # Samples of a single epoch have different tokens, whichever these samples are.
    if member.epochs <= 1:
        return max(0, member.tokens - _tokens_of_first_epoch(n_read, member.tokens, config))

    # If several epochs are shuffled together, a token may be read twice before another one is read
    # once. Only after all their samples is it certain that every token was read.
    has_read_all = n_read >= _samples_shuffled_together(member, config)
    return 0 if has_read_all else None


def _different_samples(
    member: MemberPlan, n_samples: int, blend_epoch_samples: int | None
) -> int | None:
    """Return how many different samples are among those that a split takes of a dataset.

    Args:
        member: Plan of the dataset.
        n_samples: Samples of the dataset that the split takes.
        blend_epoch_samples: If the trainer repeats one shuffled epoch of the blend: how many
            samples of the dataset this epoch has. None for other trainers.

    Returns:
        The number, or None if the shuffle decides it.
    """
    if blend_epoch_samples is None:
        return n_samples
    # If the dataset has fewer samples than the epoch of the blend takes, some occur twice in it.
    # Before its end, the shuffle decides how many of these were taken twice.
    epoch_has_duplicates = blend_epoch_samples > member.samples_given
    if epoch_has_duplicates and n_samples < blend_epoch_samples:
        return None
    return min(n_samples, blend_epoch_samples)  # the others repeat the epoch


def _samples_shuffled_together(member: MemberPlan, config: NanosetConfig) -> int:
    """Return how many samples of a dataset are shuffled together, from its first one on.

    These are all of its samples, or those before the last epoch.

    Args:
        member: Plan of the dataset, which says whether its last epoch is shuffled on its own.
        config: Configuration of the nanoset.
    """
    if not member.separate_last_epoch:
        return member.samples_built
    tokens_before_last_epoch = (member.epochs - 1) * member.tokens
    return (tokens_before_last_epoch - config.overlap) // config.step


def _tokens_of_first_epoch(n_samples: int, tokens: int, config: NanosetConfig) -> int:
    """Return how many different tokens some samples have, if all are from a single epoch.

    Samples start `step` tokens apart, so each has `step` tokens that no other one has. The last
    sample of the dataset extends beyond its step.

    Args:
        n_samples: How many samples were taken; more than the epoch has repeat it.
        tokens: Tokens of the epoch.
        config: Configuration of the nanoset.
    """
    samples_of_epoch = config.samples_in(tokens)
    n_different = min(n_samples, samples_of_epoch)
    tokens_seen = n_different * config.step
    if n_different == samples_of_epoch:
        tokens_seen += config.overlap
    return tokens_seen
