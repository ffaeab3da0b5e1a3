"""Pick the datasets of a blend by speculation: see `blending` for the rule, and why the result is exact.

A *segment* is a run of blocks that are speculated together. It begins with true counts, so scratch stays the size of a
segment however long the blend is. A *lane* is a block that is being advanced; every step of it does the peer's IEEE
operations on the peer's numbers: fl(fl(w * t) - c) per dataset, and the first of the largest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Picks = NDArray[np.uint8] | NDArray[np.uint16]
"""Dataset numbers: uint8 up to 255 datasets, else uint16."""
_WIDE_DATASETS = 96  # from here on a lane per row and argmax beat a lane per column and max-reduce
_WIDE_LANES = 512  # and up to here
_CHUNK_NUMBERS = 1 << 15
_SEGMENT_SAMPLES = 1 << 24
_CHECK_STEPS = 32  # at first, then twice as many each time
_MOST_CHECK_STEPS = 1024


@dataclass(slots=True)
class Work:
    """The cost of speculation, for tests and benchmarks."""

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
        blocks, length = block_shape(shares, samples)
        if blocks > 1 and len(weights) > 1:
            counts = speculate(weights, counts, begin, picks, (blocks, length), work)
        elif len(weights) > 1:
            work.sequential += samples
            take_one_by_one(weights, counts, begin, picks)
        yield begin, picks


def block_shape(shares: NDArray[np.float64], samples: int) -> tuple[int, int]:
    """Return (blocks, samples per block) for a segment: blocks long enough to forget a wrong start."""
    datasets = len(shares)
    most = 2048 if datasets < _WIDE_DATASETS else 256
    # many that are taken less than once a block: fewer, longer blocks are wrong less often
    if np.count_nonzero(shares * samples < most) > max(datasets / 4, 2):
        most = min(most, 512)
    length = max(-(-samples // most), 16 * datasets, 256)
    return -(-samples // length), length


def speculate(
    weights: NDArray[np.float64],
    counts: NDArray[np.float64],
    begin: int,
    picks: Picks,
    shape: tuple[int, int],
    work: Work,
) -> NDArray[np.float64]:
    """Take the samples of a segment in blocks of equal length, the last one cut short; return the true counts after.

    Args:
        weights: shape (datasets,).
        counts: samples taken of each dataset before `begin`, shape (datasets,).
        begin: first sample.
        picks: filled with the dataset of each sample.
        shape: as of `block_shape`.
        work: counts the cost.
    """
    blocks, length = shape
    # (blocks,): first sample of each
    at = begin + np.arange(blocks, dtype=np.int64) * length
    # (blocks, datasets): counts assumed at each block's start
    starts = guess_counts(weights, counts, at)
    starts[0] = counts
    # (length, blocks): picks as steps produce them
    steps = np.zeros((length, blocks), picks.dtype)
    lanes = Lanes(weights, starts, at)
    lanes.advance(steps)
    # (blocks, datasets): counts at each block's end
    ends = lanes.counts()
    work.segments += 1
    # Roughly what the plain loop costs, in microseconds.
    spent, budget, right = 0.0, len(picks) * (1.5 + 0.001 * len(weights)), blocks
    while len(wrong := np.flatnonzero((ends[:-1] != starts[1:]).any(axis=1)) + 1):
        if spent > budget:
            right = int(wrong[0])
            break
        spent += _repair(weights, at, starts, ends, steps, wrong, work)
    done = min(right * length, len(picks))
    picks[:done] = np.ascontiguousarray(steps[:, :right].T).reshape(-1)[:done]
    after: NDArray[np.float64] = starts[right - 1] + np.bincount(
        picks[(right - 1) * length : done], minlength=len(weights)
    )
    work.sequential += len(picks) - done
    take_one_by_one(weights, after, begin + done, picks[done:])
    return after


def _repair(
    weights: NDArray[np.float64],
    at: NDArray[np.int64],
    starts: NDArray[np.float64],
    ends: NDArray[np.float64],
    steps: NDArray[np.unsignedinteger],
    wrong: NDArray[np.int64],
    work: Work,
) -> float:
    """Run blocks again from the ends of those before until they meet their old course; return the microseconds.

    The first of them begins with the truth: every pass makes a block right at least. Arguments as in `speculate`.
    """
    # (lanes, datasets): counts of the new course less counts of the old one
    apart = ends[wrong - 1] - starts[wrong]
    starts[wrong] = ends[wrong - 1]
    work.passes += 1
    live, step, count, cost = wrong, 0, _CHECK_STEPS, 0.0
    lanes = Lanes(weights, starts[live], at[live])
    while step < len(steps):
        # (count, lanes)
        old = steps[step : step + count, live]
        new = np.empty_like(old)
        lanes.advance(new)
        apart += _counts_by_lane(new, len(weights)) - _counts_by_lane(old, len(weights))
        steps[step : step + count, live] = new
        work.redone += new.size
        cost += len(new) * _step_cost(len(weights), len(live))
        step += len(new)
        count = min(2 * count, _MOST_CHECK_STEPS)
        running = apart.any(axis=1)
        if not running.all():
            live, apart = live[running], apart[running]
            if not len(live):
                break
            lanes = Lanes(weights, lanes.counts()[running], at[live] + step)
    ends[live] += apart
    return cost


def _step_cost(datasets: int, lanes: int) -> float:
    """Return the microseconds of a repair step, roughly."""
    return 2.0 + lanes * (0.015 + 0.0006 * datasets)


def guess_counts(
    weights: NDArray[np.float64], least: NDArray[np.float64], at: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Guess the counts before some samples, without the samples before them.

    A dataset is taken when its error w * t - c is above those of all the others. Compared with a rarely taken dataset,
    the often taken ones go through all their states quickly, so that it is taken soon after its error is above the
    lowest that their largest ever gets: a *gap* above the mean of their errors and its own. All errors sum to 0, so
    that mean follows from the errors of the still rarer ones. Hence from the rarest to the most frequent dataset, with
    s the sum of the errors so far: one with `rank` more frequent ones has been taken until its error was below gap - s
    / (rank + 1), and the most frequent one has what is left.

    Args:
        weights: shape (datasets,).
        least: true counts before the first of the samples, shape (datasets,).
        at: the samples, ascending, shape (n,).

    Returns:
        Samples taken of each dataset before each of them, shape (n, datasets).
    """
    shares = simplex_projection(weights)
    order = np.argsort(-shares, kind="stable")  # most frequent first
    gap = 0.5 * (1.0 - float(np.square(shares).sum()))
    counts = np.empty((len(order), len(at)))
    rarer, left = np.zeros(len(at)), at.astype(np.float64)
    for rank in range(len(order) - 1, 0, -1):
        dataset = order[rank]
        due = at * shares[dataset]
        counts[dataset] = np.maximum(np.ceil(due - gap + rarer / (rank + 1)), least[dataset])
        rarer += due - counts[dataset]
        left -= counts[dataset]
    counts[order[0]] = left
    return np.ascontiguousarray(counts.T)


def simplex_projection(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the long-run share of each dataset: weights less a common amount, not below 0, with sum 1."""
    falling = np.sort(weights)[::-1]
    excess = (np.cumsum(falling) - 1.0) / np.arange(1, len(weights) + 1)
    shares: NDArray[np.float64] = np.maximum(weights - excess[np.flatnonzero(falling > excess)[-1]], 0.0)
    return shares


class Lanes:
    """Stretches of a blend that are advanced together, one sample at a time."""

    def __init__(self, weights: NDArray[np.float64], counts: NDArray[np.float64], at: NDArray[np.int64]) -> None:
        """Start every lane.

        Args:
            weights: shape (datasets,).
            counts: samples taken of each dataset before a lane begins, shape (lanes, datasets).
            at: the sample that each lane begins at, shape (lanes,).
        """
        lanes, datasets = counts.shape
        self._wide = lanes <= _WIDE_LANES or datasets >= _WIDE_DATASETS
        # (lanes, datasets) if wide, else (datasets, lanes)
        self._counts = np.array(counts if self._wide else counts.T, dtype=np.float64, order="C")
        self._weights = weights if self._wide else np.ascontiguousarray(weights[:, None])
        self._at = at.astype(np.float64)
        self._flat = self._counts.reshape(-1)
        self._own = np.arange(lanes) * (datasets if self._wide else 1)
        self._chunk = max(min(_CHUNK_NUMBERS // (lanes * (datasets if self._wide else 1)), 64), 1)

    def advance(self, picks: NDArray[np.integer]) -> None:
        """Take samples in every lane; fill `picks`, shape (steps, lanes), with their datasets."""
        for begin in range(0, len(picks), self._chunk):
            part = picks[begin : begin + self._chunk]
            # (steps, lanes)
            times = np.maximum(self._at + np.arange(len(part), dtype=np.float64)[:, None], 1.0)
            self._at += len(part)
            (self._by_rows if self._wide else self._by_columns)(times, part)

    def counts(self) -> NDArray[np.float64]:
        """Return the samples taken of each dataset, shape (lanes, datasets)."""
        return self._counts.copy() if self._wide else np.ascontiguousarray(self._counts.T)

    def _by_rows(self, times: NDArray[np.float64], picks: NDArray[np.integer]) -> None:
        counts, flat, own = self._counts, self._flat, self._own
        # (steps, lanes, datasets)
        dues = times[:, :, None] * self._weights
        chosen = np.empty(picks.shape, np.intp)
        place = np.empty_like(own)
        for due, choice in zip(dues, chosen, strict=True):
            np.subtract(due, counts, out=due)
            due.argmax(axis=1, out=choice)
            np.add(choice, own, out=place)
            flat[place] += 1.0
        picks[:] = chosen

    def _by_columns(self, times: NDArray[np.float64], picks: NDArray[np.integer]) -> None:
        datasets, lanes = self._counts.shape
        errors, most = np.empty_like(self._counts), np.empty(lanes)
        equal, ranked = np.empty(errors.shape, bool), np.empty(errors.shape, np.uint8)
        # the first dataset wins a tie: it has the highest rank
        ranks, top = np.arange(datasets, 0, -1).astype(np.uint8)[:, None], np.empty(lanes, np.uint8)
        for time, choice in zip(times, picks, strict=True):
            np.multiply(self._weights, time, out=errors)
            np.subtract(errors, self._counts, out=errors)
            np.maximum.reduce(errors, axis=0, out=most)
            np.equal(errors, most, out=equal)
            np.multiply(equal, ranks, out=ranked)
            np.maximum.reduce(ranked, axis=0, out=top)
            chosen = datasets - top.astype(np.intp)
            choice[:] = chosen
            chosen *= lanes
            chosen += self._own
            self._flat[chosen] += 1.0


def take_one_by_one(weights: NDArray[np.float64], counts: NDArray[np.float64], begin: int, picks: Picks) -> None:
    """Fill `picks` with the datasets of the samples from `begin` on; advance `counts`, shape (datasets,)."""
    errors = np.empty(len(weights))
    for at in range(len(picks)):
        np.multiply(weights, float(max(begin + at, 1)), out=errors)
        np.subtract(errors, counts, out=errors)
        pick = errors.argmax()
        picks[at] = pick
        counts[pick] += 1.0


def _counts_by_lane(picks: NDArray[np.integer], datasets: int) -> NDArray[np.int64]:
    """Return how often each dataset was picked, shape (lanes, datasets), from picks of shape (steps, lanes)."""
    lanes = picks.shape[1]
    keys = picks + np.arange(lanes) * datasets
    return np.bincount(keys.reshape(-1), minlength=lanes * datasets).reshape(lanes, datasets)
