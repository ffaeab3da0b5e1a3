"""Keys are found by running sums without sorting, and numbers become keys in the same order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nanoset_core.statistics.ranks import (
    Excess,
    KeyedAmounts,
    first_excess,
    keys_at_ranks,
    order_keys,
    values_of_keys,
)

KEYS = st.one_of(st.integers(0, 5), st.integers(0, 2**64 - 1))


def find_slowly(keys: list[int], amounts: list[int], limit: int) -> Excess | None:
    """Add up amounts in the order of the keys until the sum exceeds a limit."""
    total = 0
    for key in sorted(set(keys)):
        amount = sum(amount for other, amount in zip(keys, amounts, strict=True) if other == key)
        if total + amount > limit:
            return Excess(np.uint64(key), total)
        total += amount
    return None


@given(pairs=st.lists(st.tuples(KEYS, st.integers(0, 50))), limit=st.integers(0, 300))
def test_the_key_is_that_at_which_the_running_sum_exceeds_the_limit(pairs, limit):
    keys = [key for key, _ in pairs]
    amounts = [amount for _, amount in pairs]

    def chunks() -> list[KeyedAmounts]:
        """Return the keys in two chunks."""
        all_keys = np.array(keys, np.uint64)
        all_amounts = np.array(amounts, np.int64)
        return [
            KeyedAmounts(all_keys[:3], all_amounts[:3]),
            KeyedAmounts(all_keys[3:], all_amounts[3:]),
        ]

    assert first_excess(chunks, limit) == find_slowly(keys, amounts, limit)


@given(keys=st.lists(KEYS, min_size=1), data=st.data())
def test_keys_at_ranks_are_those_of_the_sorted_keys(keys, data):
    ranks = data.draw(st.lists(st.integers(0, len(keys) - 1), max_size=4))
    array = np.array(keys, np.uint64)

    result = keys_at_ranks(lambda: [array[:2], array[2:]], ranks)

    assert result == [sorted(keys)[rank] for rank in ranks]


def test_keys_of_fewer_bits_are_read_less_often():
    keys = np.array([7, 2**32 - 1, 70_000], np.uint64)
    n_calls = 0

    def chunks() -> list[NDArray[np.uint64]]:
        nonlocal n_calls
        n_calls += 1
        return [keys]

    assert keys_at_ranks(chunks, [0, 1, 2], bits=32) == [7, 70_000, 2**32 - 1]
    assert n_calls == 2


NUMBERS = [
    pytest.param(np.int64, st.integers(-(2**63), 2**63 - 1), id="integers"),
    pytest.param(np.float64, st.floats(allow_nan=False), id="floats"),
]


@pytest.mark.parametrize(("dtype", "numbers"), NUMBERS)
@given(data=st.data())
def test_keys_are_in_the_order_of_the_numbers(dtype, numbers, data):
    first = data.draw(numbers)
    second = data.draw(numbers)

    first_key, second_key = order_keys(np.array([first, second], dtype)).tolist()

    assert (first_key < second_key) == (first < second)
    assert (first_key == second_key) == (first == second)


@pytest.mark.parametrize(("dtype", "numbers"), NUMBERS)
@given(data=st.data())
def test_a_key_is_turned_into_its_number_again(dtype, numbers, data):
    values = np.array([data.draw(numbers)], dtype)

    assert values_of_keys(order_keys(values), dtype).tolist() == values.tolist()


@pytest.mark.parametrize("value", [math.inf, -math.inf, 0.0, 2.0**53 + 2])
def test_the_number_of_a_key_has_its_type(value: Any):
    keys = order_keys(np.array([value]))

    assert values_of_keys(keys, np.float64).dtype == np.float64
