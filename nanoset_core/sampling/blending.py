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

import sys
from collections.abc import Sequence
from functools import lru_cache
from numbers import Number
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nanoset_core.errors import ConfigError
from nanoset_core.records.arguments import whole_number
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
    """Mix datasets in proportion to weights that add up to 1: decide what each training sample is.

    Each next sample is from the dataset that is furthest behind its weight. For example, the first
    six samples with the weights 0.5, 0.3 and 0.2:

        dataset                        0  1  2  0  1  0
        number within the dataset      0  0  0  1  1  2

    The weights are used as they are, as in Megatron-LM, whose callers divide them by their sum. If
    they do not add up to 1, the samples are not in proportion to them: with the weights 3 and 1,
    all samples are from dataset 0.

    Source: Megatron-LM `helpers.cpp`, `build_blending_indices`.

    Args:
        weights: Weight of each dataset, 0 or more, shape (n_datasets,), 1 to 32766 of them. They
            should add up to 1.
        size: Number of samples.
        work: For tests and benchmarks: counts how much is computed.

    Returns:
        Both rows of the example, int16 and int64, shape (size,).

    Raises:
        ConfigError: The weights are not a flat list of finite numbers of which none is negative and
            one is above 0, the size is no whole number or negative, or there are too few or too
            many datasets.
    """
    if not _are_numbers(weights):
        raise ConfigError(
            "the weights of a blend are no numbers",
            where="weights",
            found=repr(weights),
            expected="a list or an array of numbers",
        )
    weight_array = np.ascontiguousarray(weights, dtype=np.float64)
    _check_weights(weight_array)
    size = whole_number("size", size, 0, sys.maxsize)
    blend = _blend_by_weights(weight_array, size, work)
    return blend.dataset_index, blend.dataset_sample_index


def _are_numbers(weights: ArrayLike) -> bool:
    """Return whether weights are numbers, and not texts, which numpy would read as numbers.

    Args:
        weights: What the caller has given, such as [0.5, 0.5], or ["0.5", "0.5"].
    """
    array = np.asarray(weights)
    if array.dtype.kind == "O":  # Python objects, such as fractions.Fraction
        return all(isinstance(weight, Number) for weight in array.flat)
    return array.dtype.kind in "fiu"


def build_exhaustive_blending_indices(
    sizes: Sequence[int] | NDArray[np.int64],
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Mix datasets so that every sample of each is taken once, evenly spread.

    For example, datasets of 4 and 2 samples:

        dataset                        0  1  0  0  1  0
        number within the dataset      0  0  1  2  1  3

    Source: Megatron-LM `helpers.cpp`, `build_exhaustive_blending_indices`.

    Args:
        sizes: Samples of each dataset, shape (n_datasets,), 1 to 32766 of them.

    Returns:
        Both rows of the example, int16 and int64, shape (sum of sizes,).

    Raises:
        ConfigError: A size is below 1, or there are too few or too many datasets.
    """
    sample_counts = np.ascontiguousarray(sizes, dtype=np.int64)  # (n_datasets,)
    _check_dataset_count(len(sample_counts))
    _check_have_samples(sample_counts)
    size = int(sample_counts.sum())
    weights = sample_counts / float(size)  # such as 0.667 and 0.333
    blend = _blend_by_weights(weights, size)
    if not np.array_equal(blend.counts, sample_counts):
        # Weights are rounded, so a dataset has given one sample too many at the very end.
        _correct_end(blend, weights, sample_counts)
    return blend.dataset_index, blend.dataset_sample_index


@lru_cache(maxsize=64)
def samples_taken(
    weights: tuple[float, ...], start: int, stop: int, *, exact: bool = True
) -> tuple[int, ...]:
    """Return how many of some training samples are from each dataset.

    Datasets are mixed in proportion to weights. For example, of the samples 0 to 9, with the
    weights 0.7 and 0.3, 7 are from the first dataset and 3 from the second.

    Args:
        weights: Weight of each dataset.
        start: Number of the first sample.
        stop: Number after the last sample.
        exact: True computes which dataset each sample is from, beginning with sample 0. False
            computes the numbers from the weights, which takes no time, and is wrong by one or two.

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
    """Estimate how many of some training samples are from each dataset, in proportion to weights.

    For example, 0.7 and 0.3 of the samples 0 to 14 are 10.5 and 4.5, which are rounded to 11 and 5.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        start: Number of the first sample.
        stop: Number after the last sample.

    Returns:
        int64, shape (n_datasets,).
    """
    shares = weights / weights.sum()
    taken_before_stop = np.floor(shares * stop + 0.5)  # (n_datasets,) rounded
    taken_before_start = np.floor(shares * start + 0.5)
    estimates: NDArray[np.int64] = (taken_before_stop - taken_before_start).astype(np.int64)
    return estimates


def _count_range(weights: NDArray[np.float64], start: int, stop: int) -> NDArray[np.int64]:
    """Count how many of some training samples are from each dataset.

    All samples from number 0 on have to be computed, since each choice of a dataset depends on the
    earlier ones.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        start: Number of the first sample that counts.
        stop: Number after the last sample.

    Returns:
        int64, shape (n_datasets,).
    """
    counts = np.zeros(len(weights), np.int64)
    # `datasets` has the dataset of each sample, from `first_sample` on.
    for first_sample, datasets in greedy_segments(weights, stop):
        n_before_start = max(start - first_sample, 0)  # all of them, or some, or none
        counts += np.bincount(datasets[n_before_start:], minlength=len(weights))
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

        This numbers the samples of each dataset, if the sequence says which dataset each is from:

            dataset                 2    0    2    2
            occurred before         0    0    1    2

        A long sequence is passed in parts. Values in earlier parts count, too.

        Args:
            part: The next part of the sequence, shape (n_entries,).
            out: Filled with the numbers, shape (n_entries,).
        """
        for start in range(0, len(part), _CHUNK):
            chunk = part[start : start + _CHUNK]
            out_chunk = out[start : start + _CHUNK]

            # Positions of the value 0, then those of 1, and so on. (numpy sorts integers of 8 and
            # 16 bits by radix, which is fast.)
            positions = np.argsort(chunk, kind="stable")  # [1, 0, 2, 3]
            counts = np.bincount(chunk, minlength=len(self.counts))  # (n_values,) [1, 0, 3]
            numbers = self._next_numbers(counts)  # at these positions: [0, 0, 1, 2]
            out_chunk[positions] = numbers
            self.counts += counts

    def _next_numbers(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number the next entries of each value, in continuation of its earlier ones.

        For example, value 0 occurred 5 times before, and value 1 never. If they occur 2 and 3 times
        now, their entries get the numbers 5, 6 and 0, 1, 2.

        Args:
            counts: How many entries of each value are next: [2, 3]; shape (n_values,).

        Returns:
            The numbers for all values, one after another: [5, 6, 0, 1, 2].
        """
        # Numbers grow by 1 from entry to entry, like positions in the result. So for each value,
        # number minus position is the same for all entries.
        first_positions = np.cumsum(counts) - counts  # [0, 2]
        differences = self.counts - first_positions  # [5 - 0, 0 - 2] = [5, -2]
        numbers = np.repeat(differences, counts)  # [5, 5, -2, -2, -2]
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
    weights: NDArray[np.float64], size: int, cost: SpeculationCost | None = None
) -> _Blend:
    """Decide which sample of which dataset each training sample is, in proportion to weights.

    The next sample is always from the dataset that has fewest samples so far, compared with its
    weight. Of each dataset, the samples are taken in their order. For the weights 0.6 and 0.4:

        training sample              0    1    2    3    4
        dataset                      0    1    0    1    0
        sample of this dataset       0    0    1    1    2

    The third row counts the earlier entries of the same dataset in the second row.

    Args:
        weights: Weight of each dataset, float64, shape (n_datasets,).
        size: Number of training samples: 5.
        cost: Counts how much is computed, for tests and benchmarks.
    """
    dataset_index = np.empty(size, np.int16)  # second row of the table
    dataset_sample_index = np.empty(size, np.int64)  # third row
    occurrences = OccurrenceCounter(len(weights))  # how often each dataset came so far

    # Fill in up to 16 million samples at a time.
    for start, datasets in greedy_segments(weights, size, cost):
        stop = start + len(datasets)
        dataset_index[start:stop] = datasets
        occurrences.count_earlier(datasets, out=dataset_sample_index[start:stop])
    return _Blend(dataset_index, dataset_sample_index, occurrences.counts)


def _correct_end(blend: _Blend, weights: NDArray[np.float64], sizes: NDArray[np.int64]) -> None:
    """Correct a mixture that takes samples that a dataset does not have, at its end.

    A mixture takes all samples of all datasets, in proportion to their numbers. Due to rounding, it
    may take too many of a dataset, when the others have samples left. For example, dataset 0 has 3
    samples, 0 to 2, and dataset 1 has 2 samples:

        dataset                      0  1  0  0  0
        number within the dataset    0  0  1  2  3        dataset 0 has no sample 3
        corrected dataset            0  1  0  0  1
        corrected number             0  0  1  2  1

    Args:
        blend: The mixture; both of its arrays are corrected in place.
        weights: Weight of each dataset, shape (n_datasets,).
        sizes: Samples of each dataset: [3, 2]; shape (n_datasets,).
    """
    is_missing = blend.dataset_sample_index >= sizes[blend.dataset_index]  # (n_samples,)
    first_missing = int(np.flatnonzero(is_missing)[0])  # 4
    counts = np.bincount(blend.dataset_index[:first_missing], minlength=len(sizes))  # [3, 1]
    for sample in range(first_missing, len(blend.dataset_index)):
        dataset = _furthest_behind(weights, sizes, counts, sample)  # 1
        blend.dataset_index[sample] = dataset
        blend.dataset_sample_index[sample] = counts[dataset]
        counts[dataset] += 1


def _furthest_behind(
    weights: NDArray[np.float64], sizes: NDArray[np.int64], counts: NDArray[np.int64], sample: int
) -> int:
    """Return the dataset that is furthest behind its weight, of those with samples left.

    For example, after 9 samples, with weights in proportion to the sizes:

        dataset                     0      1      2
        samples                     5      3      2
        9 * weight                  4.5    2.7    1.8
        taken                       5      2      2
        behind by                   -0.5   0.7    -0.2      so it is dataset 1

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        sizes: Samples of each dataset, shape (n_datasets,).
        counts: Samples taken of each dataset, shape (n_datasets,).
        sample: How many samples were taken of all datasets.
    """
    time = float(max(sample, 1))  # the trainer counts sample 0 as 1
    behind_by = weights * time - counts  # (n_datasets,)
    behind_by[counts == sizes] = -np.inf  # no samples are left
    return int(np.argmax(behind_by))


def _check_weights(weights: NDArray[np.float64]) -> None:
    """Check that a blend can have some weights. They need not add up to 1.

    Args:
        weights: Weight of each dataset, as the caller has given them.

    Raises:
        ConfigError: They are not a flat list of finite numbers, one is negative, all are 0, or
            there are too few or too many.
    """
    is_flat = weights.ndim == 1
    if is_flat:
        _check_dataset_count(len(weights))
    if not is_flat or not np.isfinite(weights).all() or weights.min() < 0 or weights.max() == 0:
        raise ConfigError(
            "a blend cannot have these weights",
            found=weights.tolist(),
            expected="a flat list of finite numbers, none below 0, one or more above 0",
            remedy="give each dataset's share of the samples, such as [0.75, 0.25]",
        )


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


def _check_have_samples(sizes: NDArray[np.int64]) -> None:
    """Check that each dataset of a blend has at least one sample.

    Args:
        sizes: Samples of each dataset, shape (n_datasets,).

    Raises:
        ConfigError: One has none.
    """
    if sizes.min() <= 0:
        raise ConfigError(
            "every dataset of a blend needs a sample", found=f"sizes {sizes.tolist()}"
        )
