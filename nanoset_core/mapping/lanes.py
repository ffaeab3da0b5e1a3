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


class Lanes:
    """Stretches of a blend that are advanced together, one sample at a time.

    weights float64[datasets]; counts [lanes, datasets], samples taken of each dataset when a lane begins; at [lanes],
    the sample that each lane is at.
    """

    def __init__(self, weights: NDArray[np.float64], counts: NDArray[np.float64], at: NDArray[np.int64]) -> None:
        lanes, datasets = counts.shape
        self._wide = datasets >= WIDE_DATASETS
        # [lanes, datasets] if wide, else [datasets, lanes]; times broadcast against them
        self._counts = np.array(counts if self._wide else counts.T, order="C")
        self._weights = weights if self._wide else np.ascontiguousarray(weights[:, None])
        self._at = at.astype(np.float64)[:, None] if self._wide else at.astype(np.float64)
        self._flat = self._counts.reshape(-1)
        self._time = np.empty_like(self._at)
        self._errors = np.empty_like(self._counts)
        self._own = np.arange(lanes) * (datasets if self._wide else 1)
        if not self._wide:
            self._most = np.empty(lanes)
            self._equal = np.empty((datasets, lanes), bool)
            # the first dataset wins a tie: it has the highest rank
            self._ranks = np.arange(datasets, 0, -1).astype(np.uint8)[:, None]
            self._ranked = np.empty((datasets, lanes), np.uint8)
            self._top = np.empty(lanes, np.uint8)

    def step(self) -> NDArray[np.intp]:
        """Take one sample in every lane; return the datasets, [lanes]."""
        np.maximum(self._at, 1.0, out=self._time)
        np.multiply(self._weights, self._time, out=self._errors)
        np.subtract(self._errors, self._counts, out=self._errors)
        if self._wide:
            picks = self._errors.argmax(axis=1)
            self._flat[picks + self._own] += 1.0
        else:
            np.maximum.reduce(self._errors, axis=0, out=self._most)
            np.equal(self._errors, self._most, out=self._equal)
            np.multiply(self._equal, self._ranks, out=self._ranked)
            np.maximum.reduce(self._ranked, axis=0, out=self._top)
            picks = len(self._weights) - self._top.astype(np.intp)
            self._flat[picks * len(self._own) + self._own] += 1.0
        self._at += 1.0
        return picks

    def counts(self) -> NDArray[np.float64]:
        """Samples taken of each dataset, [lanes, datasets]."""
        return self._counts if self._wide else self._counts.T


def take_one_by_one(
    weights: NDArray[np.float64], counts: NDArray[np.float64], begin: int, picks: NDArray[np.unsignedinteger]
) -> None:
    """The plain loop: fill `picks` for samples begin, begin + 1, …, and advance `counts` [datasets]."""
    errors = np.empty(len(weights))
    for at in range(len(picks)):
        np.multiply(weights, float(max(begin + at, 1)), out=errors)
        np.subtract(errors, counts, out=errors)
        pick = errors.argmax()
        picks[at] = pick
        counts[pick] += 1.0


def counts_by_lane(picks: NDArray[np.integer], datasets: int) -> NDArray[np.int64]:
    """How often each dataset was picked, [lanes, datasets], from picks [steps, lanes]."""
    lanes = picks.shape[1]
    keys = picks + np.arange(lanes) * datasets
    return np.bincount(keys.reshape(-1), minlength=lanes * datasets).reshape(lanes, datasets)


def transposed(steps: NDArray[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
    """[steps, lanes] as contiguous [lanes, steps]; lanes fill whole 8-byte words.

    First words, then the items inside them: 5 times as fast as numpy's own transposed copy of bytes.
    """
    length, lanes = steps.shape
    each = 8 // steps.itemsize
    # [lanes / each, steps] words
    words = np.ascontiguousarray(steps.view(np.uint64).T)
    # [lanes / each, steps, each] → [lanes / each, each, steps]
    items = words.view(steps.dtype).reshape(lanes // each, length, each)
    return np.ascontiguousarray(items.transpose(0, 2, 1)).reshape(lanes, length)
