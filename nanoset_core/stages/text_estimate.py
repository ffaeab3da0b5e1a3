"""How many tokens a corpus has, estimated from the size of its files before it is tokenized."""

from __future__ import annotations

from dataclasses import dataclass

from nanoset_core.outputs.manifest import Manifest

BYTES_PER_TOKEN = 4
"""Bytes of text, as stored, for each token: for corpora that were never tokenized."""


@dataclass(frozen=True, slots=True)
class TextEstimate:
    """What is known of a corpus's text without reading it."""

    stored_bytes: int = 0
    """Size of its files as they are now; 0 if they cannot be listed."""
    tokenized: Manifest | None = None
    """Its current set of shards, or None if there is none or it is damaged."""

    @property
    def tokens_per_byte(self) -> float:
        """Tokens for each byte of text as stored, as in the current shards."""
        if self.tokenized is None or not self.tokenized.facts["stored_bytes"]:
            return 1 / BYTES_PER_TOKEN
        return float(self.tokenized.facts["tokens"] / self.tokenized.facts["stored_bytes"])

    @property
    def tokens(self) -> float:
        """Tokens of the corpus."""
        return self.stored_bytes * self.tokens_per_byte
