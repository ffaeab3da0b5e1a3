"""Divide a .bin into ranges that are checked independently: all of it, or evenly spread samples.

A .bin contains sequences of tokens without gaps. A range has whole sequences: if sequences of 100,
50 and 70 MiB follow each other, the first range of about 128 MiB has the first two. A sample of a
large .bin may also be some tokens within one long sequence.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.stages.report import PART_BYTES, group_by_bytes
from nanoset_core.storage.store import PieceDigest

QUICK_TOKENS = 1 << 24
"""Most tokens that a quick check reads. Larger datasets are sampled."""
QUICK_PLACES = 256
"""Number of evenly spread ranges that a quick check reads of a larger dataset."""


class TokenRange(NamedTuple):
    """A range of a .bin: consecutive sequences, or some tokens within one sequence."""

    first_sequence: int
    """Number of the first sequence, or of the sequence that contains the tokens."""
    stop_sequence: int
    """Number after the last sequence; equal to `first_sequence` for tokens within one sequence."""
    start_byte: int
    """First byte in the .bin."""
    stop_byte: int
    """Byte after the last one."""
    pieces: tuple[PieceDigest, ...] = ()
    """Digests of the pieces that the bytes were joined from, if they are known."""


def token_ranges(
    dataset: MMapIndexedDataset, pieces: Sequence[PieceDigest] = ()
) -> list[TokenRange]:
    """Divide a dataset into ranges of about 128 MiB, which different processes can check.

    A range ends where a sequence ends. If a bucket has joined the token file from pieces with known
    digests, it also ends where a piece ends, so that whoever checks it can compare the digests:

        pieces    |───────────|───────────|───────────|───────────|
        ranges    |═══════════════════════|═══════════════════════|

    Args:
        dataset: The dataset. Its index must be valid.
        pieces: Size and digest of each piece; empty if the file was written as a whole.

    Returns:
        The ranges, in order and without gaps; none if there are no tokens.
    """
    bounds = _sequence_bounds(dataset, pieces)  # where ranges start and stop
    piece_stops = list(accumulate(piece.size for piece in pieces))  # [50, 100, 150, 200]
    ranges = []
    for start, stop in pairwise(bounds):
        if start == stop:
            continue
        token_range = TokenRange(
            first_sequence=start.sequence,
            stop_sequence=stop.sequence,
            start_byte=start.byte,
            stop_byte=stop.byte,
            pieces=tuple(pieces[_pieces_between(start.byte, stop.byte, piece_stops)]),
        )
        ranges.append(token_range)
    return ranges


def _pieces_between(start_byte: int, stop_byte: int, piece_stops: Sequence[int]) -> slice:
    """Return which pieces of a token file a range of bytes consists of.

    If pieces stop at the bytes [50, 100, 150, 200], the bytes 100 to 200 are the pieces 2 and 3:
    two pieces stop up to 100, and four up to 200.

    Args:
        start_byte: First byte of the range, where a piece starts.
        stop_byte: Byte after the last one, where a piece stops.
        piece_stops: Byte at which each piece stops, ascending.
    """
    return slice(bisect_right(piece_stops, start_byte), bisect_right(piece_stops, stop_byte))


class _Bound(NamedTuple):
    """Where a range ends and the next one begins."""

    sequence: int
    """Number of the first sequence of the next range."""
    byte: int
    """First byte of that sequence in the .bin."""


def _sequence_bounds(dataset: MMapIndexedDataset, pieces: Sequence[PieceDigest]) -> list[_Bound]:
    """Divide a token file into ranges of about 128 MiB, and return where they start and stop.

    The file is cut every 128 MiB. Each cut then moves to the start of the next sequence. For
    example, in steps of 100 bytes:

        sequence            0      1      2      3
        starts at byte      0     60    140    250       (the file has 280 bytes)

        cut at byte       100    200
        moves to          140    250

        result            sequences 0, 2 and 3 at the bytes 0, 140 and 250, and the end

    Args:
        dataset: The dataset, with its .bin and .idx opened.
        pieces: If a bucket has joined the file from pieces, their sizes and digests. Then it is
            only cut where both a piece and a sequence end, so that each range has whole pieces.

    Returns:
        The first sequence of each range and its first byte. The last entry is the end of the file:
        the numbers of all sequences and of all bytes.
    """
    bounds = [_Bound(sequence=0, byte=0)]
    for cut_byte in _cuts(dataset.bin_bytes, pieces):
        bound = _first_bound_from(dataset, cut_byte)
        if bound is None or bound == bounds[-1]:
            continue  # no sequence starts after the cut, or none between this cut and the last one
        if pieces and bound.byte != cut_byte:
            continue  # the piece ends within a sequence
        bounds.append(bound)
    bounds.append(_Bound(len(dataset), dataset.bin_bytes))
    return bounds


def _first_bound_from(dataset: MMapIndexedDataset, byte: int) -> _Bound | None:
    """Return the first sequence that starts at a byte of the .bin or later; None if none does."""
    pointers = dataset.sequence_pointers  # (n_sequences,) first byte of each sequence; ascending
    # `np.searchsorted` would copy the pointers, which are not aligned in memory.
    sequence = bisect_left(pointers, byte)
    if sequence == len(dataset):
        return None
    return _Bound(sequence, int(pointers[sequence]))


def _last_bound_up_to(dataset: MMapIndexedDataset, byte: int) -> _Bound:
    """Return the last place of the .bin, up to a byte, where a sequence ends and the next begins.

    With sequences that start at the bytes 0, 100 and 250, and byte 300, it is sequence 2 at byte
    250. If the byte is the end of the file, it is this end, where the last sequence ends.
    """
    if byte == dataset.bin_bytes:
        return _Bound(len(dataset), byte)
    n_started = bisect_right(dataset.sequence_pointers, byte)  # 3 start at byte 300 or before
    sequence = n_started - 1
    return _Bound(sequence, int(dataset.sequence_pointers[sequence]))


def _cuts(bin_bytes: int, pieces: Sequence[PieceDigest]) -> Iterator[int]:
    """Yield the bytes at which a token file is cut, in steps of about 128 MiB.

    Args:
        bin_bytes: Size of the file.
        pieces: The pieces that it was joined from, if it was. Then it is cut where pieces end.
    """
    if not pieces:
        yield from range(PART_BYTES, bin_bytes, PART_BYTES)
        return
    sizes = [piece.size for piece in pieces]
    stops = list(accumulate(sizes))
    for run in group_by_bytes(sizes):  # consecutive pieces with 128 MiB or more together
        last_piece = run[-1]
        yield stops[last_piece]


def spread_ranges(dataset: MMapIndexedDataset) -> Iterator[TokenRange]:
    """Yield 256 samples of a large dataset, spread evenly over it, for a quick check.

    Of each chunk of 64 Ki tokens, the sample is the sequences that are completely in it:

        sequences    |──────|────────|─────|──────────|────|
        chunk             |··················|
        sample              |══════════════|

    If sequences are so long that none is completely in the chunk, the sample is the chunk itself.

    Args:
        dataset: The dataset, which has more than 16 Mi tokens. Its index must be valid.
    """
    for start_token, stop_token in spread_chunks(dataset.token_count):
        start_byte = start_token * dataset.dtype.itemsize
        stop_byte = stop_token * dataset.dtype.itemsize
        sample = _complete_sequences(dataset, start_byte, stop_byte)
        if sample is None:
            sample = _part_of_sequence(dataset, start_byte, stop_byte)
        yield sample


def _part_of_sequence(dataset: MMapIndexedDataset, start_byte: int, stop_byte: int) -> TokenRange:
    """Return a chunk of a token file as a range without complete sequences.

    Of such a range, only the ids of the tokens are checked, and not how sequences begin and end:

        sequences    |─── sequence 6 ───|────────── sequence 7 ──────────|
        chunk                                   |·········|
        result       first_sequence=7, stop_sequence=7: there are no sequences from 7 up to 7

    Args:
        dataset: The dataset, with its .bin and .idx opened.
        start_byte: First byte of the chunk.
        stop_byte: Byte after the chunk.
    """
    # The chunk begins in the last of the sequences that start before it, or with it.
    n_started = bisect_right(dataset.sequence_pointers, start_byte)  # 8: those from 0 to 7
    sequence = n_started - 1
    return TokenRange(sequence, sequence, start_byte, stop_byte)


def _complete_sequences(
    dataset: MMapIndexedDataset, start_byte: int, stop_byte: int
) -> TokenRange | None:
    """Return the sequences that are completely in a chunk of a token file; None if there are none.

    For example, the chunk has the bytes 50 to 300:

        sequence           0            1            2      3
        its bytes     0 to 100   100 to 250   250 to 400    400 to …
        in the chunk      part          all         part    no

    So the result is sequence 1, with the bytes 100 to 250.

    Args:
        dataset: The dataset, with its .bin and .idx opened.
        start_byte: First byte of the chunk.
        stop_byte: Byte after the chunk.
    """
    start = _first_bound_from(dataset, start_byte)  # sequence 1 starts at byte 100
    stop = _last_bound_up_to(dataset, stop_byte)  # sequence 2 starts at byte 250, where 1 ends
    if start is None or start.sequence >= stop.sequence:
        return None
    return TokenRange(
        first_sequence=start.sequence,
        stop_sequence=stop.sequence,
        start_byte=start.byte,
        stop_byte=stop.byte,
    )


def spread_chunks(n_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield 256 chunks of 64 Ki tokens, spread evenly over a range of tokens.

    The first chunk is at the start of the range, and the last one at its end. With three chunks
    instead of 256, and a range of 1,000 tokens in chunks of 100: 0 to 100, 450 to 550, and 900 to
    1,000.

    Args:
        n_tokens: Number of tokens in the range, at least 64 Ki.

    Yields:
        (position of the first token, position after the last one) of each chunk.
    """
    chunk_tokens = QUICK_TOKENS // QUICK_PLACES
    last_start = n_tokens - chunk_tokens
    for number in range(QUICK_PLACES):
        start = last_start * number // (QUICK_PLACES - 1)
        yield start, start + chunk_tokens


def spread_rows(n_rows: int, max_rows: int) -> NDArray[np.int64]:
    """Return the numbers of evenly spread rows, with the first and the last row among them.

    For example, of 11 rows at most 3: [0, 5, 10]. Of 2 rows at most 3: [0, 1].

    Args:
        n_rows: Number of all rows.
        max_rows: The most numbers to return.

    Returns:
        int64, ascending.
    """
    if n_rows <= max_rows:
        return np.arange(n_rows, dtype=np.int64)
    numbers = np.arange(max_rows, dtype=np.int64)  # [0, 1, 2]
    last_row = n_rows - 1  # 10
    last_number = max(max_rows - 1, 1)  # 2
    return numbers * last_row // last_number  # [0, 5, 10]
