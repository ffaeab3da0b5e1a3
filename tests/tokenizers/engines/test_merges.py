"""Merging many words at once gives the tokens of plain byte-pair encoding.

Merges are drawn at random, which is harder than what training would give.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.plain_bpe import plain_bpe
from nanoset_core.tokenizers.engines.merges import NO_RANK, ByteMerger, PairRanks
from nanoset_core.tokenizers.engines.pretoken_cache import LONGEST

LETTERS = b"abcd"
BYTE_TOKENS = np.full(256, -1, np.int32)  # -1: no token
BYTE_TOKENS[list(LETTERS)] = range(len(LETTERS))


class Merge(NamedTuple):
    """A merge of two tokens."""

    left: int
    right: int
    merged: int
    """The token that replaces both; it may be any token but a letter."""


@st.composite
def merge_lists(draw):
    """Draw merges of distinct pairs, in the order of their ranks."""
    token = st.integers(0, 12)
    pair = st.tuples(token, token)
    pairs = draw(st.lists(pair, unique=True, min_size=1, max_size=40))
    merges = []
    for left, right in pairs:
        merged = draw(st.integers(4, 12))
        merges.append(Merge(left, right, merged))
    return merges


MIXED_WORDS = st.text("abcd", min_size=1, max_size=16)
RUNS = st.builds(str.__mul__, st.sampled_from("abcd"), st.integers(1, LONGEST))
WORDS = st.one_of(MIXED_WORDS, RUNS).map(str.encode)
WORD_LISTS = st.lists(WORDS, min_size=1, max_size=12)


def table_of(words):
    """Return words as the rows of an array, padded with zeros to a multiple of 8 bytes."""
    longest = max(len(word) for word in words)
    width = 8 * math.ceil(longest / 8)
    padded_words = b"".join(word.ljust(width, b"\0") for word in words)
    return np.frombuffer(padded_words, np.uint8).reshape(len(words), width)


@given(merges=merge_lists(), words=WORD_LISTS)
def test_words_have_the_tokens_of_plain_bpe(merges, words):
    ranks = {(merge.left, merge.right): rank for rank, merge in enumerate(merges)}
    merged = [merge.merged for merge in merges]
    expected_ids = []
    expected_lengths = []
    for word in words:
        tokens = plain_bpe(BYTE_TOKENS[list(word)].tolist(), ranks, merged)
        expected_ids += tokens
        expected_lengths.append(len(tokens))
    left, right, merged_tokens = np.array(merges, np.int32).T
    merger = ByteMerger(BYTE_TOKENS, PairRanks(left, right, merged_tokens))

    ids, lengths = merger.merge_words(table_of(words))

    assert ids.tolist() == expected_ids
    assert lengths.tolist() == expected_lengths
    assert ids.dtype == np.int32


@pytest.fixture
def merger():
    """A merger that merges "a" and "b" to the token 9, and nothing else."""
    left = np.array([0])
    right = np.array([1])
    merged = np.array([9])
    return ByteMerger(BYTE_TOKENS, PairRanks(left, right, merged))


def test_many_words_are_merged_in_several_batches(merger):
    words = np.frombuffer(b"abcaabb\0" * 20_000, np.uint8).reshape(20_000, 8)

    ids, lengths = merger.merge_words(words)

    assert ids.tolist() == [9, 2, 0, 9, 1] * 20_000
    assert set(lengths.tolist()) == {5}


def test_no_words_have_no_tokens(merger):
    ids, lengths = merger.merge_words(np.empty((0, 8), np.uint8))

    assert ids.tolist() == []
    assert lengths.tolist() == []


TOKENS = st.integers(0, 900)
PAIRS = st.tuples(TOKENS, TOKENS)


@given(st.sets(PAIRS, min_size=1, max_size=300))
def test_ranks_of_pairs_are_found_like_in_a_dictionary(pairs):
    sorted_pairs = sorted(pairs)
    rank_by_pair = {pair: rank for rank, pair in enumerate(sorted_pairs)}
    left, right = np.array(sorted_pairs).T
    ranks = PairRanks(left, right, np.arange(len(sorted_pairs)))
    # Pairs in the other order have no rank, or that of another pair.
    swapped_pairs = [(right, left) for left, right in sorted_pairs]
    queries = sorted_pairs + swapped_pairs
    expected = [rank_by_pair.get(pair, NO_RANK) for pair in queries]

    query_left, query_right = np.array(queries, np.uint64).T
    found_ranks = ranks.find(query_left, query_right)

    assert found_ranks.tolist() == expected
