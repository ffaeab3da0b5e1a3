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
    """Return the smallest, largest and median length of documents as text.

    For example, for [3, 2048, 731]: "3 to 2,048 tokens, median 731".

    Args:
        lengths: Tokens of each document, integers from 0 to 2**32 - 1, shape (n_documents,); at
            least one.
    """
    return f"{lengths.min():,} to {lengths.max():,} tokens, median {_median(lengths):,.0f}"


def _median(lengths: NDArray[Any]) -> float:
    """Return the median of lengths, without sorting or copying them: there may be billions.

    For example, the median of 12, 35, 14, 31, 39 is 31. With an even number of lengths, it is the
    mean of the two in the middle: that of 12, 14, 31, 35 is 22.5.

    Args:
        lengths: Integers from 0 to 2**32 - 1, shape (n_lengths,).
    """
    group_sizes = _upper_bit_counts(lengths)

    # Ranks of the two lengths in the middle. If the number of lengths is odd, both are the same.
    lower_rank = (len(lengths) - 1) // 2
    upper_rank = len(lengths) // 2
    lower_length = _length_of_rank(lengths, lower_rank, group_sizes)
    if lower_rank == upper_rank:
        return lower_length
    upper_length = _length_of_rank(lengths, upper_rank, group_sizes)
    return (lower_length + upper_length) / 2


def _upper_bit_counts(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Count how many lengths are in each range of 65,536 values, as the first step to the median.

        group 0    lengths from 0 to 65,535             (their upper 16 bits are 0)
        group 1    lengths from 65,536 to 131,071       (their upper 16 bits are 1)

    Args:
        lengths: Integers from 0 to 2**32 - 1, shape (n_lengths,).

    Returns:
        Number of lengths in each group, shape (n_groups,).
    """
    n_groups = (int(lengths.max()) >> _LOWER_BITS) + 1
    counts = np.zeros(n_groups, np.int64)
    for chunk in _chunks(lengths):
        counts += np.bincount(chunk >> _LOWER_BITS, minlength=n_groups)
    return counts


def _length_of_rank(lengths: NDArray[Any], rank: int, group_sizes: NDArray[np.int64]) -> int:
    """Return the length that would be at position `rank` if all lengths were sorted.

    Sorting would take too long. Instead, the lengths are divided into groups of 65,536 values: 0 to
    65,535, and so on. First find the group of the result, then the value within the group.

    Args:
        lengths: Integers from 0 to 2**32 - 1, shape (n_lengths,).
        rank: From 0.
        group_sizes: Number of lengths in each group, shape (n_groups,).
    """
    # For example, the groups have 0, 2 and 3 lengths, and the rank is 3. The lengths in the last
    # group have the ranks 2, 3 and 4.
    group = _value_of_rank(group_sizes, rank)  # 2
    n_in_earlier_groups = int(group_sizes[:group].sum())  # 0 + 2
    rank_in_group = rank - n_in_earlier_groups  # 1: the second one of the three

    # How many lengths of this group have each value? Values count from the start of the group.
    counts = _lower_bit_counts(lengths, group)  # (65536,)
    value_in_group = _value_of_rank(counts, rank_in_group)
    start_of_group = group << _LOWER_BITS  # 2 * 65,536
    return start_of_group + value_in_group


def _value_of_rank(counts: NDArray[np.int64], rank: int) -> int:
    """Return the value at a position among sorted values, which are described by their counts.

    For example, the counts [2, 3] mean that 0 occurs twice and 1 three times:

        rank              0   1   2   3   4
        sorted values     0   0   1   1   1

    Args:
        counts: How often the values 0, 1, … occur, shape (n_values,).
        rank: From 0.
    """
    stops = np.cumsum(counts)  # (n_values,) rank after the last one of each value
    return int(np.searchsorted(stops, rank, side="right"))


def _lower_bit_counts(lengths: NDArray[Any], group: int) -> NDArray[np.int64]:
    """Count how often each length occurs among those of one group of 65,536 values.

    For example, group 1 has the lengths from 65,536 on. If two lengths are 65,539, the result has a
    2 at position 3.

    Args:
        lengths: Integers from 0 to 2**32 - 1, shape (n_lengths,).
        group: The group, which is the upper 16 bits of a length.

    Returns:
        Count of each value of the lower 16 bits, shape (65536,).
    """
    n_values = 1 << _LOWER_BITS
    counts = np.zeros(n_values, np.int64)
    for chunk in _chunks(lengths):
        in_group = chunk[chunk >> _LOWER_BITS == group]
        counts += np.bincount(in_group & _LOWER_MASK, minlength=n_values)
    return counts


def _chunks(lengths: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield consecutive parts of an array of lengths, each small enough for the memory."""
    for start in range(0, len(lengths), _CHUNK_LENGTHS):
        yield lengths[start : start + _CHUNK_LENGTHS]
