"""Decide from which dataset each training sample of a blend is taken.

Each next sample is from the dataset that is furthest behind its weight. `take_one_by_one` is this
rule as a simple loop, and `blending.py` shows it with numbers. The loop is slow for billions of
samples, and each pick depends on all picks before it, by the *counts*: how many samples of each
dataset were taken so far. This module computes the same result faster, by *speculation*:

1. Divide the samples into blocks, and guess the counts at the start of each block.
2. Compute all blocks side by side: first the first sample of every block with one numpy operation,
   then the second sample of every block, and so on.
3. Compare: does each block end with the counts that were guessed for the next one? If not, compute
   the next one again.

For example, 12 samples of the weights 0.6, 0.3 and 0.1, in blocks of 4:

    block                  0               1               2
    guessed counts         0, 0, 0         2, 1, 1         4, 3, 1
    picked datasets        0, 1, 2, 0      0, 1, 0, 0      0, 0, 0, 1
    counts at the end      2, 1, 1  =====  5, 2, 1  --X--  7, 4, 1

Block 1 started with the right counts, and block 2 did not. So block 2 is computed again, from 5, 2,
1, and first picks 1 in place of 0:

    first time, counts after each pick       0: 5, 3, 1    0: 6, 3, 1    ...
    second time                              1: 5, 3, 1    as the first time

Now the counts are the same as the first time, so the rest of the block stays as it is. Most blocks
forget a wrong guess so soon.

Block 0 starts with true counts. So the result is exactly that of the loop, ties and rounding
included. The guesses decide only how long it takes. If repairs take too long, the loop computes the
rest.

A long blend is divided into *segments*, which are computed one after another, to limit the memory.

Each step performs the same floating-point operations as the trainer, in the same order: the *error*
of a dataset is weight * t, rounded to 64 bits, minus its count, rounded again. The first dataset
with the largest error is picked. numpy never contracts `weight * t - count` into one rounding;
neither does the x86-64 build of Megatron-LM. Its builds for processors that fuse multiplication and
addition by default (aarch64) can order a blend differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.rounding import ceil_division

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Picks = NDArray[np.uint8] | NDArray[np.uint16]
"""Dataset numbers: uint8 up to 255 datasets, else uint16."""

_MANY_DATASETS = 96
"""Datasets from which on `RowLanes` are faster than `ColumnLanes`."""
_FEW_LANES = 512
"""Lanes up to which `RowLanes` are faster than `ColumnLanes`."""
_CHUNK_NUMBERS = 1 << 15
"""Numbers in the temporary arrays of lanes: few enough to stay in the processor's cache."""
_SEGMENT_SAMPLES = 1 << 24
"""Largest number of samples in a segment."""
_FIRST_RANGE_SAMPLES = 32
"""Samples after which the repair of a block compares it for the first time.

The distance to the next comparison is doubled each time, since most blocks are done soon.
"""
_MAX_RANGE_SAMPLES = 1024
"""Largest number of samples between two comparisons."""


@dataclass(slots=True)
class SpeculationCost:
    """Counts how many samples are computed from guesses, and again, for tests and benchmarks."""

    segments: int = 0
    """Segments that were computed in blocks."""
    passes: int = 0
    """How many times wrong blocks were repaired."""
    redone: int = 0
    """Samples that were picked again in repairs."""
    sequential: int = 0
    """Samples that were picked one by one: short segments, and the rest of a segment if its budget
    was used up.
    """


def greedy_segments(
    weights: FloatArray, size: int, cost: SpeculationCost | None = None
) -> Iterator[tuple[int, Picks]]:
    """Decide for each training sample from which dataset it is taken, so that weights are kept.

    Each next sample is from the dataset that is furthest behind its weight. For example, the
    weights 0.6, 0.3 and 0.1 give the datasets 0, 1, 2, 0, 0 for the first five samples.

    Args:
        weights: Weight of each dataset, float64, shape (n_datasets,).
        size: Number of samples. There may be billions.
        cost: Counts how much is computed, for tests and benchmarks.

    Yields:
        The result for up to 16 million samples at a time (a segment): the number of its first
        sample, and the dataset of each sample, uint8 or uint16, shape (n_samples,). Such as (0, [0,
        1, 2, 0, 0]).
    """
    if cost is None:
        cost = SpeculationCost()  # nobody looks at it
    # (n_datasets,) how many samples of each dataset were taken before the segment
    counts = np.zeros(len(weights))
    for start, stop in _segment_ranges(size):
        if len(weights) == 1:
            picks: Picks = np.zeros(stop - start, np.uint8)  # all are from dataset 0
        else:
            segment = _pick_segment(weights, counts, start, stop - start, cost)
            picks = segment.picks
            counts = segment.counts
        yield start, picks


def _segment_ranges(size: int) -> Iterator[tuple[int, int]]:
    """Yield the first sample of each segment of a blend, and the one after its last.

    A segment has at most 16,777,216 samples, so that its arrays fit into memory. All segments are
    equally long: 20,000,000 samples are 0 to 10,000,000 and 10,000,000 to 20,000,000.
    """
    n_segments = max(ceil_division(size, _SEGMENT_SAMPLES), 1)
    segment_samples = max(ceil_division(size, n_segments), 1)
    for start in range(0, size, segment_samples):
        yield start, min(start + segment_samples, size)


class PickedSamples(NamedTuple):
    """From which datasets successive training samples are taken."""

    picks: Picks
    """Dataset of each sample, shape (n_samples,)."""
    counts: FloatArray
    """How many samples of each dataset were taken up to the last of them, shape (n_datasets,)."""

    def first(self, n_samples: int) -> PickedSamples:
        """Return only the first of these samples, and do not count the others."""
        excess = self.picks[n_samples:]
        excess_counts = np.bincount(excess, minlength=len(self.counts))  # (n_datasets,)
        return PickedSamples(self.picks[:n_samples], self.counts - excess_counts)


def _pick_segment(
    weights: FloatArray, counts: FloatArray, start: int, n_samples: int, cost: SpeculationCost
) -> PickedSamples:
    """Decide for successive training samples from which dataset each is taken.

    Each decision depends on all samples before. But numpy is fast only if it computes many at a
    time. So many samples are divided into ranges, the *blocks*. It is guessed how many samples of
    each dataset come before a block, so that all blocks can be computed at the same time. Blocks
    with a wrong guess are corrected, so the result is the same as that of one sample after another.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        counts: How many samples of each dataset were taken before, shape (n_datasets,).
        start: How many samples were taken before.
        n_samples: Number of samples. A few thousand are computed one after another.
        cost: Counts how much is computed, for tests and benchmarks.
    """
    shape = block_shape(long_run_shares(weights), n_samples)
    if shape.n_blocks == 1:
        cost.sequential += n_samples
        return take_one_by_one(weights, counts, start, n_samples)
    cost.segments += 1
    return pick_in_blocks(weights, counts, start, n_samples, shape, cost)


def _picks_dtype(n_datasets: int) -> np.dtype:
    """Return the smallest type that has room for the numbers of all datasets.

    Args:
        n_datasets: Number of datasets. A blend has at most 32766, so uint16 is always enough.
    """
    if n_datasets <= 255:
        return np.dtype(np.uint8)
    return np.dtype(np.uint16)


class BlockShape(NamedTuple):
    """How a segment is divided into blocks."""

    n_blocks: int
    """Number of blocks."""
    block_samples: int
    """Samples of a block. The last block may extend beyond the segment."""


def block_shape(shares: FloatArray, n_samples: int) -> BlockShape:
    """Return into how many blocks some training samples are divided, and how long these are.

    Blocks are computed at the same time, each from a guess. Many short blocks are fast, since numpy
    then computes more at a time. But they must be long enough for a wrong guess to lose its effect:
    otherwise, the next block is wrong, too, and both are computed again.

    For example, 16,777,216 samples of 3 datasets are divided into 2048 blocks of 8192 samples.

    Args:
        shares: Which share of the samples is from each dataset, shape (n_datasets,).
        n_samples: Number of samples.
    """
    # Found by measuring. It decides only how long it takes.
    min_block_samples = max(16 * len(shares), 256)
    block_samples = ceil_division(n_samples, _max_blocks(shares, n_samples))
    block_samples = max(block_samples, min_block_samples)
    return BlockShape(ceil_division(n_samples, block_samples), block_samples)


def _max_blocks(shares: FloatArray, n_samples: int) -> int:
    """Return the largest number of blocks into which some training samples are divided.

    It was found by measuring, and decides only how long it takes.

    Args:
        shares: Which share of the samples is from each dataset, shape (n_datasets,).
        n_samples: Number of samples.
    """
    n_datasets = len(shares)
    if n_datasets >= _MANY_DATASETS:  # 96
        return 256
    # Guesses are often wrong for rare datasets: those with less than a sample in each block.
    max_blocks = 2048
    n_rare = np.count_nonzero(shares * n_samples < max_blocks)
    if n_rare > max(n_datasets / 4, 2):
        return 512
    return max_blocks


def take_one_by_one(
    weights: FloatArray, counts: FloatArray, start: int, n_samples: int
) -> PickedSamples:
    """Decide for successive training samples from which dataset each is taken, one by one.

    A sample is from the dataset that is furthest behind its weight: the one with the largest error,
    weight * time - count. The time is the number of the sample, but at least 1. For two datasets:

        weights    time    weights * time    counts before    errors      picked
        0.6 0.4    1       0.6 0.4           0 0              0.6  0.4    0
        0.6 0.4    1       0.6 0.4           1 0             -0.4  0.4    1
        0.6 0.4    2       1.2 0.8           1 1              0.2 -0.2    0

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        counts: How many samples of each dataset were taken before, float64, shape (n_datasets,).
        start: How many samples were taken before, which is the number of the first sample.
        n_samples: Number of samples.
    """
    picks: Picks = np.empty(n_samples, _picks_dtype(len(weights)))
    counts = counts.copy()
    errors = np.empty(len(weights))  # overwritten for each sample, which is faster than a new array
    for position in range(n_samples):
        time = float(max(start + position, 1))
        # As in the trainers, the product is rounded before the subtraction, and of several equal
        # errors the first one is taken. Otherwise, another dataset might be picked.
        np.multiply(weights, time, out=errors)
        np.subtract(errors, counts, out=errors)
        dataset = errors.argmax()
        picks[position] = dataset
        counts[dataset] += 1.0
    return PickedSamples(picks, counts)


def pick_in_blocks(
    weights: FloatArray,
    counts: FloatArray,
    start: int,
    n_samples: int,
    shape: BlockShape,
    cost: SpeculationCost,
) -> PickedSamples:
    """Decide for many training samples from which dataset each is taken, in blocks side by side.

    The decision depends on how many samples of each dataset were taken before. A block is a range
    of samples, such as 4,096 of them, which starts from a guess of these counts. So all blocks can
    be computed at the same time. Those with a wrong guess are computed again.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        counts: How many samples of each dataset were taken before, shape (n_datasets,).
        start: How many samples were taken before.
        n_samples: Number of samples.
        shape: Number of blocks, and their length. The last one may extend beyond the samples.
        cost: Counts how much is computed, for tests and benchmarks.
    """
    blocks = _SpeculatedBlocks(weights, counts, start, shape, cost)  # from guesses
    n_right = blocks.repair_all()  # nearly always all blocks
    picked = blocks.first_blocks(n_right)

    n_missing = n_samples - len(picked.picks)
    if n_missing <= 0:
        return picked.first(n_samples)  # the last block may extend beyond them

    # Some blocks are wrong, as their repair took too long. Compute their samples one by one.
    cost.sequential += n_missing
    rest = take_one_by_one(weights, picked.counts, start + len(picked.picks), n_missing)
    return PickedSamples(np.concatenate([picked.picks, rest.picks]), rest.counts)


class _WrongBlocks(NamedTuple):
    """Blocks of samples that are computed a second time, and what was taken up to a position."""

    numbers: IntArray
    """Numbers of the blocks, ascending, shape (n_wrong,)."""
    first_counts: FloatArray
    """How many samples of each dataset were taken the first time, shape (n_wrong, n_datasets)."""
    second_counts: FloatArray
    """The same for the second time."""

    def still_different(self) -> _WrongBlocks:
        """Return those of these blocks whose counts are not the same both times."""
        is_different = (self.first_counts != self.second_counts).any(axis=1)  # (n_wrong,)
        return _WrongBlocks(
            self.numbers[is_different],
            self.first_counts[is_different],
            self.second_counts[is_different],
        )


class _SpeculatedBlocks:
    """Blocks of training samples that are computed side by side, each from guessed counts.

    The *counts* say how many samples of each dataset were taken so far. For three blocks of 4
    samples, and two datasets:

        block            0             1             2
        first_samples    0             4             8
        start_counts     0, 0          2, 2          5, 3          guessed, except for block 0
        picks            0, 1, 0, 1    0, 0, 1, 0    1, 0, 0, 1    dataset of each sample
        end_counts       2, 2          5, 3          7, 5

    All guesses are right here, since each block ends with what was guessed for the next one.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        counts: True counts before the first block, shape (n_datasets,).
        start: Number of the first sample.
        shape: Number of blocks, and samples of a block.
        cost: Counts how many samples are computed again.
    """

    def __init__(
        self,
        weights: FloatArray,
        counts: FloatArray,
        start: int,
        shape: BlockShape,
        cost: SpeculationCost,
    ) -> None:
        """Compute all blocks from guessed counts."""
        self.weights = weights
        self.cost = cost
        block_numbers = np.arange(shape.n_blocks, dtype=np.int64)
        self.first_samples = start + block_numbers * shape.block_samples  # (n_blocks,)
        self.start_counts = guess_counts(weights, counts, self.first_samples)
        self.start_counts[0] = counts  # known; (n_blocks, n_datasets)

        blocks = pick_side_by_side(
            weights, self.start_counts, self.first_samples, shape.block_samples
        )
        self.picks: NDArray[Any] = blocks.picks  # (block_samples, n_blocks)
        self.end_counts = blocks.counts  # (n_blocks, n_datasets)

        self.repair_microseconds = 0.0
        """About how long repairs took, computed from the number of samples."""

    def repair_all(self) -> int:
        """Compute blocks again until none starts from a wrong guess, or until it takes too long.

        A block is a range of samples. It starts from a guess of how many samples of each dataset
        were taken before it. If it is computed again and ends with other numbers than before, the
        guess of the next block is wrong, too. So several rounds may be needed.

        Returns:
            How many blocks are right, up to the first wrong one.
        """
        max_microseconds = self._microseconds_one_by_one()
        wrong_blocks = self.find_wrong()
        while len(wrong_blocks) > 0 and self.repair_microseconds <= max_microseconds:
            self.repair(wrong_blocks)
            wrong_blocks = self.find_wrong()
        if len(wrong_blocks) > 0:
            return int(wrong_blocks[0])  # blocks are in order, so all before it are right
        return len(self.first_samples)

    def _microseconds_one_by_one(self) -> float:
        """Return how long it takes to compute all samples one by one, instead of in blocks.

        For each sample, it is 1.5 microseconds, and 0.001 for each dataset, as measured on one
        core.
        """
        n_samples = len(self.first_samples) * len(self.picks)
        return n_samples * (1.5 + 0.001 * len(self.weights))

    def find_wrong(self) -> IntArray:
        """Return which blocks of samples started from a wrong guess.

        Blocks are ranges of samples that were computed at the same time. Each started from a guess
        of how many samples of each dataset were taken before it. The guess was wrong if the block
        before it ended with other counts. For two datasets:

            block           0        1        2
            start_counts    0, 0     3, 1     5, 3      guesses
            end_counts      2, 2     5, 3     7, 5
            wrong?                   yes                since 3, 1 is not 2, 2

        Returns:
            Numbers of the wrong blocks, ascending: [1]; shape (n_wrong,). Block 0 is never wrong.
        """
        is_different = self.start_counts[1:] != self.end_counts[:-1]  # (n_blocks - 1, n_datasets)
        is_wrong = is_different.any(axis=1)  # (n_blocks - 1,) [True, False] for blocks 1 and 2
        return np.flatnonzero(is_wrong) + 1

    def repair(self, wrong_blocks: IntArray) -> None:
        """Compute blocks of samples a second time, since they started from wrong counts.

        The *counts* say how many samples of each dataset were taken so far. They decide from which
        datasets the next samples are. So as soon as a block has the same counts as the first time,
        the rest of it stays as it was. For example, block 1 had started from the counts 3, 1, but
        block 0 ends with 2, 2:

                                        first time    second time
            counts at the start         3, 1          2, 2
            sample 0 is from dataset    1             0
            counts after sample 0       3, 2          3, 2           the same: the block is done

        To save time, the counts are only compared after 32 samples, then after 64 more, and so on.

        Args:
            wrong_blocks: Numbers of the blocks, ascending, without 0, shape (n_wrong,).
        """
        self.cost.passes += 1
        blocks = _WrongBlocks(
            wrong_blocks,
            first_counts=self.start_counts[wrong_blocks],  # 3, 1
            second_counts=self.end_counts[wrong_blocks - 1],  # 2, 2
        )
        self.start_counts[wrong_blocks] = blocks.second_counts
        for samples in _ranges_between_comparisons(len(self.picks)):  # 0 to 31, 32 to 95, ...
            blocks = self._pick_again(samples, blocks).still_different()
            if len(blocks.numbers) == 0:
                return

        # The remaining blocks are different up to their end, so they end with other counts.
        self.end_counts[blocks.numbers] = blocks.second_counts

    def _pick_again(self, samples: slice, blocks: _WrongBlocks) -> _WrongBlocks:
        """Compute some samples of some blocks a second time.

        A block is a range of samples, here of 1,000. For example, compute the samples 32 to 95 of
        the blocks 2 and 5 again. Of all samples, these are 2,032 to 2,095 and 5,032 to 5,095.

        Args:
            samples: Which samples of each block: slice(32, 96).
            blocks: The blocks, and how many samples of each dataset were taken before these
                samples, the first and the second time.

        Returns:
            The blocks, and the counts after these samples.
        """
        # `picks` has the results of the first time: a row for each sample, a column for each block.
        first_picks = self.picks[samples, blocks.numbers]  # (n_samples, n_wrong)
        first_counts = blocks.first_counts + _counts_by_block(first_picks, len(self.weights))

        first_samples = self.first_samples[blocks.numbers] + samples.start  # [2032, 5032]
        n_samples = len(first_picks)  # 64 in each block
        second = pick_side_by_side(self.weights, blocks.second_counts, first_samples, n_samples)
        self.picks[samples, blocks.numbers] = second.picks
        self._add_cost(n_samples, n_blocks=len(blocks.numbers))
        return _WrongBlocks(blocks.numbers, first_counts, second.counts)

    def _add_cost(self, n_samples: int, n_blocks: int) -> None:
        """Count how many samples repairs compute, and how long this takes, to give up in time.

        Args:
            n_samples: Samples of each block that were computed again.
            n_blocks: Number of blocks.
        """
        self.cost.redone += n_samples * n_blocks
        self.repair_microseconds += n_samples * _step_cost(len(self.weights), n_blocks)

    def first_blocks(self, n_blocks: int) -> PickedSamples:
        """Return the samples of the first blocks, one block after another.

        They are stored in another order: `picks` has a column for each block. For three blocks of
        two samples:

            block                           0       1       2
            dataset of the first sample     0       2       0
            dataset of the second one       1       0       0
            result for 2 blocks             0, 1,   2, 0

        Args:
            n_blocks: How many blocks.
        """
        # Copy the columns of these blocks to rows, and put the rows one after another.
        by_block = np.ascontiguousarray(self.picks[:, :n_blocks].T)  # (n_blocks, block_samples)
        return PickedSamples(by_block.reshape(-1), counts=self.end_counts[n_blocks - 1])


def _ranges_between_comparisons(block_samples: int) -> Iterator[slice]:
    """Yield ranges of the samples of a block, after each of which a comparison is made.

    A block of samples is computed a second time, until the comparison shows that the rest of it
    stays the same as the first time. That is nearly always soon, so the first ranges are short.
    Each is twice as long as the one before, up to 1024 samples. For a block of 300 samples: 0 to
    31, 32 to 95, 96 to 223 and 224 to 299.

    Args:
        block_samples: Samples of a block: 300.
    """
    start = 0
    n_samples = _FIRST_RANGE_SAMPLES
    while start < block_samples:
        stop = min(start + n_samples, block_samples)
        yield slice(start, stop)
        start = stop
        n_samples = min(2 * n_samples, _MAX_RANGE_SAMPLES)


def _step_cost(n_datasets: int, n_lanes: int) -> float:
    """Estimate how many microseconds it takes to compute one sample in each of many blocks.

    It is a fixed time for numpy's calls, and a time for each block that grows with the number of
    datasets; measured on one processor core. The estimate decides when repairs of blocks are given
    up, but never the result.

    Args:
        n_datasets: Number of datasets.
        n_lanes: Number of blocks that are computed at once.
    """
    return 2.0 + n_lanes * (0.015 + 0.0006 * n_datasets)


def _counts_by_block(picks: NDArray[np.integer], n_datasets: int) -> IntArray:
    """Count how many samples of each dataset are in each block, which is a range of samples.

    For example, two blocks of three samples, with two datasets:

        datasets of the samples         block 0    block 1
        first samples                   0          1
        second samples                  0          1
        third samples                   1          1

        count of dataset 0              2          0
        count of dataset 1              1          3

    `np.bincount` counts in one dimension only. So each pair of a block and a dataset gets a number,
    block * n_datasets + dataset: the samples above have 0, 3, 0, 3, 1, 3.

    Args:
        picks: Dataset of each sample, shape (n_samples, n_blocks).
        n_datasets: Number of datasets.

    Returns:
        Counts, shape (n_blocks, n_datasets).
    """
    n_blocks = picks.shape[1]
    first_numbers = np.arange(n_blocks) * n_datasets  # [0, 2]; (n_blocks,)
    pair_numbers = picks + first_numbers  # (n_samples, n_blocks)
    counts = np.bincount(pair_numbers.reshape(-1), minlength=n_blocks * n_datasets)
    return counts.reshape(n_blocks, n_datasets)


def guess_counts(
    weights: FloatArray, counts_before: FloatArray, first_samples: IntArray
) -> FloatArray:
    """Guess how many samples of each dataset are taken before some training samples.

    Each next sample is from the dataset with the largest error, weight * t - count, which is the
    one that is furthest behind its weight. Computing all samples gives the exact counts. A guess
    needs none of them. It goes from the rarest to the most frequent dataset:

    - Between two samples of a rare dataset, the more frequent ones are taken many times. So the
      rare one is taken soon after its error exceeds the lowest value that the largest error of the
      others has.
    - This value is a *gap* above the mean of the errors of these datasets and its own. All errors
      add up to 0. So this mean is -s / (rank + 1), where s is the sum of the errors of the datasets
      that are even rarer, and `rank` is the number of datasets that are more frequent.
    - So the dataset has been taken until its error was below gap - s / (rank + 1). This gives its
      count.
    - The most frequent dataset has all samples that remain.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        counts_before: True counts before the first of these samples, shape (n_datasets,). No guess
            is smaller.
        first_samples: Numbers of the samples, ascending, shape (n_blocks,).

    Returns:
        Guessed counts, shape (n_blocks, n_datasets).
    """
    shares = long_run_shares(weights)
    by_frequency = np.argsort(-shares, kind="stable")  # (n_datasets,) most frequent dataset first
    gap = _error_gap(shares)

    counts = np.zeros((len(weights), len(first_samples)))
    # (n_blocks,) sum of the errors of the datasets that were guessed already
    error_sums = np.zeros(len(first_samples))
    for rank in range(len(weights) - 1, 0, -1):
        dataset = by_frequency[rank]
        exact_shares = first_samples * shares[dataset]  # (n_blocks,) not rounded to samples
        # The smallest count whose error, exact share - count, does not exceed gap - s / (rank + 1).
        guess = np.ceil(exact_shares - gap + error_sums / (rank + 1))  # (n_blocks,)
        counts[dataset] = np.maximum(guess, counts_before[dataset])
        error_sums += exact_shares - counts[dataset]

    # Counts are whole numbers, so that their sum is exact.
    counts[by_frequency[0]] = first_samples - counts.sum(axis=0)
    return np.ascontiguousarray(counts.T)


def _error_gap(shares: FloatArray) -> float:
    """Estimate how far the largest error is above the mean of all when a rare dataset is picked.

    Args:
        shares: Share of each dataset in a long blend, shape (n_datasets,).

    Returns:
        0 for a single dataset, nearly 0.5 for many equal ones.
    """
    return 0.5 * (1.0 - float(np.square(shares).sum()))


def long_run_shares(weights: FloatArray) -> FloatArray:
    """Return which share of the training samples is taken from each dataset in the long run.

    If the weights add up to 1, they are the shares. If not, subtract the same amount from all of
    them, such that they add up to 1. Datasets whose weight is smaller than the amount get nothing:

        weight      0.9    0.5    0.1
        - 0.2       0.7    0.3   -0.1
        share       0.7    0.3    0

    The reason is that each next sample is from the dataset that is furthest behind its weight. In
    the long run, all datasets that are taken fall behind by the same amount per sample.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).

    Returns:
        Share of each dataset, shape (n_datasets,).
    """
    shares: FloatArray = np.maximum(weights - _amount_above_shares(weights), 0.0)
    return shares


def _amount_above_shares(weights: FloatArray) -> float:
    """Return what must be subtracted from all weights, so that the positive results add up to 1.

    If only the n datasets with the largest weights get a share, for n = 1, 2, ...:

        n                    1       2              3
        their weights        0.9     0.9 0.5        0.9 0.5 0.1
        to be subtracted    -0.1     0.2            0.17
        their shares         1.0     0.7 0.3        0.73 0.33 -0.07

    The result is that for the largest n without a negative share: 0.2.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
    """
    descending = np.sort(weights)[::-1]  # (n_datasets,) [0.9, 0.5, 0.1]
    n_datasets = np.arange(1, len(weights) + 1)
    amounts = (np.cumsum(descending) - 1.0) / n_datasets  # [-0.1, 0.2, 0.17]
    gets_share = descending > amounts  # [True, True, False]
    n_with_share = max(int(np.count_nonzero(gets_share)), 1)  # 2
    return float(amounts[n_with_share - 1])


class PickedLanes(NamedTuple):
    """From which datasets the samples of several ranges (lanes) are taken."""

    picks: Picks
    """Dataset of each sample, shape (n_steps, n_lanes)."""
    counts: FloatArray
    """How many samples of each dataset were taken up to the end of each range, shape (n_lanes,
    n_datasets).
    """


def pick_side_by_side(
    weights: FloatArray, counts: FloatArray, first_samples: IntArray, n_steps: int
) -> PickedLanes:
    """Decide from which datasets the samples of several ranges are taken, all ranges side by side.

    In a range, each sample depends on those before it. But different ranges are independent, since
    it is known how many samples of each dataset come before them. So a step computes one sample of
    every range at the same time. Such a range is called a *lane*. For two lanes of 4 samples:

        step                 0    1    2    3
        samples of lane 0    0    1    2    3
        samples of lane 1    4    5    6    7

    A sample is from the dataset that is furthest behind its weight: the one with the largest
    weight * time - count. The time is the number of the sample, and the count how many samples of
    the dataset come before it.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        counts: How many samples of each dataset come before each lane, shape (n_lanes, n_datasets).
        first_samples: Number of the first sample of each lane: [0, 4]; shape (n_lanes,).
        n_steps: Samples of each lane: 4.
    """
    n_lanes, n_datasets = counts.shape
    picks: Picks = np.empty((n_steps, n_lanes), _picks_dtype(n_datasets))
    lanes = _lanes_of(weights, counts)  # keeps the counts of each lane from step to step

    # Some steps at a time, so that the arrays for them fit into the processor's cache.
    for start in range(0, n_steps, lanes.chunk_steps):
        stop = min(start + lanes.chunk_steps, n_steps)
        times = _times_of_steps(first_samples, start, stop)  # (n_chunk_steps, n_lanes)
        picks[start:stop] = lanes.pick_next(times)
    return PickedLanes(picks, lanes.counts())


def _times_of_steps(first_samples: IntArray, start: int, stop: int) -> FloatArray:
    """Return the numbers of the samples that some ranges of samples, the lanes, have in some steps.

    For example, two lanes begin with the samples 0 and 4. In the steps 0 and 1, they have the
    samples 0 and 4, and then 1 and 5. The result is [[1, 4], [1, 5]]: the trainers count sample 0
    as 1.

    Args:
        first_samples: Number of the first sample of each lane: [0, 4]; shape (n_lanes,).
        start: The first step: 0.
        stop: The step after the last one: 2.

    Returns:
        Shape (n_steps, n_lanes).
    """
    steps = np.arange(start, stop, dtype=np.float64)
    sample_numbers = first_samples + steps[:, np.newaxis]  # (n_steps, n_lanes)
    times: FloatArray = np.maximum(sample_numbers, 1.0)
    return times


def _lanes_of(weights: FloatArray, counts: FloatArray) -> RowLanes | ColumnLanes:
    """Return the object that is faster, as measured, for so many ranges (lanes) and datasets.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        counts: How many samples of each dataset come before each lane, shape (n_lanes, n_datasets).
    """
    n_lanes, n_datasets = counts.shape
    if n_lanes <= _FEW_LANES or n_datasets >= _MANY_DATASETS:  # 512 and 96
        return RowLanes(weights, counts)
    return ColumnLanes(weights, counts)


class RowLanes:
    """Ranges of samples that are computed side by side, for few ranges or many datasets.

    Counts, the numbers of samples taken so far, have a row for each range, which is called a lane.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        counts: Samples taken of each dataset before each lane, shape (n_lanes, n_datasets).
    """

    def __init__(self, weights: FloatArray, counts: FloatArray) -> None:
        n_lanes, n_datasets = counts.shape
        self.chunk_steps = _steps_of_chunk(n_lanes * n_datasets)
        """For how many samples of each lane `pick_next` should be called at once."""
        self._weights = weights  # (n_datasets,)
        self._counts = np.array(counts, dtype=np.float64, order="C")  # (n_lanes, n_datasets)
        # (n_lanes * n_datasets,) a view of _counts: numpy is faster with one index than with two
        self._flat_counts = self._counts.reshape(-1)
        # (n_lanes,) position of each lane's first count in _flat_counts
        self._first_positions = np.arange(n_lanes) * n_datasets

    def counts(self) -> FloatArray:
        """Return how many samples of each dataset were taken, shape (n_lanes, n_datasets)."""
        return self._counts

    def pick_next(self, times: FloatArray) -> NDArray[np.intp]:
        """Decide from which dataset each of the next samples is taken, in all lanes side by side.

        A lane is a range of samples. Each step decides for one sample of every lane. It is from the
        dataset with the largest error, weight * time - count: the one that is furthest behind its
        weight. A step for two lanes and three datasets:

                                              lane 0            lane 1
            weights * time                    1.5  0.9  0.6     2.0  1.2  0.8
            counts so far                     1    1    1       2    1    1
            errors                            0.5 -0.1 -0.4     0.0  0.2 -0.2
            dataset with the largest          0                 1
            counts afterwards                 2    1    1       2    2    1

        Args:
            times: Number of each sample, or 1 for sample 0, as in the trainers. Shape (n_steps,
                n_lanes).

        Returns:
            Numbers of datasets, shape (n_steps, n_lanes).
        """
        # For all steps at once, since it does not depend on the counts.
        weights_by_time = times[:, :, np.newaxis] * self._weights  # (n_steps, n_lanes, n_datasets)

        picks = np.empty(times.shape, np.intp)  # argmax cannot write smaller integers
        for errors, datasets in zip(weights_by_time, picks, strict=True):
            np.subtract(errors, self._counts, out=errors)  # (n_lanes, n_datasets)
            errors.argmax(axis=1, out=datasets)  # (n_lanes,) the first one, if several are equal

            # Add 1 to one count of each lane. In `_flat_counts`, lane 0 has the positions 0 to 2,
            # and lane 1 has 3 to 5. So for the datasets 0 and 1, add 1 at 0 + 0 and 3 + 1.
            self._flat_counts[self._first_positions + datasets] += 1.0
        return picks


class ColumnLanes:
    """Ranges of samples that are computed side by side, for many ranges and few datasets.

    Counts, the numbers of samples taken so far, have a column for each range, which is called a
    lane. The arrays of a step are allocated once, since allocating them in each step takes longer
    than the arithmetic.

    Args:
        weights: Weight of each dataset, shape (n_datasets,); at most 255, since ranks are uint8.
        counts: Samples taken of each dataset before each lane, shape (n_lanes, n_datasets).
    """

    def __init__(self, weights: FloatArray, counts: FloatArray) -> None:
        n_lanes, n_datasets = counts.shape
        self.chunk_steps = _steps_of_chunk(n_lanes)
        """For how many samples of each lane `pick_next` should be called at once."""
        self._weights = np.ascontiguousarray(weights[:, np.newaxis])  # (n_datasets, 1)
        self._counts = np.array(counts.T, dtype=np.float64, order="C")  # (n_datasets, n_lanes)
        # (n_datasets * n_lanes,) a view of _counts: numpy is faster with one index than with two
        self._flat_counts = self._counts.reshape(-1)
        self._lane_numbers = np.arange(n_lanes)  # (n_lanes,) the column of each lane

        # (n_datasets, 1) n_datasets, ..., 2, 1: of several datasets with the largest error, the
        # first one has the highest rank. One byte each, so that a step moves little memory.
        self._ranks = np.arange(n_datasets, 0, -1).astype(np.uint8)[:, np.newaxis]

        self._errors = np.empty_like(self._counts)  # (n_datasets, n_lanes)
        self._largest_error = np.empty(n_lanes)  # (n_lanes,)
        self._has_largest_error = np.empty(self._errors.shape, bool)  # (n_datasets, n_lanes)
        # (n_datasets, n_lanes) rank of the dataset if its error is the largest, else 0
        self._candidate_ranks = np.empty(self._errors.shape, np.uint8)
        self._best_rank = np.empty(n_lanes, np.uint8)  # (n_lanes,)
        # (n_lanes,) where the count of each lane's dataset is in _flat_counts
        self._positions = np.empty_like(self._lane_numbers)

    def counts(self) -> FloatArray:
        """Return how many samples of each dataset were taken, shape (n_lanes, n_datasets)."""
        return np.ascontiguousarray(self._counts.T)

    def pick_next(self, times: FloatArray) -> NDArray[np.intp]:
        """Decide from which dataset each of the next samples is taken, in all lanes side by side.

        A lane is a range of samples. Each step decides for one sample of every lane. It is from the
        dataset with the largest error, weight * time - count: the one that is furthest behind its
        weight. A step for two lanes and two datasets with the weights 0.6 and 0.4:

                                         lane 0    lane 1
            time                          3         8
            weight * time, dataset 0      1.8       4.8
            weight * time, dataset 1      1.2       3.2
            count, dataset 0              2         4
            count, dataset 1              1         4
            error, dataset 0             -0.2       0.8
            error, dataset 1              0.2      -0.8
            picked dataset                1         0

        Args:
            times: Number of each sample, or 1 for sample 0, as in the trainers. Shape (n_steps,
                n_lanes).

        Returns:
            Numbers of datasets, shape (n_steps, n_lanes).
        """
        picks = np.empty(times.shape, np.intp)
        for step, times_of_step in enumerate(times):
            # (n_datasets, n_lanes) overwritten in each step, as it would take longer to allocate
            # it. The product is rounded before the subtraction, as in the trainers.
            np.multiply(self._weights, times_of_step, out=self._errors)
            np.subtract(self._errors, self._counts, out=self._errors)

            datasets = self._first_with_largest_error()  # (n_lanes,)
            self._count_one_sample(datasets)
            picks[step] = datasets
        return picks

    def _count_one_sample(self, datasets: NDArray[np.intp]) -> None:
        """Add 1 to the count of one dataset in each lane, which is a range of samples.

        The counts have a row for each dataset and a column for each lane. For example, three lanes
        take a sample of the datasets 0, 1 and 0:

            counts before    afterwards    positions in the array
            5 5 5            6 5 6         0 1 2
            2 2 2            2 3 2         3 4 5

        The position of a dataset and a lane is dataset * 3 + lane. So 1 is added at 0, 4 and 2:
        numpy is faster with these positions than with rows and columns.

        Args:
            datasets: Dataset of each lane: [0, 1, 0]; shape (n_lanes,).
        """
        n_lanes = len(self._lane_numbers)
        np.multiply(datasets, n_lanes, out=self._positions)  # [0, 3, 0]
        np.add(self._positions, self._lane_numbers, out=self._positions)  # [0, 4, 2]
        self._flat_counts[self._positions] += 1.0

    def _first_with_largest_error(self) -> NDArray[np.intp]:
        """Return the dataset with the largest error in each lane; the first one of several.

        `self._errors` has a row for each dataset, and a column for each *lane*, a range of samples
        that is computed in parallel with others. argmax along columns is slow in numpy, but the
        maximum is fast. So the first of several maxima is found with a second maximum, over ranks
        that are higher for earlier datasets. For one lane:

            dataset                            0      1      2
            error                              0.5    0.5   -1.0      largest: 0.5
            has the largest error              1      1      0
            rank                               3      2      1
            product                            3      2      0        largest: 3

        The rank 3 of 3 datasets belongs to dataset 3 - 3 = 0.

        Returns:
            Numbers of datasets, shape (n_lanes,).
        """
        np.maximum.reduce(self._errors, axis=0, out=self._largest_error)
        np.equal(self._errors, self._largest_error, out=self._has_largest_error)
        np.multiply(self._has_largest_error, self._ranks, out=self._candidate_ranks)
        np.maximum.reduce(self._candidate_ranks, axis=0, out=self._best_rank)
        n_datasets = len(self._ranks)
        return n_datasets - self._best_rank.astype(np.intp)


def _steps_of_chunk(numbers_of_step: int) -> int:
    """Return for how many steps an array is prepared at once: up to 64, if it fits into the cache.

    Args:
        numbers_of_step: How many numbers the array has for each step.
    """
    return max(min(_CHUNK_NUMBERS // numbers_of_step, 64), 1)
