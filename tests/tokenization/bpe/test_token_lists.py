"""Lists of tokens against lists of lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.tokenization.bpe.token_lists import TokenLists

token_lists = st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6), max_size=30)


def add(lists: TokenLists, added: list[list[int]]) -> np.ndarray:
    ids = np.array([token for tokens in added for token in tokens], np.int32)
    return lists.add(ids, np.array([len(tokens) for tokens in added], np.int64))


@settings(max_examples=100, deadline=None)
@given(token_lists, token_lists, token_lists, st.randoms())
def test_gathered_lists_are_those_added(first, dropped, second, random):
    lists = TokenLists()
    add(lists, first)
    add(lists, dropped)
    lists.truncate(len(first))
    numbers = add(lists, second)
    assert numbers.tolist() == list(range(len(first), len(first) + len(second)))
    every = first + second
    chosen = [random.randrange(len(every)) for _ in range(50)] if every else []
    ids, lengths = lists.gather(np.array(chosen, np.int32))
    assert ids.tolist() == [token for number in chosen for token in every[number]]
    assert lengths.tolist() == [len(every[number]) for number in chosen]
    assert len(lists) == len(every)


def test_lists_grow_past_their_first_size_and_gather_in_slices():
    lists = TokenLists()
    tokens = [[number] * (number % 4 + 1) for number in range(70_000)]
    add(lists, tokens)
    ids, lengths = lists.gather(np.arange(70_000, dtype=np.int32)[::-1])
    assert ids.tolist() == [token for item in reversed(tokens) for token in item]
    assert lengths.tolist() == [len(item) for item in reversed(tokens)]
