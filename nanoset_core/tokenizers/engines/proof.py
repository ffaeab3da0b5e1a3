"""Texts that a wrong engine should get wrong, and the comparison of engines on them before one is
used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, product
from typing import Any
from unicodedata import category, combining

import numpy as np

from nanoset_core.tokenizers.engines.reference import Engine
from nanoset_core.tokenizers.files.tokenizer_json import token_bytes

_WORDS = 1 << 14
_WORDS_OF_A_TEXT = 200
_LONGEST_RUN = 70
_LONG_WORDS = (64, 65, 255, 256, 300, 3000)
_ASSIGNED = ((0, 0x34000), (0xE0000, 0xE0200))
_LONG_RUN_OF_ONE_KIND = 1000
_PRIVATE_STEP = 0x1000
_UTF8_BOUNDS = (0x80, 0x800, 0x10000)
_KINDS = "aAé1٣½中あー가。'’ſ/-_ \n\r\t\xa0\u3000\u0301\u200d🎉▁<"
"""One of each kind that split patterns, normal forms and SentencePiece's spaces tell apart."""
_CONTRACTIONS = ("s", "t", "m", "d", "re", "ve", "ll", "RE", "vE", "S", "ſ", "rs", "l", "")


def added_tokens(tokenizer: Mapping[str, Any]) -> list[str]:
    """Return the texts of the added tokens of a parsed `tokenizer.json`."""
    return [
        token["content"] for token in tokenizer.get("added_tokens") or [] if token.get("content")
    ]


def all_canaries(tokenizer: Mapping[str, Any]) -> list[str]:
    """Return every canary text for a parsed `tokenizer.json` of whatever kind."""
    own = []
    # alone; in words, at both edges, doubled, beside white space, all but whole
    for token in added_tokens(tokenizer):
        own.append(token)
        own.append(
            f"{token}x{token}y {token}{token}1{token}\n{token}  é  {token}\t{token[1:]}x {token[:-1]}中{token}"
        )
    return [*_texts_for_all(), *own, *_vocabulary(tokenizer)]


def differing(engine: Engine, reference: Engine, texts: Sequence[str]) -> list[int]:
    """Return the numbers of the texts for which two engines give different tokens."""
    ours, theirs = engine.encode(texts), reference.encode(texts)
    if np.array_equal(ours.ids, theirs.ids) and np.array_equal(ours.lengths, theirs.lengths):
        return []
    pairs = zip(ours.lists(), theirs.lists(), strict=True)
    return [number for number, (here, there) in enumerate(pairs) if not np.array_equal(here, there)]


@cache
def _texts_for_all() -> tuple[str, ...]:
    points = (point for low, high in _ASSIGNED for point in range(low, high))
    assigned = {point: kind for point in points if (kind := category(chr(point))) != "Cs"}
    del assigned[0]  # with which a text would be left to the reference
    # first and last character of each category, of each length in UTF-8
    ends: dict[tuple[str, int], list[int]] = {}
    for point, kind in assigned.items():
        ends.setdefault((kind, bisect_right(_UTF8_BOUNDS, point)), [point, point])[1] = point
    samples = [chr(point) for point in sorted({point for pair in ends.values() for point in pair})]
    pairs = ("".join(first + second for second in samples) for first in samples)
    triples = (
        "".join(first + second + third for third in _KINDS)
        for first, second in product(_KINDS, repeat=2)
    )
    # Where the library's Unicode is newer than Python's, it changes or sorts a character that
    # Python does not know; here each is behind the mark that sorts behind all others.
    unknown = _together("a\u0345", [point for point, kind in assigned.items() if kind == "Cn"])
    contractions = map(
        "".join, product(("", " ", "I", "\n", "Ab1"), "'’", _CONTRACTIONS, ("", "x", " ", "X"))
    )
    return (*triples, *pairs, *_points(assigned), *unknown, *_marks(), *_runs(), *contractions)


def _together(before: str, points: Sequence[int]) -> Iterator[str]:
    """Yield texts of characters, each behind the same."""
    yield from (
        "".join(before + chr(point) for point in points[i : i + 500])
        for i in range(0, len(points), 500)
    )


def _points(categories: Mapping[int, str]) -> Iterator[str]:
    """Yield every character but those within long runs of one category, behind others; and some of
    all planes.
    """
    edges = [
        *range(0x40000, 0xE0000, _PRIVATE_STEP),
        *range(0xF0000, 0x110000, _PRIVATE_STEP),
        0x10FFFF,
    ]
    points = [*edges]
    for _, run in groupby(categories, categories.__getitem__):
        members = list(run)
        edges += members[:2] + members[-2:]
        points += members if len(members) < _LONG_RUN_OF_ONE_KIND else members[:2] + members[-2:]
    for beside, some in (("a", points), (" ", points), ("!", edges), ("中", edges)):
        yield from _together(beside, some)


def _marks() -> Iterator[str]:
    """Yield two marks of each combining class behind one another on a letter, in every order."""
    ordered = sorted(filter(combining, map(chr, range(0x300, 0x1F000))), key=combining)
    groups = [list(group) for _, group in groupby(ordered, combining)]
    marks = [mark for group in groups for mark in {group[0], group[-1]}]
    yield from (" ".join(f"e{first}{second}" for second in marks) for first in marks)


def _runs() -> Iterator[str]:
    for character in " \n\t\r1=-a'Aé中\u0308":
        yield "x".join(character * size for size in range(1, _LONGEST_RUN))
        yield "".join(character * size + " \n" for size in range(1, _LONGEST_RUN))
    for size in _LONG_WORDS:
        yield "a" * size
        yield "".join(chr(97 + place * place % 26) for place in range(size))
        yield "".join(chr(0x4E00 + place * 7919 % 20_000) for place in range(size))
    yield from ("", "\0", "a\0b", "\tx y", "e\u0301 \u212b n\u0303o \u0345\u0301a \u07f3\u07fd")


def _vocabulary(tokenizer: Mapping[str, Any]) -> Iterator[str]:
    """Yield words from all over the vocabulary, apart and together; each needs its merges."""
    vocabulary = (tokenizer.get("model") or {}).get("vocab") or {}
    entries = (
        list(vocabulary) if isinstance(vocabulary, Mapping) else [entry[0] for entry in vocabulary]
    )
    words = [_readable(entry) for entry in entries[:: max(1, len(entries) // _WORDS)]]
    for begin in range(0, len(words), _WORDS_OF_A_TEXT):
        some = words[begin : begin + _WORDS_OF_A_TEXT]
        yield "\n".join(some)
        yield "".join(some[::7])


def _readable(entry: str) -> str:
    """Return the text of an entry of a byte-level vocabulary, or of one with SentencePiece's
    spaces.
    """
    data = token_bytes(entry)
    return entry.replace("▁", " ") if data is None else data.decode(errors="ignore")
