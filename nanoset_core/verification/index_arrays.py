"""Checks of index arrays by chunks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.verification.report import Report

CHUNK = 1 << 20
WINDOW = 1 << 23


def check_within(report: Report, path: Path, array: NDArray[Any], begin: int, end: int) -> bool:
    """Whether every entry is from `begin` to `end` (excl); notes the first that is not."""
    for first in range(0, len(array), CHUNK):
        part = array[first : first + CHUNK]
        wrong = (part < begin) | (part >= end)
        if wrong.any():
            at = int(np.argmax(wrong))
            report.error(
                "an index file has an entry out of range",
                where=f"{path}, entry {first + at}",
                found=int(part[at]),
                expected=f"{begin} to {end - 1}",
                remedy="delete it, and run `nanoset build`",
            )
            return False
    return True


def count_misplaced(
    array: NDArray[Any], begin: int, end: int, times: int, *, window: int = WINDOW
) -> tuple[int, int] | None:
    """The first of the values [begin, end) that is not there just `times` times, as (value, how often), or None.

    Looks at a window of values at a time, one pass over the array for each; memory is that of a window.
    """
    if times == 1 and len(array) == end - begin and _all_there(array, begin, end, 4 * window):
        return None
    for low in range(begin, end, window):
        high = min(low + window, end)
        counts = np.zeros(high - low, np.int64)
        for part in _parts(array, low, high, 4 * CHUNK):
            counts += np.bincount(part, minlength=high - low)
        if (wrong := counts != times).any():
            at = int(np.argmax(wrong))
            return low + at, int(counts[at])
    return None


def _all_there(array: NDArray[Any], begin: int, end: int, window: int) -> bool:
    """Whether every value is there; several times faster than counting."""
    for low in range(begin, end, window):
        seen = np.zeros(min(window, end - low), np.bool_)
        for part in _parts(array, low, low + len(seen), CHUNK):
            seen[part] = True
        if not seen.all():
            return False
    return True


def _parts(array: NDArray[Any], low: int, high: int, chunk: int) -> Iterator[NDArray[np.int64]]:
    """The values [low, high) of the array less `low`, some at a time."""
    for first in range(0, len(array), chunk):
        part = array[first : first + chunk].astype(np.int64)
        yield part[(part >= low) & (part < high)] - low
