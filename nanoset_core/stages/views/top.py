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
        """For each document of a range, return whether `top 10 by quality` may take it.

        For example, of four documents, only the first may be taken:

            quality             5       none    NaN     4
            number of copies    1       1       1       0       0: an earlier step has left it out
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
        """Return a number for each document, by which it is ranked: smaller ones are taken first.

        The numbers follow the values of a column, such as `quality`, or their opposite order:

            value                                         5     2     5
            key, if the lowest values are taken first     92    91    92    (of 0 to 99, say)
            key, if the highest are taken first           7     8     7

        Documents without a value get a number as well: see `is_eligible`.

        Args:
            chunk: A range of documents, as indices among those to choose from.

        Returns:
            uint64, shape (n_candidates_in_range,).
        """
        value_keys = self.value_keys[chunk]  # in the order of the values
        if self.ascending:
            return value_keys
        return ~value_keys  # numbers with all bits inverted have the opposite order

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
        """Count the documents by whether they have a value of the column by which they are ranked.

        Documents without a value, or with NaN, cannot be ranked, and users are told how many there
        are.

        Returns:
            The numbers of documents with a value, without one, and with NaN; each copy counts.
        """
        counts = np.zeros(3, np.int64)  # of the faults 0 (none), NULL (1) and NAN (2)
        for chunk in self.candidates.chunks:  # some documents at a time
            copy_counts = self.candidates.amounts(chunk, "documents")
            # Add up the copies by fault. These sums are floats, which are exact up to 2**53.
            chunk_counts = np.bincount(self.faults[chunk], copy_counts, len(counts))
            counts += chunk_counts.astype(np.int64)
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
        """For each document of a range, return whether a step such as `top 10 tokens` takes it.

        The step takes documents from the best value on, until one does not fit. Those with equal
        values are taken in the order of their hashes. It is known where this ended: the first
        document that did not fit has the value 4 and the hash 35.

            value    5       4       4      2
            hash     70      17      35     52
            taken    True    True    False  False

        Two fields say this: `hash_limit` is 35, and `cut_key` stands for the value 4. Values are
        compared by such keys, integers that are smaller for better values.

        Args:
            chunk: The range, as indices among the documents that the step chooses from.

        Returns:
            bool, shape (n_candidates_in_range,).
        """
        # Documents with a value better than 4 are taken.
        rank_keys = self.ranking.rank_keys(chunk)
        is_taken = rank_keys < self.cut_key  # [True, False, False, False]

        # Of those with the value 4, take the ones with hashes below 35. There are often few
        # documents with this value, so compute only their hashes.
        tied = np.flatnonzero(rank_keys == self.cut_key)
        is_taken[tied] = self._hashes(chunk, tied) < self.hash_limit

        # Documents without a value have some key as well, but are never taken.
        return is_taken & self.ranking.is_eligible(chunk)

    def _hashes(self, chunk: slice, rows: NDArray[np.intp]) -> NDArray[np.uint64]:
        """Return the hashes by which documents with equal values are ranked.

        Args:
            chunk: A range of documents.
            rows: Some of them, as indices in the range.

        Returns:
            uint64, shape (n_rows,).
        """
        return budget_hashes(self.ranking.candidates.hashes[chunk][rows])

    def is_at(self, chunk: slice) -> NDArray[np.bool_]:
        """For each document of a range, return whether a step `top 10 tokens` ends at it.

        The step takes documents from the best value on, and those with equal values in the order of
        their hashes, until one does not fit. Here that one has the value 4 and the hash 35:

            value       5       4       4      4      2
            hash        70      17      35     35     52
            taken       yes     yes     no     no     no
            result      False   False   True   True   False

        Hashes are made from the ids of documents. Documents with the same id and value have the
        same place in the order: they are taken together or not at all, so there can be several.

        Args:
            chunk: The range, as indices among the documents that the step chooses from.

        Returns:
            bool, shape (n_candidates_in_range,).
        """
        # Find the documents with the value 4. Values are compared as integers, their rank keys, and
        # that of the value 4 is the `cut_key`.
        has_same_value = self.ranking.rank_keys(chunk) == self.cut_key
        tied = np.flatnonzero(has_same_value)  # [1, 2, 3]

        # Of these, find those with the hash 35. There are often few, so compute only their hashes.
        is_at_end = np.zeros(len(has_same_value), np.bool_)
        is_at_end[tied] = self._hashes(chunk, tied) == self.hash_limit

        # Documents without a value have some rank key as well, but the step cannot end at them.
        return is_at_end & self.ranking.is_eligible(chunk)


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
    # Find the first document that does not fit: it has the value 4 and the hash 35.
    ranking = Ranking(candidates, column.keys(), column.faults(), column.dtype, step.ascending)
    counts = ranking.count()
    budget = _budget_of(step, counts.ranked)
    end = _find_end(budget, ranking)  # None if all documents with a value fit

    # Describe the result first, since that also needs the documents that are left out below.
    cut = None
    tied = TiedDocuments()
    gap = None  # what stays unused of the budget, because the next document is large
    if end is not None:
        cut = ranking.value_of(end.cut_key)  # 4
        tied = _count_tied(end)  # of the 2 documents with the value 4, 1 is taken
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

    # Leave out the other documents, by setting their number of copies to 0.
    for chunk in candidates.chunks:
        if end is None:
            is_taken = ranking.is_eligible(chunk)  # all documents with a value
        else:
            is_taken = end.precedes(chunk)
        candidates.copy_counts[chunk] *= is_taken
    return result


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

    There may be billions of documents, too many to sort. So first find the value of this document,
    which is 4, by the sums of whole values. Then find its hash, 35, among the documents with this
    value.

    Args:
        budget: A number of documents or tokens.
        ranking: All documents, and the order of their values.

    Returns:
        The value and the hash of that document. None if all documents with a value fit.
    """
    # First find the value. Add up the tokens value by value: 4 for the value 5, 12 with those of
    # the value 4, which is more than 10. So the documents with the value 4 do not all fit.
    # `first_excess` adds up amounts in the order of their keys, and returns the key at which the
    # sum exceeds the limit. Keys are integers that stand for the values, and are smaller for better
    # ones.
    value_misfit = first_excess(partial(_amounts_by_value, budget, ranking), budget.limit)
    if value_misfit is None:
        return None
    cut_key = value_misfit.key  # stands for the value 4
    amount_before_cut = value_misfit.amount_below  # 4 tokens
    rest = budget.limit - amount_before_cut  # 6 tokens are left

    # Then find the hash. Add up the tokens of the documents with this value, hash by hash: 3 for
    # the hash 17, and 8 with those of the hash 35, which is more than 6.
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
    """Yield a key and a size for each document, to find out at which value a budget is used up.

    The key is a number that stands for the document's value of a column, such as `quality`: smaller
    keys are taken first. The size is what the document takes of the budget, such as 3 tokens. For
    example, if the highest values are taken first:

        value    5    4    4    2
        key      1    2    2    4      (real keys are greater)
        size     4    3    5    2

    Args:
        budget: A number of documents or tokens.
        ranking: All documents, and the order of their values.
    """
    for chunk in ranking.candidates.chunks:  # some documents at a time
        is_eligible = ranking.is_eligible(chunk)  # leaves out documents without a value
        keys = ranking.rank_keys(chunk)
        sizes = ranking.candidates.amounts(chunk, budget.unit)  # documents or tokens
        yield KeyedAmounts(keys[is_eligible], sizes[is_eligible])


def _amounts_by_hash(
    budget: Budget, ranking: Ranking, rank_key: np.uint64
) -> Iterator[KeyedAmounts]:
    """Yield hash and size of each document with one certain value, to find which of them still fit.

    Suppose that `top 10 tokens` takes documents from the best value on: those with the value 5, and
    then only some of those with the value 4, as 6 tokens are left. Within a value, documents are
    taken in the order of their hashes. So the caller adds up these sizes by hash, until they exceed
    6:

        value    5    4     4     2
        hash          17    35
        size          3     5         in tokens, since the budget limits tokens

    Args:
        budget: A number of documents or tokens.
        ranking: All documents, and the order of their values.
        rank_key: Stands for the value 4: the number that `Ranking.rank_keys` returns for it.
    """
    for chunk in ranking.candidates.chunks:  # some documents at a time
        has_value = ranking.rank_keys(chunk) == rank_key
        is_tied = has_value & ranking.is_eligible(chunk)  # only documents that can be taken
        hashes = budget_hashes(ranking.candidates.hashes[chunk][is_tied])
        sizes = ranking.candidates.amounts(chunk, budget.unit)  # documents or tokens
        yield KeyedAmounts(hashes, sizes[is_tied])


def _count_tied(end: TopEnd) -> TiedDocuments:
    """Count the documents that have the value at which the choice of the best documents ends.

    For example, a user wants the best documents by quality, up to 1,000 tokens. Documents of
    quality 5 have 900 tokens, so all of them are taken. Five documents have quality 4, and only two
    of these fit into the rest. Users should know that this choice among equals is arbitrary:

        TiedDocuments(documents=5, chosen=2)

    Documents that are repeated in the data count as often as they occur.

    Args:
        end: Where the choice ends: the first document that does not fit, of quality 4 above.
    """
    n_tied = 0
    n_taken = 0
    ranking = end.ranking
    for chunk in ranking.candidates.chunks:  # some documents at a time
        copy_counts = ranking.candidates.amounts(chunk, "documents")
        has_cut_value = ranking.rank_keys(chunk) == end.cut_key
        is_tied = has_cut_value & ranking.is_eligible(chunk)
        is_taken = is_tied & end.precedes(chunk)
        n_tied += int(copy_counts[is_tied].sum())
        n_taken += int(copy_counts[is_taken].sum())
    return TiedDocuments(documents=n_tied, chosen=n_taken)


def _histogram_values(ranking: Ranking, end: TopEnd | None) -> Iterator[WeighedValues]:
    """Yield the values of all documents, with the four amounts that a histogram adds up.

    A step such as `top 1000 documents by quality` takes the documents with the best values. The
    histogram shows, for each range of values, how much there is, and how much of it is taken. Each
    document counts as often as it has copies. Here each has 2 copies of 100 tokens:

        quality    documents    tokens    documents taken    tokens taken
        0.9                2       200                  2             200    taken
        0.1                2       200                  0               0    not taken

    Documents without a value of quality are left out.

    Args:
        ranking: The documents in the order in which they are taken.
        end: The first document that is not taken, since the step's budget is full; None if all
            documents with a value are taken.
    """
    candidates = ranking.candidates
    for chunk in candidates.chunks:  # some documents at a time
        has_value = ranking.is_eligible(chunk)  # (n_documents,)
        if end is None:
            is_taken = has_value
        else:
            is_taken = end.precedes(chunk)
        documents = candidates.amounts(chunk, "documents")  # [2, 2] the copies of each document
        tokens = candidates.amounts(chunk, "tokens")  # [200, 200]
        # The columns of the table: multiplied by `is_taken`, what is not taken becomes 0.
        amounts = [documents, tokens, documents * is_taken, tokens * is_taken]

        # Leave out documents without a value. Values are stored as integers (keys) that have the
        # same order: convert them back to [0.9, 0.1].
        value_keys = ranking.value_keys[chunk][has_value]
        yield WeighedValues(
            values=values_of_keys(value_keys, ranking.dtype),
            amounts=[amount[has_value] for amount in amounts],
        )
