"""Pick the datasets of a blend's samples, many at a time; `blending.py` describes the rule.

The rule is a loop: each pick depends on all picks before it. So the samples are divided into
*blocks*, which are computed at the same time from guesses:

1. Guess how many samples of each dataset were taken before each block (`guess_counts`).
2. Advance all blocks together, one sample at a time, with one numpy operation for all of them.
3. Compare the counts at the end of every block with those that were guessed for the start of the
   next one. A block that started with wrong counts is advanced again, from the right ones.

For example, 12 samples of the weights 0.6, 0.3 and 0.1, in blocks of 4:

    block                  0           1           2
    guessed start counts   0, 0, 0     2, 1, 1     4, 3, 1
    picks                  0, 1, 2, 0  0, 1, 0, 0  0, 0, 0, 1
    end counts             2, 1, 1     5, 2, 1     7, 4, 1

Block 1 ends with 5, 2, 1, but block 2 started with 4, 3, 1. So block 2 is advanced again, from 5,
2, 1, and first picks 1 in place of 0. That gives the counts 5, 3, 1, which the old course had after
this sample, too. From there on all picks are equal, so the rest of the block stays: it is 1, 0, 0,
1. Blocks often forget a wrong start so soon.

The first block starts with true counts. So by induction the result is exactly that of the loop,
ties and rounding included. The guesses decide only how long it takes; if repairs take longer than a
budget, the loop itself computes the rest.

A long blend is divided into *segments*, whose blocks are computed together: this limits the memory
that it needs. A segment starts with the true counts at the end of the previous one. A *lane* is a
block while it is advanced.

Each step of a lane performs the same floating-point operations as the trainer, in the same order:
the error of a dataset is weight * t, rounded to 64 bits, minus its count, rounded again. The first
dataset with the largest error is picked. `ColumnLanes` and `RowLanes` show a step with numbers.

numpy never contracts `weight * t - count` into one rounding; neither does the x86-64 build of
Megatron-LM. Its builds for processors that fuse multiplication and addition by default (aarch64)
can order a blend differently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Picks = NDArray[np.uint8] | NDArray[np.uint16]
"""Dataset numbers: uint8 up to 255 datasets, else uint16."""

_MANY_DATASETS = 96
"""Datasets from which on `RowLanes` are faster than `ColumnLanes`."""
_FEW_LANES = 512
"""Lanes up to which `RowLanes` are faster than `ColumnLanes`."""
_CHUNK_NUMBERS = 1 << 15
"""Numbers in the scratch arrays of lanes: few enough to stay in the processor's cache."""
_SEGMENT_SAMPLES = 1 << 24
"""Largest number of samples in a segment."""
_FIRST_CHECK_STEPS = 32
"""Samples after which a repair checks for the first time which blocks have met their old course.

The distance to the next check is doubled each time, since most blocks meet it soon.
"""
_MAX_CHECK_STEPS = 1024
"""Largest number of samples between two checks."""


@dataclass(slots=True)
class SpeculationCost:
    """Counts the work of `greedy_segments`, for tests and benchmarks."""

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
    """Yield the dataset of each sample of a blend, segment by segment.

    Each next sample is from the dataset that is furthest behind its weight. For the weights 0.6,
    0.3 and 0.1, the datasets of the first five samples are 0, 1, 2, 0, 0. A segment has up to 16
    million samples, which limits the memory that a long blend needs.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        size: Number of samples of the blend.
        cost: For tests and benchmarks: counts how many samples were computed a second time, since
            many are computed at once from guesses.

    Yields:
        The number of the segment's first sample in the blend, and the dataset of each of its
        samples, shape (n_samples,).
    """
    if cost is None:
        cost = SpeculationCost()
    # (n_datasets,) samples taken of each dataset before the segment
    counts = np.zeros(len(weights))
    for start, stop in _segment_ranges(size):
        picks: Picks = np.zeros(stop - start, _picks_dtype(len(weights)))
        if len(weights) > 1:  # otherwise all samples are from dataset 0
            counts = _pick_segment(weights, counts, start, picks, cost)
        yield start, picks


def _segment_ranges(size: int) -> Iterator[tuple[int, int]]:
    """Yield the half-open range of samples of each segment of a blend.

    The segments are as few as the limit on their length allows, and equally long.
    """
    n_segments = max(_divide_up(size, _SEGMENT_SAMPLES), 1)
    segment_samples = max(_divide_up(size, n_segments), 1)
    for start in range(0, size, segment_samples):
        yield start, min(start + segment_samples, size)


def _pick_segment(
    weights: FloatArray, counts: FloatArray, start: int, picks: Picks, cost: SpeculationCost
) -> FloatArray:
    """Pick the datasets of a segment's samples: in blocks if it is long, otherwise one by one.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        counts: Samples taken of each dataset before the segment, shape (n_datasets,).
        start: Number of the segment's first sample in the blend.
        picks: Filled with the dataset of each sample, shape (n_samples,).
        cost: Updated with the work that is done.

    Returns:
        Samples taken of each dataset after the segment, shape (n_datasets,).
    """
    # How many blocks are best depends on how many samples are from rare datasets, and so on the
    # share of each dataset. Shares add up to 1, which weights need not.
    shares = simplex_projection(weights)
    shape = block_shape(shares, len(picks))
    if shape.n_blocks > 1:
        return pick_in_blocks(weights, counts, start, picks, shape, cost)
    cost.sequential += len(picks)
    return take_one_by_one(weights, counts, start, picks)


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
    """Return into how many blocks a range of samples is divided, and how long they are.

    The blocks are computed at the same time, one sample of each in every step, so many short blocks
    are fast. But each block starts from a guess, and a long block is more often right at its end
    although the guess was wrong.

    Args:
        shares: Share of each dataset in the samples of a long blend, shape (n_datasets,).
        n_samples: Samples of the range.

    Returns:
        For example, 2048 blocks of 8192 samples for 2**24 samples of a few datasets.
    """
    # The limits were measured. They affect only the speed, not the picks.
    max_blocks = _max_blocks(shares * n_samples)
    min_block_samples = max(16 * len(shares), 256)

    block_samples = max(_divide_up(n_samples, max_blocks), min_block_samples)
    return BlockShape(
        n_blocks=_divide_up(n_samples, block_samples),
        block_samples=block_samples,
    )


def _max_blocks(samples_per_dataset: FloatArray) -> int:
    """Return into how many blocks a segment is divided at most.

    With many datasets, or many rare ones, fewer and longer blocks are faster: the counts at the
    start of a block are guessed, and guesses for rare datasets are often wrong. The numbers were
    measured; they affect only the speed.

    Args:
        samples_per_dataset: About how many samples the segment takes of each dataset, shape
            (n_datasets,).
    """
    n_datasets = len(samples_per_dataset)
    if n_datasets >= _MANY_DATASETS:
        return 256

    # In 2048 blocks, a dataset with fewer samples has less than one in a block on average.
    max_blocks = 2048
    n_rare = np.count_nonzero(samples_per_dataset < max_blocks)
    has_many_rare_datasets = n_rare > max(n_datasets / 4, 2)
    return 512 if has_many_rare_datasets else max_blocks


def take_one_by_one(
    weights: FloatArray, counts: FloatArray, start: int, picks: Picks
) -> FloatArray:
    """Pick the datasets of samples one by one, in the way that the trainer does.

    The next sample is from the dataset that is furthest behind its weight: the one with the largest
    error, weight * time - count. The time is the number of the sample in the blend, but at least 1.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        counts: Samples taken of each dataset before these samples, float64, shape (n_datasets,).
        start: Number of the first of these samples in the blend.
        picks: Filled with the dataset of each sample, shape (n_samples,).

    Returns:
        Samples taken of each dataset after these samples, shape (n_datasets,).
    """
    counts = counts.copy()
    # (n_datasets,) overwritten for each sample, since allocating an array takes longer than this
    errors = np.empty(len(weights))
    for position in range(len(picks)):
        time = float(max(start + position, 1))

        # The trainer rounds the product before it subtracts. A single fused operation would not,
        # and could pick another dataset.
        np.multiply(weights, time, out=errors)
        np.subtract(errors, counts, out=errors)

        # argmax returns the first of several equal errors, as the rule demands.
        dataset = errors.argmax()
        picks[position] = dataset
        counts[dataset] += 1.0
    return counts


def pick_in_blocks(
    weights: FloatArray,
    counts: FloatArray,
    start: int,
    picks: Picks,
    shape: BlockShape,
    cost: SpeculationCost,
) -> FloatArray:
    """Pick the datasets of many samples at once, in blocks of consecutive samples.

    Each pick depends on how many samples of each dataset were taken before it. So these counts are
    guessed for the start of every block, and all blocks are computed together. A guess was right if
    it equals the counts at the end of the block before. Otherwise the block is computed again from
    the right counts.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        counts: Samples taken of each dataset before the first block, shape (n_datasets,).
        start: Number of the first of these samples in the blend.
        picks: Filled with the dataset of each sample, shape (n_samples,).
        shape: Number of blocks, and samples of a block; the last block may extend beyond `picks`.
        cost: Updated with the work that is done.

    Returns:
        Samples taken of each dataset after these samples, shape (n_datasets,).
    """
    cost.segments += 1
    blocks = _SpeculatedBlocks(weights, counts, start, shape, picks.dtype)
    n_right = _repair_blocks(blocks, shape, cost)  # the first blocks; nearly always all of them

    # Take the picks of these blocks.
    n_done = min(n_right * shape.block_samples, len(picks))
    picks[:n_done] = blocks.picks_in_order(n_right)[:n_done]
    counts_after = blocks.counts_after(n_right, picks[:n_done])

    # Pick the other samples one by one. There are none if all blocks are right.
    cost.sequential += len(picks) - n_done
    return take_one_by_one(weights, counts_after, start + n_done, picks[n_done:])


def _repair_blocks(blocks: _SpeculatedBlocks, shape: BlockShape, cost: SpeculationCost) -> int:
    """Compute blocks that started from a wrong guess again, until all blocks are right.

    A block is wrong if it started with other counts than the block before it ended with. If a
    repaired block ends with other counts than before, the next block becomes wrong, so there may be
    several rounds. They stop when they have taken as long as picking all samples one by one would.

    Returns:
        How many blocks are right, counted from the first one to the first wrong one.
    """
    # Microseconds for picking the samples one by one. Measured on one core: 1.5 for a sample, and
    # 0.001 for each dataset.
    n_samples = shape.n_blocks * shape.block_samples
    budget = n_samples * (1.5 + 0.001 * len(blocks.weights))

    microseconds = 0.0
    wrong_blocks = blocks.find_wrong()
    while len(wrong_blocks) > 0 and microseconds <= budget:
        microseconds += blocks.repair(wrong_blocks, cost)
        wrong_blocks = blocks.find_wrong()
    return int(wrong_blocks[0]) if len(wrong_blocks) > 0 else shape.n_blocks


class _SpeculatedBlocks:
    """The blocks of a segment, each advanced from guessed counts.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        counts: True number of samples taken of each dataset before the segment, shape
            (n_datasets,).
        start: Number of the segment's first sample in the blend.
        shape: Number of blocks, and samples of a block.
        dtype: Integer type of the picks.
    """

    def __init__(
        self,
        weights: FloatArray,
        counts: FloatArray,
        start: int,
        shape: BlockShape,
        dtype: np.dtype,
    ) -> None:
        """Pick the samples of all blocks together, each block from a guess of what precedes it."""
        self.weights = weights
        # (n_blocks,) number of each block's first sample in the blend: 0, 4, 8 for blocks of 4
        # samples
        block_numbers = np.arange(shape.n_blocks, dtype=np.int64)
        self.first_samples = start + block_numbers * shape.block_samples

        # (n_blocks, n_datasets) samples taken of each dataset before each block: guesses, except
        # for the first block
        self.start_counts = guess_counts(weights, counts, self.first_samples)
        self.start_counts[0] = counts

        # (block_samples, n_blocks) dataset of each sample: row i has the i-th sample of every block
        self.picks = np.zeros((shape.block_samples, shape.n_blocks), dtype)
        lanes = lanes_of(weights, self.start_counts, self.first_samples)
        lanes.advance(self.picks)
        # (n_blocks, n_datasets) samples taken of each dataset after each block
        self.end_counts = lanes.counts()

    def find_wrong(self) -> IntArray:
        """Return the blocks that started with other counts than the previous block ended with.

        For example, block 0 ended after 2 samples of dataset 0 and 1 of dataset 1. If block 1
        started with the counts 2, 1, it is right. If it started with 1, 2, it is wrong.

        Returns:
            Numbers of these blocks, ascending, shape (n_wrong,). The first block is never one of
            them, since it starts with true counts.
        """
        expected_counts = self.end_counts[:-1]  # (n_blocks - 1, n_datasets)
        is_wrong = (self.start_counts[1:] != expected_counts).any(axis=1)  # (n_blocks - 1,)
        return np.flatnonzero(is_wrong) + 1

    def repair(self, wrong_blocks: IntArray, cost: SpeculationCost) -> float:
        """Pick the samples of wrong blocks again, from the counts with which earlier blocks ended.

        A block is a range of consecutive samples. Its *counts* are how many samples were taken of
        each dataset before a sample, and decide the next pick. So if a block reaches a sample with
        the same counts as the last time, its remaining picks are right and stay. The first wrong
        block follows a right one, so each call makes at least one right.

        Args:
            wrong_blocks: Numbers of the blocks that started with wrong counts, ascending, shape
                (n_wrong,).
            cost: Updated with the work that is done.

        Returns:
            An estimate of the microseconds that it took. It is computed from the number of steps,
            not measured.
        """
        cost.passes += 1
        microseconds = 0.0
        running = self._restart(wrong_blocks)  # blocks with other counts than the last time
        for samples in _ranges_between_checks(len(self.picks)):
            # Pick these samples, such as those from 32 to 96, in all running blocks at once.
            # `differences` says how many more samples of each dataset a block has now.
            running.differences += self._pick_again(running.blocks, samples, running.lanes)

            n_blocks = len(running.blocks)
            n_steps = samples.stop - samples.start
            cost.redone += n_steps * n_blocks
            microseconds += n_steps * _step_cost(len(self.weights), n_blocks)

            # Leave out the blocks that have the same counts as the last time.
            if not running.differences.any():
                break
            running = self._without_equal(running, samples.stop)

        # The others end with other counts. If there are none, this adds zeros.
        self.end_counts[running.blocks] += running.differences
        return microseconds

    def _restart(self, wrong_blocks: IntArray) -> _RunningBlocks:
        """Prepare to pick the samples of some blocks again, from their first one on.

        They start with the counts with which the blocks before them ended: how many samples were
        taken
        of each dataset.

        Args:
            wrong_blocks: Numbers of the blocks, ascending, shape (n_wrong,).
        """
        new_counts = self.end_counts[wrong_blocks - 1]  # (n_wrong, n_datasets)
        differences = new_counts - self.start_counts[wrong_blocks]
        self.start_counts[wrong_blocks] = new_counts
        lanes = lanes_of(self.weights, new_counts, self.first_samples[wrong_blocks])
        return _RunningBlocks(wrong_blocks, differences, lanes)

    def _without_equal(self, running: _RunningBlocks, n_done: int) -> _RunningBlocks:
        """Leave out the blocks whose other picks are right already.

        A block is picked again because it started with wrong counts of samples. The next picks
        depend only on the counts. So once a block has the same counts as the last time, the rest of
        its old picks is right.

        Args:
            running: The blocks that are being picked again, and by how much their counts differ.
            n_done: How many samples of each of them were picked again.

        Returns:
            The blocks whose counts still differ.
        """
        is_different = running.differences.any(axis=1)  # (n_running,)
        if is_different.all():
            return running  # new lanes would copy all counts for nothing
        blocks = running.blocks[is_different]
        counts = running.lanes.counts()[is_different]
        lanes = lanes_of(self.weights, counts, self.first_samples[blocks] + n_done)
        return _RunningBlocks(blocks, running.differences[is_different], lanes)

    def _pick_again(self, blocks: IntArray, samples: slice, lanes: Lanes) -> IntArray:
        """Pick the datasets of some samples again, after the counts before them were corrected.

        For example, the old picks of a block are the datasets 0, 1, 0, and the new ones 1, 1, 0.
        That is one sample less of dataset 0, and one more of dataset 1: the result for this block
            is -1, 1.

        Args:
            blocks: Numbers of the blocks to which the samples belong, shape (n_blocks,).
            samples: Which samples of each block, such as those from 32 to 96.
            lanes: Compute the new picks. Lane i computes block `blocks[i]`, and has done so up to
                the first of these samples.

        Returns:
            How many more of the new picks than of the old ones are from each dataset, for each
            block; shape (n_blocks, n_datasets).
        """
        # `self.picks` has a column for each block, and a row for each sample of a block.
        old_picks = self.picks[samples, blocks]  # (n_samples, n_blocks)
        new_picks = np.empty_like(old_picks)
        lanes.advance(new_picks)
        self.picks[samples, blocks] = new_picks

        n_datasets = len(self.weights)
        old_counts = _counts_by_lane(old_picks, n_datasets)  # (n_blocks, n_datasets)
        new_counts = _counts_by_lane(new_picks, n_datasets)
        return new_counts - old_counts

    def counts_after(self, n_blocks: int, picks: Picks) -> FloatArray:
        """Return how many samples were taken of each dataset after the first blocks.

        These are the counts at the start of the last of these blocks, and one more for each of its
        picks: for counts of 5, 2 and picks 0, 0, 1, they are 7, 3.

        Args:
            n_blocks: How many blocks; all of them are right.
            picks: Their picks in the order of the samples. The last block may have less than
                `block_samples`, since the segment may end within it.

        Returns:
            Counts, shape (n_datasets,).
        """
        last_block = n_blocks - 1
        picks_of_last_block = picks[last_block * len(self.picks) :]
        counts: FloatArray = self.start_counts[last_block].copy()
        counts += np.bincount(picks_of_last_block, minlength=len(self.weights))
        return counts

    def picks_in_order(self, n_blocks: int) -> Picks:
        """Return the picks of the first blocks in the order of the samples.

        They are stored step by step: the first samples of all blocks, then the second ones, and so
        on.
        For two blocks with the datasets 0, 1 and 2, 0, they are stored as 0, 2, 1, 0.

        Args:
            n_blocks: How many blocks.

        Returns:
            Dataset of each sample, shape (n_blocks * block_samples,).
        """
        by_block = np.ascontiguousarray(self.picks[:, :n_blocks].T)  # (n_blocks, block_samples)
        return by_block.reshape(-1)


@dataclass(slots=True)
class _RunningBlocks:
    """Blocks that are being repaired, and have not met their old course of counts."""

    blocks: IntArray
    """Numbers of the blocks, ascending, shape (n_running,)."""
    differences: FloatArray
    """Counts on the new course minus counts on the old one, shape (n_running, n_datasets)."""
    lanes: Lanes
    """Pick the next samples of the blocks; lane i is `blocks[i]`."""


def _ranges_between_checks(block_samples: int) -> Iterator[slice]:
    """Yield the samples of a block that a repair picks before each check, from first to last.

    The ranges have 32 samples, 64, 128, and so on up to 1024.
    """
    start = 0
    n_steps = _FIRST_CHECK_STEPS
    while start < block_samples:
        stop = min(start + n_steps, block_samples)
        yield slice(start, stop)
        start = stop
        n_steps = min(2 * n_steps, _MAX_CHECK_STEPS)


def _step_cost(n_datasets: int, n_lanes: int) -> float:
    """Estimate how many microseconds one step of a repair takes.

    A step picks one sample in each lane. The constants were measured on one processor core: a fixed
    time for numpy's calls, and a time for each lane that grows with the number of datasets. The
    estimate decides only when repairs end, never what is picked.

    Args:
        n_datasets: Number of datasets.
        n_lanes: Number of blocks that are advanced.
    """
    return 2.0 + n_lanes * (0.015 + 0.0006 * n_datasets)


def _counts_by_lane(picks: NDArray[np.integer], n_datasets: int) -> IntArray:
    """Count how often each lane picked each dataset.

    A lane is a block of samples while it is advanced, one sample in each step. For example, two
    lanes of three steps, with two datasets:

        picks                           0 1     step 0
                                        0 1     step 1
                                        1 1     step 2
        positions in the flat result    0 3     lane * n_datasets + dataset
                                        0 3
                                        1 3
        flat result                     2 1 0 3
        counts                          2 1     lane 0
                                        0 3     lane 1

    Args:
        picks: Dataset of each sample, shape (n_steps, n_lanes).
        n_datasets: Number of datasets.

    Returns:
        Counts, shape (n_lanes, n_datasets).
    """
    n_lanes = picks.shape[1]
    first_positions = np.arange(n_lanes) * n_datasets  # (n_lanes,)
    positions = picks + first_positions  # (n_steps, n_lanes)
    counts = np.bincount(positions.reshape(-1), minlength=n_lanes * n_datasets)
    return counts.reshape(n_lanes, n_datasets)


def guess_counts(
    weights: FloatArray, counts_before: FloatArray, first_samples: IntArray
) -> FloatArray:
    """Guess how many samples of each dataset are taken before some samples of a blend.

    The guess needs no picks. It goes from the rarest to the most frequent dataset:

    - A dataset is picked when its error, weight * t - count, is larger than all others. Between two
      picks of a rare dataset, the more frequent ones are picked many times. So the rare one is
      picked soon after its error exceeds the lowest value that the largest of their errors has.
    - This value is a *gap* above the mean of their errors and its own. All errors add up to 0, so
      this mean is -s / (rank + 1), with s the sum of the errors of the datasets that are still
      rarer, and `rank` the number of those that are more frequent.
    - So the dataset has been picked until its error was below gap - s / (rank + 1), which gives its
      count.
    - The most frequent dataset has all samples that remain.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        counts_before: True counts before the first of these samples, shape (n_datasets,). No guess
            is smaller.
        first_samples: Numbers of the samples in the blend, ascending, shape (n_blocks,).

    Returns:
        Guessed counts, shape (n_blocks, n_datasets).
    """
    shares = simplex_projection(weights)
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


def simplex_projection(weights: FloatArray) -> FloatArray:
    """Return which share of a long blend's samples is from each dataset.

    If the weights add up to 1, they are the shares. If not, the same amount is subtracted from all
    of them, so that the results add up to 1. Those below 0 become 0. For example, the weights 0.9,
    0.5 and 0.1 minus 0.2 give the shares 0.7, 0.3 and 0. (Each next sample is from the dataset that
    is furthest behind its weight, so in the end, all are equally far behind.)

    Args:
        weights: Weight of each dataset, shape (n_datasets,).

    Returns:
        Share of each dataset, shape (n_datasets,); they add up to 1.
    """
    # If only the k largest weights have a share, then subtracting `amount` from each of them
    # leaves 1. In the example, for k = 1, 2 and 3:
    descending = np.sort(weights)[::-1]  # [0.9, 0.5, 0.1]
    k = np.arange(1, len(weights) + 1)  # [1, 2, 3]
    amounts = (np.cumsum(descending) - 1.0) / k  # [-0.1, 0.2, 0.17]

    # The right k is the last one whose smallest weight is larger than the amount: 0.5 > 0.2.
    is_above_amount = descending > amounts  # [True, True, False]
    last_index = np.flatnonzero(is_above_amount)[-1]
    shares: FloatArray = np.maximum(weights - amounts[last_index], 0.0)
    return shares


def lanes_of(weights: FloatArray, counts: FloatArray, first_samples: IntArray) -> Lanes:
    """Return an object that picks the datasets of a blend's samples in many places at once.

    Each place is a *lane*: it starts at one sample of the blend, and continues sample by sample.
    Two classes with different memory layouts pick the same datasets. Measurements showed for which
    numbers of lanes and datasets each is faster.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        counts: Samples taken of each dataset before each lane's first sample, shape (n_lanes,
            n_datasets).
        first_samples: Number of each lane's first sample in the blend, shape (n_lanes,).
    """
    n_lanes, n_datasets = counts.shape
    if n_lanes <= _FEW_LANES or n_datasets >= _MANY_DATASETS:
        return RowLanes(weights, counts, first_samples)
    return ColumnLanes(weights, counts, first_samples)


class Lanes(ABC):
    """Advances many blocks together, one sample of each block at a time.

    Lane i is the i-th of these blocks. In step j, each lane picks the dataset of the j-th sample of
    its block. The lanes do not depend on each other, so a numpy operation computes all of them.

    The subclasses differ only in the memory layout of the counts. They write results to arrays that
    exist already (`out=`), since allocating arrays in each step takes longer than the arithmetic.

    Args:
        first_samples: Number of the first sample of each lane in the blend, shape (n_lanes,).
        numbers_of_step: Entries of the largest array of floats that a chunk stores for each step.
            It decides how many steps are prepared at once.
    """

    def __init__(self, first_samples: IntArray, numbers_of_step: int) -> None:
        self._next_samples = first_samples.astype(np.float64)  # (n_lanes,)
        self._chunk_steps = max(min(_CHUNK_NUMBERS // numbers_of_step, 64), 1)

    def advance(self, picks: NDArray[np.integer]) -> None:
        """Pick the datasets of the next samples in all lanes, and count them.

        Args:
            picks: Filled with the number of the dataset of each sample, shape (n_steps, n_lanes).
        """
        # Several steps form a chunk, whose arrays fit in the processor's cache.
        for start in range(0, len(picks), self._chunk_steps):
            chunk = picks[start : start + self._chunk_steps]  # (n_steps of the chunk, n_lanes)
            self._advance_chunk(self._times(len(chunk)), chunk)
            self._next_samples += len(chunk)

    def _times(self, n_steps: int) -> FloatArray:
        """Return the time of the next samples: their numbers in the blend, but at least 1.

        Args:
            n_steps: How many samples of each lane.

        Returns:
            Times, shape (n_steps, n_lanes).
        """
        steps = np.arange(n_steps, dtype=np.float64)[:, None]  # (n_steps, 1)
        return np.maximum(self._next_samples + steps, 1.0)

    @abstractmethod
    def counts(self) -> FloatArray:
        """Return a copy of the counts.

        Returns:
            Samples taken of each dataset before the next sample of each lane, shape (n_lanes,
            n_datasets).
        """

    @abstractmethod
    def _advance_chunk(self, times: FloatArray, picks: NDArray[np.integer]) -> None:
        """Pick the dataset of each sample in a chunk of steps, and count the picks.

        Args:
            times: Time of each sample: its number in the blend, but at least 1. Shape (n_steps,
                n_lanes).
            picks: Filled with the number of the dataset of each sample, shape (n_steps, n_lanes).
        """


class RowLanes(Lanes):
    """Lanes whose counts are rows: fast for few lanes, and for many datasets.

    A step of two lanes and three datasets, with the weights 0.5, 0.3 and 0.2:

                              lane 0            lane 1
        time                  3                 4
        weights * time        1.5  0.9  0.6     2.0  1.2  0.8
        counts                1    1    1       2    1    1
        errors                0.5 -0.1 -0.4     0.0  0.2 -0.2
        datasets (argmax)     0                 1
        row starts            0                 3
        positions of counts   0                 4

    The counts at the flat positions 0 and 4 are then increased by 1.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        counts: Samples taken of each dataset before the first sample of each lane, shape (n_lanes,
            n_datasets).
        first_samples: Number of the first sample of each lane in the blend, shape (n_lanes,).
    """

    def __init__(self, weights: FloatArray, counts: FloatArray, first_samples: IntArray) -> None:
        n_lanes, n_datasets = counts.shape
        super().__init__(first_samples, numbers_of_step=n_lanes * n_datasets)
        self._weights = weights  # (n_datasets,)
        self._counts = np.array(counts, dtype=np.float64, order="C")  # (n_lanes, n_datasets)
        # (n_lanes * n_datasets,) a view of _counts: numpy is faster with one index than with two
        self._flat_counts = self._counts.reshape(-1)
        # (n_lanes,) position of each lane's first count in _flat_counts
        self._row_starts = np.arange(n_lanes) * n_datasets

    def counts(self) -> FloatArray:
        """Return a copy of the counts, shape (n_lanes, n_datasets)."""
        return self._counts.copy()

    def _advance_chunk(self, times: FloatArray, picks: NDArray[np.integer]) -> None:
        """Pick the dataset of each sample in a chunk of steps, and count the picks.

        In each step, every lane picks the dataset of its next sample: the one with the largest
        error, weight * time - count.

        Args:
            times: Time of each sample: its number in the blend, but at least 1. Shape (n_steps,
                n_lanes).
            picks: Filled with the number of the dataset of each sample, shape (n_steps, n_lanes).
        """
        # Multiply the weights for all steps at once, since this does not depend on earlier picks.
        products = times[:, :, None] * self._weights  # (n_steps, n_lanes, n_datasets)

        # argmax can only write integers of this type, which is wider than that of the picks.
        datasets = np.empty(picks.shape, np.intp)  # (n_steps, n_lanes)
        # Where the count of each lane's dataset is in _flat_counts; overwritten in each step.
        positions = np.empty_like(self._row_starts)  # (n_lanes,)

        for products_of_step, datasets_of_step in zip(products, datasets, strict=True):
            # No later step needs the products, so the errors overwrite them.
            errors = products_of_step  # (n_lanes, n_datasets)
            np.subtract(products_of_step, self._counts, out=errors)

            # argmax returns the first of several equal errors, as the rule demands.
            errors.argmax(axis=1, out=datasets_of_step)

            # Add 1 to the count of each lane's dataset. A lane has a row of counts, so the count is
            # at row start + dataset. No two lanes change the same count.
            np.add(self._row_starts, datasets_of_step, out=positions)
            self._flat_counts[positions] += 1.0
        picks[:] = datasets


class ColumnLanes(Lanes):
    """Lanes whose counts are columns: fast for many lanes of few datasets.

    argmax along columns is slow in numpy, but the maximum is fast. So each step takes two maxima:
    of the errors, and of the *ranks* of those datasets that have the largest error. The rank of a
    dataset is n_datasets minus its number, so that the first dataset has the highest rank: it is
    the one that the rule picks from several with equal errors. For example, two lanes and three
    datasets:

                                   lane 0   lane 1
        errors of dataset 0          0.5     -0.1
        errors of dataset 1          0.5      0.3
        errors of dataset 2         -1.0     -0.2
        largest error                0.5      0.3

        rank 3 of dataset 0          3        0       0: it does not have the largest error
        rank 2 of dataset 1          2        2
        rank 1 of dataset 2          0        0
        best rank                    3        2
        picks: 3 - best rank         0        1

    Args:
        weights: Weight of each dataset, shape (n_datasets,); at most 255, since ranks are uint8.
        counts: Samples taken of each dataset before the first sample of each lane, shape (n_lanes,
            n_datasets).
        first_samples: Number of the first sample of each lane in the blend, shape (n_lanes,).
    """

    def __init__(self, weights: FloatArray, counts: FloatArray, first_samples: IntArray) -> None:
        """Arrange the counts by datasets, and allocate the arrays that each step overwrites."""
        n_lanes, n_datasets = counts.shape
        super().__init__(first_samples, numbers_of_step=n_lanes)
        self._weights = np.ascontiguousarray(weights[:, None])  # (n_datasets, 1)
        self._counts = np.array(counts.T, dtype=np.float64, order="C")  # (n_datasets, n_lanes)
        # (n_datasets * n_lanes,) a view of _counts: numpy is faster with one index than with two
        self._flat_counts = self._counts.reshape(-1)
        self._lane_numbers = np.arange(n_lanes)  # (n_lanes,) the column of each lane
        # (n_datasets, 1) n_datasets, ..., 2, 1: of equal errors, that of the first dataset wins. As
        # uint8, so that a step moves little memory.
        self._ranks = np.arange(n_datasets, 0, -1).astype(np.uint8)[:, None]

        # Allocating these in every step would take longer than the arithmetic.
        self._errors = np.empty_like(self._counts)  # (n_datasets, n_lanes)
        self._largest_error = np.empty(n_lanes)  # (n_lanes,)
        self._has_largest_error = np.empty(self._errors.shape, bool)  # (n_datasets, n_lanes)
        # (n_datasets, n_lanes) rank of the dataset if its error is the largest, else 0
        self._candidate_ranks = np.empty(self._errors.shape, np.uint8)
        self._best_rank = np.empty(n_lanes, np.uint8)  # (n_lanes,)
        # (n_lanes,) where the count of each lane's dataset is in _flat_counts
        self._positions = np.empty_like(self._lane_numbers)

    def counts(self) -> FloatArray:
        """Return a copy of the counts, shape (n_lanes, n_datasets)."""
        return np.ascontiguousarray(self._counts.T)

    def _advance_chunk(self, times: FloatArray, picks: NDArray[np.integer]) -> None:
        """Pick the dataset of each sample in a chunk of steps, and count the picks.

        Args:
            times: Time of each sample: its number in the blend, but at least 1. Shape (n_steps,
                n_lanes).
            picks: Filled with the number of the dataset of each sample, shape (n_steps, n_lanes).
        """
        for times_of_step, picks_of_step in zip(times, picks, strict=True):
            self._compute_errors(times_of_step)
            datasets = self._first_with_largest_error()
            picks_of_step[:] = datasets
            self._count(datasets)

    def _compute_errors(self, times: FloatArray) -> None:
        """Set the error of each dataset in each lane: weight * time - count.

        Args:
            times: Time of each lane's next sample, shape (n_lanes,).
        """
        # Two operations, so that the product is rounded before the subtraction.
        np.multiply(self._weights, times, out=self._errors)
        np.subtract(self._errors, self._counts, out=self._errors)

    def _first_with_largest_error(self) -> NDArray[np.intp]:
        """Return the first dataset that has the largest error of its lane, for each lane.

        For example, the errors of three datasets in one lane are 0.5, 0.5 and -1.0, and their ranks
        3, 2 and 1. The first two have the largest error, and dataset 0 the higher rank.

        Returns:
            Numbers of datasets, shape (n_lanes,).
        """
        np.maximum.reduce(self._errors, axis=0, out=self._largest_error)  # 0.5
        np.equal(self._errors, self._largest_error, out=self._has_largest_error)  # True True False

        # The first of these datasets has the highest rank: n_datasets minus its number.
        np.multiply(self._has_largest_error, self._ranks, out=self._candidate_ranks)  # 3 2 0
        np.maximum.reduce(self._candidate_ranks, axis=0, out=self._best_rank)  # 3
        return len(self._ranks) - self._best_rank.astype(np.intp)  # dataset 3 - 3 = 0

    def _count(self, datasets: NDArray[np.intp]) -> None:
        """Count one more sample of a dataset in each lane.

        For example, with 4 lanes, the count of dataset 2 in lane 1 is at 2 * 4 + 1 = 9, since the
        counts are stored dataset by dataset.

        Args:
            datasets: The dataset of each lane, shape (n_lanes,).
        """
        np.multiply(datasets, len(self._lane_numbers), out=self._positions)
        np.add(self._positions, self._lane_numbers, out=self._positions)
        self._flat_counts[self._positions] += 1.0  # no two lanes change the same count


def _divide_up(number: int, divisor: int) -> int:
    """Return number / divisor, rounded up."""
    # Floor division rounds towards minus infinity, so the negated quotient is rounded up.
    return -(-number // divisor)
