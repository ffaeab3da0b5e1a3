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
            n_values: How many of the most frequent values are wanted.
        """
        self.error = 0
        """How many more documents than were counted may have a value; 0 if all counts are exact."""
        self._n_values = n_values

        # An entry for each value that is counted, shape (n_counters,): its hash, its counter, and
        # the documents and tokens since it is counted. A counter is lowered whenever values are
        # dropped.
        self._hashes = np.empty(0, np.uint64)
        self._counters = np.empty(0, np.int64)
        self._documents = np.empty(0, np.int64)
        self._tokens = np.empty(0, np.int64)
        self._text_by_hash: dict[int, str] = {}  # of the most frequent values only

    def add(
        self,
        hashes: NDArray[np.uint64],
        documents: NDArray[np.int64],
        tokens: NDArray[np.int64],
        text_of: Callable[[int], str],
    ) -> None:
        """Count more documents by a value that each of them has, such as its language.

        For example, of the next 4 documents, 3 have the value "en" and 1 has "de":

                        counted before    added now    counted now
            "en"        20                3            23
            "fr"        5                              5
            "de"                          1            1

        There may be millions of different values, such as names of web sites. So if there are more
        than MAX_COUNTERS (16,384), the rarest ones are dropped. Values are told apart by hashes,
        because their texts can be long.

        Args:
            hashes: Hash of each value, shape (n_values,). A value comes only once.
            documents: How many of these documents have each value: [3, 1]; shape (n_values,).
            tokens: How many tokens these documents have, shape (n_values,).
            text_of: Returns the text of a value by its index: "en" for 0.
        """
        # List all values, before and now. `groups` has the index in this list for each value that
        # was counted before, and then for each of those that are added.
        all_hashes = np.concatenate([self._hashes, hashes])  # en, fr, en, de
        unique_hashes, groups = np.unique(all_hashes, return_inverse=True)  # en, fr, de; 0, 1, 0, 2
        n_counters = len(unique_hashes)

        def sum_by_value(before: NDArray[np.int64], added: NDArray[np.int64]) -> NDArray[np.int64]:
            """Add up the numbers of each value: 20, 5 before and 3, 1 now are 23, 5, 1."""
            # bincount adds up floats, which are exact up to 2**53.
            return np.bincount(groups, np.concatenate([before, added]), n_counters).astype(np.int64)

        self._hashes = unique_hashes
        self._counters = sum_by_value(self._counters, documents)  # lowered when values are dropped
        self._documents = sum_by_value(self._documents, documents)
        self._tokens = sum_by_value(self._tokens, tokens)
        if n_counters > MAX_COUNTERS:
            self._drop_rare_values()
        self._keep_texts(hashes, text_of)

    def _drop_rare_values(self) -> None:
        """Forget the values with the smallest counters, to limit the memory.

        A number is subtracted from all counters, such that enough of them become 0 or less. So a
        value that comes often later can get ahead of others (Misra and Gries). For example, there
        may be two counters:

            value               a    b    c    d
            counter             5    3    1    1     subtract 1
            new counter         4    2    0    0     c and d are forgotten

        If c comes again, it is counted from 0, although 1 document had it. So it can have 1 more
        document than are counted. `error` is the sum of all numbers that were ever subtracted.
        """
        n_to_drop = len(self._counters) - MAX_COUNTERS  # 2
        subtracted = _nth_smallest(self._counters, n_to_drop)  # 1
        counters = self._counters - subtracted
        remains = counters > 0

        self.error += subtracted
        self._hashes = self._hashes[remains]
        self._counters = counters[remains]
        self._documents = self._documents[remains]
        self._tokens = self._tokens[remains]

    def _keep_texts(self, hashes: NDArray[np.uint64], text_of: Callable[[int], str]) -> None:
        """Keep the texts of the values that are the most frequent now, and forget all others.

        Values are counted by their hashes, as their texts can be long. Only the texts of the most
        frequent ones are needed in the end.

        Args:
            hashes: Hash of each value that was just counted, shape (n_added,).
            text_of: Returns the text of such a value, by its index in `hashes`.
        """
        text_by_hash: dict[int, str] = {}
        for index in self._most_counted():
            value_hash = int(self._hashes[index])
            text = self._text_by_hash.get(value_hash)
            if text is None:
                # The value was not among the most frequent ones before the last call of `add`. Only
                # values that this call counted can have become more frequent.
                added_index = int(np.flatnonzero(hashes == value_hash)[0])
                text = text_of(added_index)
            text_by_hash[value_hash] = text
        self._text_by_hash = text_by_hash

    def _most_counted(self) -> list[int]:
        """Return where the greatest counters are, the greatest first; as many as values are wanted.

        Equal ones are sorted by the hash of their value, so that the result does not depend on
        chance.
        """
        # Counters that are equal are sorted by hash.
        order = np.lexsort((self._hashes, -self._counters))
        indices: list[int] = order[: self._n_values].tolist()
        return indices

    def most_frequent(self) -> list[FrequentValue]:
        """Return the values that most documents have, the most frequent first.

        All numbers are exact if there were few different values. Otherwise, rare values were
        forgotten at times, to save memory. Then a value may have more documents than were counted,
        and `max_documents` is how many it has at most.

        Returns:
            At most `n_values` values. Those with so few documents that a forgotten value may have
            as many are left out.
        """
        most_of_forgotten_values = self.error
        frequent_values: list[FrequentValue] = []
        for index in self._most_counted():
            documents = int(self._documents[index])
            if documents <= most_of_forgotten_values:
                continue
            frequent_values.append(
                FrequentValue(
                    value=self._text_by_hash[int(self._hashes[index])],
                    documents=documents,
                    max_documents=documents + self._max_missed(index),
                    tokens=int(self._tokens[index]),
                )
            )
        return frequent_values

    def _max_missed(self, index: int) -> int:
        """Return how many documents with a value may be missing in its count, at most.

        Counters are lowered at times, and values with the counter 0 are forgotten. If such a value
        comes again, it is counted from 0. Documents that had it before are missing then: as many as
        its counter had been lowered by until then, at most. For example, counters were lowered by
        30 in all (`error`):

            value    documents counted    counter    lowered since    so before, at most
            en       520                  490        30               0: no document is missing
            de       40                   30         10               20

        Args:
            index: Where the value is in the arrays of counters.
        """
        lowered_since = int(self._documents[index]) - int(self._counters[index])
        return self.error - lowered_since


def _nth_smallest(numbers: NDArray[np.int64], n: int) -> int:
    """Return the n-th smallest of some numbers: for 5, 3, 1, 1 and n = 3, it is 3.

    `partition` moves it to where it would be if the numbers were sorted, which is faster than
    sorting them.
    """
    return int(np.partition(numbers, n - 1)[n - 1])
