"""Lists of tokens, each represented by one number: its code.

Most words are one token, and the code of such a list is the token itself. Lists of several tokens
are stored here, concatenated, and numbered. Their code is the number plus a constant that is
greater than the tokens of all known tokenizers:

    lists                [7]  [5, 6]     [9]  [1, 2, 3]
    codes                7    2**20 + 0  9    2**20 + 1
    stored tokens        5 6 1 2 3
    stored bounds        0 2 5

So most lookups never touch a stored list.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.tokenizers.engines.arrays import FlatLists, Ids, Ints
from nanoset_core.tokenizers.engines.merges import ID_BITS

Codes: TypeAlias = Ids
"""Codes of lists of tokens, int32.

A token below _FIRST_LIST stands for the list of this token. Any other code is _FIRST_LIST plus the
number of a stored list, which has several tokens, or one greater token.
"""

_FIRST_LIST = np.int32(1 << ID_BITS)
_GATHERED_TOGETHER = 1 << 15  # lists: what fits into the processor's cache
_Item = TypeVar("_Item", bound=np.generic)


class TokenLists:
    """Lists of one token or more, as codes."""

    def __init__(self, bounds: Ints | None = None, tokens: Ids | None = None) -> None:
        """Start with the lists of tokens that an earlier process saved, or with none.

        The lists [5, 6] and [1, 2, 3] are saved as

            tokens    5 6 1 2 3
            bounds    0   2     5

        Args:
            bounds: Where each list starts in `tokens`, and where the last one stops; int64, shape
                (n_stored + 1,).
            tokens: Tokens of all lists, concatenated; int32.
        """
        if bounds is None:
            bounds = np.zeros(1, np.int64)  # no list starts, and nothing stops after 0
        if tokens is None:
            tokens = np.empty(0, np.int32)

        # Both arrays may become longer than what they hold, see `_with_room`.
        self._bounds = bounds
        self._tokens = tokens
        self._count = len(bounds) - 1

    def __len__(self) -> int:
        """Return the number of stored lists."""
        return self._count

    def add(self, ids: Ids, lengths: NDArray[np.integer[Any]]) -> Codes:
        """Return a number for each list of tokens, its code, from which `gather` gets the list.

        Most lists have one token, which is then the code itself. All others are stored and
        numbered, from _FIRST_LIST (2 ** 20) on. If _FIRST_LIST were 100:

            list       [7]    [5, 6]   [120]   [5]
            code       7      100      101     5

        The token 120 would look like a stored list, so its list is stored, too.

        Args:
            ids: The tokens of all lists, concatenated: int32, shape (n_tokens,).
            lengths: Tokens of each list, one or more; shape (n_lists,).

        Returns:
            int32, shape (n_lists,).
        """
        counts = lengths.astype(np.int64)
        starts = np.cumsum(counts) - counts  # first token of each list, index into `ids`
        codes = ids.take(starts)  # (n_lists,) right for most lists, which have one token

        # Store all others, and replace their codes.
        has_several_tokens = counts > 1
        looks_like_stored_list = codes >= _FIRST_LIST
        must_store = (has_several_tokens | looks_like_stored_list).nonzero()[0]  # indices of lists
        if len(must_store):
            stored_counts = counts.take(must_store)
            stored_ids = ids.take(positions_in(starts.take(must_store), stored_counts))
            codes[must_store] = self._store(stored_ids, stored_counts)
        return codes

    def _store(self, ids: Ids, counts: Ints) -> Codes:
        """Append lists of tokens to the stored ones, and return a code for each, a number.

        All lists are in one array, `_tokens`, and `_bounds` says where each one starts, and where
        the last one stops. After [5, 6], the list [1, 2, 3] is appended as list number 1:

            tokens    5 6 1 2 3
            bounds    0   2     5

        The code of list number i is _FIRST_LIST + i.

        Args:
            ids: The tokens of the lists, concatenated; int32.
            counts: Tokens of each list, int64, shape (n_lists,).

        Returns:
            int32, shape (n_lists,).
        """
        number = self._count  # of the first new list: 1
        stop_number = number + len(counts)  # 2
        start = int(self._bounds[number])  # of its tokens: 2
        stop = start + len(ids)  # 5

        # Both arrays are longer than needed, so that they are rarely copied.
        self._tokens = _with_room(self._tokens, stop)
        self._tokens[start:stop] = ids
        self._bounds = _with_room(self._bounds, stop_number + 1)
        self._bounds[number + 1 : stop_number + 1] = start + np.cumsum(counts)  # stops: 5
        self._count = stop_number
        return np.arange(number, stop_number, dtype=np.int32) + _FIRST_LIST

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the stored lists, to save them for later processes.

        Returns:
            The arguments of the constructor by name. Their bytes are those of this object, and not
            a copy.
        """
        return {
            "bounds": self._bounds[: self._count + 1],
            "tokens": self._tokens[: self._bounds[self._count]],
        }

    def truncate(self, count: int) -> None:
        """Drop all stored lists but the first ones.

        Args:
            count: Number of lists to keep; nothing changes if there are fewer.
        """
        self._count = min(count, self._count)

    def gather(self, codes: Codes) -> FlatLists:
        """Return the lists of tokens that codes stand for.

        Codes are numbers that `add` returned. They are handled some thousands at a time, which fit
        into the processor's cache.

        Args:
            codes: int32, shape (n_lists,).

        Returns:
            ids: The tokens of all lists, concatenated; int32, shape (n_tokens,).
            lengths: Tokens of each list; int64, shape (n_lists,).
        """
        ids_by_slice = [np.empty(0, np.int32)]
        lengths_by_slice = [np.empty(0, np.int64)]
        for start in range(0, len(codes), _GATHERED_TOGETHER):
            ids, lengths = self._gather_slice(codes[start : start + _GATHERED_TOGETHER])
            ids_by_slice.append(ids)
            lengths_by_slice.append(lengths)
        return np.concatenate(ids_by_slice), np.concatenate(lengths_by_slice)

    def _gather_slice(self, codes: Codes) -> tuple[Ids, Ints]:
        """Return the lists of tokens that codes stand for, one after another.

        A code is a number for a list of tokens. There are two kinds of codes:

            below 2 ** 20 (_FIRST_LIST)    the list has a single token, which is the code itself
            from 2 ** 20 on                a stored list: 2 ** 20 is the first one, and so on

        For example, if _FIRST_LIST were 100, and the first stored list were 7 8 9:

            codes                      5    100      6
            lengths of their lists     1    3        1
            where each list starts     0    1        4
            result                     5    7 8 9    6

        Args:
            codes: int32, shape (n_lists,), at least one.

        Returns:
            ids: The tokens of all lists, concatenated; int32, shape (n_tokens,).
            lengths: Tokens of each list; int64, shape (n_lists,).
        """
        # All stored lists are in `self._tokens`, one after another. List i has the tokens from
        # `self._bounds[i]` up to `self._bounds[i + 1]`. In the example, the code at the index 1
        # stands for list 0, the tokens [0, 3) of `self._tokens`.
        stored = (codes >= _FIRST_LIST).nonzero()[0]  # (n_stored,) indices into `codes`: 1
        numbers = (codes.take(stored) - _FIRST_LIST).astype(np.int64)  # 0
        stored_starts = self._bounds.take(numbers)  # 0
        stored_lengths = self._bounds.take(numbers + 1) - stored_starts  # 3

        # Where each list starts in the result. Codes that are tokens have the length 1.
        lengths = np.ones(len(codes), np.int64)
        lengths[stored] = stored_lengths  # 1 3 1
        stops = np.cumsum(lengths)  # 1 4 5
        starts = stops - lengths  # 0 1 4

        # Write every code as if it were a token: 5 100 . . 6. Then write 7 8 9 in place of 100 . .
        # `positions_in` lists all integers of a range: for the start 1 and the length 3, 1 2 3.
        ids = np.empty(int(stops[-1]), np.int32)
        ids[starts] = codes
        targets = positions_in(starts.take(stored), stored_lengths)  # 1 2 3, in `ids`
        origins = positions_in(stored_starts, stored_lengths)  # 0 1 2, in `self._tokens`
        ids[targets] = self._tokens.take(origins)
        return ids, lengths


def _with_room(array: NDArray[_Item], size: int) -> NDArray[_Item]:
    """Return the array, or a copy that is at least twice as long and has room for `size` items."""
    if size <= len(array):
        return array
    larger = np.empty(max(2 * len(array), size), array.dtype)
    larger[: len(array)] = array
    return larger
