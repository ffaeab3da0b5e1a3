"""What every engine gives: the token ids of a batch of documents, as two flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of a batch of documents, without added special tokens."""

    ids: np.ndarray
    """int32[n]: token ids of all documents, back to back."""
    lengths: np.ndarray
    """int32[d]: tokens per document; sums to n."""


class Engine(Protocol):
    """Text to token ids. Every engine gives the same ids for the same `tokenizer.json`."""

    name: str
    """"tokenizers" or "numpy"."""
    reason: str
    """Why this engine was chosen, for logs and metadata."""

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents; int32 ids of all of them and int32 tokens per document.

        Raises InputError when a text cannot be written as UTF-8 (a lone surrogate).
        """
        ...
