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
    into full packs. For example, packs of 10 tokens that hold pieces of 6 and 2, of 7, and of 9
    tokens become packs of 6, 2 and 2, of 5 and 5, and of 4 tokens.

    Args:
        batches: All packs in order, some at a time.
        length: Tokens of a pack.

    Yields:
        The full packs, in as many batches. At the end, if tokens are left, one pack with these.
    """
    pending = NO_PIECES  # pieces at the end of the stream, not enough for a full pack
    for batch in batches:
        carried = _carry_in_batch(pending, batch, length)
        pending = carried.pending
        yield carried.full_packs

    # The last pack holds all pieces that are left. It starts at the first of them.
    n_pending = len(pending.lengths)
    if n_pending > 0:
        yield FilledPacks(bounds=np.array([0, n_pending]), pieces=pending)


class _CarriedBatch(NamedTuple):
    """A batch of packs without room."""

    full_packs: FilledPacks
    pending: PieceArrays
    """The end of the stream after the batch: fewer tokens than a pack."""


def _carry_in_batch(pending: PieceArrays, batch: FilledPacks, length: int) -> _CarriedBatch:
    """Replace the packs of a batch that have room by fewer packs that are full.

    The pieces of packs with room are appended to a stream of pieces. Whenever the stream has enough
    tokens for a full pack, this pack takes the place of the pack whose pieces completed it. For
    example, with packs of 10 tokens, and without pending pieces:

        pack                  A       B     C        D     E
        tokens of its pieces  6, 2    10    7        10    9
        stream                6, 2          7              9
        full packs                    10    6, 2, 2  10    5, 5     4 tokens are pending

    Args:
        pending: Pieces at the end of the stream before the batch: fewer tokens than a pack.
        batch: The packs.
        length: Tokens of a pack.
    """
    piece_counts = np.diff(batch.bounds)  # (n_packs,)
    running_sums = np.concatenate([[0], np.cumsum(batch.pieces.lengths)])  # (n_pieces + 1,)
    token_counts = np.diff(running_sums[batch.bounds])  # (n_packs,)
    has_room = token_counts < length  # (n_packs,) True for A, C and E

    # Append the pieces of packs with room to the stream, and cut the stream into packs. All of
    # these are full, except perhaps the last one.
    is_streamed = np.repeat(has_room, piece_counts)  # (n_pieces,)
    stream = PieceArrays.concatenated([pending, batch.pieces.select(is_streamed)])
    cut = _cut(stream, length)

    # Number the places of the result: 0 to 3 for B, C, D and E. A pack without a place, such as A,
    # gets a number as well, which is not used.
    appended_tokens = np.where(has_room, token_counts, 0)
    completes_pack = _completes_pack(pending.tokens, appended_tokens, length)  # True for C and E
    has_place = ~has_room | completes_pack  # (n_packs,)
    places = np.cumsum(has_place) - 1  # (n_packs,)

    # The pieces of packs that were full already, and the place of each.
    full_pieces = batch.pieces.select(~is_streamed)
    place_of_full_piece = np.repeat(places, piece_counts)[~is_streamed]

    # The pieces of complete packs of the stream. Pack k has the k-th place of a completing pack.
    stream_places = places[completes_pack]  # (n_complete_packs_of_stream,)
    is_complete = cut.pack_numbers < len(stream_places)  # (n_pieces_of_stream,)
    stream_pieces = cut.pieces.select(is_complete)
    place_of_stream_piece = stream_places[cut.pack_numbers[is_complete]]

    full_packs = _packs_from(
        pieces=PieceArrays.concatenated([full_pieces, stream_pieces]),
        pack_of_piece=np.concatenate([place_of_full_piece, place_of_stream_piece]),
        n_packs=int(np.count_nonzero(has_place)),
    )
    return _CarriedBatch(full_packs, pending=cut.pieces.select(~is_complete))


def _completes_pack(
    n_pending: int, appended_tokens: NDArray[np.int64], length: int
) -> NDArray[np.bool_]:
    """Return which packs of a batch complete a pack when their tokens are appended to a stream.

    For example, packs of 10 tokens append 8, 0, 7 and 9 tokens to a stream without pending tokens.
    Then the stream has 8, 8, 15 and 24 tokens, so that the third and the fourth complete a pack.

    Args:
        n_pending: Tokens of the stream before the batch; fewer than a pack.
        appended_tokens: Tokens that each pack appends, fewer than a pack; shape (n_packs,). So none
            of them completes two packs.
        length: Tokens of a pack.

    Returns:
        Shape (n_packs,).
    """
    stream_tokens = n_pending + np.cumsum(appended_tokens)  # after each pack of the batch
    n_complete = stream_tokens // length
    is_complete: NDArray[np.bool_] = np.diff(n_complete, prepend=0) > 0
    return is_complete


def _packs_from(pieces: PieceArrays, pack_of_piece: NDArray[np.int64], n_packs: int) -> FilledPacks:
    """Return packs that consist of some pieces, which need not be in the order of the packs.

    Args:
        pieces: The pieces. Those of one pack are in the order in which the pack holds them.
        pack_of_piece: Number of each piece's pack, shape (n_pieces,).
        n_packs: Number of packs.
    """
    order = np.argsort(pack_of_piece, kind="stable")
    piece_counts = np.bincount(pack_of_piece, minlength=n_packs)  # (n_packs,)
    bounds = np.concatenate([[0], np.cumsum(piece_counts)])  # (n_packs + 1,)
    return FilledPacks(bounds, pieces.select(order))


class _CutStream(NamedTuple):
    """A stream of pieces after it was cut into packs."""

    pieces: PieceArrays
    """The pieces; one that was cut is two pieces now."""
    pack_numbers: NDArray[np.int64]
    """The pack of each piece, counted from 0; shape (n_pieces,)."""


def _cut(stream: PieceArrays, length: int) -> _CutStream:
    """Cut concatenated pieces into packs.

    For example, old pieces of 6, 2, 7 and 9 tokens, cut into packs of 10 tokens, become six:

        old starts          0  6  8      15
        cuts                0        10       20
        new starts          0  6  8  10  15   20
        old pieces          0  1  2  2   3    3      the old piece that each new one is cut from
        new lengths         6  2  2  5   5    4
        pack numbers        0  0  0  1   1    2

    Args:
        stream: The old pieces, none of which is empty.
        length: Tokens of a pack.
    """
    old_stops = np.cumsum(stream.lengths)  # (n_old,) position of each piece's end in the stream
    old_starts = old_stops - stream.lengths
    n_tokens = stream.tokens

    # A new piece starts at each old start and at each cut. A stable sort is the fastest here,
    # since it merges two ascending arrays.
    cuts = np.arange(0, n_tokens, length)
    positions = np.sort(np.concatenate([old_starts, cuts]), kind="stable")
    # A cut at an old start is in the array twice: take the position once.
    is_new_position = np.diff(positions, prepend=-1) > 0
    new_starts = positions[is_new_position]  # (n_new,)
    # Each piece ends where the next one starts; without pieces, there is no end either.
    new_stops = np.append(new_starts[1:], n_tokens)[: len(new_starts)]

    # The old piece in which each new one starts: the first that ends after this position.
    old_pieces = np.searchsorted(old_stops, new_starts, side="right")  # (n_new,)
    pieces = PieceArrays(
        documents=stream.documents[old_pieces],
        # Position in the document of a new piece's first token.
        firsts=stream.firsts[old_pieces] + new_starts - old_starts[old_pieces],
        lengths=new_stops - new_starts,
    )
    return _CutStream(pieces, pack_numbers=new_starts // length)
