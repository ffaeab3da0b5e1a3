"""Compute what a planned split takes of each dataset: shares, epochs and unread tokens.

For example, a split of 1,000 samples takes 750 of web, whose epoch has 1,500, and 250 of books,
whose epoch has 100: their shares are 0.75 and 0.25, and they are read 0.5 and 2.5 times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nanoset_core.sampling.blending import samples_taken
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.corpora import epochs_drawn, samples_of_blend_epoch
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
    """Samples in its index files; those that are not taken are surplus. Some trainers take more
    than these: nanotron starts a dataset of valid again when its samples are used up.
    """
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
        """Return the fields as plain types, for reports: {"prefix": "data/web", ...}.

        `surplus` is added: how many samples are built that are not taken. It is negative if some
        are taken twice, since the trainer starts the dataset again when its samples are used up.

        `before` is left out if it is 0, as it nearly always is: it counts samples that were read
        before a training run changed its weights.
        """
        values = asdict(self)
        values["surplus"] = self.samples_built - self.samples_given
        if self.before == 0:
            del values["before"]
        return values


def coverage(
    plan: SplitPlan,
    config: NanosetConfig,
    limits: Mapping[str, float] | None = None,
    samples_given: Sequence[int] | None = None,
) -> list[MemberCoverage]:
    """Return what training reads of each dataset: how many samples and tokens, and how often.

    For example, 1,000 samples of two datasets:

        dataset    samples of an epoch    share    samples read    epochs
        web        1,500                  0.75     750             0.5
        books        100                  0.25     250             2.5

    Args:
        plan: What is planned for a split of the data, such as train.
        config: Configuration with which it was planned.
        limits: Path of a dataset → how often it may be read.
        samples_given: Samples that are read of each dataset, if this is known; None computes or
            estimates it.
    """
    if samples_given is None:
        samples_given = _planned_samples(plan, config)
    # Leave out the samples that the trainer skips. There are none (`begin` is 0) unless a training
    # run has changed the weights of its datasets.
    sample_counts = [
        count - member.begin for member, count in zip(plan.members, samples_given, strict=True)
    ]
    total = sum(sample_counts)

    # If the trainer repeats a mixture of all datasets: how many samples of each are in it?
    mixture_counts: Sequence[int | None] = [None] * len(plan.members)
    if config.rules.shuffles_blend:
        dataset_sizes = [member.samples_given for member in plan.members]
        mixture_counts = samples_of_blend_epoch(dataset_sizes, _blend_weights(plan))

    shares = _blend_shares(plan)
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
            tokens_unseen=_tokens_unseen(member, count, config, mixture_counts[number]),
            before=member.taken_before,
        )
        rows.append(row)
    return rows


def _blend_weights(plan: SplitPlan) -> Sequence[float]:
    """Return the weight of each dataset in the blend; 1 for a single dataset without a blend."""
    return (1.0,) if plan.blend is None else plan.blend.weights


def _blend_shares(plan: SplitPlan) -> list[float]:
    """Return the share of each dataset in all samples: 0.75 and 0.25 for the weights 3 and 1."""
    weights = _blend_weights(plan)
    weight_sum = plain_sum(weights)
    return [weight / weight_sum for weight in weights]


def _samples_asked(member: MemberPlan, n_samples: int) -> int:
    """Return how many samples of a dataset are to be read by its weight, for a report.

    For example, 0.3 of 1,000 samples are 300. As numbers are rounded, the trainer may read 299 or
    301. The report shows both numbers.

    Args:
        member: What is planned for the dataset: `samples_target` is 300. If a training run has
            changed its weights, the trainer skips the first ones of these (`begin`).
        n_samples: How many samples the trainer reads. This is the result if no number was planned,
            because a dataset without a weight is read to its end.
    """
    if member.samples_target is None:
        return n_samples
    n_skipped = member.begin  # usually 0
    return max(member.samples_target - n_skipped, 0)


def _samples_built(member: MemberPlan, n_samples: int, config: NanosetConfig) -> int:
    """Return how many samples of a dataset are built: slightly more than training reads."""
    if config.rules.shuffles_blend:
        # The trainer repeats one shuffled epoch of the blend, and so may take more than were built.
        return max(member.samples_given, n_samples)
    return member.samples_given - member.begin


def _planned_samples(plan: SplitPlan, config: NanosetConfig) -> list[int]:
    """Return how many samples training reads of each dataset.

    For example, 1,000 samples of datasets with the weights 0.75 and 0.25 are about 750 and 250.

    Args:
        plan: What is planned for a split of the data, such as train.
        config: Configuration with which it was planned.
    """
    dataset_sizes = [member.samples_given for member in plan.members]
    blend = plan.blend
    if blend is None:  # there is one dataset: it gives what is requested, if it has so much
        n_requested = config.samples(plan.split)
        if n_requested is None:
            return dataset_sizes
        return [min(n_requested, dataset_sizes[0])]
    if blend.exhaustive:  # all samples of all datasets are read once
        return dataset_sizes
    if blend.size <= _EXACT_SAMPLES:  # a million: exact numbers do not take long
        return list(samples_taken(blend.weights, 0, blend.size))
    return _samples_by_weight(blend)


def _samples_by_weight(blend: BlendPlan) -> list[int]:
    """Divide a number of training samples among datasets, in proportion to weights.

    Each dataset gets a whole number. So the numbers are rounded down first. The samples that remain
    go to the datasets that lost most by this. For example, 10 samples:

        weight          0.55    0.27    0.18
        exact           5.5     2.7     1.8
        rounded down    5       2       1         2 samples remain
        lost            0.5     0.7     0.8
        result          5       3       2

    Args:
        blend: The weights, and the number of samples.
    """
    weights = np.array(blend.weights, np.float64)  # (n_datasets,)
    exact_counts = weights / weights.sum() * blend.size  # (n_datasets,)
    counts = np.floor(exact_counts).astype(np.int64)
    n_remaining = blend.size - int(counts.sum())
    largest_loss_first = np.argsort(counts - exact_counts, kind="stable")  # [2, 1, 0]
    counts[largest_loss_first[:n_remaining]] += 1
    return [int(count) for count in counts]


def _tokens_unseen(
    member: MemberPlan, n_samples: int, config: NanosetConfig, samples_in_mixture: int | None
) -> int | None:
    """Return how many tokens of a dataset training never reads; None if that depends on chance.

    Some trainers mix samples of all datasets in random order, and read this mixture again and
    again. So only the samples in the mixture can be read. For a dataset of 100 samples of 10
    tokens:

        in the mixture    read    result
        80                60      400: 40 samples are not read
        80                500     200: the same 80 samples are repeated, and 20 are not read
        200, each twice   200     0
        200, each twice   60      None: some of these 60 samples may be the same

    Args:
        member: What is planned for the dataset. `samples_given` is its number of samples, 100.
        n_samples: How many of its samples are read: the second column.
        config: What is trained.
        samples_in_mixture: The first column; None for trainers that repeat no mixture.
    """
    if samples_in_mixture is None:
        return _tokens_not_read(member, n_samples, config)

    has_duplicates = samples_in_mixture > member.samples_given  # 200 > 100
    is_read_to_end = n_samples >= samples_in_mixture
    if has_duplicates and not is_read_to_end:
        return None
    # What is read after the end of the mixture are repetitions: of 500 samples, the first 80 count.
    return _tokens_not_read(member, min(n_samples, samples_in_mixture), config)


def _tokens_not_read(member: MemberPlan, n_samples: int, config: NanosetConfig) -> int | None:
    """Return how many tokens of a dataset training has not read in the end; None if unknown.

    If several epochs are shuffled together, the same token may come twice before others come once.
    For a dataset of 100 samples of 10 tokens:

        epochs    samples in all    samples read    result
        1         100               60              400, whichever samples these are
        2         200               60              None: it depends on chance
        2         200               200             0

    Args:
        member: What is planned for the dataset: how many epochs are shuffled (`epochs`).
        n_samples: How many samples are read. Those that a training run had read before it changed
            its weights are added (`taken_before`).
        config: What is trained.
    """
    n_read = member.taken_before + n_samples
    if n_read == 0:
        return member.tokens
    if member.epochs <= 1:
        tokens_read = _tokens_of_first_epoch(n_read, member.tokens, config)
        return max(0, member.tokens - tokens_read)
    is_all_read = n_read >= _samples_shuffled_together(member, config)  # 200
    return 0 if is_all_read else None


def _samples_shuffled_together(member: MemberPlan, config: NanosetConfig) -> int:
    """Return how many samples of a dataset are shuffled together.

    Usually, these are all samples. But the last epoch may be shuffled on its own, after the others.
    For example, a dataset of 100 samples is read three times. Then it is 200, the samples of the
    first two epochs.

    Args:
        member: What is planned for the dataset: the epochs, and whether the last one is separate.
        config: What is trained: the length of samples.
    """
    if not member.separate_last_epoch:
        return member.samples_built
    n_epochs = member.epochs - 1  # 2
    return config.samples_in(n_epochs * member.tokens)


def _tokens_of_first_epoch(n_samples: int, tokens: int, config: NanosetConfig) -> int:
    """Return how many different tokens of a dataset are in some samples of it.

    For example, a dataset has 1,001 tokens and 100 samples of 10 tokens:

        samples    different tokens
        60         600
        100        1,001, since the last sample also has the very last token
        150        1,001, since samples are repeated

    Args:
        n_samples: How many samples are read.
        tokens: Tokens of the dataset.
        config: What is trained: the distance and the overlap of samples (10 and 1).
    """
    samples_of_epoch = config.samples_in(tokens)  # 100
    n_different = min(n_samples, samples_of_epoch)
    tokens_read = n_different * config.step
    if n_different == samples_of_epoch:
        tokens_read += config.overlap
    return tokens_read
