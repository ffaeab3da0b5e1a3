"""Where a blend's greedy is likely to be at some sample, without all the samples before it.

A dataset is taken when its error w * t - c is above those of all the others. Seen from a rarely taken dataset the often
taken ones run through all their states in no time, so that it is taken soon after its error is above the lowest that
their largest ever gets: a *gap* above the mean of their errors and its own. All errors sum to 0, so that mean follows
from the errors of the still rarer ones. Hence from the rarest to the most frequent dataset, with s the sum of the
errors so far: one with `rank` more frequent ones has been taken until its error was below gap - s / (rank + 1), and
the most frequent one has what is left. For the very rarest, which need not have come round once, every time that one
of them is taken is worked out in order instead.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SAMPLES_PER_EVENT = 500
_FEWEST_EVENTS, _MOST_EVENTS = 16, 2000


class Guess:
    """Counts near the greedy's, for `samples` samples from `begin` on.

    weights float64[datasets]; counts float64[datasets], the true ones before sample `begin`.
    """

    def __init__(self, weights: NDArray[np.float64], begin: int, samples: int, counts: NDArray[np.float64]) -> None:
        self.shares, self.least = simplex_projection(weights), counts
        # most frequent first
        self._order = np.argsort(-self.shares, kind="stable")
        self._gap = 0.5 * (1.0 - float(np.square(self.shares).sum()))
        # rank → float64[n], samples at which the dataset of that rank is taken, for the rarest ones
        self._events = self._rarest_events(begin, samples)

    def counts(self, at: NDArray[np.int64], known: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Samples taken of each dataset before each of the samples `at`, [len(at), datasets].

        known: [len(at), datasets], counts to be kept to; NaN where there is none.
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
        # [datasets]: how often a dataset or a rarer one is taken
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
    return np.maximum(weights - excess[np.flatnonzero(falling > excess)[-1]], 0.0)
