"""How many documents of a dataset are copies of another, by a hash of their tokens.

The hash of a document of tokens t_0 … t_{n-1} is the sum of m(t_i) r^i, modulo 2^64, with an odd r and m a mixing of
the bits, mixed once more. It comes from running sums over chunks of the flat token array: with S(p) the sum of
m(t) r^p over places p of the chunk, a document's part of it is (S(end) - S(begin)) r^-begin. No loop over documents,
and no copy of them.

Memory stays bounded by keeping only the hashes below a limit, which is halved when there are too many of them: all
copies of one document have one hash, so the share of copies among those kept is an unbiased estimate, and exact while
all fit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.indexed.dataset import MMapIndexedDataset

CHUNK_TOKENS = 1 << 19
MOST_HASHES = 1 << 22
_RADIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def duplicate_share(dataset: MMapIndexedDataset, *, most_hashes: int = MOST_HASHES) -> float:
    """Share of the sequences with tokens that repeat an earlier one, 0 to 1; an estimate above 4 Mi sequences."""
    kept = np.empty(0, np.uint64)
    limit = np.uint64(_MASK)
    pending: list[NDArray[np.uint64]] = []
    waiting = 0
    for hashes in sequence_hashes(dataset):
        pending.append(hashes[hashes <= limit])
        waiting += len(pending[-1])
        if waiting + len(kept) > most_hashes:
            kept, pending, waiting = np.concatenate([kept, *pending]), [], 0
            while len(kept) > most_hashes // 2:
                limit >>= np.uint64(1)
                kept = kept[kept <= limit]
    kept = np.concatenate([kept, *pending])
    return 1.0 - len(np.unique(kept)) / len(kept) if len(kept) else 0.0


def sequence_hashes(dataset: MMapIndexedDataset, chunk_tokens: int = CHUNK_TOKENS) -> Iterator[NDArray[np.uint64]]:
    """Yield uint64[…] hashes of the sequences that have tokens, in order, some at a time."""
    powers = _powers(_RADIX, chunk_tokens + 1)
    inverse = _powers(pow(_RADIX, -1, 1 << 64), chunk_tokens + 1)
    carried, power = 0, 1  # of a sequence that began in an earlier chunk: its hash so far, and r^(tokens so far)
    first = 0
    for begin in range(0, len(dataset.tokens), chunk_tokens):
        part = dataset.tokens[begin : begin + chunk_tokens]
        sums = np.zeros(len(part) + 1, np.uint64)
        np.cumsum(_mixed(part) * powers[: len(part)], dtype=np.uint64, out=sums[1:])
        last = _first_ending_after(dataset, first, begin + len(part))
        ends = _ends(dataset, first, last) - begin
        starts = np.concatenate([np.zeros(1, np.int64), ends])  # of the sequences, and of the one that goes on
        pieces = (sums[np.append(ends, len(part))] - sums[starts]) * inverse[starts]
        head = (carried + int(pieces[0]) * power) & _MASK
        if len(ends):
            hashes = pieces[:-1].copy()
            hashes[0] = head
            carried, power = int(pieces[-1]), int(powers[len(part) - int(starts[-1])])
            lengths = dataset.sequence_lengths[first:last]
            yield _finished(hashes, lengths)[lengths > 0]
        else:
            carried, power = head, power * int(powers[len(part)]) & _MASK
        first = last


def _first_ending_after(dataset: MMapIndexedDataset, first: int, place: int) -> int:
    """The first sequence, from `first` on, that ends behind a place of the token array."""
    itemsize = dataset.dtype.itemsize
    # Sequence s ends where s + 1 begins; the last one at the end of the array.
    if place >= len(dataset.tokens):
        return len(dataset)
    return max(bisect_right(dataset.sequence_pointers, place * itemsize, first) - 1, first)


def _ends(dataset: MMapIndexedDataset, first: int, last: int) -> NDArray[np.int64]:
    starts: NDArray[np.int64] = dataset.sequence_pointers[first:last] // dataset.dtype.itemsize
    return starts + dataset.sequence_lengths[first:last]


def _mixed(tokens: NDArray[Any]) -> NDArray[np.uint64]:
    values: NDArray[np.uint64] = tokens.astype(np.uint64) + np.uint64(1)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(32)
    values *= np.uint64(0x94D049BB133111EB)
    return values


def _finished(hashes: NDArray[np.uint64], lengths: NDArray[np.int32]) -> NDArray[np.uint64]:
    """So that the low bits, which decide what is kept, depend on all; and the length counts."""
    values: NDArray[np.uint64] = hashes + lengths.astype(np.uint64) * np.uint64(0xD6E8FEB86659FD93)
    for shift, factor in ((32, 0xBF58476D1CE4E5B9), (29, 0x94D049BB133111EB)):
        values ^= values >> np.uint64(shift)
        values *= np.uint64(factor)
    return values ^ (values >> np.uint64(32))


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    """base^0 … base^(count - 1), modulo 2^64."""
    powers = np.ones(count, np.uint64)
    filled = 1
    while filled < count:
        step = min(filled, count - filled)
        powers[filled : filled + step] = powers[:step] * np.uint64(pow(base, filled, 1 << 64))
        filled += step
    return powers
