"""Canary texts, on which engines are compared with the reference before they are used.

A canary is a text that a wrong engine is likely to get wrong: characters of every class next to
each other, long runs, contractions, combining marks, the tokenizer's own added tokens and
vocabulary.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, product
from typing import Any, NamedTuple
from unicodedata import category, combining

import numpy as np

from nanoset_core.tokenizers.engines.engine import Engine
from nanoset_core.tokenizers.files.sentencepiece import SPACE_SIGN
from nanoset_core.tokenizers.files.tokenizer_json import token_bytes

_VOCABULARY_WORDS = 1 << 14  # about so many of a vocabulary
_WORDS_OF_A_TEXT = 200
_CHARACTERS_OF_A_TEXT = 500
_LONGEST_RUN = 70
_LONG_WORDS = (64, 65, 255, 256, 300, 3000)  # characters
_ASSIGNED = ((0, 0x34000), (0xE0000, 0xE0200))  # code points: what is beyond is private or nothing
_LONG_RUN_OF_ONE_CATEGORY = 1000  # code points
_PRIVATE_STEP = 0x1000
_UTF8_BOUNDS = (0x80, 0x800, 0x10000)  # from these code points on, one byte more
_KINDS = "aAé1٣½中あー가。'’ſ/-_ \n\r\t\xa0\u3000\u0301\u200d🎉▁<"
"""One of each kind that split patterns, normal forms and SentencePiece's spaces tell apart."""
_CONTRACTIONS = ("s", "t", "m", "d", "re", "ve", "ll", "RE", "vE", "S", "ſ", "rs", "l", "")


def added_tokens(tokenizer: Mapping[str, Any]) -> list[str]:
    """Return the texts of the added tokens of a parsed `tokenizer.json`."""
    tokens = tokenizer.get("added_tokens") or []
    return [token["content"] for token in tokens if token.get("content")]


def all_canaries(tokenizer: Mapping[str, Any]) -> list[str]:
    """Return every canary for a tokenizer: the texts on which engines are compared.

    Args:
        tokenizer: A parsed `tokenizer.json`, of any kind.
    """
    texts = list(_common_canaries())
    for token in added_tokens(tokenizer):
        texts.append(token)
        # In a word, at both edges of one, doubled, next to white space, and nearly complete.
        texts.append(
            f"{token}x{token}y {token}{token}1{token}\n{token}  é  {token}\t"
            f"{token[1:]}x {token[:-1]}中{token}"
        )
    texts += _vocabulary_texts(tokenizer)
    return texts


def differing(engine: Engine, reference: Engine, texts: Sequence[str]) -> list[int]:
    """Return the indices of the texts for which two engines give different tokens.

    Args:
        engine: The engine that is checked.
        reference: The engine whose tokens are right.
        texts: The texts.
    """
    encoded = engine.encode(texts)
    expected = reference.encode(texts)
    has_same_lengths = np.array_equal(encoded.lengths, expected.lengths)
    if has_same_lengths and np.array_equal(encoded.ids, expected.ids):
        return []

    # Some differ: compare the texts one by one.
    pairs = zip(encoded.lists(), expected.lists(), strict=True)
    return [index for index, (ids, other) in enumerate(pairs) if not np.array_equal(ids, other)]


@cache
def _common_canaries() -> tuple[str, ...]:
    """Return the canaries that are the same for all tokenizers.

    A canary is a text that a wrong engine is likely to get wrong. An engine is only used if it
    encodes all canaries as the reference does.
    """
    categories = _categories()
    unassigned = [point for point, name in categories.items() if name == "Cn"]
    texts = [
        *_triples_of_kinds(),
        *_pairs_of_categories(categories),
        *_texts_of_all_characters(categories),
        # If the library's Unicode is newer than Python's, it may change characters that Python
        # does not know, or sort them before other marks. U+0345 is the mark that is sorted last, so
        # a new mark after it would move.
        *_after_prefix("a\u0345", unassigned),
        *_texts_of_marks(),
        *_texts_of_runs(),
        *_texts_of_long_words(),
        # Empty text, zeros, white space at the start, and characters that normal forms change.
        "",
        "\0",
        "a\0b",
        "\tx y",
        "e\u0301 \u212b n\u0303o \u0345\u0301a \u07f3\u07fd",
        *_texts_of_contractions(),
    ]
    return tuple(texts)


def _categories() -> dict[int, str]:
    """Return code point → category of all characters in the planes that are assigned."""
    categories = {}
    for start, stop in _ASSIGNED:
        for point in range(start, stop):
            name = category(chr(point))
            if name != "Cs":  # surrogates are no characters
                categories[point] = name
    del categories[0]  # a text with it would be left to the reference
    return categories


def _triples_of_kinds() -> Iterator[str]:
    """Yield texts in which any three kinds of characters follow each other."""
    for first, second in product(_KINDS, repeat=2):
        yield "".join(first + second + third for third in _KINDS)


class _Ends(NamedTuple):
    """The first and the last code point of a group."""

    first: int
    last: int


def _pairs_of_categories(categories: Mapping[int, str]) -> Iterator[str]:
    """Yield texts in which any two categories of characters follow each other.

    The first and the last character of each category, and of each size in UTF-8, represent it.

    Args:
        categories: Code point → Unicode category, in ascending order.
    """
    # (category, size in UTF-8) → its first and last code point
    ends: dict[tuple[str, int], _Ends] = {}
    for point, name in categories.items():
        key = (name, bisect_right(_UTF8_BOUNDS, point))
        first = ends[key].first if key in ends else point
        ends[key] = _Ends(first, point)

    points: set[int] = set()
    for group in ends.values():
        points.update(group)
    characters = [chr(point) for point in sorted(points)]
    for first_character in characters:
        yield "".join(first_character + second for second in characters)


def _texts_of_all_characters(categories: Mapping[int, str]) -> Iterator[str]:
    """Yield texts in which nearly every character follows a letter and a space.

    A long run of code points of one category, such as ideographs, is represented by its ends. The
    planes after the assigned ones are represented by one code point in 4,096. Fewer characters also
    follow a punctuation mark and an ideograph.

    Args:
        categories: Code point → Unicode category, in ascending order.
    """
    points_beyond = [
        *range(0x40000, 0xE0000, _PRIVATE_STEP),
        *range(0xF0000, 0x110000, _PRIVATE_STEP),
        0x10FFFF,
    ]
    points = list(points_beyond)
    edges = list(points_beyond)
    for _, run in groupby(categories, key=categories.__getitem__):
        run_points = list(run)
        run_edges = run_points[:2] + run_points[-2:]
        edges += run_edges
        is_long = len(run_points) >= _LONG_RUN_OF_ONE_CATEGORY
        points += run_edges if is_long else run_points

    yield from _after_prefix("a", points)
    yield from _after_prefix(" ", points)
    yield from _after_prefix("!", edges)
    yield from _after_prefix("中", edges)


def _after_prefix(prefix: str, points: Sequence[int]) -> Iterator[str]:
    """Yield texts of characters, each of which follows the same prefix."""
    for start in range(0, len(points), _CHARACTERS_OF_A_TEXT):
        text_points = points[start : start + _CHARACTERS_OF_A_TEXT]
        yield "".join(prefix + chr(point) for point in text_points)


def _texts_of_marks() -> Iterator[str]:
    """Yield texts in which a letter has two combining marks: of any two classes, in any order.

    Normal forms sort marks by their combining class. The first and the last mark of each class
    represent it.
    """
    characters = map(chr, range(0x300, 0x1F000))
    by_class = sorted(filter(combining, characters), key=combining)
    marks: list[str] = []
    for _, group in groupby(by_class, combining):
        members = list(group)
        marks.append(members[0])
        if len(members) > 1:
            marks.append(members[-1])
    for first in marks:
        yield " ".join(f"e{first}{second}" for second in marks)


def _texts_of_runs() -> Iterator[str]:
    """Yield runs of one character, of any length up to _LONGEST_RUN."""
    for character in " \n\t\r1=-a'Aé中\u0308":
        runs = [character * length for length in range(1, _LONGEST_RUN)]
        yield "x".join(runs)
        yield "".join(run + " \n" for run in runs)


def _texts_of_long_words() -> Iterator[str]:
    """Yield words around the lengths at which engines treat them differently."""
    for length in _LONG_WORDS:
        yield "a" * length
        yield "".join(chr(ord("a") + index * index % 26) for index in range(length))
        yield "".join(chr(0x4E00 + index * 7919 % 20_000) for index in range(length))


def _texts_of_contractions() -> Iterator[str]:
    """Yield contractions, and what resembles one, in different surroundings."""
    before = ("", " ", "I", "\n", "Ab1")
    after = ("", "x", " ", "X")
    for parts in product(before, "'’", _CONTRACTIONS, after):
        yield "".join(parts)


def _vocabulary_texts(tokenizer: Mapping[str, Any]) -> Iterator[str]:
    """Yield texts of words from all over the vocabulary, whose encoding needs many of the merges.

    Each word is on a separate line in one text, and every seventh is also in a text without
    separators.

    Args:
        tokenizer: A parsed `tokenizer.json`.
    """
    model = tokenizer.get("model") or {}
    vocabulary = model.get("vocab") or {}
    if isinstance(vocabulary, Mapping):
        entries = list(vocabulary)
    else:  # a unigram model: [entry, score] pairs
        entries = [entry[0] for entry in vocabulary]

    step = max(1, len(entries) // _VOCABULARY_WORDS)
    words = [_readable(entry) for entry in entries[::step]]
    for start in range(0, len(words), _WORDS_OF_A_TEXT):
        text_words = words[start : start + _WORDS_OF_A_TEXT]
        yield "\n".join(text_words)
        yield "".join(text_words[::7])


def _readable(entry: str) -> str:
    """Return the text of an entry of a vocabulary, byte-level or with ▁ for spaces."""
    data = token_bytes(entry)
    if data is None:
        return entry.replace(SPACE_SIGN, " ")
    return data.decode(errors="ignore")
