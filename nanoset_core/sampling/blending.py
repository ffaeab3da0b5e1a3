"""Blend datasets: which dataset each sample of a blend is from, and its number within that dataset.

The rule is Megatron-LM's. For sample i, with t = max(i, 1), the *error* of dataset d is weight[d] *
t - count[d], where count[d] is how many samples of d were taken before. The sample is taken from
the dataset with the largest error, or the first of them if several have it. For the weights 0.5,
0.3 and 0.2:

    sample  t   errors              dataset  its number there
    0       1   0.5   0.3   0.2     0        0
    1       1  -0.5   0.3   0.2     1        0
    2       2   0.0  -0.4   0.4     2        0
    3       3   0.5  -0.1  -0.4     0        1
    4       4   0.0   0.2  -0.2     1        1
    5       5   0.5  -0.5   0.0     0        2

So dataset_index is 0, 1, 2, 0, 1, 0, and dataset_sample_index is 0, 0, 0, 1, 1, 2. Products and
differences are rounded to 64-bit floats, which decides ties. `greedy.py` applies the rule to many
samples at a time, with the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError
from nanoset_core.sampling.greedy import SpeculationCost, greedy_segments

_MAX_DATASETS = 32766
"""Datasets of a blend: their numbers are int16."""
_CHUNK = 1 << 16
"""Entries that `OccurrenceCounter` sorts at once."""


def build_blending_indices(
    weights: Sequence[float] | NDArray[np.float64],
    size: int,
    *,
    work: SpeculationCost | None = None,
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return the dataset that each sample of a blend is from, and its number there.

    Source: Megatron-LM `helpers.cpp`, `build_blending_indices`.

    Args:
        weights: Weight of each dataset, shape (n_datasets,), 1 to 32766 of them.
        size: Samples of the blend.
        work: Counts the work that is done.

    Returns:
        (dataset_index int16, dataset_sample_index int64), each of shape (size,): dataset of each
        sample, and its number within the dataset.

    Raises:
        ConfigError: A weight is not finite, the size is negative, or there are too few or too many
            datasets.
    """
    values = np.ascontiguousarray(weights, dtype=np.float64)
    _check_dataset_count(len(values))
    if size < 0 or not np.isfinite(values).all():
        raise ConfigError(
            "a blend needs finite weights and a size of 0 or more",
            found=f"weights {values.tolist()}, size {size}",
        )
    blend = _blend_by_weights(values, size, work)
    return blend.dataset_index, blend.dataset_sample_index


def build_exhaustive_blending_indices(
    sizes: Sequence[int] | NDArray[np.int64],
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Mix datasets so that every sample of each is taken once, evenly spread.

    For example, datasets of 4 and 2 samples are mixed as 0, 1, 0, 0, 1, 0: each next sample is from
    the dataset that is furthest behind its share of all samples. Source: Megatron-LM
    `helpers.cpp`, `build_exhaustive_blending_indices`.

    Args:
        sizes: Samples of each dataset, shape (n_datasets,), 1 to 32766 of them.

    Returns:
        (dataset_index int16, dataset_sample_index int64), each of shape (sum of sizes,), as
        `build_blending_indices`.

    Raises:
        ConfigError: A size is below 1, or there are too few or too many datasets.
    """
    sample_counts = np.ascontiguousarray(sizes, dtype=np.int64)  # (n_datasets,)
    _check_dataset_count(len(sample_counts))
    if sample_counts.min() <= 0:
        raise ConfigError(
            "every dataset of a blend needs a sample", found=f"sizes {sample_counts.tolist()}"
        )
    size = int(sample_counts.sum())
    weights = sample_counts / float(size)
    blend = _blend_by_weights(weights, size, cost=None)

    # With these weights, each dataset normally gets exactly its size. Since they are rounded, a
    # dataset may get a sample too many, and another one too few, near the very end: correct that.
    if not np.array_equal(blend.counts, sample_counts):
        _retake_beyond_sizes(weights, sample_counts, blend)
    return blend.dataset_index, blend.dataset_sample_index


@lru_cache(maxsize=64)
def samples_taken(
    weights: tuple[float, ...], start: int, stop: int, *, exact: bool = True
) -> tuple[int, ...]:
    """Return how many samples of each dataset are in a range of a blend.

    For example, samples 0 to 10 of a blend with the weights 0.7 and 0.3 are 7 and 3.

    Args:
        weights: Weight of each dataset.
        start: First sample of the range.
        stop: End of the range, exclusive.
        exact: False estimates the counts by weight, which takes no time and is wrong by a sample or
            two each. True computes the blend up to `stop`.

    Returns:
        One number for each dataset.
    """
    values = np.ascontiguousarray(weights, dtype=np.float64)
    if exact:
        counts = _count_range(values, start, stop)
    else:
        counts = _estimate_range(values, start, stop)
    return tuple(counts.tolist())


def _estimate_range(weights: NDArray[np.float64], start: int, stop: int) -> NDArray[np.int64]:
    """Estimate how many samples of each dataset are in a range of a blend, shape (n_datasets,)."""
    shares = weights / weights.sum()
    taken_before_stop = np.floor(shares * stop + 0.5)  # (n_datasets,) rounded
    taken_before_start = np.floor(shares * start + 0.5)
    estimates: NDArray[np.int64] = (taken_before_stop - taken_before_start).astype(np.int64)
    return estimates


def _count_range(weights: NDArray[np.float64], start: int, stop: int) -> NDArray[np.int64]:
    """Count how many samples of each dataset are in a range of a blend, shape (n_datasets,).

    A blend can only be computed from its first sample on, so this takes as long as `stop` is large.
    """
    counts = np.zeros(len(weights), np.int64)
    for first_sample, datasets in greedy_segments(weights, stop):
        # Leave out the samples before the range: some, all or none of the segment.
        n_before_range = max(start - first_sample, 0)
        counts += np.bincount(datasets[n_before_range:], minlength=len(weights))
    return counts


class OccurrenceCounter:
    """Counts, for each entry of a sequence, how often its value occurred before.

    For example, the sequence 2, 0, 2, 2 gives 0, 0, 1, 2. A long sequence is passed in parts.

    Args:
        n_values: Number of different values; they are 0 to n_values - 1.
    """

    def __init__(self, n_values: int) -> None:
        self.counts = np.zeros(n_values, np.int64)
        """How often each value occurred so far."""

    def count_earlier(self, part: NDArray[np.integer], out: NDArray[np.int64]) -> None:
        """Write, for each entry of a sequence, how often its value occurred before.

        For example, the sequence 2, 0, 2, 2 gives 0, 0, 1, 2. A long sequence is passed in parts:
        what earlier calls passed counts, too.

        Args:
            part: The next part of the sequence, shape (n_entries,).
            out: Filled with the numbers, shape (n_entries,).
        """
        for start in range(0, len(part), _CHUNK):
            chunk = part[start : start + _CHUNK]
            counts = np.bincount(chunk, minlength=len(self.counts))  # (n_values,) 1 0 3
            # The positions of the value 0, then those of 1, and so on: 1, and 0 2 3. The entries
            # there get the numbers 0, and 0 1 2. For 8 and 16 bits, this sort is a radix sort.
            order = np.argsort(chunk, kind="stable")
            out[start : start + _CHUNK][order] = self._numbers_by_value(counts)
            self.counts += counts

    def _numbers_by_value(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number the next entries of each value, from the number of its earlier entries on.

        For example, value 0 occurred 5 times before, and value 1 never. The next entries are two of
        value 0 and three of value 1: their numbers are 5, 6, and 0, 1, 2.

        Args:
            counts: Next entries of each value, such as [2, 3]; shape (n_values,).

        Returns:
            The numbers, those of the smallest value first; shape (sum of counts,).
        """
        # The numbers of a value increase like positions in the result. So they are the positions
        # plus an offset, which is the same for all entries of the value.
        first_positions = np.cumsum(counts) - counts  # [0, 2]
        offsets = self.counts - first_positions  # [5, -2]
        numbers = np.repeat(offsets, counts)  # [5, 5, -2, -2, -2]
        numbers += np.arange(len(numbers))  # [5, 6, 0, 1, 2]
        return numbers


class _Blend(NamedTuple):
    """The samples of a blend."""

    dataset_index: NDArray[np.int16]
    """Dataset of each sample, shape (size,)."""
    dataset_sample_index: NDArray[np.int64]
    """Its number within the dataset, shape (size,)."""
    counts: NDArray[np.int64]
    """Samples taken of each dataset, shape (n_datasets,)."""


def _blend_by_weights(
    weights: NDArray[np.float64], size: int, cost: SpeculationCost | None
) -> _Blend:
    """Compute all samples of a blend.

    Each next sample is from the dataset that is furthest behind its weight.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        size: Number of samples of the blend.
        cost: Counts the work, for tests and benchmarks; None if nobody needs it.
    """
    dataset_index = np.empty(size, np.int16)
    dataset_sample_index = np.empty(size, np.int64)
    counter = OccurrenceCounter(len(weights))
    for start, datasets in greedy_segments(weights, size, cost):
        stop = start + len(datasets)
        dataset_index[start:stop] = datasets
        # A sample's number in its dataset is how many samples were taken of the dataset before. The
        # counter writes these numbers into the slice.
        counter.count_earlier(datasets, out=dataset_sample_index[start:stop])
    return _Blend(dataset_index, dataset_sample_index, counter.counts)


def _retake_beyond_sizes(
    weights: NDArray[np.float64], sizes: NDArray[np.int64], blend: _Blend
) -> None:
    """Correct the end of a blend that takes more samples of a dataset than it has.

    For example, a dataset of 500 samples has the samples 0 to 499, but the blend takes its sample
    500. From there on, all samples are taken again, only from datasets that have samples left.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        sizes: Samples of each dataset, shape (n_datasets,).
        blend: The blend, whose arrays are corrected in place. At least one of its samples does not
            exist.
    """
    is_beyond_size = blend.dataset_sample_index >= sizes[blend.dataset_index]  # (n_samples,)
    first_wrong = int(np.argmax(is_beyond_size))
    # (n_datasets,) samples taken of each dataset before this one
    counts = np.bincount(blend.dataset_index[:first_wrong], minlength=len(sizes))
    for sample in range(first_wrong, len(blend.dataset_index)):
        dataset = _furthest_behind(weights, sizes, counts, sample)
        blend.dataset_index[sample] = dataset
        blend.dataset_sample_index[sample] = counts[dataset]
        counts[dataset] += 1


def _furthest_behind(
    weights: NDArray[np.float64], sizes: NDArray[np.int64], counts: NDArray[np.int64], sample: int
) -> int:
    """Return the next sample's dataset: the furthest behind its weight that has samples left.

    For example, 0.5, 0.3 and 0.2 of 10 samples are 5, 3 and 2. If 5, 2 and 2 were taken, dataset 1
    is behind.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        sizes: Samples of each dataset, shape (n_datasets,).
        counts: Samples taken of each dataset before this one, shape (n_datasets,).
        sample: Number of the sample. The trainer's rule starts with 1, so sample 0 counts as 1.
    """
    errors = weights * float(max(sample, 1)) - counts  # (n_datasets,) how far each is behind
    errors[counts == sizes] = -np.inf  # no samples are left
    return int(np.argmax(errors))


def _check_dataset_count(count: int) -> None:
    """Check that a blend has at least one dataset, and that all their numbers fit in int16.

    Raises:
        ConfigError: There are too few or too many datasets.
    """
    if not 0 < count <= _MAX_DATASETS:
        raise ConfigError(
            "a blend has too few or too many datasets",
            found=count,
            expected=f"1 to {_MAX_DATASETS}",
        )
