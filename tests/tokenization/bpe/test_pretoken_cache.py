"""The pre-token cache against a function from words to tokens, while its tables fill up, overflow and start anew."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pretoken_words import KNOWN, check, encode, encode_long, laid_out, seed

from nanoset_core.tokenization.bpe import pretoken_cache
from nanoset_core.tokenization.bpe.pretoken_cache import LONGEST, PretokenCache

letters = st.binary(min_size=1, max_size=20).map(lambda word: bytes(byte % 255 + 1 for byte in word))
words = st.one_of(letters, st.builds(bytes.__mul__, letters, st.integers(1, 20)), st.sampled_from(sorted(KNOWN)))
batches = st.lists(st.lists(st.lists(words, max_size=20), max_size=3), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(batches)
def test_words_have_their_tokens_again_and_again(batches):
    cache = PretokenCache(encode, encode_long, seed)
    for blocks in [*batches, *batches]:
        check(cache, blocks)


@pytest.mark.parametrize("full", [1, 2, 4, 31])
def test_words_have_their_tokens_when_tables_are_full(full, monkeypatch):
    monkeypatch.setitem(pretoken_cache.SLOT_BITS_LIMITS, full, 3)

    @settings(max_examples=60, deadline=None)
    @given(batches)
    def run(batches):
        cache = PretokenCache(encode, encode_long, seed)
        for blocks in [*batches, *batches]:
            check(cache, blocks)

    run()


def word(number: int, size: int) -> bytes:
    return str(number).encode().rjust(size, b"x")


def test_memory_is_bounded_when_words_never_come_back(monkeypatch):
    for width in pretoken_cache.SLOT_BITS_LIMITS:
        monkeypatch.setitem(pretoken_cache.SLOT_BITS_LIMITS, width, 8)
    cache = PretokenCache(encode, encode_long, seed)
    sizes, restarts = [], 0
    for turn in range(40):
        before = len(cache)
        check(cache, [[word(turn * 100 + number, size) for number in range(25) for size in (6, 12, 30, 60, 300)]])
        sizes.append(cache.nbytes)
        restarts += len(cache) < before
    assert max(sizes) == max(sizes[:10])
    assert restarts >= 4  # 128 words of a width fit, 25 come each time


def test_words_of_one_batch_are_asked_for_once():
    asked = []

    def counting(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked.append(len(words))
        return encode(words)

    cache = PretokenCache(counting, encode_long, seed)
    check(cache, [[b"one", b"two", b"one"], [b"two", b"three", b"the"]])
    check(cache, [[b"three", b"one", b"two"]])
    assert asked == [3]


def test_learnt_seeds_come_from_their_own_encoder_and_never_twice():
    def refuse(_words):
        raise AssertionError

    def learn(cache: PretokenCache) -> None:
        seed(cache)
        words = [*KNOWN, b"part of \xe3", b"once", b"once", b"z" * 40]
        cache.learn(*laid_out(words), encode)

    cache = PretokenCache(refuse, refuse, learn)
    assert len(cache) == len(KNOWN) + 3
    check(cache, [[b"once", b"part of \xe3", b"the", b"z" * 40]])


def test_the_longest_words():
    cache = PretokenCache(encode, encode_long, seed)
    check(cache, [[b"y" * size for size in (LONGEST - 1, LONGEST, LONGEST + 1, 5000)]])
    assert len(cache) == len(KNOWN) + 2  # longer ones are not kept
