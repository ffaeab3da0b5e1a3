"""Divide a .bin into ranges that are checked independently: all of it, or evenly spread samples."""

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
"""Most tokens that a quick check reads. Larger datasets are sampled."""
QUICK_PLACES = 256
"""Number of evenly spread ranges that a quick check reads of a larger dataset."""


class TokenRange(NamedTuple):
    """A range of a .bin: consecutive sequences, or some tokens of one sequence."""

    first: int
    """Number of the first sequence, or of the sequence that contains the tokens."""
    last: int
    """Number after the last sequence; equal to `first` for tokens within one sequence."""
    begin: int
    """First byte in the .bin."""
    end: int
    """Byte after the last one."""
    pieces: tuple[PieceDigest, ...] = ()
    """Digests of the pieces that the bytes were joined from, if they are known."""


def token_ranges(
    dataset: MMapIndexedDataset, pieces: Sequence[PieceDigest] = ()
) -> list[TokenRange]:
    """Divide all of a dataset into ranges of about 128 MiB, which end where sequences end.

    Args:
        dataset: The dataset. Its index must be valid.
        pieces: Digests of the pieces that its .bin was joined from, if it was. Ranges then end
            where pieces end, so that each piece can be compared with its digest.
    """
    piece_stops = list(accumulate(piece.size for piece in pieces))  # byte after each piece
    bounds = _sequence_bounds(dataset, pieces)
    ranges = []
    for start, stop in pairwise(bounds):
        if start == stop:
            continue
        first_piece = bisect_right(piece_stops, start.byte)
        stop_piece = bisect_right(piece_stops, stop.byte)
        range_pieces = tuple(pieces[first_piece:stop_piece])
        token_range = TokenRange(
            first=start.sequence,
            last=stop.sequence,
            begin=start.byte,
            end=stop.byte,
            pieces=range_pieces,
        )
        ranges.append(token_range)
    return ranges


class _Bound(NamedTuple):
    """Where a range ends and the next one begins."""

    sequence: int
    """Number of the first sequence of the next range."""
    byte: int
    """First byte of that sequence in the .bin."""


def _sequence_bounds(dataset: MMapIndexedDataset, pieces: Sequence[PieceDigest]) -> list[_Bound]:
    """Return the sequences at which ranges of about 128 MiB begin.

    Args:
        dataset: The dataset.
        pieces: Digests of the pieces that its .bin was joined from; empty if it was not. Ranges
            then begin where pieces begin.

    Returns:
        Number and first byte of these sequences, and at the end the number of all sequences and
        bytes.
    """
    pointers = dataset.sequence_pointers
    n_sequences = len(dataset)
    bounds = [_Bound(0, 0)]
    for byte in _range_bounds(dataset.bin_bytes, pieces):
        # The next sequence. np.searchsorted would copy the pointers, which are not aligned.
        sequence = bisect_left(pointers, byte)
        if sequence == n_sequences:
            continue
        bound = _Bound(sequence, int(pointers[sequence]))

        # This project writes no piece that ends within a sequence. If another program did, the
        # range continues, since a range consists of whole sequences.
        is_between_pieces = not pieces or bound.byte == byte
        if is_between_pieces and bound != bounds[-1]:
            bounds.append(bound)
    bounds.append(_Bound(n_sequences, dataset.bin_bytes))
    return bounds


def _range_bounds(bin_bytes: int, pieces: Sequence[PieceDigest]) -> Iterator[int]:
    """Yield the bytes at which ranges of about 128 MiB would end, not considering sequences."""
    if not pieces:
        yield from range(PART_BYTES, bin_bytes, PART_BYTES)
        return
    sizes = [piece.size for piece in pieces]
    stops = list(accumulate(sizes))
    for run in runs(sizes):
        yield stops[run[-1]]


def spread_ranges(dataset: MMapIndexedDataset) -> Iterator[TokenRange]:
    """Yield 256 evenly spread ranges of a dataset with more than 16 Mi tokens.

    A range contains the sequences that are completely in a chunk of 64 Ki tokens. If there are
    none, because the chunk is within a long sequence, it contains the tokens of the chunk.

    Args:
        dataset: The dataset. Its index must be valid.
    """
    pointers = dataset.sequence_pointers  # (n_sequences,) first byte of each sequence; ascending
    itemsize = dataset.dtype.itemsize
    bin_bytes = dataset.bin_bytes
    for start_token, stop_token in spread_chunks(dataset.token_count):
        start_byte = start_token * itemsize
        stop_byte = stop_token * itemsize

        # The first sequence that starts in the chunk, and the one after the last complete sequence:
        # it starts in the chunk, or where the chunk stops, and stops after the chunk.
        first_sequence = bisect_left(pointers, start_byte)
        if stop_byte == bin_bytes:
            stop_sequence = len(dataset)
            complete_stop_byte = bin_bytes
        else:
            stop_sequence = bisect_right(pointers, stop_byte) - 1
            complete_stop_byte = int(pointers[stop_sequence])

        if first_sequence < stop_sequence:
            yield TokenRange(
                first=first_sequence,
                last=stop_sequence,
                begin=int(pointers[first_sequence]),
                end=complete_stop_byte,
            )
        else:
            # No sequence is complete in the chunk: check the tokens of the one around it.
            sequence = bisect_right(pointers, start_byte) - 1
            yield TokenRange(first=sequence, last=sequence, begin=start_byte, end=stop_byte)


def spread_chunks(n_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield 256 evenly spread chunks of 64 Ki tokens, of which the first and last are at the ends.

    Args:
        n_tokens: Number of tokens that are sampled, at least 64 Ki.

    Yields:
        (position of the first token, position after the last one) of each chunk.
    """
    chunk_tokens = QUICK_TOKENS // QUICK_PLACES
    for place in range(QUICK_PLACES):
        start = (n_tokens - chunk_tokens) * place // (QUICK_PLACES - 1)
        yield start, start + chunk_tokens


def spread_rows(n_rows: int, max_rows: int) -> NDArray[np.int64]:
    """Return the numbers of evenly spread rows, with the first and the last row among them.

    Args:
        n_rows: Number of all rows.
        max_rows: The most numbers to return; if there are no more rows, all of them are returned.

    Returns:
        int64, ascending.
    """
    if n_rows <= max_rows:
        return np.arange(n_rows, dtype=np.int64)
    return np.arange(max_rows, dtype=np.int64) * (n_rows - 1) // max(max_rows - 1, 1)
