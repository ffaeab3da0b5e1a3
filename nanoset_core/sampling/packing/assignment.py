"""Which document lies in which pack: packs in a seeded order, each with its pieces of documents.

Packs of each class are spread evenly over the order: the j-th of n lies at a seeded place between j / n and (j + 1) / n
of it. Pieces of one length go into the places of that length in the order of their documents. So a pack holds
documents from about where it lies itself, whatever their lengths: a share of the packs is about that share of the
documents, and tokens are read nearly from front to back. Which documents of equal length meet which others follows from
the seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.sampling.hashing import STEP, U64, mix
from nanoset_core.sampling.packing.plan import Cut, PackPlan

_CHUNK = 1 << 20
_STRATUM = 1 << 19
"""Pieces that are assigned at once, about; decides the order of packs."""
_FRACTION = U64(32)
_LOW = U64((1 << 32) - 1)


class Pieces(NamedTuple):
    """Packs that follow one another, with their pieces in order."""

    bounds: NDArray[np.int64]
    """Where the pieces of each pack begin; shape (packs + 1,)."""
    documents: NDArray[np.int64]
    """Number of each piece's document, shape (pieces,)."""
    firsts: NDArray[np.int64]
    """First token of each piece within its document."""
    lengths: NDArray[np.int64]
    """Tokens of each piece."""

    @property
    def owners(self) -> NDArray[np.int64]:
        """The pack of each piece, from 0."""
        return np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))

    @property
    def begins(self) -> NDArray[np.int64]:
        """Where each piece begins in its pack."""
        before = np.cumsum(self.lengths) - self.lengths
        return before - before[self.bounds[:-1]][self.owners]

    def slice(self, begin: int, end: int) -> Pieces:
        """Return packs [begin, end)."""
        some = slice(int(self.bounds[begin]), int(self.bounds[end]))
        bounds = self.bounds[begin : end + 1] - self.bounds[begin]
        return Pieces(bounds, self.documents[some], self.firsts[some], self.lengths[some])


def document_lengths(sequence_lengths: NDArray[np.int32], document_indices: NDArray[np.int64]) -> NDArray[Any]:
    """Return the tokens of each document; of documents of one sequence each the sequences' own."""
    count = len(document_indices) - 1
    one = count == len(sequence_lengths)
    for begin in range(0, count if one else 0, _CHUNK):
        some = document_indices[begin : begin + _CHUNK]
        one = one and bool((some == np.arange(begin, begin + len(some))).all())
    if one:
        return sequence_lengths
    lengths = np.zeros(count, np.int64)
    for begin in range(0, count, _CHUNK):
        bounds = document_indices[begin : begin + _CHUNK + 1]
        held = np.cumsum(sequence_lengths[bounds[0] : bounds[-1]], dtype=np.int64)
        lengths[begin : begin + len(bounds) - 1] = np.diff(np.concatenate([[0], held])[bounds - bounds[0]])
    return lengths


def _runs(values: NDArray[np.uint64], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (number of each value that occurs, how often) of small values."""
    counts = np.bincount(values.view(np.int64), minlength=size)
    present = np.flatnonzero(counts)
    return present, counts[present]


def _places(next_: NDArray[np.int64], present: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `counts` numbers from next_ on for each value, one value after the other; they are taken from there."""
    places = positions_in(next_[present], counts)
    next_[present] += counts
    return places


@dataclass(frozen=True, slots=True)
class _ByLength:
    """The documents with a shorter piece, by its length and then by number."""

    documents: NDArray[np.unsignedinteger[Any]]
    begins: NDArray[np.int64]
    """Where those of each length begin; shape (pack's length + 1,)."""

    @staticmethod
    def of(lengths: NDArray[Any], cut: Cut) -> _ByLength:
        counts = np.zeros(cut.length + 1, np.int64)
        for begin in range(0, len(lengths), _CHUNK):
            counts += np.bincount(cut.rest(lengths[begin : begin + _CHUNK]), minlength=cut.length + 1)
        counts[0] = 0
        begins = np.cumsum(counts) - counts
        documents: NDArray[Any] = np.empty(int(counts.sum()), np.uint32 if len(lengths) <= 1 << 32 else np.uint64)
        next_ = begins.copy()
        for begin in range(0, len(lengths), _CHUNK):
            rest = cut.rest(lengths[begin : begin + _CHUNK])
            own = np.flatnonzero(rest)
            keys = np.sort(rest[own].view(U64) << _FRACTION | own.view(U64))
            places = _places(next_, *_runs(keys >> _FRACTION, cut.length + 1))
            documents[places] = (keys & _LOW) + U64(begin)
        return _ByLength(documents, begins)


class _Whole:
    """Pieces of a pack's length, in the order of their documents, taken some at a time."""

    def __init__(self, lengths: NDArray[Any], cut: Cut) -> None:
        self._length, self._chunks = cut.length, self._found(lengths, cut)
        self._documents = self._ends = np.empty(0, np.int64)
        self._at = 0

    @staticmethod
    def _found(lengths: NDArray[Any], cut: Cut) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the documents of each chunk that have such pieces, and how many they and those before have."""
        for begin in range(0, len(lengths), _CHUNK):
            counts = cut.whole(lengths[begin : begin + _CHUNK])
            own = np.flatnonzero(counts)
            yield own + begin, np.cumsum(counts[own])

    def take(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (documents, first tokens) of the next pieces."""
        documents, firsts = np.empty(count, np.int64), np.empty(count, np.int64)
        done = 0
        while done < count:
            left = int(self._ends[-1]) - self._at if len(self._ends) else 0
            if not left:
                (self._documents, self._ends), self._at = next(self._chunks), 0
                continue
            numbers = np.arange(self._at, self._at + min(count - done, left))
            own = np.searchsorted(self._ends, numbers, side="right")
            some = slice(done, done + len(numbers))
            documents[some] = self._documents[own]
            firsts[some] = (numbers - np.concatenate([[0], self._ends])[own]) * self._length
            self._at, done = self._at + len(numbers), done + len(numbers)
        return documents, firsts


def _orders(plan: PackPlan, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield the classes of all packs in order, some packs at a time."""
    sizes, counts = np.diff(plan.begins), plan.counts
    strata = max(1, -(-int((sizes * counts).sum()) // _STRATUM))
    salts = mix(np.arange(len(counts), dtype=np.uint64) * STEP + mix(np.array([seed], np.uint64)))
    for stratum in range(strata):
        low = np.maximum(counts * stratum // strata - 1, 0)
        each = np.minimum(-(-counts * (stratum + 1) // strata) + 1, counts) - low
        classes = np.repeat(np.arange(len(counts)), each)
        numbers = np.arange(len(classes)) + np.repeat(low - (np.cumsum(each) - each), each)
        jitter = (mix(salts[classes] + numbers.astype(np.uint64) * STEP) >> U64(11)).astype(np.float64) * 2.0**-53
        at = (numbers + jitter) / counts[classes] * strata
        inside = np.minimum(at.astype(np.int64), strata - 1) == stratum
        at, classes = at[inside] - stratum, classes[inside]
        keys = np.minimum((at * 2.0**32).astype(np.uint64), _LOW) << _FRACTION | np.arange(len(at), dtype=np.uint64)
        yield classes[(np.sort(keys) & _LOW).astype(np.int64)]


def assign(lengths: NDArray[Any], cut: Cut, plan: PackPlan, seed: int) -> Iterator[Pieces]:
    """Yield all packs of a plan in order, some at a time, with the documents that lie in them.

    Memory is 4 bytes a document (8 above 2**32), and some hundred MiB.

    Args:
        lengths: tokens of each document.
        cut: how documents become pieces.
        plan: of these pieces.
        seed: of the order of packs.
    """
    known, whole = _ByLength.of(lengths, cut), _Whole(lengths, cut)
    next_, sizes = known.begins.copy(), np.diff(plan.begins)
    is_whole = plan.pieces[plan.begins[:-1]] == cut.length
    for classes in _orders(plan, seed):
        count = sizes[classes]
        bounds = np.concatenate([[0], np.cumsum(count)])
        pieces, full = int(bounds[-1]), is_whole[classes]
        documents, firsts, held = (np.empty(pieces, np.int64) for _ in range(3))
        at = bounds[:-1][full]
        documents[at], firsts[at] = whole.take(len(at))
        held[at] = cut.length
        shorter, count = np.flatnonzero(~np.repeat(full, count)), count[~full]
        own = plan.pieces[np.repeat(plan.begins[classes[~full]] - (np.cumsum(count) - count), count) + _range(count)]
        keys = np.sort(own.view(U64) << _FRACTION | _range(count).view(U64))
        found = known.documents[_places(next_, *_runs(keys >> _FRACTION, cut.length + 1))]
        packs = np.repeat(np.arange(len(count), dtype=np.uint64), count)[(keys & _LOW).view(np.int64)]
        # in a pack by document, as they lie in the dataset: lengths say nothing about places
        numbers = (np.sort(packs << U64(40) | found.astype(np.uint64)) & U64((1 << 40) - 1)).view(np.int64)
        own = np.asarray(lengths[numbers], np.int64)
        rest = cut.rest(own)
        documents[shorter], firsts[shorter], held[shorter] = numbers, own - rest, rest
        yield Pieces(bounds, documents, firsts, held)


def _range(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.arange(int(counts.sum()))


def carried(windows: Iterable[Pieces], length: int) -> Iterator[Pieces]:
    """Yield packs as `assign` gives them, with those that have room written behind one another as one stream.

    A pack of the stream lies where its last token would have; only the last one of all may have room.
    """
    none = np.empty(0, np.int64)
    held = Pieces(none, none, none, none)
    for window in windows:
        sizes = np.diff(window.bounds)
        totals = np.add.reduceat(window.lengths, window.bounds[:-1]) if len(sizes) else sizes
        open_ = np.repeat(totals < length, sizes)
        parts = [np.concatenate([old, new[open_]]) for old, new in zip(held[1:], window[1:], strict=True)]
        documents, firsts, lengths, packs = _cut_stream(parts, length)
        done = (int(held.lengths.sum()) + np.cumsum(np.where(totals < length, totals, 0))) // length
        ends = np.diff(done, prepend=0) > 0
        numbers = np.cumsum((totals == length) | ends) - 1
        ready = packs < (int(done[-1]) if len(done) else 0)
        held = Pieces(held.bounds, documents[~ready], firsts[~ready], lengths[~ready])
        owner = np.concatenate([np.repeat(numbers, sizes)[~open_], numbers[ends][packs[ready]]])
        order = np.argsort(owner, kind="stable")
        both = zip(window[1:], (documents, firsts, lengths), strict=True)
        columns = [np.concatenate([whole[~open_], cut[ready]])[order] for whole, cut in both]
        count = int(numbers[-1]) + 1 if len(numbers) else 0
        yield Pieces(np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=count))]), *columns)
    if len(held.documents):
        yield held._replace(bounds=np.array([0, len(held.documents)]))


def _cut_stream(columns: Sequence[NDArray[np.int64]], length: int) -> list[NDArray[np.int64]]:
    """Return (documents, first tokens, lengths, packs) of pieces behind one another, cut where a pack ends."""
    documents, firsts, lengths = columns
    ends = np.cumsum(lengths)
    begins = ends - lengths
    crosses = begins // length < (ends - 1) // length  # once at most: each is shorter than a pack
    own = np.repeat(np.arange(len(lengths)), 1 + crosses)
    second = np.flatnonzero(crosses) + np.arange(1, 1 + int(crosses.sum()))
    middle = ends[crosses] // length * length
    low, high = begins[own], ends[own]
    low[second] = high[second - 1] = middle
    return [documents[own], firsts[own] + low - begins[own], high - low, low // length]
