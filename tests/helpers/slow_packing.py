"""Packing as plain loops over single pieces: the kernels must return the same.

A pack is a list of pieces, and a piece is (document, first token, number of tokens).
"""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import pairwise

from helpers.slow_hashing import slow_mix
from nanoset_core.sampling.hashing import STEP
from nanoset_core.sampling.packing.pieces import FilledPacks

TWO_64 = 2**64


def packs_in(batches):
    """Return the packs of some `FilledPacks` as lists of pieces."""
    packs = []
    for batch in batches:
        assert isinstance(batch, FilledPacks)
        rows = list(zip(*(column.tolist() for column in batch.pieces), strict=True))
        packs += [rows[start:stop] for start, stop in pairwise(batch.bounds.tolist())]
    return packs


def slow_pieces(lengths, rule):
    """Return all pieces of documents, in the order of the dataset."""
    pieces = []
    for document, tokens in enumerate(lengths):
        kept = min(tokens, rule.length) if rule.long == "truncate" else tokens
        for first in range(0, kept, rule.length):
            pieces.append((document, first, min(rule.length, kept - first)))
    return pieces


def slow_best_fit(piece_lengths, length):
    """Return the room that best-fit-decreasing, piece by piece, leaves in each pack."""
    rooms = []
    for piece_length in sorted(piece_lengths, reverse=True):
        sufficient = [room for room in rooms if room >= piece_length]
        if sufficient:
            rooms.remove(min(sufficient))
        rooms.append(min(sufficient, default=length) - piece_length)
    return rooms


def slow_pack_order(plan, seed, stratum_pieces):
    """Return the class of each pack, in the order of the packs."""
    step = int(STEP)
    n_strata = max(1, -(-plan.pieces // stratum_pieces))
    keys = []
    for class_number, count in enumerate(plan.counts.tolist()):
        salt = slow_mix((class_number * step + slow_mix(seed)) % TWO_64)
        for number in range(count):
            jitter = (slow_mix((salt + number * step) % TWO_64) >> 11) * 2.0**-53
            position = (number + jitter) / count * n_strata
            stratum = min(int(position), n_strata - 1)
            unit = min(int((position - stratum) * 2**32), 2**32 - 1)
            keys.append((stratum, unit, class_number, number))
    return [class_number for _, _, class_number, _ in sorted(keys)]


def slow_assign(lengths, rule, plan, seed, stratum_pieces):
    """Return the packs of a plan, each piece with the next document that has such a piece."""
    waiting = defaultdict(deque)
    for piece in slow_pieces(lengths, rule):
        waiting[piece[2]].append(piece)

    packs = []
    for class_number in slow_pack_order(plan, seed, stratum_pieces):
        start, stop = plan.piece_starts[class_number : class_number + 2]
        pack = [waiting[tokens].popleft() for tokens in plan.piece_lengths[start:stop].tolist()]
        packs.append(sorted(pack))
    return packs


def slow_carry(packs, length):
    """Return packs whose room is filled by cutting the stream of all packs with room."""
    carried = []
    stream = []
    for pack in packs:
        if sum(tokens for _, _, tokens in pack) == length:
            carried.append(pack)
            continue
        # One entry for each token, so that a pack is the next `length` of them.
        for document, first, tokens in pack:
            stream += [(document, first + position) for position in range(tokens)]
        if len(stream) >= length:
            carried.append(_joined(stream[:length]))
            stream = stream[length:]
    return [*carried, _joined(stream)] if stream else carried


def _joined(tokens):
    """Return the pieces that consist of some (document, position)."""
    pieces = []
    for document, position in tokens:
        if pieces and pieces[-1][0] == document and sum(pieces[-1][1:]) == position:
            pieces[-1] = (document, pieces[-1][1], pieces[-1][2] + 1)
        else:
            pieces.append((document, position, 1))
    return pieces
