"""Fill the room in packs with the start of the next pack's pieces, so that almost all are full.

The pieces of all packs that have room are concatenated to one stream of tokens, which is cut into
full packs. Each of these takes the place of the pack whose tokens completed it. For example, with
packs of 10 tokens:

    packs       A: 6, 2    B: 10    C: 7    D: 10    E: 9       pieces by their tokens
    stream      6, 2, 7, 9                                      of A, C and E, which have room
    cut         6, 2, 2 | 5, 5 | 4                              completed by C, by E, and by none
    result      B: 10    6, 2, 2    D: 10    5, 5    4
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.sampling.packing.pieces import NO_PIECES, FilledPacks, PieceArrays


def carry_room(batches: Iterable[FilledPacks], length: int) -> Iterator[FilledPacks]:
    """Move text between training samples, so that all of them are full except for the last one.

    Such samples are called *packs*. Packs that are full stay as they are. The pieces of documents
    in all others are put one after another, and cut into full packs. For packs of 10 tokens, the
    numbers are the tokens of the pieces:

        before     6, 2    10    7          10    9
        after              10    6, 2, 2    10    5, 5    4

    The pieces 6 and 2 of the first pack wait until there are 2 more tokens, from the third pack.
    Its other 5 tokens wait for the last pack.

    Args:
        batches: All packs in order, some at a time.
        length: Tokens of a pack.

    Yields:
        The full packs, in as many batches. At the end, if tokens are left, one pack with these.
    """
    pending = NO_PIECES  # pieces that wait, not enough for a full pack
    for batch in batches:
        carried = _carry_in_batch(pending, batch, length)
        pending = carried.pending
        yield carried.full_packs

    # What still waits is the last pack: 4.
    n_pending = len(pending.lengths)
    if n_pending > 0:
        yield FilledPacks(bounds=np.array([0, n_pending]), pieces=pending)


class _CarriedBatch(NamedTuple):
    """A batch of packs without room."""

    full_packs: FilledPacks
    pending: PieceArrays
    """The end of the stream after the batch: fewer tokens than a pack."""


def _carry_in_batch(pending: PieceArrays, batch: FilledPacks, length: int) -> _CarriedBatch:
    """Replace training samples that have room by fewer ones that are full.

    Such samples are called *packs*. The pieces of documents in packs with room are put one after
    another. Whenever these have enough tokens for a full pack, it is written, in the place of the
    pack that completed it. For packs of 10 tokens:

        pack                     A       B     C        D     E
        tokens of its pieces     6, 2    10    7        10    9
        put one after another    6, 2          7              9
        full packs                       10    6, 2, 2  10    5, 5     4 tokens are left

    Args:
        pending: Pieces that are left from earlier packs: fewer tokens than a pack. None in the
            example.
        batch: The packs.
        length: Tokens of a pack.
    """
    # (n_packs,) each: which packs are full already, and after which ones the stream has a full pack
    # more. The values are those of the example.
    token_counts = batch.token_counts  # [8, 10, 7, 10, 9]
    is_full = token_counts >= length  # B and D
    appended_tokens = np.where(is_full, 0, token_counts)  # [8, 0, 7, 0, 9]
    stream_tokens = pending.tokens + np.cumsum(appended_tokens)  # [8, 8, 15, 15, 24]
    n_completed = stream_tokens // length  # [0, 0, 1, 1, 2] full packs of the stream
    completes_pack = np.diff(n_completed, prepend=0) > 0  # C and E

    # The result has a pack for each of these, in the order of the batch.
    is_in_result = is_full | completes_pack
    numbers_in_result = np.cumsum(is_in_result) - 1  # B: 0, C: 1, D: 2, E: 3
    numbers_of_full = numbers_in_result[is_full]  # [0, 2]
    numbers_of_stream = numbers_in_result[completes_pack]  # [1, 3]

    # Cut the stream into packs. The last one is pending if it is not complete.
    packs_with_room = batch.select(~is_full)
    stream = _cut(PieceArrays.concatenated([pending, packs_with_room.pieces]), length)
    is_complete = stream.pack_numbers < len(numbers_of_stream)  # (n_pieces_of_stream,)
    stream_pieces = stream.pieces.select(is_complete)
    pack_of_stream_piece = numbers_of_stream[stream.pack_numbers[is_complete]]

    # Put the pieces of the stream between those of the packs that were full already.
    old_full_packs = batch.select(is_full)
    pack_of_full_piece = numbers_of_full[old_full_packs.pack_numbers]
    full_packs = _packs_from(
        pieces=PieceArrays.concatenated([old_full_packs.pieces, stream_pieces]),
        pack_of_piece=np.concatenate([pack_of_full_piece, pack_of_stream_piece]),
        n_packs=len(numbers_of_full) + len(numbers_of_stream),
    )
    return _CarriedBatch(full_packs, pending=stream.pieces.select(~is_complete))


def _packs_from(pieces: PieceArrays, pack_of_piece: NDArray[np.int64], n_packs: int) -> FilledPacks:
    """Build packs (training samples) from pieces of documents in any order.

    For example, three pieces belong to these packs:

        piece       a    b    c
        pack        1    0    1
        result      pack 0: b       pack 1: a, c

    Args:
        pieces: The pieces. Those of one pack are in the order in which the pack holds them.
        pack_of_piece: Number of each piece's pack, shape (n_pieces,).
        n_packs: Number of packs.
    """
    order = np.argsort(pack_of_piece, kind="stable")  # (n_pieces,) [1, 0, 2]
    piece_counts = np.bincount(pack_of_piece, minlength=n_packs)  # (n_packs,) [1, 2]
    bounds = np.concatenate([[0], np.cumsum(piece_counts)])  # (n_packs + 1,) [0, 1, 3]
    return FilledPacks(bounds, pieces.select(order))


class _CutStream(NamedTuple):
    """A stream of pieces after it was cut into packs."""

    pieces: PieceArrays
    """The pieces; one that was cut is two pieces now."""
    pack_numbers: NDArray[np.int64]
    """The pack of each piece, counted from 0; shape (n_pieces,)."""


def _cut(stream: PieceArrays, length: int) -> _CutStream:
    """Cut pieces of documents, put one after another, into training samples of equal length.

    Such samples are called *packs*. For example, pieces of 6, 2, 7 and 9 tokens are cut into packs
    of 10 tokens. The last two pieces are cut in two:

        pack         0          1       2
        pieces       6, 2, 2    5, 5    4

    Args:
        stream: The pieces, none of which is empty.
        length: Tokens of a pack.
    """
    piece_starts = np.cumsum(stream.lengths) - stream.lengths  # (n_pieces,) [0, 6, 8, 15]
    pack_starts = np.arange(0, stream.tokens, length)  # (n_packs,) [0, 10, 20]
    starts = _merged(piece_starts, pack_starts)  # (n_new,) [0, 6, 8, 10, 15, 20]
    return _CutStream(_divided_at(stream, starts), pack_numbers=starts // length)


def _divided_at(stream: PieceArrays, starts: NDArray[np.int64]) -> PieceArrays:
    """Divide pieces of documents, put one after another, into smaller pieces.

    For example, pieces of 6 and 9 tokens, of 15 together, are divided at the tokens 0, 6 and 10:

        old piece            0    1    1
        new piece            0    1    2
        its first token      0    6    10
        its tokens           6    4    5

    Args:
        stream: The pieces, none of which is empty.
        starts: Where the new pieces start, ascending, which includes the starts of all old ones:
            [0, 6, 10]; shape (n_new,).
    """
    old_stops = np.cumsum(stream.lengths)  # (n_old,) [6, 15]
    old_starts = old_stops - stream.lengths  # [0, 6]
    # A new piece is from the first old piece that stops after its start.
    old_pieces = np.searchsorted(old_stops, starts, side="right")  # (n_new,) [0, 1, 1]
    skipped_tokens = starts - old_starts[old_pieces]  # of the old piece: [0, 0, 4]
    return PieceArrays(
        documents=stream.documents[old_pieces],
        firsts=stream.firsts[old_pieces] + skipped_tokens,  # positions in the documents
        lengths=np.diff(starts, append=stream.tokens),
    )


def _merged(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of two ascending arrays as one: [0, 6, 8] and [0, 10] give [0, 6, 8, 10].

    Each number comes once, and none is negative.
    """
    # A stable sort is the fastest here, since it merges two ascending arrays.
    numbers = np.sort(np.concatenate([left, right]), kind="stable")
    is_new = np.diff(numbers, prepend=-1) > 0
    unique_numbers: NDArray[np.int64] = numbers[is_new]
    return unique_numbers
