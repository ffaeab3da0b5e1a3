"""Describe the lengths of sequences in a line, such as `1 to 2,048 tokens, median 731`.

There may be billions of sequences, and `np.median` would copy all lengths. `_median` finds the
middle length from counts instead, with memory for one chunk of lengths. Each length is split into
its upper and its lower 16 bits:

1. Count the lengths by their upper bits. The running sum of these counts says in which group the
   middle length is, and its rank within the group.
2. Count the lengths of that group by their lower bits. The running sum says which one it is.

Example with decimal digits, the upper and the lower one: of the lengths 12, 35, 14, 31 and 39, the
middle one has rank 2 (counted from 0). Two lengths begin with 1 and three with 3, so the middle
length is the first, by size, of those with 3: the lower digits 1, 5 and 9 give 31.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CHUNK_LENGTHS = 1 << 20
"""Lengths that are in memory at once."""
_LOWER_BITS = 16
_LOWER_MASK = (1 << _LOWER_BITS) - 1


def describe_lengths(lengths: NDArray[Any]) -> str:
    """Return the smallest, largest and median length in tokens, as text.

    Args:
        lengths: Non-negative integers below 2**32, shape (n_sequences,); at least one.
    """
    return f"{lengths.min():,} to {lengths.max():,} tokens, median {_median(lengths):,.0f}"


def _median(lengths: NDArray[Any]) -> float:
    """Return the median of lengths: the mean of the two in the middle if their number is even.

    Args:
        lengths: Non-negative integers below 2**32, shape (n_sequences,).
    """
    # Count the lengths by their upper bits, which divide them into groups.
    n_groups = (int(lengths.max()) >> _LOWER_BITS) + 1
    group_sizes = np.zeros(n_groups, np.int64)
    for chunk in _chunks(lengths):
        group_sizes += np.bincount(chunk >> _LOWER_BITS, minlength=n_groups)

    # Ranks of the two lengths in the middle. If the number of lengths is odd, both are the same.
    lower_rank = (len(lengths) - 1) // 2
    upper_rank = len(lengths) // 2
    lower_length = _length_of_rank(lengths, lower_rank, group_sizes)
    if lower_rank == upper_rank:
        return lower_length
    upper_length = _length_of_rank(lengths, upper_rank, group_sizes)
    return (lower_length + upper_length) / 2


def _length_of_rank(lengths: NDArray[Any], rank: int, group_sizes: NDArray[np.int64]) -> int:
    """Return the length that would be at position `rank` if the lengths were sorted.

    The lengths are not sorted. A length has 32 bits: its upper 16 bits say in which group it is,
    and its lower 16 bits where in the group. So the length is found by counting, twice.

    Args:
        lengths: Integers below 2**32, shape (n_sequences,).
        rank: From 0.
        group_sizes: Number of lengths in each group, shape (n_groups,).
    """
    # Find the group: the first one that ends after the rank. For example, groups of 2 and 3 lengths
    # end at 2 and 5. Rank 1 is in group 0, and rank 2 is the first in group 1.
    group_stops = np.cumsum(group_sizes)  # (n_groups,)
    group = int(np.searchsorted(group_stops, rank, side="right"))
    group_start = int(group_stops[group] - group_sizes[group])
    rank_in_group = rank - group_start

    # Count how often each value of the lower 16 bits occurs in this group.
    n_values = _LOWER_MASK + 1
    value_counts = np.zeros(n_values, np.int64)
    for chunk in _chunks(lengths):
        in_group = chunk[chunk >> _LOWER_BITS == group]
        value_counts += np.bincount(in_group & _LOWER_MASK, minlength=n_values)

    # Find the value at this rank in the same way.
    value_stops = np.cumsum(value_counts)  # (n_values,)
    lower_bits = int(np.searchsorted(value_stops, rank_in_group, side="right"))
    return (group << _LOWER_BITS) + lower_bits


def _chunks(lengths: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield consecutive parts of an array of lengths, each small enough for the memory."""
    for start in range(0, len(lengths), _CHUNK_LENGTHS):
        yield lengths[start : start + _CHUNK_LENGTHS]
