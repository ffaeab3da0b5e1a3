"""Describe the lengths of sequences in a line, such as `1 to 2,048 tokens, median 731`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.statistics.ranks import keys_at_ranks

_CHUNK_LENGTHS = 1 << 18
"""Lengths that are in memory at once."""
_LENGTH_BITS = 32
"""Bits of the largest possible length."""


def describe_lengths(lengths: NDArray[Any]) -> str:
    """Return the smallest, largest and median length of documents as text.

    For example, for [3, 2048, 731]: "3 to 2,048 tokens, median 731".

    Args:
        lengths: Tokens of each document, integers from 0 to 2**32 - 1, shape (n_documents,); at
            least one.
    """
    return f"{lengths.min():,} to {lengths.max():,} tokens, median {_median(lengths):,.0f}"


def _median(lengths: NDArray[Any]) -> float:
    """Return the median of lengths without copying all of them, as `np.median` does.

    For example, the median of 12, 35, 14, 31, 39 is 31. With an even number of lengths, it is the
    mean of the two in the middle: that of 12, 14, 31, 35 is 22.5.

    Args:
        lengths: Integers from 0 to 2**32 - 1, shape (n_lengths,). There may be billions.
    """

    def chunks() -> Iterator[NDArray[np.uint64]]:
        """Yield consecutive parts of the lengths, each small enough for the memory."""
        for start in range(0, len(lengths), _CHUNK_LENGTHS):
            yield lengths[start : start + _CHUNK_LENGTHS].astype(np.uint64)

    # Ranks of the two lengths in the middle. If the number of lengths is odd, both are the same.
    ranks = [(len(lengths) - 1) // 2, len(lengths) // 2]
    lower, upper = keys_at_ranks(chunks, ranks, bits=_LENGTH_BITS)
    return (int(lower) + int(upper)) / 2
