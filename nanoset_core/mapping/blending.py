"""Blend datasets: which dataset, and which of its samples, comes next; Megatron-LM's greedy rule, vectorised.

The greedy takes, for sample i with t = max(i, 1), the first dataset d that has the largest fl(fl(w_d * t) - c_d), where
c_d is how many of d's samples it took before. There is no order to sort by (priorities are lines of different slopes),
so the kernel speculates: it cuts the samples into blocks, guesses the counts at each block's start, advances all blocks
together, one numpy operation for all of them at a time and with the peer's IEEE operations, and then compares every
block's end with the next block's assumed start. Blocks with a wrong start run again from the right one until they meet
their old course. The first block starts from the truth, so by induction the result is the sequential one, ties and
rounding included; the quality of the guess costs time only, and a budget ends in the plain loop.

numpy never contracts `w * t - c` into one rounding; neither does the x86-64 build of the peer. Builds of it for
processors with fused multiply-add by default (aarch64) can order a blend differently.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError
from nanoset_core.mapping.speculation import Work, greedy_segments

MAX_DATASETS = 32767
_CHUNK = 1 << 16


def build_blending_indices(
    weights: Sequence[float] | NDArray[np.float64], size: int, *, work: Work | None = None
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return the dataset that each sample of a blend is from, and its number there.

    Source: Megatron-LM `helpers.cpp`, `build_blending_indices`.

    Args:
        weights: share of each dataset, shape (datasets,), 1 to 32766 of them.
        size: samples of the blend.
        work: counts the cost.

    Returns:
        (dataset_index int16, dataset_sample_index int64), each of shape (size,): dataset of each sample, and its
        number within the dataset.

    Raises:
        ConfigError: a weight is not finite, the size is negative, or there are too few or too many datasets.
    """
    values = np.ascontiguousarray(weights, dtype=np.float64)
    _check_datasets(len(values))
    if size < 0 or not np.isfinite(values).all():
        raise ConfigError(
            "a blend needs finite weights and a size of 0 or more", found=f"weights {values.tolist()}, size {size}"
        )
    dataset_index, numbers, _ = _blend(values, size, work)
    return dataset_index, numbers


def build_exhaustive_blending_indices(
    sizes: Sequence[int] | NDArray[np.int64],
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Blend every sample of every dataset once, evenly spread.

    The greedy with weights size / sum, over the datasets that have samples left. Source: Megatron-LM `helpers.cpp`,
    `build_exhaustive_blending_indices`.

    Args:
        sizes: samples of each dataset, shape (datasets,), 1 to 32766 of them.

    Returns:
        (dataset_index int16, dataset_sample_index int64), each of shape (sum of sizes,), as `build_blending_indices`.

    Raises:
        ConfigError: a size is below 1, or there are too few or too many datasets.
    """
    wanted = np.ascontiguousarray(sizes, dtype=np.int64)
    _check_datasets(len(wanted))
    if wanted.min() <= 0:
        raise ConfigError("every dataset of a blend needs a sample", found=f"sizes {wanted.tolist()}")
    total = int(wanted.sum())
    weights = wanted / float(total)
    dataset_index, numbers, taken = _blend(weights, total, None)
    # A dataset that is used up is never the largest, but for rounding near the very end.
    if not np.array_equal(taken, wanted):
        _finish_unspent(weights, wanted, dataset_index, numbers)
    return dataset_index, numbers


class OccurrenceCounter:
    """Numbers the entries of a sequence, given in parts, by how often their value came before."""

    def __init__(self, values: int) -> None:
        """Start with entries from 0 to values - 1."""
        self.counts = np.zeros(values, np.int64)
        """How often each value came so far."""

    def number(self, part: NDArray[np.integer], out: NDArray[np.int64]) -> None:
        """Fill `out`, of the shape of `part`, for the next part of the sequence."""
        for begin in range(0, len(part), _CHUNK):
            chunk = part[begin : begin + _CHUNK]
            order = np.argsort(chunk, kind="stable")  # a radix sort for types of 8 and 16 bits
            counts = np.bincount(chunk, minlength=len(self.counts))
            # in sorted order: the value's count so far, less where its run begins, plus the position
            ranked = np.repeat(self.counts - (np.cumsum(counts) - counts), counts)
            ranked += np.arange(len(chunk))
            out[begin : begin + _CHUNK][order] = ranked
            self.counts += counts


def _blend(
    weights: NDArray[np.float64], size: int, work: Work | None
) -> tuple[NDArray[np.int16], NDArray[np.int64], NDArray[np.int64]]:
    """Return (dataset_index, dataset_sample_index, samples taken of each dataset)."""
    dataset_index, numbers = np.empty(size, np.int16), np.empty(size, np.int64)
    counter = OccurrenceCounter(len(weights))
    for begin, picks in greedy_segments(weights, size, work):
        dataset_index[begin : begin + len(picks)] = picks
        counter.number(picks, numbers[begin : begin + len(picks)])
    return dataset_index, numbers, counter.counts


def _finish_unspent(
    weights: NDArray[np.float64], sizes: NDArray[np.int64], dataset_index: NDArray[np.int16], numbers: NDArray[np.int64]
) -> None:
    """Take again, among unspent datasets only, all from the first sample on that is beyond its dataset's size."""
    begin = int(np.argmax(numbers >= sizes[dataset_index]))
    taken = np.bincount(dataset_index[:begin], minlength=len(sizes))
    counts = np.where(taken == sizes, np.inf, taken.astype(np.float64))
    for at in range(begin, len(dataset_index)):
        pick = int(np.argmax(weights * float(max(at, 1)) - counts))
        dataset_index[at], numbers[at] = pick, taken[pick]
        taken[pick] += 1
        counts[pick] = np.inf if taken[pick] == sizes[pick] else taken[pick]


def _check_datasets(count: int) -> None:
    if not 0 < count < MAX_DATASETS:
        raise ConfigError("a blend has too few or too many datasets", found=count, expected=f"1 to {MAX_DATASETS - 1}")
