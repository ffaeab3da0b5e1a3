"""A total is divided in proportion to weights, within a smallest and a largest amount of each."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nanoset_core.sampling.bounded_division import Bounds, divide_within_bounds


def slow_division(weights, bounds, total):
    """Give each part the level times its weight, or the bound that this exceeds.

    The level at which the amounts add up to the total is found by halving an interval of exact
    numbers.
    """

    def amounts_at(level):
        amounts = []
        for weight, bound in zip(weights, bounds, strict=True):
            amounts.append(min(max(level * weight, bound.floor), bound.cap))
        return amounts

    low = Fraction(0)
    high = Fraction(max(bound.cap for bound in bounds) + 1)
    for _ in range(100):
        middle = (low + high) / 2
        if sum(amounts_at(middle)) <= total:
            low = middle
        else:
            high = middle
    return [float(amount) for amount in amounts_at(low)]


@st.composite
def drawn_bounds(draw):
    """Draw a floor, and a cap that is not below it."""
    floor = draw(st.integers(0, 40))
    width = draw(st.integers(0, 40))
    return Bounds(floor, floor + width)


@given(
    bounds=st.lists(drawn_bounds(), min_size=1, max_size=6),
    data=st.data(),
    fraction=st.fractions(0, 1, max_denominator=20),
)
def test_amounts_are_those_of_the_common_level(bounds, data, fraction):
    n_parts = len(bounds)
    weights = data.draw(st.lists(st.integers(1, 50), min_size=n_parts, max_size=n_parts))
    smallest_total = sum(bound.floor for bound in bounds)
    largest_total = sum(bound.cap for bound in bounds)
    assume(smallest_total < largest_total)
    total = smallest_total + fraction * (largest_total - smallest_total)

    amounts = divide_within_bounds(weights, bounds, float(total))

    assert amounts == pytest.approx(slow_division(weights, bounds, total), abs=1e-9)
    assert sum(amounts) == pytest.approx(float(total))


def test_the_worked_example_of_the_module_is_what_is_computed():
    bounds = [Bounds(0, 100), Bounds(0, 3), Bounds(4, 100)]

    amounts = divide_within_bounds([1, 2, 1], bounds, 10)

    assert amounts == [3, 3, 4]


def test_equal_bounds_leave_nothing_to_divide():
    bounds = [Bounds(3, 3), Bounds(4, 4)]

    amounts = divide_within_bounds([1, 2], bounds, 7)

    assert amounts == [3, 4]
