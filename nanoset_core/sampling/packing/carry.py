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
    """Fill the room in packs, so that all packs except the last one are full.

    The pieces of all packs that are not full are concatenated to one stream of tokens, which is cut
    into full packs. The module's docstring has an example.

    Args:
        batches: All packs in order, some at a time.
        length: Tokens of a pack.

    Yields:
        The packs without room, in as many batches, and at the end what is left of the stream.
    """
    pending = NO_PIECES  # end of the stream, which no pack has completed yet
    for batch in batches:
        carried = _carry_in_batch(pending, batch, length)
        pending = carried.pending
        yield carried.full_packs

    n_pending = len(pending.lengths)
    if n_pending > 0:
        yield FilledPacks(np.array([0, n_pending]), pending)


class _CarriedBatch(NamedTuple):
    """A batch of packs without room."""

    full_packs: FilledPacks
    pending: PieceArrays
    """The end of the stream after the batch: fewer tokens than a pack."""


def _carry_in_batch(pending: PieceArrays, batch: FilledPacks, length: int) -> _CarriedBatch:
    """Fill the room in a batch of packs.

    Args:
        pending: The end of the stream before the batch: fewer tokens than a pack.
        batch: The packs.
        length: Tokens of a pack.
    """
    pieces_of_pack = np.diff(batch.bounds)  # (n_packs,)
    running_sums = np.concatenate([[0], np.cumsum(batch.pieces.lengths)])  # (n_pieces + 1,)
    tokens_of_pack = np.diff(running_sums[batch.bounds])  # (n_packs,)
    has_room = tokens_of_pack < length  # (n_packs,)
    is_streamed = np.repeat(has_room, pieces_of_pack)  # (n_pieces,)

    # Append the pieces of packs with room to the stream, and cut it.
    stream = PieceArrays.concatenated([pending, batch.pieces.select(is_streamed)])
    cut = _cut(stream, length)

    # Find the packs that complete one of the stream: at most one each, since they have room.
    streamed_tokens = np.cumsum(np.where(has_room, tokens_of_pack, 0))
    n_complete = (pending.tokens + streamed_tokens) // length  # (n_packs,) after each pack
    completes_one = np.diff(n_complete, prepend=0) > 0  # (n_packs,)

    # Number the packs of the result: full packs, and those that take the place of a pack.
    stays = ~has_room | completes_one
    new_numbers = np.cumsum(stays) - 1  # (n_packs,)
    numbers_of_stream_packs = new_numbers[completes_one]
    is_complete = cut.pack_numbers < len(numbers_of_stream_packs)  # (n_pieces_of_stream,)

    # Merge the pieces of both kinds in the order of their packs.
    full_pieces = batch.pieces.select(~is_streamed)
    pack_of_full_piece = np.repeat(new_numbers, pieces_of_pack)[~is_streamed]
    stream_pieces = cut.pieces.select(is_complete)
    pack_of_stream_piece = numbers_of_stream_packs[cut.pack_numbers[is_complete]]
    pack_of_piece = np.concatenate([pack_of_full_piece, pack_of_stream_piece])
    order = np.argsort(pack_of_piece, kind="stable")
    pieces = PieceArrays.concatenated([full_pieces, stream_pieces]).select(order)

    piece_counts = np.bincount(pack_of_piece, minlength=np.count_nonzero(stays))
    bounds = np.concatenate([[0], np.cumsum(piece_counts)])
    return _CarriedBatch(FilledPacks(bounds, pieces), cut.pieces.select(~is_complete))


class _CutStream(NamedTuple):
    """A stream of pieces after it was cut into packs."""

    pieces: PieceArrays
    """The pieces; one that was cut is two pieces now."""
    pack_numbers: NDArray[np.int64]
    """The pack of each piece, counted from 0; shape (n_pieces,)."""


def _cut(stream: PieceArrays, length: int) -> _CutStream:
    """Cut concatenated pieces into packs.

    For example, pieces of 6, 2, 7 and 9 tokens, cut into packs of 10 tokens:

        starts before       0  6  8      15
        cuts                         10       20
        starts after        0  6  8  10  15   20
        pieces cut from     0  1  2  2   3    3
        lengths             6  2  2  5   5    4
        packs               0  0  0  1   1    2

    Args:
        stream: The pieces, none of which is empty.
        length: Tokens of a pack.
    """
    stops = np.cumsum(stream.lengths)  # (n_pieces,) position of each piece's end in the stream
    starts = stops - stream.lengths
    n_tokens = stream.tokens

    # A piece starts where one started before, and at every cut. A stable sort is the fastest here,
    # since it merges two ascending arrays.
    cuts = np.arange(0, n_tokens, length)
    start_or_cut = np.sort(np.concatenate([starts, cuts]), kind="stable")
    is_first = np.diff(start_or_cut, prepend=-1) > 0  # False for a cut where a piece starts anyway
    new_starts = start_or_cut[is_first]
    # Each piece ends where the next one starts; without pieces, there is no end either.
    new_stops = np.append(new_starts[1:], n_tokens)[: len(new_starts)]
    sources = np.searchsorted(stops, new_starts, side="right")  # the piece that each is cut from

    pieces = PieceArrays(
        documents=stream.documents[sources],
        firsts=stream.firsts[sources] + new_starts - starts[sources],
        lengths=new_stops - new_starts,
    )
    return _CutStream(pieces, new_starts // length)
