"""Words and their tokens: an exact hash table from short byte strings to codes, and the lists of
tokens they stand for.

The table uses open addressing, with steps of 1, 2, 3 … slots. A key is a byte string in one or more
zero-padded little-endian 64-bit words; it is compared in full, so the hash decides speed and never
the result. A code is a token, which is all that most words have, or the number of a list of
several: few lookups touch a list, and the table is small. Table and lists are flat arrays that grow
by doubling, and that numpy looks up in bulk.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.tokenizers.engines.arrays import Bools, FlatLists, Ids, Ints, Words
from nanoset_core.tokenizers.engines.merges import ID_BITS

Keys: TypeAlias = Words
"""Byte strings: uint64, shape (64-bit words, keys)."""
Codes: TypeAlias = Ids
"""Lists of tokens: a token below _LISTS, or the sum of _LISTS and the number of a list: of several,
or of a greater one."""
Number = TypeVar("Number", bound=np.generic)
ABSENT = np.int32(-1)
"""What a key that is not in the table is found as; it is no code."""

_FACTOR = 0x9E3779B97F4A7C15  # 2 ** 64 / golden ratio, odd: Fibonacci hashing
_FACTORS = [np.uint64(pow(_FACTOR, power, 1 << 64)) for power in range(1, 33)]
_SHIFT = np.uint64(29)
_SLICE = 1 << 15  # lists gathered, or keys placed, at once: what fits into the processor's cache
_LISTS = np.int32(1 << ID_BITS)
FILL_LIMIT = 0.5
"""Share of the slots that may be taken."""


class WordTable:
    """Maps keys of a number of 64-bit words to codes; grows by doubling."""

    def __init__(self, keys: Keys, codes: Codes) -> None:
        """Take the key and the code, or ABSENT, of every slot; their number is a power of two."""
        self.keys, self.codes = keys, codes
        self.count = int(np.count_nonzero(codes != ABSENT))
        self._slot_shift = np.uint64(65 - len(codes).bit_length())

    @staticmethod
    def empty(width: int, slots: int = 1 << 12) -> WordTable:
        """Return a table without keys, of `width` 64-bit words each."""
        return WordTable(np.zeros((width, slots), np.uint64), np.full(slots, ABSENT))

    def find(self, keys: Keys, skip: Ints | None = None) -> Codes:
        """Return the codes of keys, ABSENT where there is none; those to `skip`, whose code does
        not matter, get 0.
        """
        slots, step = self._slots(keys), 0
        codes = self.codes.take(slots)
        differs = self._differs(keys, slots)
        if skip is not None:
            differs[skip] = False
            codes[skip] = 0
        pending = differs.nonzero()[0]
        while len(pending):  # keys whose slot is another one's, or free
            pending = pending.take((codes.take(pending) != ABSENT).nonzero()[0])
            step += 1
            tried = slots.take(pending) + step & len(self.codes) - 1
            slots[pending] = tried
            codes[pending] = self.codes.take(tried)
            pending = pending.take(self._differs(keys.take(pending, axis=1), tried).nonzero()[0])
        return codes

    def insert(self, keys: Keys, codes: Codes) -> None:
        """Add keys that are not in the table, with their codes, int32, shape (keys,); equal keys
        must not come twice.

        Keys should come with the most frequent first: the earlier a key, the nearer it is to where
        it is looked for.
        """
        if self.count + len(codes) > FILL_LIMIT * len(self.codes):
            self._grow(self.count + len(codes))
        self.count += len(codes)
        for begin in range(0, len(codes), _SLICE):
            self._place(keys[:, begin : begin + _SLICE], codes[begin : begin + _SLICE])

    def _place(self, keys: Keys, codes: Codes) -> None:
        slots, pending, step = self._slots(keys), np.arange(len(codes)), 0
        while len(pending):
            step += 1
            free = (self.codes.take(slots) == ABSENT).nonzero()[0]
            wanted, numbers = slots.take(free), free.astype(np.int32)
            # several may claim one slot; whichever is written has it
            self.codes[wanted[::-1]] = numbers[::-1]
            won = (self.codes.take(wanted) == numbers).nonzero()[0]
            wanted, winners = wanted.take(won), free.take(won)
            placed = pending.take(winners)
            self.codes[wanted] = codes.take(placed)
            self.keys[:, wanted] = keys.take(placed, axis=1)
            pending = np.delete(pending, winners)
            slots = np.delete(slots, winners) + step & len(self.codes) - 1

    def _differs(self, keys: Keys, slots: Ints) -> Bools:
        differs: Bools = self.keys[0].take(slots) != keys[0]
        for held, key in zip(self.keys[1:], keys[1:], strict=True):
            differs |= held.take(slots) != key
        return differs

    def _slots(self, keys: Keys) -> Ints:
        """Return the slot where each key belongs: int64, shape (keys,)."""
        hashed = mixed(keys)
        hashed >>= self._slot_shift
        return hashed.view(np.int64)

    def _grow(self, count: int) -> None:
        used = (self.codes != ABSENT).nonzero()[0]
        keys, codes = self.keys.take(used, axis=1), self.codes.take(used)
        slots = len(self.codes)
        while count > FILL_LIMIT * slots:
            slots *= 2
        larger = WordTable.empty(len(keys), slots)
        self.keys, self.codes, self.count, self._slot_shift = (
            larger.keys,
            larger.codes,
            0,
            larger._slot_shift,
        )
        self.insert(keys, codes)


def mixed(keys: Keys) -> Words:
    """Return a hash of each key whose upper bits depend on all of it (multiplicative): uint64,
    shape (keys,).
    """
    hashed: Words = keys[0] * _FACTORS[0]
    for key, factor in zip(keys[1:], _FACTORS[1:], strict=False):
        hashed ^= key * factor
        hashed ^= hashed >> _SHIFT
        hashed *= _FACTORS[0]
    return hashed


def unique_keys(keys: Keys) -> tuple[Ints, Ints]:
    """Return where each distinct key first stands, ascending, and which of them each key is.

    Keys are told apart in full; should two different keys mix to the same number, one may be listed
    twice.
    """
    order = np.argsort(mixed(keys))
    ordered = keys.take(order, axis=1)
    fresh = np.append(True, (ordered[:, 1:] != ordered[:, :-1]).any(axis=0))[: len(order)]
    first = np.minimum.reduceat(order, np.flatnonzero(fresh)) if len(order) else order
    by_place = np.argsort(first)
    rank, inverse = np.empty_like(first), np.empty_like(order)
    rank[by_place] = np.arange(len(first))
    inverse[order] = rank[np.cumsum(fresh) - 1]
    return first[by_place], inverse


class TokenLists:
    """Lists of one token or more as codes; those that are more than a small token are numbered, and
    lie here.
    """

    def __init__(self, ends: Ints | None = None, tokens: Ids | None = None) -> None:
        """Begin with the lists that `to_arrays` gave, else without any."""
        # of the lists before each, and of all
        self._ends = np.zeros(1, np.int64) if ends is None else ends
        self._tokens = np.empty(0, np.int32) if tokens is None else tokens
        self._count = len(self._ends) - 1

    def __len__(self) -> int:
        return self._count

    def add(self, ids: Ids, lengths: NDArray[np.integer[Any]]) -> Codes:
        """Add flat lists of one token or more, and return their codes: int32, shape (lists,)."""
        counts = lengths.astype(np.int64)
        begins = np.cumsum(counts) - counts
        codes = ids.take(begins)
        several = ((counts > 1) | (codes >= _LISTS)).nonzero()[0]
        if len(several):
            counts = counts.take(several)
            codes[several] = self._number(
                ids.take(positions_in(begins.take(several), counts)), counts
            )
        return codes

    def _number(self, ids: Ids, counts: Ints) -> Codes:
        """Give lists numbers, and return their codes."""
        used, first, end = int(self._ends[self._count]), self._count, self._count + len(counts)
        self._ends = _with_room(self._ends, end + 1)
        self._tokens = _with_room(self._tokens, used + len(ids))
        self._tokens[used : used + len(ids)] = ids
        self._ends[first + 1 : end + 1] = used + np.cumsum(counts)
        self._count = end
        return np.arange(first, end, dtype=np.int32) + _LISTS

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything that the lists hold."""
        return {
            "ends": self._ends[: self._count + 1],
            "tokens": self._tokens[: self._ends[self._count]],
        }

    def truncate(self, count: int) -> None:
        """Forget all numbered lists but the first `count`."""
        self._count = min(count, self._count)

    def gather(self, codes: Codes) -> FlatLists:
        """Return the lists of these codes, int32, shape (lists,), back to back."""
        slices = [codes[begin : begin + _SLICE] for begin in range(0, len(codes), _SLICE)]
        ids, lengths = zip(*map(self._gather, slices or [codes]), strict=True)
        return np.concatenate(ids), np.concatenate(lengths)

    def _gather(self, codes: Codes) -> FlatLists:
        several = (codes >= _LISTS).nonzero()[0]
        numbers = (codes.take(several) - _LISTS).astype(np.int64)
        stored = self._ends.take(numbers)
        counts = self._ends.take(numbers + 1) - stored
        lengths = np.ones(len(codes), np.int64)
        lengths[several] = counts
        ends = np.cumsum(lengths)
        ids = np.empty(int(ends[-1]) if len(ends) else 0, np.int32)
        ends -= lengths
        ids[ends] = codes
        ids[positions_in(ends.take(several), counts)] = self._tokens.take(
            positions_in(stored, counts)
        )
        return ids, lengths


def _with_room(array: NDArray[Number], size: int) -> NDArray[Number]:
    """Return the array, or a copy at least twice as long that has room for `size` entries."""
    if size <= len(array):
        return array
    larger = np.empty(max(2 * len(array), size), array.dtype)
    larger[: len(array)] = array
    return larger
