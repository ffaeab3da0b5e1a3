"""The class of every code point, found by asking the tokenizer's own pre-tokenizer.

A split pattern sees only whether a character is a letter, a number, white space or none of them. Which is which depends
on the Unicode version inside the library (Python's own tables differ on thousands of code points), so the library is
asked: only a letter stays in one piece with an `a` before it, only a symbol with a `!`, only white space with newlines
after it; what is left is a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONTINUATION = 0
"""A byte of a character that another byte began; never left in the classes of a text."""
LETTER, NUMBER, OTHER = 1, 2, 3
"""The word classes: `\\p{L}`, `\\p{N}`, and everything that is neither these nor white space."""
SPACE, NEWLINE = 4, 5
"""White space; NEWLINE (`\\r` and `\\n`) only in patterns that treat them apart, else they are SPACE."""
RUN = 6
"""Spaces that form a token of their own before any splitting (GPT-NeoX's added tokens)."""
SEPARATOR = 7
"""The byte 0xFF between texts, which UTF-8 never uses."""
LEAD = 8
"""First byte of a character of several bytes; never left in the classes of a text."""

CODE_POINTS = 0x110000
_BLOCK = 0x8000
_MIXED = 255
_STRIDE = 4  # characters to a probe: "a", the code point, two newlines

Splitter = Callable[[str], list[tuple[str, tuple[int, int]]]]
"""`pre_tokenize_str` of the library: pieces with their (begin, end excl) in characters."""


def probe_classes(split: Splitter, *, newlines_apart: bool) -> NDArray[np.uint8]:
    """uint8, shape (0x110000,): class of every code point under the split pattern of GPT-2, Llama-3 or Qwen2.

    In these patterns every piece of consecutive code points has one class, but for its first character (which may be a
    prefix of a word). So one pass over all code points in order, and probes of the first and last character of each
    piece, settle them all.
    """
    classes = np.full(CODE_POINTS, OTHER, np.uint8)
    pieces = [piece for begin in range(0x80, CODE_POINTS, _BLOCK) for piece in _pieces(split, begin)]
    wanted = set(range(0x80)) | {point for first, last in pieces for point in (first, last)}
    known = probe_each(split, sorted(wanted))
    for first, last in pieces:
        classes[first : last + 1] = known[last]
        classes[first] = known[first]
    for point in range(0x80):
        classes[point] = known[point]
    if newlines_apart:
        classes[[10, 13]] = NEWLINE
    return classes


def probe_each(split: Splitter, points: Iterable[int]) -> dict[int, int]:
    """Class of each code point, by probing it alone: the slow, obvious form of `probe_classes`."""
    points = list(points)
    after_letter, after_symbol = _piece_starts(split, "a", points), _piece_starts(split, "!", points)
    classes = {}
    for index, point in enumerate(points):
        place = _STRIDE * index + 1
        if point in (0x0A, 0x0D):
            classes[point] = SPACE  # Llama-3's symbols take newlines along
        elif place not in after_letter:
            classes[point] = LETTER
        elif place not in after_symbol:
            classes[point] = OTHER
        else:
            classes[point] = NUMBER if place + 1 in after_letter else SPACE
    return classes


def _piece_starts(split: Splitter, before: str, points: list[int]) -> set[int]:
    """Where pieces begin in a text of probes."""
    text = "".join(f"{before}{chr(point)}\r\r" for point in points)
    return {begin for _, (begin, _) in split(text)}


def _pieces(split: Splitter, begin: int) -> list[tuple[int, int]]:
    """(first, last) code point of each piece of a block of code points, surrogates left out."""
    points = [point for point in range(begin, min(begin + _BLOCK, CODE_POINTS)) if not 0xD800 <= point < 0xE000]
    if not points:
        return []
    return [(points[low], points[high - 1]) for _, (low, high) in split("".join(map(chr, points)))]


@dataclass(frozen=True, slots=True)
class ByteClasses:
    """Classes of the bytes of a buffer."""

    codes: NDArray[np.uint8]
    """uint8, shape (bytes,), writable: class of the character that each byte belongs to."""
    wide_spaces: NDArray[np.int64]
    """int64, shape (spaces,): positions of the first byte of white space that is longer than a byte."""


class ByteClassifier:
    """Turns bytes into classes, given the class of every code point."""

    def __init__(self, classes: NDArray[np.uint8]) -> None:
        """classes: uint8, shape (0x110000,), from probe_classes."""
        self._classes = classes
        self._translation = (
            bytes(classes[:0x80].tolist()) + bytes(0x40) + bytes([LEAD]) * 0x38 + bytes(7) + bytes([SEPARATOR])
        )
        self._of_pair = _classes_of_pairs(classes)

    def classify(self, buffer: bytes) -> ByteClasses:
        """Classes of bytes of valid UTF-8, with 0xFF between texts."""
        codes = np.frombuffer(bytearray(buffer.translate(self._translation)), np.uint8)
        leads = np.flatnonzero(codes == LEAD)
        if not len(leads):
            return ByteClasses(codes, leads)
        data = np.frombuffer(buffer, np.uint8)
        lead_bytes = data[leads]
        pairs = lead_bytes.astype(np.uint16) << 8 | data[leads + 1]
        found = self._of_pair[pairs]
        mixed = np.flatnonzero(found == _MIXED)
        if len(mixed):
            found[mixed] = self._classes[_code_points(data, leads[mixed])]
        codes[leads] = found
        codes[leads + 1] = found
        for width, first_lead in ((3, 0xE0), (4, 0xF0)):
            wide = np.flatnonzero(lead_bytes >= first_lead)
            codes[leads[wide] + (width - 1)] = found[wide]
        return ByteClasses(codes, leads[found == SPACE])


def _classes_of_pairs(classes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """uint8, shape (65536,): class by the first two bytes of a character, _MIXED where later bytes decide."""
    table = np.full((256, 256), _MIXED, np.uint8)
    table[0xC0:0xE0, 0x80:0xC0] = classes[:0x800].reshape(32, 64)
    for lead, blocks in ((0xE0, classes[:0x10000].reshape(-1, 64)), (0xF0, classes.reshape(-1, 4096))):
        uniform = np.where((blocks == blocks[:, :1]).all(axis=1), blocks[:, 0], _MIXED)
        rows = -(-len(uniform) // 64)
        padded = np.full(rows * 64, _MIXED, np.uint8)
        padded[: len(uniform)] = uniform
        table[lead : lead + rows, 0x80:0xC0] = padded.reshape(rows, 64)
    return table.ravel()


def _code_points(data: NDArray[np.uint8], leads: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64, shape (characters,): code points of the characters of three or four bytes that begin at `leads`."""
    first, second, third = (data[leads + offset].astype(np.int64) for offset in range(3))
    points = (first & 0x0F) << 12 | (second & 0x3F) << 6 | third & 0x3F
    four = np.flatnonzero(first >= 0xF0)
    if len(four):
        points[four] = points[four] << 6 | data[leads[four] + 3] & 0x3F
    return points
