"""Arithmetic with ranges of positions gives the same as plain Python."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.tokenizers.engines.arrays import character_starts, cut_positions, find_runs


@given(st.lists(st.booleans(), max_size=40))
def test_runs_are_groups_of_true(values):
    mask = [False, *values, False]
    expected_starts = []
    expected_stops = []
    stop = 0
    for is_true, group in groupby(mask):
        start = stop
        stop += len(list(group))
        if is_true:
            expected_starts.append(start)
            expected_stops.append(stop)

    runs = find_runs(np.array(mask))

    assert runs.starts.tolist() == expected_starts
    assert runs.stops.tolist() == expected_stops


@given(
    ranges=st.lists(st.tuples(st.integers(0, 100), st.integers(1, 30)), max_size=10),
    max_length=st.integers(1, 12),
)
def test_ranges_are_cut_from_the_left(ranges, max_length):
    expected = []
    for start, length in ranges:
        expected += range(start + max_length, start + length, max_length)
    starts = np.array([start for start, _ in ranges], np.int64)
    lengths = np.array([length for _, length in ranges], np.int64)

    positions = cut_positions(starts, starts + lengths, max_length)

    assert positions.tolist() == expected


@given(st.text(min_size=1, max_size=20))
def test_every_byte_leads_to_the_first_byte_of_its_character(text):
    expected = []
    for character in text:
        size = len(character.encode())
        expected += [len(expected)] * size
    data = np.frombuffer(text.encode(), np.uint8)
    all_positions = np.arange(len(data))

    starts = character_starts(data, all_positions)

    assert starts.tolist() == expected
