"""A total divided in proportion to weights, where amounts have a smallest and a largest value."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nanoset_core.sampling.bounded_division import Bounds, divide_within_bounds

parts = st.lists(
    st.tuples(st.integers(1, 50), st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=6
)


def slow_division(weights, bounds, total):
    """The amounts, with the common level found by halving an interval of exact numbers."""

    def amounts_at(level):
        return [
            min(max(level * weight, bound.floor), bound.cap)
            for weight, bound in zip(weights, bounds, strict=True)
        ]

    low = Fraction(0)
    high = Fraction(max(bound.cap for bound in bounds) + 1)
    for _ in range(100):
        middle = (low + high) / 2
        if sum(amounts_at(middle)) <= total:
            low = middle
        else:
            high = middle
    return [float(amount) for amount in amounts_at(low)]


@given(parts=parts, fraction=st.fractions(0, 1, max_denominator=20))
def test_amounts_are_those_of_the_common_level(parts, fraction):
    weights = [weight for weight, _, _ in parts]
    bounds = [Bounds(floor, floor + width) for _, floor, width in parts]
    least = sum(bound.floor for bound in bounds)
    most = sum(bound.cap for bound in bounds)
    assume(least < most)
    total = least + fraction * (most - least)

    amounts = divide_within_bounds(weights, bounds, float(total))

    assert amounts == pytest.approx(slow_division(weights, bounds, total), abs=1e-9)
    assert sum(amounts) == pytest.approx(float(total))


def test_the_worked_example_of_the_module_is_what_is_computed():
    bounds = [Bounds(0, 100), Bounds(0, 3), Bounds(4, 100)]

    assert divide_within_bounds([1, 2, 1], bounds, 10) == [3, 3, 4]


def test_equal_bounds_leave_nothing_to_divide():
    assert divide_within_bounds([1, 2], [Bounds(3, 3), Bounds(4, 4)], 7) == [3, 4]
