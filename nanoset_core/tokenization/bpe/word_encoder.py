"""Tokens of words that no table knows: by merging in bulk, or from the reference where that is cheaper."""

from __future__ import annotations

import numpy as np

from nanoset_core.tokenization.bpe.base import Engine
from nanoset_core.tokenization.bpe.merging import Merger

_FEW = 0.75
"""Words per byte of width below which the reference is faster: merging takes rounds, whatever the number of words."""


class WordEncoder:
    """Encodes words that the split pattern made."""

    def __init__(self, merger: Merger, reference: Engine) -> None:
        self._merger = merger
        self._reference = reference

    def encode(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ids int32[t], lengths int[n]) of uint8[n, width] zero-padded words, as they stand in text."""
        if len(words) < _FEW * words.shape[1]:
            return self.encode_long([word.tobytes().rstrip(b"\0") for word in words])
        return self._merger.merge_words(words)

    def encode_long(self, words: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """(ids int32[t], lengths int32[n]) of words of any length, from the reference.

        A word on its own splits into nothing but itself, and is in normal form if the text is, so asking for it as a
        document gives its tokens.
        """
        encoded = self._reference.encode([word.decode() for word in words])
        return encoded.ids, encoded.lengths
