"""Packing as plain loops over single pieces: the kernels must return the same.

A pack is a list of pieces, and a piece is a run of tokens of one document.
"""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import pairwise
from typing import NamedTuple

from helpers.slow_hashing import slow_mix
from nanoset_core.sampling.packing.pieces import FilledPacks
from nanoset_core.statistics.hashing import STEP

TWO_64 = 2**64


class SlowPiece(NamedTuple):
    """Tokens of one document that are in the same pack."""

    document: int
    first: int
    """Position of the first token in the document."""
    n_tokens: int


def packs_in(batches):
    """Return the packs of some `FilledPacks` as lists of pieces."""
    packs = []
    for batch in batches:
        assert isinstance(batch, FilledPacks)
        columns = [column.tolist() for column in batch.pieces]
        pieces = [SlowPiece(*row) for row in zip(*columns, strict=True)]
        for start, stop in pairwise(batch.bounds.tolist()):
            packs.append(pieces[start:stop])
    return packs


def slow_pieces(lengths, rule):
    """Cut documents into pieces that fit into a pack, in the order of the dataset.

    With packs of 10 tokens, a document of 23 tokens has pieces of 10, 10 and 3. If long documents
    are truncated, it has only the first one.
    """
    pieces = []
    for document, n_tokens in enumerate(lengths):
        if rule.long == "truncate":
            n_tokens = min(n_tokens, rule.length)
        for first in range(0, n_tokens, rule.length):
            pieces.append(SlowPiece(document, first, min(rule.length, n_tokens - first)))
    return pieces


def slow_best_fit(piece_lengths, length):
    """Return the room that best-fit-decreasing leaves in each pack.

    The pieces are put into packs from the longest to the shortest: each into the pack with the
    least room in which it fits, or into a new one.
    """
    rooms = []
    for piece_length in sorted(piece_lengths, reverse=True):
        sufficient_rooms = [room for room in rooms if room >= piece_length]
        room = length
        if sufficient_rooms:
            room = min(sufficient_rooms)
            rooms.remove(room)
        rooms.append(room - piece_length)
    return rooms


class PlacedPack(NamedTuple):
    """A pack of a plan with its position in the order; packs are sorted by these fields."""

    stratum: int
    """The order is divided into strata of equal size."""
    position: int
    """Position in the stratum, in steps of 2**-32."""
    class_number: int
    """Class of the pack in the plan."""
    number: int
    """Number among the packs of the class."""


def slow_pack_order(plan, seed, stratum_pieces):
    """Return the class of each pack, in the order of the packs.

    The packs of each class are spread evenly: if the order is a line from 0 to 1, pack j of n is at
    a pseudo-random position between j / n and (j + 1) / n.
    """
    step = int(STEP)
    n_strata = max(1, -(-plan.pieces // stratum_pieces))  # rounded up
    packs = []
    for class_number, n_packs in enumerate(plan.counts.tolist()):
        salt = slow_mix((class_number * step + slow_mix(seed)) % TWO_64)
        for number in range(n_packs):
            random_bits = slow_mix((salt + number * step) % TWO_64)
            jitter = (random_bits >> 11) * 2.0**-53  # from 0 to 1
            place = (number + jitter) / n_packs * n_strata

            stratum = min(int(place), n_strata - 1)
            position = min(int((place - stratum) * 2**32), 2**32 - 1)
            packs.append(PlacedPack(stratum, position, class_number, number))
    return [pack.class_number for pack in sorted(packs)]


def slow_assign(lengths, rule, plan, seed, stratum_pieces):
    """Return the packs of a plan, with documents.

    Each piece of the plan gets the next document that has a piece of this length.
    """
    waiting = defaultdict(deque)  # pieces without a pack, by their length
    for piece in slow_pieces(lengths, rule):
        waiting[piece.n_tokens].append(piece)

    packs = []
    for class_number in slow_pack_order(plan, seed, stratum_pieces):
        start, stop = plan.piece_starts[class_number : class_number + 2]
        pack = []
        for n_tokens in plan.piece_lengths[start:stop].tolist():
            pack.append(waiting[n_tokens].popleft())
        packs.append(sorted(pack))
    return packs


class SlowToken(NamedTuple):
    """A token of a document."""

    document: int
    position: int


def slow_carry(packs, length):
    """Return packs without room, except perhaps the last one.

    Full packs stay as they are. The tokens of all others are concatenated, and cut into packs: each
    is where the pack that completes it was.
    """
    full_packs = []
    stream = []  # tokens that are not in a full pack
    for pack in packs:
        if sum(piece.n_tokens for piece in pack) == length:
            full_packs.append(pack)
            continue
        for piece in pack:
            for position in range(piece.first, piece.first + piece.n_tokens):
                stream.append(SlowToken(piece.document, position))
        if len(stream) >= length:
            full_packs.append(pieces_of(stream[:length]))
            stream = stream[length:]
    if stream:
        return [*full_packs, pieces_of(stream)]
    return full_packs


def pieces_of(tokens):
    """Return the pieces that consist of some tokens."""
    pieces = []
    for token in tokens:
        continues_piece = False
        if pieces:
            last = pieces[-1]
            next_position = last.first + last.n_tokens
            continues_piece = token == SlowToken(last.document, next_position)
        if continues_piece:
            pieces[-1] = last._replace(n_tokens=last.n_tokens + 1)
        else:
            pieces.append(SlowPiece(token.document, token.position, 1))
    return pieces
