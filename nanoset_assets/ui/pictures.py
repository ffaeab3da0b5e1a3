"""Small pictures that the UI shows within Markdown: black on white, one bit a pixel, some hundred characters long."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import dagster as dg
import numpy as np
from numpy.typing import NDArray

from nanoset_assets.ui.metadata import markdown
from nanoset_core.shuffling.quality import one_bit_png

WIDTH, BARS_HEIGHT, AXIS_HEIGHT = 416, 64, 14
_GLYPH_WIDTH, _GLYPH_HEIGHT, _SCALE = 3, 5, 2
_STEP = 4 * _SCALE  # from one character to the next
_GLYPHS = {
    "0": "75557",
    "1": "26227",
    "2": "71747",
    "3": "71717",
    "4": "55711",
    "5": "74717",
    "6": "74757",
    "7": "71222",
    "8": "75757",
    "9": "75717",
    "k": "45665",
    "M": "57755",
}
"""Rows of 3 pixels, each as one octal digit."""


def length_histogram(counts: Sequence[int], tokens: int) -> dg.MarkdownMetadataValue:
    """Documents by their length in tokens, as a picture and a sentence.

    Args:
        counts: entry b is the documents of 2^(b-1) to 2^b - 1 tokens, entry 0 the empty ones.
        tokens: of all documents.
    """
    filled = [index for index, count in enumerate(counts) if count]
    if not filled:
        return markdown("no documents")
    first, last = filled[0], filled[-1]
    documents = sum(counts)
    reached = np.cumsum(counts)
    middle = int(np.searchsorted(reached, (documents + 1) // 2))
    text = (
        f"Documents by length, in powers of two from {_least(first):,} to {_most(last):,} tokens; "
        f"{tokens / documents:,.0f} on average, the median between {_least(middle):,} and {_most(middle):,}"
    )
    picture = histogram_png(counts[first : last + 1], [_label(index) for index in range(first, last + 1)])
    return markdown(f"{image(picture, 'documents by tokens')}\n\n{text}")


def image(png: bytes, alternative: str) -> str:
    """A picture as Markdown that needs no server."""
    return f"![{alternative}](data:image/png;base64,{base64.b64encode(png).decode()})"


def histogram_png(counts: Sequence[int], labels: Sequence[str]) -> bytes:
    """Bars over their labels of digits, k and M; labels that would touch the one before are left out."""
    ink = np.zeros((BARS_HEIGHT + AXIS_HEIGHT, WIDTH), dtype=bool)
    edges = np.arange(len(counts) + 1) * WIDTH // len(counts)
    heights = -(-np.asarray(counts, np.int64) * (BARS_HEIGHT - 2) // max(max(counts), 1))
    free = 0
    for begin, end, height, label in zip(edges, edges[1:], heights.tolist(), labels, strict=False):
        gap = min(4, (end - begin) // 4)
        ink[BARS_HEIGHT - height : BARS_HEIGHT, begin + gap : end - gap] = True
        width = len(label) * _STEP - _SCALE
        place = min(max(int(begin + end - width) // 2, 0), WIDTH - width)
        if place >= free:
            _write(ink, label, place)
            free = place + width + _STEP
    ink[BARS_HEIGHT, :] = True
    return one_bit_png(ink)


def _write(ink: NDArray[np.bool_], text: str, left: int) -> None:
    top = BARS_HEIGHT + AXIS_HEIGHT - _GLYPH_HEIGHT * _SCALE
    for number, character in enumerate(text):
        glyph = np.kron(_bitmap(character), np.ones((_SCALE, _SCALE), dtype=bool))
        begin = left + number * _STEP
        ink[top : top + glyph.shape[0], begin : begin + glyph.shape[1]] = glyph


def _bitmap(character: str) -> NDArray[np.bool_]:
    """The pixels of a character, shape (5, 3)."""
    rows = np.array([int(digit) for digit in _GLYPHS[character]], dtype=np.uint8)
    return np.unpackbits(rows[:, None], axis=1)[:, -_GLYPH_WIDTH:].astype(bool)


def _least(index: int) -> int:
    return 1 << (index - 1) if index else 0


def _most(index: int) -> int:
    return (1 << index) - 1


def _label(index: int) -> str:
    """The least length of a bar: 512, 1k, 2k … 1M."""
    value = _least(index)
    return f"{value >> 20}M" if value >= 1 << 20 else f"{value >> 10}k" if value >= 1 << 10 else str(value)
