"""Estimate how many sequences repeat others, from hashes of their tokens.

The hash of a sequence is a sum over its tokens, modulo 2^64:

    hash = mix(token[0]) + mix(token[1] + FACTOR) + mix(token[2] + 2 * FACTOR) + …

`mix` scrambles the bits of a number, so that other tokens, or the same tokens in another order,
give another sum. A sum can be computed chunk by chunk over the flat array of all tokens, so there
is no loop over sequences, and a sequence may begin in one chunk and end in another:

    tokens        5  6  7 | 5  6  7  8      chunks of 3 and 4 tokens
    sequences     0  0  1 | 1  1  2  2
    position      0  1  0 | 1  2  0  1      of each token in its sequence

Only hashes up to a limit are kept, so that memory is bounded. All copies of a sequence have the
same hash, so either all or none of them are kept. The share of repeated sequences among those kept
is therefore an unbiased estimate of the share among all, and exact if all are kept.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import Tokens

CHUNK_TOKENS = 1 << 19
"""Tokens that are hashed together: few enough that their hashes fit into a processor's cache."""
MAX_HASHES = 1 << 22
"""About how many hashes are kept: 32 MiB."""
_POSITION_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""What each position adds to its token: 2^64 divided by the golden ratio, as in splitmix64."""
_MAX_HASH = (1 << 64) - 1
_MIXING_STEPS = ((32, 0xBF58476D1CE4E5B9), (29, 0x94D049BB133111EB))
"""(shift, factor) of the steps by which the bits of a number are mixed, similar to splitmix64."""


def hash_limit(n_sequences: int, max_hashes: int = MAX_HASHES) -> int:
    """Return the greatest hash to keep, so that at most about `max_hashes` hashes are kept."""
    if n_sequences <= max_hashes:
        return _MAX_HASH
    return _MAX_HASH * max_hashes // n_sequences


class KeptHashes(NamedTuple):
    """The hashes of sequences that do not exceed a limit."""

    distinct: NDArray[np.uint64]
    """The hashes without repetitions, ascending."""
    n_sequences: int
    """Number of sequences that have one of these hashes."""


class SequenceHashes:
    """Hashes sequences whose tokens are added chunk by chunk, and keeps small hashes.

    Args:
        lengths: Tokens of each sequence, int32, shape (n_sequences,). Empty sequences are ignored.
        limit: Greatest hash to keep.
        chunk_tokens: Largest number of tokens in a chunk.
    """

    def __init__(
        self, lengths: NDArray[np.int32], limit: int, chunk_tokens: int = CHUNK_TOKENS
    ) -> None:
        filled = lengths[lengths > 0]  # (n_filled,)
        # Where each sequence starts and stops among all tokens; shape (n_filled,).
        self._stops = np.cumsum(filled, dtype=np.int64)
        self._starts = self._stops - filled
        self._position_terms = _position_terms(chunk_tokens)
        self._limit = np.uint64(limit)
        self._kept = [np.empty(0, np.uint64)]
        self._n_added = 0
        # Sum of a sequence that began in the chunks so far, and continues in the next one.
        self._open_sum = np.uint64(0)

    def add(self, tokens: Tokens) -> None:
        """Add the next tokens of all sequences.

        Args:
            tokens: A chunk of consecutive tokens, shape (n_tokens,).
        """
        chunk_start = self._n_added
        chunk_stop = chunk_start + len(tokens)

        # The sequences [first, last) have tokens in the chunk. The first of them may have begun in
        # an earlier chunk, and the last of them may end in a later one.
        first, n_complete = np.searchsorted(self._stops, [chunk_start, chunk_stop], side="right")
        last = np.searchsorted(self._starts, chunk_stop)
        starts = self._starts[first:last]  # (n_in_chunk,)
        if not len(starts):
            return

        # Add the position in its sequence, times a factor, to each token. Token k of the chunk has
        # the position k + offset there. Offsets may be negative: uint64 numbers wrap around.
        offsets = (chunk_start - starts).astype(np.uint64)  # (n_in_chunk,)
        starts_in_chunk = np.maximum(starts - chunk_start, 0)  # (n_in_chunk,)
        lengths_in_chunk = np.diff(starts_in_chunk, append=len(tokens))  # (n_in_chunk,)
        values = tokens.astype(np.uint64)  # (n_tokens,)
        values += self._position_terms[: len(tokens)]
        values += np.repeat(offsets * _POSITION_FACTOR, lengths_in_chunk)
        _mix(values)

        # Add up the tokens of each sequence. Only a sequence that ends in the chunk has its hash.
        sums = np.add.reduceat(values, starts_in_chunk)  # (n_in_chunk,)
        sums[:1] += self._open_sum
        hashes = sums[: n_complete - first]
        open_sums = sums[n_complete - first :]
        self._open_sum = open_sums[0] if len(open_sums) else np.uint64(0)
        self._kept.append(hashes[hashes <= self._limit])
        self._n_added = chunk_stop

    def kept(self) -> KeptHashes:
        """Return the hashes up to the limit of all sequences that are complete."""
        hashes = np.concatenate(self._kept)
        return KeptHashes(np.unique(hashes), len(hashes))


def _mix(values: NDArray[np.uint64]) -> None:
    """Scramble the bits of each number in place, so that similar numbers become very different."""
    for shift, factor in _MIXING_STEPS:
        values ^= values >> np.uint64(shift)
        values *= np.uint64(factor)
    values ^= values >> np.uint64(32)


@cache
def _position_terms(n_tokens: int) -> NDArray[np.uint64]:
    """Return what its position in the chunk adds to each token, uint64, shape (n_tokens,)."""
    return np.arange(n_tokens, dtype=np.uint64) * _POSITION_FACTOR
