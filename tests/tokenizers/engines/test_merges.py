"""Merging in bulk against plain BPE, on merges at random: no training makes them this nasty."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.plain_bpe import plain_bpe
from nanoset_core.tokenizers.engines.merges import LONGEST_WORD, NO_RANK, ByteMerger, PairRanks

LETTERS = b"abcd"
BYTE_TOKENS = np.full(256, -1, np.int32)
BYTE_TOKENS[list(LETTERS)] = range(len(LETTERS))


@st.composite
def merge_lists(draw) -> list[tuple[int, int, int]]:
    """(left, right, merged) of distinct pairs; what they make may be anything."""
    token = st.integers(0, 12)
    pairs = draw(st.lists(st.tuples(token, token), unique=True, min_size=1, max_size=40))
    return [(*pair, draw(st.integers(4, 12))) for pair in pairs]


words_strategy = st.lists(
    st.one_of(
        st.text("abcd", min_size=1, max_size=16),
        st.builds(str.__mul__, st.sampled_from("abcd"), st.integers(1, LONGEST_WORD)),
    ).map(str.encode),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(merge_lists(), words_strategy)
def test_merging_is_plain_bpe(merges, words):
    ranks = {(left, right): rank for rank, (left, right, _) in enumerate(merges)}
    merged = [merge[2] for merge in merges]
    expected = [plain_bpe(BYTE_TOKENS[list(word)].tolist(), ranks, merged) for word in words]
    width = -(-max(map(len, words)) // 8) * 8
    padded = b"".join(word.ljust(width, b"\0") for word in words)
    table = np.frombuffer(padded, np.uint8).reshape(-1, width)
    merger = ByteMerger(BYTE_TOKENS, PairRanks(*np.array(merges, np.int32).T))

    ids, lengths = merger.merge_words(table)

    assert lengths.tolist() == [len(tokens) for tokens in expected]
    assert ids.tolist() == [token for tokens in expected for token in tokens]
    assert ids.dtype == np.int32


def test_many_words_take_several_batches():
    merger = ByteMerger(BYTE_TOKENS, PairRanks(np.array([0]), np.array([1]), np.array([9])))
    words = np.frombuffer(b"abcaabb\0" * 20_000, np.uint8).reshape(-1, 8)
    ids, lengths = merger.merge_words(words)
    assert ids.tolist() == [9, 2, 0, 9, 1] * 20_000
    assert set(lengths.tolist()) == {5}


def test_no_words():
    merger = ByteMerger(BYTE_TOKENS, PairRanks(np.array([0]), np.array([1]), np.array([9])))
    ids, lengths = merger.merge_words(np.empty((0, 8), np.uint8))
    assert (ids.tolist(), lengths.tolist()) == ([], [])


@settings(max_examples=60, deadline=None)
@given(st.sets(st.tuples(st.integers(0, 900), st.integers(0, 900)), min_size=1, max_size=300))
def test_ranks_are_a_dict(pairs):
    listed = sorted(pairs)
    left, right = np.array(listed).T
    ranks = PairRanks(left, right, np.arange(len(listed)))
    asked = np.array(listed + [(right, left) for left, right in listed], np.uint64)
    expected = {pair: rank for rank, pair in enumerate(listed)}
    assert ranks.find(*asked.T).tolist() == [
        expected.get(tuple(pair), NO_RANK) for pair in asked.tolist()
    ]
