"""Distinct values are counted exactly up to a number, and beyond it approximately."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.statistics import distinct
from nanoset_core.statistics.distinct import DistinctCounter
from nanoset_core.statistics.hashing import mix


def count(numbers: np.ndarray, chunk_size: int) -> DistinctCounter:
    """Count distinct numbers, which are added in chunks."""
    counter = DistinctCounter()
    hashes = mix(numbers.astype(np.uint64))
    for start in range(0, len(hashes), chunk_size):
        counter.add(hashes[start : start + chunk_size])
    return counter


@given(numbers=st.lists(st.integers(0, 20)), chunk_size=st.integers(1, 9))
def test_few_distinct_values_are_counted_exactly(numbers, chunk_size):
    counter = count(np.array(numbers), chunk_size)

    assert counter.is_exact
    assert counter.count == len(set(numbers))


@pytest.mark.parametrize("n_values", [distinct.MAX_EXACT, distinct.MAX_EXACT + 1])
def test_the_count_is_exact_up_to_a_number(n_values):
    counter = count(np.arange(n_values), 10_000)

    assert counter.is_exact == (n_values <= distinct.MAX_EXACT)


def test_many_distinct_values_are_counted_with_an_error_of_about_one_percent():
    numbers = np.arange(1_000_000) % 500_000

    counter = count(numbers, 65_536)

    assert not counter.is_exact
    assert counter.count == pytest.approx(500_000, rel=0.015)


def test_the_order_of_the_values_does_not_matter():
    numbers = np.arange(2 * distinct.MAX_EXACT)

    assert count(numbers, 30_000).count == count(numbers[::-1], 7000).count
