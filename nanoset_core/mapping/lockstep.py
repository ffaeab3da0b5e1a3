"""The greedy of a blend, many stretches of it at a time: see `blending` for the method.

A *lane* is one stretch (block) of the blend that is being advanced: the counts per dataset, and the sample it is at.
All lanes take a step together. A *segment* is a run of blocks that are speculated together; it begins with true counts,
so scratch stays the size of a segment however long the blend is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_WIDE_DATASETS = 96  # from here on a lane per row and argmax beat a lane per column and max-reduce
_CHECK_STEPS = 16
_FEW_LANES = 5  # so many blocks are repaired one sample at a time
_THRESHOLD = 0.75  # error at which a dataset is guessed to be taken
_SEGMENT = 1 << 23


@dataclass(slots=True)
class Work:
    """What the speculation cost, for tests and benchmarks."""

    segments: int = 0
    """Segments that were speculated."""
    passes: int = 0
    """Repair passes."""
    redone: int = 0
    """Samples that were taken again in repair passes."""
    sequential: int = 0
    """Samples that were taken one by one: small blends, and what was left when the budget was used up."""


def greedy_picks(weights: NDArray[np.float64], size: int, work: Work | None = None) -> NDArray[np.uint8 | np.uint16]:
    """Dataset of every sample, [size], as the plain loop picks them; uint8 up to 255 datasets, else uint16."""
    work = Work() if work is None else work
    datasets = len(weights)
    picks = np.empty(size, np.uint8 if datasets <= 255 else np.uint16)
    counts = np.zeros(datasets)
    shares = simplex_projection(weights)
    segment_size = -(-size // max(-(-size // _SEGMENT), 1))
    begin = 0
    while begin < size:
        count = min(segment_size, size - begin)
        blocks, length = block_shape(datasets, count)
        part = picks[begin : begin + count]
        if blocks < 2:
            work.sequential += count
            take_one_by_one(weights, counts, begin, part)
        else:
            segment = _Segment(weights, counts, begin, part, blocks, length, work)
            segment.run(_guess(shares, counts, segment.guess_at, segment.warm))
            counts = segment.end_counts()
        begin += count
    return picks


def block_shape(datasets: int, count: int) -> tuple[int, int]:
    """(blocks, samples per block) for a segment: blocks long enough to forget a wrong start."""
    most = max(4096 if datasets <= 32 else (1 << 15) // datasets, 16)
    length = max(-(-count // most), 16 * datasets, 1024)
    return -(-count // length), length


def take_one_by_one(
    weights: NDArray[np.float64], counts: NDArray[np.float64], begin: int, picks: NDArray[np.uint8 | np.uint16]
) -> None:
    """The plain loop: fill `picks` for samples begin, begin + 1, …, and advance `counts`."""
    errors = np.empty(len(weights))
    for at in range(len(picks)):
        np.multiply(weights, float(max(begin + at, 1)), out=errors)
        np.subtract(errors, counts, out=errors)
        pick = errors.argmax()
        picks[at] = pick
        counts[pick] += 1.0


def simplex_projection(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The long-run share of each dataset: weights less a common amount, not below 0, with sum 1."""
    falling = np.sort(weights)[::-1]
    excess = (np.cumsum(falling) - 1.0) / np.arange(1, len(weights) + 1)
    return np.maximum(weights - excess[np.flatnonzero(falling > excess)[-1]], 0.0)


class _Lanes:
    """Counts of several lanes. `counts` is [datasets, lanes], or [lanes, datasets] for many datasets."""

    def __init__(self, weights: NDArray[np.float64], counts: NDArray[np.float64], at: NDArray[np.int64]) -> None:
        # counts: [lanes, datasets]
        lanes, datasets = counts.shape
        self.wide = datasets >= _WIDE_DATASETS
        self.weights = weights if self.wide else np.ascontiguousarray(weights[:, None])
        self.counts = np.array(counts if self.wide else counts.T, order="C")
        self.at = at.astype(np.float64)[:, None] if self.wide else at.astype(np.float64)
        self._flat = self.counts.reshape(-1)
        self._time = np.empty_like(self.at)
        self._errors = np.empty_like(self.counts)
        self._columns = np.arange(lanes) * datasets if self.wide else np.arange(lanes)
        if not self.wide:
            self._most = np.empty(lanes)
            self._equal = np.empty((datasets, lanes), bool)
            # the first dataset wins a tie: give it the highest rank
            self._ranks = np.arange(datasets, 0, -1).astype(np.uint8)[:, None]
            self._ranked = np.empty((datasets, lanes), np.uint8)
            self._top = np.empty(lanes, np.uint8)

    def step(self) -> NDArray[np.intp]:
        """Take one sample in every lane; return the picks, [lanes]."""
        np.maximum(self.at, 1.0, out=self._time)
        np.multiply(self.weights, self._time, out=self._errors)
        np.subtract(self._errors, self.counts, out=self._errors)
        if self.wide:
            picks = self._errors.argmax(axis=1)
            self._flat[picks + self._columns] += 1.0
        else:
            np.maximum.reduce(self._errors, axis=0, out=self._most)
            np.equal(self._errors, self._most, out=self._equal)
            np.multiply(self._equal, self._ranks, out=self._ranked)
            np.maximum.reduce(self._ranked, axis=0, out=self._top)
            picks = len(self.weights) - self._top.astype(np.intp)
            self._flat[picks * len(self._columns) + self._columns] += 1.0
        self.at += 1.0
        return picks

    def by_lane(self) -> NDArray[np.float64]:
        """Counts as [lanes, datasets]."""
        return self.counts if self.wide else self.counts.T


class _Segment:
    """Blocks of equal length (the last may be cut short) that begin with the true counts `counts` at sample `begin`."""

    def __init__(
        self,
        weights: NDArray[np.float64],
        counts: NDArray[np.float64],
        begin: int,
        picks: NDArray[np.uint8 | np.uint16],
        blocks: int,
        length: int,
        work: Work,
    ) -> None:
        self.weights, self.counts, self.picks, self.length, self.work = weights, counts, picks, length, work
        self.at = begin + np.arange(blocks, dtype=np.int64) * length
        self.warm = min(max(64, 4 * len(weights), 1024 if weights.min() * length < 1.0 else 0), length)
        self.guess_at = self.at[1:] - self.warm
        # [length, blocks]: picks in the order in which steps produce them
        self.steps = np.empty((length, blocks), picks.dtype)
        work.segments += 1

    def run(self, guess: NDArray[np.float64]) -> None:
        """Speculate from `guess` ([blocks - 1, datasets], counts at `guess_at`), then repair until it is the truth."""
        warming = _Lanes(self.weights, guess, self.guess_at)
        for _ in range(self.warm):
            warming.step()
        # [blocks, datasets]
        self.starts = np.concatenate((self.counts[None, :], warming.by_lane()))
        lanes = _Lanes(self.weights, self.starts, self.at)
        for step in range(self.length):
            self.steps[step] = lanes.step()
        self.ends = np.ascontiguousarray(lanes.by_lane())
        self._repair()

    def end_counts(self) -> NDArray[np.float64]:
        """True counts after the last sample of the segment."""
        datasets = len(self.weights)
        return self.counts + np.bincount(self.picks, minlength=datasets)

    def _repair(self) -> None:
        """Run blocks with a wrong start again until no start is wrong.

        The first wrong block always gets the truth, so every pass gains a block at least.
        """
        spent = 0.0
        while len(bad := np.flatnonzero((self.ends[:-1] != self.starts[1:]).any(axis=1)) + 1):
            first = int(bad[0])
            rest = len(self.picks) - first * self.length
            if spent > rest * _one_by_one_cost(len(self.weights)):
                self._publish(first)
                self.work.sequential += rest
                counts = self.ends[first - 1].copy()
                take_one_by_one(self.weights, counts, int(self.at[first]), self.picks[first * self.length :])
                return
            self.work.passes += 1
            steps = self._redo(bad, self.ends[bad - 1] - self.starts[bad])
            spent += steps * _step_cost(len(self.weights), len(bad))
        self._publish(len(self.at))

    def _redo(self, blocks: NDArray[np.int64], moves: NDArray[np.float64]) -> int:
        """Run blocks again from starts moved by `moves` [lanes, datasets]; return the steps taken."""
        self.starts[blocks] += moves
        if len(blocks) <= _FEW_LANES:
            return self._redo_one_by_one(blocks, moves)
        live = blocks
        # [lanes, datasets]: counts of the new course less counts of the old one
        apart = moves
        lanes = _Lanes(self.weights, self.starts[blocks], self.at[live])
        step = 0
        while step < self.length and len(live):
            rows = np.arange(len(live))
            for _ in range(min(_CHECK_STEPS, self.length - step)):
                new = lanes.step()
                apart[rows, new] += 1.0
                apart[rows, self.steps[step, live]] -= 1.0
                self.steps[step, live] = new
                self.work.redone += len(live)
                step += 1
            running = apart.any(axis=1)
            if not running.all():
                live, apart = live[running], apart[running]
                lanes = _Lanes(self.weights, lanes.by_lane()[running], self.at[live] + step)
        self.ends[live] += apart
        return step

    def _redo_one_by_one(self, blocks: NDArray[np.int64], moves: NDArray[np.float64]) -> int:
        """As `_redo`, for few blocks."""
        longest = 0
        for block, apart in zip(blocks.tolist(), moves, strict=True):
            counts, old, begin = self.starts[block].copy(), self.steps[:, block], int(self.at[block])
            picks = np.empty(_CHECK_STEPS, old.dtype)
            for step in range(0, self.length, _CHECK_STEPS):
                part = old[step : step + _CHECK_STEPS]
                take_one_by_one(self.weights, counts, begin + step, picks[: len(part)])
                np.add.at(apart, picks[: len(part)], 1.0)
                np.subtract.at(apart, part, 1.0)
                part[:] = picks[: len(part)]
                self.work.redone += len(part)
                longest = max(longest, step + len(part))
                if not apart.any():
                    break
            else:
                self.ends[block] += apart
        return longest

    def _publish(self, blocks: int) -> None:
        """Copy the steps of the first `blocks` blocks to their place in the blend."""
        whole = np.ascontiguousarray(self.steps[:, :blocks].T).reshape(-1)
        count = min(len(whole), len(self.picks))
        self.picks[:count] = whole[:count]


def _step_cost(datasets: int, lanes: int) -> float:
    """Microseconds of a repair step, roughly."""
    return 12.0 + lanes * (0.02 + 0.001 * datasets)


def _one_by_one_cost(datasets: int) -> float:
    """Microseconds of a sample in the plain loop, roughly."""
    return 2.0 + 0.001 * datasets


def _guess(
    shares: NDArray[np.float64], counts: NDArray[np.float64], at: NDArray[np.int64], warm: int
) -> NDArray[np.float64]:
    """Counts near the greedy's, [len(at), datasets].

    A rarely taken dataset is guessed late: warming up makes up for it, while one that was taken too early stays wrong
    until its time comes. So only often taken ones make the sum right.
    """
    due = at[:, None].astype(np.float64) * shares
    guess = np.maximum(np.ceil(due - _THRESHOLD), counts)
    short = at - guess.sum(axis=1)
    lead = np.where(shares * warm < 2.0, 0.0, guess - due)
    # rank 0 is the dataset that lags most
    rank = np.argsort(np.argsort(lead, axis=1, kind="stable"), axis=1, kind="stable")
    guess += rank < short[:, None]
    guess -= (rank >= len(shares) + short[:, None]) & (guess > counts)
    return guess
