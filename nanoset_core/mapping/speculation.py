"""The greedy of a blend by speculation: see `blending` for the rule and the reason.

A *segment* is a run of blocks that are speculated together. It begins with true counts, so scratch stays the size of a
segment however long the blend is. A *lane* is a block that is being advanced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanoset_core.mapping.greedy import WIDE_DATASETS, Lanes, Picks, counts_by_lane, take_one_by_one, transposed
from nanoset_core.mapping.turns import dominant, take_turns

_SAMPLES_PER_EVENT = 500
_FEWEST_EVENTS, _MOST_EVENTS = 16, 2000
_SEGMENT_SAMPLES = 1 << 24
_MOST_BLOCKS = 512
_TURNS = 32  # in a block that is mostly of one dataset
_TURN_COST = 4.0  # of a turn, in steps that take one sample
_CHECK_STEPS = 32  # at first, then twice as many each time
_MOST_CHECK_STEPS = 1024


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
    shares, counts = simplex_projection(weights), np.zeros(len(weights))
    step = -(-size // max(-(-size // _SEGMENT_SAMPLES), 1)) or 1
    for begin in range(0, size, step):
        samples = min(step, size - begin)
        picks: Picks = np.zeros(samples, np.uint8) if len(weights) <= 255 else np.zeros(samples, np.uint16)
        most = dominant(weights, shares, begin + samples) if len(weights) > 1 else None
        blocks, length = block_shape(shares, len(picks))
        if most is not None:
            counts = _MostlyOne(weights, counts, begin, picks, most, work).run()
        elif blocks > 1 and len(weights) > 1:
            counts = _Segment(weights, counts, begin, picks, (blocks, length), work).run()
        elif len(weights) > 1:
            work.sequential += len(picks)
            take_one_by_one(weights, counts, begin, picks)
        yield begin, picks


def block_shape(shares: NDArray[np.float64], samples: int) -> tuple[int, int]:
    """(blocks, samples per block) for a segment: blocks long enough to forget a wrong start."""
    datasets = len(shares)
    most = 2048 if datasets < WIDE_DATASETS else 256
    # many that are taken less than once a block: fewer, longer blocks are wrong less often
    if np.count_nonzero(shares * samples < most) > max(datasets / 4, 2):
        most = min(most, 512)
    length = max(-(-samples // most), 16 * datasets, 256)
    return -(-samples // length), length


class _Segment:
    """Blocks of equal length, the last one cut short, from sample `begin` on with the true counts there."""

    def __init__(
        self,
        weights: NDArray[np.float64],
        counts: NDArray[np.float64],
        begin: int,
        picks: Picks,
        shape: tuple[int, int],
        work: Work,
    ) -> None:
        """Prepare a segment.

        Args:
            weights: shape (datasets,).
            counts: samples taken of each dataset before `begin`, shape (datasets,).
            begin: first sample.
            picks: dataset of each sample, filled by `run`.
            shape: as of `block_shape`.
            work: gets what it cost.
        """
        blocks, self.length = shape
        self.weights, self.picks, self.work = weights, picks, work
        self.guess = Guess(weights, begin, len(picks), counts)
        # (datasets,): taken less than once a block, so that a wrong count lasts
        self.slow = self.guess.shares * self.length < 1.0
        # (blocks,): first sample of each
        self.at = begin + np.arange(blocks, dtype=np.int64) * self.length
        work.segments += 1

    def run(self) -> NDArray[np.float64]:
        """Fill the picks; return the true counts after them."""
        self._speculate()
        spent, budget = 0.0, len(self.picks) * _one_by_one_cost(len(self.weights))
        reach = np.ones(len(self.at) + 1, np.int64)
        while len(wrong := self._wrong_starts()):
            if spent > budget:
                return self._finish_one_by_one(int(wrong[0]))
            blocks, starts, reach = self._restarts(wrong, reach)
            spent += self._repair(blocks, starts)
        self._publish(len(self.at))
        last = self.picks[(len(self.at) - 1) * self.length :]
        after: NDArray[np.float64] = self.starts[-1] + np.bincount(last, minlength=len(self.weights))
        return after

    def _speculate(self) -> None:
        """Advance every block from a guess."""
        # (blocks, datasets): counts assumed at each block's start
        self.starts = self.guess.counts(self.at)
        self.starts[0] = self.guess.least
        self._advance()

    def _advance(self) -> None:
        """Advance every block from its start."""
        # (length, blocks): picks as steps produce them; rows of whole 8-byte words
        self.steps = np.zeros((self.length, -(-len(self.at) // 8) * 8), self.picks.dtype)
        lanes = Lanes(self.weights, self.starts, self.at)
        lanes.advance(self.steps[:, : len(self.at)])
        # (blocks, datasets): counts at each block's end
        self.ends = lanes.counts()

    def _wrong_starts(self) -> NDArray[np.int64]:
        """Blocks that do not begin with the counts that the block before them ends with."""
        return np.flatnonzero((self.ends[:-1] != self.starts[1:]).any(axis=1)) + 1

    def _restarts(
        self, wrong: NDArray[np.int64], reach: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
        """(blocks to run again, counts to begin with of shape (blocks, datasets), the next pass's reach).

        Blocks begin with the ends of those before. Where the count of a slow dataset was wrong, so it is in blocks
        behind, until one takes it: these are given the right one in the same pass, with a guess of the rest. `reach`
        (blocks + 1,) is how many blocks, the first included; it doubles where that was not far enough.
        """
        behind, differences = [wrong[:0]], [np.zeros((0, len(self.weights)))]
        chosen = np.zeros(len(self.at) + 1, bool)
        chosen[wrong] = chosen[-1] = True
        further = np.ones_like(reach)
        right = self.ends[wrong - 1]
        at, apart, left = wrong, (right - self.starts[wrong]) * self.slow, reach[wrong]
        further[at + 1] = doubled = 2 * left
        while len(at):
            apart = apart * (self.ends[at] == self.starts[at])
            left = left - 1
            on = apart.any(axis=1) & ~chosen[at + 1] & (left > 0)
            at, apart, left, doubled = at[on] + 1, apart[on], left[on], doubled[on]
            chosen[at] = True
            further[at + 1] = doubled
            behind.append(at)
            differences.append(apart)
        others = np.concatenate(behind)
        known = np.where(self.slow, self.starts[others] + np.concatenate(differences), np.nan)
        blocks = np.concatenate([wrong, others])
        starts = np.concatenate([right, self.guess.counts(self.at[others], known)])
        order = np.argsort(blocks)
        return blocks[order], starts[order], further

    def _repair(self, wrong: NDArray[np.int64], starts: NDArray[np.float64]) -> float:
        """Run blocks again from other counts until they meet their old course; return the cost in microseconds.

        The first of them begins with the truth: every pass makes a block right at least.
        """
        # (lanes, datasets): counts of the new course less counts of the old one
        apart = starts - self.starts[wrong]
        self.starts[wrong] = starts
        self.work.passes += 1
        live, step, count, cost = wrong, 0, _CHECK_STEPS, 0.0
        lanes = Lanes(self.weights, self.starts[live], self.at[live])
        while step < self.length:
            count = min(count, self.length - step)
            # (count, lanes)
            new = np.empty((count, len(live)), self.steps.dtype)
            lanes.advance(new)
            old = self.steps[step : step + count, live]
            apart += counts_by_lane(new, len(self.weights)) - counts_by_lane(old, len(self.weights))
            self.steps[step : step + count, live] = new
            self.work.redone += new.size
            cost += count * _step_cost(len(self.weights), len(live))
            step += count
            count = min(2 * count, _MOST_CHECK_STEPS)
            running = apart.any(axis=1)
            if not running.all():
                live, apart = live[running], apart[running]
                if not len(live):
                    break
                lanes = Lanes(self.weights, lanes.counts()[running], self.at[live] + step)
        self.ends[live] += apart
        return cost

    def _finish_one_by_one(self, first: int) -> NDArray[np.float64]:
        """Take block `first` and all after it in the plain loop; return the true counts after them."""
        self._publish(first)
        rest = self.picks[first * self.length :]
        self.work.sequential += len(rest)
        counts: NDArray[np.float64] = self.ends[first - 1].copy()
        take_one_by_one(self.weights, counts, int(self.at[first]), rest)
        return counts

    def _publish(self, blocks: int) -> None:
        """Copy the steps of the first `blocks` blocks to the picks."""
        whole = transposed(self.steps)[:blocks].reshape(-1)
        count = min(len(whole), len(self.picks))
        self.picks[:count] = whole[:count]


class _MostlyOne(_Segment):
    """A segment whose samples are mostly of one dataset; its blocks hold a number of turns of the others."""

    def __init__(
        self,
        weights: NDArray[np.float64],
        counts: NDArray[np.float64],
        begin: int,
        picks: Picks,
        most: int,
        work: Work,
    ) -> None:
        """As a segment's; `most` is the dominant dataset."""
        self.most = most
        others = max(1.0 - float(simplex_projection(weights)[most]), 1.0 / len(picks))
        turns = max(_TURNS, 2 * len(weights))
        length = min(max(int(turns / others), -(-len(picks) // _MOST_BLOCKS)), len(picks))
        super().__init__(weights, counts, begin, picks, (-(-len(picks) // length), length), work)
        self.end = np.minimum(self.at + length, begin + len(picks))
        # (blocks, length + 1): picks, and a place that means nothing
        self.rows = np.empty((len(self.at), length + 1), picks.dtype)

    def _advance(self) -> None:
        self.ends = self.starts.copy()
        take_turns(self.weights, self.most, self.ends, self.at, self.end, self.rows)

    def _repair(self, wrong: NDArray[np.int64], starts: NDArray[np.float64]) -> float:
        """Run whole blocks again from other counts; return the cost in microseconds."""
        self.starts[wrong] = starts
        ends, rows = starts.copy(), np.empty((len(wrong), self.rows.shape[1]), self.rows.dtype)
        steps = take_turns(self.weights, self.most, ends, self.at[wrong], self.end[wrong], rows)
        self.ends[wrong], self.rows[wrong] = ends, rows
        self.work.passes += 1
        self.work.redone += int((self.end - self.at)[wrong].sum())
        return steps * _TURN_COST * _step_cost(len(self.weights), len(wrong))

    def _publish(self, blocks: int) -> None:
        whole = self.rows[:blocks, :-1].reshape(-1)
        count = min(len(whole), len(self.picks))
        self.picks[:count] = whole[:count]


def _step_cost(datasets: int, lanes: int) -> float:
    """Microseconds of a repair step, roughly."""
    return 2.0 + lanes * (0.015 + 0.0006 * datasets)


def _one_by_one_cost(datasets: int) -> float:
    """Microseconds of a sample in the plain loop, roughly."""
    return 1.5 + 0.001 * datasets


class Guess:
    """Where the greedy is likely to be at some sample, without all the samples before it.

    A dataset is taken when its error w * t - c is above those of all the others. Seen from a rarely taken dataset the
    often taken ones run through all their states in no time, so that it is taken soon after its error is above the
    lowest that their largest ever gets: a *gap* above the mean of their errors and its own. All errors sum to 0, so
    that mean follows from the errors of the still rarer ones. Hence from the rarest to the most frequent dataset, with
    s the sum of the errors so far: one with `rank` more frequent ones has been taken until its error was below gap - s
    / (rank + 1), and the most frequent one has what is left. For the very rarest, which need not have come round once,
    every time that one of them is taken is worked out in order instead.
    """

    def __init__(self, weights: NDArray[np.float64], begin: int, samples: int, counts: NDArray[np.float64]) -> None:
        """Prepare for guesses at some samples.

        Args:
            weights: float64, shape (datasets,).
            begin: first sample.
            samples: how many.
            counts: float64, shape (datasets,), the true counts before sample `begin`.
        """
        self.shares, self.least = simplex_projection(weights), counts
        # most frequent first
        self._order = np.argsort(-self.shares, kind="stable")
        self._gap = 0.5 * (1.0 - float(np.square(self.shares).sum()))
        # rank → float64 (n,): samples at which the dataset of that rank is taken, for the rarest ones
        self._events = self._rarest_events(begin, samples)

    def counts(self, at: NDArray[np.int64], known: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Guess the counts before some samples.

        Args:
            at: the samples, shape (n,).
            known: counts to be kept to, shape (n, datasets); NaN where there is none.

        Returns:
            Samples taken of each dataset before each of them, shape (n, datasets).
        """
        counts = np.empty((len(self._order), len(at)))
        rarer, left = np.zeros(len(at)), at.astype(np.float64)
        for rank in range(len(self._order) - 1, 0, -1):
            dataset = self._order[rank]
            due, count = at * self.shares[dataset], counts[dataset]
            if rank in self._events:
                count[:] = self.least[dataset] + np.searchsorted(self._events[rank], at)
            else:
                np.ceil(due - self._gap + rarer / (rank + 1), out=count)
                np.maximum(count, self.least[dataset], out=count)
            if known is not None:
                np.copyto(count, known[:, dataset], where=~np.isnan(known[:, dataset]))
            rarer += due - count
            left -= count
        counts[self._order[0]] = left
        return np.ascontiguousarray(counts.T)

    def _rarest_events(self, begin: int, samples: int) -> dict[int, NDArray[np.float64]]:
        shares = self.shares[self._order]
        # (datasets,): how often a dataset or a rarer one is taken
        expected = np.cumsum(shares[::-1])[::-1] * samples
        few = expected <= min(max(samples / _SAMPLES_PER_EVENT, _FEWEST_EVENTS), _MOST_EVENTS)
        others = max(int(np.argmax(few)), 1) if few.any() else len(shares)
        rare = shares[others:]
        if not rare.sum() > 0.0:
            return {}
        counts = self.least[self._order[others:]]
        # dataset d is taken at t when w_d * t - c_d = level + sum(c - w * t) / others
        level, slopes = self._gap * (others + 1) / others, rare + rare.sum() / others
        taken: list[list[float]] = [[] for _ in rare]
        time = float(begin)
        while True:
            due = (level + counts.sum() / others + counts) / slopes
            dataset = int(due.argmin())
            time = max(time, float(due[dataset]))
            if time >= begin + samples:
                return {others + number: np.array(times) for number, times in enumerate(taken)}
            taken[dataset].append(time)
            counts[dataset] += 1.0


def simplex_projection(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The long-run share of each dataset: weights less a common amount, not below 0, with sum 1."""
    falling = np.sort(weights)[::-1]
    excess = (np.cumsum(falling) - 1.0) / np.arange(1, len(weights) + 1)
    shares: NDArray[np.float64] = np.maximum(weights - excess[np.flatnonzero(falling > excess)[-1]], 0.0)
    return shares
