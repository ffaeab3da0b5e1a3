"""Estimate how many sequences repeat others, from hashes of their tokens.

The hash of a sequence is the sum, modulo 2^64, of a mix of each token with its position in the
sequence. A sum can be added up over chunks of the flat token array, so there is no loop over
sequences, and no copy of them.

Memory is bounded by keeping only the hashes up to a limit. All copies of a sequence have the same
hash, so the share of repeated sequences among those kept is an unbiased estimate of the share among
all; it is exact if all are kept.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import Tokens

CHUNK_TOKENS = 1 << 19
MAX_HASHES = 1 << 22
"""About how many hashes are kept."""
_POSITION_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MAX_HASH = (1 << 64) - 1
_MIXING_STEPS = ((32, 0xBF58476D1CE4E5B9), (29, 0x94D049BB133111EB))
"""(shift, factor) of the steps of splitmix64."""


def hash_limit(n_sequences: int, max_hashes: int = MAX_HASHES) -> int:
    """Return the greatest hash to keep, so that about `max_hashes` sequences are kept, or all."""
    if n_sequences <= max_hashes:
        return _MAX_HASH
    return _MAX_HASH * max_hashes // n_sequences


class SequenceHashes:
    """Hashes sequences whose tokens are added chunk by chunk, and keeps small hashes.

    Args:
        lengths: Tokens of each sequence, int32, shape (n_sequences,). Empty sequences are left out.
        limit: Greatest hash to keep.
        chunk_tokens: Most tokens of a chunk.
    """

    def __init__(
        self, lengths: NDArray[np.int32], limit: int, chunk_tokens: int = CHUNK_TOKENS
    ) -> None:
        filled = lengths[lengths > 0]
        # (n_filled,) end of each sequence among all tokens
        self._stops = np.cumsum(filled, dtype=np.int64)
        self._starts = self._stops - filled
        self._position_terms = _position_terms(chunk_tokens)
        self._limit = np.uint64(limit)
        self._kept = [np.empty(0, np.uint64)]
        self._n_added = 0
        # of the tokens so far of a sequence that the next chunk continues
        self._open_sum = np.uint64(0)

    def add(self, tokens: Tokens) -> None:
        """Add the next tokens, shape (chunk,)."""
        chunk_start = self._n_added
        chunk_stop = chunk_start + len(tokens)
        # The sequences of the chunk, of which the first may have begun before, and the last may end
        # later.
        first, n_complete = np.searchsorted(self._stops, [chunk_start, chunk_stop], side="right")
        last = np.searchsorted(self._starts, chunk_stop)
        starts = self._starts[first:last]
        if not len(starts):
            return

        # Token k of the chunk is token k + offsets[i] of its sequence i.
        offsets = (chunk_start - starts).astype(np.uint64)  # (n_in_chunk,)
        starts_in_chunk = np.maximum(starts - chunk_start, 0)
        lengths_in_chunk = np.diff(starts_in_chunk, append=len(tokens))
        values = tokens.astype(np.uint64)
        values += self._position_terms[: len(tokens)]
        values += np.repeat(offsets * _POSITION_FACTOR, lengths_in_chunk)
        _mix(values)

        sums = np.add.reduceat(values, starts_in_chunk)  # (n_in_chunk,)
        sums[:1] += self._open_sum
        hashes = sums[: n_complete - first]
        open_sums = sums[n_complete - first :]
        self._open_sum = open_sums[0] if len(open_sums) else np.uint64(0)
        self._kept.append(hashes[hashes <= self._limit])
        self._n_added = chunk_stop

    def kept(self) -> tuple[NDArray[np.uint64], int]:
        """Return (the distinct hashes up to the limit, ascending; how many there are with
        repetitions).
        """
        hashes = np.concatenate(self._kept)
        return np.unique(hashes), len(hashes)


def _mix(values: NDArray[np.uint64]) -> None:
    """Mix the bits of each number in place, as splitmix64 does."""
    for shift, factor in _MIXING_STEPS:
        values ^= values >> np.uint64(shift)
        values *= np.uint64(factor)
    values ^= values >> np.uint64(32)


@cache
def _position_terms(n_tokens: int) -> NDArray[np.uint64]:
    """Return what the position of each token of a chunk adds to it, uint64, shape (n_tokens,)."""
    return np.arange(n_tokens, dtype=np.uint64) * _POSITION_FACTOR
