"""Divide a .bin into ranges that are checked on their own: all of it, or evenly spread samples."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.stages.report import PART_BYTES, runs
from nanoset_core.storage.store import PieceDigest

QUICK_TOKENS = 1 << 24
"""Datasets of at most so many tokens are always read whole."""
QUICK_PLACES = 256
"""Places of a larger dataset that are read."""


class TokenRange(NamedTuple):
    """Consecutive sequences, or tokens within one sequence."""

    first: int
    """First sequence."""
    last: int
    """Sequence after the last one; equal to `first` if no sequence is whole."""
    begin: int
    """First byte in the .bin."""
    end: int
    """Byte after the last one."""
    pieces: tuple[PieceDigest, ...] = ()
    """Digests of the pieces that the bytes were joined from, if they are known."""


def token_ranges(
    dataset: MMapIndexedDataset, pieces: Sequence[PieceDigest] = ()
) -> list[TokenRange]:
    """Divide all of a dataset, whose index is sound, into ranges of about 128 MiB.

    Args:
        dataset: The dataset.
        pieces: Digests of the pieces that its .bin was joined from, if they are known: then ranges
            end where pieces do.
    """
    pointers = dataset.sequence_pointers
    n_sequences = len(dataset)
    stops = list(accumulate(piece.size for piece in pieces))  # byte after each piece

    # (sequence, byte) at which ranges begin, without repetitions.
    bounds = {(0, 0): None}
    for byte in _range_bounds(dataset.bin_bytes, pieces):
        # np.searchsorted would copy pointers, which are not aligned
        sequence = bisect_left(pointers, byte)
        if sequence == n_sequences:
            continue
        # In a file of this project a sequence begins where a piece does; in another file, the range
        # goes on.
        pointer = int(pointers[sequence])
        if not pieces or pointer == byte:
            bounds[sequence, pointer] = None

    ranges = []
    for (first, begin), (last, end) in pairwise([*bounds, (n_sequences, dataset.bin_bytes)]):
        if first < last or begin < end:
            own_pieces = pieces[bisect_right(stops, begin) : bisect_right(stops, end)]
            ranges.append(TokenRange(first, last, begin, end, tuple(own_pieces)))
    return ranges


def _range_bounds(bin_bytes: int, pieces: Sequence[PieceDigest]) -> Iterator[int]:
    """Yield the bytes of a .bin at which ranges of about 128 MiB would end."""
    if not pieces:
        yield from range(PART_BYTES, bin_bytes, PART_BYTES)
        return
    sizes = [piece.size for piece in pieces]
    stops = list(accumulate(sizes))
    for run in runs(sizes):
        yield stops[run[-1]]


def spread_ranges(dataset: MMapIndexedDataset) -> Iterator[TokenRange]:
    """Yield 256 evenly spread ranges of a dataset of more than 16 Mi tokens.

    Each consists of the whole sequences of its place, or, in a long sequence, of tokens within it.
    """
    pointers = dataset.sequence_pointers
    itemsize = dataset.dtype.itemsize
    bin_bytes = dataset.bin_bytes
    for token_start, token_stop in spread_chunks(dataset.token_count):
        begin = token_start * itemsize
        end = token_stop * itemsize
        first = bisect_left(pointers, begin)
        if end == bin_bytes:
            last = len(dataset)
            last_byte = bin_bytes
        else:
            last = bisect_right(pointers, end) - 1
            last_byte = int(pointers[last])
        if first < last:
            yield TokenRange(first, last, int(pointers[first]), last_byte)
        else:
            sequence = bisect_right(pointers, begin) - 1
            yield TokenRange(sequence, sequence, begin, end)


def spread_chunks(n_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of 256 evenly spread chunks of tokens; the first and the last tokens are
    among them.
    """
    chunk_tokens = QUICK_TOKENS // QUICK_PLACES
    for place in range(QUICK_PLACES):
        start = (n_tokens - chunk_tokens) * place // (QUICK_PLACES - 1)
        yield start, start + chunk_tokens


def spread_rows(n_rows: int, max_rows: int) -> NDArray[np.int64]:
    """Return the numbers of at most `max_rows` evenly spread rows, the first and the last among
    them, int64.
    """
    if n_rows <= max_rows:
        return np.arange(n_rows, dtype=np.int64)
    return np.arange(max_rows, dtype=np.int64) * (n_rows - 1) // max(max_rows - 1, 1)
