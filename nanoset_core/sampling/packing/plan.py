"""Which lengths lie together in a pack: best-fit-decreasing over the histogram of lengths.

Best-fit-decreasing takes pieces from the longest to the shortest, and lays each into the pack with the least room that
suffices ("Fewer Truncations Improve Language Modeling", Ding et al. 2024, section 3). Packs with equal contents are one
*class* here, and pieces of one length are laid together, so that the cost goes with the distinct lengths. The number of
packs, and how full each is, are those of the algorithm piece by piece; which of equally full packs a piece goes into is
open there, too.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Long = Literal["fragment", "truncate"]
"""What happens to a document longer than a pack: it is cut into pieces, or keeps its first tokens."""
Tail = Literal["pad", "carry"]
"""What happens to the room at the end of a pack: it is padded, or the packs with room are written as one stream."""
_CHUNK = _MOST_COUNTED = 1 << 16
"""Documents that are looked at together, and the length below which they are counted in an array that stays near to the
processor: there are few longer ones."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How documents become pieces: some of a pack's length, and at most one that is shorter."""

    length: int
    """Tokens of a pack."""
    long: Long = "fragment"

    def whole(self, lengths: NDArray[Any]) -> NDArray[np.int64]:
        """Return how many pieces of a pack's length documents have, int64."""
        if self.long == "truncate":
            return (lengths >= self.length).astype(np.int64)
        return (lengths // self.length).astype(np.int64)

    def rest(self, lengths: NDArray[Any]) -> NDArray[np.int64]:
        """Return the tokens of documents' shorter pieces, int64; 0 where there is none."""
        if self.long == "truncate":
            short: NDArray[np.int64] = np.where(lengths < self.length, lengths, 0).astype(np.int64)
            return short
        wide = lengths.astype(np.int64)
        return wide - wide // self.length * self.length


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many documents have each length."""

    lengths: NDArray[np.int64]
    """Ascending, above 0, shape (distinct,)."""
    counts: NDArray[np.int64]
    """Of the same shape."""

    @staticmethod
    def of(lengths: NDArray[Any]) -> Histogram:
        """Count documents by length, in one pass."""
        counts, longer = np.zeros(_MOST_COUNTED, np.int64), [np.empty(0, np.int64)]
        for begin in range(0, len(lengths), _CHUNK):
            some = np.asarray(lengths[begin : begin + _CHUNK], np.int64)
            if int(some.max()) >= _MOST_COUNTED:
                longer.append(some[some >= _MOST_COUNTED])
                some = some[some < _MOST_COUNTED]
            counts += np.bincount(some, minlength=_MOST_COUNTED)
        far, far_counts = np.unique(np.concatenate(longer), return_counts=True)
        near = 1 + np.flatnonzero(counts[1:])
        return Histogram(np.concatenate([near, far]), np.concatenate([counts[near], far_counts]))

    def pieces(self, cut: Cut) -> Histogram:
        """Return how many pieces have each length, up to that of a pack."""
        rest, counts = cut.rest(self.lengths), np.zeros(cut.length + 1, np.int64)
        np.add.at(counts, rest, self.counts)
        counts[cut.length] = int((cut.whole(self.lengths) * self.counts).sum())
        filled = 1 + np.flatnonzero(counts[1:])
        return Histogram(filled, counts[filled])

    def cut(self, length: int) -> tuple[int, int]:
        """Return (documents longer than this, their tokens behind that length)."""
        longer = self.lengths > length
        counts = self.counts[longer]
        return int(counts.sum()), int(((self.lengths[longer] - length) * counts).sum())

    def concatenated(self, length: int) -> tuple[int, int]:
        """Return (documents that are cut, their tokens behind a cut) where samples are cut from all documents in a row.

        It is what is to be expected of shuffled documents, of which each begins anywhere in a sample.
        """
        lengths, counts = self.lengths.astype(np.float64), self.counts
        cut = np.minimum((lengths - 1) / length, 1)
        tokens = np.where(lengths <= length, lengths * (lengths - 1) / (2 * length), lengths - (length + 1) / 2)
        return round(float(cut @ counts)), round(float(tokens @ counts))

    @property
    def documents(self) -> int:
        """Documents with tokens."""
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        """Tokens of all documents."""
        return int((self.lengths * self.counts).sum())


@dataclass(frozen=True, slots=True)
class PackPlan:
    """All packs, as classes of packs that hold pieces of the same lengths."""

    length: int
    """Tokens of a pack."""
    counts: NDArray[np.int64]
    """Packs of each class, shape (classes,)."""
    begins: NDArray[np.int64]
    """Where the pieces of each class begin in `pieces`; shape (classes + 1,)."""
    pieces: NDArray[np.int64]
    """Lengths of the pieces of one pack of each class, one class after the other."""

    @property
    def packs(self) -> int:
        """How many there are."""
        return int(self.counts.sum())

    @property
    def room(self) -> NDArray[np.int64]:
        """Tokens that a pack of each class has room for, int64, shape (classes,)."""
        held = np.concatenate([[0], np.cumsum(self.pieces)])
        found: NDArray[np.int64] = self.length - np.diff(held[self.begins])
        return found


class _Classes:
    """Classes of packs while they are filled: each is an earlier one with some more pieces of one length."""

    def __init__(self) -> None:
        self.parents, self.lengths, self.times = list[int](), list[int](), list[int]()
        self.open: dict[int, list[list[int]]] = {}
        """Room of a pack → [packs, class] with that room."""
        self.rooms: list[int] = []
        """Those with packs, ascending."""

    def add(self, room: int, packs: int, parent: int, length: int, times: int) -> None:
        """Add packs of a class that has `times` pieces of a length more than another one."""
        if packs:
            self.parents.append(parent)
            self.lengths.append(length)
            self.times.append(times)
            if room not in self.open:
                self.open[room] = []
                insort(self.rooms, room)
            self.open[room].append([packs, len(self.parents) - 1])

    def lay(self, length: int, count: int, room: int) -> int:
        """Lay pieces into packs with that room, as many as fit; return how many are left."""
        most, waiting = room // length, self.open[room]
        while waiting and count:
            packs, parent = waiting[-1]
            taken, times = (min(packs, count // most), most) if count >= most else (1, count)
            self.add(room - times * length, taken, parent, length, times)
            count -= taken * times
            waiting[-1][0] -= taken
            if packs == taken:
                waiting.pop()
        if not waiting:
            del self.open[room], self.rooms[bisect_left(self.rooms, room)]
        return count


def plan_packs(pieces: Histogram, length: int) -> PackPlan:
    """Return the packs of best-fit-decreasing for pieces of up to a pack's length."""
    classes = _Classes()
    for piece, count in zip(pieces.lengths[::-1].tolist(), pieces.counts[::-1].tolist(), strict=True):
        left = count
        while left and (at := bisect_left(classes.rooms, piece)) < len(classes.rooms):
            left = classes.lay(piece, left, classes.rooms[at])
        most = length // piece
        classes.add(length - most * piece, left // most, -1, piece, most)
        classes.add(length - left % most * piece, int(left % most > 0), -1, piece, left % most)
    return _flat(classes, length)


def _flat(classes: _Classes, length: int) -> PackPlan:
    found = np.array([pair for room in classes.rooms for pair in classes.open[room]], np.int64).reshape(-1, 2)
    parents, lengths, times = (np.array(one, np.int64) for one in (classes.parents, classes.lengths, classes.times))
    owners, runs = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    owner, at = np.arange(len(found)), found[:, 1]
    while len(at):
        owners.append(owner)
        runs.append(at)
        at = parents[at]
        owner, at = owner[at >= 0], at[at >= 0]
    owner, run = np.concatenate(owners), np.concatenate(runs)
    order = np.argsort(owner, kind="stable")
    owner, run = owner[order], run[order]
    sizes = np.bincount(owner, weights=times[run], minlength=len(found)).astype(np.int64)
    begins = np.concatenate([[0], np.cumsum(sizes)])
    return PackPlan(length, found[:, 0], begins, np.repeat(lengths[run], times[run]))
