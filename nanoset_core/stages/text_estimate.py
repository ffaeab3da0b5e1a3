"""Estimate how many tokens a corpus has from the size of its files, before it is tokenized.

For example, 4,000 bytes of text are about 1,000 tokens, unless earlier text of the corpus says
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from nanoset_core.outputs.manifest import Manifest

BYTES_PER_TOKEN = 4
"""Assumed bytes of text for each token, for corpora that were never tokenized."""


@dataclass(frozen=True, slots=True)
class TextEstimate:
    """The size of a corpus's text, known without reading all of it."""

    stored_bytes: int = 0
    """Present size of its files; 0 if they cannot be listed."""
    tokenized: Manifest | None = None
    """Its current set of shards; None if it was not tokenized, or the set is damaged."""
    expansion: float = 1.0
    """Bytes of text for each stored byte, which is more than 1 if files are compressed. It is only
    used if the corpus was not tokenized.
    """

    @property
    def tokens_per_byte(self) -> float:
        """Tokens for each stored byte of text: the mean of the current shards, or a guess."""
        if self.tokenized is None or not self.tokenized.facts["stored_bytes"]:
            return self.expansion / BYTES_PER_TOKEN
        return float(self.tokenized.facts["tokens"] / self.tokenized.facts["stored_bytes"])

    @property
    def tokens(self) -> float:
        """Estimated number of tokens of the corpus."""
        return self.stored_bytes * self.tokens_per_byte
