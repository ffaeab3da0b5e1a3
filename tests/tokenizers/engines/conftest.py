"""Tokenizers of every kind that the numpy engine knows, and text that is hard on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import strategies as st

from helpers.small_tokenizers import KINDS, write_small_tokenizers
from nanoset_core.tokenizers import engines as bpe
from nanoset_core.tokenizers.engines import rules
from nanoset_core.tokenizers.engines.reference import ReferenceEngine
from nanoset_core.tokenizers.engines.rules import Rules, read_rules


@pytest.fixture
def without_compiled(monkeypatch):
    """No compiled engine, wherever the tests run."""
    monkeypatch.setattr(bpe, "is_installed", lambda: False)


@pytest.fixture(scope="session", autouse=True)
def _each_probe_once() -> Iterator[None]:
    """What the library says of every code point depends on a tokenizer's patterns alone: asked once
    of each.

    The tests of the probes themselves call them where they are.
    """
    classes = cache(rules.probe_classes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "probe_classes", lambda *asked: classes(*asked).copy())
        yield


@pytest.fixture(scope="session")
def tokenizer_files(tmp_path_factory) -> dict[str, Path]:
    return write_small_tokenizers(tmp_path_factory.mktemp("tokenizers"))


@pytest.fixture
def changed_tokenizer(tokenizer_files, tmp_path):
    """A function that writes the tokenizer of a kind, changed by another function and with an added
    token more.
    """

    def write(kind: str, change=lambda parsed: None, **added) -> Path:
        parsed = json.loads(tokenizer_files[kind].read_bytes())
        change(parsed)
        if added:
            ids = [
                *parsed["model"]["vocab"].values(),
                *(token["id"] for token in parsed["added_tokens"]),
            ]
            flags = {
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": False,
            }
            parsed["added_tokens"].append(flags | {"id": max(ids) + 1} | added)
        path = tmp_path / f"changed_{kind}.json"
        path.write_text(json.dumps(parsed))
        return path

    return write


@pytest.fixture(scope="session")
def known(tokenizer_files) -> dict[str, tuple[Rules, ReferenceEngine]]:
    """Rules and classes of each tokenizer, and the reference."""
    return _Known(tokenizer_files)


class _Known(dict):
    """Each found out when it is first asked for."""

    def __init__(self, files: dict[str, Path]) -> None:
        self._files = files

    def __missing__(self, kind: str) -> tuple[Rules, ReferenceEngine]:
        reference = ReferenceEngine(self._files[kind])
        self[kind] = read_rules(json.loads(self._files[kind].read_bytes())), reference
        return self[kind]


@pytest.fixture(scope="session")
def kinds() -> list[str]:
    return sorted(KINDS)


@pytest.fixture(params=sorted(KINDS))
def kind(request) -> str:
    return request.param


_CORE = list(
    " \n\r\t'sSrRvVlLeEtTdDmM12!.-aé世ſ\u3000\u00a0\u0301١२🎉\u2028Ж½\u0085\u1680\x1c\ufeff\u200b。，す"
)
_JOINED_WORDS = (
    " the¦'s¦'ll¦'RE¦hello¦ 2024¦ 123456¦Привет¦日本語¦हिन्दी¦\n\n¦\r\n¦ \n  "
    "¦e\u0301¦\u212b¦가¦각¦!!!\n\n¦"
    "a b c d¦x. y¦{\n    \t¦<|endoftext|>¦<|reserved_3|>¦<|end¦\0¦a <mask> b¦it's's'sx¦WE'LL've¦"
    "HTTPServer¦中A¦二〇二〇年1〇〇¦ ⼀⼀一!⼀¦〡々中's¦aB中Cd¦!!\u0301a¦ !\u0301\u0301a¦❤\ufe0f❤\ufe0f!!\ufe0f¦"
    "!\n//\n/a¦\n/!\u0301¦\n/b¦!naïve¦\u200b\u200ba¦カタ・カナ¦぀あ¦▁¦ ▁▁ x¦<b>x</b>¦<s>¦<0x0A>¦)); (x"
)
_WORDS = ["=====" * 20, *_JOINED_WORDS.split("¦")]


def characters() -> st.SearchStrategy[str]:
    return st.one_of(st.sampled_from(_CORE), st.characters(exclude_categories=["Cs"]))


@pytest.fixture(scope="session")
def hard_texts() -> st.SearchStrategy[str]:
    """Texts of a few pieces: characters of every class, long runs, words, and what goes to the
    reference.
    """
    runs = st.builds(
        str.__mul__,
        characters(),
        st.sampled_from([2, 3, 4, 8, 9, 16, 17, 24, 25, 26, 31, 49, 65, 249]),
    )
    piece = st.one_of(characters(), characters(), st.sampled_from(_WORDS), runs)
    return st.lists(piece, max_size=12).map("".join)
