"""Words and their tokens: an exact hash table from short byte strings to numbers, and lists of tokens by number.

The table uses open addressing with linear probing. A key is a byte string in one or more zero-padded little-endian
64-bit words; it is compared in full, so the hash decides speed and never the result. No key is all zeros: that is what
free slots hold. Table and lists are flat arrays that grow by doubling, and that numpy looks up in bulk.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from nanoset_core.tokenization.bpe.reference import FlatLists

Keys: TypeAlias = list[NDArray[np.uint64]]
"""Byte strings, 64-bit word by word: uint64, shape (keys,), for each word."""
Number = TypeVar("Number", bound=np.generic)
ABSENT = -1
"""What a key that is not in the table is found as."""

_FACTOR = 0x9E3779B97F4A7C15  # 2 ** 64 / golden ratio, odd: Fibonacci hashing
_FACTORS = [np.uint64(pow(_FACTOR, power, 1 << 64)) for power in range(1, 33)]
_SHIFT = np.uint64(29)
_SLICE = 1 << 15  # lists gathered at once: what fits into the processor's cache
FILL_LIMIT = 0.5
"""Share of the slots that may be taken."""


class WordTable:
    """Maps keys of `width` 64-bit words to int32 values >= 0; grows by doubling."""

    def __init__(self, width: int, slot_bits: int = 12) -> None:
        self.width = width
        self.count = 0
        self._allocate(slot_bits)

    def __len__(self) -> int:
        return self.count

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the table takes."""
        return self._values.nbytes + sum(words.nbytes for words in self._words)

    def find(self, keys: Keys, skip: NDArray[np.int64] | None = None) -> NDArray[np.int32]:
        """Values of keys: int32, shape (keys,), ABSENT where there is none.

        Args:
            keys: as many words as the table's width.
            skip: int64, shape (skipped,): keys whose value does not matter; they get any value but ABSENT.
        """
        slots = self._slots(keys)
        values = self._values.take(slots)
        differs = self._differs(keys, slots)
        if skip is not None:
            differs[skip] = False
            values[skip] = 0
        unsettled = np.flatnonzero(differs)
        if len(unsettled):
            self._probe(keys, slots, values, unsettled)
        return values

    def insert(self, keys: Keys, values: NDArray[np.int32]) -> None:
        """Add keys that are not in the table, with values int32, shape (keys,); equal keys must not come twice.

        Keys should come with the most frequent first: the earlier a key, the nearer it is to where it is looked for.
        """
        while self.count + len(values) > FILL_LIMIT * self._slot_count:
            self._grow()
        self.count += len(values)
        slots = self._slots(keys)
        pending = np.arange(len(values))
        while len(pending):
            wanted = slots[pending]
            free = self._values[wanted] == ABSENT
            claims = pending[free]
            self._values[wanted[free][::-1]] = claims[::-1]  # several may claim one slot; whichever is written has it
            won = claims[self._values[wanted[free]] == claims]
            self._values[slots[won]] = values[won]
            for words, key in zip(self._words, keys, strict=True):
                words[slots[won]] = key[won]
            settled = np.zeros(len(values), bool)
            settled[won] = True
            pending = pending[~settled[pending]]
            slots[pending] = (slots[pending] + 1) & (self._slot_count - 1)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """All that it holds."""
        return {"keys": np.stack(self._words), "values": self._values}

    @classmethod
    def from_arrays(cls, keys: NDArray[np.uint64], values: NDArray[np.int32], most: int) -> WordTable:
        """The table that `to_arrays` was asked of.

        Raises:
            ValueError: there is none like it whose values are below `most`.
        """
        slots = len(values)
        if (
            slots < 2
            or slots & slots - 1
            or keys.shape[1:] != (slots,)
            or keys.dtype != np.uint64
            or values.dtype != np.int32
        ):
            raise ValueError(f"{slots} slots, keys of shape {keys.shape}")
        if values.min() < ABSENT or values.max() >= most:
            raise ValueError(f"values {values.min()} to {values.max()}")
        table = cls(len(keys), 1)
        table._slot_count, table._slot_shift = slots, np.uint64(65 - slots.bit_length())
        table._words, table._values = list(keys), values
        table.count = int(np.count_nonzero(values != ABSENT))
        if table.count > FILL_LIMIT * slots:
            raise ValueError(f"{table.count} of {slots} slots are taken")
        return table

    def sample(self, count: int, least: int) -> tuple[Keys, NDArray[np.int32]]:
        """About so many keys from all over the table whose values are `least` or more, and those."""
        used = np.flatnonzero(self._values >= least)
        used = used[:: max(1, len(used) // count)]
        return [words[used] for words in self._words], self._values[used]

    def _probe(
        self, keys: Keys, slots: NDArray[np.int64], values: NDArray[np.int32], unsettled: NDArray[np.int64]
    ) -> None:
        """Follow keys whose first slot holds another key; `values` is corrected at `unsettled`."""
        occupied = values[unsettled] != ABSENT
        values[unsettled] = ABSENT
        unsettled = unsettled[occupied]
        slots = slots[unsettled]
        while len(unsettled):
            slots = (slots + 1) & (self._slot_count - 1)
            found = self._values[slots]
            differs = self._differs([key[unsettled] for key in keys], slots)
            values[unsettled[~differs]] = found[~differs]
            follow = differs & (found != ABSENT)
            unsettled, slots = unsettled[follow], slots[follow]

    def _differs(self, keys: Keys, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        differs: NDArray[np.bool_] = self._words[0].take(slots) != keys[0]
        for words, key in zip(self._words[1:], keys[1:], strict=True):
            differs |= words.take(slots) != key
        return differs

    def _slots(self, keys: Keys) -> NDArray[np.int64]:
        """int64, shape (keys,): the slot where each key belongs."""
        return (mixed(keys) >> self._slot_shift).view(np.int64)

    def _allocate(self, slot_bits: int) -> None:
        self._slot_count = 1 << slot_bits
        self._slot_shift = np.uint64(64 - slot_bits)
        self._words = [np.zeros(self._slot_count, np.uint64) for _ in range(self.width)]
        self._values = np.full(self._slot_count, ABSENT, np.int32)

    def _grow(self) -> None:
        used = np.flatnonzero(self._values != ABSENT)
        used = used[np.argsort(self._values[used])]  # older first: they are met more often
        keys, values = [words[used] for words in self._words], self._values[used]
        self._allocate(self._slot_count.bit_length())
        self.count = 0
        self.insert(keys, values)


def mixed(keys: Keys) -> NDArray[np.uint64]:
    """uint64, shape (keys,): a number for each key, whose upper bits depend on all of it (multiplicative hashing)."""
    hashed = keys[0] * _FACTORS[0]
    for key, factor in zip(keys[1:], _FACTORS[1:], strict=False):
        hashed ^= key * factor
        hashed ^= hashed >> _SHIFT
        hashed *= _FACTORS[0]
    return hashed


def unique_keys(keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct keys.

    Keys are told apart in full; should two different keys mix to the same number, one may be listed twice.

    Returns:
        first: int64, shape (distinct,): where each distinct key first stands, ascending.
        inverse: int64, shape (keys,): which of them each key is.
    """
    order = np.argsort(mixed(keys), kind="stable")
    fresh = np.zeros(len(order), bool)
    fresh[:1] = True
    for key in keys:
        ordered = key[order]
        fresh[1:] |= ordered[1:] != ordered[:-1]
    first = order[fresh]
    by_place = np.argsort(first)
    rank = np.empty(len(first), np.int64)
    rank[by_place] = np.arange(len(first))
    inverse = np.empty(len(order), np.int64)
    inverse[order] = rank[np.cumsum(fresh) - 1]
    return first[by_place], inverse


class TokenLists:
    """Numbered lists of one token or more."""

    def __init__(self) -> None:
        self._count = 0
        self._used = 0
        self._heads = np.empty(1 << 12, np.int64)  # length << 32 | first token, which is the only one of most lists
        self._rests = np.empty(1 << 12, np.int32)  # where the second token of each list is in _tokens
        self._tokens = np.empty(1 << 12, np.int32)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the lists take."""
        return self._heads.nbytes + self._rests.nbytes + self._tokens.nbytes

    def add(self, ids: NDArray[np.int32], lengths: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
        """Numbers of new lists, int32, shape (lists,), given as flat lists of one token or more."""
        begin, end = self._count, self._count + len(lengths)
        self._reserve(end, self._used + len(ids))
        offsets = np.cumsum(lengths) - lengths
        self._heads[begin:end] = lengths.astype(np.int64) << 32 | ids[offsets]
        self._rests[begin:end] = offsets + (self._used + 1)
        self._tokens[self._used : self._used + len(ids)] = ids
        self._count, self._used = end, self._used + len(ids)
        return np.arange(begin, end, dtype=np.int32)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """All that they hold."""
        return {
            "heads": self._heads[: self._count],
            "rests": self._rests[: self._count],
            "tokens": self._tokens[: self._used],
        }

    @classmethod
    def from_arrays(cls, heads: NDArray[np.int64], rests: NDArray[np.int32], tokens: NDArray[np.int32]) -> TokenLists:
        """The lists that `to_arrays` was asked of.

        Raises:
            ValueError: there are none like them.
        """
        if heads.dtype != np.int64 or not rests.dtype == tokens.dtype == np.int32 or len(heads) != len(rests):
            raise ValueError("other types or lengths of the lists")
        lengths = heads >> 32
        ends = np.cumsum(lengths)
        if not len(ends) or lengths.min() < 1 or ends[-1] != len(tokens) or (rests != ends - lengths + 1).any():
            raise ValueError("lists that do not lie back to back")
        lists = cls()
        lists._heads, lists._rests, lists._tokens = heads, rests, tokens
        lists._count, lists._used = len(heads), len(tokens)
        return lists

    def truncate(self, count: int) -> None:
        """Forget all lists but the first `count`."""
        if count < self._count:
            self._used = int(self._rests[count]) - 1
            self._count = count

    def gather(self, numbers: NDArray[np.int32]) -> FlatLists:
        """The lists of these numbers, int32, shape (lists,), back to back."""
        slices = [numbers[begin : begin + _SLICE] for begin in range(0, len(numbers), _SLICE)]
        parts = [self._gather(part) for part in slices] or [self._gather(numbers)]
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([lengths for _, lengths in parts])

    def _gather(self, numbers: NDArray[np.int32]) -> FlatLists:
        heads = self._heads.take(numbers)
        lengths = heads >> 32
        ends = np.cumsum(lengths)
        ids = np.empty(int(ends[-1]) if len(ends) else 0, np.int32)
        begins = ends - lengths
        ids[begins] = heads.astype(np.int32)  # the lower half
        more = np.flatnonzero(lengths > 1)
        rests = lengths[more] - 1
        filled = np.cumsum(rests) - rests  # where each rest would begin if the rests stood alone
        steps = np.arange(int(rests.sum()))
        targets = np.repeat(begins[more] + 1 - filled, rests) + steps
        ids[targets] = self._tokens.take(np.repeat(self._rests.take(numbers[more]) - filled, rests) + steps)
        return ids, lengths

    def _reserve(self, lists: int, tokens: int) -> None:
        if lists > len(self._heads):
            size = _doubled(len(self._heads), lists)
            self._heads = _resized(self._heads, size, self._count)
            self._rests = _resized(self._rests, size, self._count)
        if tokens > len(self._tokens):
            self._tokens = _resized(self._tokens, _doubled(len(self._tokens), tokens), self._used)


def _doubled(size: int, needed: int) -> int:
    return max(2 * size, 1 << (needed - 1).bit_length())


def _resized(array: NDArray[Number], size: int, used: int) -> NDArray[Number]:
    larger = np.empty(size, array.dtype)
    larger[:used] = array[:used]
    return larger
