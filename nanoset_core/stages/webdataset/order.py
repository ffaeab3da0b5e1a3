"""Define the global order of a shuffled dataset, and how often the contexts of a source occur.

The key of context `c` under `seed` is output number `c` (from 0) of the SplitMix64 generator started at `seed`
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; the finaliser is Stafford's
variant 13). All arithmetic is modulo 2^64::

    z   = seed + (c + 1) * 0x9E3779B97F4A7C15
    z   = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z   = (z ^ (z >> 27)) * 0x94D049BB133111EB
    key = z ^ (z >> 31)

The global order lists the contexts by ascending (key, c). The multiplier is odd and each step can be undone, so no two
contexts share a key. A key depends on nothing but the seed and the number: any process can make any part of the order.

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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, SampleIndexError

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

WINDOW = 1 << 22
"""Ranks that are sorted, and remembered, at once (32 MiB as int64)."""
_CHUNK = 1 << 18  # keys made at once (2 MiB: they stay in the processor's cache)
_BUCKET_BITS = 16  # leading bits of a key that a histogram tells apart
BLOCK_ROWS = 64
_CHUNK_ROWS = 1 << 14  # chosen rows found at once: 64 keys each, 8 MiB
MAX_ROWS = 3_000_000_000
"""Rows of a source that is not taken whole, at most: so that products of two counts stay within 63 bits."""


def context_keys(begin: int, end: int, seed: int) -> NDArray[np.uint64]:
    """Return the keys of the contexts [begin, end excl), uint64, shape (end - begin,)."""
    return keys_of(np.arange(end - begin, dtype=np.uint64), (seed + int(_GAMMA) * begin) % (1 << 64))


def keys_of(numbers: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return the keys of these context numbers: uint64 → uint64, of the same shape."""
    keys = numbers * _GAMMA
    keys += np.uint64((seed + int(_GAMMA)) % (1 << 64))
    keys ^= keys >> np.uint64(30)
    keys *= _MIX_1
    keys ^= keys >> np.uint64(27)
    keys *= _MIX_2
    keys ^= keys >> np.uint64(31)
    return keys


def _chunks(contexts: int, seed: int) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    for begin in range(0, contexts, _CHUNK):
        yield begin, context_keys(begin, min(begin + _CHUNK, contexts), seed)


def global_order(contexts: int, seed: int) -> NDArray[np.int64]:
    """Return the whole order: rank → context number, int64, shape (contexts,). Needs 16 bytes a context."""
    return np.argsort(context_keys(0, contexts, seed))


def ranks(contexts: int, seed: int, begin: int, end: int) -> NDArray[np.int64]:
    """Return `global_order(contexts, seed)[begin:end]` in bounded memory, int64, shape (end - begin,).

    Works in windows of 4 Mi ranks and caches the latest one: asking for the ranks of one shard after the other costs
    one pass over the keys for each window.
    """
    if not 0 <= begin <= end <= contexts:
        raise SampleIndexError("ranks outside the order", found=f"[{begin}, {end})", expected=f"within [0, {contexts})")
    parts = [np.empty(0, dtype=np.int64)]
    for window in range(begin // WINDOW, -(-end // WINDOW)):
        first = window * WINDOW
        parts.append(_window(contexts, seed, window, WINDOW)[max(begin - first, 0) : end - first])
    return np.concatenate(parts)


@lru_cache(maxsize=1)
def _window(contexts: int, seed: int, window: int, size: int) -> NDArray[np.int64]:
    if contexts <= size:
        return global_order(contexts, seed)
    begin, end = window * size, min((window + 1) * size, contexts)
    below = _keys_below(contexts, seed)
    low = int(np.searchsorted(below, begin, side="right")) - 1
    high = int(np.searchsorted(below, end, side="left"))
    keys, numbers = _select(contexts, seed, np.arange(low, high))
    return numbers[np.argsort(keys)][begin - below[low] : end - below[low]]


@lru_cache(maxsize=1)
def _keys_below(contexts: int, seed: int) -> NDArray[np.int64]:
    """Return how many keys have leading bits below each bucket, int64, shape (2^16 + 1,)."""
    below = np.zeros((1 << _BUCKET_BITS) + 1, dtype=np.int64)
    for _, keys in _chunks(contexts, seed):
        below[1:] += np.bincount(_bucket(keys), minlength=1 << _BUCKET_BITS)
    return np.cumsum(below)


def _select(contexts: int, seed: int, buckets: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the keys in these buckets, uint64, shape (keys,), and their context numbers, int64, of the same shape."""
    wanted = np.zeros(1 << _BUCKET_BITS, dtype=bool)
    wanted[buckets] = True
    count = int(np.diff(_keys_below(contexts, seed))[buckets].sum())
    keys, numbers, found = np.empty(count, dtype=np.uint64), np.empty(count, dtype=np.int64), 0
    for begin, chunk in _chunks(contexts, seed):
        chosen = np.flatnonzero(wanted[_bucket(chunk)])
        keys[found : found + len(chosen)] = chunk[chosen]
        numbers[found : found + len(chosen)] = chosen + begin
        found += len(chosen)
    return keys, numbers


def keys_at(contexts: int, seed: int, wanted: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the keys of the contexts at these ranks, each in [0, contexts): int64 → uint64, shape (ranks,).

    Makes one pass over all keys for the counts, and one for each 4 Mi keys that share their leading bits with a wanted
    one; the order itself is not made.
    """
    below = _keys_below(contexts, seed)
    bucket = np.searchsorted(below, wanted, side="right") - 1
    buckets, sizes = np.unique(bucket), np.diff(below)
    keys = np.empty(len(wanted), dtype=np.uint64)
    # runs of wanted buckets that hold about a window of keys together
    run = np.cumsum(sizes[buckets]) // WINDOW
    for number in np.unique(run):
        own = buckets[run == number]
        found = np.sort(_select(contexts, seed, own)[0])
        first = np.cumsum(sizes[own]) - sizes[own]
        mine = np.flatnonzero(np.isin(bucket, own))
        keys[mine] = found[first[np.searchsorted(own, bucket[mine])] + wanted[mine] - below[bucket[mine]]]
    return keys


def ranks_of(numbers: NDArray[np.int64], contexts: int, seed: int) -> NDArray[np.int64]:
    """Return the ranks of contexts in the order, int64, shape (numbers,) both; makes one pass over all keys."""
    keys = keys_of(np.asarray(numbers, dtype=np.int64).astype(np.uint64), seed)
    wanted = np.sort(keys)
    reached = np.zeros(len(wanted) + 1, dtype=np.int64)  # keys from each wanted one up to the next
    for _, chunk in _chunks(contexts, seed):
        reached += np.bincount(np.searchsorted(wanted, chunk, side="right"), minlength=len(reached))
    found: NDArray[np.int64] = np.cumsum(reached)[np.searchsorted(wanted, keys)]
    return found


def _bucket(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (keys >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)


_Method = Callable[[Any, NDArray[np.int64]], NDArray[Any]]


def _by_chunks(work: _Method) -> _Method:
    """Let a method work on bounded parts of its values, int64, shape (values,)."""

    @wraps(work)
    def whole(self: Any, values: NDArray[np.int64]) -> NDArray[Any]:
        begins = range(0, len(values) or 1, _CHUNK_ROWS)
        return np.concatenate([work(self, values[at : at + _CHUNK_ROWS]) for at in begins])

    return whole


@dataclass(frozen=True, slots=True)
class Choice:
    """`chosen` of `rows` rows."""

    rows: int
    chosen: int
    """Rows chosen, 0 <= chosen <= rows."""
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.chosen <= self.rows or (0 < self.chosen < self.rows and self.rows > MAX_ROWS):
            found, remedy = f"{self.chosen:,} of {self.rows:,}", "use a whole number as frequency, or split the corpus"
            what, expected = "too many rows to choose from", f"at most {MAX_ROWS:,} rows"
            raise ConfigError(what, found=found, expected=expected, remedy=remedy)

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
    """
    shares = {name: Fraction(weight) / sum(map(Fraction, weights.values())) for name, weight in weights.items()}
    for name in weights:
        if not rows[name]:
            remedy = "add text to it, leave it out, or use tail: pad"
            raise ConfigError("a corpus with a weight does not fill one context", where=name, remedy=remedy)
    total = Fraction(contexts) if contexts is not None else min(rows[name] / shares[name] for name in weights)
    return {name: float(total * shares[name] / rows[name]) for name in weights}
