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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.sampling.hashing import U64

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
    """Find the smallest key at which the sum of amounts, in the order of keys, exceeds a limit.

    For example, the keys 52, 17 and 35 have the amounts 2, 4 and 3. In the order of keys, the sums
    are 4, 7 and 9, so a limit of 5 is exceeded at the key 35. The keys are not sorted: the key is
    found digit by digit, where a digit is 16 bits.

    Args:
        chunks: Returns all keys in chunks. It is called up to four times.
        limit: What the sum must exceed.

    Returns:
        The key, or None if all amounts together do not exceed the limit.
    """
    prefix = U64(0)  # the digits that are known so far
    amount_below = 0  # sum of the amounts of all keys that are below the prefix
    for shift in _SHIFTS:
        amounts = _amounts_by_digit(chunks(), prefix, shift)  # (65536,)
        running_sums = amount_below + np.cumsum(amounts)  # up to each next digit
        is_first_digit = shift == _SHIFTS[0]
        if is_first_digit and running_sums[-1] <= limit:
            return None

        digit = int(np.searchsorted(running_sums, limit, side="right"))
        # Sums of floats are rounded above 2**53. Then it can happen that none exceeds the limit.
        digit = min(digit, _N_DIGIT_VALUES - 1)
        amount_below = int(running_sums[digit] - amounts[digit])
        prefix = (prefix << U64(_DIGIT_BITS)) | U64(digit)  # append the digit
    return Excess(prefix, amount_below)


def keys_at_ranks(
    chunks: Callable[[], Iterable[NDArray[np.uint64]]], ranks: Sequence[int]
) -> list[np.uint64]:
    """Return the keys that would be at some positions if all keys were sorted.

    They are found digit by digit; a digit is 16 bits. With decimal digits, for the keys 17, 35, 38
    and 52, and the rank 2:

        first digit     1 key begins with 1, 2 with 3: rank 2 is in 3x, and is rank 1 there
        second digit    of the keys 3x, 1 has 5 and 1 has 8: rank 1 is 38

    Args:
        chunks: Returns all keys in chunks. It is called four times.
        ranks: Positions, from 0; each smaller than the number of keys.
    """
    # For each rank: the digits of its key that are known so far, and its rank among the keys that
    # begin with these digits.
    prefixes = [U64(0)] * len(ranks)
    ranks_in_prefix = list(ranks)
    for shift in _SHIFTS:
        counts_by_prefix = _counts_by_digit(chunks(), set(prefixes), shift)
        for index, prefix in enumerate(prefixes):
            counts = counts_by_prefix[prefix]  # (65536,) keys with each next digit
            running_counts = np.cumsum(counts)
            digit = int(np.searchsorted(running_counts, ranks_in_prefix[index], side="right"))
            n_before = int(running_counts[digit] - counts[digit])  # keys with smaller digits
            ranks_in_prefix[index] -= n_before
            prefixes[index] = (prefix << U64(_DIGIT_BITS)) | U64(digit)
    return prefixes


def _counts_by_digit(
    chunks: Iterable[NDArray[np.uint64]], prefixes: Collection[np.uint64], shift: int
) -> dict[np.uint64, NDArray[np.int64]]:
    """Count the keys that begin with each of some digits, by the digit that follows these.

    With decimal digits, the keys 17, 35, 38 and 52, and the prefix 3: one key has the next digit 5,
    and one has 8. A digit is 16 bits here, and a key has four.

    Args:
        chunks: The keys.
        prefixes: The first digits, each as one number.
        shift: Bits of a key after the next digit.

    Returns:
        Prefix → number of keys for each value of the next digit, shape (65536,).
    """
    counts_by_prefix = {prefix: np.zeros(_N_DIGIT_VALUES, np.int64) for prefix in prefixes}
    for keys in chunks:
        without_rest = keys >> U64(shift)  # the next digit is the last one now
        key_prefixes = without_rest >> U64(_DIGIT_BITS)
        for prefix, counts in counts_by_prefix.items():
            digits = without_rest[key_prefixes == prefix] & U64(_N_DIGIT_VALUES - 1)
            counts += np.bincount(digits.astype(np.int64), minlength=_N_DIGIT_VALUES)
    return counts_by_prefix


def _amounts_by_digit(
    chunks: Iterable[KeyedAmounts], prefix: np.uint64, shift: int
) -> NDArray[np.int64]:
    """Add up the amounts of the keys that begin with some digits, by the digit that follows these.

    With decimal digits and the prefix 3, the key 38 counts for the digit 8, and the key 52 does not
    count. A digit is 16 bits here, and a key has four.

    Args:
        chunks: The keys.
        prefix: The first digits, as a number.
        shift: Bits of a key after the next digit: 48 for the first digit, and 0 for the last.

    Returns:
        Sum for each value of the next digit, shape (65536,).
    """
    sums = np.zeros(_N_DIGIT_VALUES, np.int64)
    for chunk in chunks:
        without_rest = chunk.keys >> U64(shift)  # the next digit is the last one now
        amounts = chunk.amounts
        # Before the first digit, the prefix is empty, and all keys begin with it.
        if shift != _SHIFTS[0]:
            has_prefix = (without_rest >> U64(_DIGIT_BITS)) == prefix
            without_rest = without_rest[has_prefix]
            amounts = amounts[has_prefix]
        digits = (without_rest & U64(_N_DIGIT_VALUES - 1)).astype(np.int64)
        # bincount adds up floats, which are exact up to 2**53.
        sums += np.bincount(digits, amounts, _N_DIGIT_VALUES).astype(np.int64)
    return sums


def order_keys(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Return unsigned integers that are in the same order as some numbers.

    For example, the keys of the integers -1, 0 and 1 are 2**63 - 1, 2**63 and 2**63 + 1. Equal
    numbers have equal keys.

    Args:
        values: Shape (n_values,), int64, or float64 without NaN.

    Returns:
        Shape (n_values,).
    """
    if values.dtype == np.int64:
        # Negative numbers have the sign bit, and would be the largest: invert it.
        return values.view(np.uint64) ^ _SIGN_BIT
    # Adding 0 turns -0.0 into 0.0, which is equal, but has other bits.
    bits = (values + 0.0).view(np.uint64)
    # The bits of positive floats are in the order of the floats, and those of negative ones in the
    # opposite order: invert all of their bits.
    is_negative = (bits & _SIGN_BIT) != 0
    return np.where(is_negative, ~bits, bits | _SIGN_BIT)


def values_of_keys(keys: NDArray[np.uint64], dtype: Any) -> NDArray[Any]:
    """Return the numbers that `order_keys` turns into some keys: its inverse.

    For example, the keys 2**63 - 1 and 2**63 are the integers -1 and 0.

    Args:
        keys: Shape (n_keys,).
        dtype: The numpy type of the numbers: int64 or float64.

    Returns:
        Shape (n_keys,).
    """
    if np.dtype(dtype) == np.int64:
        return (keys ^ _SIGN_BIT).view(np.int64)
    # Keys of floats have the first bit set if the float is not negative. Of a negative float, all
    # bits were inverted.
    is_negative = (keys & _SIGN_BIT) == 0
    return np.where(is_negative, ~keys, keys ^ _SIGN_BIT).view(np.float64)
