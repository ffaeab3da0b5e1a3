"""The hash table against a dict, with room for many collisions; lists of tokens against lists of
lists.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.tokenizers.engines.token_lists import TokenLists
from nanoset_core.tokenizers.engines.words import ABSENT, WordTable, unique_keys


def columns(keys: list[tuple[int, ...]], width: int) -> np.ndarray:
    return np.array(keys, np.uint64).reshape(len(keys), width).T


def keys_of(width: int) -> st.SearchStrategy[tuple[int, ...]]:
    word = st.one_of(st.integers(1, 40), st.integers(1, 2**64 - 1))
    return st.tuples(*[word] * width)


@pytest.mark.parametrize("width", [1, 2, 4, 31])
def test_table_is_a_dict(width):
    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.lists(keys_of(width), unique=True, max_size=40), max_size=4),
        st.lists(keys_of(width)),
    )
    def check(insertions, queries):
        table, twin = WordTable.empty(width, 8), {}
        for keys in insertions:
            new = [key for key in keys if key not in twin]
            values = np.arange(len(twin), len(twin) + len(new), dtype=np.int32)
            table.insert(columns(new, width), values)
            twin.update(zip(new, values.tolist(), strict=True))
        asked = queries + list(twin)
        assert table.find(columns(asked, width)).tolist() == [
            twin.get(key, ABSENT) for key in asked
        ]
        assert table.count == len(twin)

    check()


def test_table_grows_and_keeps_everything():
    table = WordTable.empty(1, 4)
    keys = np.random.default_rng(0).permutation(np.arange(1, 20_001)).astype(np.uint64)
    for begin in range(0, len(keys), 3_000):
        table.insert(
            keys[None, begin : begin + 3_000],
            np.arange(begin, min(begin + 3_000, len(keys)), dtype=np.int32),
        )
    np.testing.assert_array_equal(table.find(keys[None]), np.arange(len(keys)))
    assert table.find(np.arange(30_000, 31_000, dtype=np.uint64)[None]).max() == ABSENT
    assert len(table.codes) == 1 << 16  # at most half full


def test_skipped_keys_get_any_value_but_absent():
    table = WordTable.empty(1)
    table.insert(np.array([[5]], np.uint64), np.array([7], np.int32))
    found = table.find(np.array([[5, 6, 9]], np.uint64), skip=np.array([1]))
    assert found[[0, 2]].tolist() == [7, ABSENT]
    assert found[1] != ABSENT


@pytest.mark.parametrize("width", [1, 2, 8])
def test_unique_keys(width):
    @settings(max_examples=80, deadline=None)
    @given(st.lists(st.tuples(*[st.integers(1, 5)] * width), max_size=60))
    def check(keys):
        first, inverse = unique_keys(columns(keys, width))
        distinct = list(dict.fromkeys(keys))  # in order of first occurrence
        assert [keys[place] for place in first.tolist()] == distinct
        assert [distinct[rank] for rank in inverse.tolist()] == keys

    check()


token_lists = st.lists(
    st.lists(
        st.one_of(st.integers(0, 2**20 + 2), st.integers(0, 2**31 - 1)), min_size=1, max_size=6
    ),
    max_size=30,
)


def add(lists: TokenLists, added: list[list[int]]) -> np.ndarray:
    ids = np.array([token for tokens in added for token in tokens], np.int32)
    return lists.add(ids, np.array([len(tokens) for tokens in added], np.int64))


@settings(max_examples=100, deadline=None)
@given(token_lists, token_lists, token_lists, st.randoms())
def test_gathered_lists_are_those_added(first, dropped, second, random):
    lists = TokenLists()
    codes = add(lists, first)
    kept = len(lists)
    add(lists, dropped)
    lists.truncate(kept)
    codes = np.append(codes, add(lists, second))
    every = first + second
    numbered = [len(tokens) > 1 or tokens[0] >= 2**20 for tokens in every]
    assert len(lists) == sum(numbered)
    assert all(
        number or code == tokens[0]
        for number, code, tokens in zip(numbered, codes, every, strict=True)
    )
    chosen = [random.randrange(len(every)) for _ in range(50)] if every else []
    ids, lengths = lists.gather(codes[chosen])
    assert ids.tolist() == [token for number in chosen for token in every[number]]
    assert lengths.tolist() == [len(every[number]) for number in chosen]
    assert ids.dtype == np.int32


def test_lists_grow_past_their_first_size_and_gather_in_slices():
    lists = TokenLists()
    tokens = [[number] * (number % 4 + 1) for number in range(70_000)]
    ids, lengths = lists.gather(add(lists, tokens)[::-1])
    assert ids.tolist() == [token for item in reversed(tokens) for token in item]
    assert lengths.tolist() == [len(item) for item in reversed(tokens)]
