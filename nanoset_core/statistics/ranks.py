"""Find where a running sum over sorted keys exceeds a limit, without sorting the keys.

Billions of keys do not fit into memory. So they are read several times in chunks, and the key is
found digit by digit, like a number that is guessed from its first digit on. A digit is 16 bits, and
a key has four. With decimal digits, for

    key       17   35   38   52   81
    amount     4    3    5    2    6

and a limit of 10:

    first digit     amounts by digit: 1 → 4, 3 → 8, 5 → 2, 8 → 6
                    running sums      4, 12, …: 3 is the first digit that exceeds 10
                    4 precede it, which leaves 6
    second digit    of the keys 3x: 5 → 3, 8 → 5
                    running sums    3, 8: 8 is the first digit that exceeds 6

So the sum exceeds the limit at the key 38, and the keys below it have 7 together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.statistics.hashing import U64

_DIGIT_BITS = 16
_N_DIGIT_VALUES = 1 << _DIGIT_BITS
_SHIFTS = (48, 32, 16, 0)
"""How far a key is shifted to the right until a digit is its last one, first digit first."""
_SIGN_BIT = U64(1 << 63)


class KeyedAmounts(NamedTuple):
    """Some keys, and an amount that belongs to each."""

    keys: NDArray[np.uint64]
    """Shape (n_keys,), in any order; a key may occur several times."""
    amounts: NDArray[np.int64]
    """Not negative, shape (n_keys,)."""


class Excess(NamedTuple):
    """The key at which a running sum exceeds a limit."""

    key: np.uint64
    amount_below: int
    """Sum of the amounts of all smaller keys, which is not greater than the limit."""


def first_excess(chunks: Callable[[], Iterable[KeyedAmounts]], limit: int) -> Excess | None:
    """Find the key at which the sum of amounts exceeds a limit, in the order of the keys.

    For example, documents have a score (the key) and a number of tokens (the amount). Which score
    must the worst documents have so that they have more than 10 tokens together?

        key            17    35    38    52    81
        amount          4     3     5     2     6
        running sum     4     7    12                  above 10 at the key 38

    There may be billions of keys, too many to sort. So the key is found digit by digit, in several
    passes. With decimal digits:

        first digit           1    3    5    8
        amounts               4    8    2    6
        running sums          4    12                  above 10 at the digit 3
        second digit, of 3x   5    8
        amounts               3    5
        running sums          7    12                  above 10 at the digit 8

    The digits that are used here have 16 bits, so a key of 64 bits has four of them.

    Args:
        chunks: Function that returns all keys and amounts in chunks, in any order. It is called up
            to four times.
        limit: What the sum must exceed: 10.

    Returns:
        The key, and the sum of the amounts of all smaller ones: 38 and 7. None if all amounts
        together do not exceed the limit.
    """
    prefix = U64(0)  # the digits that are known
    amount_below = 0  # amounts of the keys that are smaller than any with these digits
    for shift in _SHIFTS:
        amounts = _amounts_by_digit(chunks(), prefix, shift)  # (65536,)
        running_sums = amount_below + np.cumsum(amounts)
        is_first_digit = shift == _SHIFTS[0]
        if is_first_digit and running_sums[-1] <= limit:
            return None

        digit = _first_digit_above(running_sums, limit)
        amount_below = int(running_sums[digit] - amounts[digit])
        prefix = _append_digit(prefix, digit)
    return Excess(prefix, amount_below)


def _first_digit_above(running_sums: NDArray[np.int64], limit: int) -> int:
    """Return the first digit at which a running sum is above a limit.

    Amounts are added up as floats, which are rounded above 2**53. Then it can happen that no sum is
    above the limit, and the result is the last digit.

    Args:
        running_sums: For each digit, the sum up to it; ascending, shape (65536,).
        limit: The limit.
    """
    digit = int(np.searchsorted(running_sums, limit, side="right"))
    return min(digit, _N_DIGIT_VALUES - 1)


def keys_at_ranks(
    chunks: Callable[[], Iterable[NDArray[np.uint64]]], ranks: Sequence[int], *, bits: int = 64
) -> list[np.uint64]:
    """Return which keys would be at some positions if all keys were sorted.

    There may be billions of keys, too many to sort. So a key is found digit by digit. For example,
    with decimal digits, the key at position 2 of 17, 35, 38 and 52:

        first digit     one key begins with 1, and two with 3: so the key is one of these two, and
                          it is at position 1 of them
        second digit    one of them continues with 5, and one with 8: so the key is 38

    Digits have 16 bits. So a key of 64 bits has four digits.

    Args:
        chunks: Function that returns all keys in chunks, in any order. It is called once for each
            digit.
        ranks: The positions, from 0 on; each smaller than the number of keys.
        bits: How many bits the largest key may have, a multiple of 16. With fewer than 64, less
            has to be read.

    Returns:
        The key at each position.
    """
    searches = [_KeySearch(U64(0), rank) for rank in ranks]
    shifts = range(bits - _DIGIT_BITS, -1, -_DIGIT_BITS)  # 48, 32, 16 and 0 for 64 bits
    for shift in shifts:
        prefixes = {search.prefix for search in searches}
        is_first_digit = shift == shifts[0]
        counts_by_prefix = _counts_by_digit(
            chunks(), prefixes, shift, is_first_digit=is_first_digit
        )
        for search in searches:
            search.add_digit(counts_by_prefix[search.prefix])
    return [search.prefix for search in searches]


@dataclass(slots=True)
class _KeySearch:
    """The search for the key at some position, of which the first digits are known."""

    prefix: np.uint64
    """The first digits, as one number."""
    rank: int
    """Position of the key among all keys with these first digits."""

    def add_digit(self, counts: NDArray[np.int64]) -> None:
        """Find the next digit of the key, so that one more is known.

        Args:
            counts: How many of the keys with the known digits have each next digit, shape (65536,).
        """
        digit = _digit_at_rank(counts, self.rank)
        self.prefix = _append_digit(self.prefix, digit.value)
        self.rank -= digit.n_smaller


class _Digit(NamedTuple):
    """A digit of a key."""

    value: int
    n_smaller: int
    """Number of keys with a smaller digit, of those that are equal up to it."""


def _digit_at_rank(counts: NDArray[np.int64], rank: int) -> _Digit:
    """Return the digit of the key at some position, if keys were sorted by this digit.

    For example, one key has the digit 1, and two have 3. So 1 is at position 0, and 3 is at the
    positions 1 and 2.

    Args:
        counts: How many keys have each digit, shape (65536,): [0, 1, 0, 2, ...].
        rank: The position: 2.
    """
    counts_up_to_digit = np.cumsum(counts)  # [0, 1, 1, 3, ...]
    # The first digit up to which there are more keys than the position: 3.
    value = int(np.searchsorted(counts_up_to_digit, rank, side="right"))
    n_smaller = int(counts_up_to_digit[value] - counts[value])  # 3 - 2
    return _Digit(value, n_smaller)


def _append_digit(prefix: np.uint64, digit: int) -> np.uint64:
    """Return the first digits of a key and the next one: with decimal digits, 12 and 3 are 123."""
    return (prefix << U64(_DIGIT_BITS)) | U64(digit)


def _prefixes_of(keys: NDArray[np.uint64], shift: int) -> NDArray[np.uint64]:
    """Return the first digits of keys, up to the digit that `_digits_of` returns.

    With decimal digits, if one digit follows that one, it is 12 for the key 1234.

    Args:
        keys: Shape (n_keys,).
        shift: How many bits follow the digit, one of `_SHIFTS`.
    """
    return (keys >> U64(shift)) >> U64(_DIGIT_BITS)


def _digits_of(keys: NDArray[np.uint64], shift: int) -> NDArray[np.int64]:
    """Return one digit of each key: the 16 bits that `shift` bits follow.

    With decimal digits, if one digit follows, it is 3 for the key 1234.

    Args:
        keys: Shape (n_keys,).
        shift: How many bits follow the digit, one of `_SHIFTS`.
    """
    last_bits = U64(_N_DIGIT_VALUES - 1)  # 16 bits that are 1
    return ((keys >> U64(shift)) & last_bits).astype(np.int64)


def _counts_by_digit(
    chunks: Iterable[NDArray[np.uint64]],
    prefixes: Collection[np.uint64],
    shift: int,
    *,
    is_first_digit: bool,
) -> dict[np.uint64, NDArray[np.int64]]:
    """Count, of the keys that begin with some digits, how many have each next digit.

    A key is searched for digit by digit. For example, with decimal digits, it is known that it
    begins with 12 (the *prefix*):

        key     prefix    next digit
        1234    12        3
        1239    12        3
        1278    12        7
        5612    56        -

    So of the keys that begin with 12, two continue with 3, and one with 7. (In fact, digits have 16
    bits, and keys have four of them.)

    Args:
        chunks: The keys in chunks.
        prefixes: The known digits, as a number: {12}. There may be several such numbers.
        shift: How many bits follow the digit that is counted: 48 for the first digit of a key, 32
            for the second, 16 for the third and 0 for the last one.
        is_first_digit: Whether it is the first digit. Then no digits are known, and all keys count.

    Returns:
        Prefix → how many keys have each next digit, shape (65536,).
    """
    counts_by_prefix = {prefix: np.zeros(_N_DIGIT_VALUES, np.int64) for prefix in prefixes}
    for keys in chunks:
        if is_first_digit:
            for counts in counts_by_prefix.values():
                counts += np.bincount(_digits_of(keys, shift), minlength=_N_DIGIT_VALUES)
            continue

        prefixes_of_keys = _prefixes_of(keys, shift)  # [12, 12, 12, 56]
        for prefix, counts in counts_by_prefix.items():
            with_prefix = keys[prefixes_of_keys == prefix]  # [1234, 1239, 1278]
            digits = _digits_of(with_prefix, shift)  # [3, 3, 7]
            counts += np.bincount(digits, minlength=_N_DIGIT_VALUES)
    return counts_by_prefix


def _amounts_by_digit(
    chunks: Iterable[KeyedAmounts], prefix: np.uint64, shift: int
) -> NDArray[np.int64]:
    """Add up what belongs to keys by their next digit, if their first digits are known.

    A key is searched for digit by digit. Each key has an amount, such as the tokens of a document.
    For example, with decimal digits, it is known that the key begins with 3 (the *prefix*):

        key             35    38    52
        amount           3     5     2
        next digit       5     8     -       (does not begin with 3)

    The sums are 3 for the digit 5, 5 for the digit 8, and 0 for all others. (In fact, digits have
    16 bits, and keys have four of them.)

    Args:
        chunks: The keys and amounts in chunks.
        prefix: The first digits, as one number: 3.
        shift: How many bits follow the next digit: 48 if it is the first digit of a key, 32 for the
            second, 16 for the third and 0 for the last one.

    Returns:
        The sums, shape (65536,).
    """
    is_first_digit = shift == _SHIFTS[0]  # then no digits are known, and all keys count
    sums = np.zeros(_N_DIGIT_VALUES, np.int64)
    for chunk in chunks:
        with_prefix = chunk if is_first_digit else _with_prefix(chunk, prefix, shift)
        digits = _digits_of(with_prefix.keys, shift)
        # bincount adds up floats, which are exact up to 2**53.
        sums += np.bincount(digits, with_prefix.amounts, _N_DIGIT_VALUES).astype(np.int64)
    return sums


def _with_prefix(chunk: KeyedAmounts, prefix: np.uint64, shift: int) -> KeyedAmounts:
    """Return the keys that begin with some digits, and their amounts.

    Args:
        chunk: Keys with amounts.
        prefix: The first digits, as one number.
        shift: How many bits follow the next digit, one of `_SHIFTS`.
    """
    has_prefix = _prefixes_of(chunk.keys, shift) == prefix  # (n_keys,)
    return KeyedAmounts(chunk.keys[has_prefix], chunk.amounts[has_prefix])


def order_keys(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Convert numbers, which may be negative, to unsigned integers in the same order.

    Such integers can be compared bit by bit, from the first bit on. The bits of a number are
    changed for this. For integers (with 4 bits in place of 64) and for floats:

        -2    1110  →  0110        -2.0    all bits are inverted
        -1    1111  →  0111        -1.0    all bits are inverted
         0    0000  →  1000         0.0    the first bit becomes 1
         1    0001  →  1001         1.0    the first bit becomes 1

    Args:
        values: Shape (n_values,), int64, or float64 without NaN.

    Returns:
        Shape (n_values,). Equal numbers give equal integers, also 0.0 and -0.0.
    """
    if values.dtype == np.int64:
        return values.view(np.uint64) ^ _SIGN_BIT  # inverts the first bit
    return _order_keys_of_floats(values)


def _order_keys_of_floats(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Convert floats to unsigned integers in the same order.

    The first bit of a float is 1 if it is negative. The others are in the order of the absolute
    values, which is the opposite order for negative floats.

    Args:
        values: Shape (n_values,), without NaN.
    """
    # -0.0 is equal to 0.0, but has other bits. Adding 0 turns it into 0.0.
    bits = (values + 0.0).view(np.uint64)
    is_negative = (bits & _SIGN_BIT) != 0
    return np.where(is_negative, ~bits, bits | _SIGN_BIT)


def values_of_keys(keys: NDArray[np.uint64], dtype: Any) -> NDArray[Any]:
    """Convert unsigned integers back to the numbers from which `order_keys` has made them.

    `order_keys` inverts some bits of numbers, so that unsigned integers with these bits are in the
    same order. The same bits are inverted again here. Keys whose first bit is 0 are those of
    negative numbers. For floats:

        number    its bits    bits that are inverted    key
        -1.5      1011...     all                       0100...
        1.5       0011...     the first                 1011...

    For integers, only the first bit is inverted, in all of them.

    Args:
        keys: The unsigned integers, shape (n_keys,).
        dtype: The numpy type of the numbers: int64 or float64.

    Returns:
        The numbers, shape (n_keys,).
    """
    with_first_bit_inverted = keys ^ _SIGN_BIT
    if np.dtype(dtype) == np.int64:
        return with_first_bit_inverted.view(np.int64)
    is_negative = (keys & _SIGN_BIT) == 0
    bits = np.where(is_negative, ~keys, with_first_bit_inverted)
    return bits.view(np.float64)
