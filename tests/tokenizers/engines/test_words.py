"""The hash table of words behaves like a dictionary, also if many words collide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.tokenizers.engines.words import ABSENT, WordTable, unique_keys


def columns(keys, width):
    """Return keys, which are tuples of integers, as an array: uint64, shape (width, n_keys)."""
    rows = np.array(keys, np.uint64).reshape(len(keys), width)
    return rows.T


def keys_of_width(width):
    """Return a strategy for keys of some integers, small ones of which collide often."""
    small_integers = st.integers(1, 40)
    all_integers = st.integers(1, 2**64 - 1)
    integers = st.one_of(small_integers, all_integers)
    return st.tuples(*[integers] * width)


@pytest.mark.parametrize("width", [1, 2, 4, 31])
def test_a_table_finds_what_was_inserted_like_a_dictionary(width):
    keys_strategy = keys_of_width(width)
    insertion_strategy = st.lists(keys_strategy, unique=True, max_size=40)

    @given(insertions=st.lists(insertion_strategy, max_size=4), other_keys=st.lists(keys_strategy))
    def check(insertions, other_keys):
        table = WordTable.empty(width, n_slots=8)
        dictionary = {}

        # Insert keys that are not in the table, as all callers do.
        for keys in insertions:
            new_keys = [key for key in keys if key not in dictionary]
            first_value = len(dictionary)
            values = range(first_value, first_value + len(new_keys))
            table.insert(columns(new_keys, width), np.array(values, np.int32))
            dictionary.update(zip(new_keys, values, strict=True))

        queries = other_keys + list(dictionary)
        expected = [dictionary.get(key, ABSENT) for key in queries]
        values = table.find(columns(queries, width))
        assert values.tolist() == expected
        assert table.count == len(dictionary)

    check()


def test_a_table_keeps_its_keys_when_it_grows():
    generator = np.random.default_rng(0)
    numbers = np.arange(1, 20_001, dtype=np.uint64)
    keys = generator.permutation(numbers)[np.newaxis]  # (1, 20000)
    values = np.arange(20_000, dtype=np.int32)
    absent_keys = np.arange(30_000, 31_000, dtype=np.uint64)[np.newaxis]  # (1, 1000)
    table = WordTable.empty(width=1, n_slots=4)

    for start in range(0, 20_000, 3_000):
        stop = start + 3_000
        table.insert(keys[:, start:stop], values[start:stop])

    np.testing.assert_array_equal(table.find(keys), values)
    assert table.find(absent_keys).max() == ABSENT
    assert len(table.codes) == 1 << 16  # at most half of the slots are used


def test_skipped_keys_have_any_value_but_absent():
    table = WordTable.empty(width=1)
    table.insert(columns([(5,)], width=1), np.array([7], np.int32))
    queries = columns([(5,), (6,), (9,)], width=1)

    values = table.find(queries, skip=np.array([1]))

    assert values[0] == 7
    assert values[1] != ABSENT
    assert values[2] == ABSENT


@pytest.mark.parametrize("width", [1, 2, 8])
def test_unique_keys_are_in_the_order_of_their_first_occurrence(width):
    keys_strategy = st.tuples(*[st.integers(1, 5)] * width)

    @given(st.lists(keys_strategy, max_size=60))
    def check(keys):
        expected_keys = list(dict.fromkeys(keys))

        first_indices, numbers = unique_keys(columns(keys, width))

        distinct_keys = [keys[index] for index in first_indices.tolist()]
        assert distinct_keys == expected_keys
        # Each key is the distinct one with its number.
        assert [distinct_keys[number] for number in numbers.tolist()] == keys

    check()
