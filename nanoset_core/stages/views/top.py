"""The rule `top`: the documents with the best values of a column, up to a budget.

Documents are taken in the order of their values, and those with equal values in the order in which
budgets take them, by hash. For example, with a budget of 10 tokens and the highest values first:

    value     5    4    4    2
    hash      70   17   35   52
    tokens    4    3    5    2

The documents with the value 4 do not fit together, so 4 is the cut. The document with the value 5
leaves 6 tokens. Of those with the value 4, the one with the hash 17 fits, and the next does not.

As with other budgets, a smaller one keeps a part of what a larger one keeps. Documents without a
value, and those whose value is NaN, are never taken.

The rule chooses among candidates: the documents that the filters before it keep. There may be
billions of them, so their values are mapped from scratch files, and are never sorted. Each value is
stored as a key, an integer in the same order (see `sampling.ranks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.sampling.histogram import Bin, WeighedValues, histogram
from nanoset_core.sampling.ranks import KeyedAmounts, first_excess, values_of_keys
from nanoset_core.stages.views.budgets import (
    BudgetGap,
    Candidates,
    budget_hashes,
    find_gap,
)
from nanoset_core.stages.views.ranked_column import NAN, NULL, RankedColumn
from nanoset_core.stages.views.rules import Budget, Top


class ValueCounts(NamedTuple):
    """How many documents have a value of a column, each copy counted."""

    ranked: int
    """Documents with a value other than NaN."""
    nulls: int
    """Documents without a value."""
    nans: int
    """Documents with the value NaN."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates in the order in which a rule `top` takes them."""

    candidates: Candidates
    ascending_keys: NDArray[np.uint64]
    """Key of each candidate's value, shape (n_candidates,)."""
    faults: NDArray[np.uint8]
    """0 for each candidate with a value, shape (n_candidates,)."""
    dtype: type[np.int64 | np.float64]
    """Type of the values."""
    ascending: bool
    """Whether the lowest values are taken first."""

    def is_ranked(self, chunk: slice) -> NDArray[np.bool_]:
        """Return which candidates of a range may be taken: those with a value other than NaN.

        Candidates without a copy, which earlier steps left out, may not be taken either.
        """
        has_copies = self.candidates.copy_counts[chunk] > 0
        is_ranked: NDArray[np.bool_] = has_copies & (self.faults[chunk] == 0)
        return is_ranked

    def keys(self, chunk: slice) -> NDArray[np.uint64]:
        """Return keys of a range of candidates; those with the smallest keys are taken first."""
        keys = self.ascending_keys[chunk]
        return keys if self.ascending else ~keys

    def value_of(self, key: np.uint64) -> int | float:
        """Return the value that has a key."""
        ascending_key = key if self.ascending else ~key
        value: int | float = values_of_keys(np.array([ascending_key]), self.dtype)[0].item()
        return value

    def count(self) -> ValueCounts:
        """Count the documents with and without a value."""
        counts = np.zeros(3, np.int64)  # of documents with a value, and with the faults 1 and 2
        for chunk in self.candidates.chunks:
            copy_counts = self.candidates.amounts(chunk, "documents")
            # bincount adds up floats, which are exact up to 2**53.
            counts += np.bincount(self.faults[chunk], copy_counts, len(counts)).astype(np.int64)
        return ValueCounts(int(counts[0]), nulls=int(counts[NULL]), nans=int(counts[NAN]))


@dataclass(frozen=True, slots=True)
class TopEnd:
    """Where a rule `top` ends."""

    ranking: Ranking
    key: np.uint64
    """Key of the value at the cut."""
    hash_limit: np.uint64
    """The smallest of the `budget_hashes` of documents with this value that do not fit."""
    amount_before: int
    """How many documents or tokens are taken."""

    def precedes(self, chunk: slice) -> NDArray[np.bool_]:
        """Return which candidates of a range are taken, shape (n_candidates_in_range,)."""
        keys = self.ranking.keys(chunk)
        is_before = keys < self.key
        tied = np.flatnonzero(keys == self.key)  # often few, so that few hashes are computed
        hashes = budget_hashes(self.ranking.candidates.hashes[chunk][tied])
        is_before[tied] = hashes < self.hash_limit
        is_taken: NDArray[np.bool_] = is_before & self.ranking.is_ranked(chunk)
        return is_taken

    def is_at(self, chunk: slice) -> NDArray[np.bool_]:
        """Return which candidates of a range do not fit, shape (n_candidates_in_range,)."""
        is_at_end: NDArray[np.bool_] = self.ranking.keys(chunk) == self.key
        tied = np.flatnonzero(is_at_end)
        hashes = budget_hashes(self.ranking.candidates.hashes[chunk][tied])
        is_at_end[tied] = hashes == self.hash_limit
        return is_at_end & self.ranking.is_ranked(chunk)


@dataclass(frozen=True, slots=True)
class TiedDocuments:
    """The documents whose value is that of the cut, each copy counted."""

    documents: int = 0
    chosen: int = 0
    """How many of them are taken, by hash."""


@dataclass(frozen=True, slots=True)
class TopResult:
    """What a rule `top` has done."""

    step: Top
    budget: int
    """Number of documents or tokens; for a share, the number of documents."""
    cut: float | None
    """The value at which the rule ends; None if it takes all documents with a value."""
    tied: TiedDocuments
    counts: ValueCounts
    """Documents with and without a value."""
    bins: Sequence[Bin] = field(default=())
    """Histogram of the column. Its amounts are documents, tokens, documents that are taken, and
    tokens that are taken.
    """
    gap: BudgetGap | None = None
    """The document that does not fit, if the budget stays far from full because of it."""


def apply_top(step: Top, candidates: Candidates, column: RankedColumn) -> TopResult:
    """Keep the candidates with the best values of a column that fit into a budget.

    Args:
        step: The rule.
        candidates: The candidates; their `copy_counts` are changed.
        column: Their values.
    """
    # Find where the rule ends.
    ranking = Ranking(candidates, column.keys(), column.faults(), column.dtype, step.ascending)
    counts = ranking.count()
    budget = _budget_of(step, counts.ranked)
    end = _find_end(budget, ranking)

    # Describe it for the user.
    cut = None
    tied = TiedDocuments()
    gap = None
    if end is not None:
        cut = ranking.value_of(end.key)
        tied = _count_tied(end)
        if step.share is None:
            gap = find_gap(budget, end, candidates)
    bins = histogram(partial(_weighed_values, ranking, end))

    # The histogram counts what is left out, so documents are left out at the end.
    for chunk in candidates.chunks:
        is_taken = ranking.is_ranked(chunk) if end is None else end.precedes(chunk)
        candidates.copy_counts[chunk] *= is_taken
    return TopResult(step, budget.limit, cut, tied, counts, bins, gap)


def _budget_of(step: Top, n_ranked: int) -> Budget:
    """Return the budget of a rule.

    Args:
        step: The rule.
        n_ranked: Documents with a value. A share is a share of these, rounded down.
    """
    if step.limit is not None:
        return Budget(step.view, step.unit, step.limit)
    # The share as it is written: as a float, 0.29 is slightly less than 29 of 100 documents.
    share = Decimal(repr(step.share))
    return Budget(step.view, "documents", int(share * n_ranked))


def _find_end(budget: Budget, ranking: Ranking) -> TopEnd | None:
    """Return where a rule ends; None if the budget has room for all documents with a value."""
    # The first value whose documents do not fit together.
    excess = first_excess(partial(_keyed_amounts, budget, ranking), budget.limit)
    if excess is None:
        return None
    # The first hash of documents with this value that does not fit into the rest of the budget.
    rest = budget.limit - excess.amount_below
    tie_excess = first_excess(partial(_tied_amounts, budget, ranking, excess.key), rest)
    if tie_excess is None:
        raise AssertionError("the documents with this value do not fit together")
    amount_before = excess.amount_below + tie_excess.amount_below
    return TopEnd(ranking, excess.key, tie_excess.key, amount_before)


def _keyed_amounts(budget: Budget, ranking: Ranking) -> Iterator[KeyedAmounts]:
    """Yield the keys of the candidates with a value, and what each takes of a budget."""
    for chunk in ranking.candidates.chunks:
        is_ranked = ranking.is_ranked(chunk)
        amounts = ranking.candidates.amounts(chunk, budget.unit)
        yield KeyedAmounts(ranking.keys(chunk)[is_ranked], amounts[is_ranked])


def _tied_amounts(budget: Budget, ranking: Ranking, key: np.uint64) -> Iterator[KeyedAmounts]:
    """Yield the hashes of the candidates with one key, and what each takes of a budget."""
    for chunk in ranking.candidates.chunks:
        is_tied = (ranking.keys(chunk) == key) & ranking.is_ranked(chunk)
        hashes = budget_hashes(ranking.candidates.hashes[chunk][is_tied])
        amounts = ranking.candidates.amounts(chunk, budget.unit)
        yield KeyedAmounts(hashes, amounts[is_tied])


def _count_tied(end: TopEnd) -> TiedDocuments:
    """Count the documents whose value is that of the cut."""
    n_tied = 0
    n_chosen = 0
    ranking = end.ranking
    for chunk in ranking.candidates.chunks:
        copy_counts = ranking.candidates.amounts(chunk, "documents")
        is_tied = (ranking.keys(chunk) == end.key) & ranking.is_ranked(chunk)
        n_tied += int(copy_counts[is_tied].sum())
        n_chosen += int(copy_counts[is_tied & end.precedes(chunk)].sum())
    return TiedDocuments(n_tied, n_chosen)


def _weighed_values(ranking: Ranking, end: TopEnd | None) -> Iterator[WeighedValues]:
    """Yield the values of the candidates, with the amounts of `TopResult.bins`."""
    candidates = ranking.candidates
    for chunk in candidates.chunks:
        is_ranked = ranking.is_ranked(chunk)
        is_taken = is_ranked if end is None else end.precedes(chunk)
        documents = candidates.amounts(chunk, "documents")
        tokens = candidates.amounts(chunk, "tokens")
        amounts = [documents, tokens, documents * is_taken, tokens * is_taken]
        yield WeighedValues(
            values=values_of_keys(ranking.ascending_keys[chunk][is_ranked], ranking.dtype),
            amounts=[amount[is_ranked] for amount in amounts],
        )
