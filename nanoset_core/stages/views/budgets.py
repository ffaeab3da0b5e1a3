"""Budgets: the documents with the smallest hashes, up to a number of documents or tokens.

Documents are taken in the order of a hash of their ids. So a smaller budget keeps a part of what a
larger one keeps, and documents that are appended change little. Sorting billions of hashes would
take too much memory. Instead `hash_limit` finds the first hash that does not fit, digit by digit,
like a number guessed from its first digit on. With decimal digits in place of 16 bits, for

    hash      17   35   38   52   81
    tokens     4    3    5    2    6

and a budget of 10 tokens:

    first digit     tokens by digit: 1 → 4, 3 → 8, 5 → 2, 8 → 6
                    running sums     4, 12, …: 3 is the first digit that exceeds 10
                    4 tokens precede it, which leaves 6
    second digit    of the hashes 3x: 5 → 3, 8 → 5
                    running sums     3, 8: 8 is the first digit that exceeds 6

The limit is 38: the documents with the hashes 17 and 35 are kept. The next document has 5 tokens
and does not fit, although a later one would: it is the gap of the budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanoset_core.sampling.hashing import U64, below, salted
from nanoset_core.stages.views.rules import Budget, Repeat

CHUNK_DOCUMENTS = 1 << 20
"""Documents that are processed together."""
FULL_SHARE = 0.99
"""A budget of which less than this share is used has a gap that is reported."""
_DIGIT_BITS = 16
_N_DIGIT_VALUES = 1 << _DIGIT_BITS
_SHIFTS = (48, 32, 16, 0)
"""How far a hash is shifted to the right until a digit is its last one, first digit first."""


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
    times: NDArray[np.uint32]
    """Number of copies of each document, shape (n_candidates,). The later steps change it."""

    @property
    def chunks(self) -> Iterator[slice]:
        """Ranges of candidates that are processed together."""
        for start in range(0, len(self.hashes), CHUNK_DOCUMENTS):
            yield slice(start, start + CHUNK_DOCUMENTS)

    def amounts(self, chunk: slice, unit: str) -> NDArray[np.int64]:
        """Return the documents or tokens that each candidate counts for, shape (n_chunk,).

        Args:
            chunk: A range of candidates.
            unit: `documents` or `tokens`; all copies of a document count.
        """
        times = self.times[chunk].astype(np.int64)
        return times * self.tokens[chunk] if unit == "tokens" else times

    def repeat(self, step: Repeat) -> None:
        """Multiply the copies of all documents; a fraction of `times` is decided by a hash.

        With `times` = 2.3, the documents with the smallest 30 % of hashes get three copies.
        """
        whole_times = int(step.times)
        fraction = step.times - whole_times
        for chunk in self.chunks:
            hashes = salted(self.hashes[chunk], f"repeat {step.view}")
            is_once_more = below(hashes, fraction)
            self.times[chunk] *= (whole_times + is_once_more).astype(np.uint32)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Keep some documents only; `mask` has the shape (n_candidates,)."""
        for chunk in self.chunks:
            self.times[chunk] *= mask[chunk]

    def keep_below(self, limit: np.uint64) -> None:
        """Keep the documents that precede a limit in the order of budgets."""
        for chunk in self.chunks:
            self.times[chunk] *= budget_hashes(self.hashes[chunk]) < limit


def budget_hashes(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes by which budgets take documents, smallest first."""
    return salted(hashes, "budget")


def hash_limit(budget: Budget, candidates: Candidates) -> np.uint64 | None:
    """Return the hash of the first document that does not fit into a budget.

    Returns:
        The budget keeps the documents whose `budget_hashes` are smaller. None if all fit.
    """
    limit = U64(0)  # the digits that are known so far
    room = budget.limit
    for shift in _SHIFTS:
        # (65536,) amounts up to and including each digit; the first sum above the room is wanted
        sums = np.cumsum(_amounts_by_digit(budget, candidates, limit, shift))
        digit = int(np.searchsorted(sums, room, side="right"))
        if digit == _N_DIGIT_VALUES:
            if shift == _SHIFTS[0]:
                return None
            # The sums of two passes differ by rounding, beyond 2**53: take the last hash that has
            # these digits.
            digit -= 1

        # Documents with smaller digits fit.
        if digit > 0:
            room -= int(sums[digit - 1])
        limit = (limit << U64(_DIGIT_BITS)) | U64(digit)
    return limit


def _amounts_by_digit(
    budget: Budget, candidates: Candidates, prefix: np.uint64, shift: int
) -> NDArray[np.int64]:
    """Count the documents, or the tokens, of candidates by one digit of their hashes.

    Args:
        budget: Decides the unit.
        candidates: The documents.
        prefix: Only hashes that start with these digits count.
        shift: Bits after the digit.

    Returns:
        Documents or tokens of the candidates with each value of the digit, shape (65536,).
    """
    sums = np.zeros(_N_DIGIT_VALUES, np.int64)
    for chunk in candidates.chunks:
        amounts = candidates.amounts(chunk, budget.unit)
        shifted = budget_hashes(candidates.hashes[chunk]) >> U64(shift)
        has_prefix = (shifted >> U64(_DIGIT_BITS)) == prefix
        digits = (shifted[has_prefix] & U64(_N_DIGIT_VALUES - 1)).astype(np.int64)
        # bincount adds up floats, which are exact up to 2**53.
        weights = amounts[has_prefix].astype(np.float64)
        sums += np.bincount(digits, weights, _N_DIGIT_VALUES).astype(np.int64)
    return sums


def find_gap(budget: Budget, limit: np.uint64, candidates: Candidates) -> BudgetGap | None:
    """Return what does not fit into a budget, or None if the budget is almost full.

    A budget does not skip a document that does not fit: otherwise a smaller budget would not keep
    a part of what a larger one keeps.

    Args:
        budget: The budget.
        limit: Its limit, as `hash_limit` returns it.
        candidates: The documents before the budget is applied.

    Returns:
        `document` is the position among the candidates.
    """
    reached = 0
    amount = 0
    documents = 0
    position: int | None = None
    for chunk in candidates.chunks:
        hashes = budget_hashes(candidates.hashes[chunk])
        amounts = candidates.amounts(chunk, budget.unit)
        times = candidates.times[chunk]
        reached += int(amounts[hashes < limit].sum())

        is_next = (hashes == limit) & (times > 0)
        amount += int(amounts[is_next].sum())
        documents += int(times[is_next].sum())
        if position is None and is_next.any():
            position = chunk.start + int(np.argmax(is_next))

    if position is None or reached >= FULL_SHARE * budget.limit:
        return None
    return BudgetGap(
        view=budget.view,
        unit=budget.unit,
        budget=budget.limit,
        reached=reached,
        document=position,
        documents=documents,
        amount=amount,
    )
