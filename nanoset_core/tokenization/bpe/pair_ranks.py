"""The merges of a BPE vocabulary: which pair of tokens merges, in which order of preference, into what."""

from __future__ import annotations

import numpy as np

ID_BITS, RANK_BITS = 20, 22  # a pair and its rank share one 64-bit word
MOST_IDS = (1 << ID_BITS) - 1
"""Token ids are below this."""
NO_TOKEN = MOST_IDS
"""In place of a token: merges with none."""
MOST_MERGES = NO_RANK = (1 << RANK_BITS) - 1
"""The rank of a pair that does not merge; greater than any other."""

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_RANK = np.uint64(NO_RANK)
_FREE = np.uint64((1 << 64) - 1)
_SPREAD = 2  # slots per merge, as a power of two: most lookups are of pairs that do not merge, and should meet a gap


class PairRanks:
    """Looks up pairs of tokens in bulk."""

    def __init__(self, left: np.ndarray, right: np.ndarray, merged: np.ndarray) -> None:
        """int[m] each: pairs of token ids in order of rank, and the token that each makes. Pairs are distinct."""
        self.merged = merged.astype(np.int32)
        """int32[m]: the token that the merge of each rank makes."""
        bits = max(len(merged) - 1, 1).bit_length() + _SPREAD
        self._shift = np.uint64(64 - bits)
        self._mask = (1 << bits) - 1
        self._slots = np.full(1 << bits, _FREE)
        pairs = left.astype(np.uint64) << np.uint64(ID_BITS) | right.astype(np.uint64)
        ranks = np.arange(len(merged), dtype=np.uint64)
        self._insert(pairs, pairs << np.uint64(RANK_BITS) | ranks)

    def find(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """int32[n]: ranks of n pairs, NO_RANK for those that do not merge. int32[n] token ids each."""
        pairs = left.astype(np.uint64)
        pairs <<= np.uint64(ID_BITS)
        pairs |= right.astype(np.uint64)
        slots = (pairs * _FACTOR >> self._shift).view(np.int64)
        found = self._slots.take(slots)
        ranks = (found & _RANK).astype(np.int32)
        other = found >> np.uint64(RANK_BITS) != pairs
        ranks[other] = NO_RANK
        unsettled = np.flatnonzero(other & (found != _FREE))
        pairs, slots = pairs[unsettled], slots[unsettled]
        while len(unsettled):
            slots = slots + 1 & self._mask
            found = self._slots.take(slots)
            same = found >> np.uint64(RANK_BITS) == pairs
            ranks[unsettled[same]] = (found[same] & _RANK).astype(np.int32)
            follow = ~same & (found != _FREE)
            unsettled, pairs, slots = unsettled[follow], pairs[follow], slots[follow]
        return ranks

    def _insert(self, pairs: np.ndarray, entries: np.ndarray) -> None:
        slots = (pairs * _FACTOR >> self._shift).view(np.int64)
        while len(entries):
            free = self._slots[slots] == _FREE
            self._slots[slots[free]] = entries[free]
            pending = self._slots[slots] != entries  # taken before, or by another entry of this round
            entries, slots = entries[pending], slots[pending] + 1 & self._mask
