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

    def keep_below(self, limit: np.uint64) -> None:
        """Keep the documents that precede a limit in the order of budgets."""
        for chunk in self.chunks:
            self.copy_counts[chunk] *= budget_hashes(self.hashes[chunk]) < limit


def budget_hashes(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes by which budgets take documents, smallest first."""
    return salted(hashes, "budget")


def hash_limit(budget: Budget, candidates: Candidates) -> np.uint64 | None:
    """Find the smallest hash whose document does not fit into a budget.

    A budget takes documents in the order of their hashes until the next one would exceed it. The
    limit is found digit by digit, where a digit is 16 bits. For example, with decimal digits and a
    budget of 10 tokens:

        hash    17  35  38  52  81
        tokens   4   3   5   2   6

    Hashes 1x have 4 tokens, and hashes up to 3x have 12, so that the first digit is 3. The hashes
    below 3x leave room for 6 tokens. Of the hashes 3x, those up to 35 have 3 tokens, and those up
    to 38 have 8, so that the second digit is 8. The limit is 38.

    Args:
        budget: A number of documents or tokens.
        candidates: The documents to choose from.

    Returns:
        The limit: the budget keeps the documents whose `budget_hashes` are smaller. None if all
        documents fit.
    """
    prefix = U64(0)  # the first digits of the limit, as far as they are known
    room = budget.limit  # what the hashes below the prefix leave of the budget
    for shift in _SHIFTS:
        amounts = _amounts_by_digit(budget, candidates, prefix, shift)  # (65536,)
        running_sums = np.cumsum(amounts)
        is_first_digit = shift == _SHIFTS[0]
        if is_first_digit and running_sums[-1] <= room:
            return None  # all documents fit

        digit = _first_digit_above(running_sums, room)
        amount_below = running_sums[digit] - amounts[digit]
        room -= int(amount_below)
        prefix = (prefix << U64(_DIGIT_BITS)) | U64(digit)
    return prefix


def _first_digit_above(running_sums: NDArray[np.int64], room: int) -> int:
    """Return the first digit at which the running sum of documents or tokens exceeds the room.

    Args:
        running_sums: Documents or tokens up to each value of the digit, shape (65536,).
        room: How many documents or tokens fit.

    Returns:
        The digit; the last one if no sum exceeds the room. That is due to rounding, of sums above
        2**53.
    """
    digit = int(np.searchsorted(running_sums, room, side="right"))
    return min(digit, _N_DIGIT_VALUES - 1)


def _amounts_by_digit(
    budget: Budget, candidates: Candidates, prefix: np.uint64, shift: int
) -> NDArray[np.int64]:
    """Count the documents or tokens of the hashes that continue a prefix, by their next digit.

    A digit is 16 bits, so a hash of 64 bits has four. With decimal digits and the prefix 3, the
    hash 38 counts for the digit 8, and the hash 52 does not count.

    Args:
        budget: Decides whether documents or tokens are counted.
        candidates: The documents.
        prefix: All digits before the next one, as a number.
        shift: Bits of a hash after the next digit.

    Returns:
        Documents or tokens of the candidates with each value of the digit, shape (65536,).
    """
    sums = np.zeros(_N_DIGIT_VALUES, np.int64)
    for chunk in candidates.chunks:  # ranges of candidates, to bound memory
        # Move the digit to the end of each hash, so that the prefix precedes it.
        shifted = budget_hashes(candidates.hashes[chunk]) >> U64(shift)
        has_prefix = (shifted >> U64(_DIGIT_BITS)) == prefix
        last_digits = (shifted[has_prefix] & U64(_N_DIGIT_VALUES - 1)).astype(np.int64)
        sums += _sums_by_digit(last_digits, candidates.amounts(chunk, budget.unit)[has_prefix])
    return sums


def _sums_by_digit(digits: NDArray[np.int64], amounts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add up amounts by digit; both have the shape (n_hashes,), the result has (65536,)."""
    # bincount adds up floats, which are exact up to 2**53.
    weights = amounts.astype(np.float64)
    return np.bincount(digits, weights, _N_DIGIT_VALUES).astype(np.int64)


def find_gap(budget: Budget, limit: np.uint64, candidates: Candidates) -> BudgetGap | None:
    """Find the document that leaves much of a budget unused, because it does not fit.

    A budget ends at such a document instead of skipping it: otherwise a smaller budget would not
    keep a part of what a larger one keeps.

    Args:
        budget: A number of documents or tokens.
        limit: The hash of the first document that does not fit, as of `hash_limit`.
        candidates: The documents before the budget is applied.

    Returns:
        The document, and how much of the budget is used. Its number `document` is the position
        among the candidates. None if the budget is almost full.
    """
    # Several documents may have this hash, namely those with the same id: they are kept together
    # or not at all.
    used_amount = 0
    next_amount = 0
    n_next_documents = 0
    next_positions: list[int] = []
    for chunk in candidates.chunks:
        hashes = budget_hashes(candidates.hashes[chunk])
        amounts = candidates.amounts(chunk, budget.unit)
        copy_counts = candidates.copy_counts[chunk]
        is_next = (hashes == limit) & (copy_counts > 0)
        used_amount += int(amounts[hashes < limit].sum())
        next_amount += int(amounts[is_next].sum())
        n_next_documents += int(copy_counts[is_next].sum())
        next_positions += (chunk.start + np.flatnonzero(is_next)).tolist()

    if not next_positions or used_amount >= FULL_SHARE * budget.limit:
        return None
    return BudgetGap(
        view=budget.view,
        unit=budget.unit,
        budget=budget.limit,
        reached=used_amount,
        document=next_positions[0],
        documents=n_next_documents,
        amount=next_amount,
    )
