"""The step `top`: the documents with the best values of a column, up to a budget.

Documents are taken in the order of their values, and those with equal values in the order in which
budgets take them, by hash. For example, with a budget of 10 tokens and the highest values first:

    value     5    4    4    2
    hash      70   17   35   52
    tokens    4    3    5    2

The documents with the value 4 do not all fit, so 4 is the cut. The document with the value 5 leaves
6 tokens. Of the two *tied* documents at the cut, the one with the hash 17 fits, and the next one
does not: the step ends there.

As with other budgets, a smaller one keeps a part of what a larger one keeps. Documents without a
value, and those whose value is NaN, are never taken.

The step chooses among candidates: the documents that the filters before it keep. There may be
billions of them, so their values are mapped from scratch files, and are never sorted. Each value is
stored as a *key*, an unsigned integer in the same order (see `sampling.ranks`).
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
    """The order in which a step `top` takes candidates, by their values of a column."""

    candidates: Candidates
    value_keys: NDArray[np.uint64]
    """Each candidate's value as an integer in the same order, shape (n_candidates,)."""
    faults: NDArray[np.uint8]
    """0 for each candidate with a value, NULL or NAN for the others, shape (n_candidates,)."""
    dtype: type[np.int64 | np.float64]
    """Type of the values."""
    ascending: bool
    """Whether the lowest values are taken first."""

    def is_eligible(self, chunk: slice) -> NDArray[np.bool_]:
        """Return which documents of a range may be taken: those with a value of the column.

        Documents without a value, or with NaN, are never taken, and neither are those that earlier
        steps of the view have left out.

        Args:
            chunk: The range, as indices among the candidates.

        Returns:
            bool, shape (n_candidates_in_range,).
        """
        has_value = self.faults[chunk] == 0  # otherwise, the fault is NULL or NAN
        # Earlier steps leave out a document by setting its number of copies to 0.
        has_copies = self.candidates.copy_counts[chunk] > 0
        is_eligible: NDArray[np.bool_] = has_value & has_copies
        return is_eligible

    def rank_keys(self, chunk: slice) -> NDArray[np.uint64]:
        """Return a number for each document of a range; the smallest numbers are taken first.

        Documents with equal values have equal numbers. If the highest values are taken first, the
        values 5, 2 and 5 get numbers in the order of -5, -2 and -5.

        Args:
            chunk: The range, as indices among the candidates.

        Returns:
            uint64, shape (n_candidates_in_range,).
        """
        value_keys = self.value_keys[chunk]
        return value_keys if self.ascending else ~value_keys  # inverted bits, opposite order

    def value_of(self, rank_key: np.uint64) -> int | float:
        """Return the value of the column for a number from `rank_keys`, the inverse function.

        Args:
            rank_key: The number.

        Returns:
            An integer or a float, as the column has them.
        """
        value_key = rank_key if self.ascending else ~rank_key
        value: int | float = values_of_keys(np.array([value_key]), self.dtype)[0].item()
        return value

    def count(self) -> ValueCounts:
        """Count the documents with and without a value.

        Returns:
            The numbers of documents with a value, without one, and with NaN; each copy counts.
        """
        counts = np.zeros(3, np.int64)  # index: 0 for documents with a value, NULL (1) or NAN (2)
        for chunk in self.candidates.chunks:
            copy_counts = self.candidates.amounts(chunk, "documents")
            # bincount adds up floats, which are exact up to 2**53.
            counts += np.bincount(self.faults[chunk], copy_counts, len(counts)).astype(np.int64)
        return ValueCounts(int(counts[0]), nulls=int(counts[NULL]), nans=int(counts[NAN]))


@dataclass(frozen=True, slots=True)
class TopEnd:
    """Where a step `top` ends: at the first candidates that do not fit into its budget."""

    ranking: Ranking
    cut_key: np.uint64
    """The one of `Ranking.rank_keys` that belongs to the value at the cut."""
    hash_limit: np.uint64
    """The smallest of the `budget_hashes` of documents with this value that do not fit."""
    amount_before: int
    """How many documents or tokens are taken."""

    def precedes(self, chunk: slice) -> NDArray[np.bool_]:
        """Return which documents of a range are taken: those before the first that does not fit.

        Documents are taken from the best value on. Those with equal values are taken from the
        smallest hash of their ids on, an order that does not change when documents are appended.
        For example, if the first that does not fit has the value 4 and the hash 35:

            value    5       4       4     2
            hash     70      17      35    52
            taken    True    True    False False

        Args:
            chunk: The range, as indices among the candidates.

        Returns:
            bool, shape (n_candidates_in_range,).
        """
        rank_keys = self.ranking.rank_keys(chunk)  # smaller for better values
        has_better_value = rank_keys < self.cut_key
        is_taken = has_better_value

        # Of the candidates with the value of the end, those with smaller hashes are taken, too.
        # There are often few, so only their hashes are computed.
        tied = np.flatnonzero(rank_keys == self.cut_key)
        is_taken[tied] = self._hashes(chunk, tied) < self.hash_limit
        return is_taken & self.ranking.is_eligible(chunk)

    def _hashes(self, chunk: slice, rows: NDArray[np.intp]) -> NDArray[np.uint64]:
        """Return the hashes by which candidates with equal values are taken; shape (n_rows,).

        Args:
            chunk: A range of candidates.
            rows: Some of them, as indices in the range.
        """
        return budget_hashes(self.ranking.candidates.hashes[chunk][rows])

    def is_at(self, chunk: slice) -> NDArray[np.bool_]:
        """Return which documents of a range are the first that do not fit into the budget.

        They are known by their value and the hash of their id. Documents in which both are equal
        are taken together or not at all, so there can be several.

        Args:
            chunk: The range, as indices among the candidates.

        Returns:
            bool, shape (n_candidates_in_range,).
        """
        # Each value of the column is a number here: `cut_key` is that of the first misfit.
        has_same_value = self.ranking.rank_keys(chunk) == self.cut_key
        tied = np.flatnonzero(has_same_value)
        is_first_misfit = np.zeros(len(has_same_value), np.bool_)
        is_first_misfit[tied] = self._hashes(chunk, tied) == self.hash_limit
        return is_first_misfit & self.ranking.is_eligible(chunk)


@dataclass(frozen=True, slots=True)
class TiedDocuments:
    """The documents whose value is that of the cut, each copy counted."""

    documents: int = 0
    chosen: int = 0
    """How many of them are taken, by hash."""


@dataclass(frozen=True, slots=True)
class TopResult:
    """What a step `top` has done."""

    step: Top
    budget: int
    """Number of documents or tokens; for a share, the number of documents."""
    cut: float | None
    """The value at which the step ends; None if it takes all documents with a value."""
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
    """Keep the documents with the best values of a column, until the next one exceeds a budget.

    Args:
        step: Names the column and the budget.
        candidates: The documents to choose from. The number of copies of each that is not taken
            becomes 0.
        column: The values of the documents.

    Returns:
        What is reported to the user, such as the value at which the budget is used up.
    """
    ranking = Ranking(candidates, column.keys(), column.faults(), column.dtype, step.ascending)
    counts = ranking.count()
    budget = _budget_of(step, counts.ranked)
    end = _find_end(budget, ranking)  # None if all documents with a value fit

    # Describe the result first, since this also needs the documents that are left out below.
    cut = None
    tied = TiedDocuments()
    gap = None  # what stays unused of the budget, because the next document is large
    if end is not None:
        cut = ranking.value_of(end.cut_key)
        tied = _count_tied(end)
        if step.share is None:
            gap = find_gap(budget, end, candidates)
    result = TopResult(
        step,
        budget=budget.limit,
        cut=cut,
        tied=tied,
        counts=counts,
        bins=histogram(partial(_histogram_values, ranking, end)),
        gap=gap,
    )

    for chunk in candidates.chunks:
        is_taken = ranking.is_eligible(chunk) if end is None else end.precedes(chunk)
        candidates.copy_counts[chunk] *= is_taken
    return result


def _budget_of(step: Top, n_ranked: int) -> Budget:
    """Return the budget of a step `top`, as a number of documents or tokens.

    For example, a share of 0.29 of 100 documents is a budget of 29 documents.

    Args:
        step: The step, which may have a share instead of a number.
        n_ranked: Documents with a value. A share is a share of these, rounded down.
    """
    if step.limit is not None:
        return Budget(step.view, step.unit, step.limit)
    # The share as it is written: as a float, 0.29 is slightly less than 29 of 100 documents.
    share = Decimal(repr(step.share))
    return Budget(step.view, "documents", int(share * n_ranked))


def _find_end(budget: Budget, ranking: Ranking) -> TopEnd | None:
    """Find the first document that does not fit into the budget of a step `top`.

    Documents are taken in the order of their values, and those with equal values by hash. Given a
    budget of 10 tokens, and

        value     5    4    4    2
        hash      70   17   35   52
        tokens    4    3    5    2

    the step ends at the value 4 and the hash 35: 4 + 3 tokens fit, and the next 5 do not.

    Returns:
        None if all documents with a value fit.
    """
    # Add up the tokens value by value, from the best one on. The sums are 4, 12 and 14, so the
    # value 4 is the first whose documents do not all fit. Its key is a number that stands for the
    # value 4: `first_excess` adds up amounts in the order of keys, from the smallest one on.
    first_misfit = first_excess(partial(_amounts_by_value, budget, ranking), budget.limit)
    if first_misfit is None:
        return None
    cut_key = first_misfit.key
    amount_before_cut = first_misfit.amount_below  # the 4 tokens of the value 5

    # Among its documents, add up the tokens hash by hash. The sums are 3 and 8, and 6 tokens are
    # left: the hash 35 is the first that does not fit.
    rest = budget.limit - amount_before_cut
    tied_misfit = first_excess(partial(_amounts_by_hash, budget, ranking, cut_key), rest)
    if tied_misfit is None:
        raise AssertionError("the documents with this value do not fit together")
    return TopEnd(
        ranking,
        cut_key,
        hash_limit=tied_misfit.key,
        amount_before=amount_before_cut + tied_misfit.amount_below,
    )


def _amounts_by_value(budget: Budget, ranking: Ranking) -> Iterator[KeyedAmounts]:
    """Yield how much of a budget each document with a value takes, with a key of its value.

    Documents with the smallest keys are taken first.
    """
    for chunk in ranking.candidates.chunks:
        is_eligible = ranking.is_eligible(chunk)
        amounts = ranking.candidates.amounts(chunk, budget.unit)  # documents or tokens
        yield KeyedAmounts(ranking.rank_keys(chunk)[is_eligible], amounts[is_eligible])


def _amounts_by_hash(
    budget: Budget, ranking: Ranking, rank_key: np.uint64
) -> Iterator[KeyedAmounts]:
    """Yield the hash of each document with one value, and how much of a budget the document takes.

    Documents with equal values are taken in the order of their hashes.

    Args:
        budget: A number of documents or tokens.
        ranking: All documents, and the order of their values.
        rank_key: The value, as an integer that `Ranking.rank_keys` returns for it.
    """
    for chunk in ranking.candidates.chunks:
        is_tied = (ranking.rank_keys(chunk) == rank_key) & ranking.is_eligible(chunk)
        hashes = budget_hashes(ranking.candidates.hashes[chunk][is_tied])
        amounts = ranking.candidates.amounts(chunk, budget.unit)  # documents or tokens
        yield KeyedAmounts(hashes, amounts[is_tied])


def _count_tied(end: TopEnd) -> TiedDocuments:
    """Count the documents with the value at which a step `top` ends, and how many it takes.

    Of these documents, the step takes those with the smallest hashes, as many as fit. For example,
    5 documents have the value 4, and 2 of them are taken.
    """
    n_tied = 0
    n_taken = 0
    ranking = end.ranking
    for chunk in ranking.candidates.chunks:
        copy_counts = ranking.candidates.amounts(chunk, "documents")
        is_tied = (ranking.rank_keys(chunk) == end.cut_key) & ranking.is_eligible(chunk)
        n_tied += int(copy_counts[is_tied].sum())
        n_taken += int(copy_counts[is_tied & end.precedes(chunk)].sum())
    return TiedDocuments(documents=n_tied, chosen=n_taken)


def _histogram_values(ranking: Ranking, end: TopEnd | None) -> Iterator[WeighedValues]:
    """Yield the values of all documents, and four amounts of each for a histogram.

    The amounts are documents and tokens, and documents and tokens that are taken. A document of 100
    tokens with 2 copies has the amounts 2, 200, 2, 200 if it is taken, and otherwise 2, 200, 0, 0.

    Args:
        ranking: The documents in the order in which they are taken.
        end: The first document that does not fit into the budget; None if all of them fit.
    """
    candidates = ranking.candidates
    for chunk in candidates.chunks:
        has_value = ranking.is_eligible(chunk)  # (n_documents,)
        is_taken = has_value if end is None else end.precedes(chunk)
        documents = candidates.amounts(chunk, "documents")
        tokens = candidates.amounts(chunk, "tokens")
        amounts = [documents, tokens, documents * is_taken, tokens * is_taken]

        # Leave out documents without a value. Values are stored as integers: decode them.
        value_keys = ranking.value_keys[chunk][has_value]
        yield WeighedValues(
            values=values_of_keys(value_keys, ranking.dtype),
            amounts=[amount[has_value] for amount in amounts],
        )
