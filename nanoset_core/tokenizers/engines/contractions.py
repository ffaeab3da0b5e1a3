"""Recognise the English contractions that split patterns cut off: 's, 't, 'm, 'd, 're, 've, 'll.

The two bytes after an apostrophe decide. They are looked up in tables of all 65,536 pairs of bytes,
for all apostrophes of a text at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanoset_core.tokenizers.engines.arrays import Bools, Bytes, Ints

_APOSTROPHE = 0x27

_ONE_LETTER = (b"s", b"t", b"m", b"d")
_TWO_LETTERS = (b"re", b"ve", b"ll")
_ONE_LETTER_ANY_CASE = (*_ONE_LETTER, b"S", b"T", b"M", b"D")
_TWO_LETTERS_ANY_CASE = (
    *(b"re", b"rE", b"Re", b"RE"),
    *(b"ve", b"vE", b"Ve", b"VE"),
    *(b"ll", b"lL", b"Ll", b"LL"),
)
# Regular expressions that ignore case take the long s for an s. It is one letter, but two bytes.
_LONG_S = "ſ".encode()


@dataclass(frozen=True, slots=True)
class ContractionTables:
    """Which pairs of bytes after an apostrophe make a contraction.

    The index of a table is 256 * first byte + second byte.
    """

    one_byte: Bools
    """bool, shape (65536,): the first byte does, whatever the second is."""
    two_bytes: Bools
    """bool, shape (65536,): both bytes together do."""


def _one_byte_table(letters: Iterable[bytes]) -> Bools:
    """Return a table by two bytes that is True if the first byte is one of the letters."""
    table = np.zeros((256, 256), bool)
    for letter in letters:
        table[letter[0], :] = True
    return table.ravel()


def _two_byte_table(pairs: Iterable[bytes]) -> Bools:
    """Return a table by two bytes that is True for the given pairs."""
    table = np.zeros((256, 256), bool)
    for pair in pairs:
        table[pair[0], pair[1]] = True
    return table.ravel()


EXACT = ContractionTables(_one_byte_table(_ONE_LETTER), _two_byte_table(_TWO_LETTERS))
"""Contractions in small letters."""
ANY_CASE = ContractionTables(
    _one_byte_table(_ONE_LETTER_ANY_CASE),
    _two_byte_table([*_TWO_LETTERS_ANY_CASE, _LONG_S]),
)
"""Contractions in letters of any case."""


def contraction_lengths(data: Bytes, apostrophes: Ints, tables: ContractionTables) -> Ints:
    """Return how many bytes the contraction at each apostrophe of a text has, 0 if it has none.

    For example, 's has 2 bytes, 'll has 3, and the apostrophe of 'x begins no contraction.

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts; the last byte is a separator, 0xFF.
        apostrophes: int64, shape (n_apostrophes,): positions of the apostrophes.
        tables: Which bytes after an apostrophe make a contraction.

    Returns:
        int64, shape (n_apostrophes,).
    """
    next_bytes = byte_pairs_after(data, apostrophes)  # "ll" as one number, an index of the tables
    lengths = np.zeros(len(apostrophes), np.int64)
    lengths[tables.one_byte[next_bytes]] = 2  # the apostrophe and one byte
    lengths[tables.two_bytes[next_bytes]] = 3
    return lengths


def find_apostrophes(data: Bytes) -> Ints:
    """Return the positions of all apostrophes of a text.

    Args:
        data: The text in UTF-8, uint8, shape (n_bytes,).

    Returns:
        int64, shape (n_apostrophes,), ascending: `it's 'x'` gives 2 5 7.
    """
    apostrophes: Ints = np.flatnonzero(data == _APOSTROPHE)
    return apostrophes


def byte_pairs_after(data: Bytes, apostrophes: Ints) -> NDArray[np.uint16]:
    """Return the two bytes after each apostrophe of a text, as one number.

    These decide whether there is a contraction, such as 's or 've, by a table with 65536 entries.
    For "it's ok", the bytes after the apostrophe are "s" (73 in hexadecimal) and a space (20):
    0x7320.

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts; the last byte is a separator, 0xFF.
        apostrophes: int64, shape (n_apostrophes,): positions of the apostrophes.

    Returns:
        uint16, shape (n_apostrophes,): 256 * first byte + second byte.
    """
    # If only the separator follows an apostrophe, there is no second byte. The separator then takes
    # its place: it is in no contraction.
    second_positions = np.minimum(apostrophes + 2, len(data) - 1)
    pairs = data[apostrophes + 1].astype(np.uint16)
    pairs <<= 8
    pairs |= data[second_positions]
    return pairs
