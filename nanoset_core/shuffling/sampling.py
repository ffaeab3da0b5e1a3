"""Choose how often the contexts of a source occur: whole repetitions, and an even, seeded choice of some once more.

A frequency f gives floor(f * rows + 1/2) contexts of `rows`: floor(f) times all of them, then n chosen ones. The
choice takes `64 * n / rows` of each 64 neighbouring rows, rounded so that the sums stay exact and, by a seeded
offset, each row has the same chance; within the 64 those with the least SplitMix64 keys. Every chosen row is found in
constant time and memory, in ascending order, so that engines read the source from front to back.

The rule is DCLM's (OpenLM `tokenize_shuffle.py`: each context floor(f) times and once more with the chance of the
rest), except that its counts are exact and the same in every run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError
from nanoset_core.shuffling.order import keys_of

BLOCK_ROWS = 64
_CHUNK = 1 << 14  # chosen rows found at once: 64 keys each, 8 MiB
MAX_ROWS = 3_000_000_000
"""Rows of a source that is not taken whole, at most: so that products of two counts stay within 63 bits."""


def _by_chunks(
    work: Callable[[Any, NDArray[np.int64]], NDArray[Any]],
) -> Callable[[Any, NDArray[np.int64]], NDArray[Any]]:
    """Let a method work on bounded parts of its values, int64, shape (values,)."""

    @wraps(work)
    def whole(self: Any, values: NDArray[np.int64]) -> NDArray[Any]:
        return np.concatenate([work(self, values[at : at + _CHUNK]) for at in range(0, len(values) or 1, _CHUNK)])

    return whole


@dataclass(frozen=True, slots=True)
class Choice:
    """`chosen` of `rows` rows."""

    rows: int
    """Rows to choose from."""
    chosen: int
    """Rows chosen, 0 <= chosen <= rows."""
    seed: int
    """Of this choice, 64 bits."""

    def __post_init__(self) -> None:
        if not 0 <= self.chosen <= self.rows or (0 < self.chosen < self.rows and self.rows > MAX_ROWS):
            what, remedy = "too many rows to choose from", "use a whole number as frequency, or split the corpus"
            expected = f"at most {MAX_ROWS:,} rows"
            raise ConfigError(what, found=f"{self.chosen:,} of {self.rows:,}", expected=expected, remedy=remedy)

    @property
    def _offset(self) -> int:
        return self.seed % self.rows if self.rows else 0

    @_by_chunks
    def row(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the chosen rows of numbers in [0, chosen), ascending with the number: int64, shape (rows,) both."""
        if self.chosen == self.rows:
            return numbers
        # the least end e of a block with (e * chosen + offset) // rows > number
        end = -((self._offset - (numbers + 1) * self.rows) // self.chosen)
        block = (end - 1) // BLOCK_ROWS
        place = numbers - self._chosen_before(block)
        # (n, 64) -> (n,): the first row whose count of chosen rows so far exceeds the place
        found: NDArray[np.int64] = np.argmax(np.cumsum(self._chosen_of(block), axis=1) > place[:, None], axis=1)
        return block * BLOCK_ROWS + found

    def _chosen_before(self, block: NDArray[np.int64]) -> NDArray[np.int64]:
        return (np.minimum(block * BLOCK_ROWS, self.rows) * self.chosen + self._offset) // self.rows

    def _chosen_of(self, block: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which rows of these blocks are chosen: int64, shape (blocks,) → bool, shape (blocks, 64)."""
        rows = block[:, None] * BLOCK_ROWS + np.arange(BLOCK_ROWS)
        keys = keys_of(rows.astype(np.uint64), self.seed)
        keys[rows >= self.rows] = np.iinfo(np.uint64).max
        count = self._chosen_before(block + 1) - self._chosen_before(block)
        # (n, 64) -> (n, 1): the greatest key that is chosen; keys of rows are all different
        last = np.take_along_axis(np.sort(keys, axis=1), np.maximum(count - 1, 0)[:, None], axis=1)
        return (keys <= last) & (count > 0)[:, None]

    @_by_chunks
    def number(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of chosen rows, the inverse of `row`: int64, shape (rows,) both."""
        if self.chosen == self.rows:
            return rows
        block, place = rows // BLOCK_ROWS, rows % BLOCK_ROWS
        upto = np.cumsum(self._chosen_of(block), axis=1, dtype=np.int64)[np.arange(len(rows)), place]
        return self._chosen_before(block) + upto - 1

    @_by_chunks
    def holds(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each of these rows is chosen: int64, shape (rows,) → bool, shape (rows,)."""
        if self.chosen in (0, self.rows):
            return np.full(len(rows), self.chosen > 0)
        return self._chosen_of(rows // BLOCK_ROWS)[np.arange(len(rows)), rows % BLOCK_ROWS]


def sampled_contexts(rows: int, frequency: float) -> tuple[int, int]:
    """Return how often all of `rows` occur, and how many of them occur once more: frequency * rows in all, rounded.

    The frequency counts as the decimal number that it is written as: 0.3 of 5 rows are 1.5, and so 2.
    """
    repeats = math.floor(frequency)
    return repeats, math.floor(Fraction(repr(float(frequency))) * rows + Fraction(1, 2)) - repeats * rows


def choice_seed(seed: int, name: str) -> int:
    """Return the seed of a source's choice, which depends on the seed of the order and the source's name."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big")


def frequencies_of_weights(
    rows: Mapping[str, int], weights: Mapping[str, float], contexts: int | None
) -> dict[str, float]:
    """Return frequencies that give each source its share of the contexts.

    Args:
        rows: name → contexts of one pass.
        weights: name → weight, above 0; they need no sum.
        contexts: wanted in all, or None: as many as repeat no source, so that the scarcest occurs just once.

    Raises:
        ConfigError: a source that has a weight has no contexts.
    """
    shares = {name: Fraction(weight) / sum(map(Fraction, weights.values())) for name, weight in weights.items()}
    for name in weights:
        if not rows[name]:
            remedy = "add text to it, leave it out, or use tail: pad"
            raise ConfigError("a corpus with a weight does not fill one context", where=name, remedy=remedy)
    total = Fraction(contexts) if contexts is not None else min(rows[name] / shares[name] for name in weights)
    return {name: float(total * shares[name] / rows[name]) for name in weights}
