"""Find the most frequent values of a column in bounded memory.

If a column has few distinct values, all of them are counted, and all counts are exact. Otherwise
the counters of rare values are given up again and again (the algorithm of Misra and Gries). Every
time, a number is subtracted from all counters, and those that reach 0 are dropped. So a counter can
be too small, but at most by the sum of these numbers, which is less than the number of documents
divided by MAX_COUNTERS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_COUNTERS = 1 << 14
"""Distinct values that are counted at the same time."""


class FrequentValue(NamedTuple):
    """A value that many documents have."""

    value: str
    documents: int
    """Documents with this value; at least this many if `max_documents` is greater."""
    max_documents: int
    """There are not more documents with this value."""
    tokens: int
    """Tokens of these documents, or at least this many."""


class FrequentValues:
    """Counts the documents and tokens of the most frequent values."""

    def __init__(self, n_values: int) -> None:
        """Begin without values.

        Args:
            n_values: How many values `most_frequent` returns.
        """
        self.error = 0
        """How many documents a value that is not among the most frequent may have at most, in
        addition to what they show; 0 if all counts are exact.
        """
        self._n_values = n_values
        # (n_counters,) each: hash of the value, its counter, and what was counted since it has one.
        self._hashes = np.empty(0, np.uint64)
        self._counters = np.empty(0, np.int64)
        self._documents = np.empty(0, np.int64)
        self._tokens = np.empty(0, np.int64)
        self._text_by_hash: dict[int, str] = {}  # of the values with the greatest counters

    def add(
        self,
        hashes: NDArray[np.uint64],
        documents: NDArray[np.int64],
        tokens: NDArray[np.int64],
        text_of: Callable[[int], str],
    ) -> None:
        """Add distinct values of some documents.

        Args:
            hashes: Hash of each value, shape (n_values,).
            documents: Number of documents with each value, shape (n_values,).
            tokens: Number of their tokens, shape (n_values,).
            text_of: Returns a value by its index.
        """
        # Some of the values have a counter already, and others are new: join both.
        all_hashes = np.concatenate([self._hashes, hashes])
        unique_hashes, groups = np.unique(all_hashes, return_inverse=True)
        n_counters = len(unique_hashes)

        def sum_by_value(*amounts: NDArray[np.int64]) -> NDArray[np.int64]:
            """Add up the amounts of each value, before and now, shape (n_counters,)."""
            # bincount adds up floats, which are exact up to 2**53.
            return np.bincount(groups, np.concatenate(amounts), n_counters).astype(np.int64)

        self._hashes = unique_hashes
        self._counters = sum_by_value(self._counters, documents)
        self._documents = sum_by_value(self._documents, documents)
        self._tokens = sum_by_value(self._tokens, tokens)
        if n_counters > MAX_COUNTERS:
            self._drop_rare_values()
        self._keep_texts(hashes, text_of)

    def _drop_rare_values(self) -> None:
        """Subtract a number from all counters, so that MAX_COUNTERS or fewer are above 0."""
        # The counter that is the last one to be dropped, if they are sorted.
        n_dropped = len(self._counters) - MAX_COUNTERS
        subtracted = int(np.partition(self._counters, n_dropped - 1)[n_dropped - 1])

        # A value without a counter may be in that many documents.
        self.error += subtracted
        counters = self._counters - subtracted
        is_kept = counters > 0
        self._hashes = self._hashes[is_kept]
        self._counters = counters[is_kept]
        self._documents = self._documents[is_kept]
        self._tokens = self._tokens[is_kept]

    def _keep_texts(self, hashes: NDArray[np.uint64], text_of: Callable[[int], str]) -> None:
        """Keep the texts of the values that `most_frequent` would return now, and no others.

        Args:
            hashes: Hash of each value that was added just now, shape (n_added,).
            text_of: Returns such a value by its index.
        """
        text_by_hash: dict[int, str] = {}
        for index in self._greatest():
            value_hash = int(self._hashes[index])
            text = self._text_by_hash.get(value_hash)
            if text is None:
                # The value was not among the most frequent before, and now is. Only values that
                # were just added can rise in this way.
                added_index = int(np.flatnonzero(hashes == self._hashes[index])[0])
                text = text_of(added_index)
            text_by_hash[value_hash] = text
        self._text_by_hash = text_by_hash

    def _greatest(self) -> list[int]:
        """Return the indices of the greatest counters, the greatest first."""
        # Counters that are equal are sorted by hash.
        order = np.lexsort((self._hashes, -self._counters))
        indices: list[int] = order[: self._n_values].tolist()
        return indices

    def most_frequent(self) -> list[FrequentValue]:
        """Return the most frequent values, the most frequent first.

        A value whose counter was dropped may be in `error` documents. So values that are in no more
        documents are left out.
        """
        values: list[FrequentValue] = []
        for index in self._greatest():
            documents = int(self._documents[index])
            if documents <= self.error:
                continue
            text = self._text_by_hash[int(self._hashes[index])]
            max_documents = int(self._counters[index]) + self.error
            tokens = int(self._tokens[index])
            values.append(FrequentValue(text, documents, max_documents, tokens))
        return values
