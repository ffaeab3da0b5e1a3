"""Arrays of the engines: their types, and arithmetic with ranges (begin, end excl)."""

from __future__ import annotations

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
"""Lists of tokens back to back: ids, shape (tokens,); tokens in each list, shape (lists,)."""


def runs_of(mask: Bools) -> tuple[Ints, Ints]:
    """Return (begin, end excl) of runs of True, each int64, shape (runs,); the first and last value
    are in none.
    """
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    return edges[::2], edges[1::2]


def cuts_in(begins: Ints, ends: Ints, longest: int) -> Ints:
    """Return where ranges (begin, end excl) are cut so that no part is longer than `longest`:
    int64, shape (cuts,).
    """
    counts = (ends - begins - 1) // longest
    return positions_in(np.zeros_like(counts), counts) * longest + np.repeat(
        begins + longest, counts
    )


def character_begins(data: Bytes, places: Ints) -> Ints:
    """Return where the characters begin of which there is a byte at each place of UTF-8: int64,
    shape (places,).
    """
    begins, inside = places.copy(), np.arange(len(places))
    for _ in range(3):
        inside = inside[data[begins[inside]] & 0xC0 == 0x80]
        begins[inside] -= 1
    return begins
