"""Cutting documents, and finding what is for the reference."""

from __future__ import annotations

import re
from itertools import accumulate
from unicodedata import normalize

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.tokenizers.engines.patterns import LONE_HAN_SIGNS, MARKS_AFTER_SLASHES
from nanoset_core.tokenizers.engines.units import (
    SAFE_CUT,
    FallbackText,
    any_of,
    cut,
    partition_units,
)

FALLBACK = FallbackText([b"<|endoftext|>", b"<|pad|>", b"[MASK]"], b"\0")


def test_pieces_are_the_text(known, kinds, hard_texts):
    """And a piece of the library's begins at every cut."""

    @settings(max_examples=300, deadline=None)
    @given(hard_texts, st.integers(1, 30))
    def check(text, size):
        pieces = list(cut(text.encode(), size))
        assert b"".join(pieces) == text.encode()
        assert all(len(piece) >= size for piece in pieces[:-1])
        places = set(accumulate(len(piece.decode()) for piece in pieces[:-1]))
        for kind in kinds:
            assert places <= {begin for _, (begin, _) in known[kind][1].split(text)}, kind

    check()


@pytest.mark.parametrize(
    ("text", "cuts"),
    [
        ("ab cd\te\nf", ["ab", " cd", "\te", "\nf"]),
        ("a, b) c", ["a, b) c"]),
        ("Привет мир\nда", ["Привет", " мир\nда"]),
        ("这是一个测试，然后。す。ン，", ["这是一个测试", "，然后", "。す", "。ン", "，"]),
        # white space before a space: no piece begins there
        ("\u3000 \u00a0 \u2003 x", ["\u3000 \u00a0 \u2003 x"]),
        ("!。\n", ["!。\n"]),
    ],
)
def test_where_text_may_be_cut(text, cuts):
    assert [piece.decode() for piece in cut(text.encode(), 1)] == cuts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", False),
        ("plain <| text [MASK", False),
        ("a\0b", True),
        ("x<|pad|>y", True),
        ("[MASK]", True),
    ],
)
def test_fallback_text(text, expected):
    assert FALLBACK.occurs_in(text.encode()) is expected


def test_several_forbidden_bytes():
    fallback = FallbackText([], b"\0qQ\xf0")
    texts = ("a", "iq", "Q", "🎉", "é", "\0")
    fallback_texts = {text for text in texts if fallback.occurs_in(text.encode())}
    assert fallback_texts == {"iq", "Q", "🎉", "\0"}


@pytest.mark.parametrize(
    ("spans", "texts"),
    [
        (
            MARKS_AFTER_SLASHES,
            {"\n/\u0301": True, "\r//!\u0301": True, "\n/ \u0301": False, "\n/a\u0301": False},
        ),
        (
            LONE_HAN_SIGNS,
            {
                "二〇二〇": False,
                "中〇〡": False,
                "1〇": True,
                "〇": True,
                "⼀": True,
                "中。": False,
            },
        ),
    ],
)
def test_what_depends_on_all_that_is_before(spans, texts):
    fallback = FallbackText([], b"\0", spans)
    for text, expected in texts.items():
        assert fallback.occurs_in(text.encode()) is expected


@given(st.lists(st.text("ab<é", min_size=1, max_size=5), max_size=12), st.text("ab<é", max_size=12))
def test_any_of_many_strings(strings, text):
    found = re.search(any_of([string.encode() for string in strings]), text.encode())
    assert (found is not None) == any(string in text for string in strings)


def test_strings_that_begin_alike_many_times_over():
    strings = [b"a" * size + b"b" for size in range(1, 400)]
    pattern = re.compile(any_of(strings))
    assert pattern.search(b"x" + b"a" * 399 + b"b")
    assert not pattern.search(b"a" * 500)


def test_only_the_lines_that_need_it_are_fallback(monkeypatch):
    monkeypatch.setattr("nanoset_core.tokenizers.engines.units._FALLBACK_BYTES", 8)
    text = "plain words here and <|pad|> then more plain words and a\0 end of it all"
    pieces, kinds = zip(*partition_units(text.encode(), FALLBACK), strict=True)
    assert b"".join(pieces) == text.encode()
    assert kinds == (False, True, False, True, False)
    for piece, fallback in zip(pieces, kinds, strict=True):
        assert FALLBACK.occurs_in(piece) == fallback
        assert not fallback or len(piece) < 24


def test_stretches_are_not_joined_without_end(monkeypatch):
    monkeypatch.setattr("nanoset_core.tokenizers.engines.units._FALLBACK_BYTES", 8)
    monkeypatch.setattr("nanoset_core.tokenizers.engines.units.UNIT_BYTES", 40)
    text = b"\0 some words " * 50 + b"and words without anything " * 50
    pieces, kinds = zip(*partition_units(text, FALLBACK), strict=True)
    assert b"".join(pieces) == text
    assert max(map(len, pieces)) < 80
    assert set(kinds) == {True, False}


def test_cut_pattern_stays_linear():
    assert SAFE_CUT.search(b"\xe4" * 100_000 + b"=" * 100_000) is None
    assert np.prod([len(piece) for piece in cut(b"-" * 100_000, 10)]) == 100_000


def test_the_library_leaves_alone_what_python_calls_normal():
    from tokenizers.normalizers import NFC

    library = NFC()
    text = st.text(
        st.one_of(st.characters(exclude_categories=["Cs"]), st.characters(categories=["Mn", "Mc"]))
    )

    @settings(max_examples=500, deadline=None)
    @given(text)
    def check(text):
        normal = normalize("NFC", text)
        assert library.normalize_str(normal) == normal

    check()
