"""Stretches of a blend that are mostly of one dataset, advanced together from one turn of the others to the next.

Between two turns all samples are of the dominant dataset, so that the next turn follows from where lines cross: with
`taken` samples of the others so far, dataset d is due at sample (taken + c_d) / (w_d + 1 - w), where w is the weight of
the dominant one. What is taken there is decided by the peer's IEEE operations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_EARLY = 1 / 16
"""How much sooner than lines cross, in samples, the datasets are compared: far more than rounding can move that."""
_ROUNDING = 2.0**-48
"""No difference of two errors at a sample is further from its real number than this times the number of the sample."""
_MOST_OTHERS = 0.125
"""Share of the others from which on it is as fast to take every sample."""


def dominant(weights: NDArray[np.float64], shares: NDArray[np.float64], end: int) -> int | None:
    """The dataset that most samples before `end` are of, where the turns of the others can be told for certain."""
    most = int(weights.argmax())
    slope = 1.0 - weights[most] + weights.min()
    is_certain = weights.min() >= 0.0 and weights[most] <= 1.0 and slope * _EARLY > _ROUNDING * end
    return most if is_certain and 1.0 - shares[most] < _MOST_OTHERS else None


def take_turns(
    weights: NDArray[np.float64],
    most: int,
    counts: NDArray[np.float64],
    at: NDArray[np.int64],
    end: NDArray[np.int64],
    picks: NDArray[np.unsignedinteger],
) -> int:
    """Take all samples of every stretch.

    Args:
        weights: shape (datasets,).
        most: the dominant dataset.
        counts: samples taken of each dataset before a stretch begins, shape (stretches, datasets); are brought to its
            end.
        at: the sample that each stretch begins at, shape (stretches,).
        end: the sample behind each, shape (stretches,).
        picks: gets the dataset of each sample, shape (stretches, samples + 1); what is behind a stretch means nothing.

    Returns:
        Turns in the stretch that has most.
    """
    picks[:] = most
    steps, (stretches, datasets) = 0, counts.shape
    flat, own = counts.reshape(-1), np.arange(stretches) * datasets
    flat_picks, offsets = picks.reshape(-1), np.arange(stretches) * picks.shape[1] - at
    now, last = at.astype(np.float64), end.astype(np.float64)
    taken = now - counts[:, most]
    pace = 1.0 / (weights + (1.0 - weights[most]))
    errors = np.empty_like(counts)
    while True:
        np.add(counts, taken[:, None], out=errors)
        errors *= pace
        errors[:, most] = np.inf  # has no turns
        due = errors.min(axis=1)
        due -= _EARLY
        np.ceil(due, out=due)
        np.maximum(due, now, out=due)
        np.minimum(due, last, out=due)
        counts[:, most] = due - taken
        live = due < last
        if not live.any():
            return steps
        steps += 1
        np.multiply(np.maximum(due, 1.0)[:, None], weights, out=errors)
        np.subtract(errors, counts, out=errors)
        pick = errors.argmax(axis=1)
        flat_picks[due.astype(np.int64) + offsets] = pick
        flat[pick + own] += live
        taken += live & (pick != most)
        now = due + live
