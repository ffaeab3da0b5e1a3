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

from nanoset_core.formats.indexed.layout import positions_in

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
        """Return into how many pieces as long as a pack each document is divided.

        A pack is a training sample. For packs of 10 tokens, documents of 7, 20 and 25 tokens have
        0, 2 and 2 such pieces. If long documents are truncated instead, they have 0, 1 and 1.

        Args:
            lengths: Tokens of each document, integers, shape (n_documents,).

        Returns:
            int64, shape (n_documents,).
        """
        if self.long == "truncate":
            return (lengths >= self.length).astype(np.int64)
        return (lengths // self.length).astype(np.int64)

    def remainders(self, lengths: NDArray[Any]) -> NDArray[np.int64]:
        """Return how long the last piece of each document is, if it is shorter than a pack.

        A pack is a training sample. Documents that are longer are divided into pieces as long as a
        pack, and what remains. For packs of 10 tokens:

            tokens of a document             7    20    25
            what remains                     7     0     5
            if long ones are truncated       7     0     0     (the rest is dropped)

        Args:
            lengths: Tokens of each document, integers, shape (n_documents,).

        Returns:
            int64, shape (n_documents,); 0 if nothing remains.
        """
        if self.long == "truncate":
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
        """Count how many documents have each length; documents without tokens are left out.

        For example, four documents of 5, 0, 3 and 5 tokens:

            length in tokens    3    5
            documents           1    2

        Args:
            lengths: Tokens of each document, integers, shape (n_documents,); may be memory-mapped.
                There may be billions of documents, so a chunk of them is counted at a time.
        """
        counter = _LengthCounter()
        for start in range(0, len(lengths), _CHUNK_DOCUMENTS):
            chunk = lengths[start : start + _CHUNK_DOCUMENTS]
            counter.add(np.asarray(chunk, np.int64))
        return counter.histogram()

    @property
    def documents(self) -> int:
        """Number of documents with tokens."""
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        """Tokens of all documents."""
        return int((self.lengths * self.counts).sum())

    def pieces(self, rule: PieceRule) -> LengthHistogram:
        """Divide documents into pieces that fit into packs, and count the pieces by length.

        A pack is a training sample of, for example, 10 tokens. A document of 25 tokens is divided
        into pieces of 10, 10 and 5 tokens. So these documents and pieces belong together:

            documents    2 of 25 tokens, 1 of 5 tokens
            pieces       4 of 10 tokens, 3 of 5 tokens

        Args:
            rule: How documents are divided: the length of a pack, and whether long documents are
                divided or truncated.
        """
        remainders = rule.remainders(self.lengths)  # (n_lengths,) tokens of the last piece: [5, 5]
        full_pieces = rule.full_pieces(self.lengths)  # (n_lengths,) pieces of 10 tokens: [0, 2]

        counts = np.zeros(rule.length + 1, np.int64)  # `counts[5]`: pieces of 5 tokens
        np.add.at(counts, remainders, self.counts)  # adds up those with the same remainder
        counts[0] = 0  # where nothing remains, there is no piece
        counts[rule.length] = int((full_pieces * self.counts).sum())
        lengths = np.flatnonzero(counts)  # the lengths that occur, ascending: [5, 10]
        return LengthHistogram(lengths, counts[lengths])

    def beyond(self, length: int) -> CutDocuments:
        """Count what would be lost if documents were truncated to some length.

        For example, documents of 7, 12 and 15 tokens are truncated to 10 tokens. The last two lose
        2 and 5 tokens: 2 documents and 7 tokens.

        Args:
            length: Tokens that are kept of each document.

        Returns:
            The number of documents that are longer, and their tokens beyond that length.
        """
        is_longer = self.lengths > length
        counts = self.counts[is_longer]
        lost_tokens = self.lengths[is_longer] - length  # of each document of these lengths
        return CutDocuments(int(counts.sum()), int((lost_tokens * counts).sum()))

    def cut_if_concatenated(self, length: int) -> CutDocuments:
        """Estimate how many documents would be cut if they were concatenated instead of packed.

        Trainers often concatenate all documents, and cut this stream into training samples of equal
        length. Then many documents are cut. Packing avoids this, so the numbers show how much it
        helps. Where a document starts in a sample is taken as random: for samples of 10 tokens, a
        document of 6 tokens is cut at 5 of the 10 positions. So of 100 such documents, about 50 are
        cut.

        Args:
            length: Tokens of a sample.

        Returns:
            The expected number of documents that are cut, and of their tokens after the first cut.
        """
        lengths = self.lengths.astype(np.float64)  # (n_lengths,)
        cut_probability = _cut_probability(lengths, length)
        tokens_after_cut = _tokens_after_cut(lengths, length)
        return CutDocuments(
            documents=round(float(cut_probability @ self.counts)),
            tokens=round(float(tokens_after_cut @ self.counts)),
        )


class _LengthCounter:
    """Counts documents by their length, in one pass.

    Lengths below 65,536 are counted in an array: `counts[5]` is the number of documents of 5
    tokens. Few documents are longer: their lengths are collected, and counted at the end.
    """

    def __init__(self) -> None:
        """Start to count."""
        self._counts = np.zeros(_MAX_COUNTED_LENGTH, np.int64)
        self._long_chunks = [np.empty(0, np.int64)]

    def add(self, lengths: NDArray[np.int64]) -> None:
        """Count some documents.

        Args:
            lengths: Tokens of each document, shape (n_documents,).
        """
        is_long = lengths >= _MAX_COUNTED_LENGTH
        if is_long.any():  # otherwise the lengths need not be copied
            self._long_chunks.append(lengths[is_long])
            lengths = lengths[~is_long]
        self._counts += np.bincount(lengths, minlength=_MAX_COUNTED_LENGTH)

    def histogram(self) -> LengthHistogram:
        """Return how many documents have each length, without those that have no tokens."""
        self._counts[0] = 0
        short_lengths = np.flatnonzero(self._counts)  # the lengths that occur, ascending
        all_long_lengths = np.concatenate(self._long_chunks)
        long_lengths, long_counts = np.unique(all_long_lengths, return_counts=True)
        return LengthHistogram(
            lengths=np.concatenate([short_lengths, long_lengths]),
            counts=np.concatenate([self._counts[short_lengths], long_counts]),
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
    def pieces_per_pack(self) -> NDArray[np.int64]:
        """Number of pieces in a pack of each class; int64, shape (n_classes,)."""
        counts: NDArray[np.int64] = np.diff(self.piece_starts)
        return counts

    @property
    def pieces(self) -> int:
        """Number of pieces in all packs."""
        return int(self.counts @ self.pieces_per_pack)

    @property
    def are_full_pieces(self) -> NDArray[np.bool_]:
        """Whether a pack of each class is one piece as long as the pack; shape (n_classes,)."""
        first_lengths = self.piece_lengths[self.piece_starts[:-1]]  # (n_classes,)
        are_full: NDArray[np.bool_] = first_lengths == self.length
        return are_full

    def lengths_in(self, class_of_pack: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how long the pieces of some packs are, one pack after another.

        For example, packs of class 0 have a piece of 10 tokens, and those of class 1 have pieces of
        3 and 7 tokens. The classes [1, 0, 1] give [3, 7, 10, 3, 7].

        Args:
            class_of_pack: Class of each pack, shape (n_packs,).

        Returns:
            Shape (n_pieces,).
        """
        first_indices = self.piece_starts[class_of_pack]  # (n_packs,) [1, 0, 1]
        piece_counts = self.pieces_per_pack[class_of_pack]  # (n_packs,) [2, 1, 2]
        return self.piece_lengths[positions_in(first_indices, piece_counts)]

    @property
    def room(self) -> NDArray[np.int64]:
        """Tokens that are left empty in a pack of each class, int64, shape (n_classes,).

        For example, a pack of 10 tokens with pieces of 3 and 4 tokens has room for 3.
        """
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
        """Put pieces of documents into packs, which are training samples of a fixed length.

        All pieces have the same length. Each goes into the pack that it fits best: the one with the
        least room that is enough for it. For example, there are packs with room for 0, 3, 5 and 8
        tokens. The best fit for a piece of 4 tokens is 5. When no such pack is left, it is 8, and
        then a new pack.

        Args:
            piece_length: Tokens of a piece.
            n_pieces: Number of pieces.
        """
        n_unplaced = n_pieces
        while n_unplaced > 0:
            # `rooms` is ascending, such as [0, 3, 5, 8]. Find the first one that is enough.
            best_fit = bisect_left(self.rooms, piece_length)
            if best_fit == len(self.rooms):  # no pack has enough room
                self._place_in_empty_packs(piece_length, n_unplaced)
                return
            n_unplaced = self._place_in_room(piece_length, n_unplaced, self.rooms[best_fit])

    def _place_in_room(self, piece_length: int, n_pieces: int, room: int) -> int:
        """Put pieces of documents into packs that have the same room, as many as fit into each.

        A pack is a training sample. For example, 7 pieces of 3 tokens are put into 5 packs that
        have room for 6 tokens each. Packs with the same content are counted together:

            first round     3 packs get 2 pieces each      1 piece is left
            second round    1 pack gets the last piece     none is left
            1 pack stays as it is

        Args:
            piece_length: Tokens of a piece.
            n_pieces: Number of pieces.
            room: Tokens for which each of these packs has room.

        Returns:
            Number of pieces that did not fit into these packs: 0 in the example.
        """
        max_per_pack = room // piece_length  # 2
        groups = self.packs_by_room[room]  # each group of packs has the same content
        n_unplaced = n_pieces
        while groups and n_unplaced > 0:
            # All groups fit equally well. Take the last one, which can be removed from the list
            # fast.
            group = groups[-1]  # 5 packs, and 2 in the second round
            n_per_pack = min(max_per_pack, n_unplaced)  # 2, then 1
            n_packs = min(group.count, n_unplaced // n_per_pack)  # 3, then 1
            self._add_class(
                parent=group.class_number,
                n_packs=n_packs,
                room_before=room,
                piece_length=piece_length,
                n_per_pack=n_per_pack,
            )
            n_unplaced -= n_packs * n_per_pack  # 1, then 0

            group.count -= n_packs  # these packs have another content now
            if group.count == 0:
                groups.pop()
        if not groups:
            self._remove_room(room)
        return n_unplaced

    def _remove_room(self, room: int) -> None:
        """Forget a room that no pack has any more."""
        del self.packs_by_room[room]
        del self.rooms[bisect_left(self.rooms, room)]

    def _place_in_empty_packs(self, piece_length: int, n_pieces: int) -> None:
        """Put pieces of documents into new packs, as many as fit into each.

        A pack is a training sample. For example, 7 pieces of 4 tokens are put into packs of 10
        tokens:

            packs    pieces in each    room that is left
            3        2                 2
            1        1                 6                    the last piece

        Packs with the same content are counted together, as a *class*. So each row becomes a new
        class.

        Args:
            piece_length: Tokens of a piece: 4.
            n_pieces: Number of pieces: 7.
        """
        room = self.pack_length  # 10
        max_per_pack = room // piece_length  # 2
        n_full_packs, n_last = divmod(n_pieces, max_per_pack)  # 3 and 1
        if n_full_packs > 0:
            self._add_class(
                parent=_EMPTY_PACKS,  # the packs held nothing before
                n_packs=n_full_packs,
                room_before=room,
                piece_length=piece_length,
                n_per_pack=max_per_pack,
            )
        if n_last > 0:
            self._add_class(
                parent=_EMPTY_PACKS,
                n_packs=1,
                room_before=room,
                piece_length=piece_length,
                n_per_pack=n_last,
            )

    def _add_class(
        self, parent: int, n_packs: int, room_before: int, piece_length: int, n_per_pack: int
    ) -> None:
        """Record that some packs with the same content got further pieces of documents.

        A pack is a training sample. Packs with pieces of the same lengths are counted together, as
        a *class*. For example, 3 packs of class 0 get two pieces of 2 tokens each. They become
        class 1:

            class    pieces        packs    room
            0        4             2        6
            1        4, 2, 2       3        2

        Class 1 is stored as a difference: class 0 (its parent) and two pieces of 2 tokens.

        Args:
            parent: Number of the old class: 0, or `_EMPTY_PACKS` (-1). The caller reduces its
                count.
            n_packs: Number of these packs: 3.
            room_before: Tokens for which each of them had room: 6.
            piece_length: Tokens of each further piece: 2.
            n_per_pack: Number of further pieces in each pack: 2.
        """
        # These lists have an entry for each class.
        class_number = len(self.parents)  # 1
        self.parents.append(parent)
        self.piece_lengths.append(piece_length)
        self.pieces_per_pack.append(n_per_pack)

        room = room_before - n_per_pack * piece_length  # 6 - 2 * 2 = 2
        self._list_by_room(room, _OpenPacks(n_packs, class_number))

    def _list_by_room(self, room: int, packs: _OpenPacks) -> None:
        """List packs by their room, since later pieces are put where the least room is left.

        Args:
            room: Tokens for which each of the packs has room.
            packs: Packs of the same class.
        """
        if room not in self.packs_by_room:
            self.packs_by_room[room] = []
            insort(self.rooms, room)  # all values of room, ascending
        self.packs_by_room[room].append(packs)


def plan_packs(pieces: LengthHistogram, length: int) -> PackPlan:
    """Decide which pieces of documents go together into a training sample, so that few are needed.

    Such a sample of a fixed number of tokens is called a *pack*. Pieces are put into packs from the
    longest to the shortest. Each goes into the pack with the least room that is enough for it, or
    else into a new pack ("best fit decreasing"). For packs of 10 tokens:

        piece of 7 tokens    a new pack, which has room for 3 more
        piece of 6 tokens    a new pack, which has room for 4 more
        piece of 4 tokens    the second pack, which is full now
        piece of 3 tokens    the first pack, which is full now

    Args:
        pieces: How many pieces there are of each length. None is longer than a pack.
        length: Tokens of a pack.

    Returns:
        The packs by the lengths of their pieces: one of 7 and 3 tokens, and one of 6 and 4.
    """
    filling = _PackFilling(length)
    # All pieces of one length are placed at once. The lengths are ascending, so read them
    # backwards.
    descending_lengths = pieces.lengths[::-1].tolist()
    counts = pieces.counts[::-1].tolist()
    for piece_length, n_pieces in zip(descending_lengths, counts, strict=True):
        filling.place(piece_length, n_pieces)
    return _list_pieces(filling)


def _list_pieces(filling: _PackFilling) -> PackPlan:
    """List which pieces of documents each pack holds, from the steps that put them there.

    A pack is a training sample of a fixed number of tokens. It was filled in steps, each of which
    puts pieces of one length into some packs. For packs of 10 tokens:

        step    puts into each pack       of these packs                 so it has the parent
        0       one piece of 7 tokens     5 empty packs                  -1
        1       one piece of 3 tokens     3 of those from step 0         0

    The steps are stored in lists: `piece_lengths` is [7, 3], `pieces_per_pack` [1, 1], and
    `parents` [-1, 0]. Step 1 was the last one of 3 packs, and step 0 of the 2 packs that are left.
    Packs with the same last step are equal, and are called a *class*. The result:

        class    packs    last step    all its steps    pieces of each pack
        0        3        1            1, 0             3, 7
        1        2        0            0                7

    Args:
        filling: The steps. `packs_by_room` has, for each number of tokens that packs have room for,
            the classes of these packs: {0: [class 0], 3: [class 1]}; `rooms` are its keys,
            ascending.
    """
    # The classes, from packs without room to those with most room.
    classes: list[_OpenPacks] = []
    for room in filling.rooms:
        classes += filling.packs_by_room[room]

    # All steps of each class, one class after another. `class_number` is the last step of a class.
    last_steps = np.array([packs.class_number for packs in classes], np.int64)  # [1, 0]
    steps = _steps_of_classes(last_steps, np.array(filling.parents, np.int64))
    # steps.classes is [0, 0, 1], and steps.numbers [1, 0, 0]: the steps of class 0, and of class 1.

    # Replace each step by the pieces that it put into a pack: here one piece each.
    pieces_of_step = np.array(filling.pieces_per_pack, np.int64)[steps.numbers]  # [1, 1, 1]
    length_of_step = np.array(filling.piece_lengths, np.int64)[steps.numbers]  # [3, 7, 7]
    class_of_piece = np.repeat(steps.classes, pieces_of_step)  # [0, 0, 1]
    pieces_of_class = np.bincount(class_of_piece, minlength=len(classes))  # [2, 1]
    return PackPlan(
        length=filling.pack_length,
        counts=np.array([packs.count for packs in classes], np.int64),  # [3, 2]
        piece_starts=np.concatenate([[0], np.cumsum(pieces_of_class)]),  # [0, 2, 3]
        piece_lengths=np.repeat(length_of_step, pieces_of_step),  # [3, 7, 7]
    )


class _ClassSteps(NamedTuple):
    """The steps that made some classes of packs, ordered by class; shape (n_steps,) each."""

    classes: NDArray[np.int64]
    """Index of the class that each step contributed to."""
    numbers: NDArray[np.int64]
    """Number of each step; those of a class from the last step to the first."""


def _steps_of_classes(last_steps: NDArray[np.int64], parents: NDArray[np.int64]) -> _ClassSteps:
    """List in which steps packs were filled, from the last step of each pack back to its first.

    A pack is a training sample into which pieces of documents are put. Each step puts pieces into
    packs that were empty, or that an earlier step has filled. For example:

        step               0        1        2
        puts pieces in     empty    empty    packs of step 0
        parents            -1       -1       0

    So packs whose last step is 2 were filled in the steps 2 and 0. Packs with the same last step
    have all steps in common. They are equal, and form a *class*:

        class         0       1
        last step     2       1
        all steps     2, 0    1

    Args:
        last_steps: The last step of each class: [2, 1]; shape (n_classes,).
        parents: The third row of the first table, shape (n_all_steps,).

    Returns:
        The class of each entry of the last row, and the entry: [0, 0, 1] and [2, 0, 1].
    """
    # Go back one step of all classes at once, in rounds. A class is done when its packs were empty
    # before the step (-1).
    classes = np.arange(len(last_steps))  # [0, 1], and [0] in the second round
    steps = last_steps  # [2, 1], and [0] in the second round
    classes_by_round = [np.empty(0, np.int64)]
    steps_by_round = [np.empty(0, np.int64)]
    while len(steps) > 0:
        classes_by_round.append(classes)
        steps_by_round.append(steps)
        previous_steps = parents[steps]  # [0, -1], and [-1] in the second round
        has_previous = previous_steps != _EMPTY_PACKS
        classes = classes[has_previous]
        steps = previous_steps[has_previous]

    # Put the steps of each class next to each other, in the order in which they were found.
    all_classes = np.concatenate(classes_by_round)  # (n_steps,) [0, 1, 0]
    all_steps = np.concatenate(steps_by_round)  # [2, 1, 0]
    by_class = np.argsort(all_classes, kind="stable")  # [0, 2, 1]
    return _ClassSteps(all_classes[by_class], all_steps[by_class])  # [0, 0, 1], [2, 0, 1]


def _cut_probability(lengths: NDArray[np.float64], sample_length: int) -> NDArray[np.float64]:
    """Return how likely it is that a document is cut, if it starts anywhere in a training sample.

    Documents are concatenated, and this stream is cut into samples of equal length. A document of n
    tokens is cut if it starts at one of the last n - 1 positions of a sample. For example, in
    samples of 10 tokens, a document of 3 tokens is cut at the positions 8 and 9: the probability is
    0.2.

    Args:
        lengths: Tokens of each document, shape (n_lengths,).
        sample_length: Tokens of a sample.

    Returns:
        A probability for each length, shape (n_lengths,).
    """
    return np.minimum((lengths - 1) / sample_length, 1)


def _tokens_after_cut(lengths: NDArray[np.float64], sample_length: int) -> NDArray[np.float64]:
    """Return how many tokens of a document come after its first cut, on average.

    Documents are put one after another, and cut into training samples of equal length. So a
    document may start at any position of a sample. In samples of 10 tokens:

        of 3 tokens     starts at the positions 0 to 9. At position 8, 1 of its tokens comes after
                        the cut, and at position 9, 2 of them do: (1 + 2) / 10 = 0.3 on average
        of 25 tokens    is always cut. 1, 2, ... or 10 of its tokens come before the cut, 5.5 on
                        average, so 19.5 come after it

    Args:
        lengths: Tokens of each document, shape (n_lengths,).
        sample_length: Tokens of a sample.

    Returns:
        The average for each length, shape (n_lengths,).
    """
    # The sum of 1, 2, ... and n - 1 is n * (n - 1) / 2.
    tokens_of_short = lengths * (lengths - 1) / 2 / sample_length
    mean_before_cut = (sample_length + 1) / 2
    tokens_of_long = lengths - mean_before_cut
    return np.where(lengths <= sample_length, tokens_of_short, tokens_of_long)
