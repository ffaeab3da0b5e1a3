"""An exact hash table from short byte strings to codes, in which numpy looks up many keys at once.

A key is a byte string, in one or more 64-bit words: zero-padded, little-endian. The bytes "the" are
the key 0x656874. Keys are compared in full: the hash decides the speed, and never the result.

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
"""Byte strings: uint64, shape (64-bit words of a key, n_keys)."""
ABSENT = np.int32(-1)
"""The result for a key that is not in the table; it is no code."""
FILL_LIMIT = 0.5
"""Share of the slots that may be taken."""

_GOLDEN_RATIO = 0x9E3779B97F4A7C15  # 2 ** 64 / golden ratio, odd: Fibonacci hashing
_FACTORS = [np.uint64(pow(_GOLDEN_RATIO, power, 1 << 64)) for power in range(1, 33)]
_MIX_SHIFT = np.uint64(29)
_PLACED_TOGETHER = 1 << 15  # keys: what fits into the processor's cache


class WordTable:
    """Maps keys of a fixed number of 64-bit words to codes; grows by doubling."""

    def __init__(self, keys: Keys, codes: Codes) -> None:
        """Start with the contents of all slots.

        Args:
            keys: uint64, shape (64-bit words of a key, n_slots).
            codes: int32, shape (n_slots,): ABSENT for free slots. n_slots is a power of two.
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
            width: 64-bit words of each key.
            n_slots: A power of two.
        """
        return WordTable(np.zeros((width, n_slots), np.uint64), np.full(n_slots, ABSENT))

    def find(self, keys: Keys, skip: Ints | None = None) -> Codes:
        """Return the codes of keys.

        A key is looked for along a path of slots, which starts at the slot of its hash, until the
        key or a free slot is found.

        Args:
            keys: uint64, shape (width, n_keys).
            skip: Indices of keys that are not looked for.

        Returns:
            int32, shape (n_keys,): ABSENT for keys that are not in the table, 0 for those to skip.
        """
        slots = self._slots(keys)
        codes = self.codes.take(slots)
        differs = self._differs(keys, slots)
        if skip is not None:
            differs[skip] = False
            codes[skip] = 0

        # Follow the paths of all keys together. Most keys are found in the first slot.
        step = 0
        pending = differs.nonzero()[0]  # index of the keys whose slot holds another key, or none
        while len(pending):
            # A free slot ends the search for its key.
            is_taken = codes.take(pending) != ABSENT
            pending = pending.take(is_taken.nonzero()[0])

            step += 1
            next_slots = self._advanced(slots.take(pending), step)
            slots[pending] = next_slots
            codes[pending] = self.codes.take(next_slots)
            differs = self._differs(keys.take(pending, axis=1), next_slots)
            pending = pending.take(differs.nonzero()[0])
        return codes

    def insert(self, keys: Keys, codes: Codes) -> None:
        """Add keys, none of which is in the table or occurs twice.

        Frequent keys should come first: the earlier a key is inserted, the shorter is its path.

        Args:
            keys: uint64, shape (width, n_keys).
            codes: int32, shape (n_keys,).
        """
        count = self.count + len(codes)
        if count > FILL_LIMIT * len(self.codes):
            self._grow(count)
        self.count = count
        for start in range(0, len(codes), _PLACED_TOGETHER):
            stop = start + _PLACED_TOGETHER
            self._place(keys[:, start:stop], codes[start:stop])

    def _place(self, keys: Keys, codes: Codes) -> None:
        """Write keys and codes into free slots, each into the first one along its path.

        Args:
            keys: uint64, shape (width, n_keys).
            codes: int32, shape (n_keys,).
        """
        pending = np.arange(len(codes))  # index of the keys without a slot
        slots = self._slots(keys)  # the slot that each pending key tries
        step = 0
        while len(pending):
            # Several keys may try the same free slot. All write their numbers there, in reverse
            # order: so the first of them is written last, and wins.
            tries_free = (self.codes.take(slots) == ABSENT).nonzero()[0]
            free_slots = slots.take(tries_free)
            numbers = tries_free.astype(np.int32)
            self.codes[free_slots[::-1]] = numbers[::-1]
            has_won = (self.codes.take(free_slots) == numbers).nonzero()[0]

            # The winners replace their numbers by their codes.
            winner_slots = free_slots.take(has_won)
            winners = tries_free.take(has_won)
            placed = pending.take(winners)
            self.codes[winner_slots] = codes.take(placed)
            self.keys[:, winner_slots] = keys.take(placed, axis=1)

            # All others go one step along their paths.
            step += 1
            pending = np.delete(pending, winners)
            slots = self._advanced(np.delete(slots, winners), step)

    def _advanced(self, slots: Ints, step: int) -> Ints:
        """Return the slots `step` further, which continue at the front after the last one."""
        return (slots + step) & (len(self.codes) - 1)

    def _differs(self, keys: Keys, slots: Ints) -> Bools:
        """Return which keys differ from those in some slots: bool, shape (n_keys,)."""
        differs: Bools = self.keys[0].take(slots) != keys[0]
        for slot_words, key_words in zip(self.keys[1:], keys[1:], strict=True):
            differs |= slot_words.take(slots) != key_words
        return differs

    def _slots(self, keys: Keys) -> Ints:
        """Return the first slot on the path of each key: int64, shape (n_keys,)."""
        hashes = hash_keys(keys)
        hashes >>= self._slot_shift
        return hashes.view(np.int64)

    def _grow(self, count: int) -> None:
        """Enlarge the table.

        All keys are inserted into a larger table, because their slots depend on its size.

        Args:
            count: Number of keys for which the new table has room.
        """
        n_slots = len(self.codes)
        while count > FILL_LIMIT * n_slots:
            n_slots *= 2

        larger = WordTable.empty(len(self.keys), n_slots)
        is_taken = (self.codes != ABSENT).nonzero()[0]
        larger.insert(self.keys.take(is_taken, axis=1), self.codes.take(is_taken))
        self.keys = larger.keys
        self.codes = larger.codes
        self._slot_shift = larger._slot_shift


def hash_keys(keys: Keys) -> Words:
    """Return a hash of each key, whose upper bits depend on all bits of the key.

    Args:
        keys: uint64, shape (width, n_keys).

    Returns:
        uint64, shape (n_keys,).
    """
    hashes: Words = keys[0] * _FACTORS[0]
    for words, factor in zip(keys[1:], _FACTORS[1:], strict=False):
        hashes ^= words * factor
        hashes ^= hashes >> _MIX_SHIFT
        hashes *= _FACTORS[0]
    return hashes


def unique_keys(keys: Keys) -> tuple[Ints, Ints]:
    """Find the distinct keys among many, and number all keys by them.

    The keys "b a b" give the indices 0 and 1 of the first "b" and the first "a", and the numbers
    0 1 0.

    Args:
        keys: uint64, shape (width, n_keys).

    Returns:
        first_indices: int64, shape (n_distinct,), ascending: where each distinct key first occurs.
            Should two different keys have the same hash, a key may be listed twice.
        numbers: int64, shape (n_keys,): index into `first_indices` for each key.
    """
    # Sort by hash, so that equal keys are neighbours, and find where the key changes.
    order = np.argsort(hash_keys(keys))
    sorted_keys = keys.take(order, axis=1)
    differs_from_previous = (sorted_keys[:, 1:] != sorted_keys[:, :-1]).any(axis=0)
    is_new = np.append(True, differs_from_previous)[: len(order)]  # (n_keys,)

    # The first occurrence of each distinct key, in the order of the hashes.
    first_indices = order
    if len(order):
        first_indices = np.minimum.reduceat(order, np.flatnonzero(is_new))

    # Number the distinct keys in the order of their first occurrence instead.
    by_occurrence = np.argsort(first_indices)
    number_by_hash_order = np.empty_like(first_indices)
    number_by_hash_order[by_occurrence] = np.arange(len(first_indices))
    numbers = np.empty_like(order)
    numbers[order] = number_by_hash_order[np.cumsum(is_new) - 1]
    return first_indices[by_occurrence], numbers
