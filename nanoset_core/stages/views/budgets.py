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
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.views.rules import Budget, Repeat
from nanoset_core.statistics.hashing import below, salted
from nanoset_core.statistics.ranks import KeyedAmounts, first_excess

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
        """For each document of a range, return what it takes of a limit of documents or tokens.

        All copies of a document count. For example, 2 copies of a document of 100 tokens take 2
        documents, or 200 tokens.

        Args:
            chunk: The range, as indices of documents.
            unit: `documents` or `tokens`: what is limited.

        Returns:
            int64, shape (n_documents_in_range,).
        """
        copy_counts = self.copy_counts[chunk].astype(np.int64)
        if unit == "documents":
            return copy_counts  # each copy is a document
        return copy_counts * self.tokens[chunk]

    def repeat(self, step: Repeat) -> None:
        """Multiply the number of copies of every document, so that training reads it more often.

        For example, `repeat: 2.3` doubles the copies of every document. About 30 % of the documents
        are chosen by a hash of their ids, and get three times as many copies:

            copies before    1    1    1    0
            copies after     2    3    2    0

        The hash is salted with the name of the view, so that the choice does not depend on that of
        other steps, which use other hashes.

        Args:
            step: The number by which they are multiplied.
        """
        whole_times = int(step.times)  # 2
        fraction = step.times - whole_times  # 0.3
        for chunk in self.chunks:  # some documents at a time
            hashes = salted(self.hashes[chunk], f"repeat {step.view}")
            is_once_more = below(hashes, fraction)  # (n_documents,) True for 30 % of them
            factors = whole_times + is_once_more  # 2 or 3
            self.copy_counts[chunk] *= factors.astype(np.uint32)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Leave out some of the documents: their number of copies becomes 0.

        Args:
            mask: Whether each document stays, bool, shape (n_candidates,).
        """
        for chunk in self.chunks:
            self.copy_counts[chunk] *= mask[chunk]

    def keep_before(self, end: BudgetEnd) -> None:
        """Keep the documents that fit into a budget, and leave out the others.

        Args:
            end: The first document that does not fit.
        """
        for chunk in self.chunks:
            self.copy_counts[chunk] *= end.fits(chunk)


class BudgetEnd(Protocol):
    """Where a step ends that takes candidates in some order, until the next one does not fit.

    Candidates at the same place in the order, such as those with the same id, are taken together or
    not at all.
    """

    @property
    def amount_before(self) -> int:
        """How many documents or tokens are taken: how much of the budget is used."""
        ...

    def fits(self, chunk: slice) -> NDArray[np.bool_]:
        """For each document of a range, return whether it fits into the budget.

        Args:
            chunk: The range, as indices of documents.

        Returns:
            bool, shape (n_candidates_in_range,).
        """
        ...

    def is_first_misfit(self, chunk: slice) -> NDArray[np.bool_]:
        """For each document of a range, return whether it is the first that does not fit.

        Args:
            chunk: The range, as indices of documents.

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

    def fits(self, chunk: slice) -> NDArray[np.bool_]:
        """For each document of a range, return whether it fits into a budget, such as 10 tokens.

        Documents are taken in the order of a hash of their ids, until one does not fit. If that one
        has the hash 38 (`hash_limit`), documents with smaller hashes fit.

        Args:
            chunk: The range, as indices of documents.

        Returns:
            bool, shape (n_candidates_in_range,).
        """
        return budget_hashes(self.candidates.hashes[chunk]) < self.hash_limit

    def is_first_misfit(self, chunk: slice) -> NDArray[np.bool_]:
        """For each document of a range, return whether it is the first that exceeds a budget.

        Documents are taken in the order of a hash of their ids, until one does not fit. If that one
        has the hash 38 (`hash_limit`), this is True for all documents with the hash 38: usually
        one, or several if they have the same id.

        Args:
            chunk: The range, as indices of documents.

        Returns:
            bool, shape (n_candidates_in_range,).
        """
        hashes = budget_hashes(self.candidates.hashes[chunk])
        is_misfit: NDArray[np.bool_] = hashes == self.hash_limit
        return is_misfit


def budget_hashes(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes that decide which documents fit into a budget, such as 1,000 documents.

    The documents with the smallest of these hashes are taken. They are other hashes than the given
    ones, which also serve other choices, such as which documents are repeated. With the same
    hashes, the documents that are taken would also be those that are repeated.

    Args:
        hashes: Hashes of the documents' ids, uint64, shape (n_documents,).

    Returns:
        uint64, shape (n_documents,).
    """
    return salted(hashes, "budget")  # hashes each of them again, together with this text


def apply_budget(budget: Budget, candidates: Candidates) -> BudgetGap | None:
    """Keep as many documents as fit into a budget, such as 10 tokens, and leave out the others.

    They are taken in the order of a hash of their ids, until the next one does not fit:

        hash      17   35   38   52
        tokens     4    3    5    2
        result    kept kept -    -         4 + 3 tokens fit, and the next 5 do not

    Args:
        budget: A number of documents or tokens.
        candidates: The documents to choose from. The number of copies of each that is left out is
            set to 0.

    Returns:
        If less than 99 % of the budget is used, the document that did not fit, so that the user can
        be told. Its field `document` is an index among the candidates.
    """
    end = budget_end(budget, candidates)
    if end is None:  # all candidates fit
        return None
    gap = find_gap(budget, end, candidates)  # before that document is left out, too
    candidates.keep_before(end)
    return gap


def budget_end(budget: Budget, candidates: Candidates) -> HashEnd | None:
    """Find the first document that does not fit into a budget, such as 10 tokens.

    Documents are taken in the order of a hash of their ids. For example, with

        hash      17   35   38   52
        tokens     4    3    5    2

    the document with the hash 38 does not fit. The two documents before it have 7 tokens.

    Args:
        budget: A number of documents or tokens.
        candidates: The documents to choose from.

    Returns:
        The hash of that document, and how much the documents before it have. None if all fit.
    """
    # `first_excess` adds up the sizes in the order of hashes, and returns the first hash at which
    # the sum exceeds the limit. It need not sort them, since billions would not fit into memory.
    # For that it reads them several times.
    misfit = first_excess(partial(_amounts_by_hash, budget, candidates), budget.limit)
    if misfit is None:
        return None
    return HashEnd(
        candidates,
        hash_limit=misfit.key,  # 38 in the example
        amount_before=misfit.amount_below,  # 7 tokens
    )


def _amounts_by_hash(budget: Budget, candidates: Candidates) -> Iterator[KeyedAmounts]:
    """Yield the hashes and sizes of documents that a budget may take, some documents at a time.

    Args:
        budget: The budget, which limits the documents or their tokens: so sizes are in this unit.
        candidates: The documents.
    """
    for chunk in candidates.chunks:
        hashes = budget_hashes(candidates.hashes[chunk])  # they decide the order of documents
        yield KeyedAmounts(hashes, candidates.amounts(chunk, budget.unit))


def find_gap(budget: Budget, end: BudgetEnd, candidates: Candidates) -> BudgetGap | None:
    """Return which document leaves much of a budget unused, because it does not fit, if any.

    For example, a view takes documents up to 10 tokens. The first documents have 7 tokens, and the
    next one would add 5. There the view ends, even if a shorter document follows. The user is told
    that 3 tokens are left, and because of which document.

    Args:
        budget: A number of documents or tokens: 10 tokens.
        end: Where the budget ends. The documents before have `amount_before` tokens: 7.
        candidates: All documents that may be taken.

    Returns:
        The document, as its index among the candidates, and how much of the budget is used. None if
        99 % are used, or if no document is left.
    """
    is_almost_full = end.amount_before >= FULL_SHARE * budget.limit  # 99 %
    if is_almost_full:
        return None

    misfits = _first_misfits(end, candidates, budget.unit)  # one, or several with the same id
    if misfits is None:
        return None
    return BudgetGap(
        view=budget.view,
        unit=budget.unit,
        budget=budget.limit,  # 10 in the example
        reached=end.amount_before,  # 7
        document=misfits.first_index,
        documents=misfits.n_documents,  # 1
        amount=misfits.amount,  # 5
    )


class _Misfits(NamedTuple):
    """The documents that do not fit into a budget: one, or several with the same id."""

    first_index: int
    """Index of the first of them among the candidates."""
    n_documents: int
    """How many documents these are, each copy counted."""
    amount: int
    """What they would take of the budget together."""


def _first_misfits(end: BudgetEnd, candidates: Candidates, unit: str) -> _Misfits | None:
    """Return the first document that does not fit into a budget, and its size.

    Documents with the same id are taken together or not at all. So if several documents have the id
    of the first one that does not fit, all of them are counted. For example:

        index    id     copies    tokens of all copies
        0        a7     1         100                      fits
        1        c3     2         1,000                    does not fit
        2        c3     1         500                      does not fit, either
        3        c3     0         0                        was left out by an earlier step

    The result is the index 1, with 3 documents (each copy counts) and 1,500 tokens.

    Args:
        end: Where the budget ends: it knows which documents are the first that do not fit.
        candidates: All documents among which the budget chooses.
        unit: `documents` or `tokens`: what the budget limits.

    Returns:
        None if an earlier step has left out all of them.
    """
    first_index = None
    n_documents = 0
    amount = 0
    for chunk in candidates.chunks:  # some documents at a time
        copy_counts = candidates.copy_counts[chunk]  # [1, 2, 1, 0]
        amounts = candidates.amounts(chunk, unit)  # [100, 1000, 500, 0]
        is_misfit = end.is_first_misfit(chunk) & (copy_counts > 0)  # [False, True, True, False]

        if first_index is None and is_misfit.any():
            first_index = chunk.start + int(np.argmax(is_misfit))  # 1
        n_documents += int(copy_counts[is_misfit].sum())  # 2 + 1
        amount += int(amounts[is_misfit].sum())  # 1000 + 500
    if first_index is None:
        return None
    return _Misfits(first_index, n_documents, amount)
