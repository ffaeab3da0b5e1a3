"""Byte-pair encoding of many short words at once.

BPE takes the pair of adjacent tokens with the lowest rank, the leftmost of equals, merges it, and repeats until no pair
merges (Hugging Face tokenizers, `models/bpe/word.rs`, `merge_all`). Here every round makes one merge in every word that
has one: words are columns, positions rows, so that the lowest rank of all words is one minimum over rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from nanoset_core.tokenization.bpe.reference import FlatLists

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

LONGEST_WORD = 248
"""Bytes in the longest word that `merge_words` takes."""

POSITION_BITS = 8
_POSITION = (1 << POSITION_BITS) - 1
_NO_PRIORITY = NO_RANK << POSITION_BITS
_BATCH = 8192
_FEW = 0.75
"""Words per byte of width below which the reference is faster: merging takes rounds, whatever the number of words."""


class PairRanks:
    """Looks up pairs of tokens in bulk."""

    def __init__(self, left: NDArray[np.int32], right: NDArray[np.int32], merged: NDArray[np.int32]) -> None:
        """Pairs of token ids in order of rank, and the token that each makes; shape (merges,). Pairs are distinct."""
        self.merged = merged.astype(np.int32)
        """int32, shape (merges,): the token that the merge of each rank makes."""
        bits = max(len(merged) - 1, 1).bit_length() + _SPREAD
        self._shift = np.uint64(64 - bits)
        self._mask = (1 << bits) - 1
        self._slots = np.full(1 << bits, _FREE)
        pairs = left.astype(np.uint64) << np.uint64(ID_BITS) | right.astype(np.uint64)
        ranks = np.arange(len(merged), dtype=np.uint64)
        self._insert(pairs, pairs << np.uint64(RANK_BITS) | ranks)

    def find(self, left: NDArray[np.int32], right: NDArray[np.int32]) -> NDArray[np.int32]:
        """Ranks of pairs of token ids: int32, shape (pairs,), NO_RANK for those that do not merge."""
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

    def _insert(self, pairs: NDArray[np.uint64], entries: NDArray[np.uint64]) -> None:
        slots = (pairs * _FACTOR >> self._shift).view(np.int64)
        while len(entries):
            free = self._slots[slots] == _FREE
            self._slots[slots[free]] = entries[free]
            pending = self._slots[slots] != entries  # taken before, or by another entry of this round
            entries, slots = entries[pending], slots[pending] + 1 & self._mask


class Merger:
    """Encodes words by the merges of a vocabulary, beginning with their bytes."""

    def __init__(self, byte_tokens: NDArray[np.int32], ranks: PairRanks) -> None:
        """byte_tokens: int32, shape (256,): token of each byte, -1 for those that no word holds."""
        self._ranks = ranks
        self._byte_tokens = np.where(byte_tokens < 0, NO_TOKEN, byte_tokens).astype(np.int32)
        self._byte_tokens[0] = NO_TOKEN  # what words are padded with
        self._pair_priorities = self._priorities_of_byte_pairs()

    def _priorities_of_byte_pairs(self) -> NDArray[np.int32]:
        """int32, shape (65536,): rank << POSITION_BITS of each pair of bytes."""
        left, right = np.repeat(self._byte_tokens, 256), np.tile(self._byte_tokens, 256)
        return self._ranks.find(left, right) << POSITION_BITS

    def merge_words(self, words: NDArray[np.uint8]) -> FlatLists:
        """Tokens of words.

        Args:
            words: uint8, shape (words, width), zero-padded, without zero bytes inside; width at most LONGEST_WORD.
        """
        parts = [self._merge_batch(words[begin : begin + _BATCH].T) for begin in range(0, len(words), _BATCH)]
        if not parts:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([lengths for _, lengths in parts])

    def _merge_batch(self, letters: NDArray[np.uint8]) -> FlatLists:
        """letters: uint8, shape (width, words). Row `width` of each table stands for what is beside a word."""
        width, n = letters.shape
        tokens = np.full((width + 1, n), NO_TOKEN, np.int32)
        priorities = np.full((width + 1, n), _NO_PRIORITY, np.int32)  # of the pair that begins at each position
        tokens[:width], pairs = self._begin(letters)
        priorities[: width - 1] = pairs + np.arange(width - 1, dtype=np.int32)[:, None]
        following = np.empty((width + 1, n), np.uint8)  # position of the next token
        following[:] = np.minimum(np.arange(1, width + 2), width)[:, None]
        preceding = np.empty((width + 1, n), np.uint8)
        preceding[:] = np.array([width, *range(width)])[:, None]
        while self._merge_once(tokens, priorities, following, preceding):
            pass
        by_word = np.ascontiguousarray(tokens[:width].T)
        kept = by_word != NO_TOKEN
        return by_word[kept], np.count_nonzero(kept, axis=1)

    def _begin(self, letters: NDArray[np.uint8]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(first tokens, int32, shape (width, words); priorities of their pairs, int32, shape (width - 1, words))."""
        pairs = letters[:-1].astype(np.uint16) << 8 | letters[1:]
        return self._byte_tokens[letters], self._pair_priorities[pairs]

    def _merge_once(
        self,
        tokens: NDArray[np.int32],
        priorities: NDArray[np.int32],
        following: NDArray[np.uint8],
        preceding: NDArray[np.uint8],
    ) -> bool:
        """Make the best merge of every word that has one; False when none has."""
        n = tokens.shape[1]
        best = priorities[:-1].min(axis=0)
        words = np.flatnonzero(best < _NO_PRIORITY)
        if not len(words):
            return False
        best = best[words]
        left = best & _POSITION
        # Flat indices into the tables: the pair's two tokens and the tokens beside them.
        at_left = left * np.int64(n) + words
        at_right = following.take(at_left) * np.int64(n) + words
        after, before = following.take(at_right), preceding.take(at_left)
        at_after, at_before = after * np.int64(n) + words, before * np.int64(n) + words
        merged = self._ranks.merged.take(best >> POSITION_BITS)
        tokens.ravel()[at_left] = merged
        tokens.ravel()[at_right] = NO_TOKEN
        following.ravel()[at_left] = after
        preceding.ravel()[at_after] = left
        ranks = self._ranks.find(
            np.concatenate([tokens.take(at_before), merged]), np.concatenate([merged, tokens.take(at_after)])
        )
        ranks <<= POSITION_BITS
        flat = priorities.ravel()
        flat[at_right] = _NO_PRIORITY
        flat[at_before] = ranks[: len(words)] + before
        flat[at_left] = ranks[len(words) :] + left
        return True


class WordEncoder:
    """Encodes words, as they stand in text."""

    def __init__(self, merger: Merger, encode_words: Callable[[list[bytes]], FlatLists]) -> None:
        """encode_words: tokens of words of any length, from the reference."""
        self._merger = merger
        self.encode_long = encode_words

    def encode(self, words: NDArray[np.uint8]) -> FlatLists:
        """Tokens of words as they stand in text: uint8, shape (words, width), zero-padded."""
        if len(words) < _FEW * words.shape[1]:
            return self.encode_long([word.tobytes().rstrip(b"\0") for word in words])
        return self._merger.merge_words(words)
