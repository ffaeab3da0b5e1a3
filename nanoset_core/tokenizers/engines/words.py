"""An exact hash table from short byte strings to codes, in which numpy looks up many keys at once.

A key is a byte string, as one or more integers of 64 bits: zero-padded, little-endian. The bytes
"the" are the key 0x656874. Keys are compared in full: the hash decides the speed, and never the
result.

The table uses open addressing. A key belongs into the slot of its hash; if that is taken, into the
slot 1 further, then 2 further from there, then 3, and so on. It is found on the same path, which
ends at a free slot. The number of slots is a power of two: then the path visits every slot.

`find` and `insert` take all keys one step along their paths at a time:

    keys               the   of    and
    slot of the hash   5     9     5          5 and 9 hold "the" and "of": found
    1 further                      6          6 holds another key
    2 further                      8          8 is free: "and" is not in the table
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from nanoset_core.tokenizers.engines.arrays import Bools, Ints, Words
from nanoset_core.tokenizers.engines.token_lists import Codes

Keys: TypeAlias = Words
"""Byte strings: uint64, shape (width, n_keys). The width is the number of integers of each key."""
ABSENT = np.int32(-1)
"""The result for a key that is not in the table; it is no code."""
FILL_LIMIT = 0.5
"""Share of the slots that may be taken."""

_GOLDEN_RATIO = 0x9E3779B97F4A7C15  # 2 ** 64 / golden ratio, odd: Fibonacci hashing
_FACTORS = [np.uint64(pow(_GOLDEN_RATIO, power, 1 << 64)) for power in range(1, 33)]
_MIX_SHIFT = np.uint64(29)
_PLACED_TOGETHER = 1 << 15  # keys: what fits into the processor's cache


class WordTable:
    """Maps keys of a fixed number of 64-bit integers to codes; grows by doubling."""

    def __init__(self, keys: Keys, codes: Codes) -> None:
        """Make a hash table from words to codes (numbers), given the contents of all its slots.

        Args:
            keys: uint64, shape (width, n_slots): the bytes of the word in each slot, as `width`
                integers.
            codes: int32, shape (n_slots,): the code of each word; ABSENT for free slots. n_slots is
                a power of two.
        """
        self.keys = keys
        self.codes = codes
        self.count = int(np.count_nonzero(codes != ABSENT))
        # A hash has 64 bits: its upper bits are the slot.
        slot_bits = len(codes).bit_length() - 1
        self._slot_shift = np.uint64(64 - slot_bits)

    @staticmethod
    def empty(width: int, n_slots: int = 1 << 12) -> WordTable:
        """Return a table without keys.

        Args:
            width: Number of 64-bit integers of each key.
            n_slots: A power of two.

        Returns:
            A table in which every slot is free.
        """
        return WordTable(np.zeros((width, n_slots), np.uint64), np.full(n_slots, ABSENT))

    def find(self, keys: Keys, skip: Ints | None = None) -> Codes:
        """Look up words in this hash table, and return the number (code) that is stored with each.

        The hash of a word says in which slot of the table it is. If that was taken, it is in a
        later one. So if the slots 5, 6, 7 of the table are "the", "cat" and free:

            word     slots to try    result
            "the"    5               its code
            "cat"    5 6             its code: the slot 5 has another word, so 6 is tried
            "dog"    5 6 7           ABSENT: the slot 7 is free, so "dog" is not in the table

        Args:
            keys: uint64, shape (width, n_keys): the bytes of each word, as `width` integers.
            skip: Indices of words that are not looked up. Their result is 0.

        Returns:
            int32, shape (n_keys,): the code of each word; ABSENT for those that are not in the
            table.
        """
        # Nearly always, the first slot decides. If it is free, it has the code ABSENT.
        slots = self._slots(keys)  # (n_keys,) the first slots
        codes = self.codes.take(slots)  # (n_keys,)
        is_other_key = self._hold_other_keys(slots, codes, keys)
        if skip is not None:
            codes[skip] = 0
            is_other_key[skip] = False

        undecided = is_other_key.nonzero()[0]
        if len(undecided):
            codes[undecided] = self._find_along_paths(
                keys.take(undecided, axis=1), slots.take(undecided)
            )
        return codes

    def _find_along_paths(self, keys: Keys, slots: Ints) -> Codes:
        """Look up words whose first slot in the hash table is taken by another word.

        Such a word is in the first slot that was free when it was added: 1 slot after the first
        one, 2 after that, 3 after that, and so on. Here all words try their next slot at the same
        time, in rounds. A word is done when its slot has this word, or is free: then the word is
        not in the table.

            words                   "dog"                            "cow"
            before, the slot has    "the"                            "of"
            round 1                 "cat": continue                  "cow", code 81: done
            round 2                 nothing, code ABSENT: done

        Args:
            keys: uint64, shape (width, n_keys): the bytes of each word, as `width` integers.
            slots: int64, shape (n_keys,): the first slot of each word.

        Returns:
            int32, shape (n_keys,): the code stored with each word; ABSENT for words that are not in
            the table.
        """
        codes = np.full(len(slots), ABSENT)
        pending = np.arange(len(slots))  # (n_pending,) indices of the words that are not done
        step = 0
        while len(pending):
            step += 1
            slots = self._advanced(slots, step)  # (n_pending,)
            slot_codes = self.codes.take(slots)  # ABSENT in free slots
            # The code of a word that is not done is wrong. The next round overwrites it, which is
            # faster than to select the words that are done.
            codes[pending] = slot_codes

            others = self._hold_other_keys(slots, slot_codes, keys).nonzero()[0]
            pending = pending.take(others)
            keys = keys.take(others, axis=1)  # (width, n_pending)
            slots = slots.take(others)
        return codes

    def insert(self, keys: Keys, codes: Codes) -> None:
        """Add words to the hash table. None may be in it already, or occur twice.

        Frequent words should come first: the earlier a word is added, the fewer slots are tried to
        find it.

        Args:
            keys: uint64, shape (width, n_keys): the bytes of each word, as `width` integers.
            codes: int32, shape (n_keys,): what is stored with each word, a number.
        """
        count = self.count + len(codes)
        self._grow_to_hold(count)
        self.count = count
        # Some thousands at a time, which fit into the processor's cache
        for start in range(0, len(codes), _PLACED_TOGETHER):
            stop = start + _PLACED_TOGETHER
            self._place(keys[:, start:stop], codes[start:stop])

    def _place(self, keys: Keys, codes: Codes) -> None:
        """Write words into free slots of the hash table, each into the first one along its path.

        A path is the sequence of slots that a word tries, which starts at the slot of its hash. If
        the paths of the words A and B both start at the slot 5, A gets it, and B tries 6 in the
        next round.

        Args:
            keys: uint64, shape (width, n_keys): the bytes of each word, as `width` integers. All
                words are different, and none is in the table.
            codes: int32, shape (n_keys,): what is stored with each word.
        """
        slots = self._slots(keys)  # (n_keys,) the slot that each key tries
        step = 0
        while len(codes):
            winners = self._claim(slots)  # indices of the keys that get their slot
            winner_slots = slots.take(winners)
            self.codes[winner_slots] = codes.take(winners)
            self.keys[:, winner_slots] = keys.take(winners, axis=1)

            # All others go one step along their paths.
            step += 1
            others = np.delete(np.arange(len(codes)), winners)
            keys = keys.take(others, axis=1)
            codes = codes.take(others)
            slots = self._advanced(slots.take(others), step)

    def _claim(self, slots: Ints) -> Ints:
        """Decide which words get the slot of the hash table that they try to take.

        A word gets its slot if it is free, and no earlier word tries the same one:

            word               0      1      2      3
            tries slot         5      7      5      9       (the slot 9 is taken)
            gets it            yes    yes    no     no      (the word 0 is first at the slot 5)

        To find the first word at each slot without sorting, each word writes its number into its
        slot, the last word first. What stays is the number of the first word:

            slot 5             2, then 0
            slot 7             1
            word finds         0      1      0              (the words 0 and 1 find their own)

        So the slots that words get contain these numbers afterwards, until the caller fills them.

        Args:
            slots: int64, shape (n_keys,): the slot that each word tries.

        Returns:
            int64, shape (n_winners,), ascending: indices of the words that get their slot.
        """
        is_free = self.codes.take(slots) == ABSENT
        candidates = is_free.nonzero()[0]  # 0 1 2: the words that try a free slot
        free_slots = slots.take(candidates)  # 5 7 5

        numbers = candidates.astype(np.int32)
        last_word_first = slice(None, None, -1)
        self.codes[free_slots[last_word_first]] = numbers[last_word_first]

        finds_own_number = self.codes.take(free_slots) == numbers  # T T F
        winners: Ints = candidates.take(finds_own_number.nonzero()[0])
        return winners

    def _advanced(self, slots: Ints, step: int) -> Ints:
        """Return the slots that are `step` further. After the last slot comes the first one."""
        # The number of slots is a power of two, so `&` gives the remainder of the division by it.
        return (slots + step) & (len(self.codes) - 1)

    def _hold_other_keys(self, slots: Ints, slot_codes: Codes, keys: Keys) -> Bools:
        """Return which slots of the hash table hold another word than expected.

        Free slots hold none.

        Args:
            slots: int64, shape (n_keys,): one slot for each word.
            slot_codes: int32, shape (n_keys,): the code in each of these slots; ABSENT if free.
            keys: uint64, shape (width, n_keys): the word to expect in each slot, its bytes packed
                into `width` integers.

        Returns:
            bool, shape (n_keys,).
        """
        # Two keys differ if any of their integers do.
        is_other_key: Bools = self.keys[0].take(slots) != keys[0]
        for integers_in_table, integers in zip(self.keys[1:], keys[1:], strict=True):
            is_other_key |= integers_in_table.take(slots) != integers
        is_other_key &= slot_codes != ABSENT
        return is_other_key

    def _slots(self, keys: Keys) -> Ints:
        """Return the first slot on the path of each key: int64, shape (n_keys,)."""
        hashes = hash_keys(keys)
        hashes >>= self._slot_shift
        return hashes.view(np.int64)

    def _grow_to_hold(self, count: int) -> None:
        """Enlarge the hash table if it has no room for a number of words.

        Args:
            count: The number of words for which there must be room, with those that are in the
                table.
        """
        n_slots = len(self.codes)
        while count > FILL_LIMIT * n_slots:
            n_slots *= 2
        if n_slots > len(self.codes):
            self._move_to_larger(n_slots)

    def _move_to_larger(self, n_slots: int) -> None:
        """Insert all words into a larger table, and take over its contents.

        The words cannot stay where they are: the slot of each depends on the size of the table.

        Args:
            n_slots: The new number of slots, a power of two.
        """
        larger = WordTable.empty(width=len(self.keys), n_slots=n_slots)
        taken_slots = (self.codes != ABSENT).nonzero()[0]
        larger.insert(self.keys.take(taken_slots, axis=1), self.codes.take(taken_slots))
        self.keys = larger.keys
        self.codes = larger.codes
        self._slot_shift = larger._slot_shift


def hash_keys(keys: Keys) -> Words:
    """Return a hash of each word: a number that looks random, by which the word is stored.

    The upper bits of the hash say where the word is in a table. Each of them depends on all bits of
    the word, so that words are spread evenly: a bit of a large odd factor changes bits of the
    product from its own place upwards.

    Args:
        keys: uint64, shape (width, n_keys): the bytes of each word, as `width` integers; the first
            row has the first integer of every word.

    Returns:
        uint64, shape (n_keys,).
    """
    hashes: Words = keys[0] * _FACTORS[0]
    # Mix in each further integer, with another factor, so that their order matters. The shift
    # brings the upper bits down, so that the multiplication spreads them again.
    for number in range(1, len(keys)):
        hashes ^= keys[number] * _FACTORS[number]
        hashes ^= hashes >> _MIX_SHIFT
        hashes *= _FACTORS[0]
    return hashes


def unique_keys(keys: Keys) -> tuple[Ints, Ints]:
    """Find the distinct words among many, and number all words by them.

    Words are given as keys: their bytes, packed into 64-bit integers. For the words "b a b":

        distinct words       "b"   "a"         in the order in which they first occur
        first_indices        0     1           where that is
        numbers              0     1     0     which of them each word is

    Args:
        keys: uint64, shape (width, n_keys): the key of each word, as `width` integers.

    Returns:
        first_indices: int64, shape (n_distinct,), ascending. Should two different words have the
            same hash, a word may be listed twice.
        numbers: int64, shape (n_keys,): index into `first_indices` for each word.
    """
    if not keys.shape[1]:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    first_indices, groups = _group_equal(keys)  # "a" may be the group 0: 1 0, and 1 0 1

    # Number the groups by where they first occur instead: "b" (group 1) gets 0, and "a" gets 1.
    groups_in_order = np.argsort(first_indices)  # 1 0
    new_numbers = _inverse(groups_in_order)  # of the groups 0 and 1: 1 0
    return first_indices[groups_in_order], new_numbers[groups]


def _group_equal(keys: Keys) -> tuple[Ints, Ints]:
    """Put equal words into the same group; the groups are in any order.

    For the words "b a b", the groups may be "a" and "b b". Then the results are 1 0, where these
    first occur, and 1 0 1, the group of each word.

    Args:
        keys: uint64, shape (width, n_keys): the key of each word, as `width` integers; at least
            one word.

    Returns:
        first_indices: int64, shape (n_groups,): where the word of each group first occurs.
        groups: int64, shape (n_keys,): the group of each word.
    """
    # Sort by hash, so that equal words are neighbours: "b a b" becomes "a b b".
    order = np.argsort(hash_keys(keys))  # (n_keys,) where "a b b" were before: 1 0 2
    is_first_in_group = _differ_from_previous(keys.take(order, axis=1))  # (n_keys,) T T F
    group_starts = np.flatnonzero(is_first_in_group)  # (n_groups,) 0 1
    first_indices = np.minimum.reduceat(order, group_starts)  # the least of 1, and of 0 2: 1 0

    # Number the groups of "a b b", and put the numbers back into the order of "b a b".
    groups = np.empty_like(order)
    groups[order] = np.cumsum(is_first_in_group) - 1  # 0 1 1 becomes 1 0 1
    return first_indices, groups


def _differ_from_previous(keys: Keys) -> Bools:
    """Return which keys differ from the key before them, and True for the first one."""
    differs = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    return np.append(True, differs)


def _inverse(permutation: Ints) -> Ints:
    """Return the position of each number in a permutation: 1 for 0 if it is 2 0 1."""
    positions = np.empty_like(permutation)
    positions[permutation] = np.arange(len(permutation))
    return positions
