"""Define the global order of a shuffled dataset.

The key of context `c` under `seed` is output number `c` (from 0) of the SplitMix64 generator started at `seed`
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; the finaliser is Stafford's
variant 13). All arithmetic is modulo 2^64::

    z   = seed + (c + 1) * 0x9E3779B97F4A7C15
    z   = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z   = (z ^ (z >> 27)) * 0x94D049BB133111EB
    key = z ^ (z >> 31)

The global order lists the contexts by ascending (key, c). The multiplier is odd and each step can be undone, so no two
contexts share a key. A key depends on nothing but the seed and the number: any process can make any part of the order.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import SampleIndexError

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

WINDOW = 1 << 22
"""Ranks that are sorted, and remembered, at once (32 MiB as int64)."""
_CHUNK = 1 << 18  # keys made at once (2 MiB: they stay in the processor's cache)
_BUCKET_BITS = 16  # leading bits of a key that a histogram tells apart


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
    """Yield (number of the first context, keys) of all contexts."""
    for begin in range(0, contexts, _CHUNK):
        yield begin, context_keys(begin, min(begin + _CHUNK, contexts), seed)


def global_order(contexts: int, seed: int) -> NDArray[np.int64]:
    """Return the whole order: rank → context number, int64, shape (contexts,). Needs 16 bytes a context."""
    return np.argsort(context_keys(0, contexts, seed))


def ranks(contexts: int, seed: int, begin: int, end: int) -> NDArray[np.int64]:
    """Return `global_order(contexts, seed)[begin:end]` in bounded memory, int64, shape (end - begin,).

    Works in windows of 4 Mi ranks and caches the latest one: asking for the ranks of one shard after the other costs
    one pass over the keys for each window.

    Raises:
        SampleIndexError: not 0 <= begin <= end <= contexts.
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
    """Return ranks [window * size, (window + 1) * size) of the order, int64, shape (at most size,); read-only."""
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
