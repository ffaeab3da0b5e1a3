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
from typing import NamedTuple, TypeAlias

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
_PROBED_TOGETHER = 0x2000
"""Code points in a text: in longer texts, the library needs more time for each of them."""

_MIXED = 255  # in place of a class: several are possible

# For each of the 256 values of the first byte of a character: a mask of the bits that belong to the
# code point. The others are a mark of the character's length: 0, 110, 1110 or 11110.
_FIRST_BYTE_MASKS = np.repeat([0x7F, 0x1F, 0x0F, 0x07], [0xC0, 0x20, 0x10, 0x10])


class _EncodedRange(NamedTuple):
    """Code points whose characters have the same number of bytes in UTF-8, two or more."""

    start: int
    stop: int
    lead: int
    """The bits of the first byte that mark the number of bytes."""
    group_size: int
    """Neighbouring code points that have the same first two bytes: 64 for each further byte.

    For example, U+4E00 (E4 B8 80) to U+4E3F (E4 B8 BF).
    """


_ENCODED_RANGES = (
    _EncodedRange(0x80, 0x800, lead=0b11000000, group_size=1),
    _EncodedRange(0x800, 0x10000, lead=0b11100000, group_size=64),
    _EncodedRange(0x10000, CODE_POINTS, lead=0b11110000, group_size=64 * 64),
)

ClassRules: TypeAlias = tuple[tuple[str, int], ...]
"""Rules (members, class): the members as in a regular expression's brackets, or DIGITS. If several
rules apply to a character, the last one counts.
"""


def probe_classes(rules: ClassRules, rest: int) -> Bytes:
    r"""Return the class of every Unicode character, such as letter, by Hugging Face's library.

    Tokenizers cut text where the class changes. The library is asked about each character, since
    its version of Unicode may differ from Python's. With the rules (`\p{L}`, LETTER) and
    (`\s`, SPACE), "a" is a LETTER, a space is a SPACE, and "!" has the class `rest`.

    Args:
        rules: Pairs (characters, class). The characters are written as in the brackets of a regular
            expression; or they are DIGITS, for those that the library's pre-tokenizer Digits takes
            for digits. If several rules apply to a character, the last one counts.
        rest: Class of all other characters.

    Returns:
        uint8, shape (0x110000,): the class of each code point. Surrogates, which no text contains,
        have `rest`.
    """
    classes = np.full(CODE_POINTS, rest, np.uint8)
    for points in _blocks_of_code_points():
        # Most characters match none of the expressions. It saves time to find the others first.
        candidates = points[are_in(_any_of(rules), points)]
        for members, class_of_members in rules:
            # DIGITS is no expression.
            searched = points if members == DIGITS else candidates
            is_member = are_in(members, searched)
            classes[searched[is_member]] = class_of_members
    return classes


def _any_of(rules: ClassRules) -> str:
    """Return an expression for the characters of any rule: `[a-z][0-9]` for `a-z` and `0-9`.

    It is written as in the brackets of a regular expression, which may contain further brackets.
    """
    return "".join(f"[{members}]" for members, _ in rules if members != DIGITS)


def _blocks_of_code_points() -> Iterator[Ints]:
    """Yield all code points but surrogates, _PROBED_TOGETHER at a time."""
    for start in range(0, CODE_POINTS, _PROBED_TOGETHER):
        points = np.arange(start, start + _PROBED_TOGETHER)
        is_surrogate = (points >= 0xD800) & (points < 0xE000)
        yield points[~is_surrogate]


def are_in(members: str, points: Ints) -> Bools:
    r"""Return which characters belong to a class, such as letters, by Hugging Face's library.

    This project cuts text by the classes of characters, and must do it just as the library does,
    whose version of Unicode may differ from Python's.

    Args:
        members: The class as in the brackets of a regular expression, such as `\p{L}\p{M}`; or
            DIGITS, for the digits that the library's pre-tokenizer Digits recognizes.
        points: Code points of the characters, int64, shape (n_points,).

    Returns:
        bool, shape (n_points,).
    """
    if not len(points):
        return np.zeros(0, bool)
    text = points.astype("<u4").tobytes().decode("utf-32-le")  # a character for each code point
    if members == DIGITS:
        return _are_digits(text)
    return _are_matched(members, text)


def _are_digits(text: str) -> Bools:
    """Return which characters of a text are digits, by Hugging Face's tokenizers library.

    The library does not tell it directly, but it can cut digits apart from other text. With a slash
    before the text, so that the first piece is certain not to be one of digits:

        text              a12b
        pieces            /a    12    b
        every second            12          these are the digits
    """
    from tokenizers.pre_tokenizers import Digits

    # The library cuts "/a12b" into "/a", "12" and "b": every second piece consists of digits. The
    # slash is put before the text so that the first piece never does.
    pieces = Digits(individual_digits=False).pre_tokenize_str("/" + text)
    is_digit = np.zeros(len(text) + 1, bool)
    for _, (start, stop) in pieces[1::2]:
        is_digit[start:stop] = True
    return is_digit[1:]  # without the slash


def _are_matched(members: str, text: str) -> Bools:
    """Return which characters of a text a regular expression matches, by Hugging Face's library.

    The library can remove the matches from a text, and return the pieces that remain. All other
    characters are matches. For `[a-z]+` and the text "1ab2":

        pieces       "1" at [0, 1), "2" at [3, 4)
        result       F T T F

    Args:
        members: The characters to find, as in the brackets of a regular expression: `a-z`.
        text: The text to search.

    Returns:
        bool, shape (n_characters,).
    """
    from tokenizers.pre_tokenizers import Split

    from tokenizers import Regex

    # The library removes the matches from the text, and returns the pieces between them: "1" and
    # "2" of "1ab2".
    removal = Split(Regex(f"[{members}]+"), "removed")
    is_member = np.ones(len(text), bool)
    for _, (start, stop) in removal.pre_tokenize_str(text):
        is_member[start:stop] = False
    return is_member


class ByteClassifier:
    """Assigns a class to every byte of a text, given the class of every code point."""

    def __init__(self, classes: Bytes) -> None:
        """Prepare tables by which the class of each byte of a text, such as letter, is looked up.

        A character of one byte (ASCII) has an entry of its own. For longer characters, the first
        byte gets the class LEAD at first, and a second table has the class by the first two bytes.

        Args:
            classes: uint8, shape (0x110000,): the class of each code point, from `probe_classes`.
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

        The class of a byte is that of its character, such as letter. For "aé ", with a no-break
        space at the end (L LETTER, S SPACE):

            bytes          61  C3  A9  C2  A0
            classes        L   L   L   S   S
            wide spaces                x          (position 3)

        Args:
            buffer: Valid UTF-8, with bytes 0xFF between texts and at the end.

        Returns:
            byte_classes: uint8, shape (n_bytes,), writable.
            wide_spaces: int64, shape (n_wide_spaces,): first bytes of white space of several bytes.
        """
        # Replace each ASCII character by its class, and the first byte of all others by LEAD.
        translated = bytearray(buffer.translate(self._translation))
        byte_classes = np.frombuffer(translated, np.uint8)
        starts = np.flatnonzero(byte_classes == LEAD)  # characters of several bytes: 1 and 3
        if not len(starts):
            return byte_classes, starts

        # Look up the classes of the others, and write each to all bytes of its character.
        data = np.frombuffer(buffer, np.uint8)
        classes = self._classes_at(data, starts)  # (n_characters,) L and S
        _fill_characters(byte_classes, data, starts, classes)
        wide_spaces = starts[classes == SPACE]
        return byte_classes, wide_spaces

    def _classes_at(self, data: Bytes, starts: Ints) -> Bytes:
        """Return the class, such as letter, of each character of several bytes in a text.

        Args:
            data: uint8, shape (n_bytes,): the text in UTF-8.
            starts: int64, shape (n_characters,): the first byte of each of these characters.

        Returns:
            uint8, shape (n_characters,).
        """
        byte_pairs = data[starts].astype(np.uint16) << 8  # the first two bytes: 0xC3A9 for "é"
        byte_pairs |= data[starts + 1]
        classes: Bytes = self._class_of_pair[byte_pairs]

        # If characters with the same two bytes have several classes, the whole character decides.
        mixed = np.flatnonzero(classes == _MIXED)
        if len(mixed):
            code_points = code_points_at(data, starts[mixed])
            classes[mixed] = self._classes[code_points]
        return classes


def _fill_characters(
    byte_classes: Bytes, data: Bytes, starts: Ints, character_classes: Bytes
) -> None:
    """Write the class of each character of several bytes to all of its bytes.

        text             é        中
        bytes            C3 A9    E4 B8 AD
        before           x  x     x  x  x      (anything)
        afterwards       L  L     I  I  I      (with the classes L and I of the characters)

    Args:
        byte_classes: uint8, shape (n_bytes,). Changed in place.
        data: uint8, shape (n_bytes,): the text in UTF-8.
        starts: int64, shape (n_characters,): the first byte of each character.
        character_classes: uint8, shape (n_characters,).
    """
    byte_classes[starts] = character_classes
    byte_classes[starts + 1] = character_classes

    # The first byte says whether there is a third one, and a fourth.
    first_bytes = data[starts]
    three_or_more = np.flatnonzero(first_bytes >= 0xE0)
    byte_classes[starts[three_or_more] + 2] = character_classes[three_or_more]
    four = np.flatnonzero(first_bytes >= 0xF0)
    byte_classes[starts[four] + 3] = character_classes[four]


def _classes_by_first_two_bytes(classes: Bytes) -> Bytes:
    """Return a table of the classes of characters (letter, symbol, …) by their first two bytes.

    If the characters with the same first two bytes have several classes, the entry is _MIXED:

        first bytes    characters                                 entry
        C3 A9          é                                          LETTER
        E4 B8          U+4E00 (E4 B8 80) to U+4E3F (E4 B8 BF)     LETTER: all 64 are ideographs
        E2 80          U+2000 (a space) to U+203F                 _MIXED

    Args:
        classes: uint8, shape (0x110000,): the class of each code point.

    Returns:
        uint8, shape (65536,); the index is 256 * first byte + second byte.
    """
    table = np.full(1 << 16, _MIXED, np.uint8)
    for start, stop, lead, size in _ENCODED_RANGES:
        # The first two bytes of each group: 110xxxxx 10xxxxxx, 1110xxxx 10xxxxxx and so on, where
        # the bits x are the upper ones of the code point.
        upper_bits = np.arange(start, stop, size) // size  # (n_groups,)
        first_bytes = lead | (upper_bits >> 6)
        second_bytes = 0x80 | (upper_bits & 0x3F)

        classes_by_group = classes[start:stop].reshape(-1, size)  # (n_groups, size)
        table[(first_bytes << 8) | second_bytes] = _common_classes(classes_by_group)
    return table


def _common_classes(classes_by_group: Bytes) -> Bytes:
    """Return the class that all characters of a group have, or _MIXED, for each group.

    Args:
        classes_by_group: uint8, shape (n_groups, size): the classes of the characters.

    Returns:
        uint8, shape (n_groups,).
    """
    lowest = classes_by_group.min(axis=1)
    has_one_class = lowest == classes_by_group.max(axis=1)
    return np.where(has_one_class, lowest, _MIXED)


def code_points_at(data: Bytes, starts: Ints) -> Ints:
    """Return the code points (numbers) of the characters that start at some bytes of a UTF-8 text.

    The first byte of a character has a mark of the character's length, and then the upper bits of
    the code point. Every further byte has the mark 10, and six more bits. For "é", code point 0xE9:

        bytes         110_00011  10_101001      C3 A9
        code point        00011     101001      0xE9

    Args:
        data: uint8, shape (n_bytes,): valid UTF-8.
        starts: int64, shape (n_characters,): the first byte of each character.

    Returns:
        int64, shape (n_characters,).
    """
    first_bytes = data[starts]  # (n_characters,)
    points: Ints = first_bytes & _FIRST_BYTE_MASKS.take(first_bytes)  # without the mark: 00011

    # Append the bits of a second, third and fourth byte, which characters have if their first byte
    # is large enough.
    for offset, min_first_byte in ((1, 0xC0), (2, 0xE0), (3, 0xF0)):
        longer = np.flatnonzero(first_bytes >= min_first_byte)  # indices of characters
        low_bits = data[starts[longer] + offset] & 0x3F  # without the mark 10
        points[longer] = (points[longer] << 6) | low_bits
    return points
