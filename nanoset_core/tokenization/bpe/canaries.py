"""Canary texts made from a tokenizer's own file: where an engine is wrong, it should be wrong on one of these."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, pairwise, product
from typing import Any
from unicodedata import category, combining

_WORDS = 1 << 14
_WORDS_OF_A_TEXT = 200
_LONGEST_RUN = 40
_LONG_WORDS = (64, 65, 255, 256, 300, 3000)
_OVERLAPS = 2000
_ASSIGNED = ((0, 0x34000), (0xE0000, 0xE0200))
_LONG_RUN_OF_ONE_KIND = 1000
_PRIVATE_STEP = 0x1000
_UTF8_BOUNDS = (0x80, 0x800, 0x10000)
_KINDS = "aAé1٣½中あー가。'’ſ/-_ \n\r\t\xa0\u3000\u0301\u200d🎉▁<"
"""One of each kind that split patterns, normal forms and SentencePiece's spaces tell apart."""
_CONTRACTIONS = ("s", "t", "m", "d", "re", "ve", "ll", "RE", "vE", "S", "ſ", "rs", "l", "")


def added_tokens(tokenizer: Mapping[str, Any]) -> list[str]:
    """Texts of the added tokens of a parsed `tokenizer.json`."""
    return [token["content"] for token in tokenizer.get("added_tokens") or [] if token.get("content")]


def texts_with(token: str) -> list[str]:
    """An added token alone; and inside words, at both edges, doubled, beside white space, and all but whole."""
    return [token, f"{token}x{token}y {token}{token}1{token}\n{token}  é  {token}\t{token[1:]}x {token[:-1]}中{token}"]


def token_canaries(tokenizer: Mapping[str, Any]) -> list[str]:
    """Texts with each added token of a parsed `tokenizer.json`, and with those that overlap."""
    tokens = added_tokens(tokenizer)
    return [*(text for token in tokens for text in texts_with(token)), *_overlaps(tokens)]


def all_canaries(tokenizer: Mapping[str, Any]) -> list[str]:
    """Every canary text for a parsed `tokenizer.json` of whatever kind."""
    return [*_texts_for_all(), *token_canaries(tokenizer), *_vocabulary(tokenizer)]


@cache
def _texts_for_all() -> tuple[str, ...]:
    categories = {point: category(chr(point)) for low, high in _ASSIGNED for point in range(low, high)}
    return (
        *_beside(_KINDS, 3),
        *_beside(_samples(categories), 2),
        *_points(categories),
        *_marks(),
        *_runs(),
        *_contractions(),
    )


def _beside(samples: Sequence[str], count: int) -> Iterator[str]:
    """Each sample behind and before each other one."""
    for first in samples:
        yield "".join(first + "".join(rest) for rest in product(samples, repeat=count - 1))


def _samples(categories: Mapping[int, str]) -> list[str]:
    """The first and last character of each category, of each length in UTF-8."""
    found: dict[tuple[str, int], list[int]] = {}
    for point, kind in categories.items():
        if kind != "Cs":
            size = bisect_right(_UTF8_BOUNDS, point)
            found.setdefault((kind, size), [point, point])[1] = point
    return [chr(point) for point in sorted({point for pair in found.values() for point in pair})]


def _points(categories: Mapping[int, str]) -> Iterator[str]:
    """Every character but those within long runs of one category, behind a letter and a space; and all planes."""
    points = [*range(0x40000, 0xE0000, _PRIVATE_STEP), *range(0xF0000, 0x110000, _PRIVATE_STEP), 0x10FFFF]
    for kind, run in groupby(categories, categories.__getitem__):
        members = list(run)
        if kind != "Cs":
            points += members if len(members) < _LONG_RUN_OF_ONE_KIND else members[:2] + members[-2:]
    for beside in "a ":
        yield from ("".join(beside + chr(point) for point in points[i : i + 2000]) for i in range(0, len(points), 2000))


def _marks() -> Iterator[str]:
    """Two marks of each combining class behind one another on a letter, in every order."""
    classes: dict[int, list[str]] = {}
    for mark in map(chr, range(0x300, 0x1F000)):
        if order := combining(mark):
            classes.setdefault(order, []).append(mark)
    marks = [mark for _, found in sorted(classes.items()) for mark in {found[0], found[-1]}]
    yield from (" ".join(f"e{first}{second}" for second in marks) for first in marks)


def _runs() -> Iterator[str]:
    for character in " \n\t\r1=-a'Aé中\u0308":
        yield "x".join(character * size for size in range(1, _LONGEST_RUN))
        yield "".join(character * size + " \n" for size in range(1, _LONGEST_RUN))
    for size in _LONG_WORDS:
        yield "a" * size
        yield "".join(chr(97 + place * place % 26) for place in range(size))
        yield "".join(chr(0x4E00 + place * 7919 % 20_000) for place in range(size))
    yield from ("", "\0", "a\0b", "e\u0301 \u212b n\u0303o \u0345\u0301a \u07f3\u07fd")


def _contractions() -> Iterator[str]:
    for before, mark, letters, after in product(("", " ", "I", "\n", "Ab1"), "'’", _CONTRACTIONS, ("", "x", " ", "X")):
        yield before + mark + letters + after


def _overlaps(tokens: Sequence[str]) -> Iterator[str]:
    """Neighbours in sorted order, and added tokens that share characters of a text."""
    ordered = sorted(tokens)
    yield from (first + second for first, second in pairwise(ordered))
    beginning: dict[str, list[str]] = {}
    for token in ordered:
        for size in range(1, len(token)):
            beginning.setdefault(token[:size], []).append(token)
    found = 0
    for token in ordered:
        for size in range(1, len(token)):
            for other in beginning.get(token[-size:], [])[:3]:
                yield f"a{token}{other[size:]} b"
                found += 1
        if found > _OVERLAPS:
            return


def _vocabulary(tokenizer: Mapping[str, Any]) -> Iterator[str]:
    """Words from all over the vocabulary, apart and together; each needs its merges."""
    vocabulary = (tokenizer.get("model") or {}).get("vocab") or {}
    entries = list(vocabulary) if isinstance(vocabulary, Mapping) else [entry[0] for entry in vocabulary]
    words = [_readable(entry) for entry in entries[:: max(1, len(entries) // _WORDS)]]
    for begin in range(0, len(words), _WORDS_OF_A_TEXT):
        some = words[begin : begin + _WORDS_OF_A_TEXT]
        yield "\n".join(some)
        yield "".join(some[::7])


def _readable(entry: str) -> str:
    """The text of an entry of a byte-level vocabulary, or of one with SentencePiece's spaces."""
    try:
        return bytes(map(_BYTE_OF.__getitem__, entry)).decode(errors="ignore")
    except KeyError:
        return entry.replace("▁", " ")


def _byte_level() -> dict[str, int]:
    """Character → the byte that it stands for in byte-level vocabularies."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = sorted(set(range(256)) - plain)
    return {chr(byte): byte for byte in plain} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_level()
