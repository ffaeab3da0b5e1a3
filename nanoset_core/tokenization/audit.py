"""A seeded share of every shard's documents, encoded by the reference too while the shard is made."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import InputError
from nanoset_core.tokenization.bpe.reference import Encoded, Engine, WrongTokensError, panics_as_errors

SHARE = 0.001
"""Of the documents, by default."""
LEAST = 4
"""The first documents of each shard, which are compared too unless they are long."""
_LONG = 1 << 12  # characters: some ten milliseconds of the reference's time in all
_SHOWN = 4


class Audit:
    """Encodes batches of one shard, and compares some of the documents with the engine's reference."""

    def __init__(self, engine: Engine, share: float, seed: str) -> None:
        """Together, share (0 to 1) and seed decide which documents are compared."""
        self._engine, self._share = engine, share
        self._seed = np.uint64(int(hashlib.sha256(seed.encode()).hexdigest()[:16], 16))
        self._seen = 0
        self.documents = 0
        """How many were compared."""

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode the next batch.

        Raises:
            WrongTokensError: The reference gives other tokens for one of the documents, or the engine failed.
            InputError: A text is not valid Unicode (a lone surrogate).
        """
        try:
            with panics_as_errors():
                encoded = self._engine.encode(texts)
        except (InputError, MemoryError):
            raise
        except Exception as error:
            if self._engine.reference is None:
                raise
            raise WrongTokensError(f"it failed: {repr(error)[:500]}") from error
        if self._share > 0 and self._engine.reference is not None:
            self._compare(texts, encoded, self._engine.reference)
        self._seen += len(texts)
        return encoded

    def _compare(self, texts: Sequence[str], encoded: Encoded, reference: Engine) -> None:
        chosen = self._chosen(texts)
        expected = reference.encode([texts[number] for number in chosen])
        ends, theirs_end = np.cumsum(encoded.lengths), 0
        for number, length in zip(chosen, expected.lengths.tolist(), strict=True):
            ours = encoded.ids[ends[number] - encoded.lengths[number] : ends[number]]
            theirs = expected.ids[theirs_end : theirs_end + length]
            theirs_end += length
            if not np.array_equal(ours, theirs):
                raise WrongTokensError(_difference(ours, theirs), number)
        self.documents += len(chosen)

    def _chosen(self, texts: Sequence[str]) -> list[int]:
        """Return the numbers of the documents to compare, whatever the batches."""
        numbers = np.arange(self._seen, self._seen + len(texts), dtype=np.uint64)
        chosen: list[int] = np.flatnonzero(_mixed(numbers + self._seed) < self._share).tolist()
        first = range(min(max(0, LEAST - self._seen), len(texts)))
        return sorted({*chosen, *(number for number in first if len(texts[number]) <= _LONG)})


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return float64 in [0, 1), by the finalizer of splitmix64."""
    with np.errstate(over="ignore"):
        mixed = numbers * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) / (1 << 53)


def _difference(ours: NDArray[np.int32], theirs: NDArray[np.int32]) -> str:
    """Describe the first place in which two lists of tokens differ."""
    shared = min(len(ours), len(theirs))
    position = int(np.argmax(np.append(ours[:shared] != theirs[:shared], True)))
    shown = [one[position : position + _SHOWN].tolist() for one in (ours, theirs)]
    here, there = (", ".join(map(str, tokens)) + ", …" if tokens else "nothing" for tokens in shown)
    return f"token {position:,} on is {here} instead of {there}"
