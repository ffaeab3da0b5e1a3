"""How many documents of a dataset are copies of another, by a hash of their tokens.

The hash of a document is the sum, modulo 2^64, of a mixing of each token with its place in the document. It is added up
over chunks of the flat token array: there is no loop over documents, and no copy of them.

Memory stays bounded by keeping only the hashes below a limit: all copies of one document have one hash, so the share of
copies among those kept is an unbiased estimate, and exact where all are kept. What is kept of the parts of a dataset
can be put together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.indexed.layout import Tokens

CHUNK_TOKENS = 1 << 19
MOST_HASHES = 1 << 22
_PLACE_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MOST = (1 << 64) - 1


class Sample(NamedTuple):
    """The hashes of some documents that are below a limit."""

    unique: NDArray[np.uint64]
    """Each once, ascending."""
    kept: int
    """How many there are with their repetitions."""


def hash_limit(sequences: int, most_hashes: int = MOST_HASHES) -> int:
    """Return the greatest hash to keep, so that about `most_hashes` of the sequences' hashes are kept, or all."""
    return _MOST if sequences <= most_hashes else _MOST * most_hashes // sequences


def joined(samples: Sequence[Sample]) -> Sample:
    """Put together what was kept of the parts of a dataset."""
    unique = np.unique(np.concatenate([np.empty(0, np.uint64), *(sample.unique for sample in samples)]))
    return Sample(unique, sum(sample.kept for sample in samples))


def duplicate_share(sample: Sample) -> float:
    """Return the share of the sequences with tokens that repeat an earlier one, 0 to 1."""
    return 1.0 - len(sample.unique) / sample.kept if sample.kept else 0.0


class SequenceHashes:
    """Hashes of the sequences that have tokens; their tokens are given one chunk after the other.

    Args:
        lengths: int32, shape (sequences,): tokens of each.
        limit: Greatest hash that is kept.
        chunk_tokens: Most tokens of a chunk.
    """

    def __init__(self, lengths: NDArray[np.int32], limit: int, chunk_tokens: int = CHUNK_TOKENS) -> None:
        filled = lengths[lengths > 0]
        self._ends = np.cumsum(filled, dtype=np.int64)
        self._begins = self._ends - filled
        self._ramp = _ramp(chunk_tokens)
        self._limit, self._kept = np.uint64(limit), [np.empty(0, np.uint64)]
        self._begin, self._carried = 0, np.zeros(1, np.uint64)

    def add(self, tokens: Tokens) -> None:
        """Add the next tokens; those after the last sequence, which a damaged file may have, are left out."""
        begin, end = self._begin, self._begin + len(tokens)
        first, whole = np.searchsorted(self._ends, [begin, end], side="right")
        begins = self._begins[first : np.searchsorted(self._begins, end)]
        if not len(begins):
            return
        tokens = tokens[: int(self._ends[first + len(begins) - 1]) - begin]
        starts = np.maximum(begins - begin, 0)
        values = tokens.astype(np.uint64)
        # Token k of the chunk is token k + (begin - begins[i]) of its sequence i.
        values += self._ramp[: len(tokens)]
        values += np.repeat((begin - begins).astype(np.uint64) * _PLACE_FACTOR, np.diff(starts, append=len(tokens)))
        sums = np.add.reduceat(_mixed(values), starts)
        sums[:1] += self._carried
        hashes, self._carried = sums[: whole - first], sums[whole - first :]
        if not len(self._carried):
            self._carried = np.zeros(1, np.uint64)
        self._kept.append(hashes[hashes <= self._limit])
        self._begin = end

    def sample(self) -> Sample:
        """Return what was kept."""
        kept = np.concatenate(self._kept)
        return Sample(np.unique(kept), len(kept))


@cache
def _ramp(tokens: int) -> NDArray[np.uint64]:
    """Return the factor of each place, uint64[tokens]."""
    return np.arange(tokens, dtype=np.uint64) * _PLACE_FACTOR


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of every value in place (splitmix64)."""
    for shift, factor in ((32, 0xBF58476D1CE4E5B9), (29, 0x94D049BB133111EB)):
        values ^= values >> np.uint64(shift)
        values *= np.uint64(factor)
    values ^= values >> np.uint64(32)
    return values
