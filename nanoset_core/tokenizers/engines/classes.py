"""The class of every code point, found by asking the tokenizer's own library.

A split pattern sees only whether a character is a letter, a number, white space, and so on. Which
is which depends on the Unicode version inside the library (Python's own tables differ on thousands
of code points), so the library is asked to remove the members of each class from a text of all code
points.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from nanoset_core.tokenizers.engines.arrays import Bools, Bytes, Ints

LETTER, NUMBER, OTHER, BARE = 1, 2, 3, 4
"""The word classes: letters, numbers, symbols, and what takes nothing along that is before it."""
SPACE, NEWLINE = 5, 6
"""White space; NEWLINE (`\\r` and `\\n`) only in patterns that treat them apart, else they are
SPACE.
"""
RUN = 7
"""Spaces that form a token of their own before any splitting (GPT-NeoX's added tokens)."""
SEPARATOR = 8
"""The byte 0xFF between texts, which UTF-8 never uses."""
LEAD = 9
"""First byte of a character of several bytes; never left in the classes of a text."""
DIGIT, IDEOGRAPH, IDEOGRAPH_SIGN, IDEOGRAPH_BARE = 10, 11, 12, 13
"""What is cut out before the rest is split, so that white space before it is as at the end of a
text: digits; and letters, symbols and others of the ideographs' blocks."""
SUFFIX = 14
"""A contraction that belongs to the word before it; never the class of a character."""
UPPER, LOWER, MARK = 15, 16, 17
"""Letters in patterns that cut words by case: LETTER is then of either; and marks, letters or
symbols by context.
"""

CODE_POINTS = 0x110000
DIGITS = "Digits"
"""In place of members: what the library's pre-tokenizer of that name takes for digits."""
_BLOCK = 0x8000
_MIXED = 255

ClassRules: TypeAlias = tuple[tuple[str, int], ...]
"""(members as in a regular expression's brackets, or DIGITS; class); of several that apply the last
counts.
"""


def probe_classes(rules: ClassRules, rest: int) -> Bytes:
    """Return the class of every code point, `rest` for those in none: uint8, shape (0x110000,)."""
    classes = np.full(CODE_POINTS, rest, np.uint8)
    all_members = "".join(f"[{members}]" for members, _ in rules if members != DIGITS)
    for begin in range(0, CODE_POINTS, _BLOCK):
        points = np.arange(begin, begin + _BLOCK)
        points = points[(points < 0xD800) | (points >= 0xE000)]
        some = points[are_in(all_members, points)]  # the few that any expression can be true of
        for members, value in rules:
            asked = points if members == DIGITS else some
            classes[asked[are_in(members, asked)]] = value
    return classes


def are_in(members: str, points: Ints) -> Bools:
    """Return which code points, shape (points,), are members: bool, shape (points,)."""
    from tokenizers.pre_tokenizers import Digits, Split

    from tokenizers import Regex

    if not len(points):
        return np.zeros(0, bool)
    # The slash keeps digits off the edges: pieces of Digits alternate.
    text = "/" + points.astype("<u4").tobytes().decode("utf-32-le")
    if members == DIGITS:
        outside = Digits(individual_digits=False).pre_tokenize_str(text)[::2]
    else:
        outside = Split(Regex(f"[{members}]+"), "removed").pre_tokenize_str(text)
    inside = np.ones(len(text), bool)
    for _, (low, high) in outside:
        inside[low:high] = False
    return inside[1:]


class ByteClassifier:
    """Turns bytes into classes, given the class of every code point."""

    def __init__(self, classes: Bytes) -> None:
        """Take classes, uint8, shape (0x110000,), from probe_classes."""
        self._classes = classes
        self._translation = (
            bytes(classes[:0x80].tolist())
            + bytes(0x40)
            + bytes([LEAD]) * 0x38
            + bytes(7)
            + bytes([SEPARATOR])
        )
        self._of_pair = _classes_of_pairs(classes)

    def classify(self, buffer: bytes) -> tuple[Bytes, Ints]:
        """Return the classes of bytes of valid UTF-8, with 0xFF between texts.

        Returns:
            codes: uint8, shape (bytes,), writable: class of the character that each byte belongs
                to.
            wide_spaces: int64, shape (spaces,): first bytes of white space that is longer than a
                byte.
        """
        codes = np.frombuffer(bytearray(buffer.translate(self._translation)), np.uint8)
        leads = np.flatnonzero(codes == LEAD)
        if not len(leads):
            return codes, leads
        data = np.frombuffer(buffer, np.uint8)
        lead_bytes = data[leads]
        pairs = lead_bytes.astype(np.uint16) << 8 | data[leads + 1]
        found = self._of_pair[pairs]
        mixed = np.flatnonzero(found == _MIXED)
        if len(mixed):
            found[mixed] = self._classes[code_points_at(data, leads[mixed])]
        codes[leads] = found
        codes[leads + 1] = found
        for width, first_lead in ((3, 0xE0), (4, 0xF0)):
            wide = np.flatnonzero(lead_bytes >= first_lead)
            codes[leads[wide] + (width - 1)] = found[wide]
        return codes, leads[found == SPACE]


def _classes_of_pairs(classes: Bytes) -> Bytes:
    """Return the class by the first two bytes of a character, or _MIXED: uint8, shape (65536,)."""
    table = np.full((256, 256), _MIXED, np.uint8)
    table[0xC0:0xE0, 0x80:0xC0] = classes[:0x800].reshape(32, 64)
    for lead, blocks in (
        (0xE0, classes[:0x10000].reshape(-1, 64)),
        (0xF0, classes.reshape(-1, 4096)),
    ):
        uniform = np.where((blocks == blocks[:, :1]).all(axis=1), blocks[:, 0], _MIXED)
        rows = -(-len(uniform) // 64)
        padded = np.full(rows * 64, _MIXED, np.uint8)
        padded[: len(uniform)] = uniform
        table[lead : lead + rows, 0x80:0xC0] = padded.reshape(rows, 64)
    return table.ravel()


def code_points_at(data: Bytes, begins: Ints) -> Ints:
    """Return the code points of the characters that begin at `begins`: int64, shape (characters,)."""
    first = data[begins]
    points = first.astype(np.int64)
    wide = np.arange(len(begins))
    for offset, lead, most in ((1, 0xC0, 0x7FF), (2, 0xE0, 0xFFFF), (3, 0xF0, 0x1FFFFF)):
        wide = wide[first[wide] >= lead]
        points[wide] = (points[wide] << 6 | data[begins[wide] + offset] & 0x3F) & most
    return points
