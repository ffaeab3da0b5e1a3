"""The pre-token cache against a function from words to tokens, while its tables fill up, overflow
and start anew.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.pretoken_words import KNOWN, check, encode, encode_long, known, laid_out, seed
from nanoset_core.tokenizers.cache import CacheEntry, installed_version
from nanoset_core.tokenizers.engines import make_engine, pretoken_cache
from nanoset_core.tokenizers.engines.pretoken_cache import LONGEST, PretokenCache

NOWHERE = CacheEntry("words", "", None)
letters = st.binary(min_size=1, max_size=20).map(
    lambda word: bytes(byte % 255 + 1 for byte in word)
)
words = st.one_of(
    letters, st.builds(bytes.__mul__, letters, st.integers(1, 20)), st.sampled_from(sorted(KNOWN))
)
batches = st.lists(st.lists(st.lists(words, max_size=20), max_size=3), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(batches)
def test_words_have_their_tokens_again_and_again(batches):
    cache = PretokenCache(encode, encode_long, seed, NOWHERE)
    for blocks in [*batches, *batches]:
        check(cache, blocks)


@pytest.mark.parametrize("full", [1, 2, 4, 31])
def test_words_have_their_tokens_when_tables_are_full(full, monkeypatch):
    monkeypatch.setitem(pretoken_cache.SLOT_BITS_LIMITS, full, 3)

    @settings(max_examples=60, deadline=None)
    @given(batches)
    def run(batches):
        cache = PretokenCache(encode, encode_long, seed, NOWHERE)
        for blocks in [*batches, *batches]:
            check(cache, blocks)

    run()


def word(number: int, size: int) -> bytes:
    return str(number).encode().rjust(size, b"x")


def test_memory_is_bounded_when_words_never_come_back(monkeypatch):
    for width in pretoken_cache.SLOT_BITS_LIMITS:
        monkeypatch.setitem(pretoken_cache.SLOT_BITS_LIMITS, width, 8)
    cache = PretokenCache(encode, encode_long, seed, NOWHERE)
    sizes, restarts = [], 0
    for turn in range(40):
        before = known(cache)
        check(
            cache,
            [
                [
                    word(turn * 100 + number, size)
                    for number in range(25)
                    for size in (6, 12, 30, 60, 300)
                ]
            ],
        )
        arrays = [
            *cache._lists.to_arrays().values(),
            *(table.codes for table in cache._tables.values()),
        ]
        sizes.append(sum(array.nbytes for array in arrays))
        restarts += known(cache) < before
    assert max(sizes) == max(sizes[:10])
    assert restarts >= 4  # 128 words of a width fit, 25 come each time


def test_words_of_one_batch_are_asked_for_once():
    asked = []

    def counting(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked.append(len(words))
        return encode(words)

    cache = PretokenCache(counting, encode_long, seed, NOWHERE)
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

    cache = PretokenCache(refuse, refuse, learn, NOWHERE)
    assert known(cache) == len(KNOWN) + 3
    check(cache, [[b"once", b"part of \xe3", b"the", b"z" * 40]])


def test_the_longest_words():
    cache = PretokenCache(encode, encode_long, seed, NOWHERE)
    check(cache, [[b"y" * size for size in (LONGEST - 1, LONGEST, LONGEST + 1, 5000)]])
    assert known(cache) == len(KNOWN) + 2  # longer ones are not kept


WORDS = [f"{number:x}".encode() * (1 + number % 9) for number in range(300)]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Where a cache keeps its words, once they are twenty."""
    monkeypatch.setattr(pretoken_cache, "LEAST_SAVED", 20)
    return CacheEntry("words", "a tokenizer", tmp_path / "cache")


@pytest.fixture
def file(kept, tmp_path):
    """Kept by a cache that met all words."""
    check(PretokenCache(encode, encode_long, seed, kept), [WORDS])
    (path,) = (tmp_path / "cache").iterdir()
    return path


def never(words):
    raise AssertionError(f"learnt again: {words}")


def begins_cold(kept):
    """Whether a new cache begins without what was kept; its tokens are right in any case."""
    cache = PretokenCache(encode, encode_long, seed, kept)
    cold = cache.learnt == 0
    check(cache, [WORDS, [b"the", b"new word"], WORDS])
    return cold


def test_a_later_cache_has_nothing_to_learn(kept, file):
    cache = PretokenCache(encode, encode_long, seed, kept)
    assert cache.learnt > 250
    cache._encode = never
    check(cache, [[word for word in WORDS if len(word) <= pretoken_cache.LONGEST], [b"the"]])
    cache._encode = encode
    check(cache, [[b"another"], WORDS, [b"another", b"one more"]])


def test_few_words_are_not_kept(kept, tmp_path):
    check(PretokenCache(encode, encode_long, seed, kept), [WORDS[:10]])
    assert not (tmp_path / "cache").exists()


def test_a_cut_file_is_made_again(kept, file):
    file.write_bytes(file.read_bytes()[:-1])
    assert begins_cold(kept)
    assert not begins_cold(kept), "it was not made again"


def test_many_write_at_once(kept, tmp_path):
    caches = [PretokenCache(encode, encode_long, seed, kept) for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: check(caches[number], [WORDS[number * 5 :], WORDS]), range(8)))
    assert not begins_cold(kept)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [kept._path.name]


def test_engines_begin_warm_and_give_the_same_tokens(tokenizer_files, tmp_path, monkeypatch):
    monkeypatch.setattr(pretoken_cache, "LEAST_SAVED", 20)
    texts = [
        " ".join(f"w{number * 7919 % 10007:o}é" for number in range(start, start + 400))
        for start in range(9)
    ]
    for kind in ("gpt2", "llama3"):
        wanted = make_engine(tokenizer_files[kind], "tokenizers").encode(texts)
        for _ in range(3):
            found = make_engine(tokenizer_files[kind], "numpy", cache=tmp_path).encode(texts)
            assert found.ids.tolist() == wanted.ids.tolist()
            assert found.lengths.tolist() == wanted.lengths.tolist()
    assert len(list(tmp_path.glob("*.words.npz"))) == 2
    without = [f"numpy {installed_version('nanoset-platform')}"]
    assert (
        make_engine(tokenizer_files["gpt2"], "numpy", cache=tmp_path, without=without).name
        == "tokenizers"
    )
    assert len(list(tmp_path.glob("*.words.npz"))) == 1, "what a wrong engine learnt is gone"
