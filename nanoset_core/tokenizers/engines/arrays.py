"""Array types of the engines, and arithmetic with ranges of positions.

Ranges are half-open: the arrays `starts` and `stops` describe the ranges [start, stop).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import positions_in

Bools: TypeAlias = NDArray[np.bool_]
Bytes: TypeAlias = NDArray[np.uint8]
Ids: TypeAlias = NDArray[np.int32]
Ints: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]
FlatLists: TypeAlias = tuple[Ids, NDArray[np.integer[Any]]]
"""Lists of tokens, concatenated.

The ids, shape (n_tokens,), and the number of tokens in each list, shape (n_lists,).
"""


@dataclass(frozen=True, slots=True)
class Runs:
    """Ranges [start, stop) of positions, such as the runs of white space of a text.

    They are in ascending order, and none is empty or overlaps another one.
    """

    starts: Ints
    """int64, shape (n_runs,)."""
    stops: Ints
    """int64, shape (n_runs,)."""

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.starts)

    @property
    def lengths(self) -> Ints:
        """The number of positions in each run: int64, shape (n_runs,)."""
        return self.stops - self.starts

    def where(self, mask: Bools) -> Runs:
        """Return some of the runs.

        Args:
            mask: Whether each run is selected: bool, shape (n_runs,).

        Returns:
            The selected runs, in their order.
        """
        return Runs(self.starts[mask], self.stops[mask])

    def positions(self) -> Ints:
        """Return all positions in all runs.

        Returns:
            int64, shape (n_positions,), ascending: the runs [1, 3) and [4, 5) give 1 2 4.
        """
        return positions_in(self.starts, self.lengths)

    def starts_at(self, positions: Ints) -> Ints:
        """Return the start of the run that contains each position.

        Args:
            positions: int64, shape (n,). Each must be in a run.

        Returns:
            int64, shape (n,): for the runs [1, 3) and [4, 5), the positions 2 4 give 1 4.
        """
        return self.starts[indices_at_or_before(self.starts, positions)]


def find_runs(mask: Bools) -> Runs:
    """Return where a mask is True for a while: the start and stop of each run of True values.

        mask        F  T  T  F  T  F
        position    0  1  2  3  4  5
        runs           [1, 3)   [4, 5)

    Args:
        mask: bool, shape (n,); the first and the last value must be False.

    Returns:
        The runs in ascending order.
    """
    # False → True and True → False alternate, because the mask starts and ends with False.
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1  # (2 * n_runs,)
    return Runs(edges[::2], edges[1::2])


def indices_at_or_before(ascending: Ints, positions: Ints) -> Ints:
    """Return the index of the last value that is at or before each position.

        values       10   20   30       (sorted; their indices are 0 1 2)
        positions    5    10   29
        result       -1   0    1        (-1: all values are after this position)

    Args:
        ascending: int64, shape (n_values,), sorted.
        positions: int64, shape (n_positions,).

    Returns:
        int64, shape (n_positions,).
    """
    return np.searchsorted(ascending, positions, side="right") - 1


def cut_positions(starts: Ints, stops: Ints, max_length: int) -> Ints:
    """Return where ranges have to be cut, from the left, into parts of at most `max_length`.

    The range [10, 17) and a length of 3 give the parts [10, 13), [13, 16) and [16, 17), so the cuts
    are 13 and 16.

    Args:
        starts: int64, shape (n_ranges,).
        stops: int64, shape (n_ranges,); no range is empty.
        max_length: Length of every part but the last one of each range.

    Returns:
        int64, shape (n_cuts,).
    """
    cuts_per_range = (stops - starts - 1) // max_length  # (n_ranges,)
    # (n_cuts,) number the cuts of each range from 0: for 2 cuts and 3 cuts, 0 1 and 0 1 2
    number_in_range = positions_in(np.zeros_like(cuts_per_range), cuts_per_range)
    first_cuts = np.repeat(starts + max_length, cuts_per_range)  # (n_cuts,)
    return first_cuts + number_in_range * max_length


def character_starts(data: Bytes, positions: Ints) -> Ints:
    """Return the first byte of the character that each position of a UTF-8 text is in.

    For "aé", with the bytes 61 C3 A9, the positions 0 1 2 give 0 1 1.

    Args:
        data: uint8, shape (n_bytes,): valid UTF-8.
        positions: int64, shape (n_positions,): any bytes of characters.

    Returns:
        int64, shape (n_positions,).
    """
    # Step back until the byte is the first one of a character: all others have the form 10xxxxxx.
    starts = positions.copy()
    unfinished = np.arange(len(positions))  # indices of positions that may be inside a character
    for _ in range(3):  # a character has at most three bytes after its first one
        is_continuation = data[starts[unfinished]] & 0xC0 == 0x80
        unfinished = unfinished[is_continuation]
        starts[unfinished] -= 1
    return starts
