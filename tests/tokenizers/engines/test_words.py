"""The hash table of words behaves like a dictionary, also if many words collide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.tokenizers.engines.words import ABSENT, WordTable, unique_keys


def columns(keys, width):
    """Return keys, which are tuples of integers, as the columns of an array."""
    return np.array(keys, np.uint64).reshape(len(keys), width).T


def keys_of_width(width):
    """Return a strategy for keys of some integers, small ones of which collide often."""
    integers = st.one_of(st.integers(1, 40), st.integers(1, 2**64 - 1))
    return st.tuples(*[integers] * width)


@pytest.mark.parametrize("width", [1, 2, 4, 31])
def test_a_table_finds_what_was_inserted_like_a_dictionary(width):
    keys_strategy = keys_of_width(width)
    insertions_strategy = st.lists(st.lists(keys_strategy, unique=True, max_size=40), max_size=4)

    @settings(max_examples=60)
    @given(insertions=insertions_strategy, other_keys=st.lists(keys_strategy))
    def check(insertions, other_keys):
        table = WordTable.empty(width, 8)
        dictionary = {}

        # Insert keys that are not in the table, as all callers do.
        for keys in insertions:
            new_keys = [key for key in keys if key not in dictionary]
            values = range(len(dictionary), len(dictionary) + len(new_keys))
            table.insert(columns(new_keys, width), np.array(values, np.int32))
            dictionary.update(zip(new_keys, values, strict=True))

        queries = other_keys + list(dictionary)
        expected = [dictionary.get(key, ABSENT) for key in queries]
        assert table.find(columns(queries, width)).tolist() == expected
        assert table.count == len(dictionary)

    check()


def test_a_table_keeps_its_keys_when_it_grows():
    keys = np.random.default_rng(0).permutation(np.arange(1, 20_001)).astype(np.uint64)
    values = np.arange(len(keys), dtype=np.int32)
    absent_keys = np.arange(30_000, 31_000, dtype=np.uint64)
    table = WordTable.empty(1, 4)

    for start in range(0, len(keys), 3_000):
        stop = start + 3_000
        table.insert(keys[np.newaxis, start:stop], values[start:stop])

    np.testing.assert_array_equal(table.find(keys[np.newaxis]), values)
    assert table.find(absent_keys[np.newaxis]).max() == ABSENT
    assert len(table.codes) == 1 << 16  # at most half of the slots are used


def test_skipped_keys_have_any_value_but_absent():
    table = WordTable.empty(1)
    table.insert(np.array([[5]], np.uint64), np.array([7], np.int32))

    values = table.find(np.array([[5, 6, 9]], np.uint64), skip=np.array([1]))

    assert values[0] == 7
    assert values[1] != ABSENT
    assert values[2] == ABSENT


@pytest.mark.parametrize("width", [1, 2, 8])
def test_unique_keys_are_in_the_order_of_their_first_occurrence(width):
    keys_strategy = st.tuples(*[st.integers(1, 5)] * width)

    @settings(max_examples=80)
    @given(st.lists(keys_strategy, max_size=60))
    def check(keys):
        first_indices, numbers = unique_keys(columns(keys, width))

        distinct_keys = list(dict.fromkeys(keys))
        assert [keys[index] for index in first_indices.tolist()] == distinct_keys
        assert [distinct_keys[number] for number in numbers.tolist()] == keys

    check()
