"""Documents are cut only where it changes no token, and the reference gets only what it has to."""

from __future__ import annotations

import re
from itertools import accumulate
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.hard_texts import hard_texts
from helpers.small_tokenizers import BYTE_KINDS
from nanoset_core.tokenizers.engines import units
from nanoset_core.tokenizers.engines.patterns import LONE_HAN_SIGNS, MARKS_AFTER_SLASHES
from nanoset_core.tokenizers.engines.units import (
    SAFE_CUT,
    FallbackText,
    any_of,
    cut,
    partition_units,
)

FALLBACK = FallbackText([b"<|endoftext|>", b"<|pad|>", b"[MASK]"], b"\0")
"""Finds some added tokens, and zero bytes."""


# Cutting


@given(text=hard_texts(), size=st.integers(1, 30))
def test_pieces_are_the_whole_text_and_not_too_short(text, size):
    pieces = list(cut(text.encode(), size))

    assert b"".join(pieces) == text.encode()
    for piece in pieces[:-1]:
        assert len(piece) >= size


@given(text=hard_texts(), size=st.integers(1, 30))
def test_text_is_cut_only_where_a_pre_token_of_the_library_starts(known_tokenizers, text, size):
    *pieces, _ = cut(text.encode(), size)
    cuts = set(accumulate(len(piece.decode()) for piece in pieces))  # in characters

    for kind in BYTE_KINDS:
        pre_tokens = known_tokenizers[kind].reference.split(text)
        starts = {start for _, (start, _) in pre_tokens}
        assert cuts <= starts, kind


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        pytest.param(
            "ab cd\te\nf", ["ab", " cd", "\te", "\nf"], id="between a letter and white space"
        ),
        pytest.param("a, b) c", ["a, b) c"], id="not after a symbol"),
        pytest.param("Привет мир\nда", ["Привет", " мир\nда"], id="before a space, but no newline"),
        pytest.param(
            "这是一个测试，然后。す。ン，",
            ["这是一个测试", "，然后", "。す", "。ン", "，"],
            id="before punctuation of Chinese and Japanese",
        ),
        pytest.param(
            "\u3000 \u00a0 \u2003 x", ["\u3000 \u00a0 \u2003 x"], id="not between white space"
        ),
        pytest.param("!。\n", ["!。\n"], id="not between symbols"),
    ],
)
def test_text_is_cut_at_safe_places(text, pieces):
    assert [piece.decode() for piece in cut(text.encode(), 1)] == pieces


def test_the_search_for_safe_places_takes_linear_time():
    assert SAFE_CUT.search(b"\xe4" * 100_000 + b"=" * 100_000) is None
    assert list(cut(b"-" * 100_000, 10)) == [b"-" * 100_000]


# Text for the reference


@pytest.mark.parametrize(
    ("text", "is_fallback"),
    [
        pytest.param("", False, id="empty"),
        pytest.param("plain <| text [MASK", False, id="beginnings of added tokens"),
        pytest.param("a\0b", True, id="zero byte"),
        pytest.param("x<|pad|>y", True, id="added token in a word"),
        pytest.param("[MASK]", True, id="added token"),
    ],
)
def test_text_with_a_zero_byte_or_an_added_token_is_for_the_reference(text, is_fallback):
    assert FALLBACK.occurs_in(text.encode()) is is_fallback


def test_text_with_any_of_several_forbidden_bytes_is_for_the_reference():
    fallback = FallbackText([], b"\0qQ\xf0")
    texts = ["a", "iq", "Q", "🎉", "é", "\0"]

    fallback_texts = [text for text in texts if fallback.occurs_in(text.encode())]

    assert fallback_texts == ["iq", "Q", "🎉", "\0"]


@pytest.mark.parametrize("text", ["\n/\u0301", "\r//!\u0301"], ids=ascii)
def test_marks_after_slashes_are_for_the_reference(text):
    """Whether the mark is part of a word depends on what precedes the newline."""
    fallback = FallbackText([], b"\0", MARKS_AFTER_SLASHES)

    assert fallback.occurs_in(text.encode()) is True


@pytest.mark.parametrize("text", ["\n/ \u0301", "\n/a\u0301"], ids=ascii)
def test_marks_after_other_characters_are_not_for_the_reference(text):
    fallback = FallbackText([], b"\0", MARKS_AFTER_SLASHES)

    assert fallback.occurs_in(text.encode()) is False


@pytest.mark.parametrize("text", ["1〇", "〇", "⼀"])
def test_han_numerals_and_radicals_that_follow_no_ideograph_are_for_the_reference(text):
    fallback = FallbackText([], b"\0", LONE_HAN_SIGNS)

    assert fallback.occurs_in(text.encode()) is True


@pytest.mark.parametrize("text", ["二〇二〇", "中〇〡", "中。"])
def test_han_numerals_that_follow_an_ideograph_are_not_for_the_reference(text):
    fallback = FallbackText([], b"\0", LONE_HAN_SIGNS)

    assert fallback.occurs_in(text.encode()) is False


def test_only_short_pieces_around_text_for_the_reference_go_there(monkeypatch):
    monkeypatch.setattr(units, "_FALLBACK_BYTES", 8)
    text = b"plain words here and <|pad|> then more plain words and a\0 end of it all"

    partition = list(partition_units(text, FALLBACK))

    assert b"".join(piece for piece, _ in partition) == text
    assert [is_fallback for _, is_fallback in partition] == [False, True, False, True, False]
    for piece, is_fallback in partition:
        assert FALLBACK.occurs_in(piece) == is_fallback
        if is_fallback:
            assert len(piece) < 24


def test_pieces_are_joined_up_to_the_size_of_a_unit(monkeypatch):
    monkeypatch.setattr(units, "_FALLBACK_BYTES", 8)
    monkeypatch.setattr(units, "UNIT_BYTES", 40)
    text = b"\0 some words " * 50 + b"and words without anything " * 50

    partition = list(partition_units(text, FALLBACK))

    assert b"".join(piece for piece, _ in partition) == text
    assert max(len(piece) for piece, _ in partition) < 80
    assert {is_fallback for _, is_fallback in partition} == {True, False}


# The regular expression for several strings


@given(
    strings=st.lists(st.text("ab<é", min_size=1, max_size=5), max_size=12),
    text=st.text("ab<é", max_size=12),
)
def test_the_expression_for_several_strings_matches_text_with_one_of_them(strings, text):
    pattern = any_of([string.encode() for string in strings])

    is_match = re.search(pattern, text.encode()) is not None

    assert is_match == any(string in text for string in strings)


def test_the_expression_for_many_strings_that_begin_alike_can_be_compiled():
    """Groups within groups, one for each string, would be too deep for Python."""
    strings = [b"a" * size + b"b" for size in range(1, 400)]

    pattern = re.compile(any_of(strings))

    assert pattern.search(b"x" + b"a" * 399 + b"b")
    assert not pattern.search(b"a" * 500)


# Normal forms


@settings(max_examples=500)
@given(
    st.text(
        st.one_of(st.characters(exclude_categories=["Cs"]), st.characters(categories=["Mn", "Mc"]))
    )
)
def test_the_library_does_not_change_text_that_is_normal_for_python(text):
    """The numpy engine normalises with Python, but pieces of its text may go to the library."""
    from tokenizers.normalizers import NFC

    normal_text = normalize("NFC", text)

    assert NFC().normalize_str(normal_text) == normal_text
