"""Budgets: the documents with the smallest hashes, up to a number of documents or tokens.

Documents are taken in the order of a hash of their ids, until the next one would exceed the budget.
So a smaller budget keeps a part of what a larger one keeps, and documents that are appended change
little. For a budget of 10 tokens and the documents

    hash      17   35   38   52   81
    tokens     4    3    5    2    6

those with the hashes 17 and 35 are kept. The next document has 5 tokens and does not fit, although
a later one would: it is the gap of the budget. `sampling.ranks` finds it without sorting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nanoset_core.sampling.hashing import below, salted
from nanoset_core.sampling.ranks import KeyedAmounts, first_excess
from nanoset_core.stages.views.rules import Budget, Repeat

CHUNK_DOCUMENTS = 1 << 20
"""Documents that are processed together."""
FULL_SHARE = 0.99
"""A budget of which less than this share is used has a gap that is reported."""


@dataclass(frozen=True, slots=True)
class BudgetGap:
    """A budget that is far from full, since the next document by hash would exceed it."""

    view: str
    """The view whose budget it is."""
    unit: str
    """`documents` or `tokens`."""
    budget: int
    reached: int
    """How much of the budget is used."""
    document: int
    """Number of the next document in the corpus, or of the first of several with one hash."""
    documents: int
    """How many documents have this hash, each copy counted: documents of one id go together."""
    amount: int
    """Size of these documents in the unit of the budget."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The documents that the leading filters of a view keep."""

    hashes: NDArray[np.uint64]
    """Hash of each document's id, shape (n_candidates,)."""
    tokens: NDArray[np.int32]
    """Tokens of each document, shape (n_candidates,)."""
    copy_counts: NDArray[np.uint32]
    """Number of copies of each document, shape (n_candidates,). The later steps change it."""

    @property
    def chunks(self) -> Iterator[slice]:
        """Ranges of candidates that are processed together."""
        for start in range(0, len(self.hashes), CHUNK_DOCUMENTS):
            yield slice(start, start + CHUNK_DOCUMENTS)

    def amounts(self, chunk: slice, unit: str) -> NDArray[np.int64]:
        """Return how much each candidate of a range takes of a budget, all its copies together.

        Args:
            chunk: The range of candidates.
            unit: `documents` or `tokens`: what the budget limits.

        Returns:
            Number of documents or tokens, int64, shape (n_candidates_in_range,).
        """
        copy_counts = self.copy_counts[chunk].astype(np.int64)
        if unit == "documents":
            return copy_counts  # each copy is a document
        return copy_counts * self.tokens[chunk]

    def repeat(self, step: Repeat) -> None:
        """Multiply the number of copies of every document.

        Args:
            step: How many times each document is taken. With `times` = 2.3, every document is taken
                twice, and the documents with the smallest 30 % of hashes a third time.
        """
        whole_times = int(step.times)
        fraction = step.times - whole_times
        for chunk in self.chunks:
            hashes = salted(self.hashes[chunk], f"repeat {step.view}")
            is_once_more = below(hashes, fraction)
            self.copy_counts[chunk] *= (whole_times + is_once_more).astype(np.uint32)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Keep some documents only; `mask` has the shape (n_candidates,)."""
        for chunk in self.chunks:
            self.copy_counts[chunk] *= mask[chunk]

    def keep_before(self, end: BudgetEnd) -> None:
        """Keep the documents that precede the end of a budget."""
        for chunk in self.chunks:
            self.copy_counts[chunk] *= end.precedes(chunk)


class BudgetEnd(Protocol):
    """Where a step ends that takes candidates in some order, until the next one does not fit.

    Candidates at the same place in the order, such as those with the same id, are taken together or
    not at all.
    """

    @property
    def amount_before(self) -> int:
        """How many documents or tokens are taken: how much of the budget is used."""
        ...

    def precedes(self, chunk: slice) -> NDArray[np.bool_]:
        """Return which candidates of a range are before the end, shape (n_candidates_in_range,)."""
        ...

    def is_at(self, chunk: slice) -> NDArray[np.bool_]:
        """Return which candidates of a range do not fit, shape (n_candidates_in_range,)."""
        ...


@dataclass(frozen=True, slots=True)
class HashEnd:
    """The end of a budget."""

    candidates: Candidates
    limit: np.uint64
    """The smallest of the `budget_hashes` whose documents do not fit."""
    amount_before: int
    """How many documents or tokens have smaller hashes."""

    def precedes(self, chunk: slice) -> NDArray[np.bool_]:
        """Return which candidates of a range have a smaller hash."""
        return budget_hashes(self.candidates.hashes[chunk]) < self.limit

    def is_at(self, chunk: slice) -> NDArray[np.bool_]:
        """Return which candidates of a range have this hash."""
        is_at_end: NDArray[np.bool_] = budget_hashes(self.candidates.hashes[chunk]) == self.limit
        return is_at_end


def budget_hashes(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes by which budgets take documents, smallest first."""
    return salted(hashes, "budget")


def budget_end(budget: Budget, candidates: Candidates) -> HashEnd | None:
    """Find the smallest hash whose documents do not fit into a budget.

    Args:
        budget: A number of documents or tokens.
        candidates: The documents to choose from.

    Returns:
        The end: the budget keeps the documents that precede it. None if all documents fit.
    """
    excess = first_excess(partial(_hashes_and_amounts, budget, candidates), budget.limit)
    if excess is None:
        return None
    return HashEnd(candidates, excess.key, excess.amount_below)


def _hashes_and_amounts(budget: Budget, candidates: Candidates) -> Iterator[KeyedAmounts]:
    """Yield the hash of each candidate, and what it takes of a budget, in chunks."""
    for chunk in candidates.chunks:
        hashes = budget_hashes(candidates.hashes[chunk])
        yield KeyedAmounts(hashes, candidates.amounts(chunk, budget.unit))


def find_gap(budget: Budget, end: BudgetEnd, candidates: Candidates) -> BudgetGap | None:
    """Find the document that leaves much of a budget unused, because it does not fit.

    A budget ends at such a document instead of skipping it: otherwise a smaller budget would not
    keep a part of what a larger one keeps.

    Args:
        budget: A number of documents or tokens.
        end: Where the budget ends.
        candidates: The documents before the budget is applied.

    Returns:
        The document, and how much of the budget is used. Its number `document` is the position
        among the candidates. None if the budget is almost full.
    """
    if end.amount_before >= FULL_SHARE * budget.limit:
        return None

    # Several documents may be at the end, namely those with the same id: they are kept together or
    # not at all.
    next_amount = 0
    n_next_documents = 0
    next_positions: list[int] = []
    for chunk in candidates.chunks:
        amounts = candidates.amounts(chunk, budget.unit)
        copy_counts = candidates.copy_counts[chunk]
        is_next = end.is_at(chunk) & (copy_counts > 0)
        next_amount += int(amounts[is_next].sum())
        n_next_documents += int(copy_counts[is_next].sum())
        next_positions += (chunk.start + np.flatnonzero(is_next)).tolist()

    if not next_positions:
        return None
    return BudgetGap(
        view=budget.view,
        unit=budget.unit,
        budget=budget.limit,
        reached=end.amount_before,
        document=next_positions[0],
        documents=n_next_documents,
        amount=next_amount,
    )
