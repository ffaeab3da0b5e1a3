"""The pre-token cache gives each word its tokens while its tables fill up and start again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.comparing_engines import assert_same_tokens
from helpers.pretoken_words import (
    FIRST_WORDS,
    add_first_words,
    assert_gives_tokens,
    buffer_of,
    count_words,
    encode_long_words,
    encode_words,
)
from nanoset_core.tokenizers.cache import CacheEntry, installed_version
from nanoset_core.tokenizers.engines import make_engine, pretoken_cache
from nanoset_core.tokenizers.engines.pretoken_cache import LONGEST, PretokenCache

NOT_SAVED = CacheEntry("words", "", None)
"""An entry without a folder."""


def make_cache(saved=NOT_SAVED, encode=encode_words):
    """Return a cache that knows the first words, and those of a cache entry."""
    return PretokenCache(encode, encode_long_words, add_first_words, saved)


def without_zeros(data):
    """Return a byte string in which no byte is zero, as in all words."""
    return bytes(byte % 255 + 1 for byte in data)


SHORT_WORDS = st.binary(min_size=1, max_size=20).map(without_zeros)
LONG_WORDS = st.builds(bytes.__mul__, SHORT_WORDS, st.integers(1, 20))
WORDS = st.one_of(SHORT_WORDS, LONG_WORDS, st.sampled_from(sorted(FIRST_WORDS)))
BLOCKS = st.lists(st.lists(WORDS, max_size=20), max_size=3)
BATCHES = st.lists(BLOCKS, min_size=1, max_size=4)


# The tokens of words


@given(BATCHES)
def test_words_have_their_tokens_when_they_come_first_and_again(batches):
    cache = make_cache()

    for blocks in batches + batches:
        assert_gives_tokens(cache, blocks)


@pytest.mark.parametrize("full_width", [1, 2, 4, 31])
def test_words_have_their_tokens_when_a_table_is_full(full_width, monkeypatch):
    monkeypatch.setitem(pretoken_cache.SLOT_BITS_LIMITS, full_width, 3)  # 8 slots

    @given(BATCHES)
    def check(batches):
        cache = make_cache()
        for blocks in batches + batches:
            assert_gives_tokens(cache, blocks)

    check()


def test_an_unknown_word_of_a_batch_is_encoded_once():
    encoded_counts = []

    def encode_and_count(words):
        encoded_counts.append(len(words))
        return encode_words(words)

    cache = make_cache(encode=encode_and_count)

    assert_gives_tokens(cache, [[b"one", b"two", b"one"], [b"two", b"three", b"the"]])
    assert_gives_tokens(cache, [[b"three", b"one", b"two"]])

    assert encoded_counts == [3]


def test_first_words_may_have_an_encoder_of_their_own_and_occur_twice():
    def refuse(words):
        raise AssertionError("first words are not encoded by the engine")

    def add_words(cache):
        add_first_words(cache)
        words = [*FIRST_WORDS, b"part of \xe3", b"once", b"once", b"z" * 40]
        cache.learn(*buffer_of(words), encode_words)

    cache = PretokenCache(refuse, refuse, add_words, NOT_SAVED)

    assert count_words(cache) == len(FIRST_WORDS) + 3
    assert_gives_tokens(cache, [[b"once", b"part of \xe3", b"the", b"z" * 40]])


def test_words_that_are_too_long_for_every_table_are_not_remembered():
    cache = make_cache()
    sizes = [LONGEST - 1, LONGEST, LONGEST + 1, 5000]

    assert_gives_tokens(cache, [[b"y" * size for size in sizes]])

    assert count_words(cache) == len(FIRST_WORDS) + 2
    # Nor are their tokens. Those of the first words are single, and need no list.
    assert len(cache._lists) == 2


# Memory


def new_words(turn):
    """Return words that no other turn has: 25 of each size, and a size for most tables."""
    words = []
    for number in range(25):
        digits = str(turn * 100 + number).encode()
        words += [digits.rjust(size, b"x") for size in (6, 12, 30, 60, 300)]
    return words


def count_bytes(cache):
    """Return how many bytes the lists of tokens and the tables of a cache take, without keys."""
    arrays = list(cache._lists.to_arrays().values())
    arrays += [table.codes for table in cache._tables.values()]
    return sum(array.nbytes for array in arrays)


def test_memory_is_bounded_if_words_never_recur(monkeypatch):
    for width in pretoken_cache.SLOT_BITS_LIMITS:
        monkeypatch.setitem(pretoken_cache.SLOT_BITS_LIMITS, width, 8)  # 256 slots
    cache = make_cache()
    sizes = []
    n_restarts = 0

    for turn in range(40):
        n_words_before = count_words(cache)
        assert_gives_tokens(cache, [new_words(turn)])
        sizes.append(count_bytes(cache))
        if count_words(cache) < n_words_before:
            n_restarts += 1

    # A table has room for 128 words, so it is full after 6 turns.
    assert max(sizes) == max(sizes[:10])
    assert n_restarts >= 4


# Words that are saved for later processes

# Three hundred hexadecimal numbers, repeated up to nine times: some are too long for every table.
SAVED_WORDS = [f"{number:x}".encode() * (1 + number % 9) for number in range(300)]


@pytest.fixture
def entry(tmp_path, monkeypatch):
    """The entry in which caches save their words, as soon as they have learnt twenty."""
    monkeypatch.setattr(pretoken_cache, "LEAST_SAVED", 20)
    return CacheEntry("words", "a tokenizer", tmp_path / "cache")


@pytest.fixture
def saved_file(entry, tmp_path):
    """The file of a cache that has learnt all words and saved them."""
    assert_gives_tokens(make_cache(entry), [SAVED_WORDS])
    (path,) = (tmp_path / "cache").iterdir()
    return path


def starts_without_saved_words(entry):
    """Return whether a new cache starts without saved words.

    Its tokens are right in any case, and it saves what it learns.
    """
    cache = make_cache(entry)
    knows_nothing = cache.learnt == 0
    assert_gives_tokens(cache, [SAVED_WORDS, [b"the", b"new word"], SAVED_WORDS])
    return knows_nothing


@pytest.mark.usefixtures("saved_file")
def test_a_later_cache_does_not_encode_saved_words(entry):
    def refuse(words):
        raise AssertionError(f"encoded again: {words}")

    cache = make_cache(entry, encode=refuse)

    assert cache.learnt > 250
    short_words = [word for word in SAVED_WORDS if len(word) <= LONGEST]
    assert_gives_tokens(cache, [short_words, [b"the"]])


@pytest.mark.usefixtures("saved_file")
def test_a_later_cache_learns_more_words(entry):
    cache = make_cache(entry)

    assert_gives_tokens(cache, [[b"another"], SAVED_WORDS, [b"another", b"one more"]])


def test_few_words_are_not_saved(entry, tmp_path):
    assert_gives_tokens(make_cache(entry), [SAVED_WORDS[:10]])

    assert not (tmp_path / "cache").exists()


def test_a_file_that_was_cut_is_ignored_and_replaced(entry, saved_file):
    saved_file.write_bytes(saved_file.read_bytes()[:-1])

    assert starts_without_saved_words(entry)
    assert not starts_without_saved_words(entry), "the file was not replaced"


def test_several_caches_may_save_their_words_at_once(entry, tmp_path):
    caches = [make_cache(entry) for _ in range(8)]

    def learn_and_save(number):
        assert_gives_tokens(caches[number], [SAVED_WORDS[number * 5 :], SAVED_WORDS])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(learn_and_save, range(8)))

    assert not starts_without_saved_words(entry)
    file_names = [path.name for path in (tmp_path / "cache").iterdir()]
    assert file_names == [entry._path.name]


# The saved words of engines


@pytest.fixture
def texts_of_many_words():
    """Texts whose words are unlike each other, so that an engine learns them all."""
    texts = []
    for start in range(9):
        numbers = [number * 7919 % 10007 for number in range(start, start + 400)]
        texts.append(" ".join(f"w{number:o}é" for number in numbers))
    return texts


@pytest.mark.usefixtures("few_canaries")
def test_engines_with_saved_words_give_the_same_tokens(
    tokenizer_files, tmp_path, monkeypatch, texts_of_many_words
):
    monkeypatch.setattr(pretoken_cache, "LEAST_SAVED", 20)

    for kind in ("gpt2", "llama3"):
        reference = make_engine(tokenizer_files[kind], "tokenizers")
        for _ in range(3):
            engine = make_engine(tokenizer_files[kind], "numpy", cache=tmp_path)
            assert_same_tokens(engine, reference, texts_of_many_words)

    # Each tokenizer has saved words of its own.
    assert len(list(tmp_path.glob("*.words.npz"))) == 2

    # The words of an engine that gave wrong tokens are deleted.
    distrusted = f"numpy {installed_version('nanoset-platform')}"
    engine = make_engine(tokenizer_files["gpt2"], "numpy", cache=tmp_path, without=[distrusted])
    assert engine.name == "tokenizers"
    assert len(list(tmp_path.glob("*.words.npz"))) == 1
