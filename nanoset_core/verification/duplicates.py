"""How many documents of a dataset are copies of another, by a hash of their tokens.

The hash of a document of tokens t_0 … t_{n-1} is the sum of m(t_i) r^i, modulo 2^64, with an odd r and m a mixing of
the bits, mixed once more. It comes from running sums over chunks of the flat token array: with S(p) the sum of
m(t) r^p over places p of the chunk, a document's part of it is (S(end) - S(begin)) r^-begin. No loop over documents,
and no copy of them.

Memory stays bounded by keeping only the hashes below a limit: all copies of one document have one hash, so the share
of copies among those kept is an unbiased estimate, and exact where all are kept. What is kept of the parts of a dataset
can be put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.indexed.layout import Tokens

CHUNK_TOKENS = 1 << 19
MOST_HASHES = 1 << 22
_RADIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class Sample(NamedTuple):
    """The hashes of some documents that are below a limit."""

    unique: NDArray[np.uint64]
    """Each once, ascending."""
    kept: int
    """With their repetitions."""


def hash_limit(sequences: int, most_hashes: int = MOST_HASHES) -> int:
    """The greatest hash to keep of a dataset, so that about `most_hashes` are kept of different sequences, or all."""
    return _MASK if sequences <= most_hashes else _MASK * most_hashes // sequences


def sampled(hashes: Iterable[NDArray[np.uint64]], limit: int) -> Sample:
    """Those of many hashes that are no greater than the limit."""
    kept = [np.empty(0, np.uint64), *(part[part <= np.uint64(limit)] for part in hashes)]
    together = np.concatenate(kept)
    return Sample(np.unique(together), len(together))


def duplicate_share(samples: Sequence[Sample]) -> float:
    """Share of the sequences with tokens that repeat an earlier one, 0 to 1, by what was kept of a dataset's parts."""
    count = sum(sample.kept for sample in samples)
    unique = np.unique(np.concatenate([np.empty(0, np.uint64), *(sample.unique for sample in samples)]))
    return 1.0 - len(unique) / count if count else 0.0


def sequence_hashes(
    chunks: Iterable[Tokens], lengths: NDArray[np.int32], chunk_tokens: int = CHUNK_TOKENS
) -> Iterator[NDArray[np.uint64]]:
    """Yield uint64[…] hashes of the sequences that have tokens, in order, some at a time.

    Args:
        chunks: the tokens of all sequences one after the other, at most `chunk_tokens` at a time.
        lengths: int32, shape (sequences,): tokens of each.
        chunk_tokens: of the longest chunk.
    """
    powers = _powers(_RADIX, chunk_tokens + 1)
    inverse = _powers(pow(_RADIX, -1, 1 << 64), chunk_tokens + 1)
    all_ends = np.cumsum(lengths, dtype=np.int64)
    carried, power = 0, 1  # of a sequence that began in an earlier chunk: its hash so far, and r^(tokens so far)
    begin, first = 0, 0
    for part in chunks:
        sums = np.zeros(len(part) + 1, np.uint64)
        np.cumsum(_mixed(part) * powers[: len(part)], dtype=np.uint64, out=sums[1:])
        last = int(np.searchsorted(all_ends, begin + len(part), side="right"))
        ends = all_ends[first:last] - begin
        starts = np.concatenate([np.zeros(1, np.int64), ends])  # of the sequences, and of the one that goes on
        pieces = (sums[np.append(ends, len(part))] - sums[starts]) * inverse[starts]
        head = (carried + int(pieces[0]) * power) & _MASK
        if len(ends):
            hashes = pieces[:-1].copy()
            hashes[0] = head
            carried, power = int(pieces[-1]), int(powers[len(part) - int(starts[-1])])
            own = lengths[first:last]
            yield _finished(hashes, own)[own > 0]
        else:
            carried, power = head, power * int(powers[len(part)]) & _MASK
        begin, first = begin + len(part), last


def _mixed(tokens: NDArray[Any]) -> NDArray[np.uint64]:
    values: NDArray[np.uint64] = tokens.astype(np.uint64) + np.uint64(1)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(32)
    values *= np.uint64(0x94D049BB133111EB)
    return values


def _finished(hashes: NDArray[np.uint64], lengths: NDArray[np.int32]) -> NDArray[np.uint64]:
    """So that the high bits, which decide what is kept, depend on all; and the length counts."""
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
