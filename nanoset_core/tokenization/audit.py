"""A seeded share of every shard's documents, encoded by the reference too while the shard is made."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import InputError
from nanoset_core.tokenization.bpe import Encoded, Engine
from nanoset_core.tokenization.bpe.reference import is_panic

SHARE = 0.001
"""Of the documents, by default."""
LEAST = 4
"""The first documents of each shard, which are compared too unless they are long."""
_LONG = 1 << 12  # characters: some ten milliseconds of the reference's time in all
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place in which an engine and the reference differ."""

    document: int
    """Within the batch."""
    position: int
    """Number of the first token that differs."""
    found: tuple[int, ...]
    """Tokens of the engine from there on, a few."""
    expected: tuple[int, ...]
    """Those of the reference."""
    failure: str = ""
    """What the engine failed with, where it gave no tokens at all."""

    def __str__(self) -> str:
        if self.failure:
            return f"it failed: {self.failure}"
        return f"token {self.position:,} on is {_listed(self.found)} instead of {_listed(self.expected)}"


def _listed(tokens: tuple[int, ...]) -> str:
    return ", ".join(map(str, tokens)) + ", …" if tokens else "nothing"


class WrongTokensError(Exception):
    """An engine gave other tokens than the reference for a document."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(str(difference))
        self.difference = difference


class Audit:
    """Encodes batches of one shard, and compares some of the documents with the reference."""

    def __init__(self, engine: Engine, reference: Engine | None, share: float, seed: str) -> None:
        """reference: None where the engine is the reference. seed: decides, with the share, which documents."""
        self._engine, self._reference = engine, reference
        self._share = share if reference is not None else 0.0
        self._seed = np.uint64(int(hashlib.sha256(seed.encode()).hexdigest()[:16], 16))
        self._seen = 0
        self.documents = 0
        """How many were compared."""

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode the next batch.

        Raises:
            WrongTokensError: the reference gives other tokens for one of the documents that were compared.
            InputError: a text is not valid Unicode (a lone surrogate).
        """
        try:
            encoded = self._engine.encode(texts)
        except BaseException as error:
            is_ours = self._reference is None or isinstance(error, InputError | MemoryError)
            if is_ours or not (isinstance(error, Exception) or is_panic(error)):
                raise
            raise WrongTokensError(Difference(0, 0, (), (), repr(error)[:500])) from error
        if self._share > 0 and self._reference is not None:
            self._compare(texts, encoded, self._reference)
        self._seen += len(texts)
        return encoded

    def _compare(self, texts: Sequence[str], encoded: Encoded, reference: Engine) -> None:
        chosen = self._chosen(texts)
        if not chosen:
            return
        expected = reference.encode([texts[number] for number in chosen])
        ends = np.cumsum(encoded.lengths)
        lists = np.split(expected.ids, np.cumsum(expected.lengths)[:-1])
        for number, theirs in zip(chosen, lists, strict=True):
            ours = encoded.ids[ends[number] - encoded.lengths[number] : ends[number]]
            if not np.array_equal(ours, theirs):
                raise WrongTokensError(_difference(number, ours, theirs))
        self.documents += len(chosen)

    def _chosen(self, texts: Sequence[str]) -> list[int]:
        numbers = np.arange(self._seen, self._seen + len(texts), dtype=np.uint64)
        chosen: list[int] = np.flatnonzero(_mixed(numbers + self._seed) < self._share).tolist()
        first = range(min(max(0, LEAST - self._seen), len(texts)))
        return sorted({*chosen, *(number for number in first if len(texts[number]) <= _LONG)})


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.float64]:
    """float64 in [0, 1), by the finalizer of splitmix64."""
    with np.errstate(over="ignore"):
        mixed = numbers * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) / (1 << 53)


def _difference(document: int, ours: NDArray[np.int32], theirs: NDArray[np.int32]) -> Difference:
    shared = min(len(ours), len(theirs))
    apart = np.flatnonzero(ours[:shared] != theirs[:shared])
    position = int(apart[0]) if len(apart) else shared
    shown = slice(position, position + _SHOWN)
    return Difference(document, position, tuple(ours[shown].tolist()), tuple(theirs[shown].tolist()))
