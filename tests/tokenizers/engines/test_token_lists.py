"""Lists of tokens are stored under codes, and gathered in any order."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.tokenizers.engines.token_lists import TokenLists

FIRST_LIST_CODE = 2**20
"""Smaller tokens are their own code, if they are the only one of their list."""
ALL_TOKENS = st.integers(0, 2**31 - 1)
TOKENS = st.one_of(st.integers(0, FIRST_LIST_CODE + 2), ALL_TOKENS)
LISTS = st.lists(st.lists(TOKENS, min_size=1, max_size=6), max_size=30)


def concatenate(lists):
    """Return all tokens of lists, in order."""
    tokens = []
    for each_list in lists:
        tokens += each_list
    return tokens


def add(token_lists, lists):
    """Add lists, and return the code of each."""
    ids = np.array(concatenate(lists), np.int32)
    lengths = np.array([len(tokens) for tokens in lists], np.int64)
    return token_lists.add(ids, lengths)


def is_stored(tokens):
    """Return whether a list needs memory, since it is not one small token."""
    return len(tokens) > 1 or tokens[0] >= FIRST_LIST_CODE


def add_some_after_others_were_dropped(first, dropped, second):
    """Return lists that hold `first` and `second`, and the codes of these."""
    token_lists = TokenLists()
    first_codes = add(token_lists, first)
    n_first = len(token_lists)
    add(token_lists, dropped)
    token_lists.truncate(n_first)
    second_codes = add(token_lists, second)
    return token_lists, np.append(first_codes, second_codes)


@settings(max_examples=100)
@given(first=LISTS, dropped=LISTS, second=LISTS)
def test_a_list_of_one_small_token_is_not_stored_and_has_the_token_as_its_code(
    first, dropped, second
):
    token_lists, codes = add_some_after_others_were_dropped(first, dropped, second)

    n_stored = 0
    for code, tokens in zip(codes, first + second, strict=True):
        if is_stored(tokens):
            n_stored += 1
        else:
            assert code == tokens[0]
    assert len(token_lists) == n_stored


@settings(max_examples=100)
@given(first=LISTS, dropped=LISTS, second=LISTS, random=st.randoms())
def test_gathered_lists_are_those_that_were_added_and_not_dropped(first, dropped, second, random):
    token_lists, codes = add_some_after_others_were_dropped(first, dropped, second)
    lists = first + second
    chosen = []
    if lists:
        chosen = [random.randrange(len(lists)) for _ in range(50)]
    chosen_lists = [lists[index] for index in chosen]

    ids, lengths = token_lists.gather(codes[chosen])

    assert ids.tolist() == concatenate(chosen_lists)
    assert lengths.tolist() == [len(tokens) for tokens in chosen_lists]
    assert ids.dtype == np.int32


def test_many_lists_are_gathered_in_slices():
    lists = [[number] * (number % 4 + 1) for number in range(70_000)]
    token_lists = TokenLists()
    codes = add(token_lists, lists)

    ids, lengths = token_lists.gather(codes[::-1])

    reversed_lists = lists[::-1]
    assert ids.tolist() == concatenate(reversed_lists)
    assert lengths.tolist() == [len(tokens) for tokens in reversed_lists]
