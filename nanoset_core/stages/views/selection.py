"""Choose the documents of views: in one pass over the tables of a corpus, and by what looks at all
documents.

What the first filters keep is found for all views together. Of a view that has budgets, repeats or
a seeded order, hash, tokens and number of times of each document that they keep are held in scratch
files. An order takes 24 bytes of memory a document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.sampling.hashing import U64, below, salted
from nanoset_core.stages.views.conditions import plain
from nanoset_core.stages.views.rules import (
    FILTERS,
    Budget,
    Filter,
    Group,
    Left,
    Order,
    Repeat,
    Rows,
    Rule,
)
from nanoset_core.stages.views.sieve import Sieve, Values

CHUNK = 1 << 20
"""Documents that are looked at together."""
_DIGIT = U64(16)
"""Bits of a hash by which a budget's limit is narrowed down in one pass."""
_FOUR = range(48, -1, -16)


FULL_SHARE = 0.99
"""Share of a budget below which what does not fit is reported."""


@dataclass(frozen=True, slots=True)
class BudgetGap:
    """A budget that is not filled, since the next document in the order of hashes would exceed it."""

    view: str
    """Whose budget it is."""
    unit: str
    """Documents or tokens."""
    budget: int
    reached: int
    """What the documents that it keeps come to."""
    document: int
    """Number in the corpus of the next document, or of the first one of those with its hash."""
    documents: int
    """How many documents have this hash, each copy counted: those of one id go together."""
    amount: int
    """What they come to."""


@dataclass(slots=True)
class Selection:
    """The documents that a view chose."""

    left: list[Left]
    """What each step left, in order; the first is the corpus."""
    _alive: Callable[[], Iterator[NDArray[np.int64]]]
    """Gives the numbers of the documents that the first filters kept."""
    _times: NDArray[np.uint32] | None = None
    """How often each of the documents that are alive is given; None = once."""
    _order: NDArray[np.int64] | None = None
    """Documents in their order, where it is not that in which they are stored."""
    gaps: list[BudgetGap] = field(default_factory=list)
    """Budgets of which less than FULL_SHARE is reached, although there are more documents."""

    @property
    def documents(self) -> int:
        """How many there are, each counted as often as it is given."""
        return self.left[-1].documents

    @property
    def tokens(self) -> int:
        """How many tokens they have."""
        return self.left[-1].tokens

    def chunks(self) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of the documents in their order, int64; repeated ones once more after
        all others.
        """
        if self._order is not None:
            for begin in range(0, len(self._order), CHUNK):
                yield self._order[begin : begin + CHUNK]
        else:
            for _, documents, _ in self.passes():
                yield documents

    def passes(self) -> Iterator[tuple[int, NDArray[np.int64], slice | NDArray[np.int64]]]:
        """Yield (times before, documents, their places among those that were alive) in the order of
        storage.
        """
        last = 1 if self._times is None else int(self._times.max(initial=0))
        for times in range(last):
            place = 0
            for documents in self._alive():
                places: slice | NDArray[np.int64] = slice(place, place + len(documents))
                place += len(documents)
                if self._times is not None:
                    again = np.flatnonzero(self._times[places] > times)
                    documents, places = documents[again], place - len(documents) + again
                if len(documents):
                    yield times, documents, places


@dataclass(slots=True)
class _View:
    """One view while its corpus is read."""

    rule: Rule
    left: list[Left]
    keys: Values | None
    tokens: Values | None
    later: dict[int, tuple[Filter, Values]] = field(default_factory=dict)
    """Number of a filter behind a budget → the filter, and whether it keeps each candidate."""
    values: list[Any] = field(default_factory=list)
    """Of the column that it is ordered by."""

    @property
    def needs_rows(self) -> bool:
        """Whether more is kept of documents than which its first filters keep."""
        return self.keys is not None or (
            self.rule.order is not None and self.rule.order.by is not None
        )

    def add(self, rows: Rows, alive: NDArray[np.bool_]) -> None:
        """Take a row group, of which its first filters keep some documents."""
        if self.keys is not None and self.tokens is not None:
            self.keys.add(rows.keys()[alive] if alive.any() else np.empty(0, np.uint64))
            self.tokens.add(rows.tokens[alive])
        for step, file in self.later.values():
            file.add(step.mask(rows, alive)[alive])
        if self.rule.order is not None and self.rule.order.by is not None and alive.any():
            self.values.append(
                plain(rows.table(frozenset({self.rule.order.by})).column(0)).filter(alive)
            )


def select(
    groups: Iterable[Group],
    rules: Sequence[Rule],
    scratch: Path,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Selection]:
    """Choose the documents of some views of one corpus, in one pass over its tables.

    Args:
        groups: the row groups of the corpus, in order.
        rules: of the views.
        scratch: an empty folder for what is kept beside memory: 1 bit to 2 bytes a document, 12
            more bytes of each candidate of a view that has budgets, repeats or a seeded order. The
            selections need it.
        progress: called with the documents of each row group.

    Raises:
        ConfigError: a condition names a column that is not there, or compares it with a value of
            another type.
    """
    views = [_opened(rule, scratch / str(number)) for number, rule in enumerate(rules)]
    sieve = Sieve(rules, scratch)
    by_rows = [(number, view) for number, view in enumerate(views) if view.needs_rows]
    for group in groups:
        if not group.rows:
            continue
        rows = Rows(group)
        sieve.add(rows)
        for number, view in by_rows:
            view.add(rows, sieve.alive(number))
        progress(group.rows)
    return [
        _finished(view, sieve, number, scratch / f"{number}-times")
        for number, view in enumerate(views)
    ]


def _opened(rule: Rule, path: Path) -> _View:
    left = [Left("", "all"), *(Left(step.name, step.text) for step in rule.steps)]
    keys = tokens = None
    later: dict[int, tuple[Filter, Values]] = {}
    if rule.needs_keys:
        keys, tokens = (
            Values(Path(f"{path}-keys"), np.uint64),
            Values(Path(f"{path}-tokens"), np.int32),
        )
        for number in range(len(rule.leading), len(rule.steps)):
            if isinstance(step := rule.steps[number], FILTERS):
                later[number] = step, Values(Path(f"{path}-{number}"), np.bool_)
    return _View(rule, left, keys, tokens, later)


def _finished(view: _View, sieve: Sieve, number: int, path: Path) -> Selection:
    rule = view.rule
    for left, (documents, tokens_left) in zip(view.left, sieve.left(number), strict=False):
        left.add(documents, tokens_left)
    selection = Selection(view.left, partial(sieve.chunks, number))

    # Steps that look at all documents that the first filters keep (the candidates).
    keys = np.empty(0, np.uint64)
    if view.keys is not None and view.tokens is not None:
        keys = view.keys.mapped()
        tokens = view.tokens.mapped()
        times = (
            np.ones(0, np.uint32)
            if not len(keys)
            else np.memmap(path, np.uint32, "w+", shape=keys.shape)
        )
        times[:] = 1
        for step in range(len(rule.leading), len(rule.steps)):
            gap = _apply(view, step, _Candidates(keys, tokens, times))
            if gap is not None:
                selection.gaps.append(replace(gap, document=_document_at(selection, gap.document)))
        selection._times = times

    if rule.order is not None:
        selection._order = _ordered(rule.order, selection, keys, view.values)
    return selection


def _document_at(selection: Selection, place: int) -> int:
    """Return the number of the candidate at a place among all candidates."""
    for documents in selection._alive():
        if place < len(documents):
            return int(documents[place])
        place -= len(documents)
    raise IndexError(place)


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The documents that the first filters of a view keep, shape (candidates,) each."""

    keys: NDArray[np.uint64]
    """Hashes of their ids."""
    tokens: NDArray[np.int32]
    times: NDArray[np.uint32]
    """How often each is given; steps change it."""

    @property
    def ranges(self) -> Iterator[slice]:
        """Ranges of candidates that are looked at together."""
        for begin in range(0, len(self.keys), CHUNK):
            yield slice(begin, begin + CHUNK)

    def amounts(self, some: slice, unit: str) -> NDArray[np.int64]:
        """Return what candidates come to in the unit of a budget, each copy counted, int64."""
        times = self.times[some].astype(np.int64)
        return times * self.tokens[some] if unit == "tokens" else times


def _apply(view: _View, number: int, candidates: _Candidates) -> BudgetGap | None:
    """Change how often each candidate is given by one step, and count what it leaves.

    Returns:
        What keeps a budget from being filled, with the place of the document among the candidates
        as its number; None if the step is no budget, or is filled.
    """
    step = view.rule.steps[number]
    left = view.left[number + 1]
    keys, times = candidates.keys, candidates.times
    limit = _limit(step, candidates) if isinstance(step, Budget) else None
    gap = None if limit is None or not isinstance(step, Budget) else _gap(step, limit, candidates)
    kept = view.later[number][1].mapped() if number in view.later else None
    for some in candidates.ranges:
        if isinstance(step, Repeat):
            whole = int(step.times)
            once_more = below(salted(keys[some], f"repeat {step.name}"), step.times - whole)
            times[some] = times[some] * (whole + once_more).astype(np.uint32)
        elif isinstance(step, Budget):
            if limit is not None:
                times[some] *= salted(keys[some], "budget") < limit
        elif kept is not None:
            times[some] *= kept[some]
        given = times[some].astype(np.int64)
        left.add(int(given.sum()), int((given * candidates.tokens[some]).sum()))
    return gap


def _limit(budget: Budget, candidates: _Candidates) -> np.uint64 | None:
    """Return the hash from which on documents are too many for a budget; None where all fit.

    Hashes are taken in ascending order. The limit is narrowed down by 16 bits in each of four
    passes.
    """
    prefix = U64(0)
    room = budget.most
    for shift in _FOUR:
        sums = np.zeros(1 << 16, np.int64)
        for some in candidates.ranges:
            amounts = candidates.amounts(some, budget.unit)
            own = salted(candidates.keys[some], "budget") >> U64(shift)
            inside = (own >> _DIGIT) == prefix
            digits = (own[inside] & U64(0xFFFF)).astype(np.int64)
            sums += np.bincount(digits, amounts[inside].astype(np.float64), 1 << 16).astype(
                np.int64
            )
        upto = np.cumsum(sums)
        digit = int(np.searchsorted(upto, room, side="right"))
        if digit == 1 << 16:
            if shift == _FOUR[0]:
                return None
            digit -= 1  # all of this prefix fits: the next one does not
        room -= int(upto[digit - 1]) if digit else 0
        prefix = (prefix << _DIGIT) | U64(digit)
    return prefix


def _gap(budget: Budget, limit: np.uint64, candidates: _Candidates) -> BudgetGap | None:
    """Return what does not fit into a budget; None if enough of it is reached.

    A budget does not pass over a document that does not fit: what a smaller budget holds would then
    not be a part of what a larger one holds.
    """
    reached = 0
    amount = 0
    documents = 0
    place = -1
    for some in candidates.ranges:
        hashes = salted(candidates.keys[some], "budget")
        amounts = candidates.amounts(some, budget.unit)
        reached += int(amounts[hashes < limit].sum())

        is_next = (hashes == limit) & (candidates.times[some] > 0)
        amount += int(amounts[is_next].sum())
        documents += int(candidates.times[some][is_next].sum())
        if place < 0 and is_next.any():
            place = some.start + int(np.argmax(is_next))
    if place < 0 or reached >= FULL_SHARE * budget.most:
        return None
    return BudgetGap(budget.name, budget.unit, budget.most, reached, place, documents, amount)


def _ordered(
    order: Order, found: Selection, keys: NDArray[np.uint64], values: Sequence[Any]
) -> NDArray[np.int64]:
    import pyarrow as pa
    import pyarrow.compute as pc

    documents, places, ranks = (
        [np.empty(0, np.int64)],
        [np.empty(0, np.int64)],
        [np.empty(0, np.uint64)],
    )
    for times, some, where in found.passes():
        documents.append(some)
        if order.seed is not None:
            ranks.append(salted(keys[where], f"order {order.seed} {times}"))
        else:
            places.append(np.arange(where.start, where.stop) if isinstance(where, slice) else where)
    all_documents = np.concatenate(documents)
    if order.seed is not None:
        return all_documents[np.argsort(np.concatenate(ranks), kind="stable")]
    if not values:
        return all_documents
    chunks = [chunk for column in values for chunk in column.chunks]
    column = pa.chunked_array(chunks).combine_chunks().take(pa.array(np.concatenate(places)))
    direction = "descending" if order.descending else "ascending"
    places_in_order: NDArray[np.uint64] = pc.array_sort_indices(column, order=direction).to_numpy()
    return all_documents[places_in_order]
