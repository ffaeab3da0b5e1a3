"""Blend datasets: which dataset, and which of its samples, comes next; Megatron-LM's greedy rule, vectorised.

The greedy takes, for sample i with t = max(i, 1), the first dataset d that has the largest fl(fl(w_d * t) - c_d), where
c_d is how many of d's samples it took before. There is no order to sort by (priorities are lines of different slopes),
so the kernel speculates: it cuts the samples into blocks, guesses the counts at each block's start, advances all blocks
together, one numpy operation for all of them at a time and with the peer's IEEE operations, and then compares every
block's end with the next block's assumed start. Blocks with a wrong start run again from the right one until they meet
their old course. The first block starts from the truth, so by induction the result is the sequential one, ties and
rounding included; the quality of the guess costs time only, and a budget ends in the plain loop.

A *segment* is a run of blocks that are speculated together. It begins with true counts, so scratch stays the size of a
segment however long the blend is. A *lane* is a block that is being advanced; every step of it does the peer's IEEE
operations on the peer's numbers: fl(fl(w * t) - c) per dataset, and the first of the largest.

numpy never contracts `w * t - c` into one rounding; neither does the x86-64 build of the peer. Builds of it for
processors with fused multiply-add by default (aarch64) can order a blend differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError

Picks = NDArray[np.uint8] | NDArray[np.uint16]
"""Dataset numbers: uint8 up to 255 datasets, else uint16."""
_WIDE_DATASETS = 96  # from here on a lane per row and argmax beat a lane per column and max-reduce
_WIDE_LANES = 512  # and up to here
_CHUNK_NUMBERS = 1 << 15
_SEGMENT_SAMPLES = 1 << 24
_CHECK_STEPS = 32  # at first, then twice as many each time
_MOST_CHECK_STEPS = 1024
MAX_DATASETS = 32767
_CHUNK = 1 << 16


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


@lru_cache(maxsize=64)
def samples_taken(weights: tuple[float, ...], begin: int, end: int, *, exact: bool = True) -> tuple[int, ...]:
    """Return how many of the samples from `begin` to `end` (excl) of a blend are of each dataset.

    Args:
        weights: share of each dataset, shape (datasets,).
        begin: sample of the blend.
        end: a later one, exclusive.
        exact: False gives counts within a sample or two a dataset, by their weights alone.
    """
    values = np.ascontiguousarray(weights, dtype=np.float64)
    if not exact:
        shares = values / values.sum()
        return tuple(map(int, np.floor(shares * end + 0.5) - np.floor(shares * begin + 0.5)))
    counts = np.zeros(len(values), np.int64)
    for first, picks in greedy_segments(values, end):
        counts += np.bincount(picks[max(begin - first, 0) :], minlength=len(values))
    return tuple(map(int, counts))


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
    """Take the samples of a segment from `begin` on in blocks of a `block_shape`, the last one cut short.

    Fills `picks`; `counts` are the samples taken of each dataset before, and those after are returned.
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

    Returns the counts before each of the samples `at`, ascending, shape (len(at), datasets); `least` are the true ones
    before the first.
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
        """Start every lane at a sample, with the samples taken of each dataset before, shape (lanes, datasets)."""
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
    lanes = picks.shape[1]
    keys = picks + np.arange(lanes) * datasets
    return np.bincount(keys.reshape(-1), minlength=lanes * datasets).reshape(lanes, datasets)
