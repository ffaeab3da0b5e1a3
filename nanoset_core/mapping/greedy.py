"""The greedy step of a blend, for one sample or for many stretches of it at a time: see `blending` for the rule.

Every function does the peer's IEEE operations on the peer's numbers: fl(fl(w * t) - c) per dataset, and the first of
the largest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Picks = NDArray[np.uint8] | NDArray[np.uint16]
"""Dataset numbers: uint8 up to 255 datasets, else uint16."""
WIDE_DATASETS = 96  # from here on a lane per row and argmax beat a lane per column and max-reduce
WIDE_LANES = 512  # and up to here
_CHUNK_NUMBERS = 1 << 15


class Lanes:
    """Stretches of a blend that are advanced together, one sample at a time."""

    def __init__(self, weights: NDArray[np.float64], counts: NDArray[np.float64], at: NDArray[np.int64]) -> None:
        """Begin every lane.

        Args:
            weights: shape (datasets,).
            counts: samples taken of each dataset before a lane begins, shape (lanes, datasets).
            at: the sample that each lane begins at, shape (lanes,).
        """
        lanes, datasets = counts.shape
        self._wide = lanes <= WIDE_LANES or datasets >= WIDE_DATASETS
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
        """Samples taken of each dataset, shape (lanes, datasets)."""
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


def counts_by_lane(picks: NDArray[np.integer], datasets: int) -> NDArray[np.int64]:
    """How often each dataset was picked, shape (lanes, datasets), from picks of shape (steps, lanes)."""
    lanes = picks.shape[1]
    keys = picks + np.arange(lanes) * datasets
    return np.bincount(keys.reshape(-1), minlength=lanes * datasets).reshape(lanes, datasets)


def transposed(steps: NDArray[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
    """(steps, lanes) as contiguous (lanes, steps); lanes fill whole 8-byte words.

    First words, then the items inside them: 5 times as fast as numpy's own transposed copy of bytes.
    """
    length, lanes = steps.shape
    each = 8 // steps.itemsize
    # (lanes / each, steps) words
    words = np.ascontiguousarray(steps.view(np.uint64).T)
    # (lanes / each, steps, each) → (lanes / each, each, steps)
    items = words.view(steps.dtype).reshape(lanes // each, length, each)
    return np.ascontiguousarray(items.transpose(0, 2, 1)).reshape(lanes, length)
