"""Decide which lengths go together into one pack: best-fit-decreasing over a histogram of lengths.

Best-fit-decreasing takes pieces of documents from the longest to the shortest, and puts each into
the pack with the least room that suffices ("Fewer Truncations Improve Language Modeling", Ding et
al. 2024, section 3). For packs of 10 tokens and pieces of 7, 6, 4, 3 and 3 tokens:

    7 → a new pack A, which has room for 3 more
    6 → a new pack B, which has room for 4 more
    4 → B, which is full now
    3 → A, which is full now
    3 → a new pack C, which has room for 7 more

A corpus has billions of pieces but only as many lengths as a pack has tokens. So equal pieces are
placed together, and packs with equal contents are one *class* with a count. The cost depends on the
number of distinct lengths, not on the number of documents. The number of packs and the room in each
are those of the algorithm piece by piece; which of several packs with equal room a piece goes into
is left open by the algorithm as well.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

LongDocuments = Literal["fragment", "truncate"]
"""A document longer than a pack is cut into pieces, or only its first tokens are kept."""
Tail = Literal["pad", "carry"]
"""Room at the end of a pack is padded, or the packs with room are written as one stream and cut
where packs end.
"""

_CHUNK_DOCUMENTS = 1 << 16
"""Documents that are counted together."""
_MAX_COUNTED_LENGTH = 1 << 16
"""Lengths below this are counted in an array, which stays in the processor's cache; there are few
longer documents.
"""


@dataclass(frozen=True, slots=True)
class PieceRule:
    """Divides documents into pieces: full ones, as long as a pack, and at most one remainder."""

    length: int
    """Tokens of a pack."""
    long: LongDocuments = "fragment"

    def full_pieces(self, lengths: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of full pieces of each document.

        Args:
            lengths: Tokens of each document, integers, shape (n_documents,).

        Returns:
            int64, shape (n_documents,).
        """
        if self.long == "truncate":
            return (lengths >= self.length).astype(np.int64)
        return (lengths // self.length).astype(np.int64)

    def remainders(self, lengths: NDArray[Any]) -> NDArray[np.int64]:
        """Return the tokens of each document's shorter piece, 0 if it has none.

        Args:
            lengths: Tokens of each document, integers, shape (n_documents,).

        Returns:
            int64, shape (n_documents,).
        """
        if self.long == "truncate":
            remainders: NDArray[np.int64] = np.where(lengths < self.length, lengths, 0).astype(
                np.int64
            )
            return remainders
        return lengths.astype(np.int64) % self.length


@dataclass(frozen=True, slots=True)
class LengthHistogram:
    """How many documents, or pieces of documents, have each length."""

    lengths: NDArray[np.int64]
    """The lengths that occur, ascending, above 0; shape (n_lengths,)."""
    counts: NDArray[np.int64]
    """How many have each of these lengths; shape (n_lengths,)."""

    @staticmethod
    def of(lengths: NDArray[Any]) -> LengthHistogram:
        """Count documents by length; documents without tokens are left out.

        Args:
            lengths: Tokens of each document, integers, shape (n_documents,); may be memory-mapped.
        """
        counts = np.zeros(_MAX_COUNTED_LENGTH, np.int64)  # index: a length
        long_lengths = [np.empty(0, np.int64)]
        for start in range(0, len(lengths), _CHUNK_DOCUMENTS):
            chunk = np.asarray(lengths[start : start + _CHUNK_DOCUMENTS], np.int64)
            if int(chunk.max()) >= _MAX_COUNTED_LENGTH:
                long_lengths.append(chunk[chunk >= _MAX_COUNTED_LENGTH])
                chunk = chunk[chunk < _MAX_COUNTED_LENGTH]
            counts += np.bincount(chunk, minlength=_MAX_COUNTED_LENGTH)

        short = 1 + np.flatnonzero(counts[1:])
        long, long_counts = np.unique(np.concatenate(long_lengths), return_counts=True)
        return LengthHistogram(
            np.concatenate([short, long]), np.concatenate([counts[short], long_counts])
        )

    @property
    def documents(self) -> int:
        """Number of documents with tokens."""
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        """Tokens of all documents."""
        return int((self.lengths * self.counts).sum())

    def pieces(self, rule: PieceRule) -> LengthHistogram:
        """Return the histogram of the documents' pieces."""
        counts = np.zeros(rule.length + 1, np.int64)  # index: the length of a piece
        np.add.at(counts, rule.remainders(self.lengths), self.counts)
        counts[rule.length] = int((rule.full_pieces(self.lengths) * self.counts).sum())

        lengths = 1 + np.flatnonzero(counts[1:])  # entry 0 counts documents without a remainder
        return LengthHistogram(lengths, counts[lengths])

    def beyond(self, length: int) -> tuple[int, int]:
        """Return how many documents are longer than `length`, and their tokens beyond it."""
        is_longer = self.lengths > length
        counts = self.counts[is_longer]
        excess = self.lengths[is_longer] - length
        return int(counts.sum()), int((excess * counts).sum())

    def cut_if_concatenated(self, length: int) -> tuple[int, int]:
        """Return what is cut if samples are taken from the concatenated documents instead of packs.

        The expected values for shuffled documents, each of which starts anywhere in a sample with
        equal probability.

        Returns:
            (number of documents that are cut, their tokens after the first cut).
        """
        lengths = self.lengths.astype(np.float64)
        cut_probability = np.minimum((lengths - 1) / length, 1)
        tokens_after_cut = np.where(
            lengths <= length, lengths * (lengths - 1) / (2 * length), lengths - (length + 1) / 2
        )
        cut_documents = round(float(cut_probability @ self.counts))
        cut_tokens = round(float(tokens_after_cut @ self.counts))
        return cut_documents, cut_tokens


@dataclass(frozen=True, slots=True)
class PackPlan:
    """All packs, as classes of packs that hold pieces of the same lengths."""

    length: int
    """Tokens of a pack."""
    counts: NDArray[np.int64]
    """Number of packs of each class; shape (n_classes,)."""
    piece_starts: NDArray[np.int64]
    """Where the pieces of each class start in `piece_lengths`; shape (n_classes + 1,)."""
    piece_lengths: NDArray[np.int64]
    """Lengths of the pieces of one pack of each class, concatenated."""

    @property
    def packs(self) -> int:
        """Number of packs."""
        return int(self.counts.sum())

    @property
    def pieces(self) -> int:
        """Number of pieces in all packs."""
        return int(self.counts @ np.diff(self.piece_starts))

    @property
    def room(self) -> NDArray[np.int64]:
        """Tokens that are left empty in a pack of each class, int64, shape (n_classes,)."""
        tokens_before = np.concatenate([[0], np.cumsum(self.piece_lengths)])
        tokens_of_class: NDArray[np.int64] = np.diff(tokens_before[self.piece_starts])
        return self.length - tokens_of_class


@dataclass(slots=True)
class _PackBatch:
    """Packs of one class that have the same room."""

    packs: int
    class_number: int


class _GrowingClasses:
    """Classes of packs while they are filled.

    A class is described by its difference from another one: the pieces of `parents[c]`, and then
    `times[c]` pieces of `lengths[c]` tokens. A parent of -1 stands for an empty pack.
    """

    def __init__(self) -> None:
        self.parents: list[int] = []
        self.lengths: list[int] = []
        self.times: list[int] = []
        self.batches_by_room: dict[int, list[_PackBatch]] = {}
        self.rooms: list[int] = []
        """The keys of `batches_by_room`, ascending: the best fit is found by bisection."""

    def add(self, room: int, packs: int, parent: int, length: int, times: int) -> None:
        """Add a class of packs: packs of another class, to which pieces of one length were added.

        Args:
            room: Tokens for which a pack of the new class still has room.
            packs: Number of packs.
            parent: Number of the other class.
            length: Tokens of each piece that was added.
            times: Number of these pieces in each pack.
        """
        if packs == 0:
            return
        self.parents.append(parent)
        self.lengths.append(length)
        self.times.append(times)
        if room not in self.batches_by_room:
            self.batches_by_room[room] = []
            insort(self.rooms, room)
        self.batches_by_room[room].append(_PackBatch(packs, len(self.parents) - 1))

    def place(self, length: int, count: int, room: int) -> int:
        """Place pieces of one length into the packs that have a certain room.

        Args:
            length: Tokens of a piece.
            count: Number of pieces.
            room: Tokens for which these packs have room.

        Returns:
            Number of pieces for which no pack was left.
        """
        pieces_per_pack = room // length
        batches = self.batches_by_room[room]
        while batches and count:
            batch = batches[-1]
            if count >= pieces_per_pack:
                packs = min(batch.packs, count // pieces_per_pack)
                times = pieces_per_pack
            else:  # the last pieces do not fill a pack
                packs = 1
                times = count
            self.add(room - times * length, packs, batch.class_number, length, times)
            count -= packs * times

            batch.packs -= packs
            if batch.packs == 0:
                batches.pop()
        if not batches:
            del self.batches_by_room[room]
            del self.rooms[bisect_left(self.rooms, room)]
        return count

    def open_packs(self, length: int, count: int, pack_length: int) -> None:
        """Place `count` pieces of a length into new packs."""
        pieces_per_pack = pack_length // length
        full_packs, remaining = divmod(count, pieces_per_pack)
        self.add(pack_length - pieces_per_pack * length, full_packs, -1, length, pieces_per_pack)
        self.add(pack_length - remaining * length, int(remaining > 0), -1, length, remaining)


def plan_packs(pieces: LengthHistogram, length: int) -> PackPlan:
    """Return the packs of best-fit-decreasing.

    Args:
        pieces: Histogram of the pieces, none of which is longer than a pack.
        length: Tokens of a pack.
    """
    classes = _GrowingClasses()
    descending = zip(pieces.lengths[::-1].tolist(), pieces.counts[::-1].tolist(), strict=True)
    for piece_length, count in descending:
        unplaced = count
        while unplaced:
            best_fit = bisect_left(classes.rooms, piece_length)
            if best_fit == len(classes.rooms):
                break
            unplaced = classes.place(piece_length, unplaced, classes.rooms[best_fit])
        classes.open_packs(piece_length, unplaced, length)
    return _expand(classes, length)


def _expand(classes: _GrowingClasses, length: int) -> PackPlan:
    """List the pieces of every class, by following the classes that each was derived from."""
    batches = [batch for room in classes.rooms for batch in classes.batches_by_room[room]]
    packs = np.array([batch.packs for batch in batches], np.int64)  # (n_classes,)
    last_step = np.array([batch.class_number for batch in batches], np.int64)  # (n_classes,)
    parents = np.array(classes.parents, np.int64)  # (n_steps,)
    lengths = np.array(classes.lengths, np.int64)  # (n_steps,)
    times = np.array(classes.times, np.int64)  # (n_steps,)

    # Follow all chains of parents at once: each round adds one step of every class that has one
    # left.
    owner = np.arange(len(batches))
    step = last_step
    owners_by_round = [np.empty(0, np.int64)]
    steps_by_round = [np.empty(0, np.int64)]
    while len(step):
        owners_by_round.append(owner)
        steps_by_round.append(step)
        parent = parents[step]
        has_parent = parent >= 0
        owner = owner[has_parent]
        step = parent[has_parent]

    # Put the steps of each class next to each other.
    owners = np.concatenate(owners_by_round)
    steps = np.concatenate(steps_by_round)
    by_owner = np.argsort(owners, kind="stable")
    owners = owners[by_owner]
    steps = steps[by_owner]

    pieces_of_class = np.bincount(owners, weights=times[steps], minlength=len(batches)).astype(
        np.int64
    )
    piece_starts = np.concatenate([[0], np.cumsum(pieces_of_class)])
    piece_lengths = np.repeat(lengths[steps], times[steps])
    return PackPlan(length, packs, piece_starts, piece_lengths)
