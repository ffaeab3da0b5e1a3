"""Find the class of every character of a text: letter, number, symbol, white space, and so on.

A split pattern sees nothing of a character but its class. Two steps give the classes of a text:

**The class of every code point** (`probe_classes`), once for each tokenizer. It depends on the
Unicode version inside the tokenizer's own library; Python's tables differ on thousands of code
points. So the library is asked: it removes the members of each class from a text of all code
points.

**The class of every byte** (`ByteClassifier`), for each text. `bytes.translate` gives the classes
of ASCII characters, and finds the first bytes of all others. For these, the first two bytes decide
in nearly all cases:

    text                    a é 中 1
    bytes                   61  C3 A9  E4 B8 AD  31
    translate               L   9  0   9  0  0   N     (9: LEAD)
    pair C3 A9 → L          L   L  L   9  0  0   N
    pair E4 B8 → L          L   L  L   L  L  L   N

If the characters with the same first two bytes have different classes, the code point is computed
and looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from nanoset_core.tokenizers.engines.arrays import Bools, Bytes, Ints

# Classes. The order matters: words are the classes below SPACE, and letters of patterns that cut
# words by case are those from SUFFIX on.

LETTER = 1
"""Letters; in patterns that cut words by case, letters without case."""
NUMBER = 2
"""Digits and other numbers."""
OTHER = 3
"""Symbols: in most patterns, everything that is in no other class."""
BARE = 4
"""Characters that form pieces without a space or symbol before them."""
SPACE = 5
"""White space, with newlines in patterns that do not treat these apart."""
NEWLINE = 6
"""`\\r` and `\\n`, in patterns that treat them apart."""
RUN = 7
"""Spaces of an added token, which is found before any splitting (GPT-NeoX)."""
SEPARATOR = 8
"""The byte 0xFF between texts, which UTF-8 never uses."""
LEAD = 9
"""First byte of a character of several bytes; replaced before `classify` returns."""

# DeepSeek cuts digits and ideographs out before it splits the rest. So white space before one of
# these is treated as at the end of a text.
DIGIT = 10
"""Digits that are cut out."""
IDEOGRAPH = 11
"""Letters among the ideographs and kana that are cut out."""
IDEOGRAPH_SIGN = 12
"""Symbols among these."""
IDEOGRAPH_BARE = 13
"""All other characters among these."""

SUFFIX = 14
"""A contraction that is part of the word before it. Assigned by `letter_case`, not by rules."""
UPPER = 15
"""Capital letters, in patterns that cut words by case."""
LOWER = 16
"""Small letters, in the same patterns."""
MARK = 17
"""Combining marks, in the same patterns: letters or symbols, depending on what precedes them."""

SPACE_BYTE = 0x20
SEPARATOR_BYTE = 0xFF

CODE_POINTS = 0x110000
DIGITS = "Digits"
"""In place of members of a class: what the library's `Digits` pre-tokenizer takes for digits."""
_PROBED_TOGETHER = 0x8000  # code points

_MIXED = 255  # in place of a class: several are possible

# By the first byte of a character: the 7, 11, 16 or 21 bits that its code point may have.
_CODE_POINT_MASKS = np.repeat([0x7F, 0x7FF, 0xFFFF, 0x1FFFFF], [0xC0, 0x20, 0x10, 0x10])

# Characters of two, three and four bytes, and how many consecutive code points have the same first
# two bytes: each further byte has 64 values.
_BLOCKS_WITH_SAME_TWO_BYTES = (
    (range(0x80, 0x800), 1),
    (range(0x800, 0x10000), 64),
    (range(0x10000, CODE_POINTS), 64 * 64),
)

ClassRules: TypeAlias = tuple[tuple[str, int], ...]
"""Rules (members, class): the members as in a regular expression's brackets, or DIGITS. If several
rules apply to a character, the last one counts.
"""


def probe_classes(rules: ClassRules, rest: int) -> Bytes:
    """Return the class of every code point, as the tokenizers library sees it.

    Args:
        rules: Pairs (members, class). The members are written as in the brackets of a regular
            expression, such as `\\p{L}\\p{M}`; or they are DIGITS, which stands for the digits that
            the library's pre-tokenizer Digits recognizes. If several rules apply to a character,
            the last one counts.
        rest: Class of the characters to which no rule applies.

    Returns:
        uint8, shape (0x110000,); surrogates, which no text contains, have `rest`.
    """
    classes = np.full(CODE_POINTS, rest, np.uint8)
    # Brackets inside brackets are a union, as in [[a-z][0-9]]. DIGITS is no regular expression.
    members_of_any_rule = "".join(f"[{members}]" for members, _ in rules if members != DIGITS)
    for points in _blocks_of_code_points():
        # Most code points are in no class. To ask for all rules together first saves time: after
        # that, each single rule is asked for these candidates only.
        candidates = points[are_in(members_of_any_rule, points)]
        for members, class_of_members in rules:
            probed_points = points if members == DIGITS else candidates
            member_points = probed_points[are_in(members, probed_points)]
            classes[member_points] = class_of_members
    return classes


def _blocks_of_code_points() -> Iterator[Ints]:
    """Yield all code points but surrogates, _PROBED_TOGETHER at a time."""
    for start in range(0, CODE_POINTS, _PROBED_TOGETHER):
        points = np.arange(start, start + _PROBED_TOGETHER)
        is_surrogate = (points >= 0xD800) & (points < 0xE000)
        yield points[~is_surrogate]


def are_in(members: str, points: Ints) -> Bools:
    """Return which code points the tokenizers library takes for members of a class.

    Args:
        members: The class as in the brackets of a regular expression, such as `\\p{L}\\p{M}`; or
            DIGITS, the digits that the pre-tokenizer Digits recognizes.
        points: Code points, int64, shape (n_points,).

    Returns:
        bool, shape (n_points,).
    """
    if not len(points):
        return np.zeros(0, bool)

    # A slash is put before the text. It is in no class, so that the first piece is outside.
    text = "/" + points.astype("<u4").tobytes().decode("utf-32-le")
    is_member = np.ones(len(text), bool)
    for start, stop in _pieces_outside(members, text):
        is_member[start:stop] = False
    return is_member[1:]  # without the slash


def _pieces_outside(members: str, text: str) -> list[tuple[int, int]]:
    """Return where the tokenizers library finds no member of a class in a text.

    For digits in "/a12b", that is in the pieces "/a" and "b": (0, 2) and (4, 5).

    Args:
        members: As for `are_in`.
        text: The text; its first character is no member.

    Returns:
        (start, stop) of each piece, in characters.
    """
    from tokenizers.pre_tokenizers import Digits, Split

    from tokenizers import Regex

    if members == DIGITS:
        # "/a", "12", "b": every second piece consists of digits, and the first one does not.
        all_pieces = Digits(individual_digits=False).pre_tokenize_str(text)
        pieces = all_pieces[::2]
    else:
        # "/a", "b": runs of members are removed.
        split = Split(Regex(f"[{members}]+"), "removed")
        pieces = split.pre_tokenize_str(text)
    return [piece_range for _, piece_range in pieces]


class ByteClassifier:
    """Assigns a class to every byte of a text, given the class of every code point."""

    def __init__(self, classes: Bytes) -> None:
        """Prepare the tables.

        Args:
            classes: uint8, shape (0x110000,), from `probe_classes`.
        """
        self._classes = classes
        self._translation = (
            bytes(classes[:0x80].tolist())  # ASCII
            + bytes(0x40)  # 0x80 to 0xBF: inside a character
            + bytes([LEAD]) * 0x38  # 0xC0 to 0xF7: first byte of a character of several
            + bytes(7)  # 0xF8 to 0xFE: in no UTF-8
            + bytes([SEPARATOR])  # 0xFF
        )
        self._class_of_pair = _classes_by_first_two_bytes(classes)  # uint8, shape (65536,)

    def classify(self, buffer: bytes) -> tuple[Bytes, Ints]:
        """Return the class of each byte of a text, and where it has white space of several bytes.

        The class of a byte is the class of the character that it belongs to. So in "aé", whose
        bytes are 61 C3 A9, all three bytes have the class of letters.

        Args:
            buffer: Valid UTF-8, with bytes 0xFF between texts and at the end.

        Returns:
            byte_classes: uint8, shape (n_bytes,), writable.
            wide_spaces: int64, shape (n_wide_spaces,): first bytes of white space of several bytes.
        """
        # This gives ASCII characters their class. The first byte of any other character gets the
        # class LEAD, which is replaced below.
        translated = bytearray(buffer.translate(self._translation))  # writable
        byte_classes = np.frombuffer(translated, np.uint8)
        starts = np.flatnonzero(byte_classes == LEAD)  # (n_characters,)
        if not len(starts):
            return byte_classes, starts

        data = np.frombuffer(buffer, np.uint8)
        character_classes = self._classes_at(data, starts)
        _fill_characters(byte_classes, data, starts, character_classes)
        return byte_classes, starts[character_classes == SPACE]

    def _classes_at(self, data: Bytes, starts: Ints) -> Bytes:
        """Return the class of each character of several bytes.

        Args:
            data: uint8, shape (n_bytes,).
            starts: int64, shape (n_characters,): the first byte of each character.

        Returns:
            uint8, shape (n_characters,).
        """
        # The first two bytes nearly always decide. If they do not, the table has _MIXED, and the
        # whole character is looked up.
        upper_bytes = data[starts].astype(np.uint16) << 8
        classes: Bytes = self._class_of_pair[upper_bytes | data[starts + 1]]
        mixed = np.flatnonzero(classes == _MIXED)
        if len(mixed):
            classes[mixed] = self._classes[code_points_at(data, starts[mixed])]
        return classes


def _fill_characters(
    byte_classes: Bytes, data: Bytes, starts: Ints, character_classes: Bytes
) -> None:
    """Write the class of each character of several bytes to all of its bytes.

    Args:
        byte_classes: uint8, shape (n_bytes,). Changed in place.
        data: uint8, shape (n_bytes,): the text in UTF-8.
        starts: int64, shape (n_characters,): the first byte of each character.
        character_classes: uint8, shape (n_characters,).
    """
    byte_classes[starts] = character_classes
    byte_classes[starts + 1] = character_classes

    # There are three bytes or more if the first one is at least 0xE0, and four from 0xF0 on.
    first_bytes = data[starts]
    three_or_more = np.flatnonzero(first_bytes >= 0xE0)
    byte_classes[starts[three_or_more] + 2] = character_classes[three_or_more]
    four = np.flatnonzero(first_bytes >= 0xF0)
    byte_classes[starts[four] + 3] = character_classes[four]


def _classes_by_first_two_bytes(classes: Bytes) -> Bytes:
    """Return a table of the classes of characters by their first two bytes in UTF-8.

    The class is _MIXED if characters with these two bytes have different classes.

    Args:
        classes: uint8, shape (0x110000,): the class of each code point.

    Returns:
        uint8, shape (65536,); the index is 256 * first byte + second byte.
    """
    table = np.full((256, 256), _MIXED, np.uint8)  # first byte, second byte
    for points, block_size in _BLOCKS_WITH_SAME_TWO_BYTES:
        block_starts = points[::block_size]
        block_classes = _common_classes(classes[points.start : points.stop], block_size)
        for point, block_class in zip(block_starts, block_classes.tolist(), strict=True):
            # Surrogates are in no text, but have their place among the code points.
            first_byte, second_byte, *_ = chr(point).encode(errors="surrogatepass")
            table[first_byte, second_byte] = block_class
    return table.ravel()


def _common_classes(classes: Bytes, block_size: int) -> Bytes:
    """Return the class that each block of code points has in common, or _MIXED for several.

    Args:
        classes: uint8, shape (n_points,): the class of each code point.
        block_size: Code points in a block, a divisor of n_points.

    Returns:
        uint8, shape (n_blocks,).
    """
    blocks = classes.reshape(-1, block_size)
    is_uniform = (blocks == blocks[:, :1]).all(axis=1)
    return np.where(is_uniform, blocks[:, 0], _MIXED).astype(np.uint8)


def code_points_at(data: Bytes, starts: Ints) -> Ints:
    """Return the code points of the characters that start at some bytes of a UTF-8 text.

    The first byte of a character holds a mark of its length and the upper bits of the code point.
    Every further byte holds six more bits after the mark 10. For "é", code point 0xE9:

        bytes         110_00011  10_101001
        code point        00011     101001

    Args:
        data: uint8, shape (n_bytes,): valid UTF-8.
        starts: int64, shape (n_characters,): the first byte of each character.

    Returns:
        int64, shape (n_characters,).
    """
    first_bytes = data[starts]
    points = first_bytes.astype(np.int64)
    unfinished = np.arange(len(starts))  # index of the characters that have a further byte

    # A character has a second, third and fourth byte if its first byte is at least this.
    for offset, min_first_byte in ((1, 0xC0), (2, 0xE0), (3, 0xF0)):
        has_byte = first_bytes[unfinished] >= min_first_byte
        unfinished = unfinished[has_byte]
        low_bits = data[starts[unfinished] + offset] & 0x3F  # without the mark 10
        points[unfinished] = (points[unfinished] << 6) | low_bits
    points &= _CODE_POINT_MASKS.take(first_bytes)  # without the mark of the length
    return points
