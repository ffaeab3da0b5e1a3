"""The greedy of a blend by speculation: see `blending` for the rule and the reason.

A *segment* is a run of blocks that are speculated together. It begins with true counts, so scratch stays the size of a
segment however long the blend is. A *lane* is a block that is being advanced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanoset_core.mapping.lanes import WIDE_DATASETS, Lanes, Picks, counts_by_lane, take_one_by_one, transposed

_SEGMENT_SAMPLES = 1 << 24
_CHECK_STEPS = 32
_FEW_LANES = 5  # so many blocks are repaired one sample at a time
_THRESHOLD = 0.75  # error at which a dataset is guessed to be taken


@dataclass(slots=True)
class Work:
    """What speculation cost, for tests and benchmarks."""

    segments: int = 0
    """Segments that were speculated."""
    passes: int = 0
    """Repair passes."""
    redone: int = 0
    """Samples that were taken again in repair passes."""
    sequential: int = 0
    """Samples that were taken one by one: short segments, and what was left when the budget was used up."""


def greedy_segments(weights: NDArray[np.float64], size: int, work: Work | None = None) -> Iterator[tuple[int, Picks]]:
    """Yield (first sample, datasets of the samples from there) in order, as the plain loop picks them."""
    work = Work() if work is None else work
    dtype = np.uint8 if len(weights) <= 255 else np.uint16
    shares = simplex_projection(weights)
    counts = np.zeros(len(weights))
    step = -(-size // max(-(-size // _SEGMENT_SAMPLES), 1)) or 1
    for begin in range(0, size, step):
        picks = np.zeros(min(step, size - begin), dtype)
        blocks, length = block_shape(len(weights), len(picks))
        if blocks > 1 and len(weights) > 1:
            counts = _Segment(weights, shares, counts, begin, picks, blocks, length, work).run()
        elif len(weights) > 1:
            work.sequential += len(picks)
            take_one_by_one(weights, counts, begin, picks)
        yield begin, picks


def block_shape(datasets: int, samples: int) -> tuple[int, int]:
    """(blocks, samples per block) for a segment: blocks long enough to forget a wrong start."""
    most = 4096 if datasets < WIDE_DATASETS else max((1 << 15) // datasets, 16)
    length = max(-(-samples // most), 16 * datasets, 1024)
    return -(-samples // length), length


def simplex_projection(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The long-run share of each dataset: weights less a common amount, not below 0, with sum 1."""
    falling = np.sort(weights)[::-1]
    excess = (np.cumsum(falling) - 1.0) / np.arange(1, len(weights) + 1)
    return np.maximum(weights - excess[np.flatnonzero(falling > excess)[-1]], 0.0)


class _Segment:
    """Blocks of equal length, the last one cut short, from sample `begin` on with the true counts there."""

    def __init__(
        self,
        weights: NDArray[np.float64],
        shares: NDArray[np.float64],
        counts: NDArray[np.float64],
        begin: int,
        picks: Picks,
        blocks: int,
        length: int,
        work: Work,
    ) -> None:
        """picks: filled by `run`. shares: long-run shares of the datasets, for the guess."""
        self.weights, self.shares, self.counts, self.picks, self.work = weights, shares, counts, picks, work
        self.length = length
        # [blocks]: first sample of each
        self.at = begin + np.arange(blocks, dtype=np.int64) * length
        # [length, blocks]: picks as steps produce them; rows of whole 8-byte words
        self.steps = np.zeros((length, -(-blocks // 8) * 8), picks.dtype)
        work.segments += 1

    def run(self) -> NDArray[np.float64]:
        """Fill the picks; return the true counts after them."""
        self._speculate()
        spent = 0.0
        while len(wrong := self._wrong_starts()):
            first = int(wrong[0])
            left = len(self.picks) - first * self.length
            if spent > left * _one_by_one_cost(len(self.weights)):
                return self._finish_one_by_one(first)
            spent += self._repair(wrong)
        self._publish(len(self.at))
        last = self.picks[(len(self.at) - 1) * self.length :]
        return self.starts[-1] + np.bincount(last, minlength=len(self.weights))

    def _speculate(self) -> None:
        """Advance every block from a guess, after some steps in front of it in which wrong counts come right."""
        datasets = len(self.weights)
        rare = self.weights.min() * self.length < 1.0
        warm = min(max(64, 4 * datasets, 1024 if rare else 0), self.length)
        warming = Lanes(self.weights, _guess(self.shares, self.counts, self.at[1:] - warm, warm), self.at[1:] - warm)
        for _ in range(warm):
            warming.step()
        # [blocks, datasets]: counts assumed at each block's start
        self.starts = np.concatenate((self.counts[None, :], warming.counts()))
        lanes = Lanes(self.weights, self.starts, self.at)
        for step in range(self.length):
            self.steps[step, : len(self.at)] = lanes.step()
        # [blocks, datasets]: counts at each block's end
        self.ends = np.ascontiguousarray(lanes.counts())

    def _wrong_starts(self) -> NDArray[np.int64]:
        """Blocks that do not begin with the counts that the block before them ends with."""
        return np.flatnonzero((self.ends[:-1] != self.starts[1:]).any(axis=1)) + 1

    def _repair(self, wrong: NDArray[np.int64]) -> float:
        """Run wrong blocks again, from the ends of the blocks before; return the cost.

        The first of them begins with the truth then: every pass makes a block right at least.
        """
        # [lanes, datasets]: counts of the new course less counts of the old one
        apart = self.ends[wrong - 1] - self.starts[wrong]
        self.starts[wrong] += apart
        self.work.passes += 1
        redo = self._redo_one_by_one if len(wrong) <= _FEW_LANES else self._redo
        return redo(wrong, apart) * _step_cost(len(self.weights), len(wrong))

    def _redo(self, live: NDArray[np.int64], apart: NDArray[np.float64]) -> int:
        """Run blocks until they meet their old course; return the steps taken."""
        lanes, datasets = Lanes(self.weights, self.starts[live], self.at[live]), len(self.weights)
        step = 0
        while step < self.length and len(live):
            count = min(_CHECK_STEPS, self.length - step)
            # [count, lanes]
            new = np.array([lanes.step() for _ in range(count)])
            old = self.steps[step : step + count, live]
            apart += counts_by_lane(new, datasets) - counts_by_lane(old, datasets)
            self.steps[step : step + count, live] = new
            self.work.redone += new.size
            step += count
            running = apart.any(axis=1)
            if not running.all():
                live, apart = live[running], apart[running]
                lanes = Lanes(self.weights, lanes.counts()[running], self.at[live] + step)
        self.ends[live] += apart
        return step

    def _redo_one_by_one(self, blocks: NDArray[np.int64], apart: NDArray[np.float64]) -> int:
        """As `_redo`, one sample after the other: faster for few blocks."""
        longest = 0
        new = np.empty(_CHECK_STEPS, self.steps.dtype)
        for block, moved in zip(blocks.tolist(), apart, strict=True):
            counts = self.starts[block].copy()
            for step in range(0, self.length, _CHECK_STEPS):
                old = self.steps[step : step + _CHECK_STEPS, block]
                take_one_by_one(self.weights, counts, int(self.at[block]) + step, new[: len(old)])
                np.add.at(moved, new[: len(old)], 1.0)
                np.subtract.at(moved, old, 1.0)
                old[:] = new[: len(old)]
                self.work.redone += len(old)
                longest = max(longest, step + len(old))
                if not moved.any():
                    break
            else:
                self.ends[block] += moved
        return longest

    def _finish_one_by_one(self, first: int) -> NDArray[np.float64]:
        """Take block `first` and all after it in the plain loop; return the true counts after them."""
        self._publish(first)
        rest = self.picks[first * self.length :]
        self.work.sequential += len(rest)
        counts = self.ends[first - 1].copy()
        take_one_by_one(self.weights, counts, int(self.at[first]), rest)
        return counts

    def _publish(self, blocks: int) -> None:
        """Copy the steps of the first `blocks` blocks to the picks."""
        whole = transposed(self.steps)[:blocks].reshape(-1)
        count = min(len(whole), len(self.picks))
        self.picks[:count] = whole[:count]


def _guess(
    shares: NDArray[np.float64], counts: NDArray[np.float64], at: NDArray[np.int64], warm: int
) -> NDArray[np.float64]:
    """Counts near the greedy's at samples `at`, [len(at), datasets]; counts are those where the segment begins.

    A rarely taken dataset is guessed late: warming up makes up for it, while one that was taken too early stays wrong
    until its time comes. So only often taken ones make the sum right.
    """
    due = at[:, None].astype(np.float64) * shares
    guess = np.maximum(np.ceil(due - _THRESHOLD), counts)
    short = (at - guess.sum(axis=1))[:, None]
    lead = np.where(shares * warm < 2.0, 0.0, guess - due)
    # rank 0 is the dataset that lags most
    rank = np.argsort(np.argsort(lead, axis=1, kind="stable"), axis=1, kind="stable")
    guess += rank < short
    guess -= (rank >= len(shares) + short) & (guess > counts)
    return guess


def _step_cost(datasets: int, lanes: int) -> float:
    """Microseconds of a repair step, roughly."""
    return 12.0 + lanes * (0.02 + 0.001 * datasets)


def _one_by_one_cost(datasets: int) -> float:
    """Microseconds of a sample in the plain loop, roughly."""
    return 2.0 + 0.001 * datasets
