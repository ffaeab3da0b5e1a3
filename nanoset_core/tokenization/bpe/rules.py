"""What the numpy engine needs to know of a tokenizer, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How text is cut into pre-tokens."""

    pattern: str
    """"gpt2" or "llama3"."""
    digits: int = 0
    """Most digits in a piece under "llama3"."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words and merges of a byte-level BPE model."""

    data: np.ndarray
    """uint8[m]: bytes of all words back to back; none of them holds a zero byte."""
    lengths: np.ndarray
    """int64[n]: bytes of each word."""
    ids: np.ndarray
    """int32[n]: token of each word."""
    byte_tokens: np.ndarray
    """int32[256]: token of each byte, -1 for none."""
    merges: np.ndarray
    """int32[r, 3]: left token, right token and what they make, in order of rank."""


@dataclass(frozen=True, slots=True)
class Rules:
    """A tokenizer that the numpy engine understands."""

    split: SplitRule
    nfc: bool
    """Whether text is normalised to NFC first."""
    space_runs: dict[int, int]
    """Tokens of that many spaces, matched before any splitting; lengths 2, 3 … without a gap, or none."""
    added_tokens: tuple[bytes, ...]
    """UTF-8 text of the other tokens that are matched before any splitting."""
    whole_words: bool
    """Whether a pre-token that is in the vocabulary is one token, whatever the merges say."""
    vocabulary: Vocabulary

    @property
    def forbidden_bytes(self) -> bytes:
        """Bytes that text may hold and the engine leaves to the reference: zero, and those without a token."""
        possible = [*range(1, 0xC0), *range(0xC2, 0xF5)]
        return bytes([0, *(byte for byte in possible if self.vocabulary.byte_tokens[byte] < 0)])
