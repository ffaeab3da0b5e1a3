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
    """Decide for each training sample which dataset it is taken from, so that weights are kept.

    Each next sample is from the dataset that is furthest behind its weight. For example, the
    weights 0.6, 0.3 and 0.1 give the datasets 0, 1, 2, 0, 0 for the first five samples.

    There may be billions of samples, more than fit into memory. So they are yielded in *segments*
    of up to 16 million samples.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        size: Number of samples.
        cost: For tests and benchmarks: counts how many samples were computed twice. This happens
            since many samples are computed at once, from guesses, which are checked afterwards.

    Yields:
        The number of the segment's first sample, and the dataset of each of its samples, shape
        (n_samples,): such as (0, [0, 1, 2, 0, 0]).
    """
    if cost is None:
        cost = SpeculationCost()
    # (n_datasets,) how many samples of each dataset were taken before the segment
    counts = np.zeros(len(weights))
    for start, stop in _segment_ranges(size):
        # Filled with 0 first. With a single dataset, this is the result.
        picks: Picks = np.zeros(stop - start, _picks_dtype(len(weights)))
        if len(weights) > 1:
            counts = _pick_segment(weights, counts, start, picks, cost)
        yield start, picks


def _segment_ranges(size: int) -> Iterator[tuple[int, int]]:
    """Yield the first sample of each segment of a blend, and the one after its last.

    A segment has at most 16,777,216 samples, so that its arrays fit into memory. All segments are
    equally long: 20,000,000 samples are 0 to 10,000,000 and 10,000,000 to 20,000,000.
    """
    n_segments = max(_divide_up(size, _SEGMENT_SAMPLES), 1)
    segment_samples = max(_divide_up(size, n_segments), 1)
    for start in range(0, size, segment_samples):
        yield start, min(start + segment_samples, size)


def _pick_segment(
    weights: FloatArray, counts: FloatArray, start: int, picks: Picks, cost: SpeculationCost
) -> FloatArray:
    """Decide for successive training samples which dataset each is taken from.

    Each next sample is from the dataset that is furthest behind its weight. There are two ways that
    give the same result:

    - One by one. This is simple, but slow.
    - In blocks: the samples are divided into, say, 2048 blocks, which are computed at the same
      time. This is fast if there are many samples.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        counts: How many samples of each dataset were taken before, shape (n_datasets,).
        start: How many samples were taken before.
        picks: Filled with the dataset of each sample, such as 0, 1, 2, 0, 0; shape (n_samples,).
        cost: Counts the work, for benchmarks.

    Returns:
        How many samples of each dataset were taken until the end, shape (n_datasets,).
    """
    # How many blocks are best depends on how many samples each dataset gets. Its weight does not
    # say that if the weights do not add up to 1; its share does.
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
    """Return into how many blocks a range of training samples is divided, and how long they are.

    All blocks are computed at the same time: first the dataset of the first sample of every block,
    then that of the second sample of every block, and so on. So many short blocks are fast.
    But they must not be too short. A block starts from a guess of what was taken before it. The
    effect of a wrong guess fades within the block, but if it is still there at the end of the
    block, the next block has to be computed again.

    For example, 16,777,216 samples of 3 datasets are divided into 2048 blocks of 8192 samples.

    Args:
        shares: Which share of the samples is from each dataset, shape (n_datasets,).
        n_samples: Number of samples.
    """
    # These limits were measured. They decide only how long it takes, not the result.
    max_blocks = _max_blocks(shares * n_samples)
    min_block_samples = max(16 * len(shares), 256)

    block_samples = max(_divide_up(n_samples, max_blocks), min_block_samples)
    return BlockShape(
        n_blocks=_divide_up(n_samples, block_samples),
        block_samples=block_samples,
    )


def _max_blocks(samples_per_dataset: FloatArray) -> int:
    """Return into how many blocks a range of training samples is divided at most.

    The blocks are computed at the same time, each from a guess of how many samples of each dataset
    come before it. A wrong guess costs time, since the block may have to be computed again. Guesses
    are often wrong for rare datasets, so fewer blocks are faster if there are many of these. The
    numbers were measured; they decide only how long it takes, not the result.

    Args:
        samples_per_dataset: About how many of the samples are from each dataset, shape
            (n_datasets,): such as 900000, 99000, 1000.
    """
    n_datasets = len(samples_per_dataset)
    if n_datasets >= _MANY_DATASETS:  # 96
        return 256

    # A dataset with fewer samples than there are blocks is missing from some of the blocks.
    max_blocks = 2048
    n_rare = np.count_nonzero(samples_per_dataset < max_blocks)
    has_many_rare_datasets = n_rare > max(n_datasets / 4, 2)
    if has_many_rare_datasets:
        return 512
    return max_blocks


def take_one_by_one(
    weights: FloatArray, counts: FloatArray, start: int, picks: Picks
) -> FloatArray:
    """Decide for successive training samples which dataset each is taken from, one by one.

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
        picks: Filled with the dataset of each sample, shape (n_samples,).

    Returns:
        How many samples of each dataset were taken until the end, shape (n_datasets,).
    """
    counts = counts.copy()
    # (n_datasets,) overwritten for each sample: allocating it each time would take longer
    errors = np.empty(len(weights))
    for position in range(len(picks)):
        time = float(max(start + position, 1))

        # The trainers round the product before they subtract. A single fused operation would not,
        # and might pick another dataset.
        np.multiply(weights, time, out=errors)
        np.subtract(errors, counts, out=errors)

        dataset = errors.argmax()  # of several equal errors, the first one, as in the trainers
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
    """Decide for many training samples which dataset each is taken from, many samples at a time.

    A loop over the samples is slow: each choice depends on how many samples of each dataset were
    taken before. So the samples are divided into blocks, and these numbers are guessed for the
    start of each block. Then all blocks can be computed at the same time. For blocks of 4 samples:

        block                                0             1             2
        guess: taken before it               0, 0          2, 2          5, 3
        datasets of its samples              0, 1, 0, 1    0, 0, 1, 0    1, 0, 0, 1
        taken until its end                  2, 2          5, 3          7, 5

    Each guess equals what was taken until the end of the block before, so all blocks are right. A
    block with a wrong guess is computed again.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        counts: How many samples of each dataset were taken before, shape (n_datasets,).
        start: How many samples were taken before.
        picks: Filled with the dataset of each sample, shape (n_samples,).
        shape: Number of blocks, and their length; the last block may extend beyond `picks`.
        cost: Counts the work, for benchmarks.

    Returns:
        How many samples of each dataset were taken until the end, shape (n_datasets,).
    """
    cost.segments += 1
    blocks = _SpeculatedBlocks(weights, counts, start, shape, picks.dtype)
    n_right = _repair_blocks(blocks, shape, cost)  # how many of the first blocks are right

    # Take the results of the blocks that are right: nearly always all of them.
    n_done = min(n_right * shape.block_samples, len(picks))
    picks[:n_done] = blocks.picks_in_order(n_right)[:n_done]
    counts_after = blocks.counts_after(n_right, picks[:n_done])

    # If repairs took too long, some blocks are left. Compute their samples one by one.
    cost.sequential += len(picks) - n_done
    return take_one_by_one(weights, counts_after, start + n_done, picks[n_done:])


def _repair_blocks(blocks: _SpeculatedBlocks, shape: BlockShape, cost: SpeculationCost) -> int:
    """Compute blocks of samples again until they fit together, or until it takes too long.

    The blocks decide which dataset each sample is taken from. They were computed at the same time,
    each from a guess of how many samples of each dataset come before it. A block is *wrong* if it
    started with other counts than the block before it ended with:

        block                 0        1        2
        counts at its start   0, 0     3, 1     5, 3
        counts at its end     2, 2     5, 3     7, 5
        wrong?                         yes

    Block 1 is computed again, from 2, 2. If it ends with 5, 3 as before, all blocks are right. If
    it ends with other counts, block 2 is wrong in the next round.

    Args:
        blocks: The blocks. Wrong ones are computed again.
        shape: Number of blocks, and samples in each.
        cost: Counts the work, for benchmarks.

    Returns:
        How many blocks are right, counted from the first one to the first wrong one.
    """
    # Stop when repairs take as long as computing all samples one by one would: 1.5 microseconds
    # for a sample, and 0.001 for each dataset, as measured on one core.
    n_samples = shape.n_blocks * shape.block_samples
    max_microseconds = n_samples * (1.5 + 0.001 * len(blocks.weights))

    microseconds = 0.0
    wrong_blocks = blocks.find_wrong()
    while len(wrong_blocks) > 0 and microseconds <= max_microseconds:
        microseconds += blocks.repair(wrong_blocks, cost)
        wrong_blocks = blocks.find_wrong()

    if len(wrong_blocks) > 0:
        return int(wrong_blocks[0])
    return shape.n_blocks


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
        """Decide which dataset each sample is from, for all blocks of samples at the same time.

        Each block needs to know how many samples of each dataset come before it. This is guessed.
        For three blocks of 4 samples:

            block                0             1             2
            first_samples        0             4             8
            start_counts         0, 0          2, 2          5, 3        guesses, except for block 0
            picks (datasets)     0, 1, 0, 1    0, 0, 1, 0    1, 0, 0, 1
            end_counts           2, 2          5, 3          7, 5
        """
        self.weights = weights
        block_numbers = np.arange(shape.n_blocks, dtype=np.int64)
        self.first_samples = start + block_numbers * shape.block_samples  # (n_blocks,)

        # (n_blocks, n_datasets) samples of each dataset before each block
        self.start_counts = guess_counts(weights, counts, self.first_samples)
        self.start_counts[0] = counts  # known

        # (block_samples, n_blocks) dataset of each sample: row i has the i-th sample of every block
        self.picks = np.zeros((shape.block_samples, shape.n_blocks), dtype)
        lanes = lanes_of(weights, self.start_counts, self.first_samples)
        lanes.advance(self.picks)  # fills them
        # (n_blocks, n_datasets) samples of each dataset up to the end of each block
        self.end_counts = lanes.counts()

    def find_wrong(self) -> IntArray:
        """Return the blocks of samples that were computed from a wrong guess.

        Which dataset a sample is taken from depends on how many samples of each dataset were taken
        before: the *counts*. These were guessed for the start of each block. The guess was wrong if
            it
        differs from the counts at the end of the block before:

            block           0        1        2
            start_counts    0, 0     3, 1     5, 3
            end_counts      2, 2     5, 3     7, 5
            wrong?                   yes               (3, 1 is not 2, 2)

        Returns:
            Numbers of the wrong blocks, ascending, such as [1]; shape (n_wrong,). Block 0 is never
            wrong, since it starts with true counts.
        """
        right_start_counts = self.end_counts[:-1]  # of blocks 1, 2, ...; (n_blocks - 1, n_datasets)
        is_different = self.start_counts[1:] != right_start_counts  # (n_blocks - 1, n_datasets)
        is_wrong = is_different.any(axis=1)  # (n_blocks - 1,)
        return np.flatnonzero(is_wrong) + 1  # the first of these blocks has the number 1

    def repair(self, wrong_blocks: IntArray, cost: SpeculationCost) -> float:
        """Compute blocks of samples again that started from wrong numbers.

        A block decides which dataset each of its samples is taken from. This depends on its
        *counts*: how many samples of each dataset were taken so far. Blocks were computed from
        guessed counts. In this example, the right counts at the start are 2, 2, and 3, 1 was
        guessed:

            sample of the block     0       1       2       3
            old dataset             1       0       1       0
            old counts after it     3, 2    4, 2    4, 3    5, 3
            new dataset             0
            new counts after it     3, 2
            difference              0, 0

        After sample 0, the new counts equal the old ones. So the other samples are right already,
        and the block is done. Nearly all blocks are done so soon.

        Args:
            wrong_blocks: Numbers of the blocks, ascending, shape (n_wrong,).
            cost: Counts the work, for benchmarks.

        Returns:
            How many microseconds this took. It is estimated from the number of steps, not measured.
        """
        cost.passes += 1
        microseconds = 0.0
        running = self._restart(wrong_blocks)  # the blocks that are not done
        for samples in _ranges_between_checks(len(self.picks)):
            # Compute these samples, such as those from 32 to 96, in all these blocks at once, and
            # update by how much the new counts differ from the old ones.
            running.differences += self._pick_again(running.blocks, samples, running.lanes)

            n_blocks = len(running.blocks)
            n_steps = samples.stop - samples.start
            cost.redone += n_steps * n_blocks
            microseconds += n_steps * _step_cost(len(self.weights), n_blocks)

            if not running.differences.any():
                break  # all blocks are done
            running = self._without_equal(running, samples.stop)

        # Blocks that were not done before their end end with other counts than before, so the
        # blocks after them may be wrong now. (If all are done, this adds zeros.)
        self.end_counts[running.blocks] += running.differences
        return microseconds

    def _restart(self, wrong_blocks: IntArray) -> _RunningBlocks:
        """Prepare to compute blocks of samples again that started from wrong numbers.

        All blocks were computed at the same time. So each had to guess its *counts*: how many
        samples of each dataset come before it. Now the block before it is computed, and says how
        many there really are. For example, the guess of block 5 was wrong:

            counts at the end of block 4         2, 2       `end_counts`
            counts at the start of block 5       3, 1       `start_counts`, becomes 2, 2
            difference                           -1, 1      new minus old

        The block is computed from 2, 2. The difference tells when this can stop: as soon as it is
        0, all further samples are the same as before.

        Args:
            wrong_blocks: Numbers of the blocks, ascending, such as [5]; shape (n_wrong,). Block 0
                is never wrong.
        """
        right_counts = self.end_counts[wrong_blocks - 1]  # (n_wrong, n_datasets) [[2, 2]]
        differences = right_counts - self.start_counts[wrong_blocks]  # [[-1, 1]]
        self.start_counts[wrong_blocks] = right_counts

        # An object that computes all these blocks at the same time, from the right counts.
        lanes = lanes_of(self.weights, right_counts, self.first_samples[wrong_blocks])
        return _RunningBlocks(wrong_blocks, differences, lanes)

    def _without_equal(self, running: _RunningBlocks, n_done: int) -> _RunningBlocks:
        """Leave out the blocks of samples that need not be computed any further.

        These blocks are computed a second time, since the first time started from wrong *counts*,
        the numbers of samples taken so far of each dataset. The counts alone decide which datasets
        the next samples are taken from. So as soon as a block has the same counts as the first
        time, its other samples are right already. For example, after 32 samples:

            block                     3         5
            counts the first time     20, 12    18, 14
            counts this time          20, 12    17, 15
            `running.differences`     0, 0      -1, 1
            stays                     no        yes

        `running.lanes` is the object that computes the next samples of all blocks together. It
        cannot drop a block, so make a new one, which continues the other blocks where the old one
        has stopped.

        Args:
            running: The blocks that are computed again: [3, 5].
            n_done: How many samples of each of them were computed: 32.

        Returns:
            The blocks whose counts differ: [5].
        """
        is_different = running.differences.any(axis=1)  # (n_running,) [False, True]
        if is_different.all():
            return running  # without copying all counts

        blocks = running.blocks[is_different]  # [5]
        counts = running.lanes.counts()[is_different]  # [[17, 15]]
        next_samples = self.first_samples[blocks] + n_done  # the 32 first ones are done
        lanes = lanes_of(self.weights, counts, next_samples)
        return _RunningBlocks(blocks, running.differences[is_different], lanes)

    def _pick_again(self, blocks: IntArray, samples: slice, lanes: Lanes) -> IntArray:
        """Decide again which datasets some samples are taken from, and return what has changed.

        The samples are divided into blocks. The first time, these blocks started from wrong numbers
        of samples taken before. So they are computed again, the same samples of all blocks at once.
        `picks` has a column for each block, and a row for the first samples of all blocks, one for
        the second, and so on. For example, samples 0 to 2 of the blocks 3 and 5:

                       datasets the first time     datasets this time
            block      3    5                      3    5
            sample 0   0    1                      1    1
            sample 1   1    0                      1    0
            sample 2   0    0                      0    0

        Block 3 has one sample of dataset 0 less than before, and one of dataset 1 more. So the
        result is [-1, 1] for block 3, and [0, 0] for block 5.

        Args:
            blocks: Numbers of the blocks: [3, 5]; shape (n_blocks,).
            samples: Which samples of each block, such as those from 32 to 96.
            lanes: Computes the next samples of all these blocks together. It has computed them up
                to the first of `samples`.

        Returns:
            How many more samples are taken of each dataset than the first time, shape (n_blocks,
            n_datasets).
        """
        old_picks = self.picks[samples, blocks]  # (n_samples, n_blocks)
        new_picks = np.empty_like(old_picks)
        lanes.advance(new_picks)  # fills them
        self.picks[samples, blocks] = new_picks

        n_datasets = len(self.weights)
        old_counts = _counts_by_lane(old_picks, n_datasets)  # (n_blocks, n_datasets)
        new_counts = _counts_by_lane(new_picks, n_datasets)
        return new_counts - old_counts

    def counts_after(self, n_blocks: int, picks: Picks) -> FloatArray:
        """Return how many samples of each dataset were taken until the end of a block.

        The samples are divided into blocks, and it is known how many of each dataset were taken
        before each block. So only the samples of this block are counted:

            before the block                   5, 2
            datasets of its samples            0, 0, 1     two of dataset 0, one of dataset 1
            result                             7, 3

        Args:
            n_blocks: How many blocks there are up to this one.
            picks: The dataset of each sample of all these blocks. The samples may end within the
                last block.

        Returns:
            Counts, shape (n_datasets,).
        """
        block = n_blocks - 1
        block_samples = len(self.picks)
        picks_of_block = picks[block * block_samples :]
        counts: FloatArray = self.start_counts[block].copy()
        counts += np.bincount(picks_of_block, minlength=len(self.weights))
        return counts

    def picks_in_order(self, n_blocks: int) -> Picks:
        """Return the dataset of each sample of the first blocks, in the order of the samples.

        All blocks of samples are computed at the same time, so the results are stored in another
        order:

            self.picks            block 0    block 1    block 2
            first samples         0          2          0
            second samples        1          0          0

            result for 2 blocks   0, 1, 2, 0

        Args:
            n_blocks: How many blocks.

        Returns:
            Numbers of datasets, shape (n_blocks * block_samples,).
        """
        # Copy the columns of these blocks to rows, and put the rows one after another.
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
    """Yield which samples of a block are computed before each check whether the block is done.

    The first ranges are short, because nearly all blocks are done soon. For a block of 300 samples:
    0 to 31, 32 to 95, 96 to 223 and 224 to 299. The longest ranges have 1024 samples.
    """
    start = 0
    n_steps = _FIRST_CHECK_STEPS
    while start < block_samples:
        stop = min(start + n_steps, block_samples)
        yield slice(start, stop)
        start = stop
        n_steps = min(2 * n_steps, _MAX_CHECK_STEPS)


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


def _counts_by_lane(picks: NDArray[np.integer], n_datasets: int) -> IntArray:
    """Count how many samples of each dataset were taken in each lane.

    A lane is a range of samples that is computed in parallel with others. For example, two lanes of
    three samples, with two datasets:

        datasets of the samples         lane 0    lane 1
        first samples                   0         1
        second samples                  0         1
        third samples                   1         1

        count of dataset 0              2         0
        count of dataset 1              1         3

    `np.bincount` counts in one dimension only. So each pair of a lane and a dataset gets a number,
    lane * n_datasets + dataset: the samples above have 0, 3, 0, 3, 1, 3.

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
    """Return which share of the training samples is taken from each dataset in the long run.

    Each next sample is from the dataset that is furthest behind its weight. If the weights add up
    to 1, they are the shares. If not, the datasets fall behind (or get ahead) by the same amount
    per sample in the end, and those with a smaller weight are never taken again. So subtract an
    amount from all weights, and replace results below 0 by 0, such that the shares add up to 1:

        weight      0.9    0.5    0.1
        - 0.2       0.7    0.3   -0.1
        share       0.7    0.3    0

    Args:
        weights: Weight of each dataset, shape (n_datasets,).

    Returns:
        Share of each dataset, shape (n_datasets,).
    """
    # Suppose that only the k largest weights get a share. Then which amount has to be subtracted
    # from these, so that they add up to 1? In the example, for k = 1, 2 and 3:
    descending = np.sort(weights)[::-1]  # [0.9, 0.5, 0.1]
    sums = np.cumsum(descending)  # [0.9, 1.4, 1.5]
    k = np.arange(1, len(weights) + 1)  # [1, 2, 3]
    amounts = (sums - 1.0) / k  # [-0.1, 0.2, 0.17]

    # The k-th weight must get a share greater than 0, so it must be larger than the amount. The
    # right k is the largest one for which it is: 2, since 0.5 > 0.2, but 0.1 < 0.17.
    gets_share = descending > amounts  # [True, True, False]
    last_index = np.flatnonzero(gets_share)[-1]
    shares: FloatArray = np.maximum(weights - amounts[last_index], 0.0)
    return shares


def lanes_of(weights: FloatArray, counts: FloatArray, first_samples: IntArray) -> Lanes:
    """Return an object that decides which datasets samples are taken from, at many places at once.

    Each next training sample is taken from the dataset that is furthest behind its weight. To be
    fast, this is computed for several ranges of samples at the same time. A range is called a
    *lane*. For example, two lanes that start at the samples 0 and 4:

        lane 0 computes the samples    0, 1, 2, 3
        lane 1 computes the samples    4, 5, 6, 7
                                       ↑ both at once, then the next two, and so on

    There are two classes that do this, with the same results. Measurements showed which one is
    faster for how many lanes and datasets.

    Args:
        weights: Weight of each dataset, shape (n_datasets,).
        counts: How many samples of each dataset come before each lane, shape (n_lanes, n_datasets).
        first_samples: Number of the first sample of each lane, shape (n_lanes,): [0, 4].
    """
    n_lanes, n_datasets = counts.shape
    if n_lanes <= _FEW_LANES or n_datasets >= _MANY_DATASETS:  # 512 and 96
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
        """Decide which dataset each of the next samples is from, in many ranges of samples at once.

        Such a range is called a *lane*. A step computes one sample of each lane. Some steps at a
        time form a chunk, such that the arrays for it fit into the processor's cache.

        Args:
            picks: Filled with the dataset of each sample, shape (n_steps, n_lanes).
        """
        for start in range(0, len(picks), self._chunk_steps):
            chunk = picks[start : start + self._chunk_steps]  # (n_steps of the chunk, n_lanes)
            self._advance_chunk(self._times(len(chunk)), chunk)
            self._next_samples += len(chunk)

    def _times(self, n_steps: int) -> FloatArray:
        """Return the numbers of the next samples, but at least 1, as the trainers count.

        A sample is taken from the dataset for which weight * number - (samples taken so far) is
        largest. For sample 0 this would be 0 for all datasets. So 1 is used in place of 0, and the
        first sample is from the dataset with the largest weight.

        For example, two ranges of samples (*lanes*) are computed at once. One continues at sample 0
        and the other one at sample 4. For the next three samples of each:

            lane 0    lane 1
            1         4         1 in place of 0
            1         5
            2         6

        Args:
            n_steps: How many samples of each range: 3.

        Returns:
            Numbers, shape (n_steps, n_lanes).
        """
        steps = np.arange(n_steps, dtype=np.float64)[:, None]  # (n_steps, 1) 0, 1, 2
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
        """Decide for many samples which dataset each is taken from.

        The samples are those of several ranges, called *lanes*. A step computes one sample of each
        lane. It is from the dataset with the largest error, weight * time - count, which is the one
        that is furthest behind its weight. A step of two lanes and three datasets:

                                              lane 0            lane 1
            weights * time                    1.5  0.9  0.6     2.0  1.2  0.8
            counts so far                     1    1    1       2    1    1
            errors                            0.5 -0.1 -0.4     0.0  0.2 -0.2
            dataset with the largest          0                 1
            counts afterwards                 2    1    1       2    2    1

        Args:
            times: Number of each sample, but at least 1. Shape (n_steps, n_lanes).
            picks: Filled with the dataset of each sample, shape (n_steps, n_lanes).
        """
        # Multiply for all steps at once, since this does not depend on the counts.
        products = times[:, :, None] * self._weights  # (n_steps, n_lanes, n_datasets)

        # Allocate arrays once, and not in each step. argmax demands the type intp.
        datasets = np.empty(picks.shape, np.intp)  # (n_steps, n_lanes)
        positions = np.empty_like(self._row_starts)  # (n_lanes,)

        for products_of_step, datasets_of_step in zip(products, datasets, strict=True):
            # No later step needs these products, so the errors overwrite them.
            errors = products_of_step  # (n_lanes, n_datasets)
            np.subtract(products_of_step, self._counts, out=errors)

            # Of several equal errors, argmax takes the first one, as the trainers do.
            errors.argmax(axis=1, out=datasets_of_step)

            # Add 1 to one count of each lane. In the flat array of all counts, lane 0 has the
            # positions 0, 1, 2 and lane 1 has 3, 4, 5. So the counts are at 0 + 0 and 3 + 1.
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
        """Arrange the counts by datasets, and allocate the arrays that each step overwrites.

        Allocating them in every step would take longer than the arithmetic.
        """
        n_lanes, n_datasets = counts.shape
        super().__init__(first_samples, numbers_of_step=n_lanes)
        self._weights = np.ascontiguousarray(weights[:, None])  # (n_datasets, 1)
        self._counts = np.array(counts.T, dtype=np.float64, order="C")  # (n_datasets, n_lanes)
        # (n_datasets * n_lanes,) a view of _counts: numpy is faster with one index than with two
        self._flat_counts = self._counts.reshape(-1)
        self._lane_numbers = np.arange(n_lanes)  # (n_lanes,) the column of each lane

        # (n_datasets, 1) n_datasets, ..., 2, 1: of several datasets with the largest error, the
        # first one has the highest rank. One byte each, so that a step moves little memory.
        self._ranks = np.arange(n_datasets, 0, -1).astype(np.uint8)[:, None]

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
        """Decide for many samples which dataset each is taken from.

        Datasets are mixed by weight: the next sample is from the dataset that is furthest behind
        its weight, which has the largest *error*, weight * number - count. For example, the weights
        are 0.75 and 0.25, and the samples 0 to 2 were 2 of dataset 0 and 1 of dataset 1:

            error of dataset 0 for sample 3    0.75 * 3 - 2 =  0.25    the largest: take it from 0
            error of dataset 1                 0.25 * 3 - 1 = -0.25

        A sample depends on those before it. But ranges of samples that are far apart, called
        *lanes*, are computed at the same time, each from its own counts. A step computes the next
        sample of each lane:

            picks       lane 0    lane 1
            step 0      0         1         sample 3 in lane 0
            step 1      0         0
            step 2      1         0

        Args:
            times: Number of each sample, but at least 1. Shape (n_steps, n_lanes).
            picks: Filled with the dataset of each sample, shape (n_steps, n_lanes).
        """
        for times_of_step, picks_of_step in zip(times, picks, strict=True):
            self._compute_errors(times_of_step)  # self._errors: [[0.25], [-0.25]] for lane 0
            datasets = self._first_with_largest_error()  # (n_lanes,) [0]
            picks_of_step[:] = datasets
            self._count(datasets)  # the next errors depend on the new counts: 3 and 1

    def _compute_errors(self, times: FloatArray) -> None:
        """Compute how far each dataset is behind its weight: weight * time - count.

        For example, at time 3, a dataset with the weight 0.5 of which 1 sample was taken has the
        error 0.5. The result is stored in `self._errors`, for each dataset (row) and each lane
        (column). A lane is a range of samples; all lanes are computed at the same time.

        Args:
            times: Number of the next sample of each lane, but at least 1. Shape (n_lanes,).
        """
        # Two operations, so that the product is rounded before the subtraction.
        np.multiply(self._weights, times, out=self._errors)
        np.subtract(self._errors, self._counts, out=self._errors)

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

    def _count(self, datasets: NDArray[np.intp]) -> None:
        """Count one more sample of a dataset in each lane, a range of samples that is computed.

        The counts are stored dataset by dataset. For example, with 4 lanes:

            position in the flat array    0 1 2 3    4 5 6 7    8 9 10 11
            dataset                       0 0 0 0    1 1 1 1    2 2 2  2
            lane                          0 1 2 3    0 1 2 3    0 1 2  3

        So the count of dataset 2 in lane 1 is at 2 * 4 + 1 = 9.

        Args:
            datasets: The dataset of each lane, shape (n_lanes,).
        """
        n_lanes = len(self._lane_numbers)
        np.multiply(datasets, n_lanes, out=self._positions)
        np.add(self._positions, self._lane_numbers, out=self._positions)
        self._flat_counts[self._positions] += 1.0  # no two lanes change the same count


def _divide_up(number: int, divisor: int) -> int:
    """Return number / divisor, rounded up."""
    # Floor division rounds towards minus infinity, so the negated quotient is rounded up.
    return -(-number // divisor)
