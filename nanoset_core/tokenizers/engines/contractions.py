"""Recognise the English contractions that split patterns cut off: 's, 't, 'm, 'd, 're, 've, 'll.

The two bytes after an apostrophe decide. They are looked up in tables of all 65,536 pairs of bytes,
for all apostrophes of a text at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanoset_core.tokenizers.engines.arrays import Bools, Bytes, Ints, Runs

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


def find_contractions(data: Bytes, tables: ContractionTables) -> Runs:
    """Find the contractions of a text: in "it's 'll x'y", these are 's and 'll.

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts; the last byte is a separator, 0xFF.
        tables: Which bytes after an apostrophe make a contraction.

    Returns:
        The range of bytes of each contraction, from its apostrophe on: [2, 4) and [5, 8).
    """
    # The two bytes after each apostrophe decide: "s ", "ll" and "y" with a separator.
    apostrophes = np.flatnonzero(data == _APOSTROPHE)  # 2 5 10
    next_bytes = byte_pairs_after(data, apostrophes)  # as one number, an index of the tables

    # The apostrophe and one or two bytes.
    lengths = np.zeros(len(apostrophes), np.int64)
    lengths[tables.one_byte[next_bytes]] = 2
    lengths[tables.two_bytes[next_bytes]] = 3

    contractions = Runs(apostrophes, apostrophes + lengths)  # [2, 4), [5, 8) and [10, 10)
    return contractions.where(lengths > 0)


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
