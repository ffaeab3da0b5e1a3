"""Which dataset, and which of its samples, comes next in a blend: Megatron-LM's greedy, exactly and vectorised.

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
from nanoset_core.mapping.lockstep import greedy_picks

MAX_DATASETS = 32767
_CHUNK = 1 << 16


def build_blending_indices(
    weights: Sequence[float] | NDArray[np.float64], size: int
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """(dataset_index int16[size], dataset_sample_index int64[size]): dataset of each sample, and number within it.

    weights: share of each dataset, at most 32766 of them. Source: Megatron-LM `helpers.cpp`, `build_blending_indices`.
    """
    values = np.ascontiguousarray(weights, dtype=np.float64)
    check_datasets(len(values))
    if size < 0 or not np.isfinite(values).all():
        raise ConfigError("a blend needs finite weights and a size", found=f"weights {values.tolist()}, size {size}")
    picks = greedy_picks(values, size)
    return picks.astype(np.int16), occurrence_numbers(picks, len(values))


def occurrence_numbers(picks: NDArray, datasets: int) -> NDArray[np.int64]:
    """How often the value of each entry came before, int64[len(picks)]; values are 0 to datasets - 1."""
    numbers = np.empty(len(picks), np.int64)
    before = np.zeros(datasets, np.int64)
    for begin in range(0, len(picks), _CHUNK):
        part = picks[begin : begin + _CHUNK]
        order = np.argsort(part, kind="stable")  # a radix sort for these types
        counts = np.bincount(part, minlength=datasets)
        # [len(part)], in sorted order: position within the sorted chunk, less where the value's run begins
        ranked = np.repeat(before - (np.cumsum(counts) - counts), counts)
        ranked += np.arange(len(part))
        numbers[begin : begin + _CHUNK][order] = ranked
        before += counts
    return numbers


def check_datasets(count: int) -> None:
    """ConfigError unless a blend may have `count` datasets."""
    if not 0 < count < MAX_DATASETS:
        raise ConfigError("a blend has too few or too many datasets", found=count, expected=f"1 to {MAX_DATASETS - 1}")


def build_exhaustive_blending_indices(
    sizes: Sequence[int] | NDArray[np.int64],
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """(dataset_index int16[sum], dataset_sample_index int64[sum]): every sample of every dataset once, evenly spread.

    The greedy with weights size / total, over the datasets that have samples left. Source: Megatron-LM `helpers.cpp`,
    `build_exhaustive_blending_indices`.
    """
    counts = np.ascontiguousarray(sizes, dtype=np.int64)
    check_datasets(len(counts))
    if counts.min() <= 0:
        raise ConfigError("every dataset of a blend needs a sample", found=f"sizes {counts.tolist()}")
    total = int(counts.sum())
    weights = counts / float(total)
    picks = greedy_picks(weights, total)
    # A dataset that is used up is never the largest, but for rounding near the very end.
    if not np.array_equal(np.bincount(picks, minlength=len(counts)), counts):
        _finish_unspent(weights, counts, picks)
    return picks.astype(np.int16), occurrence_numbers(picks, len(counts))


def _finish_unspent(weights: NDArray[np.float64], sizes: NDArray[np.int64], picks: NDArray) -> None:
    """Take again, among unspent datasets only, what follows the first sample taken beyond a dataset's size."""
    begin = int(np.argmax(occurrence_numbers(picks, len(sizes)) >= sizes[picks]))
    taken = np.bincount(picks[:begin], minlength=len(sizes))
    counts = np.where(taken == sizes, np.inf, taken.astype(np.float64))
    for at in range(begin, len(picks)):
        pick = int(np.argmax(weights * float(max(at, 1)) - counts))
        picks[at] = pick
        taken[pick] += 1
        counts[pick] = np.inf if taken[pick] == sizes[pick] else taken[pick]
