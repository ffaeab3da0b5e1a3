"""Define the global order of a shuffled dataset, and how often the contexts of a source occur.

The key of context `c` under `seed` is output number `c` (from 0) of the SplitMix64 generator
started at `seed` (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
2014; the finaliser is Stafford's variant 13). All arithmetic is modulo 2^64::

    z   = seed + (c + 1) * 0x9E3779B97F4A7C15
    z   = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z   = (z ^ (z >> 27)) * 0x94D049BB133111EB
    key = z ^ (z >> 31)

The global order lists the contexts by ascending (key, c). The multiplier is odd and each step can
be undone, so no two contexts share a key. A key depends on nothing but the seed and the number: any
process can make any part of the order.

A frequency f gives floor(f * rows + 1/2) contexts of `rows` rows: floor(f) times all of them, then
n chosen ones. Of each 64 neighbouring rows, `64 * n / rows` are chosen: those with the least
SplitMix64 keys. The number is rounded so that the sums stay exact and, by a seeded offset, each row
has the same chance. Every chosen row is found in constant time and memory, in ascending order, so
that engines read the source from start to end.

The rule is DCLM's (OpenLM `tokenize_shuffle.py`: each context floor(f) times and once more with the
chance of the rest), except that its counts are exact and the same in every run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, SampleIndexError

_Rows = TypeVar("_Rows", bound=np.generic)

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

WINDOW = 1 << 22
"""Ranks that are sorted, and cached, at once (32 MiB as int64)."""
_CHUNK = 1 << 18
"""Keys computed at once: 2 MiB, which stay in the processor's cache."""
_BUCKET_BITS = 16
"""Leading bits of a key that decide its bucket in a histogram of keys."""
_N_BUCKETS = 1 << _BUCKET_BITS
BLOCK_ROWS = 64
"""Neighbouring rows among which a choice is made."""
_CHUNK_ROWS = 1 << 14
"""Chosen rows looked up at once: each needs 64 keys, 8 MiB in all."""
MAX_ROWS = 3_000_000_000
"""Most rows of a source of which only some are chosen, so that products of two counts stay within
63 bits.
"""


def context_keys(start: int, stop: int, seed: int) -> NDArray[np.uint64]:
    """Return the keys of the contexts [start, stop), uint64, shape (stop - start,)."""
    numbers = np.arange(stop - start, dtype=np.uint64)
    return keys_of(numbers, (seed + int(_GAMMA) * start) % (1 << 64))


def keys_of(numbers: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return the keys of these context numbers: uint64 → uint64, of the same shape."""
    # In place, since a chunk of keys just fits the processor's cache.
    keys = numbers * _GAMMA
    keys += np.uint64((seed + int(_GAMMA)) % (1 << 64))
    keys ^= keys >> np.uint64(30)
    keys *= _MIX_1
    keys ^= keys >> np.uint64(27)
    keys *= _MIX_2
    keys ^= keys >> np.uint64(31)
    return keys


def _key_chunks(contexts: int, seed: int) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Yield the keys of all contexts in chunks: (number of the first context, keys)."""
    for start in range(0, contexts, _CHUNK):
        stop = min(start + _CHUNK, contexts)
        yield start, context_keys(start, stop, seed)


def global_order(contexts: int, seed: int) -> NDArray[np.int64]:
    """Return the whole order: rank → context number, int64, shape (contexts,). Needs 16 bytes a
    context.
    """
    return np.argsort(context_keys(0, contexts, seed))


def ranks(contexts: int, seed: int, start: int, stop: int) -> NDArray[np.int64]:
    """Return `global_order(contexts, seed)[start:stop]` in bounded memory, int64, shape (stop -
    start,).

    Works in windows of 4 Mi ranks and caches the latest one, so that reading the ranks shard by
    shard costs one pass over the keys for each window.

    Raises:
        SampleIndexError: The ranks are outside the order.
    """
    if not 0 <= start <= stop <= contexts:
        raise SampleIndexError(
            "ranks outside the order",
            found=f"[{start}, {stop})",
            expected=f"within [0, {contexts})",
        )
    parts = [np.empty(0, dtype=np.int64)]
    for window in range(start // WINDOW, -(-stop // WINDOW)):
        first_rank = window * WINDOW
        window_ranks = _window(contexts, seed, window, WINDOW)
        parts.append(window_ranks[max(start - first_rank, 0) : stop - first_rank])
    return np.concatenate(parts)


@lru_cache(maxsize=1)
def _window(contexts: int, seed: int, window: int, size: int) -> NDArray[np.int64]:
    """Return the context numbers of one window of ranks, int64, shape (at most `size`,)."""
    if contexts <= size:
        return global_order(contexts, seed)
    start = window * size
    stop = min(start + size, contexts)

    # The buckets of keys that contain the window, and a few ranks before and after it.
    keys_below = _keys_below(contexts, seed)
    first_bucket = int(np.searchsorted(keys_below, start, side="right")) - 1
    stop_bucket = int(np.searchsorted(keys_below, stop, side="left"))
    keys, numbers = _select(contexts, seed, np.arange(first_bucket, stop_bucket))

    first_rank = keys_below[first_bucket]
    return numbers[np.argsort(keys)][start - first_rank : stop - first_rank]


@lru_cache(maxsize=1)
def _keys_below(contexts: int, seed: int) -> NDArray[np.int64]:
    """Return how many keys are in lower buckets than each one, int64, shape (n_buckets + 1,)."""
    counts = np.zeros(_N_BUCKETS + 1, dtype=np.int64)
    for _, keys in _key_chunks(contexts, seed):
        counts[1:] += np.bincount(_bucket(keys), minlength=_N_BUCKETS)
    return np.cumsum(counts)


def _select(
    contexts: int,
    seed: int,
    buckets: NDArray[np.int64],
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the keys in these buckets, uint64, shape (keys,), and their context numbers, int64, of
    the same shape.
    """
    is_selected = np.zeros(_N_BUCKETS, dtype=bool)
    is_selected[buckets] = True
    bucket_sizes = np.diff(_keys_below(contexts, seed))
    n_keys = int(bucket_sizes[buckets].sum())

    keys = np.empty(n_keys, dtype=np.uint64)
    numbers = np.empty(n_keys, dtype=np.int64)
    filled = 0
    for start, chunk in _key_chunks(contexts, seed):
        chosen = np.flatnonzero(is_selected[_bucket(chunk)])
        stop = filled + len(chosen)
        keys[filled:stop] = chunk[chosen]
        numbers[filled:stop] = chosen + start
        filled = stop
    return keys, numbers


def keys_at(contexts: int, seed: int, ranks: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the keys of the contexts at these ranks, each in [0, contexts): int64 → uint64, shape
    (ranks,).

    Makes one pass over all keys for the counts, and one for each 4 Mi keys that share a bucket with
    a requested one. The order itself is not computed.
    """
    keys_below = _keys_below(contexts, seed)
    bucket_sizes = np.diff(keys_below)
    bucket_of_rank = np.searchsorted(keys_below, ranks, side="right") - 1  # (ranks,)
    buckets = np.unique(bucket_of_rank)

    # Take the buckets in batches that have about a window of keys together.
    batch_of_bucket = np.cumsum(bucket_sizes[buckets]) // WINDOW
    keys = np.empty(len(ranks), dtype=np.uint64)
    for batch in np.unique(batch_of_bucket):
        batch_buckets = buckets[batch_of_bucket == batch]
        batch_sizes = bucket_sizes[batch_buckets]
        first_positions = np.cumsum(batch_sizes) - batch_sizes
        batch_keys, _ = _select(contexts, seed, batch_buckets)
        batch_keys.sort()

        # The ranks whose keys are in this batch, and the position of each among the sorted keys.
        in_batch = np.flatnonzero(np.isin(bucket_of_rank, batch_buckets))
        bucket = bucket_of_rank[in_batch]
        position_in_bucket = ranks[in_batch] - keys_below[bucket]
        positions = first_positions[np.searchsorted(batch_buckets, bucket)] + position_in_bucket
        keys[in_batch] = batch_keys[positions]
    return keys


def ranks_of(numbers: NDArray[np.int64], contexts: int, seed: int) -> NDArray[np.int64]:
    """Return the ranks of contexts in the order, int64, shape (numbers,) both; makes one pass over
    all keys.
    """
    keys = keys_of(np.asarray(numbers, dtype=np.int64).astype(np.uint64), seed)
    sorted_keys = np.sort(keys)

    # A key's rank is the number of keys below it: count those between each requested one and the
    # next.
    counts = np.zeros(len(sorted_keys) + 1, dtype=np.int64)
    for _, chunk in _key_chunks(contexts, seed):
        interval = np.searchsorted(sorted_keys, chunk, side="right")
        counts += np.bincount(interval, minlength=len(counts))
    rank_of_sorted: NDArray[np.int64] = np.cumsum(counts)
    return rank_of_sorted[np.searchsorted(sorted_keys, keys)]


def _bucket(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (keys >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)


def _in_chunks(
    work: Callable[[NDArray[np.int64]], NDArray[_Rows]],
    values: NDArray[np.int64],
) -> NDArray[_Rows]:
    """Apply a function to bounded parts of its values, int64, shape (values,), and concatenate the
    results.
    """
    starts = range(0, max(len(values), 1), _CHUNK_ROWS)
    return np.concatenate([work(values[start : start + _CHUNK_ROWS]) for start in starts])


@dataclass(frozen=True, slots=True)
class Choice:
    """`chosen` of `rows` rows, spread evenly and chosen at random within each block of 64."""

    rows: int
    chosen: int
    """Rows chosen, 0 <= chosen <= rows."""
    seed: int

    def __post_init__(self) -> None:
        is_partial = 0 < self.chosen < self.rows
        if not 0 <= self.chosen <= self.rows or (is_partial and self.rows > MAX_ROWS):
            raise ConfigError(
                "too many rows to choose from",
                found=f"{self.chosen:,} of {self.rows:,}",
                expected=f"at most {MAX_ROWS:,} rows",
                remedy="use a whole number as frequency, or split the corpus",
            )

    @property
    def _offset(self) -> int:
        """Shifts the rounding of the blocks' shares, so that each row has the same chance over all
        seeds.
        """
        return self.seed % self.rows if self.rows else 0

    def row(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the chosen rows of numbers in [0, chosen), ascending with the number: int64, shape
        (rows,) both.
        """
        if self.chosen == self.rows:
            return numbers
        return _in_chunks(self._row, numbers)

    def _row(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        # The least stop of a block with (stop * chosen + offset) // rows > number
        stop = -((self._offset - (numbers + 1) * self.rows) // self.chosen)
        block = (stop - 1) // BLOCK_ROWS
        number_in_block = numbers - self._chosen_before(block)
        # (n, 64) -> (n,): the first row of the block at which more rows than that are chosen
        chosen_so_far = np.cumsum(self._is_chosen(block), axis=1)
        row_in_block = np.argmax(chosen_so_far > number_in_block[:, None], axis=1)
        rows: NDArray[np.int64] = block * BLOCK_ROWS + row_in_block
        return rows

    def _chosen_before(self, block: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many rows before each block are chosen, int64, shape (blocks,) both."""
        return (np.minimum(block * BLOCK_ROWS, self.rows) * self.chosen + self._offset) // self.rows

    def _is_chosen(self, block: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which rows of these blocks are chosen: int64, shape (blocks,) → bool, shape
        (blocks, 64).
        """
        rows = block[:, None] * BLOCK_ROWS + np.arange(BLOCK_ROWS)
        keys = keys_of(rows.astype(np.uint64), self.seed)
        keys[rows >= self.rows] = np.iinfo(np.uint64).max  # the last block may have fewer rows
        count = self._chosen_before(block + 1) - self._chosen_before(block)
        # (n, 64) -> (n, 1): the greatest key that is chosen; the keys of all rows are different
        last_place = np.maximum(count - 1, 0)[:, None]
        greatest_key = np.take_along_axis(np.sort(keys, axis=1), last_place, axis=1)
        return (keys <= greatest_key) & (count > 0)[:, None]

    def number(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of chosen rows, the inverse of `row`: int64, shape (rows,) both."""
        if self.chosen == self.rows:
            return rows
        return _in_chunks(self._number, rows)

    def _number(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        block = rows // BLOCK_ROWS
        row_in_block = rows % BLOCK_ROWS
        # (n, 64): rows of the block that are chosen, up to and including each one
        chosen_so_far = np.cumsum(self._is_chosen(block), axis=1, dtype=np.int64)
        number_in_block = chosen_so_far[np.arange(len(rows)), row_in_block] - 1
        return self._chosen_before(block) + number_in_block

    def holds(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each of these rows is chosen: int64, shape (rows,) → bool, shape (rows,)."""
        if self.chosen in (0, self.rows):
            return np.full(len(rows), self.chosen > 0)
        return _in_chunks(self._holds, rows)

    def _holds(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        is_chosen = self._is_chosen(rows // BLOCK_ROWS)
        return is_chosen[np.arange(len(rows)), rows % BLOCK_ROWS]


def sampled_contexts(rows: int, frequency: float) -> tuple[int, int]:
    """Return how often all of `rows` occur, and how many of them occur once more: frequency * rows
    in all, rounded.

    The frequency counts as the decimal number that it is written as: 0.3 of 5 rows are 1.5, and so
    2.
    """
    exact_frequency = Fraction(repr(float(frequency)))
    contexts = math.floor(exact_frequency * rows + Fraction(1, 2))
    repeats = math.floor(frequency)
    return repeats, contexts - repeats * rows


def choice_seed(seed: int, name: str) -> int:
    """Return the seed of a source's choice, which depends on the seed of the order and the source's
    name.
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def frequencies_of_weights(
    rows: Mapping[str, int],
    weights: Mapping[str, float],
    contexts: int | None,
) -> dict[str, float]:
    """Return frequencies that give each source its share of the contexts.

    Args:
        rows: Name → contexts of one pass.
        weights: Name → weight, above 0; they need no sum.
        contexts: Contexts in all. None: as many as repeat no source, so that the scarcest occurs
            just once.

    Raises:
        ConfigError: A source with a weight does not fill one context.
    """
    for name in weights:
        if not rows[name]:
            raise ConfigError(
                "a corpus with a weight does not fill one context",
                where=name,
                remedy="add text to it, leave it out, or use tail: pad",
            )
    exact_weights = {name: Fraction(weight) for name, weight in weights.items()}
    sum_of_weights = sum(exact_weights.values())
    shares = {name: weight / sum_of_weights for name, weight in exact_weights.items()}
    total = min(rows[name] / shares[name] for name in weights)
    if contexts is not None:
        total = Fraction(contexts)
    return {name: float(total * shares[name] / rows[name]) for name in weights}
