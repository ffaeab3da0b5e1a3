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

from math import ceil
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

ClassRules: TypeAlias = tuple[tuple[str, int], ...]
"""Rules (members, class): the members as in a regular expression's brackets, or DIGITS. If several
rules apply to a character, the last one counts.
"""


def probe_classes(rules: ClassRules, rest: int) -> Bytes:
    """Return the class of every code point, as the tokenizers library sees it.

    Args:
        rules: Pairs (members, class). The members are written as in the brackets of a regular
            expression, such as `\\p{L}\\p{M}`; or they are DIGITS, which stands for the digits that
            the library's pre-tokenizer Digits recognizes.
        rest: Class of the characters to which no rule applies.

    Returns:
        uint8, shape (0x110000,); surrogates, which no text contains, have `rest`.
    """
    classes = np.full(CODE_POINTS, rest, np.uint8)

    # The members of all rules together: brackets inside brackets are a union, as in [[a-z][0-9]].
    # DIGITS is no regular expression, and so it cannot be part of this.
    brackets = [f"[{members}]" for members, _ in rules if members != DIGITS]
    members_of_any_rule = "".join(brackets)

    for start in range(0, CODE_POINTS, _PROBED_TOGETHER):
        points = np.arange(start, start + _PROBED_TOGETHER)
        is_surrogate = (points >= 0xD800) & (points < 0xE000)
        points = points[~is_surrogate]

        # Most code points are in no class. To ask for all rules together first saves time: after
        # that, each single rule is asked for these candidates only.
        candidates = points[are_in(members_of_any_rule, points)]
        for members, class_of_members in rules:
            probed_points = points if members == DIGITS else candidates
            member_points = probed_points[are_in(members, probed_points)]
            classes[member_points] = class_of_members
    return classes


def are_in(members: str, points: Ints) -> Bools:
    """Return which code points the tokenizers library takes for members of a class.

    The library is asked by splitting a text of these code points. For the digits among "/", "a",
    "1", "2" and "b", the pieces outside are "/a" and "b".

    Args:
        members: The class as in the brackets of a regular expression, such as `\\p{L}\\p{M}`; or
            DIGITS, the digits that the pre-tokenizer Digits recognizes.
        points: Code points, int64, shape (n_points,).

    Returns:
        bool, shape (n_points,).
    """
    from tokenizers.pre_tokenizers import Digits, Split

    from tokenizers import Regex

    if not len(points):
        return np.zeros(0, bool)

    # A slash is put before the text. It is in no class, so that the first piece is outside.
    text = "/" + points.astype("<u4").tobytes().decode("utf-32-le")
    if members == DIGITS:
        # The pieces are outside, inside, outside, and so on: take every other one.
        pieces = Digits(individual_digits=False).pre_tokenize_str(text)
        pieces_outside = pieces[::2]
    else:
        # Split into runs of members, which are removed: the pieces outside are left.
        split = Split(Regex(f"[{members}]+"), "removed")
        pieces_outside = split.pre_tokenize_str(text)

    # Each piece comes with its range of characters in the text.
    is_member = np.ones(len(text), bool)
    for _, (start, stop) in pieces_outside:
        is_member[start:stop] = False
    return is_member[1:]  # without the slash


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
        leads = np.flatnonzero(byte_classes == LEAD)  # (n_leads,)
        if not len(leads):
            return byte_classes, leads

        # The first two bytes of a character nearly always decide its class. If they do not, the
        # table has _MIXED, and the whole character is looked up.
        data = np.frombuffer(buffer, np.uint8)
        lead_bytes = data[leads]
        first_two_bytes = (lead_bytes.astype(np.uint16) << 8) | data[leads + 1]
        lead_classes = self._class_of_pair[first_two_bytes]  # (n_leads,)
        mixed = np.flatnonzero(lead_classes == _MIXED)
        if len(mixed):
            code_points = code_points_at(data, leads[mixed])
            lead_classes[mixed] = self._classes[code_points]

        # Write the class at all bytes of the character. The first byte says how many there are:
        # three or more from 0xE0 on, and four from 0xF0 on.
        byte_classes[leads] = lead_classes
        byte_classes[leads + 1] = lead_classes
        three_or_more = np.flatnonzero(lead_bytes >= 0xE0)
        byte_classes[leads[three_or_more] + 2] = lead_classes[three_or_more]
        four = np.flatnonzero(lead_bytes >= 0xF0)
        byte_classes[leads[four] + 3] = lead_classes[four]
        return byte_classes, leads[lead_classes == SPACE]


def _classes_by_first_two_bytes(classes: Bytes) -> Bytes:
    """Return a table of the classes of characters by their first two bytes in UTF-8.

    All characters with the same first two bytes form a block. Its size depends on the number of
    bytes of a character, because every further byte has 64 values:

        bytes of a character     2    3     4
        characters in a block    1    64    64 * 64 = 4096

    The characters of a block have consecutive code points. If they have different classes, the
    entry of the table is _MIXED.

    Args:
        classes: uint8, shape (0x110000,): the class of each code point.

    Returns:
        uint8, shape (65536,); the index is 256 * first byte + second byte.
    """
    table = np.full((256, 256), _MIXED, np.uint8)  # first byte, second byte

    # Code points below 0x800 have two bytes: first bytes 0xC0 to 0xDF, second bytes 0x80 to 0xBF.
    table[0xC0:0xE0, 0x80:0xC0] = classes[:0x800].reshape(32, 64)

    # Below 0x10000, three bytes: the first byte is 0xE0 or more. (1024 blocks, 64 characters)
    _set_uniform_blocks(table, 0xE0, blocks=classes[:0x10000].reshape(-1, 64))

    # All others have four bytes: the first byte is 0xF0 or more. (272 blocks, 4096 characters)
    _set_uniform_blocks(table, 0xF0, blocks=classes.reshape(-1, 4096))
    return table.ravel()


def _set_uniform_blocks(table: Bytes, first_byte: int, blocks: Bytes) -> None:
    """Enter the class of each block of characters, or _MIXED if a block has several classes.

    A block is all characters that have the same first two bytes in UTF-8. The second byte goes from
    0x80 to 0xBF, and then the first byte increases by one: so 64 blocks fill one row of the table.

    Args:
        table: uint8, shape (256, 256): class by first and second byte. Changed in place.
        first_byte: First byte of the characters of the first 64 blocks.
        blocks: uint8, shape (n_blocks, characters in a block): the class of each character, in the
            order of code points.
    """
    is_uniform = (blocks == blocks[:, :1]).all(axis=1)
    block_classes = np.where(is_uniform, blocks[:, 0], _MIXED)  # (n_blocks,)

    # The blocks of the last row may be fewer than 64: the rest of that row is no character.
    n_rows = ceil(len(block_classes) / 64)
    rows = np.full((n_rows, 64), _MIXED, np.uint8)
    rows.flat[: len(block_classes)] = block_classes
    table[first_byte : first_byte + n_rows, 0x80:0xC0] = rows


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

    # Append the six bits of the second, third and fourth byte. A character has this byte if its
    # first byte is at least `min_first_byte`. The mask removes the mark of the first byte: it keeps
    # the 11, 16 or 21 bits that a code point of this length has.
    for offset, min_first_byte, n_bits in ((1, 0xC0, 11), (2, 0xE0, 16), (3, 0xF0, 21)):
        has_byte = first_bytes[unfinished] >= min_first_byte
        unfinished = unfinished[has_byte]
        low_bits = data[starts[unfinished] + offset] & 0x3F
        mask = (1 << n_bits) - 1
        points[unfinished] = ((points[unfinished] << 6) | low_bits) & mask
    return points
