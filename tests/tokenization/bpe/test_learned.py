"""What lexicons keep of the words that they learn: it may save time, and never changes a token."""

from __future__ import annotations

import errno
import os
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from lexicon_words import check, encode, encode_long, seed

from nanoset_core.tokenization.bpe import learned as learned_module
from nanoset_core.tokenization.bpe import lexicon as lexicon_module
from nanoset_core.tokenization.bpe import make_engine
from nanoset_core.tokenization.bpe.learned import LearnedWords
from nanoset_core.tokenization.bpe.lexicon import Lexicon

WORDS = [f"{number:x}".encode() * (1 + number % 9) for number in range(300)]


@pytest.fixture(autouse=True)
def few_are_kept(monkeypatch):
    monkeypatch.setattr(lexicon_module, "LEAST_SAVED", 20)


@pytest.fixture
def kept(tokenizer_files, tmp_path):
    return LearnedWords(tokenizer_files["gpt2"], tmp_path / "cache")


@pytest.fixture
def file(kept, tmp_path):
    """Kept by a lexicon that met all words."""
    check(Lexicon(encode, encode_long, seed, kept), [WORDS])
    (path,) = (tmp_path / "cache").iterdir()
    return path


def never(words):
    raise AssertionError(f"learnt again: {words}")


def begins_cold(kept):
    """Whether a new lexicon begins without what was kept; its tokens are right in any case."""
    lexicon = Lexicon(encode, encode_long, seed, kept)
    cold = lexicon.learnt == 0
    check(lexicon, [WORDS, [b"the", b"new word"], WORDS])
    return cold


def test_a_later_lexicon_has_nothing_to_learn(kept, file):
    lexicon = Lexicon(encode, encode_long, seed, kept)
    assert lexicon.learnt > 250
    lexicon._encode = never
    check(lexicon, [[word for word in WORDS if len(word) <= lexicon_module.LONGEST], [b"the"]])
    lexicon._encode = encode
    check(lexicon, [[b"another"], WORDS, [b"another", b"one more"]])


def test_few_words_are_not_kept(kept, tmp_path):
    check(Lexicon(encode, encode_long, seed, kept), [WORDS[:10]])
    assert not (tmp_path / "cache").exists()


def test_cut_and_altered_files_are_made_again(kept, file):
    whole = file.read_bytes()
    for size in [0, 1, 100, *range(1000, len(whole), len(whole) // 9), len(whole) - 1]:
        file.write_bytes(whole[:size])
        assert begins_cold(kept)
        assert not begins_cold(kept), "it was not made again"
    dice = random.Random(1)
    for _ in range(25):
        place = dice.randrange(len(whole))
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << dice.randrange(8)]) + whole[place + 1 :])
        begins_cold(kept)


def test_a_file_of_another_tokenizer_is_not_taken(kept, file, tokenizer_files):
    other = LearnedWords(tokenizer_files["llama3"], file.parent)
    assert other._path != file
    file.rename(other._path)
    assert begins_cold(other)


@pytest.mark.parametrize("change", ["tokens", "numbers", "beyond", "slots", "missing"])
def test_other_content_under_the_right_name_is_not_taken(kept, file, change):
    """With sums that are right: only whoever writes there on purpose makes such a file."""
    with np.load(file) as members:
        arrays = {name: members[name] for name in members.files}
    if change == "tokens":
        arrays["tokens"] += 1
    elif change == "numbers":
        taken = arrays["codes1"] >= 0
        arrays["codes1"][taken] = np.roll(arrays["codes1"][taken], 1)
    elif change == "beyond":
        arrays["codes2"][arrays["codes2"] >= 0] += len(arrays["ends"])
    elif change == "slots":
        arrays["codes1"] = arrays["codes1"][:-1]
    else:
        del arrays["keys4"]
    np.savez(file, **arrays)
    assert begins_cold(kept)


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_disk_that_takes_nothing(kept, monkeypatch, fault):
    def fail(*given, **named):
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(learned_module.np, "savez", fail)
    assert begins_cold(kept)
    assert not [path for path in kept._path.parent.iterdir() if path.suffix == ".npz"]


def test_many_write_at_once(kept, tmp_path):
    lexicons = [Lexicon(encode, encode_long, seed, kept) for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: check(lexicons[number], [WORDS[number * 5 :], WORDS]), range(8)))
    assert not begins_cold(kept)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [kept._path.name]


def test_a_larger_file_stays_and_old_ones_go(kept, file, tmp_path):
    size = file.stat().st_size
    kept.save({"ends": np.zeros(3)})
    assert file.stat().st_size == size
    for number in range(12):
        (tmp_path / "cache" / f"{number}.words.npz").write_bytes(b"")
        os.utime(tmp_path / "cache" / f"{number}.words.npz", (number, number))
    file.unlink()
    kept.save({"ends": np.zeros(3)})
    assert len(list((tmp_path / "cache").iterdir())) == 8
    assert file.exists()


def test_engines_begin_warm_and_give_the_same_tokens(tokenizer_files, tmp_path):
    texts = [" ".join(f"w{number * 7919 % 10007:o}é" for number in range(start, start + 400)) for start in range(9)]
    for kind in ("gpt2", "llama3"):
        wanted = make_engine(tokenizer_files[kind], "tokenizers").encode(texts)
        for _ in range(3):
            found = make_engine(tokenizer_files[kind], "numpy", cache=tmp_path).encode(texts)
            assert found.ids.tolist() == wanted.ids.tolist()
            assert found.lengths.tolist() == wanted.lengths.tolist()
    assert len(list(tmp_path.glob("*.words.npz"))) == 2
