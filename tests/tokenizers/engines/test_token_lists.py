"""Lists of tokens are stored under codes, and gathered in any order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
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


def assert_codes_are_small_tokens(codes, lists):
    """Check that a list of one small token has this token as its code."""
    for code, tokens in zip(codes, lists, strict=True):
        if not is_stored(tokens):
            assert code == tokens[0]


@given(LISTS)
def test_a_list_of_one_small_token_is_its_own_code_and_takes_no_memory(lists):
    token_lists = TokenLists()

    codes = add(token_lists, lists)

    stored_lists = [tokens for tokens in lists if is_stored(tokens)]
    assert len(token_lists) == len(stored_lists)
    assert_codes_are_small_tokens(codes, lists)


@given(first=LISTS, dropped=LISTS, second=LISTS, random=st.randoms())
def test_gathered_lists_are_those_that_were_added_and_not_dropped(first, dropped, second, random):
    # Lists that were dropped make room for those that are added later.
    token_lists = TokenLists()
    first_codes = add(token_lists, first)
    n_first = len(token_lists)
    add(token_lists, dropped)
    token_lists.truncate(n_first)
    second_codes = add(token_lists, second)
    codes = np.append(first_codes, second_codes)
    lists = first + second
    stored_lists = [tokens for tokens in lists if is_stored(tokens)]
    assert len(token_lists) == len(stored_lists)
    assert_codes_are_small_tokens(codes, lists)

    # Gather some of them, in any order, and some several times.
    chosen = []
    if lists:
        chosen = [random.randrange(len(lists)) for _ in range(50)]
    ids, lengths = token_lists.gather(codes[chosen])

    chosen_lists = [lists[index] for index in chosen]
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
