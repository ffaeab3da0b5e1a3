"""Count distinct values in bounded memory: exactly up to a number, and beyond it approximately.

Each value is represented by a hash, a number from 0 to 2**64. If there are many values, only the
smallest hashes are kept. The hashes of n distinct values are evenly distributed, so the k-th
smallest of them is at about k / n of the range: if the 65,536th smallest hash is 1 % of 2**64,
there are about 6,553,600 values. Equal values have equal hashes, so it does not matter how often a
value occurs, or in which order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_EXACT = 1 << 16
"""Distinct values up to which the count is exact. Beyond it, the error is about 0.4 %."""


class DistinctCounter:
    """Counts the distinct values among those that were added."""

    def __init__(self) -> None:
        self._smallest = np.empty(0, np.uint64)  # distinct hashes, ascending
        self.is_exact = True
        """Whether `count` is exact."""

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Add values to those whose distinct ones are counted.

        Only the smallest 65,536 hashes are kept, each once. They are enough to estimate how many
        distinct values there are.

        Args:
            hashes: Hash of each value, shape (n_values,). Equal hashes are taken for equal values.
        """
        if not self.is_exact:
            hashes = hashes[hashes < self._smallest[-1]]  # others cannot be among the smallest
        smallest = np.union1d(self._smallest, hashes)  # ascending, each once
        if len(smallest) > MAX_EXACT:
            self.is_exact = False
        self._smallest = smallest[:MAX_EXACT]

    @property
    def count(self) -> int:
        """Number of distinct values."""
        if self.is_exact:
            return len(self._smallest)
        largest_kept = int(self._smallest[-1])
        return (MAX_EXACT - 1) * 2**64 // largest_kept
