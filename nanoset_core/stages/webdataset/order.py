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
    """Return the keys by which consecutive training samples are shuffled.

    Each sample (context) has a key, which is a pseudo-random number that depends on the seed and
    the sample's number alone. The shuffled order sorts the samples by their keys:

        context      0     1     2     3
        key          71    12    95    38       (in truth of 64 bits)
        position     2     0     3     1

    Args:
        start: Number of the first context.
        stop: Number after the last context.
        seed: Seed of the order.

    Returns:
        uint64, shape (stop - start,); no two contexts have the same key.
    """
    return keys_of(np.arange(start, stop, dtype=np.uint64), seed)


def keys_of(numbers: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return the key of each training sample, by which the samples are shuffled.

    A key is a pseudo-random number of 64 bits. A shuffled dataset has its samples in the order of
    their keys. Keys are computed from the sample's number and the seed alone, so any process can
    compute any of them. They are the outputs of SplitMix64, a known random number generator:

        z   = seed + (number + 1) * _GAMMA           (all modulo 2^64)
        z   = (z ^ (z >> 30)) * _MIX_1
        z   = (z ^ (z >> 27)) * _MIX_2
        key = z ^ (z >> 31)

    Args:
        numbers: Numbers of the samples, uint64, of any shape.
        seed: Seed of the order.

    Returns:
        uint64, of the same shape.
    """
    # Change one array in place, since a chunk of keys just fits the processor's cache.
    # (number + 1) * _GAMMA is number * _GAMMA + _GAMMA.
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
    """Return the numbers of all training samples in their shuffled order.

    Each sample (context) has a pseudo-random key, and the order sorts the samples by their keys:

        context            0     1     2     3
        key                71    12    95    38       (in truth of 64 bits)
        sorted by key      1     3     0     2        (this is the result)

    This needs 16 bytes of memory a sample. For large datasets, `ranks` returns parts of the order.

    Args:
        contexts: Number of contexts.
        seed: Seed of the order.

    Returns:
        int64, shape (contexts,).
    """
    keys = context_keys(0, contexts, seed)
    return np.argsort(keys)


def ranks(contexts: int, seed: int, start: int, stop: int) -> NDArray[np.int64]:
    """Return the numbers of the training samples at some positions of the shuffled order.

    Each sample (context) has a number, and the shuffled order is a permutation of these numbers:

        position         0    1    2    3
        sample there     1    3    0    2

    The positions [1, 3) have the samples 3 and 0. To write a file with some of the samples, only
    such a part of the order is needed, and computed.

    Args:
        contexts: Number of samples in the order.
        seed: Seed of the order.
        start: First position.
        stop: Position after the last one.

    Returns:
        Numbers of the samples, shape (stop - start,).

    Raises:
        SampleIndexError: The positions are outside the order.
    """
    _check_positions(start, stop, contexts)
    # The whole order may not fit into memory, so it is computed in windows: the positions from 0 to
    # WINDOW (4 Mi), and so on. The last window is cached for the next call.
    parts = [np.empty(0, dtype=np.int64)]
    first_window_start = start - start % WINDOW
    for window_start in range(first_window_start, stop, WINDOW):
        window_stop = min(window_start + WINDOW, contexts)
        window = _window_of_order(contexts, seed, window_start, window_stop)
        first_requested = max(start - window_start, 0)  # in the window
        parts.append(window[first_requested : stop - window_start])
    return np.concatenate(parts)


def _check_positions(start: int, stop: int, contexts: int) -> None:
    """Check that the positions [start, stop) exist in an order of training samples.

    Args:
        start: First position.
        stop: Position after the last one.
        contexts: Number of samples in the order.

    Raises:
        SampleIndexError: They do not.
    """
    if not 0 <= start <= stop <= contexts:
        raise SampleIndexError(
            "ranks outside the order",
            found=f"[{start}, {stop})",
            expected=f"within [0, {contexts})",
        )


@lru_cache(maxsize=1)
def _window_of_order(contexts: int, seed: int, start: int, stop: int) -> NDArray[np.int64]:
    """Return the numbers of the training samples at the positions [start, stop) of a shuffle.

    The shuffle sorts the samples (contexts) by pseudo-random keys. There are too many to sort all.
    But it is known how many keys are in each range of keys, called a bucket. So only the buckets
    are sorted that overlap the positions, such as those from 6 to 11:

        bucket                      0         1          2           3
        its keys                    0-99      100-199    200-299     300-399
        positions of its samples    0-4       5-8        9-14        15-19
        overlaps 6 to 11            no        yes        yes         no

    Sorting the buckets 1 and 2 gives the samples at the positions 5 to 14. Those at 6 to 11 are
    returned.

    Args:
        contexts: Number of samples in the order.
        seed: Seed of the order.
        start: First position, 6.
        stop: Position after the last one, 12.

    Returns:
        Numbers of the samples, shape (stop - start,).
    """
    is_whole_order = stop - start == contexts
    if is_whole_order:
        return global_order(contexts, seed)

    boundaries = _bucket_boundaries(contexts, seed)  # [0, 5, 9, 15, 20]
    bucket_starts = boundaries[:-1]
    bucket_stops = boundaries[1:]
    overlaps = (bucket_stops > start) & (bucket_starts < stop)  # (n_buckets,)
    buckets = np.flatnonzero(overlaps)  # [1, 2]

    selected = _contexts_in_buckets(contexts, seed, buckets)
    sorted_numbers = selected.numbers[np.argsort(selected.keys)]  # at the positions 5 to 14
    first_position = bucket_starts[buckets[0]]  # 5
    return sorted_numbers[start - first_position : stop - first_position]


@lru_cache(maxsize=1)
def _bucket_boundaries(contexts: int, seed: int) -> NDArray[np.int64]:
    """Return where each range of keys starts and stops in the shuffled order of training samples.

    The order lists the samples (contexts) by ascending keys, which are pseudo-random numbers of 64
    bits. They are divided into 65,536 ranges of equal width, called buckets. To sort one bucket
    alone, one must know how many samples are in the buckets before it:

        bucket                    0    1    2     3   ...
        samples in it             5    4    6     ...
        position of its first     0    5    9     15  ...

    Args:
        contexts: Number of contexts in the order.
        seed: Seed of the order.

    Returns:
        Shape (n_buckets + 1,). Bucket `i` has the positions from entry `i` up to entry `i + 1`. So
        the last entry is the number of all contexts.
    """
    # Leave a 0 before the sizes, so that their sums begin with 0.
    zero_and_sizes = np.zeros(_N_BUCKETS + 1, dtype=np.int64)
    for _, keys in _key_chunks(contexts, seed):
        zero_and_sizes[1:] += np.bincount(_bucket(keys), minlength=_N_BUCKETS)
    return np.cumsum(zero_and_sizes)  # [0, 5, 4, 6, ...] gives [0, 5, 9, 15, ...]


class _KeyedContexts(NamedTuple):
    """Contexts with their keys, ascending by number."""

    keys: NDArray[np.uint64]
    """Shape (n_contexts,)."""
    numbers: NDArray[np.int64]
    """Shape (n_contexts,)."""

    @classmethod
    def empty(cls, n_contexts: int) -> _KeyedContexts:
        """Return arrays for a number of contexts, which are to be filled."""
        return cls(
            keys=np.empty(n_contexts, dtype=np.uint64), numbers=np.empty(n_contexts, dtype=np.int64)
        )


def _contexts_in_buckets(contexts: int, seed: int, buckets: NDArray[np.int64]) -> _KeyedContexts:
    """Return the training samples whose shuffle keys are in some ranges, and their keys.

    Each sample (context) has a pseudo-random key of 64 bits. Keys are divided into ranges, called
    buckets, by their leading 16 bits: keys from 0x0007... are in bucket 7.

        context               0     1     2     3     4
        bucket of its key     7     2     9     7     4

    The buckets 4 and 7 give the contexts 0, 3 and 4. The keys of all contexts are computed for
    that, in chunks that fit into memory, since they are not stored.

    Args:
        contexts: Number of contexts in the whole dataset.
        seed: Seed of the keys.
        buckets: Numbers of the buckets, without repetitions, shape (n_buckets,).
    """
    is_requested = np.zeros(_N_BUCKETS, dtype=bool)  # for every bucket
    is_requested[buckets] = True

    # Arrays that are filled need half as much memory as lists of parts that are concatenated.
    selected = _KeyedContexts.empty(_count_keys(contexts, seed, buckets))
    start = 0
    for first_context, keys in _key_chunks(contexts, seed):
        indices = np.flatnonzero(is_requested[_bucket(keys)])  # in the chunk
        stop = start + len(indices)
        selected.keys[start:stop] = keys[indices]
        selected.numbers[start:stop] = first_context + indices
        start = stop
    return selected


def _count_keys(contexts: int, seed: int, buckets: NDArray[np.int64]) -> int:
    """Return how many keys some ranges of keys (buckets) have together.

    Args:
        contexts: Number of contexts in the whole dataset.
        seed: Seed of the keys.
        buckets: Numbers of the buckets, without repetitions, shape (n,).
    """
    sizes_of_all_buckets = np.diff(_bucket_boundaries(contexts, seed))
    return int(sizes_of_all_buckets[buckets].sum())


def keys_at(contexts: int, seed: int, ranks: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the keys of the training samples at some positions of the shuffled order.

    The order is that of ascending keys, which are pseudo-random numbers. So this is the same as
    `np.sort(all_keys)[ranks]`. But not all keys may fit into memory. So only those ranges of keys,
    called buckets, are sorted that contain one of the positions:

        bucket            0         1          2
        its keys          0-99      100-199    200-299
        their positions   0-4       5-8        9-14         position 6 is in bucket 1

    Args:
        contexts: Number of samples in the order.
        seed: Seed of the keys.
        ranks: The positions, shape (n_ranks,), each in [0, contexts).

    Returns:
        Shape (n_ranks,).
    """
    boundaries = _bucket_boundaries(contexts, seed)  # (n_buckets + 1,) [0, 5, 9, 15]
    bucket_of_rank = _last_begun(boundaries, ranks)  # (n_ranks,) [1] for the position 6

    # Sort the keys of some buckets at a time.
    keys = np.empty(len(ranks), dtype=np.uint64)
    for buckets in _batches(np.unique(bucket_of_rank), np.diff(boundaries)):
        in_batch = np.flatnonzero(np.isin(bucket_of_rank, buckets))  # indices of positions
        keys[in_batch] = _keys_in_buckets(contexts, seed, buckets, ranks[in_batch])
    return keys


def _last_begun(starts: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each position, the index of the last range that begins there or before.

    For example, of ranges that begin at 0, 5 and 9, position 6 is in the one with the index 1.

    Args:
        starts: Where each range begins, ascending, shape (n_ranges,).
        positions: The positions, shape (n_positions,).

    Returns:
        Shape (n_positions,).
    """
    n_ranges_begun: NDArray[np.int64] = np.searchsorted(starts, positions, side="right")
    return n_ranges_begun - 1


def _batches(
    buckets: NDArray[np.int64],
    bucket_sizes: NDArray[np.int64],
) -> Iterator[NDArray[np.int64]]:
    """Divide buckets of keys into batches that can be sorted in memory, of about WINDOW keys each.

    If WINDOW were 100 (it is 4 Mi), the batches of these buckets would be [2, 5, 7] and [9]:

        bucket            2     5     7     9
        keys in it        60    30    50    80

    Args:
        buckets: Numbers of the buckets, shape (n,).
        bucket_sizes: Number of keys in every bucket, also those that are not in `buckets`, shape
            (n_buckets,).
    """
    batch: list[int] = []
    n_keys = 0
    for bucket in buckets.tolist():
        batch.append(bucket)
        n_keys += int(bucket_sizes[bucket])
        if n_keys >= WINDOW:
            yield np.array(batch)
            batch = []
            n_keys = 0
    if batch:
        yield np.array(batch)


def _keys_in_buckets(
    contexts: int,
    seed: int,
    buckets: NDArray[np.int64],
    ranks: NDArray[np.int64],
) -> NDArray[np.uint64]:
    """Return the keys at some positions of the sorted list of all keys, without sorting all.

    Training samples (contexts) are shuffled by sorting them by pseudo-random keys. A range of keys
    is called a bucket, and it is known at which positions each bucket is. So only the buckets with
    the requested positions have to be sorted:

        bucket                         4                     7
        positions among all keys       10  11  12  13  14    30  31  32
        index among the sorted ones    0   1   2   3   4     5   6   7
        difference                     10                    25

    For example, the key at position 31 is sorted key 31 - 25 = 6.

    Args:
        contexts: Number of contexts.
        seed: Seed of the keys.
        buckets: Numbers of these buckets, ascending, none without keys, shape (n,): [4, 7].
        ranks: Positions, each in one of the buckets, shape (n_ranks,): [31].

    Returns:
        Shape (n_ranks,).
    """
    sorted_keys = _contexts_in_buckets(contexts, seed, buckets).keys
    sorted_keys.sort()

    # The position and the index of the first key of each bucket, shape (n,).
    boundaries = _bucket_boundaries(contexts, seed)
    first_positions = boundaries[buckets]  # [10, 30]
    sizes = boundaries[buckets + 1] - first_positions  # [5, 3]
    first_indices = np.cumsum(sizes) - sizes  # [0, 5]
    differences = first_positions - first_indices  # [10, 25]

    bucket_of_rank = _last_begun(first_positions, ranks)  # [1], as an index in `buckets`
    keys: NDArray[np.uint64] = sorted_keys[ranks - differences[bucket_of_rank]]  # [31 - 25]
    return keys


def ranks_of(numbers: NDArray[np.int64], contexts: int, seed: int) -> NDArray[np.int64]:
    """Return the position of each of some training samples in the shuffled order.

    The order lists all samples (contexts) by ascending keys, which are pseudo-random numbers. So
    the position of a sample is how many samples have a lower key. No list of all is needed:

        context                      0     1     2     3
        key                          71    12    95    38
        lower keys = position        2     0     3     1

    For the contexts 3 and 0, the result is [1, 2]. This makes one pass over the keys of all.

    Args:
        numbers: Numbers of the contexts, shape (n_numbers,).
        contexts: Number of contexts in the order.
        seed: Seed of the order.

    Returns:
        Shape (n_numbers,).
    """
    keys = keys_of(np.asarray(numbers, dtype=np.int64).astype(np.uint64), seed)  # [38, 71]
    order = np.argsort(keys)
    positions = np.empty(len(keys), dtype=np.int64)
    positions[order] = _count_lower_keys(keys[order], contexts, seed)  # [1, 2]
    return positions


def _count_lower_keys(
    limits: NDArray[np.uint64],
    contexts: int,
    seed: int,
) -> NDArray[np.int64]:
    """For each of some limits, count the training samples with a lower key.

    Each sample (context) has a pseudo-random key. If all keys are 5, 10, 15 and 30, the limits 10
    and 20 give 1 and 3.

    Args:
        limits: Ascending, shape (n,).
        contexts: Number of samples.
        seed: Seed of the keys.

    Returns:
        Shape (n,).
    """
    # Divide the keys by the limits, and count: below 10, from 10 to 19, and from 20 on. This is one
    # pass over all keys, a chunk at a time.
    counts = np.zeros(len(limits) + 1, dtype=np.int64)
    for _, keys in _key_chunks(contexts, seed):
        n_limits_reached = np.searchsorted(limits, keys, side="right")  # 0, 1, 1 and 2
        counts += np.bincount(n_limits_reached, minlength=len(counts))  # [1, 2, 1]

    # 1 key is below 10, and 1 + 2 keys are below 20.
    return np.cumsum(counts)[:-1]


def _bucket(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the bucket of each key: its leading bits."""
    return (keys >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)


def _in_chunks(
    work: Callable[[NDArray[np.int64]], NDArray[_Rows]],
    values: NDArray[np.int64],
) -> NDArray[_Rows]:
    """Apply a function to an array, some values at a time, so that it needs less memory.

    For example, `work` needs 512 bytes for each value. For 10 million values at once, that would be
    5 GB; for _CHUNK_ROWS (16,384) at a time it is 8 MiB.

    Args:
        work: Returns a result for each value of the array that it gets.
        values: All values, shape (n,).

    Returns:
        The results for all values, shape (n,).
    """
    # At least one chunk, so that there is something to concatenate if there are no values.
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
        """Check that so many rows can be chosen.

            3 of 10 rows                          correct
            12 of 10 rows                         an error
            some of more than MAX_ROWS rows       an error: the computations would overflow 64 bits
            all or none of more than MAX_ROWS     correct: nothing has to be computed

        Raises:
            ConfigError: They cannot.
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
        """Return chosen rows by their numbers among all chosen rows.

        Some rows of a text are chosen at random, for example to be training samples once more than
        the other rows. The chosen rows are numbered in ascending order:

            number          0    1    2
            chosen row      3    70   90

        So the numbers 1 and 2 give the rows 70 and 90. They are computed, since a list of all
        chosen rows may be too long.

        Args:
            numbers: Each in [0, n_chosen), shape (n,).

        Returns:
            Shape (n,).
        """
        if self.n_chosen == self.n_rows:
            return numbers  # all rows are chosen
        return _in_chunks(self._rows_of_chunk, numbers)

    def _rows_of_chunk(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return chosen rows by their numbers, for so few of them that they fit into memory.

        Some rows of a text are chosen at random, and numbered in ascending order. Rows are divided
        into blocks of 64, and it is known how many chosen rows precede each block. So only the
        block of each row must be looked at:

            number of the chosen row        0    1    2
            chosen row                      3    70   90
            its block                       0    1    1
            chosen rows before the block    0    1    1
            number within the block         0    0    1

        Args:
            numbers: Numbers of chosen rows, shape (n,).

        Returns:
            Shape (n,).
        """
        blocks = self._blocks_of(numbers)  # (n,) [1] for the number 2
        numbers_in_block = numbers - self._n_chosen_before(blocks)  # (n,) [2 - 1]
        is_chosen = self._is_chosen_in_blocks(blocks)  # (n, 64)
        indices_in_block = _indices_of_chosen(is_chosen, numbers_in_block)  # (n,) [26]
        rows: NDArray[np.int64] = blocks * BLOCK_ROWS + indices_in_block  # [64 + 26]
        return rows

    def _blocks_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the block of 64 rows that contains each of some chosen rows.

        Some rows of a text are chosen at random, and numbered in ascending order. How many of them
        precede each block is a formula (see `_n_chosen_before`). If 30 of 100 rows are chosen:

            block                              0          1
            its rows                           0-63       64-99
            chosen before: block * 19.2        0          19.2, rounded to 19
            numbers of its chosen rows         0-18       19-29

        19 chosen rows precede the row with number 19. So its block is the last one that is preceded
        by 19 chosen rows or fewer. With the rounding offset 0, these are the blocks with

            (block * 64 * 30 + 0) // 100  <=  19          the formula of `_n_chosen_before`
             block * 1920 + 0             <   20 * 100    the same without the division
             block * 1920                 <=  1999        the same in whole numbers

        and the last one is 1999 // 1920 = 1.

        Args:
            numbers: Numbers of chosen rows, shape (n,), such as [19].

        Returns:
            Numbers of blocks, shape (n,).
        """
        limits = (numbers + 1) * self.n_rows - self._rounding_offset - 1  # (n,) [1999]
        blocks: NDArray[np.int64] = limits // (BLOCK_ROWS * self.n_chosen)  # (n,) [1]
        return blocks

    def _n_chosen_before(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many rows are chosen before each of some blocks of 64 rows.

        Some rows of a text are chosen at random, but every block gets its share. If 30 of 100 rows
        are chosen, these are rounded numbers of 30 / 100 of the rows before the block:

            block               0     1       2      (there is no block 2: this is the end)
            rows before it      0     64      100
            30 / 100 of them    0     19.2    30
            chosen before it    0     19      30

        If 19.2 were always rounded down, rows of block 0 would have a lower chance to be chosen
        than those of block 1: 19 / 64 and 11 / 36. So the seed decides, by a number from 0 to 99
        (the offset), which is added to 64 * 30 = 1920 before this is divided by 100:

            offset                  0 to 79         80 to 99
            1920 + offset           1920 to 1999    2000 to 2019
            divided by 100          19              20

        20 of 100 offsets give 20, so that the average over all seeds is 19.2.

        Args:
            blocks: Numbers of the blocks, shape (n_blocks,). The number of all blocks stands for
                the end of the rows.

        Returns:
            Shape (n_blocks,).
        """
        rows_before = np.minimum(blocks * BLOCK_ROWS, self.n_rows)  # 64 for block 1

        # `//` rounds down: with the offset 0, (64 * 30 + 0) // 100 = 19.
        return (rows_before * self.n_chosen + self._rounding_offset) // self.n_rows

    def _is_chosen_in_blocks(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which rows of some blocks of a text are chosen at random.

        A block has 64 neighbouring rows. A formula says how many of them are chosen. These are the
        rows with the lowest keys, which are pseudo-random numbers. If 2 rows of a block are chosen:

            row         64    65    66    67    ...    (all others have higher keys)
            key         31    7     85    12    ...
            chosen            yes         yes

        Args:
            blocks: Numbers of the blocks, shape (n_blocks,).

        Returns:
            Shape (n_blocks, 64).
        """
        rows = blocks[:, None] * BLOCK_ROWS + np.arange(BLOCK_ROWS)  # (n_blocks, 64)
        keys = keys_of(rows.astype(np.uint64), self.seed)
        # The last block may have fewer rows. The highest key keeps the others from being chosen.
        keys[rows >= self.n_rows] = np.iinfo(np.uint64).max

        n_chosen_before = self._n_chosen_before(blocks)  # such as 19 for block 1
        n_chosen = self._n_chosen_before(blocks + 1) - n_chosen_before  # 30 - 19
        return _is_among_lowest(keys, n_chosen)

    def numbers_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many chosen rows precede each of some chosen rows.

        That is the number of the row among the chosen rows. If the rows 3, 70 and 90 are chosen,
        row 90 has the number 2. This is the inverse of `rows_of`.

        Args:
            rows: Rows that are chosen, shape (n,).

        Returns:
            Shape (n,).
        """
        if self.n_chosen == self.n_rows:
            return rows  # all rows are chosen
        return _in_chunks(self._n_chosen_before_rows, rows)

    def _n_chosen_before_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many chosen rows precede each row, for so few that they fit into memory.

        Some rows of a text are chosen at random, such as 3, 70 and 90. Rows are divided into blocks
        of 64. So row 90 is in block 1, which has the rows 64 to 127. One chosen row (3) precedes
        this block, and one (70) precedes row 90 in the block. The result for row 90 is 1 + 1.

        Args:
            rows: Rows that are chosen, shape (n,).

        Returns:
            Shape (n,).
        """
        blocks = rows // BLOCK_ROWS  # (n,) [1] for row 90
        index_in_block = rows % BLOCK_ROWS  # (n,) [26], since row 90 is 64 + 26

        # In the block of each row, count the chosen rows before it.
        is_chosen = self._is_chosen_in_blocks(blocks)  # (n, 64)
        precedes = np.arange(BLOCK_ROWS) < index_in_block[:, np.newaxis]  # (n, 64)
        n_before_in_block = np.count_nonzero(is_chosen & precedes, axis=1)  # (n,) [1]
        n_before: NDArray[np.int64] = self._n_chosen_before(blocks) + n_before_in_block  # [1 + 1]
        return n_before

    def is_chosen(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each of some rows was chosen.

        If the rows 3, 70 and 90 were chosen, the rows [3, 4, 90] give [True, False, True].

        Args:
            rows: Numbers of rows of the source, int64, shape (n,).

        Returns:
            bool, shape (n,).
        """
        if self.n_chosen == 0:
            return np.zeros(len(rows), dtype=np.bool_)
        if self.n_chosen == self.n_rows:
            return np.ones(len(rows), dtype=np.bool_)
        return _in_chunks(self._is_chosen, rows)

    def _is_chosen(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each of some rows was chosen.

        Whether a row is chosen depends on the other rows of its block of 64: in each block, those
        rows are chosen that have the lowest of some pseudo-random keys. So look at the whole block.

        Args:
            rows: Numbers of rows, not too many at once, since each needs some kB: (n,).

        Returns:
            Shape (n,).
        """
        blocks = rows // BLOCK_ROWS  # row 90 is in block 1
        row_in_block = rows % BLOCK_ROWS  # 26
        is_chosen = self._is_chosen_in_blocks(blocks)  # (n, 64)
        return is_chosen[np.arange(len(rows)), row_in_block]


def _indices_of_chosen(
    is_chosen: NDArray[np.bool_], numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return where the chosen entry of a number is, in each row of a matrix.

    Chosen entries are numbered from 0 on in each row. For example:

        row of the matrix    no  yes  no  yes
        number               1
        result               3       (the entries 1 and 3 are chosen, and have the numbers 0 and 1)

    Args:
        is_chosen: Shape (n, m).
        numbers: A number for each row, less than the chosen entries of the row, shape (n,).

    Returns:
        Shape (n,).
    """
    n_chosen_up_to = np.cumsum(is_chosen, axis=1)  # (n, m) [0, 1, 1, 2]
    is_reached = n_chosen_up_to > numbers[:, np.newaxis]  # (n, m) [no, no, no, yes]
    # `argmax` returns the index of the first True of each row.
    indices: NDArray[np.int64] = np.argmax(is_reached, axis=1)
    return indices


def _is_among_lowest(keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which keys of each row of a matrix are among the lowest keys of this row.

    Each row has its own count of keys to take. For example:

        row of keys        count     result
        31  7  85  12      2         no  yes  no  yes      (7 and 12)
        40  9  22  60      0         no  no   no  no

    Args:
        keys: Different keys in each row, shape (n, m).
        counts: How many keys of each row to take, from 0 to m, shape (n,).

    Returns:
        Shape (n, m).
    """
    # Sort each row. The highest key to take is at the index count - 1: 12 in [7, 12, 31, 85]. For a
    # count of 0, there is none; look at index 0 instead, and do not use the result.
    sorted_keys = np.sort(keys, axis=1)
    index_of_highest = np.maximum(counts - 1, 0)[:, None]  # (n, 1) [[1], [0]]
    highest = np.take_along_axis(sorted_keys, index_of_highest, axis=1)  # (n, 1) [[12], [9]]
    takes_any = (counts > 0)[:, None]  # (n, 1) [[True], [False]]
    return (keys <= highest) & takes_any


class RowOccurrences(NamedTuple):
    """How often the rows of a source occur."""

    repeats: int
    """How often every row occurs."""
    n_chosen: int
    """How many rows occur once more than that."""


def sampled_contexts(rows: int, frequency: float) -> RowOccurrences:
    """Return how often the rows of a text must occur, to get a number of training samples.

    A text is cut into rows. A user may want to read it 2.3 times, or only 0.3 of it. So every row
    occurs a whole number of times, and some rows, chosen at random, occur once more:

        rows    frequency    samples = rows * frequency    repeats    n_chosen
        10      2.3          23                            2          3     (23 = 2 * 10 + 3)
        10      0.3          3                             0          3
        5       0.3          2   (1.5, rounded)            0          2

    Args:
        rows: Number of rows of the text.
        frequency: How often each row occurs on average.
    """
    # Take the frequency for the decimal number that the user wrote. The float 0.3 is slightly less,
    # so 0.3 * 5 would be slightly less than 1.5, and be rounded down.
    exact_frequency = Fraction(repr(float(frequency)))  # 3/10
    samples = math.floor(exact_frequency * rows + Fraction(1, 2))  # halves are rounded up
    repeats = math.floor(frequency)
    return RowOccurrences(repeats, n_chosen=samples - repeats * rows)


def choice_seed(seed: int, name: str) -> int:
    """Return the seed for choosing rows of one source of text at random.

    Each source gets its own seed. Otherwise two sources of the same size, such as web and code,
    would choose rows with the same numbers.

    Args:
        seed: Seed of the whole shuffled dataset, such as 42.
        name: Name of the source.

    Returns:
        A number of 64 bits: the first 8 bytes of the SHA-256 of "42:web".
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def frequencies_of_weights(
    rows: Mapping[str, int],
    weights: Mapping[str, float],
    contexts: int | None,
) -> dict[str, float]:
    """Return how often each source of text must be read, so that they are mixed as the user wants.

    The user gives weights, such as 1 and 1 for equal shares. Each source is cut into rows, and a
    sample (context) is one occurrence of a row. If 200 samples are wanted:

        source    rows    weight    share    samples    frequency = samples / rows
        web       100     1         1/2      100        1
        code      50      1         1/2      100        2

    Args:
        rows: Name of each source → its rows.
        weights: Name of each source → its weight in the mix, above 0. The sum may be any number.
        contexts: Number of contexts of all sources together, 200 in the example. None: as many as
            possible without reading a source more than once. In the example, 100 are possible,
            since code is then read once.

    Returns:
        Name → frequency, such as {"web": 1.0, "code": 2.0}.

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
        # Code, with 50 rows and a share of 1/2, is used up by 50 / (1/2) = 100 contexts in all.
        n_contexts = min(rows[name] / share for name, share in shares.items())
    else:
        n_contexts = Fraction(contexts)

    frequencies: dict[str, float] = {}
    for name in weights:
        contexts_of_source = n_contexts * shares[name]
        frequencies[name] = float(contexts_of_source / rows[name])
    return frequencies


def _shares(weights: Mapping[str, float]) -> dict[str, Fraction]:
    """Return which share of the sum each weight is: {"web": 1, "code": 3} gives 1/4 and 3/4.

    Fractions are exact, so that the order of the names makes no difference to the sum.

    Args:
        weights: Name → weight, above 0.
    """
    exact_weights = {name: Fraction(weight) for name, weight in weights.items()}
    sum_of_weights = sum(exact_weights.values())
    return {name: weight / sum_of_weights for name, weight in exact_weights.items()}
