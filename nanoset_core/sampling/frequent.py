"""Find the most frequent values of a column in bounded memory.

If a column has few distinct values, all of them are counted, and all counts are exact. Otherwise
the counters of rare values are dropped again and again (the algorithm of Misra and Gries). Every
time, a number is subtracted from all counters, and those that reach 0 are dropped. For example, if
there may be only two counters:

    values of the documents so far    a a a b b c
    counters                          a: 3, b: 2, c: 1     one too many, so subtract 1
    counters                          a: 2, b: 1           a counter may be 1 too small now

So a counter can be too small, but at most by the sum of the subtracted numbers (`error`). That is
less than the number of documents divided by MAX_COUNTERS.
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
        # (n_counters,) each: hash of the value; its counter, from which numbers are subtracted; and
        # the documents and tokens that were seen since it has a counter.
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
        """Add the values of some documents, each value once, with the number of its documents.

        For example, 3 documents have the value `en` and 1 has `de`: two hashes, and the documents 3
        and 1.

        Args:
            hashes: Hash of each value, shape (n_values,).
            documents: Number of documents with each value, shape (n_values,).
            tokens: Number of their tokens, shape (n_values,).
            text_of: Returns a value by its index.
        """
        # Some of the values have a counter already, and others are new. For each entry of both
        # lists, `groups` is the index of its hash among the joined ones.
        all_hashes = np.concatenate([self._hashes, hashes])
        unique_hashes, groups = np.unique(all_hashes, return_inverse=True)
        n_counters = len(unique_hashes)

        def sum_by_value(before: NDArray[np.int64], added: NDArray[np.int64]) -> NDArray[np.int64]:
            """Add up the amounts of each value, before and now, shape (n_counters,)."""
            # bincount adds up floats, which are exact up to 2**53.
            return np.bincount(groups, np.concatenate([before, added]), n_counters).astype(np.int64)

        self._hashes = unique_hashes
        self._counters = sum_by_value(self._counters, documents)
        self._documents = sum_by_value(self._documents, documents)
        self._tokens = sum_by_value(self._tokens, tokens)
        if n_counters > MAX_COUNTERS:
            self._drop_rare_values()
        self._keep_texts(hashes, text_of)

    def _drop_rare_values(self) -> None:
        """Drop the values with the smallest counters, so that MAX_COUNTERS or fewer remain.

        As much is subtracted from every counter as makes enough of them 0. For example, if there
        may be two counters, and the values a, b, c and d have 5, 3, 1 and 1, then 1 is subtracted:
        a and b
        remain, with 4 and 2.
        """
        # The counter that is the last one to be dropped, if they are sorted.
        n_dropped = len(self._counters) - MAX_COUNTERS
        subtracted = int(np.partition(self._counters, n_dropped - 1)[n_dropped - 1])
        counters = self._counters - subtracted
        is_kept = counters > 0

        # If a dropped value is seen again, its counter starts at 0, although it was in up to
        # `subtracted` documents.
        self.error += subtracted
        self._hashes = self._hashes[is_kept]
        self._counters = counters[is_kept]
        self._documents = self._documents[is_kept]
        self._tokens = self._tokens[is_kept]

    def _keep_texts(self, hashes: NDArray[np.uint64], text_of: Callable[[int], str]) -> None:
        """Keep the texts of the values that are the most frequent now, and forget all others.

        Counters have only the hash of their value, since texts can be long.

        Args:
            hashes: Hash of each value that was added just now, shape (n_added,).
            text_of: Returns such a value by its index.
        """
        text_by_hash: dict[int, str] = {}
        for index in self._most_counted():
            value_hash = int(self._hashes[index])
            text = self._text_by_hash.get(value_hash)
            if text is None:
                # The value was not among the most frequent before, and now is. Its counter can only
                # have overtaken others if it was just added.
                added_index = int(np.flatnonzero(hashes == self._hashes[index])[0])
                text = text_of(added_index)
            text_by_hash[value_hash] = text
        self._text_by_hash = text_by_hash

    def _most_counted(self) -> list[int]:
        """Return the indices of the `n_values` greatest counters, the greatest first."""
        # Counters that are equal are sorted by hash.
        order = np.lexsort((self._hashes, -self._counters))
        indices: list[int] = order[: self._n_values].tolist()
        return indices

    def most_frequent(self) -> list[FrequentValue]:
        """Return the most frequent values, the most frequent first.

        To limit the memory, values with small counters were dropped, and each of them may be in up
        to `error` documents. So values that are in no more documents than that are left out.

        Returns:
            At most `n_values` values. Their numbers are exact if `error` is 0.
        """
        values: list[FrequentValue] = []
        for index in self._most_counted():
            documents = int(self._documents[index])
            if documents <= self.error:
                continue  # a value that was dropped may be more frequent
            values.append(
                FrequentValue(
                    value=self._text_by_hash[int(self._hashes[index])],
                    documents=documents,
                    # All numbers that were subtracted from the counter are at most `error`
                    # together.
                    max_documents=int(self._counters[index]) + self.error,
                    tokens=int(self._tokens[index]),
                )
            )
        return values
