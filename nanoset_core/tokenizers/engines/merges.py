"""Byte-pair encoding of many short words at once.

BPE starts with the bytes of a word as tokens. It merges the pair of adjacent tokens that has the
lowest rank in the tokenizer's list of merges, the leftmost of several equal ones, and repeats this
until no pair of the word is in the list (Hugging Face tokenizers, `models/bpe/word.rs`,
`merge_all`).

Here each round makes one merge in every word that has one, with array operations. The words are
the columns of a table, and their tokens the rows. For the merges "a b" → X (rank 0), "X c" → Y
(rank 1) and "b c" → Z (rank 2), and the words "abc" and "bcab" (`-`: the pair of a token and the
next one has no rank; `.`: no token):

              tokens            ranks
    start     a  b              0  2
              b  c              2  -
              c  a              -  0
              .  b              .  -

    round 1   X  b              1  2        "a b" is merged in both words
              .  c              .  -
              c  X              -  -
              .  .              .  .

    round 2   Y  Z              -  -        "X c" in the first word, "b c" in the second
              .  .              .  .
              .  X              .  -
              .  .              .  .

A merged token takes the place of its left part, and the right part is removed. A round consists of:

1. The best pair of each word: the minimum of each column. A rank and the place of its pair are one
   number, `rank << 32 | cell`, so that the minimum says which pair it is, and the leftmost of equal
   ranks is the least.
2. The merge. The remaining tokens of a word are a doubly linked list, since gaps arise.
3. The ranks of the two new pairs: of the merged token with the one before it and the one after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from nanoset_core.tokenizers.engines.arrays import Bools, Bytes, FlatLists, Ids, Ints, Words

# A pair and its rank share one 64-bit word, an *entry*:
#
#     bits   63 62   61 … 42      41 … 22       21 … 0
#            0  0    left token   right token   rank
#
# The two upper bits tell entries from free slots, in which all bits are set.
ID_BITS = 20
RANK_BITS = 22

MOST_IDS = (1 << ID_BITS) - 1
"""Token ids are below this."""
NO_TOKEN = MOST_IDS
"""In place of a token id: merges with no other token."""
MOST_MERGES = (1 << RANK_BITS) - 1
"""Ranks are below this."""
NO_RANK = MOST_MERGES
"""The rank of a pair that does not merge; greater than any other rank."""

_GOLDEN_RATIO = 0x9E3779B97F4A7C15  # 2 ** 64 / golden ratio, odd: Fibonacci hashing
_ID_SHIFT = np.uint64(ID_BITS)
_RANK_SHIFT = np.uint64(RANK_BITS)
_FREE = np.uint64((1 << 64) - 1)
_RANK_MASK = np.uint64(NO_RANK)
# Slots per merge, as a power of two. Most lookups are of pairs that do not merge: they should meet
# a free slot.
_SPARSENESS_BITS = 2

_CELL_BITS = 32
_CELL_MASK = (1 << _CELL_BITS) - 1
_NO_PRIORITY = NO_RANK << _CELL_BITS  # priorities of pairs that merge are below this
_BATCH_WORDS = 8192  # so that the tables of a batch stay in the processor's cache


class PairRanks:
    """Looks up the ranks of pairs of tokens, many at once.

    A cascade of hash tables without collision handling: if another pair has the slot of a pair,
    that pair is in the next table, which is smaller and hashes differently.
    """

    def __init__(self, left: Ids, right: Ids, merged: Ids) -> None:
        """Build hash tables for the ranks of pairs of tokens: when each pair is merged.

        A table has room for one pair in each slot. Pairs whose slot is taken go into the next
        table:

            pairs      "t","h"    "h","e"    "a","t"
            slots      5          9          5
            tables     1          1          2

        Args:
            left: Left token of each merge, in order of rank, shape (n_merges,).
            right: Right token of each merge, shape (n_merges,). No pair occurs twice.
            merged: The token that each merge makes, shape (n_merges,).
        """
        self.merged = merged.astype(np.uint64)
        """uint64, shape (n_merges,): the token that the merge of each rank makes."""

        # Both tokens of a pair in one number, and an entry with the pair and its rank.
        ranks = np.arange(len(merged), dtype=np.uint64)
        pairs = (left.astype(np.uint64) << _ID_SHIFT) | right.astype(np.uint64)
        entries = (pairs << _RANK_SHIFT) | ranks

        # A slot of a table holds one entry. Pairs whose slot is taken go into a further table,
        # until none is left. There is at least one table, even without merges.
        self._tables: list[_RankTable] = []
        while len(entries) or not self._tables:
            table = _RankTable(len(entries), number=len(self._tables))
            is_refused = table.insert(pairs, entries)
            self._tables.append(table)
            pairs = pairs[is_refused]
            entries = entries[is_refused]

    def find(self, left: Words, right: Words) -> Ints:
        """Look up the ranks of pairs of tokens, which say when, and if, a tokenizer merges them.

        A BPE tokenizer starts with single letters, and merges pairs of tokens in the order of their
        ranks. For example, with the merges "t"+"h" (rank 0) and "th"+"e" (rank 1):

            pair    "t","h"    "th","e"    "e","t"
            rank    0          1           NO_RANK: they never merge

        Args:
            left: Id of the left token of each pair, uint64, shape (n_pairs,); NO_TOKEN is allowed.
            right: Id of the right token, uint64, shape (n_pairs,); NO_TOKEN is allowed.

        Returns:
            int64, shape (n_pairs,).
        """
        pairs = left << _ID_SHIFT  # both ids in one number
        pairs |= right

        # The first table decides most pairs.
        first_table, *further_tables = self._tables
        ranks, undecided = first_table.find(pairs)  # `undecided` are indices of pairs
        for table in further_tables:
            if not len(undecided):
                break
            ranks_of_undecided, is_still_undecided = table.find(pairs.take(undecided))
            ranks[undecided] = ranks_of_undecided
            undecided = undecided.take(is_still_undecided)
        return ranks

    def of_columns(self, tokens: Words) -> Ints:
        """Return the rank of each pair of tokens above each other, in a table of words as columns.

            tokens            ranks
            "t"   "a"         0  (t h)    5        (a t)
            "h"   "t"         7  (h e)    NO_RANK  (no pair: the word "at" has ended)
            "e"   NO_TOKEN

        Args:
            tokens: uint64, shape (width, n_words): the tokens of each word, then NO_TOKEN.

        Returns:
            int64, shape (width - 1, n_words): NO_RANK for pairs that do not merge.
        """
        left = tokens[:-1]
        right = tokens[1:]
        ranks = np.full(left.shape, NO_RANK, np.int64)
        is_pair = right != NO_TOKEN  # then the left one is a token, too
        ranks[is_pair] = self.find(left[is_pair], right[is_pair])
        return ranks


class _RankTable:
    """A hash table from pairs of tokens to ranks, in which a pair is in its own slot or missing."""

    def __init__(self, n_pairs: int, number: int) -> None:
        """Make an empty hash table for pairs of tokens.

        A pair has one slot in it, computed from its two ids. If another pair has the same slot, it
        goes into another table, which must compute slots differently.

        Args:
            n_pairs: Pairs that the table has to hold, or refuse. It gets at least four slots for
                each.
            number: Number of the table, on which the computation of slots depends.
        """
        slot_bits = max(n_pairs - 1, 1).bit_length() + _SPARSENESS_BITS
        self._entries = np.full(1 << slot_bits, _FREE)
        self._shift = np.uint64(64 - slot_bits)
        self._factor = np.uint64(pow(_GOLDEN_RATIO, number + 1, 1 << 64))

    def insert(self, pairs: Words, entries: Words) -> Bools:
        """Enter pairs of tokens into the empty table, those that have a slot of their own.

        A pair's slot is computed from its two ids, and has room for one pair. If the pairs A, B and
        C have the slots 5, 9 and 5, then A and B are entered, and C is refused.

        Args:
            pairs: uint64, shape (n_pairs,): left token and right token in one number. No pair
                occurs twice.
            entries: uint64, shape (n_pairs,): what is stored: each pair and its rank in one number.

        Returns:
            bool, shape (n_pairs,): which pairs were refused.
        """
        # Write all of them, the last pair first. What is in a slot is replaced, so that the first
        # pair of each slot remains: C and then A in slot 5.
        slots = self._slots(pairs)
        self._entries[slots[::-1]] = entries[::-1]

        # A pair was refused if its slot has another one.
        entries_in_slots = self._entries.take(slots)
        is_refused: Bools = entries_in_slots != entries
        return is_refused

    def find(self, pairs: Words) -> tuple[Ints, Ints]:
        """Look up the ranks of pairs of tokens in this table, as far as it can decide them.

        A pair has one slot, a place of the table that is computed from its two ids. A slot is a
        number whose upper bits are a pair, and whose lower bits are its rank:

            the pair itself    the pair has the rank that is stored with it
            all bits are set   the slot is free: the pair has no rank, which is NO_RANK
            another pair       undecided: its rank may be in another table

        Args:
            pairs: uint64, shape (n_pairs,): the ids of the left and the right token in one number.

        Returns:
            ranks: int64, shape (n_pairs,): NO_RANK for undecided pairs, too.
            undecided: int64, shape (n_undecided,): indices of these pairs.
        """
        slots = self._entries.take(self._slots(pairs))  # (n_pairs,)
        has_other_pair = slots >> _RANK_SHIFT != pairs
        has_other_pair &= slots != _FREE
        undecided = has_other_pair.nonzero()[0]

        slots &= _RANK_MASK  # keeps the lower bits: NO_RANK if all bits are set
        ranks = slots.view(np.int64)
        ranks[undecided] = NO_RANK
        return ranks, undecided

    def _slots(self, pairs: Words) -> Ints:
        """Return the slot of each pair: int64, shape (n_pairs,)."""
        hashes = pairs * self._factor
        hashes >>= self._shift
        return hashes.view(np.int64)


class Merger(ABC):
    """Encodes words by the merges of a vocabulary.

    Subclasses say which tokens merging starts with.
    """

    def __init__(self, ranks: PairRanks) -> None:
        self._ranks = ranks

    @abstractmethod
    def _unmerged(self, letters: Bytes) -> MergeTable:
        """Return the tokens that merging starts with.

        Args:
            letters: uint8, shape (width, n_words): the bytes of each word in a column, then zeros.
        """

    def merge_words(self, words: Bytes) -> FlatLists:
        """Return the tokens of words, by merging their letters as a BPE tokenizer does.

        For example, with the merges "t"+"h" and "th"+"e", the word "then" becomes the tokens "the"
        and "n".

        Args:
            words: uint8, shape (n_words, width): the bytes of each word in a row, then zeros. No
                word has a zero byte itself. The caller chooses the width: it is the length of the
                longest word or more, and each byte of it takes memory for every word.

        Returns:
            (ids of all words, concatenated, int32, shape (n_tokens,); number of tokens of each
            word, int64, shape (n_words,)).
        """
        ids_by_batch = [np.empty(0, np.int32)]
        lengths_by_batch = [np.empty(0, np.int64)]
        for start in range(0, len(words), _BATCH_WORDS):
            batch = words[start : start + _BATCH_WORDS]
            table = self._unmerged(batch.T)  # with a word in each column
            table.merge_until_done(self._ranks)
            ids, lengths = table.tokens_by_word()
            ids_by_batch.append(ids)
            lengths_by_batch.append(lengths)
        return np.concatenate(ids_by_batch), np.concatenate(lengths_by_batch)


class MergeTable:
    """The tokens of many words while they are merged: each word is a column.

    One row is added at the bottom, the border: it is the neighbour of the first and of the last
    token of each word. Its token is always NO_TOKEN, which merges with nothing.

    The cells are numbered row by row. So of two tokens of a word, the left one has the smaller
    number. The priority of a pair is its rank and the cell of its left token in one number,
    `rank << 32 | cell`: the least priority is that of the lowest rank, and of the leftmost pair
    among equal ranks.
    """

    def __init__(self, tokens: Words, ranks: Ints) -> None:
        """Start with the tokens of words before anything is merged.

        For the words "the" and "at", the table of tokens is as below. The last row is the border,
        which is always empty:

            t  a        cells    0  1
            h  t                 2  3
            e  -                 4  5
            -  -                 6  7

        Args:
            tokens: uint64, shape (width, n_words): a word in each column, then NO_TOKEN.
            ranks: int64, shape (width - 1, n_words): the rank of each pair of a token and the next
                one of its column; pairs with low ranks are merged first. Changed in place.
        """
        # Number the cells of the table row by row. The last row, the border, has no tokens.
        width, n_words = tokens.shape
        cells = np.arange((width + 1) * n_words).reshape(width + 1, n_words)
        border = cells[-1:]

        # (width + 1, n_words) the token of each cell.
        self._table = np.full(cells.shape, NO_TOKEN, np.uint64)
        self._table[:width] = tokens

        # (width + 1, n_words) the priority of the pair of this token and the next one of its word,
        # `rank << 32 | cell`. The last token of a word, and the border, have no such pair.
        self._priority_table = np.full(cells.shape, _NO_PRIORITY, np.int64)
        ranks <<= _CELL_BITS
        np.bitwise_or(ranks, cells[: width - 1], out=self._priority_table[: width - 1])

        # The same memory, by number of cell.
        self._tokens = self._table.reshape(-1)
        self._priorities = self._priority_table.reshape(-1)

        # The cell of the token after and before each one in its word. For the table above:
        # 2 3 4 5 6 7 6 7 and 6 7 0 1 2 3 4 5.
        self._next = np.concatenate([cells[1:], border]).reshape(-1)
        self._previous = np.concatenate([border, cells[:-1]]).reshape(-1)

    def merge_until_done(self, ranks: PairRanks) -> None:
        """Merge pairs of tokens in many words at once, until no word has a pair that merges.

        In each round, every word makes the one merge with the lowest rank, as BPE tokenizers do:

            round      word "then"       word "at"
            0          t h e n           a t
            1          th e n            at
            2          the n             (it has no pair that merges any more)

        The tokens are stored in cells, which have numbers. `_previous` has, for each cell, the
        cell of the token before it in its word. For each pair of neighbours, the priority of its
        merge is stored, too. After a merge, only those of the new token are computed again.

        Args:
            ranks: The ranks of all pairs of tokens that merge.
        """
        while True:
            left_cells, merge_ranks = self._best_merges()  # (n_merges,)
            if not len(left_cells):
                return
            new_tokens = ranks.merged.take(merge_ranks)
            self._replace_pairs(left_cells, new_tokens)

            # The new token, which is in the left cell, has two neighbours.
            previous_cells = self._previous.take(left_cells)
            self._rank_pairs(left_cells, ranks)
            self._rank_pairs(previous_cells, ranks)

    def _best_merges(self) -> tuple[Ints, Ints]:
        """Return the best merge of each word that has one: that of the lowest rank.

        The table has a column for each word, and a cell for each of its tokens. The cells are
        numbered row by row. `_priority_table` has for each cell the priority of the merge with the
        next token of the word. It is the rank and the number of the cell in one integer, `rank <<
        32 | cell`, so that the least priority is that of the best merge. For the words "the" and
        "at", if "th" has the rank 5, "he" 9, "at" 2, and x stands for no merge:

            tokens    t  a        priorities    5 << 32 | 0    2 << 32 | 1
                      h  t                      9 << 32 | 2    x
                      e                         x              x
            best                                5 << 32 | 0    2 << 32 | 1
            result    the cells 0 and 1, and the ranks 5 and 2

        Returns:
            (cell of the left token, rank of the merge), both int64, shape (n_merges,)
        """
        word_priorities = self._priority_table[:-1]  # the last row belongs to no word
        best_of_words = word_priorities.min(axis=0)  # (n_words,)
        has_merge = best_of_words < _NO_PRIORITY
        best = best_of_words.take(has_merge.nonzero()[0])  # (n_merges,)
        cells = best & _CELL_MASK
        ranks = best >> _CELL_BITS
        return cells, ranks

    def _replace_pairs(self, left: Ints, merged: Words) -> None:
        """Replace pairs of neighbouring tokens, each by the token that the two become.

        The tokens of a word are a linked list: `_next` and `_previous` have the places, called
        cells, of the tokens after and before each one. If "t" and "h" of the word "then" are
        merged:

            cell                  0     1     2     3
            tokens                t     h     e     n
            next cell             1     2     3     (a cell without a token)
            tokens afterwards     th    -     e     n
            next cell             2     -     3     (the same)

        Args:
            left: int64, shape (n_merges,): the cell of the left token of each pair.
            merged: uint64, shape (n_merges,): the new token of each pair.
        """
        # The new token takes the cell of the left one. The right one is removed, and has no pair
        # with the token after it any more.
        right = self._next.take(left)  # (n_merges,) cells
        self._tokens[left] = merged
        self._tokens[right] = NO_TOKEN
        self._priorities[right] = _NO_PRIORITY

        # Connect the new token with the one after the pair.
        after = self._next.take(right)  # (n_merges,) cells
        self._next[left] = after
        self._previous[after] = left

    def _rank_pairs(self, left: Ints, ranks: PairRanks) -> None:
        """Store how urgent it is to merge the tokens in some cells with the tokens after them.

        A tokenizer merges the pair with the lowest rank first, and of equal ranks the leftmost. So
        the rank and the cell become one number, the priority, of which the lowest is the most
        urgent:

            cell        0              1              2
            pair        "t","h"        "h","e"        "e","n"
            rank        0              7              NO_RANK: they never merge
            priority    0 << 32 | 0    7 << 32 | 1    NO_RANK << 32 | 2

        Args:
            left: int64, shape (n_pairs,): the cell of the left token of each pair.
            ranks: The ranks of all merges.
        """
        right = self._next.take(left)
        pair_ranks = ranks.find(self._tokens.take(left), self._tokens.take(right))

        # rank << 32 | cell, in place to save time
        priorities = pair_ranks
        priorities <<= _CELL_BITS
        priorities |= left
        self._priorities[left] = priorities

    def tokens_by_word(self) -> tuple[Ids, Ints]:
        """Return the tokens of all words, concatenated, and the number of tokens of each word."""
        tokens = self._table[:-1].T.astype(np.int32)  # (n_words, width)
        is_token = tokens != NO_TOKEN
        return tokens[is_token], np.count_nonzero(is_token, axis=1)


class ByteMerger(Merger):
    """Encodes words by the merges of a vocabulary, starting with their bytes."""

    def __init__(self, byte_tokens: Ids, ranks: PairRanks) -> None:
        """Prepare to merge the bytes of words to tokens.

        Merging starts with pairs of bytes. Their ranks, by which they are merged, are put into a
        table with an entry for each two bytes, which is the fastest to look up.

        Args:
            byte_tokens: int32, shape (256,): token of each byte; -1 for bytes that no word has.
            ranks: The merges.
        """
        super().__init__(ranks)
        self._byte_tokens = np.where(byte_tokens < 0, NO_TOKEN, byte_tokens).astype(np.uint64)
        self._byte_tokens[0] = NO_TOKEN  # words are padded with zeros

        # The rank of each pair of bytes; the index is 256 * first byte + second byte.
        left = np.repeat(self._byte_tokens, 256)
        right = np.tile(self._byte_tokens, 256)
        self._ranks_of_byte_pairs = ranks.find(left, right)  # int64, shape (65536,)

    def _unmerged(self, letters: Bytes) -> MergeTable:
        """Return the tokens that merging starts with: one for each byte.

        Args:
            letters: uint8, shape (width, n_words): the bytes of each word in a column, then zeros.
        """
        tokens = self._byte_tokens.take(letters)
        # Look the ranks up by two bytes, which is faster than by two tokens. For the word "the",
        # these are the ranks of "th" and "he".
        byte_pairs = letters[:-1].astype(np.uint16) << 8 | letters[1:]
        return MergeTable(tokens, self._ranks_of_byte_pairs.take(byte_pairs))
