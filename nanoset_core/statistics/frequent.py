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


class _Counts(NamedTuple):
    """How often some values were counted; each array has the shape (n_values,)."""

    hashes: NDArray[np.uint64]
    """Hash of each value. Its text, which can be long, is not kept here."""
    counters: NDArray[np.int64]
    """Documents with the value, minus all that was subtracted since it is counted."""
    documents: NDArray[np.int64]
    """Documents with the value since it is counted."""
    tokens: NDArray[np.int64]
    """Tokens of these documents."""

    def select(self, selection: NDArray[np.bool_]) -> _Counts:
        """Return the counts of some values.

        Args:
            selection: True for these values, shape (n_values,).
        """
        return _Counts(
            hashes=self.hashes[selection],
            counters=self.counters[selection],
            documents=self.documents[selection],
            tokens=self.tokens[selection],
        )

    def plus(self, other: _Counts) -> _Counts:
        """Add the counts of other documents, whose values may be the same or new ones.

        For example, documents of two languages were counted, and others are added:

            value           en    fr    de
            these counts    20     5
            the others       3           1
            result          23     5     1

        Args:
            other: The counts of the other documents.
        """
        all_hashes = np.concatenate([self.hashes, other.hashes])  # en, fr, en, de
        # `groups` says which of the unique hashes each of all hashes is: 0, 1, 0, 2.
        unique_hashes, groups = np.unique(all_hashes, return_inverse=True)

        def sum_by_value(these: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
            """Add up the numbers of each value: 20, 5 and 3, 1 are 23, 5, 1."""
            numbers = np.concatenate([these, others])
            # bincount adds up floats, which are exact up to 2**53.
            return np.bincount(groups, numbers, len(unique_hashes)).astype(np.int64)

        return _Counts(
            hashes=unique_hashes,
            counters=sum_by_value(self.counters, other.counters),
            documents=sum_by_value(self.documents, other.documents),
            tokens=sum_by_value(self.tokens, other.tokens),
        )


def _no_counts() -> _Counts:
    """Return the counts of no values."""
    numbers = np.empty(0, np.int64)
    return _Counts(np.empty(0, np.uint64), numbers, numbers, numbers)


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
        self._counts = _no_counts()  # of at most MAX_COUNTERS values
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
        added = _Counts(hashes, counters=documents, documents=documents, tokens=tokens)
        self._counts = self._counts.plus(added)
        if len(self._counts.hashes) > MAX_COUNTERS:
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
        old_counters = self._counts.counters
        n_to_drop = len(old_counters) - MAX_COUNTERS  # 2
        subtracted = _nth_smallest(old_counters, n_to_drop)  # 1
        counters = old_counters - subtracted
        self._counts = self._counts._replace(counters=counters).select(counters > 0)
        self.error += subtracted

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
            value_hash = int(self._counts.hashes[index])
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
        order = np.lexsort((self._counts.hashes, -self._counts.counters))
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
        frequent_values = [self._frequent_value(index) for index in self._most_counted()]
        return [value for value in frequent_values if value.documents > most_of_forgotten_values]

    def _frequent_value(self, index: int) -> FrequentValue:
        """Return one of the most frequent values, with its counts.

        Args:
            index: Where the value is in the arrays of counts.
        """
        documents = int(self._counts.documents[index])
        return FrequentValue(
            value=self._text_by_hash[int(self._counts.hashes[index])],
            documents=documents,
            max_documents=documents + self._max_missed(index),
            tokens=int(self._counts.tokens[index]),
        )

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
            index: Where the value is in the arrays of counts.
        """
        counts = self._counts
        lowered_since = int(counts.documents[index]) - int(counts.counters[index])
        return self.error - lowered_since


def _nth_smallest(numbers: NDArray[np.int64], n: int) -> int:
    """Return the n-th smallest of some numbers: for 5, 3, 1, 1 and n = 3, it is 3.

    `partition` moves it to where it would be if the numbers were sorted, which is faster than
    sorting them.
    """
    return int(np.partition(numbers, n - 1)[n - 1])
