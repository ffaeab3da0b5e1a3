"""What pre-token caches keep of the words that they learn: it may save time, and never changes a token."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from pretoken_words import check, encode, encode_long, seed

from nanoset_core.tokenization.bpe import make_engine, pretoken_cache
from nanoset_core.tokenization.bpe.pretoken_cache import PretokenCache
from nanoset_core.tokenization.knowledge import Knowledge

WORDS = [f"{number:x}".encode() * (1 + number % 9) for number in range(300)]


@pytest.fixture(autouse=True)
def few_are_kept(monkeypatch):
    monkeypatch.setattr(pretoken_cache, "LEAST_SAVED", 20)


@pytest.fixture
def kept(tmp_path):
    return Knowledge("words", "a tokenizer", tmp_path / "cache")


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


def test_few_words_and_too_many_are_not_kept(kept, tmp_path, monkeypatch):
    check(PretokenCache(encode, encode_long, seed, kept), [WORDS[:10]])
    monkeypatch.setattr(pretoken_cache, "_MOST_SAVED_BYTES", 1000)
    check(PretokenCache(encode, encode_long, seed, kept), [WORDS])
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


def test_engines_begin_warm_and_give_the_same_tokens(tokenizer_files, tmp_path):
    texts = [" ".join(f"w{number * 7919 % 10007:o}é" for number in range(start, start + 400)) for start in range(9)]
    for kind in ("gpt2", "llama3"):
        wanted = make_engine(tokenizer_files[kind], "tokenizers").encode(texts)
        for _ in range(3):
            found = make_engine(tokenizer_files[kind], "numpy", cache=tmp_path).encode(texts)
            assert found.ids.tolist() == wanted.ids.tolist()
            assert found.lengths.tolist() == wanted.lengths.tolist()
    assert len(list(tmp_path.glob("*.words.npz"))) == 2
    without = {("numpy", found_version(tokenizer_files["gpt2"], tmp_path))}
    assert make_engine(tokenizer_files["gpt2"], "numpy", cache=tmp_path, without=without).name == "tokenizers"
    assert len(list(tmp_path.glob("*.words.npz"))) == 1, "what a wrong engine learnt is gone"


def found_version(file, folder):
    return make_engine(file, "numpy", cache=folder).version
