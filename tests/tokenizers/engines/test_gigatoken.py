"""The gigatoken engine: the reference's tokens, where the library is installed."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.pretoken_words import assert_same, marked_texts
from nanoset_core.errors import ConfigError, InputError
from nanoset_core.tokenizers.engines import gigatoken, make_engine

INSTALLED = importlib.util.find_spec("gigatoken") is not None


@pytest.mark.skipif(INSTALLED, reason="gigatoken is installed")
def test_without_the_extra_it_says_what_to_install(tokenizer_file):
    with pytest.raises(ConfigError, match=r"nanoset-platform\[fast\]"):
        make_engine(tokenizer_file, "gigatoken")


@pytest.fixture(scope="module")
def engines(tokenizer_file):
    pytest.importorskip("gigatoken", reason="gigatoken (the extra `fast`) is not installed")
    return make_engine(tokenizer_file, "gigatoken"), make_engine(tokenizer_file, "tokenizers")


@given(texts=st.lists(st.text(max_size=60), max_size=8))
def test_same_tokens(engines, texts):
    assert_same(*engines, texts)


def test_same_tokens_of_marked_text(tokenizer_files, tmp_path):
    pytest.importorskip("gigatoken", reason="gigatoken (the extra `fast`) is not installed")
    ours, reference = (
        make_engine(tokenizer_files["neox"], kind, cache=tmp_path)
        for kind in ("gigatoken", "tokenizers")
    )
    assert_same(ours, reference, marked_texts(20_000, 2))


def test_it_is_in_use_and_refuses_what_is_no_text(engines):
    assert engines[0].name == "gigatoken"
    with pytest.raises(InputError):
        engines[0].encode(["good", "bad \ud800"])


@pytest.mark.parametrize("content", ["ſ", "<|endoftext|>x"])
def test_a_token_that_takes_white_space_which_is_another_token(
    changed_tokenizer, tmp_path, content
):
    pytest.importorskip("gigatoken", reason="gigatoken (the extra `fast`) is not installed")
    path = changed_tokenizer("neox", content=content, lstrip=True, rstrip=True, special=True)
    texts = [f"x  {content}\n {content}{content}y", f"a    {content}    b"]
    engine = make_engine(path, "gigatoken", cache=tmp_path)
    assert_same(engine, make_engine(path, "tokenizers"), texts)


def test_a_tokenizer_that_it_cannot_load(tokenizer_files, tmp_path, monkeypatch):
    def load(path):
        raise RuntimeError("no token for byte 0x51")

    monkeypatch.setitem(
        sys.modules, "gigatoken", SimpleNamespace(Tokenizer=SimpleNamespace(from_json=load))
    )
    with pytest.raises(ConfigError, match="cannot be checked") as error:
        make_engine(tokenizer_files["no_alphabet"], "gigatoken", cache=tmp_path)
    assert "byte 0x51" in str(error.value.found)
    assert make_engine(tokenizer_files["no_alphabet"], cache=tmp_path).name == "numpy"


def test_it_is_loaded_again_once_it_has_grown(tokenizer_files, monkeypatch):
    loaded = []

    class Library:
        def __init__(self, path) -> None:
            loaded.append(path)
            self.backend = SimpleNamespace(
                encode=lambda text: np.arange(len(text), dtype=np.uint32)
            )

    sizes = iter([300 << 20, 400 << 20, 600 << 20, 500 << 20, 600 << 20])
    monkeypatch.setitem(
        sys.modules, "gigatoken", SimpleNamespace(Tokenizer=SimpleNamespace(from_json=Library))
    )
    monkeypatch.setattr(gigatoken, "resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(gigatoken, "_CHECK_INTERVAL", 10)
    engine = gigatoken.GigatokenEngine(tokenizer_files["gpt2"])
    counts = []
    for _ in range(6):
        encoded = engine.encode([b"four", b"", b"words"])
        assert (encoded.ids.tolist(), encoded.lengths.tolist()) == (
            [*range(4), *range(5)],
            [4, 0, 5],
        )
        counts.append(len(loaded))
    assert counts == [1, 1, 1, 2, 2, 2]
