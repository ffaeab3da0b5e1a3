"""Whether Python's `unicodedata` can tell which texts the tokenizer's NFC normalizer would leave as they are."""

from __future__ import annotations

from collections.abc import Callable
from unicodedata import normalize

_BLOCK = 0x10000
_CONTEXTS = ("", "a\u0345")  # alone, and after the mark that sorts behind all others


def trusts_python(normalise: Callable[[str], str]) -> bool:
    """False when the library changes a character, or moves it as a mark, that Python leaves alone.

    Unicode never changes the normal form of characters it has, so two versions differ in newer characters only, and a
    text that the newer version calls normal is normal to the older one. The library's tables must not be the newer.
    """
    for begin in range(0, 0x110000, _BLOCK):
        points = [point for point in range(begin, begin + _BLOCK) if point != 0x0A and not 0xD800 <= point < 0xE000]
        for context in _CONTEXTS:
            text = "\n".join(context + chr(point) for point in points)
            here, there = normalize("NFC", text), normalise(text)
            if here != there and _moved_alone(text, here, there):
                return False
    return True


def _moved_alone(text: str, here: str, there: str) -> bool:
    lines = zip(text.split("\n"), here.split("\n"), there.split("\n"), strict=True)
    return any(before == in_python != in_library for before, in_python, in_library in lines)
