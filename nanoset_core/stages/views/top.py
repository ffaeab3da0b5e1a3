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
stored as a *key*, an unsigned integer in the same order (see `statistics.ranks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.views.budgets import (
    BudgetGap,
    Candidates,
    budget_hashes,
    find_gap,
)
from nanoset_core.stages.views.ranked_column import NAN, NULL, RankedColumn
from nanoset_core.stages.views.rules import Budget, Top
from nanoset_core.statistics.histogram import Bin, WeighedValues, histogram
from nanoset_core.statistics.ranks import KeyedAmounts, first_excess, values_of_keys


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
        """For each document of a range, return whether `top 10 by quality` may take it.

            quality             5       none    NaN     4
            number of copies    1       1       1       0       (an earlier step has left it out)
            result              True    False   False   False

        Args:
            chunk: The range, as indices among all documents that the step chooses from.

        Returns:
            bool, shape (n_candidates_in_range,).
        """
        has_value = self.faults[chunk] == 0  # otherwise, the fault is NULL (1) or NAN (2)
        has_copies = self.candidates.copy_counts[chunk] > 0
        is_eligible: NDArray[np.bool_] = has_value & has_copies
        return is_eligible

    def rank_keys(self, chunk: slice) -> NDArray[np.uint64]:
        """Return a number for each document of a range, smaller for better values of the column.

        Documents are taken in the order of these numbers:

            quality                                5     2     5
            number, if low values are better       92    91    92      (between 0 and 99, say)
            number, if high values are better      7     8     7

        Documents without a value have some number as well: see `is_eligible`.

        Args:
            chunk: The range, as indices among all documents that the step chooses from.

        Returns:
            uint64, shape (n_candidates_in_range,).
        """
        value_keys = self.value_keys[chunk]  # integers in the order of the values
        if self.ascending:
            return value_keys
        return ~value_keys  # with all bits inverted, they have the opposite order

    def has_rank_key(self, chunk: slice, rank_key: np.uint64) -> NDArray[np.bool_]:
        """For each document of a range, return whether it has a certain value, such as quality 4.

        Args:
            chunk: The range, as indices among all documents that the step chooses from.
            rank_key: The number that `rank_keys` returns for the value.

        Returns:
            bool, shape (n_candidates_in_range,).
        """
        has_key: NDArray[np.bool_] = self.rank_keys(chunk) == rank_key
        return has_key & self.is_eligible(chunk)  # documents without a value have some key, too

    def value_of(self, rank_key: np.uint64) -> int | float:
        """Return the value of the column that a number from `rank_keys` stands for.

        Args:
            rank_key: The number.

        Returns:
            An integer or a float, as the column has them.
        """
        value_key = rank_key if self.ascending else ~rank_key  # see `rank_keys`
        value: int | float = values_of_keys(np.array([value_key]), self.dtype)[0].item()
        return value

    def count(self) -> ValueCounts:
        """Count the documents with a value of the column, those without one, and those with NaN.

        A document that an earlier step has repeated counts as often as it occurs.
        """
        n_documents = 0
        n_nulls = 0
        n_nans = 0
        for chunk in self.candidates.chunks:  # some documents at a time
            copy_counts = self.candidates.amounts(chunk, "documents")
            faults = self.faults[chunk]  # what is wrong with each document's value; 0 for nothing
            n_documents += int(copy_counts.sum())
            n_nulls += int(copy_counts[faults == NULL].sum())
            n_nans += int(copy_counts[faults == NAN].sum())
        return ValueCounts(n_documents - n_nulls - n_nans, nulls=n_nulls, nans=n_nans)


@dataclass(frozen=True, slots=True)
class TopEnd:
    """Where a step `top` ends: at the first candidates that do not fit into its budget."""

    ranking: Ranking
    cut_key: np.uint64
    """Stands for the value of these candidates; see `Ranking.rank_keys`."""
    hash_limit: np.uint64
    """The hash by which these are ordered among candidates with equal values."""
    amount_before: int
    """How many documents or tokens are taken."""

    def fits(self, chunk: slice) -> NDArray[np.bool_]:
        """For each document of a range, return whether it still fits into the budget of the step.

        Documents are taken from the best value on, and those with equal values by a hash. Suppose
        that the first one that does not fit has the value 4 and the hash 35:

            value     5       4       4       2
            hash      70      17      35      52
            result    True    True    False   False

        Args:
            chunk: The range, as indices among the documents that the step chooses from.

        Returns:
            bool, shape (n_candidates_in_range,).
        """
        # Values are compared by numbers that are smaller for better values.
        rank_keys = self.ranking.rank_keys(chunk)
        fits = rank_keys < self.cut_key  # has a better value than 4
        has_cut_value = rank_keys == self.cut_key
        fits[has_cut_value] = self._hashes(chunk, has_cut_value) < self.hash_limit  # 35

        # Documents without a value have some number, too, but are never taken.
        return fits & self.ranking.is_eligible(chunk)

    def _hashes(self, chunk: slice, mask: NDArray[np.bool_]) -> NDArray[np.uint64]:
        """Return the hashes by which documents with equal values are ordered.

        Args:
            chunk: A range of documents.
            mask: True for some of them, often few; only these are hashed. Shape (n_in_range,).

        Returns:
            uint64, shape (n_documents_in_mask,).
        """
        return budget_hashes(self.ranking.candidates.hashes[chunk][mask])

    def is_first_misfit(self, chunk: slice) -> NDArray[np.bool_]:
        """For each document of a range, return whether it is the first that does not fit.

        It is known by its value and the hash of its id, here 4 and 35. Several documents can have
        both, since ids may repeat: the step takes all of them, or none.

            value     5       4       4       4       2
            hash      70      17      35      35      52
            result    False   False   True    True    False

        Args:
            chunk: The range, as indices among the documents that the step chooses from.

        Returns:
            bool, shape (n_candidates_in_range,).
        """
        has_cut_value = self.ranking.has_rank_key(chunk, self.cut_key)  # the value 4
        is_misfit = np.zeros(len(has_cut_value), np.bool_)
        is_misfit[has_cut_value] = self._hashes(chunk, has_cut_value) == self.hash_limit  # 35
        return is_misfit


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
    """Keep the documents with the best values of a column, as many as fit into a budget.

    For example, `top 10 tokens by quality` takes the first two of these, 7 tokens in all. The third
    does not fit, and ends the step:

        quality             5     4     4     2
        hash of its id      70    17    35    52     documents with equal values: by this hash
        tokens              4     3     5     2

    Args:
        step: Names the column and the budget, a number of documents or tokens.
        candidates: The documents to choose from. The number of copies of each that is not taken
            becomes 0.
        column: The values of the documents.

    Returns:
        What is reported to the user, such as the value at which the budget is used up.
    """
    ranking = Ranking(
        candidates,
        value_keys=column.keys(),
        faults=column.faults(),
        dtype=column.dtype,
        ascending=step.ascending,
    )
    counts = ranking.count()
    budget = _budget_of(step, counts.ranked)  # 10 tokens
    end = _find_end(budget, ranking)  # the third document; None if all documents fit
    # The result describes documents that are left out, so it is made before they are.
    result = _describe_result(step, budget, ranking, counts, end)
    for chunk in candidates.chunks:
        candidates.copy_counts[chunk] *= _is_taken(ranking, end, chunk)
    return result


def _describe_result(
    step: Top, budget: Budget, ranking: Ranking, counts: ValueCounts, end: TopEnd | None
) -> TopResult:
    """Return what is reported to the user of a step such as `top 10 tokens by quality`.

    For example, the step takes the first two of these documents. The third does not fit:

        quality     5    4    4    2
        tokens      4    3    5    2

        cut     4                    quality of the first document that is not taken
        tied    2, of which 1 is     documents of this quality: the choice among them is by a hash,
                chosen               so the user may want to know of it
        gap     the third document   only 7 tokens are used, since it has 5

    Args:
        step: The step.
        budget: How many documents or tokens it may take.
        ranking: The documents to choose from, and the order of their values.
        counts: How many of them have a value.
        end: The first document that is not taken; None if all documents with a value are taken.
    """

    def values() -> Iterator[WeighedValues]:
        """Yield the qualities, with the documents and tokens that are counted for each."""
        return _histogram_values(ranking, end)

    bins = histogram(values)
    if end is None:
        no_ties = TiedDocuments()
        return TopResult(step, budget.limit, cut=None, tied=no_ties, counts=counts, bins=bins)

    gap = None
    if step.share is None:  # otherwise, the user has set no number that could be missed
        gap = find_gap(budget, end, ranking.candidates)
    return TopResult(
        step,
        budget.limit,
        cut=ranking.value_of(end.cut_key),  # 4
        tied=_count_tied(end),  # 2 and 1
        counts=counts,
        bins=bins,
        gap=gap,
    )


def _is_taken(ranking: Ranking, end: TopEnd | None, chunk: slice) -> NDArray[np.bool_]:
    """For each document of a range, return whether a step such as `top 10 by quality` takes it.

    Args:
        ranking: The documents to choose from, and the order of their values.
        end: The first document that is not taken; None if all documents with a value are taken.
        chunk: The range, as indices of these documents.

    Returns:
        bool, shape (n_candidates_in_range,).
    """
    if end is None:
        return ranking.is_eligible(chunk)  # the documents with a value
    return end.fits(chunk)


def _budget_of(step: Top, n_ranked: int) -> Budget:
    """Return how many documents or tokens a step `top` may take.

        top 50 documents by quality                50 documents
        top 1000 tokens by quality                 1,000 tokens
        top 29 % of the documents by quality       29 documents, if 100 have a quality

    Args:
        step: The step. It has either a `limit` or a `share`.
        n_ranked: How many documents have a value. A share of these is rounded down.
    """
    if step.limit is not None:
        return Budget(step.view, step.unit, step.limit)
    # The share as it is written: as a float, 0.29 is slightly less than 29 of 100 documents.
    share = Decimal(repr(step.share))
    return Budget(step.view, "documents", int(share * n_ranked))


def _find_end(budget: Budget, ranking: Ranking) -> TopEnd | None:
    """Find the first document that does not fit into the budget of a step such as `top 10 tokens`.

    The step takes documents from the best value on, and those with equal values in the order of a
    hash. For example, for 10 tokens:

        value                  5    4    4    2
        hash                   70   17   35   52
        tokens                 4    3    5    2
        tokens until here      4    7    12            more than 10: the third one does not fit

    There may be billions of documents, too many to sort. So first the value of this document is
    found, and then its hash:

        the value 4     Documents with the value 5 have 4 tokens. With those that have the value 4,
                        they have 12, which is more than 10.
        the hash 35     6 tokens are left for the documents with the value 4. Up to the hash 17,
                        they have 3 tokens, and up to the hash 35, they have 8.

    Args:
        budget: A number of documents or tokens.
        ranking: All documents, and the order of their values.

    Returns:
        The value and the hash of that document. None if all documents with a value fit.
    """
    # `first_excess` adds up amounts in the order of their keys until the sum is too large.
    value_misfit = first_excess(partial(_amounts_by_value, budget, ranking), budget.limit)
    if value_misfit is None:
        return None
    cut_key = value_misfit.key  # stands for the value 4
    amount_before_cut = value_misfit.amount_below  # 4 tokens
    rest = budget.limit - amount_before_cut  # 6 tokens are left
    hash_misfit = first_excess(partial(_amounts_by_hash, budget, ranking, cut_key), rest)
    if hash_misfit is None:
        raise AssertionError("the documents with this value do not fit together")
    return TopEnd(
        ranking,
        cut_key,
        hash_limit=hash_misfit.key,  # 35
        amount_before=amount_before_cut + hash_misfit.amount_below,  # 4 + 3 tokens
    )


def _amounts_by_value(budget: Budget, ranking: Ranking) -> Iterator[KeyedAmounts]:
    """Yield the size of each document, with a number that says how good its value is.

    The caller adds up the sizes from the best value on, to find out where they exceed a budget:

        quality             5    4    4    2
        number              1    2    2    4      smaller for better values
        size in tokens      4    3    5    2      (or 1 document each, if documents are limited)

    Documents without a value are left out.

    Args:
        budget: The budget, which limits the documents or their tokens.
        ranking: All documents, and the order of their values.
    """
    for chunk in ranking.candidates.chunks:  # some documents at a time
        has_value = ranking.is_eligible(chunk)
        numbers = ranking.rank_keys(chunk)
        sizes = ranking.candidates.amounts(chunk, budget.unit)
        yield KeyedAmounts(numbers[has_value], sizes[has_value])


def _amounts_by_hash(
    budget: Budget, ranking: Ranking, rank_key: np.uint64
) -> Iterator[KeyedAmounts]:
    """Yield the size and a hash of each document that has one certain value, such as quality 4.

    If not all of them fit into a budget, they are taken in the order of the hashes. The caller adds
    up their sizes in this order, to find out which of them fit.

    Args:
        budget: The budget, which limits the documents or their tokens: so sizes are in this unit.
        ranking: All documents, and the order of their values.
        rank_key: Stands for the value: the number that `Ranking.rank_keys` returns for it.
    """
    for chunk in ranking.candidates.chunks:  # some documents at a time
        has_value = ranking.has_rank_key(chunk, rank_key)
        hashes = budget_hashes(ranking.candidates.hashes[chunk][has_value])
        sizes = ranking.candidates.amounts(chunk, budget.unit)[has_value]
        yield KeyedAmounts(hashes, sizes)


def _count_tied(end: TopEnd) -> TiedDocuments:
    """Count the documents with the value at which a step such as `top 10 by quality` ends.

    For example, 8 documents have quality 5, and 5 have quality 4. So only 2 of the latter are
    taken, and the user is told that the choice among them is arbitrary:

        TiedDocuments(documents=5, chosen=2)

    Args:
        end: The first document that is not taken. It has quality 4.
    """
    n_documents = 0
    n_chosen = 0
    candidates = end.ranking.candidates
    for chunk in candidates.chunks:  # some documents at a time
        copy_counts = candidates.amounts(chunk, "documents")  # 2 for a document that occurs twice
        is_tied = end.ranking.has_rank_key(chunk, end.cut_key)  # has quality 4
        is_chosen = is_tied & end.fits(chunk)  # and is taken, since its hash is small enough
        n_documents += int(copy_counts[is_tied].sum())
        n_chosen += int(copy_counts[is_chosen].sum())
    return TiedDocuments(n_documents, n_chosen)


def _histogram_values(ranking: Ranking, end: TopEnd | None) -> Iterator[WeighedValues]:
    """Yield the values of documents, and what a histogram of them adds up.

    The histogram shows how many documents there are with which quality, and how many of them the
    step `top 1 document by quality` takes. Both are also shown in tokens. For a document of quality
    0.9, and another one of quality 0.1 of which there are two copies, of 100 tokens each:

        quality    documents    tokens    documents taken    tokens taken
        0.9                1       100                  1             100
        0.1                2       200                  0               0

    Documents without a value are left out.

    Args:
        ranking: The documents to choose from, and the order of their values.
        end: The first document that is not taken; None if all documents with a value are taken.
    """
    candidates = ranking.candidates
    for chunk in candidates.chunks:  # some documents at a time; arrays have shape (n_with_value,)
        has_value = ranking.is_eligible(chunk)
        value_keys = ranking.value_keys[chunk][has_value]  # integers that stand for the values
        values = values_of_keys(value_keys, ranking.dtype)  # [0.9, 0.1]
        documents = candidates.amounts(chunk, "documents")[has_value]  # [1, 2]
        tokens = candidates.amounts(chunk, "tokens")[has_value]  # [100, 200]
        is_taken = _is_taken(ranking, end, chunk)[has_value]  # [True, False]
        amounts = [documents, tokens, documents * is_taken, tokens * is_taken]
        yield WeighedValues(values, amounts)
