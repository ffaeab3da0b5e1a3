"""The gigatoken engine: the reference's tokens, or the reference itself."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace
from unicodedata import normalize

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.tokenization.bpe import make_engine
from nanoset_core.tokenization.bpe.gigatoken import InertTextEngine
from nanoset_core.tokenization.bpe.reference import Encoded

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
    fast, reference = engines
    ours, theirs = fast.encode(texts), reference.encode(texts)
    np.testing.assert_array_equal(ours.ids, theirs.ids)
    np.testing.assert_array_equal(ours.lengths, theirs.lengths)
    assert ours.ids.dtype == ours.lengths.dtype == np.int32


def test_it_is_in_use_and_refuses_what_is_no_text(engines):
    assert engines[0].name == "gigatoken"
    with pytest.raises(InputError):
        engines[0].encode(["good", "bad \ud800"])


class Lengths:
    """Gives each text one token: a number of its own for this engine, and the text's length."""

    name, reason = "gigatoken", "for the test"

    def __init__(self, number: int) -> None:
        self.number = number

    def encode(self, texts):
        ids = [self.number + len(text) for text in texts]
        return Encoded(np.array(ids, np.int32), np.ones(len(texts), np.int32))


def test_text_that_a_normal_form_may_change_is_for_the_reference():
    engine = InertTextEngine(Lengths(0), Lengths(1000))
    inert = ["", "plain", "déjà vu", "Привет", "日本語のテキスト 한국어", "“—” 🎉\ufe0f"]
    others = ["e\u0301", "\u2de8\U00011d45", "\U00010f50\u1715", "\u212b", "\u1100\u1161", "か\u3099", "가\u11a7"]
    others += ["\u037e", "\U000323af", "\u0378", "\U0001e2ae\u20eb"]
    assert engine.encode(inert).ids.tolist() == [len(text) for text in inert]
    mixed = [text for pair in zip(inert, others, strict=False) for text in pair] + others
    expected = [len(text) + 1000 * (text in others) for text in mixed]
    assert engine.encode(mixed).ids.tolist() == expected
    assert engine.encode([]).ids.tolist() == []
    assert all(normalize("NFC", text) == text for text in inert)
    with pytest.raises(InputError, match="document 1"):
        engine.encode(["é", "\ud800"])


@pytest.fixture
def stand_in(monkeypatch):
    """A library of that name that loads anything."""
    monkeypatch.setitem(sys.modules, "gigatoken", SimpleNamespace(Tokenizer=lambda path: None))


@pytest.mark.parametrize(
    ("kind", "token", "reason"),
    [
        ("qwen2", {"content": "é!", "normalized": True}, "NFC text"),
        ("llama3", {"content": "<keep>", "normalized": True}, None),
        ("llama3", {"content": ">x", "normalized": True}, "overlap"),
        ("llama3", {"content": "a<|end", "normalized": True}, "overlap"),
        ("neox", {"content": "! x"}, "KEEP"),
    ],
)
def test_added_tokens_that_it_looks_for_in_another_order(
    stand_in, changed_tokenizer, tmp_path, monkeypatch, kind, token, reason
):
    path = changed_tokenizer(kind, **token)
    if reason is None:
        monkeypatch.setattr("nanoset_core.tokenization.bpe.same_tokens", lambda *arguments: True)
        assert make_engine(path, "gigatoken", cache=tmp_path).name == "gigatoken"
        return
    with pytest.raises(ConfigError, match="cannot be checked") as error:
        make_engine(path, "gigatoken", cache=tmp_path)
    assert reason in str(error.value.found)


def test_a_tokenizer_that_it_cannot_load(tokenizer_files, tmp_path, monkeypatch):
    def load(path):
        raise RuntimeError("no token for byte 0x51")

    monkeypatch.setitem(sys.modules, "gigatoken", SimpleNamespace(Tokenizer=load))
    with pytest.raises(ConfigError, match="cannot be checked") as error:
        make_engine(tokenizer_files["no_alphabet"], "gigatoken", cache=tmp_path)
    assert "byte 0x51" in str(error.value.found)
    assert make_engine(tokenizer_files["no_alphabet"], cache=tmp_path).name == "numpy"
