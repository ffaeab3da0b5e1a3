"""English contractions ('s 't 'm 'd 're 've 'll), which split patterns set apart from the letters that follow."""

from __future__ import annotations

import numpy as np

_APOSTROPHE = 0x27


def _table(strings: list[bytes]) -> np.ndarray:
    """bool[65536]: which pairs of bytes after an apostrophe make a contraction; a single letter goes with any byte."""
    table = np.zeros((256, 256), bool)
    for string in strings:
        table[string[0], string[1] if len(string) == 2 else slice(None)] = True
    return table.ravel()


def _cases(text: bytes) -> list[bytes]:
    first = [text[:1].lower(), text[:1].upper()]
    return [a + b for a in first for b in {text[1:].lower(), text[1:].upper()}]


_LONG_S = "ſ".encode()
_ONE, _TWO = [b"s", b"t", b"m", b"d"], [b"re", b"ve", b"ll"]
_EXACT = (_table(_ONE), _table(_TWO))
# Ignoring case, the long s is an s too; it takes two bytes.
_ANY_CASE = (
    _table([case for one in _ONE for case in _cases(one)]),
    _table([case for two in _TWO for case in _cases(two)] + [_LONG_S]),
)


def end_contractions(starts: np.ndarray, data: np.ndarray, *, any_case: bool) -> None:
    """Make each contraction a piece: `starts` bool[n + 1] is changed.

    An apostrophe begins one only where a piece begins (so that no space or symbol goes before it in its piece).
    `data`: uint8[n], ending in 0xFF.
    """
    quotes = np.flatnonzero(data == _APOSTROPHE)
    quotes = quotes[starts[quotes]]
    if not len(quotes):
        return
    second = data[np.minimum(quotes + 2, len(data) - 1)]
    pairs = data[quotes + 1].astype(np.uint16) << 8 | second
    for table, width in zip(_ANY_CASE if any_case else _EXACT, (2, 3), strict=True):
        apostrophes = quotes[table[pairs]]
        starts[apostrophes + 1] = False
        starts[apostrophes + width] = True
