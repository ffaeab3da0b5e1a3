"""Byte-pair encoding of many short words at once.

BPE takes the pair of adjacent tokens with the lowest rank, the leftmost of equals, merges it, and repeats until no pair
merges (Hugging Face tokenizers, `models/bpe/word.rs`, `merge_all`). Here every round makes one merge in every word that
has one: words are columns, positions rows, so that the lowest rank of all words is one minimum over rows.
"""

from __future__ import annotations

import numpy as np

from nanoset_core.tokenization.bpe.pair_ranks import NO_RANK, NO_TOKEN, PairRanks

LONGEST_WORD = 248
"""Bytes in the longest word that `merge_words` takes."""

_POSITION_BITS = 8
_POSITION = (1 << _POSITION_BITS) - 1
_NO_PRIORITY = NO_RANK << _POSITION_BITS
_BATCH = 8192


class Merger:
    """Encodes words by the merges of a vocabulary."""

    def __init__(self, byte_tokens: np.ndarray, ranks: PairRanks) -> None:
        """`byte_tokens`: int32[256], token of each byte, -1 for those that no word holds."""
        self._ranks = ranks
        self._byte_tokens = np.where(byte_tokens < 0, NO_TOKEN, byte_tokens).astype(np.int32)
        self._byte_tokens[0] = NO_TOKEN  # what words are padded with
        self._pair_priorities = self._priorities_of_byte_pairs()

    def _priorities_of_byte_pairs(self) -> np.ndarray:
        """int32[65536]: rank << _POSITION_BITS of each pair of bytes."""
        left, right = np.repeat(self._byte_tokens, 256), np.tile(self._byte_tokens, 256)
        return self._ranks.find(left, right) << _POSITION_BITS

    def merge_words(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ids int32[t], lengths int64[n]): tokens of n words back to back, and how many each has.

        `words`: uint8[n, width], zero-padded, without zero bytes inside; width at most LONGEST_WORD.
        """
        parts = [self._merge_batch(words[begin : begin + _BATCH].T) for begin in range(0, len(words), _BATCH)]
        if not parts:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([lengths for _, lengths in parts])

    def _merge_batch(self, letters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`letters`: uint8[width, n]. Row `width` of each table stands for what is beside a word."""
        width, n = letters.shape
        tokens = np.full((width + 1, n), NO_TOKEN, np.int32)
        tokens[:width] = self._byte_tokens[letters]
        priorities = np.full((width + 1, n), _NO_PRIORITY, np.int32)  # of the pair that begins at each position
        pairs = letters[:-1].astype(np.uint16) << 8 | letters[1:]
        priorities[: width - 1] = self._pair_priorities[pairs] + np.arange(width - 1, dtype=np.int32)[:, None]
        following = np.empty((width + 1, n), np.uint8)  # position of the next token
        following[:] = np.minimum(np.arange(1, width + 2), width)[:, None]
        preceding = np.empty((width + 1, n), np.uint8)
        preceding[:] = np.array([width, *range(width)])[:, None]
        while self._merge_once(tokens, priorities, following, preceding):
            pass
        by_word = np.ascontiguousarray(tokens[:width].T)
        kept = by_word != NO_TOKEN
        return by_word[kept], np.count_nonzero(kept, axis=1)

    def _merge_once(
        self, tokens: np.ndarray, priorities: np.ndarray, following: np.ndarray, preceding: np.ndarray
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
        merged = self._ranks.merged.take(best >> _POSITION_BITS)
        tokens.ravel()[at_left] = merged
        tokens.ravel()[at_right] = NO_TOKEN
        following.ravel()[at_left] = after
        preceding.ravel()[at_after] = left
        ranks = self._ranks.find(
            np.concatenate([tokens.take(at_before), merged]), np.concatenate([merged, tokens.take(at_after)])
        )
        ranks <<= _POSITION_BITS
        flat = priorities.ravel()
        flat[at_right] = _NO_PRIORITY
        flat[at_before] = ranks[: len(words)] + before
        flat[at_left] = ranks[len(words) :] + left
        return True
