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

A frequency f gives floor(f * n + 1/2) contexts of a source of n rows: floor(f) times all rows, and
once more as many chosen rows as are still missing. With f = 2.3 and n = 10 there are 23 contexts:
each row twice, and 3 chosen ones once more.

Which rows are chosen is decided for each block of 64 neighbouring rows. A block gets its share,
rounded so that the sums stay exact, and in it the rows with the least SplitMix64 keys are chosen.
With 100 rows of which 30 are chosen, the first block has 19 or 20 of them (64 * 30 / 100 = 19.2),
and the second one the others. A seeded offset decides which way is rounded, so that each row has
the same chance over all seeds. So a chosen row is found in constant time and memory, and chosen
rows are in ascending order, which lets engines read the source from start to end.

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
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, SampleIndexError

_Rows = TypeVar("_Rows", bound=np.generic)

# The constants of SplitMix64.
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
"""Greatest number of rows from which some can be chosen.

It keeps the product of two counts of rows below 2**63.
"""


def context_keys(start: int, stop: int, seed: int) -> NDArray[np.uint64]:
    """Return the keys of consecutive contexts (rows of tokens), by which they are shuffled.

    Args:
        start: Number of the first context.
        stop: Number after the last context.
        seed: Seed of the order.

    Returns:
        uint64, shape (stop - start,); no two contexts have the same key.
    """
    # Key start + i under `seed` is key i under a seed that is moved by `start` steps.
    numbers = np.arange(stop - start, dtype=np.uint64)
    return keys_of(numbers, (seed + int(_GAMMA) * start) % (1 << 64))


def keys_of(numbers: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return the key of each context (row of tokens); the shuffled order sorts by these keys.

    A key is an output of the generator SplitMix64; the module has its formula.

    Args:
        numbers: Numbers of the contexts, uint64, of any shape.
        seed: Seed of the order.

    Returns:
        uint64, of the same shape.
    """
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
    """Yield the keys of all contexts in chunks, each with the number of its first context."""
    for start in range(0, contexts, _CHUNK):
        stop = min(start + _CHUNK, contexts)
        yield start, context_keys(start, stop, seed)


def global_order(contexts: int, seed: int) -> NDArray[np.int64]:
    """Return all contexts, which are rows of tokens, in their shuffled order.

    This needs 16 bytes of memory a context. See `ranks` for large data sets.

    Args:
        contexts: Number of contexts.
        seed: Seed of the order.

    Returns:
        int64, shape (contexts,): number of the context at each position, such as [2, 0, 3, 1].
    """
    return np.argsort(context_keys(0, contexts, seed))


def ranks(contexts: int, seed: int, start: int, stop: int) -> NDArray[np.int64]:
    """Return which contexts (rows of tokens) are at the ranks [start, stop) of the shuffled order.

    This is `global_order(contexts, seed)[start:stop]`, in bounded memory. Each 4 Mi ranks take a
    pass over the keys of all contexts. The last ones are cached for the next call.

    Args:
        contexts: Number of contexts in the order.
        seed: Seed of the order.
        start: First rank.
        stop: Rank after the last one.

    Returns:
        Shape (stop - start,).

    Raises:
        SampleIndexError: The ranks are outside the order.
    """
    if not 0 <= start <= stop <= contexts:
        raise SampleIndexError(
            "ranks outside the order",
            found=f"[{start}, {stop})",
            expected=f"within [0, {contexts})",
        )
    # The order is computed in windows of 4 Mi ranks. Take from each window what is requested.
    parts = [np.empty(0, dtype=np.int64)]
    for first_rank in range(start - start % WINDOW, stop, WINDOW):
        numbers = _window(contexts, seed, first_rank // WINDOW, WINDOW)  # cached
        parts.append(numbers[max(start - first_rank, 0) : stop - first_rank])
    return np.concatenate(parts)


@lru_cache(maxsize=1)
def _window(contexts: int, seed: int, window: int, size: int) -> NDArray[np.int64]:
    """Return the contexts (rows of tokens) at the ranks of one window of the shuffled order.

    The order lists all contexts by ascending keys, which are pseudo-random numbers. Keys with the
    same leading bits are a bucket. Only the buckets that overlap the window need to be sorted.

    Args:
        contexts: Number of contexts in the order.
        seed: Seed of the order.
        window: Number of the window, which begins at the rank `window * size`.
        size: Ranks of a window.

    Returns:
        Shape (size,); the last window may have fewer.
    """
    if contexts <= size:
        return global_order(contexts, seed)  # there is only one window
    start_rank = window * size
    stop_rank = min(start_rank + size, contexts)

    # The buckets that overlap the window: from the last one that begins at or before its start, to
    # the last one that begins before its end.
    bucket_starts = _first_ranks_of_buckets(contexts, seed)
    first_bucket = int(np.searchsorted(bucket_starts, start_rank, side="right")) - 1
    stop_bucket = int(np.searchsorted(bucket_starts, stop_rank, side="left"))

    # Sort their contexts, and cut off those before and after the window.
    selected = _contexts_in_buckets(contexts, seed, np.arange(first_bucket, stop_bucket))
    sorted_numbers = selected.numbers[np.argsort(selected.keys)]
    first_rank = bucket_starts[first_bucket]
    return sorted_numbers[start_rank - first_rank : stop_rank - first_rank]


@lru_cache(maxsize=1)
def _first_ranks_of_buckets(contexts: int, seed: int) -> NDArray[np.int64]:
    """Return the rank at which each bucket of keys begins in the shuffled order.

    The order lists the contexts by ascending keys, and a bucket is a range of keys. If the first
    three buckets have 5, 4 and 6 keys, they begin at the ranks 0, 5 and 9.

    Args:
        contexts: Number of contexts in the order.
        seed: Seed of the order.

    Returns:
        Shape (n_buckets + 1,). The last entry is the number of contexts.
    """
    # bucket_sizes[i + 1] is the number of keys in bucket i, so that the sums begin with 0.
    bucket_sizes = np.zeros(_N_BUCKETS + 1, dtype=np.int64)
    for _, keys in _key_chunks(contexts, seed):
        bucket_sizes[1:] += np.bincount(_bucket(keys), minlength=_N_BUCKETS)
    return np.cumsum(bucket_sizes)


class _KeyedContexts(NamedTuple):
    """Contexts with their keys, ascending by number."""

    keys: NDArray[np.uint64]
    """Shape (n_contexts,)."""
    numbers: NDArray[np.int64]
    """Shape (n_contexts,)."""


def _contexts_in_buckets(contexts: int, seed: int, buckets: NDArray[np.int64]) -> _KeyedContexts:
    """Return the contexts whose keys are in one of some buckets, and their keys.

    Every context (row of tokens) has a pseudo-random key. The leading bits of a key are the number
    of its bucket: with 16 bits, keys that begin with the bytes 00 07 are in bucket 7.

    Args:
        contexts: Number of contexts in the order.
        seed: Seed of the order.
        buckets: Numbers of the buckets, without repetitions, shape (n_buckets,).
    """
    # The number of keys in each bucket is known, so the arrays are allocated once.
    bucket_sizes = np.diff(_first_ranks_of_buckets(contexts, seed))
    n_selected = int(bucket_sizes[buckets].sum())
    keys = np.empty(n_selected, dtype=np.uint64)
    numbers = np.empty(n_selected, dtype=np.int64)

    # Compute the keys of all contexts in chunks, and collect those in these buckets.
    is_requested = np.zeros(_N_BUCKETS, dtype=bool)  # for every bucket
    is_requested[buckets] = True
    start = 0
    for first_context, chunk_keys in _key_chunks(contexts, seed):
        selected = np.flatnonzero(is_requested[_bucket(chunk_keys)])  # indices in the chunk
        stop = start + len(selected)
        keys[start:stop] = chunk_keys[selected]
        numbers[start:stop] = first_context + selected
        start = stop
    return _KeyedContexts(keys=keys, numbers=numbers)


def keys_at(contexts: int, seed: int, ranks: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the keys of the contexts (rows of tokens) at some ranks of the shuffled order.

    The order lists the contexts by ascending keys. This makes one pass over all keys for the
    counts, and one for each 4 Mi keys that share a bucket with a requested one.

    Args:
        contexts: Number of contexts in the order.
        seed: Seed of the order.
        ranks: Shape (n_ranks,), each in [0, contexts).

    Returns:
        Shape (n_ranks,).
    """
    # A bucket has the keys with the same leading bits. Find the bucket of each requested rank.
    first_ranks = _first_ranks_of_buckets(contexts, seed)  # (n_buckets + 1,)
    bucket_of_rank = np.searchsorted(first_ranks, ranks, side="right") - 1  # (n_ranks,)

    # Look up the ranks of some buckets at a time, to bound memory.
    keys = np.empty(len(ranks), dtype=np.uint64)
    for buckets in _batches(np.unique(bucket_of_rank), np.diff(first_ranks)):
        in_batch = np.flatnonzero(np.isin(bucket_of_rank, buckets))
        keys[in_batch] = _keys_in_buckets(contexts, seed, buckets, ranks[in_batch])
    return keys


def _batches(
    buckets: NDArray[np.int64],
    bucket_sizes: NDArray[np.int64],
) -> Iterator[NDArray[np.int64]]:
    """Divide buckets into batches that have about a window of keys together.

    Args:
        buckets: Numbers of the buckets, shape (n,).
        bucket_sizes: Number of keys in every bucket, shape (n_buckets,).
    """
    batch_of_bucket = np.cumsum(bucket_sizes[buckets]) // WINDOW  # (n,)
    for batch in np.unique(batch_of_bucket):
        yield buckets[batch_of_bucket == batch]


def _keys_in_buckets(
    contexts: int,
    seed: int,
    buckets: NDArray[np.int64],
    ranks: NDArray[np.int64],
) -> NDArray[np.uint64]:
    """Return the keys at ranks of the shuffled order that are in one of a few buckets.

    The order sorts all contexts by their keys, and a bucket is a range of keys. So only the keys of
    these buckets are computed and sorted. If bucket 4 has the ranks 10 to 14, and bucket 7 has 30
    to 32, there are 5 + 3 sorted keys, and that at rank 31 is key 5 + 1 of them.

    Args:
        contexts: Number of contexts in the order.
        seed: Seed of the order.
        buckets: Numbers of these buckets, ascending, none without keys, shape (n,).
        ranks: Positions in the order, shape (n_ranks,).

    Returns:
        Shape (n_ranks,).
    """
    sorted_keys = _contexts_in_buckets(contexts, seed, buckets).keys
    sorted_keys.sort()

    # (n,) rank of each bucket's first key, and its index in `sorted_keys`: 10, 30 and 0, 5
    bucket_bounds = _first_ranks_of_buckets(contexts, seed)  # of all buckets
    first_ranks = bucket_bounds[buckets]
    sizes = bucket_bounds[buckets + 1] - first_ranks
    first_indices = np.cumsum(sizes) - sizes

    # (n_ranks,) the bucket of each rank, as an index in `buckets`, and how far the rank is in it
    bucket_of_rank = np.searchsorted(first_ranks, ranks, side="right") - 1
    offsets = ranks - first_ranks[bucket_of_rank]
    keys: NDArray[np.uint64] = sorted_keys[first_indices[bucket_of_rank] + offsets]
    return keys


def ranks_of(numbers: NDArray[np.int64], contexts: int, seed: int) -> NDArray[np.int64]:
    """Return the position of each of some contexts (rows of tokens) in the shuffled order.

    The order lists all contexts by ascending keys, which are all different. So the position of a
    context is the number of lower keys. This makes one pass over the keys.

    Args:
        numbers: Numbers of the contexts, shape (n_numbers,).
        contexts: Number of contexts in the order.
        seed: Seed of the order.

    Returns:
        Shape (n_numbers,).
    """
    keys = keys_of(np.asarray(numbers, dtype=np.int64).astype(np.uint64), seed)
    sorted_keys = np.sort(keys)

    # The sorted keys divide all keys into intervals. The keys below sorted key i are those in the
    # intervals 0 to i.
    keys_per_interval = _count_keys_between(sorted_keys, contexts, seed)  # (n_numbers + 1,)
    ranks_of_sorted = np.cumsum(keys_per_interval)
    index_in_sorted = np.searchsorted(sorted_keys, keys)  # (n_numbers,)
    return ranks_of_sorted[index_in_sorted]


def _count_keys_between(
    limits: NDArray[np.uint64],
    contexts: int,
    seed: int,
) -> NDArray[np.int64]:
    """Count the keys of all contexts in the intervals between some limits.

    Interval 0 has the keys below the first limit. Interval i has the keys from limit i - 1, which
    is included, to limit i, which is not. With the limits 10 and 20, the keys 5, 10, 15 and 30 are
    counted as [1, 2, 1].

    Args:
        limits: Ascending, shape (n,).
        contexts: Number of contexts in the order.
        seed: Seed of the order.

    Returns:
        Shape (n + 1,).
    """
    counts = np.zeros(len(limits) + 1, dtype=np.int64)
    for _, keys in _key_chunks(contexts, seed):
        intervals = np.searchsorted(limits, keys, side="right")
        counts += np.bincount(intervals, minlength=len(counts))
    return counts


def _bucket(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the bucket of each key: its leading bits."""
    return (keys >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)


def _in_chunks(
    work: Callable[[NDArray[np.int64]], NDArray[_Rows]],
    values: NDArray[np.int64],
) -> NDArray[_Rows]:
    """Apply a function to chunks of its values, to bound memory, and concatenate the results."""
    starts = range(0, max(len(values), 1), _CHUNK_ROWS)
    return np.concatenate([work(values[start : start + _CHUNK_ROWS]) for start in starts])


@dataclass(frozen=True, slots=True)
class Choice:
    """A random choice of rows of a source, which is spread evenly over blocks of 64 rows.

    The chosen rows are numbered in ascending order. The docstring of the module explains the rule.
    """

    n_rows: int
    """Rows of the source."""
    n_chosen: int
    """Rows chosen, 0 <= n_chosen <= n_rows."""
    seed: int

    def __post_init__(self) -> None:
        """Check that the choice is possible, and that its arithmetic does not overflow.

        Raises:
            ConfigError: More rows are chosen than there are; or some, but not all, of more than
                MAX_ROWS.
        """
        is_possible = 0 <= self.n_chosen <= self.n_rows
        is_partial = 0 < self.n_chosen < self.n_rows
        if not is_possible or (is_partial and self.n_rows > MAX_ROWS):
            raise ConfigError(
                "too many rows to choose from",
                found=f"{self.n_chosen:,} of {self.n_rows:,}",
                expected=f"at most {MAX_ROWS:,} rows",
                remedy="use a whole number as frequency, or split the corpus",
            )

    @property
    def _rounding_offset(self) -> int:
        """Number in [0, n_rows) that decides how the blocks' shares are rounded.

        It depends on the seed, so that each row has the same chance over all seeds.
        """
        return self.seed % self.n_rows if self.n_rows else 0

    def rows_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows that were chosen, by their numbers among all chosen rows.

        The chosen rows are numbered in ascending order. If the rows 3, 8 and 9 are chosen, number 1
        is row 8.

        Args:
            numbers: Each in [0, n_chosen), shape (n,).

        Returns:
            Shape (n,).
        """
        if self.n_chosen == self.n_rows:
            return numbers
        return _in_chunks(self._rows_of_chunk, numbers)

    def _rows_of_chunk(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return chosen rows by their numbers; `rows_of` calls it for a chunk of them.

        Chosen rows are numbered in ascending order: if the rows 3, 70 and 90 are chosen, number 2
        is row 90. Rows are divided into blocks of 64. In its block, row 90 has the number 1.

        Args:
            numbers: Numbers of chosen rows, shape (n,).

        Returns:
            Shape (n,).
        """
        # (n,) the block of each row, and its number among the chosen rows of this block
        blocks = self._blocks_of(numbers)
        numbers_in_block = numbers - self._n_chosen_before(blocks)

        # (n, 64) how many rows are chosen from the start of the block to each of its rows, included
        n_chosen_so_far = np.cumsum(self._is_chosen_in_blocks(blocks), axis=1)

        # Number k is the first row up to which more than k rows are chosen. `argmax` returns the
        # index of the first True.
        is_reached = n_chosen_so_far > numbers_in_block[:, None]  # (n, 64)
        rows_in_block = np.argmax(is_reached, axis=1)
        rows: NDArray[np.int64] = blocks * BLOCK_ROWS + rows_in_block
        return rows

    def _blocks_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the block of 64 rows that contains each of these chosen rows.

        Args:
            numbers: Which chosen rows, shape (n,): number 19 is the 20th chosen row.

        Returns:
            Numbers of blocks, shape (n,).
        """
        # The 20th chosen row is in the block in which the count of chosen rows reaches 20.
        last_rows = self._rows_until(numbers + 1) - 1
        return last_rows // BLOCK_ROWS

    def _rows_until(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many rows it takes until that many are chosen, if they were evenly spaced.

        For example, 30 of 100 rows are chosen: 66 * 30 // 100 = 19 of the first 66 rows, and 20 of
        the first 67. So the result for 20 is 67. At the ends of blocks, this is exact.

        Args:
            counts: Numbers of chosen rows, shape (n,).

        Returns:
            The smallest k with (k * n_chosen + offset) // n_rows >= count, shape (n,). The offset
            is the number by which the seed varies the rounding; 0 in the example.
        """
        # The same as k * n_chosen >= count * n_rows - offset. So k is this number divided by
        # n_chosen, rounded up.
        dividends = counts * self.n_rows - self._rounding_offset
        return -(-dividends // self.n_chosen)

    def _n_chosen_before(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many rows before each of these blocks are chosen, shape (n_blocks,)."""
        rows_before = np.minimum(blocks * BLOCK_ROWS, self.n_rows)
        return (rows_before * self.n_chosen + self._rounding_offset) // self.n_rows

    def _is_chosen_in_blocks(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which rows of some blocks are chosen.

        A block has 64 neighbouring rows. Each row has a pseudo-random key. A block has a fixed
        number of chosen rows, which are those with its lowest keys.

        Args:
            blocks: Numbers of the blocks, shape (n_blocks,).

        Returns:
            Shape (n_blocks, 64).
        """
        rows = blocks[:, None] * BLOCK_ROWS + np.arange(BLOCK_ROWS)  # (n_blocks, 64)
        keys = keys_of(rows.astype(np.uint64), self.seed)
        # The last block may have fewer rows. The highest key keeps the others from being chosen.
        keys[rows >= self.n_rows] = np.iinfo(np.uint64).max

        # (n_blocks,) number of chosen rows in each block
        n_chosen = self._n_chosen_before(blocks + 1) - self._n_chosen_before(blocks)
        return _is_among_lowest(keys, n_chosen)

    def numbers_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of chosen rows among all chosen rows; the inverse of `rows_of`.

        Args:
            rows: Rows that are chosen, shape (n,).

        Returns:
            Shape (n,).
        """
        if self.n_chosen == self.n_rows:
            return rows
        return _in_chunks(self._numbers_of_chunk, rows)

    def _numbers_of_chunk(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of chosen rows; `numbers_of` calls it for a chunk of them."""
        blocks = rows // BLOCK_ROWS
        row_in_block = rows % BLOCK_ROWS
        # (n, 64) how many rows are chosen from the start of the block to each of its rows, included
        n_chosen_so_far = np.cumsum(self._is_chosen_in_blocks(blocks), axis=1, dtype=np.int64)
        number_in_block = n_chosen_so_far[np.arange(len(rows)), row_in_block] - 1
        return self._n_chosen_before(blocks) + number_in_block

    def is_chosen(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of some rows are chosen.

        Args:
            rows: Numbers of rows of the source, int64, shape (n,).

        Returns:
            bool, shape (n,).
        """
        if self.n_chosen in (0, self.n_rows):
            return np.full(len(rows), self.n_chosen > 0)
        return _in_chunks(self._is_chosen, rows)

    def _is_chosen(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each row is chosen; `is_chosen` calls it for a chunk of them."""
        is_chosen = self._is_chosen_in_blocks(rows // BLOCK_ROWS)  # (n, 64)
        return is_chosen[np.arange(len(rows)), rows % BLOCK_ROWS]


def _is_among_lowest(keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which keys of each row of a matrix are among its lowest ones.

    Args:
        keys: Different keys in each row, shape (n, m).
        counts: How many keys of each row to take, in [0, m], shape (n,).

    Returns:
        Shape (n, m).
    """
    # The count-th lowest key has the index count - 1 when sorted. For a count of 0, index 0 is used
    # instead of -1, and `takes_any` refuses all keys.
    index_of_limit = np.maximum(counts - 1, 0)[:, None]
    key_limit = np.take_along_axis(np.sort(keys, axis=1), index_of_limit, axis=1)  # (n, 1)
    takes_any = (counts > 0)[:, None]
    return (keys <= key_limit) & takes_any


class RowOccurrences(NamedTuple):
    """How often the rows of a source occur."""

    repeats: int
    """How often every row occurs."""
    n_chosen: int
    """How many rows occur once more than that."""


def sampled_contexts(rows: int, frequency: float) -> RowOccurrences:
    """Return how often the rows of a source occur, so that there are frequency * rows contexts.

    The product is rounded. The frequency counts as the decimal number that it is written as: 0.3 of
    5 rows are 1.5, and so 2, although the nearest float is slightly below 0.3.

    Args:
        rows: Number of rows of the source.
        frequency: How often each row occurs on average.

    Returns:
        How often every row occurs, and how many chosen rows occur once more: 10 rows and the
        frequency 2.3 give 2 and 3.
    """
    exact_frequency = Fraction(repr(float(frequency)))
    contexts = math.floor(exact_frequency * rows + Fraction(1, 2))
    repeats = math.floor(frequency)
    return RowOccurrences(repeats, contexts - repeats * rows)


def choice_seed(seed: int, name: str) -> int:
    """Return the seed by which rows of a source are chosen to occur once more.

    Args:
        seed: Seed of the order.
        name: Name of the source, so that sources of one size have different choices.

    Returns:
        A number of 64 bits.
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def frequencies_of_weights(
    rows: Mapping[str, int],
    weights: Mapping[str, float],
    contexts: int | None,
) -> dict[str, float]:
    """Return how often each source must occur, so that the sources are mixed in some proportions.

    A frequency of 2 gives two contexts for each row of a source. For example, if 200 contexts are
    mixed in equal shares, a source of 100 rows needs the frequency 1, and one of 50 rows needs 2.

    Args:
        rows: Name of each source → its rows.
        weights: Name of each source → its weight in the mix, above 0. The sum may be any number.
        contexts: Number of contexts of all sources together. None: as many as possible without
            repeating a source.

    Returns:
        Name → frequency.

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
    shares = _shares(weights)
    if contexts is None:
        # A source of 100 rows and a share of 1/2 is used up by 200 contexts in all.
        n_contexts = min(rows[name] / share for name, share in shares.items())
    else:
        n_contexts = Fraction(contexts)

    # frequency = contexts of the source / rows of the source
    return {name: float(n_contexts * shares[name] / rows[name]) for name in weights}


def _shares(weights: Mapping[str, float]) -> dict[str, Fraction]:
    """Return the share of each weight in the sum of all, by name.

    The arithmetic is exact, so that the order of the names makes no difference.
    """
    exact_weights = {name: Fraction(weight) for name, weight in weights.items()}
    sum_of_weights = sum(exact_weights.values())
    return {name: weight / sum_of_weights for name, weight in exact_weights.items()}
