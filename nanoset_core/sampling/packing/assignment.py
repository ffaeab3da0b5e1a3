"""Decide which document goes into which pack, and in which order the packs are.

A plan (`plan.py`) says how many packs there are of each class, and which lengths a pack of a class
holds. Here the packs are put in an order, and each piece gets a document of its length:

- The packs of each class are spread evenly over the order. The j-th of n packs is at a
  pseudo-random position between j / n and (j + 1) / n of it, which depends on the seed.
- The places for pieces of one length are filled in the order of the documents that have such a
  piece.

So a pack holds documents from about the same part of the dataset as the pack's own position: the
first tenth of the packs holds about the first tenth of the documents, and the tokens are read
almost from front to back. Which documents of equal length share a pack with which others depends on
the seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.sampling.hashing import STEP, U64, mix
from nanoset_core.sampling.packing.plan import PackPlan, PieceRule

_CHUNK_DOCUMENTS = 1 << 20
"""Documents that are looked at together."""
_STRATUM_PIECES = 1 << 19
"""About how many pieces are assigned at once. Part of the definition of the order: changing it
changes the packs.
"""

# Two numbers are sorted together as one uint64: the first in the upper 32 bits, the second in the
# lower.
_UPPER = U64(32)
_LOWER_MASK = U64((1 << 32) - 1)

# The same with a pack in the upper 24 bits, and the number of a document in the lower 40.
_UPPER_OF_DOCUMENT = U64(40)
_DOCUMENT_MASK = U64((1 << 40) - 1)


class Pieces(NamedTuple):
    """Consecutive packs, with their pieces in order."""

    bounds: NDArray[np.int64]
    """Index of each pack's first piece, and last the number of pieces; shape (n_packs + 1,)."""
    documents: NDArray[np.int64]
    """Number of each piece's document; shape (n_pieces,)."""
    firsts: NDArray[np.int64]
    """Position of each piece's first token in its document; shape (n_pieces,)."""
    lengths: NDArray[np.int64]
    """Tokens of each piece; shape (n_pieces,)."""

    @property
    def packs(self) -> NDArray[np.int64]:
        """The pack of each piece, counted from 0; int64, shape (n_pieces,)."""
        return np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))

    @property
    def begins(self) -> NDArray[np.int64]:
        """Position of each piece's first token in its pack; int64, shape (n_pieces,)."""
        tokens_before = np.cumsum(self.lengths) - self.lengths
        tokens_before_pack = tokens_before[self.bounds[:-1]]
        return tokens_before - tokens_before_pack[self.packs]

    def slice(self, start: int, stop: int) -> Pieces:
        """Return the packs [start, stop)."""
        pieces = slice(int(self.bounds[start]), int(self.bounds[stop]))
        bounds = self.bounds[start : stop + 1] - self.bounds[start]
        return Pieces(bounds, self.documents[pieces], self.firsts[pieces], self.lengths[pieces])


def document_lengths(
    sequence_lengths: NDArray[np.int32], document_indices: NDArray[np.int64]
) -> NDArray[Any]:
    """Return the tokens of each document of an indexed dataset.

    Args:
        sequence_lengths: Tokens of each sequence, shape (n_sequences,).
        document_indices: Index of each document's first sequence, and at the end n_sequences;
            shape (n_documents + 1,).

    Returns:
        Integers, shape (n_documents,): `sequence_lengths` itself if every document is one sequence.
    """
    n_documents = len(document_indices) - 1
    if _is_one_sequence_each(len(sequence_lengths), document_indices):
        return sequence_lengths

    lengths = np.zeros(n_documents, np.int64)
    for start in range(0, n_documents, _CHUNK_DOCUMENTS):
        bounds = document_indices[start : start + _CHUNK_DOCUMENTS + 1]
        chunk_lengths = sequence_lengths[bounds[0] : bounds[-1]]
        tokens_before = np.concatenate([[0], np.cumsum(chunk_lengths, dtype=np.int64)])
        lengths[start : start + len(bounds) - 1] = np.diff(tokens_before[bounds - bounds[0]])
    return lengths


def _is_one_sequence_each(n_sequences: int, document_indices: NDArray[np.int64]) -> bool:
    n_documents = len(document_indices) - 1
    if n_documents != n_sequences:
        return False
    for start in range(0, n_documents, _CHUNK_DOCUMENTS):
        chunk = document_indices[start : start + _CHUNK_DOCUMENTS]
        if not (chunk == np.arange(start, start + len(chunk))).all():
            return False
    return True


def assign(lengths: NDArray[Any], rule: PieceRule, plan: PackPlan, seed: int) -> Iterator[Pieces]:
    """Yield all packs of a plan in order, with their documents.

    Each item that is yielded has some hundred thousand pieces. It takes 4 bytes of memory for each
    document, or 8 if there are more than 2**32 documents, and some hundred MiB.

    Args:
        lengths: Tokens of each document, integers, shape (n_documents,); may be memory-mapped.
        rule: How documents are divided into pieces.
        plan: The packs of these pieces.
        seed: Decides the order of the packs.
    """
    remainders = _RemainderQueue(lengths, rule)
    full_pieces = _FullPieceQueue(lengths, rule)
    pieces_of_class = np.diff(plan.piece_starts)  # (n_classes,)
    is_full_class = plan.piece_lengths[plan.piece_starts[:-1]] == rule.length  # (n_classes,)

    for classes in _pack_order(plan, seed):
        # Pieces of these packs: `classes` has one entry a pack, the other arrays one a piece.
        piece_counts = pieces_of_class[classes]
        bounds = np.concatenate([[0], np.cumsum(piece_counts)])
        n_pieces = int(bounds[-1])
        documents = np.empty(n_pieces, np.int64)
        firsts = np.empty(n_pieces, np.int64)
        piece_tokens = np.empty(n_pieces, np.int64)

        # Packs of one full piece: the piece may be from anywhere in its document.
        is_full = is_full_class[classes]
        full_positions = bounds[:-1][is_full]
        documents[full_positions], firsts[full_positions] = full_pieces.take(len(full_positions))
        piece_tokens[full_positions] = rule.length

        # All other packs hold remainders, each of which is the end of its document.
        other_classes = classes[~is_full]
        other_counts = piece_counts[~is_full]
        other_positions = np.flatnonzero(np.repeat(~is_full, piece_counts))
        planned_lengths = plan.piece_lengths[
            positions_in(plan.piece_starts[other_classes], other_counts)
        ]
        pack_of_piece = np.repeat(np.arange(len(other_counts), dtype=np.uint64), other_counts)
        assigned = remainders.take(planned_lengths, pack_of_piece)
        assigned_lengths = np.asarray(lengths[assigned], np.int64)
        remainder_lengths = rule.remainders(assigned_lengths)
        documents[other_positions] = assigned
        firsts[other_positions] = assigned_lengths - remainder_lengths
        piece_tokens[other_positions] = remainder_lengths

        yield Pieces(bounds, documents, firsts, piece_tokens)


def _pack_order(plan: PackPlan, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield the class of each pack, in the order of the packs, one stratum of the order at a time.

    The order is the interval from 0 to 1, divided into strata of equal size. Pack j of the n packs
    of a class is at (j + jitter) / n, with a jitter from 0 to 1 that is a hash of seed, class and
    j.
    """
    pieces_of_class = np.diff(plan.piece_starts)
    n_pieces = int((pieces_of_class * plan.counts).sum())
    n_strata = max(1, -(-n_pieces // _STRATUM_PIECES))

    class_numbers = np.arange(len(plan.counts), dtype=np.uint64)
    class_salts = mix(class_numbers * STEP + mix(np.array([seed], np.uint64)))  # (n_classes,)

    for stratum in range(n_strata):
        # Packs of each class that may be in the stratum: one more at each end than its share,
        # because of the jitter.
        start = np.maximum(plan.counts * stratum // n_strata - 1, 0)
        stop = np.minimum(-(-plan.counts * (stratum + 1) // n_strata) + 1, plan.counts)
        candidates = stop - start  # (n_classes,)
        classes = np.repeat(np.arange(len(plan.counts)), candidates)
        numbers = positions_in(start, candidates)  # j of each candidate

        # Position of each candidate, in strata from the start of the order.
        hashes = mix(class_salts[classes] + numbers.astype(np.uint64) * STEP)
        jitter = (hashes >> U64(11)).astype(np.float64) * 2.0**-53
        position = (numbers + jitter) / plan.counts[classes] * n_strata
        is_inside = np.minimum(position.astype(np.int64), n_strata - 1) == stratum
        position = position[is_inside] - stratum
        classes = classes[is_inside]

        # Sort by position, and packs at the same position by their order here.
        fixed_point = np.minimum((position * 2.0**32).astype(np.uint64), _LOWER_MASK)
        keys = np.sort(fixed_point << _UPPER | np.arange(len(position), dtype=np.uint64))
        yield classes[(keys & _LOWER_MASK).astype(np.int64)]


class _RemainderQueue:
    """The documents that have a shorter piece, sorted by the piece's length and then by number.

    For each length they are taken from the front.
    """

    def __init__(self, lengths: NDArray[Any], rule: PieceRule) -> None:
        self._n_lengths = rule.length + 1

        # How many documents have a remainder of each length, and so where each length's documents
        # start.
        counts = np.zeros(self._n_lengths, np.int64)
        for start in range(0, len(lengths), _CHUNK_DOCUMENTS):
            remainders = rule.remainders(lengths[start : start + _CHUNK_DOCUMENTS])
            counts += np.bincount(remainders, minlength=self._n_lengths)
        counts[0] = 0
        starts = np.cumsum(counts) - counts

        # A counting sort, chunk by chunk: `next_free` is where the next document of each length
        # goes.
        dtype = np.uint32 if len(lengths) <= 1 << 32 else np.uint64
        self._documents: NDArray[Any] = np.empty(int(counts.sum()), dtype)
        next_free = starts.copy()
        for start in range(0, len(lengths), _CHUNK_DOCUMENTS):
            remainders = rule.remainders(lengths[start : start + _CHUNK_DOCUMENTS])
            rows = np.flatnonzero(remainders)
            keys = np.sort(remainders[rows].view(U64) << _UPPER | rows.view(U64))
            positions = self._advance(next_free, keys >> _UPPER)
            self._documents[positions] = (keys & _LOWER_MASK) + U64(start)
        self._next = starts

    def take(
        self, piece_lengths: NDArray[np.int64], packs: NDArray[np.uint64]
    ) -> NDArray[np.int64]:
        """Take a document for each piece of some packs.

        Args:
            piece_lengths: Tokens of each piece; int64, shape (n_pieces,).
            packs: The pack of each piece, counted from 0; uint64, shape (n_pieces,), ascending.

        Returns:
            The documents by pack, and within a pack by number, so that tokens are read in the order
            of the dataset; int64, shape (n_pieces,).
        """
        # Serve the pieces by length, and those of one length in the order of their packs.
        order = np.arange(len(piece_lengths))
        keys = np.sort(piece_lengths.view(U64) << _UPPER | order.view(U64))
        documents = self._documents[self._advance(self._next, keys >> _UPPER)]
        served_packs = packs[(keys & _LOWER_MASK).view(np.int64)]

        by_pack = np.sort(served_packs << _UPPER_OF_DOCUMENT | documents.astype(np.uint64))
        return (by_pack & _DOCUMENT_MASK).view(np.int64)

    def _advance(
        self, next_positions: NDArray[np.int64], ascending: NDArray[np.uint64]
    ) -> NDArray[np.int64]:
        """Take the next document of each of some lengths.

        Args:
            next_positions: Position of the next document of each length, which is advanced.
            ascending: The lengths, ascending; a length that occurs several times takes as many
                documents. Shape (n_pieces,).

        Returns:
            Positions of the documents, shape (n_pieces,).
        """
        counts = np.bincount(ascending.view(np.int64), minlength=self._n_lengths)
        present = np.flatnonzero(counts)
        positions = positions_in(next_positions[present], counts[present])
        next_positions[present] += counts[present]
        return positions


class _FullPieceQueue:
    """All full pieces, in the order of their documents."""

    def __init__(self, lengths: NDArray[Any], rule: PieceRule) -> None:
        self._length = rule.length
        self._chunks = self._read_chunks(lengths, rule)
        # Of the present chunk: its documents with full pieces, the running count of these, and how
        # many were taken.
        self._documents = np.empty(0, np.int64)
        self._stops = np.empty(0, np.int64)
        self._taken = 0

    @staticmethod
    def _read_chunks(
        lengths: NDArray[Any], rule: PieceRule
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the documents that have full pieces, a chunk of documents at a time.

        Yields:
            The documents, and the running count of their full pieces, int64, both of the shape
            (n_documents,).
        """
        for start in range(0, len(lengths), _CHUNK_DOCUMENTS):
            counts = rule.full_pieces(lengths[start : start + _CHUNK_DOCUMENTS])
            rows = np.flatnonzero(counts)
            yield rows + start, np.cumsum(counts[rows])

    def take(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Take the next pieces.

        Returns:
            The document of each piece, and the position of the piece's first token in it, int64,
            shape (count,) each.
        """
        documents = np.empty(count, np.int64)
        firsts = np.empty(count, np.int64)
        done = 0
        while done < count:
            available = int(self._stops[-1]) - self._taken if len(self._stops) else 0
            if available == 0:
                self._documents, self._stops = next(self._chunks)
                self._taken = 0
                continue

            numbers = np.arange(self._taken, self._taken + min(count - done, available))
            row = np.searchsorted(self._stops, numbers, side="right")  # which document of the chunk
            starts = np.concatenate([[0], self._stops])
            target = slice(done, done + len(numbers))
            documents[target] = self._documents[row]
            firsts[target] = (numbers - starts[row]) * self._length
            self._taken += len(numbers)
            done += len(numbers)
        return documents, firsts


def carry_room(windows: Iterable[Pieces], length: int) -> Iterator[Pieces]:
    """Fill the room in packs, so that all packs except the last one are full.

    The pieces of all packs that have room are concatenated to one stream, which is cut into full
    packs. Such a pack takes the place of the pack whose tokens completed it.

    Args:
        windows: Packs as `assign` yields them.
        length: Tokens of a pack.
    """
    empty = np.empty(0, np.int64)
    pending = _PieceStream(empty, empty, empty)  # of the pack that the stream has not completed yet
    for window in windows:
        pieces_of_pack = np.diff(window.bounds)  # (n_packs,)
        tokens_of_pack = (
            np.add.reduceat(window.lengths, window.bounds[:-1])
            if len(pieces_of_pack)
            else pieces_of_pack
        )
        has_room = tokens_of_pack < length
        is_streamed = np.repeat(has_room, pieces_of_pack)  # (n_pieces,)

        # Append the pieces of packs with room to the stream, and cut it into packs.
        stream, stream_pack = pending.extended(window, is_streamed).cut(length)

        # Number of the stream's packs that are complete after each pack of the window.
        streamed_tokens = np.cumsum(np.where(has_room, tokens_of_pack, 0))
        complete = (pending.tokens + streamed_tokens) // length
        completes_one = np.diff(complete, prepend=0) > 0
        n_complete = int(complete[-1]) if len(complete) else 0
        is_complete = stream_pack < n_complete
        pending = stream.select(~is_complete)

        # Number the packs that are kept: full ones, and those at which the stream completed one.
        is_kept = ~has_room | completes_one
        new_number = np.cumsum(is_kept) - 1  # (n_packs,)
        full_packs = np.repeat(new_number, pieces_of_pack)[~is_streamed]
        stream_packs = new_number[completes_one][stream_pack[is_complete]]

        # Merge the pieces of both kinds, in the order of their packs.
        packs = np.concatenate([full_packs, stream_packs])
        order = np.argsort(packs, kind="stable")
        ready = stream.select(is_complete)
        documents = np.concatenate([window.documents[~is_streamed], ready.documents])[order]
        firsts = np.concatenate([window.firsts[~is_streamed], ready.firsts])[order]
        lengths = np.concatenate([window.lengths[~is_streamed], ready.lengths])[order]
        n_packs = int(new_number[-1]) + 1 if len(new_number) else 0
        bounds = np.concatenate([[0], np.cumsum(np.bincount(packs, minlength=n_packs))])
        yield Pieces(bounds, documents, firsts, lengths)

    if len(pending.documents):
        bounds = np.array([0, len(pending.documents)])
        yield Pieces(bounds, pending.documents, pending.firsts, pending.lengths)


@dataclass(frozen=True, slots=True)
class _PieceStream:
    """Concatenated pieces; each array has the shape (n_pieces,)."""

    documents: NDArray[np.int64]
    firsts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @property
    def tokens(self) -> int:
        """Tokens of all pieces."""
        return int(self.lengths.sum())

    def extended(self, window: Pieces, is_added: NDArray[np.bool_]) -> _PieceStream:
        """Return the stream with some pieces of a window appended."""
        return _PieceStream(
            np.concatenate([self.documents, window.documents[is_added]]),
            np.concatenate([self.firsts, window.firsts[is_added]]),
            np.concatenate([self.lengths, window.lengths[is_added]]),
        )

    def select(self, is_selected: NDArray[np.bool_]) -> _PieceStream:
        """Return some of the pieces."""
        return _PieceStream(
            self.documents[is_selected], self.firsts[is_selected], self.lengths[is_selected]
        )

    def cut(self, length: int) -> tuple[_PieceStream, NDArray[np.int64]]:
        """Cut the stream into packs of a length.

        A piece is cut once at most, since it is shorter than a pack.

        Returns:
            The pieces after the cuts, and the number of the pack of each, from 0 on, shape
            (n_pieces,).
        """
        stops = np.cumsum(self.lengths)
        starts = stops - self.lengths
        is_cut = starts // length < (stops - 1) // length

        # A piece that is cut becomes two neighbours, of which `second` has the indices.
        source = np.repeat(np.arange(len(self.lengths)), 1 + is_cut)
        second = np.flatnonzero(is_cut) + np.arange(1, 1 + int(is_cut.sum()))
        new_starts = starts[source]
        new_stops = stops[source]
        cuts = stops[is_cut] // length * length
        new_starts[second] = cuts
        new_stops[second - 1] = cuts

        firsts = self.firsts[source] + new_starts - starts[source]
        pieces = _PieceStream(self.documents[source], firsts, new_stops - new_starts)
        return pieces, new_starts // length
