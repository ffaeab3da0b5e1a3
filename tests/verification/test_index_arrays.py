"""Ranges and counts of index arrays, by windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.verification.index_arrays import check_within, count_misplaced
from nanoset_core.verification.report import Report


@given(
    begin=st.integers(0, 5),
    count=st.integers(1, 30),
    times=st.integers(1, 3),
    window=st.integers(1, 40),
    change=st.booleans(),
    data=st.data(),
)
def test_each_value_as_often_as_it_must(begin, count, times, window, change, data):
    array = np.random.default_rng(count).permutation(np.tile(np.arange(begin, begin + count), times))
    if change:
        array[data.draw(st.integers(0, len(array) - 1))] = begin + data.draw(st.integers(0, count - 1))
    counts = np.bincount(array - begin, minlength=count)
    wrong = np.flatnonzero(counts != times)
    expected = (begin + int(wrong[0]), int(counts[wrong[0]])) if len(wrong) else None
    assert count_misplaced(array, begin, begin + count, times, window=window) == expected


def test_the_first_entry_out_of_range_is_named():
    report = Report("x")
    assert check_within(report, Path("a"), np.array([3, 4, 5], np.uint32), 3, 6)
    assert not check_within(report, Path("a"), np.array([3, 9, 2], np.uint32), 3, 6)
    assert (report.errors[0].where, report.errors[0].found, report.errors[0].expected) == ("a, entry 1", "9", "3 to 5")
