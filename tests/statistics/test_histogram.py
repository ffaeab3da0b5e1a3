"""Histograms have round bins, and count each number in the bin that contains it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.statistics.histogram import MAX_BINS, Bin, WeighedValues, histogram


def histogram_of(values: Sequence[float], dtype: Any = np.float64) -> list[Bin]:
    """Return the histogram of numbers, each with an amount of 2."""
    array = np.array(values, dtype)
    amounts = [np.full(len(array), 2)]
    return histogram(lambda: [WeighedValues(array, amounts)])


def labels_of(bins: Sequence[Bin]) -> list[str]:
    """Return the values of bins in words."""
    return [histogram_bin.label for histogram_bin in bins]


NUMBERS = [
    pytest.param(np.int64, st.integers(-(2**63), 2**63 - 1), id="large integers"),
    pytest.param(np.int64, st.integers(-3, 300), id="small integers"),
    pytest.param(np.float64, st.floats(allow_nan=False), id="floats"),
    pytest.param(np.float64, st.floats(-2, 9, width=16), id="small floats"),
]


@pytest.mark.parametrize(("dtype", "numbers"), NUMBERS)
@given(data=st.data())
def test_each_number_is_counted_in_the_bin_that_contains_it(dtype, numbers, data):
    values = data.draw(st.lists(numbers, max_size=40))

    bins = histogram_of(values, dtype)

    assert len(bins) <= MAX_BINS + 2
    assert sum(histogram_bin.amounts[0] for histogram_bin in bins) == 2 * len(values)
    if len(set(values)) > 1:
        for histogram_bin in bins:
            start = -math.inf if histogram_bin.start is None else histogram_bin.start
            stop = math.inf if histogram_bin.stop is None else histogram_bin.stop
            n_inside = sum(start <= float(value) < stop for value in values)
            if histogram_bin.stop is None:
                n_inside += values.count(math.inf)
            assert histogram_bin.amounts == (2 * n_inside,)


def test_a_score_from_0_to_5_has_a_bin_for_each_value():
    assert labels_of(histogram_of([0, 1, 1, 2, 3, 4, 5], np.int64)) == [
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
    ]


def test_bins_of_fractions_have_round_ends():
    values = np.linspace(0.013, 0.981, 500)

    assert labels_of(histogram_of(values))[:3] == ["0 to 0.1", "0.1 to 0.2", "0.2 to 0.3"]


def test_a_few_extreme_values_do_not_widen_the_bins():
    values = [*np.linspace(-1, 1, 2000), -1e9, 1e9]

    labels = labels_of(histogram_of(values))

    assert labels[0].startswith("below -")
    assert labels[-1].endswith("or more")
    assert "-0.2 to 0" in labels


def test_bins_of_lengths_become_wider():
    values = np.random.default_rng(0).lognormal(6, 2, 5000).astype(np.int64)

    assert {"100 to 199", "200 to 499", "10,000 to 19,999"} <= set(
        labels_of(histogram_of(values, np.int64))
    )


@pytest.mark.parametrize(("values", "label"), [([3.5, 3.5], "3.5"), ([math.inf], "inf")])
def test_equal_numbers_have_one_bin(values, label):
    assert labels_of(histogram_of(values)) == [label]


def test_no_numbers_have_no_bins():
    assert histogram_of([]) == []
