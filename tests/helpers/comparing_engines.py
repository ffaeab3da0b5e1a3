"""The comparison of an engine with the reference, and text on which engines are likely to differ."""

from __future__ import annotations

import random
from collections.abc import Sequence
from unicodedata import combining, is_normalized, ucd_3_2_0

import numpy as np

from nanoset_core.tokenizers.engines import Engine

ASSIGNED_BELOW = 0x30000
"""Unicode 3.2 has no other characters than the code points below, except tags."""
BASES = [*"aeoAEu", "\u0928", "\u05d0", "\u0627", "\u0b47", "\uac00", "\u304b"]
"""Letters with which combining marks form one character."""


def assert_same_tokens(engine: Engine, reference: Engine, texts: Sequence[str]) -> None:
    """Check that an engine gives the tokens of the reference for each text, as 32-bit integers."""
    encoded = engine.encode(texts)
    expected = reference.encode(texts)

    assert encoded.lengths.tolist() == expected.lengths.tolist()
    np.testing.assert_array_equal(encoded.ids, expected.ids)
    assert encoded.ids.dtype == np.int32
    assert encoded.lengths.dtype == np.int32


def texts_with_marks(count: int, seed: int) -> list[str]:
    """Return random texts of Unicode 3.2, half of whose characters are changed by normal forms.

    All engines know the characters of Unicode 3.2, so they must agree on these texts.

    Args:
        count: Number of texts.
        seed: Texts of the same seed are the same.
    """
    characters = assigned_characters()
    changed_characters = [character for character in characters if may_change(character)]
    pools = [changed_characters, BASES, characters]
    generator = random.Random(seed)
    texts = []
    for _ in range(count):
        text = ""
        for _ in range(generator.randint(2, 9)):
            (pool,) = generator.choices(pools, weights=(5, 3, 2))
            text += generator.choice(pool)
        texts.append(text)
    return texts


def assigned_characters() -> list[str]:
    """Return the characters of Unicode 3.2, without those for private use."""
    characters = [chr(point) for point in range(ASSIGNED_BELOW)]
    # Unassigned, surrogate, private use.
    excluded = ("Cn", "Cs", "Co")
    return [character for character in characters if ucd_3_2_0.category(character) not in excluded]


def may_change(character: str) -> bool:
    """Return whether a normal form may change a text with a character."""
    is_mark = combining(character) != 0
    is_jamo = "\u1100" <= character < "\u1200"  # parts of Korean syllables
    return is_mark or is_jamo or not is_normalized("NFC", character)
