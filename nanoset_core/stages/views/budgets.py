"""Budgets: the documents with the smallest hashes, up to a number of documents or tokens.

Documents are taken in the order of a hash of their ids, until the next one would exceed the budget.
So a smaller budget keeps a part of what a larger one keeps, and documents that are appended change
little. For a budget of 10 tokens and the documents

    hash      17   35   38   52   81
    tokens     4    3    5    2    6

those with the hashes 17 and 35 are kept. The next document has 5 tokens and does not fit, although
a later one would. The budget *ends* there: it does not skip documents. 7 of 10 tokens are used, so
this budget has a *gap*, which is reported with the document that causes it.

A view may have a document several times. All its copies have the same hash, and are taken together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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
    """The documents among which a view chooses: those that its leading filters keep."""

    hashes: NDArray[np.uint64]
    """Hash of each document's id, shape (n_candidates,)."""
    tokens: NDArray[np.int32]
    """Tokens of each document, shape (n_candidates,)."""
    copy_counts: NDArray[np.uint32]
    """Number of copies of each document, shape (n_candidates,). The steps that follow the leading
    filters change it in place: 0 means that a document is left out.
    """

    @property
    def chunks(self) -> Iterator[slice]:
        """Ranges of candidates that are processed together."""
        for start in range(0, len(self.hashes), CHUNK_DOCUMENTS):
            yield slice(start, start + CHUNK_DOCUMENTS)

    def amounts(self, chunk: slice, unit: str) -> NDArray[np.int64]:
        """Return how much each candidate of a range takes of a budget, all its copies together.

        For example, 2 copies of a document of 100 tokens take 2 documents, or 200 tokens.

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
            step: How many times each document is repeated. With `times` = 2.3, every document is
                taken twice, and about 30 % of the documents, by their hashes, a third time.
        """
        whole_times = int(step.times)
        fraction = step.times - whole_times
        for chunk in self.chunks:
            # The salt gives hashes that are independent of those by which other steps choose.
            hashes = salted(self.hashes[chunk], f"repeat {step.view}")
            is_once_more = below(hashes, fraction)  # (n_chunk,) true for this fraction of hashes
            factors = whole_times + is_once_more  # 2 or 3
            self.copy_counts[chunk] *= factors.astype(np.uint32)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Leave out some of the documents, by giving them 0 copies.

        Args:
            mask: Whether each document stays, bool, shape (n_candidates,).
        """
        for chunk in self.chunks:
            self.copy_counts[chunk] *= mask[chunk]

    def keep_before(self, end: BudgetEnd) -> None:
        """Keep the documents before the end of a budget, and leave out the others.

        Args:
            end: Where the budget ends, in the order in which it takes documents.
        """
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
        """Return which documents of a range fit into the budget.

        Args:
            chunk: The range, as indices among the candidates.

        Returns:
            bool, shape (n_candidates_in_range,).
        """
        ...

    def is_at(self, chunk: slice) -> NDArray[np.bool_]:
        """Return which documents of a range are the next ones, which do not fit.

        Args:
            chunk: The range, as indices among the candidates.

        Returns:
            bool, shape (n_candidates_in_range,).
        """
        ...


@dataclass(frozen=True, slots=True)
class HashEnd:
    """Where a budget ends that takes documents by hash."""

    candidates: Candidates
    hash_limit: np.uint64
    """The smallest of the `budget_hashes` whose documents do not fit."""
    amount_before: int
    """How many documents or tokens have smaller hashes."""

    def precedes(self, chunk: slice) -> NDArray[np.bool_]:
        """Return which documents of a range have a smaller hash than that at the end.

        Args:
            chunk: The range, as indices among the candidates.

        Returns:
            bool, shape (n_candidates_in_range,).
        """
        return budget_hashes(self.candidates.hashes[chunk]) < self.hash_limit

    def is_at(self, chunk: slice) -> NDArray[np.bool_]:
        """Return which documents of a range have the hash at the end.

        Args:
            chunk: The range, as indices among the candidates.

        Returns:
            bool, shape (n_candidates_in_range,).
        """
        hashes = budget_hashes(self.candidates.hashes[chunk])
        is_at_end: NDArray[np.bool_] = hashes == self.hash_limit
        return is_at_end


def budget_hashes(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes by which budgets take documents, the smallest ones first.

    They are independent of the hashes by which other rules choose documents.

    Args:
        hashes: Hashes of the documents' ids, uint64, shape (n_documents,).

    Returns:
        uint64, shape (n_documents,).
    """
    return salted(hashes, "budget")


def apply_budget(budget: Budget, candidates: Candidates) -> BudgetGap | None:
    """Leave out the documents that do not fit into a budget.

    Args:
        budget: A number of documents or tokens.
        candidates: The documents to choose from. The number of copies of each that does not fit
            becomes 0.

    Returns:
        If the budget stays far from full, the document because of which it does. Its field
        `document` is an index among the candidates.
    """
    end = budget_end(budget, candidates)
    if end is None:  # all candidates fit
        return None
    gap = find_gap(budget, end, candidates)  # first, since it looks at the documents after the end
    candidates.keep_before(end)
    return gap


def budget_end(budget: Budget, candidates: Candidates) -> HashEnd | None:
    """Find where a budget ends: at the first document, in the order of hashes, that does not fit.

    For a budget of 10 tokens, and documents with

        hash      17   35   38   52
        tokens     4    3    5    2

    the budget ends at the hash 38. The documents before it have 7 tokens.

    Args:
        budget: A number of documents or tokens.
        candidates: The documents to choose from.

    Returns:
        The hash at the end, and the amount before it. None if all documents fit.
    """

    def hashes_and_amounts() -> Iterator[KeyedAmounts]:
        """Yield the hash of each document, and how many documents or tokens it takes."""
        for chunk in candidates.chunks:
            hashes = budget_hashes(candidates.hashes[chunk])
            yield KeyedAmounts(hashes, candidates.amounts(chunk, budget.unit))

    # Add up the amounts in the order of hashes, until the sum exceeds the limit.
    excess = first_excess(hashes_and_amounts, budget.limit)
    if excess is None:
        return None
    return HashEnd(candidates, hash_limit=excess.key, amount_before=excess.amount_below)


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
    following = _documents_at(end, candidates, budget.unit)
    if not following.positions:
        return None
    return BudgetGap(
        view=budget.view,
        unit=budget.unit,
        budget=budget.limit,
        reached=end.amount_before,
        document=following.positions[0],
        documents=following.n_documents,
        amount=following.amount,
    )


class _DocumentsAtEnd(NamedTuple):
    """The documents that do not fit into a budget: one, or several with the same id."""

    positions: list[int]
    """Positions among the candidates, ascending."""
    n_documents: int
    """How many documents these are, each copy counted."""
    amount: int
    """What they would take of the budget together."""


def _documents_at(end: BudgetEnd, candidates: Candidates, unit: str) -> _DocumentsAtEnd:
    """Return the documents at the end of a budget, which are kept together or not at all.

    Args:
        end: Where the budget ends.
        candidates: The documents before the budget is applied.
        unit: `documents` or `tokens`: what the budget limits.
    """
    positions: list[int] = []
    n_documents = 0
    amount = 0
    for chunk in candidates.chunks:
        copy_counts = candidates.copy_counts[chunk]
        is_at_end = end.is_at(chunk) & (copy_counts > 0)
        positions += (chunk.start + np.flatnonzero(is_at_end)).tolist()
        n_documents += int(copy_counts[is_at_end].sum())
        amount += int(candidates.amounts(chunk, unit)[is_at_end].sum())
    return _DocumentsAtEnd(positions, n_documents, amount)
