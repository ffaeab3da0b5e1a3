"""Byte-pair encoding of many short words at once.

BPE takes the pair of adjacent tokens with the lowest rank, the leftmost of equals, merges it, and
repeats until no pair merges (Hugging Face tokenizers, `models/bpe/word.rs`, `merge_all`). Here
every round makes one merge in every word that has one: words are columns, positions rows, so that
the lowest rank of all words is one minimum over rows.
"""

from __future__ import annotations

import numpy as np

from nanoset_core.tokenizers.engines.arrays import Bytes, FlatLists, Ids, Ints, Words

ID_BITS, RANK_BITS = 20, 22  # a pair and its rank share one 64-bit word
MOST_IDS = (1 << ID_BITS) - 1
"""Token ids are below this."""
NO_TOKEN = MOST_IDS
"""In place of a token: merges with none."""
MOST_MERGES = NO_RANK = (1 << RANK_BITS) - 1
"""The rank of a pair that does not merge; greater than any other."""

_FACTOR = 0x9E3779B97F4A7C15
_RANK, _RANK_BITS, _ID_BITS = np.uint64(NO_RANK), np.uint64(RANK_BITS), np.uint64(ID_BITS)
_FREE = np.uint64((1 << 64) - 1)
_OTHERS, _FREE_SLOTS = np.uint64(1 << RANK_BITS), np.uint64(1 << (RANK_BITS + 2 * ID_BITS))
# slots per merge, as a power of two: most lookups are of pairs that do not merge, and should meet a
# gap
_SPREAD = 2

LONGEST_WORD = 248
"""Bytes in the longest word that `merge_words` takes."""

PLACE_BITS = 32
"""A priority is a rank, and below it the place of the pair in so many bits."""
_PLACE = (1 << PLACE_BITS) - 1
_NO_PRIORITY = NO_RANK << PLACE_BITS
_BATCH = 8192


class PairRanks:
    """Looks up pairs of tokens in bulk: in a hash table or, where another pair has the slot, in the
    next smaller.
    """

    def __init__(self, left: Ids, right: Ids, merged: Ids) -> None:
        """Take distinct pairs of token ids in order of rank, and the token that each makes; shape
        (merges,).
        """
        self.merged = merged.astype(np.uint64)
        """uint64, shape (merges,): the token that the merge of each rank makes."""
        pairs = left.astype(np.uint64) << _ID_BITS | right.astype(np.uint64)
        entries = pairs << _RANK_BITS | np.arange(len(merged), dtype=np.uint64)
        self._levels: list[_Level] = []
        while len(entries) or not self._levels:
            level = _Level(len(entries), len(self._levels))
            places = level.places(pairs)
            level.slots[places[::-1]] = entries[::-1]
            self._levels.append(level)
            pending = (level.slots.take(places) != entries).nonzero()[0]
            pairs, entries = pairs.take(pending), entries.take(pending)

    def find(self, left: Words, right: Words) -> Ints:
        """Return the ranks of pairs of token ids: int64, shape (pairs,), NO_RANK for those that do
        not merge.
        """
        pairs = left << _ID_BITS
        pairs |= right
        ranks, unsettled = self._levels[0].find(pairs)
        places = unsettled
        for level in self._levels[1:]:
            if not len(places):
                break
            pairs = pairs.take(unsettled)
            ranks[places], unsettled = level.find(pairs)
            places = places.take(unsettled)
        return ranks


class _Level:
    """One table of pairs and their ranks, each where its hash says or not at all."""

    def __init__(self, count: int, number: int) -> None:
        bits = max(count - 1, 1).bit_length() + _SPREAD
        self.slots = np.full(1 << bits, _FREE)
        self._shift = np.uint64(64 - bits)
        self._factor = np.uint64(pow(_FACTOR, number + 1, 1 << 64))

    def places(self, pairs: Words) -> Ints:
        """Return the slot of each: int64, shape (pairs,)."""
        hashed = pairs * self._factor
        hashed >>= self._shift
        return hashed.view(np.int64)

    def find(self, pairs: Words) -> tuple[Ints, Ints]:
        """Return (ranks of pairs, NO_RANK where they are not here; numbers of those whose slot
        another pair has).
        """
        found = self.slots.take(self.places(pairs))
        # the rank where the slot is this pair's, else more than any rank
        found ^= pairs << _RANK_BITS
        others = (found - _OTHERS < _FREE_SLOTS - _OTHERS).nonzero()[0]
        return np.minimum(found, _RANK, out=found).view(np.int64), others


class Merger:
    """Encodes words by the merges of a vocabulary, beginning with their bytes."""

    def __init__(self, byte_tokens: Ids, ranks: PairRanks) -> None:
        """Take byte_tokens, int32, shape (256,): token of each byte, -1 for those that no word
        holds.
        """
        self._ranks = ranks
        self._byte_tokens = np.where(byte_tokens < 0, NO_TOKEN, byte_tokens).astype(np.uint64)
        self._byte_tokens[0] = NO_TOKEN  # what words are padded with
        left, right = np.repeat(self._byte_tokens, 256), np.tile(self._byte_tokens, 256)
        self._of_byte_pair = ranks.find(left, right)  # int64, shape (65536,)

    def merge_words(self, words: Bytes) -> FlatLists:
        """Return the token ids of all words one after another, and how many each word has.

        Args:
            words: uint8, shape (words, width), zero-padded, without zero bytes inside; width at
                most LONGEST_WORD.
        """
        parts = [
            self._merge_batch(words[begin : begin + _BATCH].T)
            for begin in range(0, len(words), _BATCH)
        ]
        ids, lengths = zip((np.empty(0, np.int32), np.empty(0, np.int64)), *parts, strict=True)
        return np.concatenate(ids), np.concatenate(lengths)

    def _merge_batch(self, letters: Bytes) -> FlatLists:
        """Merge letters, uint8, shape (width, words). Row `width` of each table stands for what is
        beside a word.

        A place is a number in the flat tables, its row times `words` and its column: within a word,
        further to the right is greater.
        """
        width, n = letters.shape
        tokens = np.full((width + 1, n), NO_TOKEN, np.uint64)
        # of the pair that begins at each place
        priorities = np.full((width + 1, n), _NO_PRIORITY, np.int64)
        tokens[:width], ranks = self._begin(letters)
        places = np.arange((width + 1) * n).reshape(width + 1, n)
        np.bitwise_or(ranks << PLACE_BITS, places[: width - 1], out=priorities[: width - 1])
        following = np.concatenate([places[1:], places[-1:]])
        preceding = np.concatenate([places[-1:], places[:-1]])
        self._merge_all(
            priorities, *(table.reshape(-1) for table in (priorities, tokens, following, preceding))
        )
        by_word = tokens[:width].T.astype(np.int32)
        kept = by_word != NO_TOKEN
        return by_word[kept], np.count_nonzero(kept, axis=1)

    def _begin(self, letters: Bytes) -> tuple[Words, Ints]:
        """Return first tokens, uint64, shape (width, words); ranks of their pairs, int64, shape
        (width - 1, words).
        """
        pairs = letters[:-1].astype(np.uint16) << 8 | letters[1:]
        return self._byte_tokens.take(letters), self._of_byte_pair.take(pairs)

    def _merge_all(
        self,
        by_row: Ints,
        priorities: Ints,
        tokens: Words,
        following: Ints,
        preceding: Ints,
    ) -> None:
        """Make the best merge of every word that has one until none has; `by_row` is `priorities`
        in rows.
        """
        while True:
            best = by_row[:-1].min(axis=0)
            words = (best < _NO_PRIORITY).nonzero()[0]
            if not len(words):
                return
            best = best.take(words)
            left = best & _PLACE
            best >>= PLACE_BITS
            right, before = following.take(left), preceding.take(left)
            after = following.take(right)
            merged = self._ranks.merged.take(best)
            tokens[left] = merged
            tokens[right] = NO_TOKEN
            following[left] = after
            preceding[after] = left
            priorities[right] = _NO_PRIORITY
            lefts = np.concatenate([tokens.take(before), merged])
            ranks = self._ranks.find(lefts, np.concatenate([merged, tokens.take(after)]))
            ranks <<= PLACE_BITS
            changed = np.concatenate([before, left])
            ranks |= changed
            priorities[changed] = ranks
