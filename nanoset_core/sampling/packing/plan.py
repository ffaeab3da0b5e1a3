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
from typing import Any, Literal, NamedTuple

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
    """Divides documents into pieces: full ones, as long as a pack, and at most one remainder.

    For packs of 10 tokens, a document of 25 tokens has two full pieces and a remainder of 5 tokens;
    if long documents are truncated, it has one full piece and nothing else.
    """

    length: int
    """Tokens of a pack."""
    long: LongDocuments = "fragment"
    """What becomes of documents that are longer than a pack."""

    def full_pieces(self, lengths: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of full pieces of each document: those as long as a pack.

        Args:
            lengths: Tokens of each document, integers, shape (n_documents,).

        Returns:
            int64, shape (n_documents,).
        """
        if self.long == "truncate":
            return (lengths >= self.length).astype(np.int64)
        return (lengths // self.length).astype(np.int64)

    def remainders(self, lengths: NDArray[Any]) -> NDArray[np.int64]:
        """Return the tokens of each document's remainder: its piece that is shorter than a pack.

        For packs of 10 tokens, documents of 7, 20 and 25 tokens have remainders of 7, 0 and 5
        tokens. If long documents are truncated to one full pack, only the first has one.

        Args:
            lengths: Tokens of each document, integers, shape (n_documents,).

        Returns:
            int64, shape (n_documents,).
        """
        if self.long == "truncate":
            # Of a longer document, the first `length` tokens are a full piece; the rest is dropped.
            is_shorter = lengths < self.length
            return np.where(is_shorter, lengths, 0).astype(np.int64)
        return lengths.astype(np.int64) % self.length


class CutDocuments(NamedTuple):
    """How many documents are cut, and how many of their tokens are after the cut."""

    documents: int
    tokens: int


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

        For example, of documents with 5, 0, 3 and 5 tokens, one has the length 3, and two have 5.

        Args:
            lengths: Tokens of each document, integers, shape (n_documents,); may be memory-mapped.
        """
        # Short lengths are counted in an array, at the index of the length. The few long ones are
        # collected, and counted at the end.
        counts = np.zeros(_MAX_COUNTED_LENGTH, np.int64)
        long_chunks = [np.empty(0, np.int64)]
        for start in range(0, len(lengths), _CHUNK_DOCUMENTS):
            chunk = np.asarray(lengths[start : start + _CHUNK_DOCUMENTS], np.int64)
            is_long = chunk >= _MAX_COUNTED_LENGTH
            if is_long.any():  # few chunks have long documents; the others are not copied
                long_chunks.append(chunk[is_long])
                chunk = chunk[~is_long]
            counts += np.bincount(chunk, minlength=_MAX_COUNTED_LENGTH)
        long_lengths, long_counts = np.unique(np.concatenate(long_chunks), return_counts=True)

        counts[0] = 0  # documents without tokens
        short_lengths = np.flatnonzero(counts)  # the lengths that occur, ascending
        return LengthHistogram(
            lengths=np.concatenate([short_lengths, long_lengths]),
            counts=np.concatenate([counts[short_lengths], long_counts]),
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
        """Divide the documents of this histogram into pieces, and count the pieces by length.

        For packs of 10 tokens, two documents of 25 tokens have four full pieces, of 10 tokens, and
        two remainders, of 5 tokens.

        Args:
            rule: How the documents are divided into pieces.
        """
        counts = np.zeros(rule.length + 1, np.int64)  # index: the length of a piece

        # Each document has at most one remainder, which is shorter than a pack. Documents of
        # several lengths may have remainders of the same length: `np.add.at` adds these up.
        remainders = rule.remainders(self.lengths)  # (n_lengths,)
        np.add.at(counts, remainders, self.counts)
        counts[0] = 0  # documents without a remainder

        # A full piece has as many tokens as a pack.
        full_pieces = rule.full_pieces(self.lengths) * self.counts  # (n_lengths,)
        counts[rule.length] = int(full_pieces.sum())

        lengths = np.flatnonzero(counts)  # the lengths that occur, ascending
        return LengthHistogram(lengths, counts[lengths])

    def beyond(self, length: int) -> CutDocuments:
        """Return how much of the documents does not fit into a length.

        For documents of 7, 12 and 15 tokens and a length of 10, these are 2 documents and 7 tokens.

        Args:
            length: Tokens.

        Returns:
            The longer documents, and their tokens beyond `length`.
        """
        is_longer = self.lengths > length
        counts = self.counts[is_longer]
        excess = self.lengths[is_longer] - length
        return CutDocuments(int(counts.sum()), int((excess * counts).sum()))

    def cut_if_concatenated(self, length: int) -> CutDocuments:
        """Estimate what would be cut if the documents were concatenated instead of packed.

        These are expected values: each document starts at any position of a sample with equal
        probability. For example, half of all documents of 6 tokens are cut in samples of 10.

        Args:
            length: Tokens of a sample.

        Returns:
            The documents that are cut, and their tokens after the first cut.
        """
        lengths = self.lengths.astype(np.float64)  # (n_lengths,)
        cut_probability = _cut_probability(lengths, length)
        tokens_after_cut = _tokens_after_cut(lengths, length)
        return CutDocuments(
            documents=round(float(cut_probability @ self.counts)),
            tokens=round(float(tokens_after_cut @ self.counts)),
        )


@dataclass(frozen=True, slots=True)
class PackPlan:
    """All packs, as classes of packs that hold pieces of the same lengths.

    For example, 3 packs of one piece of 10 tokens, and 2 packs of pieces of 3 and 7 tokens:

        counts           3, 2
        piece_lengths    10, 3, 7
        piece_starts     0, 1, 3
    """

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
        # (n_pieces_of_all_classes + 1,) tokens of the listed pieces before each of them
        tokens_before = np.concatenate([[0], np.cumsum(self.piece_lengths)])
        tokens_of_class: NDArray[np.int64] = np.diff(tokens_before[self.piece_starts])
        return self.length - tokens_of_class


_EMPTY_PACKS = -1
"""In place of the number of a class: packs that hold nothing yet."""


@dataclass(slots=True)
class _OpenPacks:
    """The packs of one class that no further piece has been put into."""

    count: int
    class_number: int


class _PackFilling:
    """Packs while pieces are put into them, from the longest pieces to the shortest.

    Packs with equal contents are a *class* with a count. If only some of its packs get a further
    piece, these become a new class. For packs of 10 tokens, two pieces of 7 and one of 3 tokens:

        class 0     2 pieces of 7 tokens go to empty packs: 2 packs with room for 3
        class 1     1 piece of 3 tokens goes to a pack of class 0: 1 pack without room
                    1 pack of class 0 is left

    Args:
        pack_length: Tokens of a pack.
    """

    def __init__(self, pack_length: int) -> None:
        """Begin without packs."""
        self.pack_length = pack_length
        # The step that made each class: pieces of one length were put into packs of another class.
        # These lists are indexed by the number of the new class.
        self.parents: list[int] = []
        """Number of the other class, or `_EMPTY_PACKS`."""
        self.piece_lengths: list[int] = []
        """Tokens of each of these pieces."""
        self.pieces_per_pack: list[int] = []
        """How many of these pieces each pack got."""
        self.packs_by_room: dict[int, list[_OpenPacks]] = {}
        """Tokens for which a pack has room → all such packs, in the order of their classes."""
        self.rooms: list[int] = []
        """The keys of `packs_by_room`, ascending: the best fit is found by bisection."""

    def place(self, piece_length: int, n_pieces: int) -> None:
        """Put pieces of one length into packs.

        Each goes into the pack that it fits best: the one with the least room that is enough for
        the piece. If no pack has enough room, it goes into a new pack.

        Args:
            piece_length: Tokens of a piece.
            n_pieces: Number of pieces.
        """
        n_unplaced = n_pieces
        while n_unplaced > 0:
            # `rooms` lists how much room packs have, ascending: find the first that is enough.
            best_fit = bisect_left(self.rooms, piece_length)
            if best_fit == len(self.rooms):  # no pack has enough room
                self._place_in_empty_packs(piece_length, n_unplaced)
                return
            # Fill the packs with this room. What they cannot take goes to the next best fit.
            n_unplaced = self._place_in_room(piece_length, n_unplaced, self.rooms[best_fit])

    def _place_in_room(self, piece_length: int, n_pieces: int, room: int) -> int:
        """Put pieces of one length into packs that have the same room, as many as fit into each.

        Packs with equal contents are a *class* with a count. Those that get pieces become a new
        class. For example, 7 pieces of 3 tokens are put into 5 packs with room for 6 tokens: first,
        3 packs
        get two pieces each, and then one pack gets the last piece. One pack stays as it is.

        Args:
            piece_length: Tokens of a piece.
            n_pieces: Number of pieces.
            room: Tokens for which each of these packs has room.

        Returns:
            Number of pieces that did not fit into these packs.
        """
        max_per_pack = room // piece_length  # 2 in the example
        classes = self.packs_by_room[room]
        n_unplaced = n_pieces
        while classes and n_unplaced > 0:
            # The packs of all these classes fit equally well. The last class is the fastest to
            # remove from the list.
            packs = classes[-1]
            n_per_pack = min(max_per_pack, n_unplaced)  # fewer only for the last pieces
            n_packs = min(packs.count, n_unplaced // n_per_pack)  # 3 in the first round, then 1
            self._add_class(
                parent=packs.class_number,
                n_packs=n_packs,
                room_before=room,
                piece_length=piece_length,
                n_per_pack=n_per_pack,
            )
            n_unplaced -= n_packs * n_per_pack

            # The packs that got pieces belong to the new class now.
            packs.count -= n_packs
            if packs.count == 0:
                classes.pop()
        if not classes:
            self._remove_room(room)
        return n_unplaced

    def _remove_room(self, room: int) -> None:
        """Forget a room that no pack has any more."""
        del self.packs_by_room[room]
        del self.rooms[bisect_left(self.rooms, room)]

    def _place_in_empty_packs(self, piece_length: int, n_pieces: int) -> None:
        """Put pieces of one length into new packs, as many as fit into each."""
        room = self.pack_length
        max_per_pack = room // piece_length
        n_full_packs, n_last = divmod(n_pieces, max_per_pack)
        if n_full_packs > 0:
            self._add_class(_EMPTY_PACKS, n_full_packs, room, piece_length, max_per_pack)
        if n_last > 0:
            self._add_class(_EMPTY_PACKS, 1, room, piece_length, n_last)

    def _add_class(
        self, parent: int, n_packs: int, room_before: int, piece_length: int, n_per_pack: int
    ) -> None:
        """Add a class of packs that got further pieces, and so differ from those of its parent.

        The caller subtracts these packs from the count of the parent. For example, 3 packs with
        room for 6 tokens got two pieces of 2 tokens each: they have room for 2 tokens now.

        Args:
            parent: Number of the class to which the packs belonged before, or `_EMPTY_PACKS`.
            n_packs: Number of packs in the new class.
            room_before: Tokens for which each pack had room before.
            piece_length: Tokens of each of the further pieces.
            n_per_pack: Number of these pieces that each pack got.
        """
        # These lists are indexed by the number of the class.
        class_number = len(self.parents)
        self.parents.append(parent)
        self.piece_lengths.append(piece_length)
        self.pieces_per_pack.append(n_per_pack)

        # List the packs under the room that they have now.
        room = room_before - n_per_pack * piece_length
        if room not in self.packs_by_room:
            self.packs_by_room[room] = []
            insort(self.rooms, room)
        self.packs_by_room[room].append(_OpenPacks(n_packs, class_number))


def plan_packs(pieces: LengthHistogram, length: int) -> PackPlan:
    """Decide which lengths of pieces go together into one pack, by best-fit-decreasing.

    The pieces are put into packs from the longest to the shortest. Each goes into the pack with the
    least room that is enough for it, or into a new pack if there is none. For packs of 10 tokens,
    pieces of 7, 6, 4 and 3 tokens are packed as 7 + 3 and 6 + 4.

    Args:
        pieces: Histogram of the pieces, none of which is longer than a pack.
        length: Tokens of a pack.
    """
    filling = _PackFilling(length)
    # The histogram has ascending lengths, so read it backwards. All pieces of one length are placed
    # together.
    descending_lengths = pieces.lengths[::-1].tolist()
    counts = pieces.counts[::-1].tolist()
    for piece_length, n_pieces in zip(descending_lengths, counts, strict=True):
        filling.place(piece_length, n_pieces)
    return _list_pieces(filling)


def _list_pieces(filling: _PackFilling) -> PackPlan:
    """Return a plan that lists which pieces the packs hold, from the steps that filled them.

    Packs with equal pieces are a *class*. For example, step 0 put a piece of 7 tokens into each of
    5 packs. Then step 1 put two pieces of 1 token into 3 of them. So there are two classes:

        2 packs of step 0 alone      pieces of 7 tokens
        3 packs of steps 1 and 0     pieces of 1, 1 and 7 tokens, those of the last step first

    Args:
        filling: All packs, and the steps in which they were filled.
    """
    # The classes that have packs, ordered by the room that is left in a pack.
    final_packs: list[_OpenPacks] = []
    for room in filling.rooms:
        final_packs += filling.packs_by_room[room]

    # All steps of each class. The last one has the number of the class.
    last_steps = np.array([packs.class_number for packs in final_packs], np.int64)
    steps = _steps_of_classes(last_steps, np.array(filling.parents, np.int64))

    # Replace each step by the pieces that it put into a pack.
    piece_counts = np.array(filling.pieces_per_pack, np.int64)[steps.numbers]  # (n_steps,)
    step_lengths = np.array(filling.piece_lengths, np.int64)[steps.numbers]  # (n_steps,)
    class_of_piece = np.repeat(steps.classes, piece_counts)
    pieces_of_class = np.bincount(class_of_piece, minlength=len(final_packs))  # (n_classes,)
    return PackPlan(
        length=filling.pack_length,
        counts=np.array([packs.count for packs in final_packs], np.int64),
        piece_starts=np.concatenate([[0], np.cumsum(pieces_of_class)]),
        piece_lengths=np.repeat(step_lengths, piece_counts),
    )


class _ClassSteps(NamedTuple):
    """The steps that made some classes of packs, ordered by class; shape (n_steps,) each."""

    classes: NDArray[np.int64]
    """Index of the class that each step contributed to."""
    numbers: NDArray[np.int64]
    """Number of each step; those of a class from the last step to the first."""


def _steps_of_classes(last_steps: NDArray[np.int64], parents: NDArray[np.int64]) -> _ClassSteps:
    """List all steps in which the packs of each class were filled.

    A step put pieces into packs that were empty, or that its *parent*, an earlier step, had filled.
    For example, steps 0 and 1 filled empty packs, and step 2 those of step 0. Then packs whose last
    step is 2 were filled by the steps 2 and 0.

    Args:
        last_steps: The last step of each class, such as [2, 1]; shape (n_classes,).
        parents: The parent of each step, or -1 if its packs were empty, such as [-1, -1, 0]; shape
            (n_all_steps,).
    """
    # Each round lists one step of every class, and continues with the classes whose packs were not
    # empty before it.
    classes = np.arange(len(last_steps))  # [0, 1], and [0] in the second round
    steps = last_steps  # [2, 1], and [0] in the second round
    classes_by_round = [np.empty(0, np.int64)]
    steps_by_round = [np.empty(0, np.int64)]
    while len(steps) > 0:
        classes_by_round.append(classes)
        steps_by_round.append(steps)
        previous_steps = parents[steps]  # [0, -1]
        continues = previous_steps != _EMPTY_PACKS
        classes = classes[continues]
        steps = previous_steps[continues]

    # Put the steps of each class next to each other.
    all_classes = np.concatenate(classes_by_round)  # (n_steps,) [0, 1, 0]
    all_steps = np.concatenate(steps_by_round)  # [2, 1, 0]
    by_class = np.argsort(all_classes, kind="stable")
    return _ClassSteps(all_classes[by_class], all_steps[by_class])  # [0, 0, 1], [2, 0, 1]


def _cut_probability(lengths: NDArray[np.float64], sample_length: int) -> NDArray[np.float64]:
    """Return how likely documents are cut if they start anywhere in a sample; shape (n_lengths,).

    A document of n tokens is cut if it starts at one of the last n - 1 positions of a sample. For
    example, in a sample of 10 tokens, a document of 3 tokens is cut at the positions 8 and 9.
    """
    return np.minimum((lengths - 1) / sample_length, 1)


def _tokens_after_cut(lengths: NDArray[np.float64], sample_length: int) -> NDArray[np.float64]:
    """Return how many tokens of a document are after its first cut on average; shape (n_lengths,).

    A document starts anywhere in a sample. For example, in a sample of 10 tokens, a document of 3
    tokens is cut if it starts at position 8 or 9: then 1 or 2 of its tokens are after the cut. On
    average over all 10 positions, these are 3 / 10.

    Args:
        lengths: Tokens of each document, shape (n_lengths,).
        sample_length: Tokens of a sample.
    """
    # A document of n tokens has 1, 2, … or n - 1 tokens after the cut, each at one position of the
    # sample, and the sum of these is n * (n - 1) / 2.
    tokens_of_short = lengths * (lengths - 1) / 2 / sample_length
    # A document that is longer than a sample is always cut. Before its first cut are 1, 2, … or
    # `sample_length` tokens, all equally likely: (sample_length + 1) / 2 on average.
    tokens_of_long = lengths - (sample_length + 1) / 2
    return np.where(lengths <= sample_length, tokens_of_short, tokens_of_long)
