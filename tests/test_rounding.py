"""Integers are divided exactly, and rounded up."""

from __future__ import annotations

import numpy as np
import pytest

from nanoset_core.rounding import ceil_division


@pytest.mark.parametrize(
    ("dividend", "divisor", "quotient"), [(10, 3, 4), (9, 3, 3), (1, 3, 1), (0, 3, 0), (-1, 3, 0)]
)
def test_a_quotient_is_rounded_up(dividend, divisor, quotient):
    assert ceil_division(dividend, divisor) == quotient


def test_a_quotient_that_no_float_holds_is_exact():
    assert ceil_division(2**53 + 1, 1) == 2**53 + 1


def test_each_number_of_an_array_is_divided():
    dividends = np.array([10, 9, 0])

    quotients = ceil_division(dividends, 3)

    assert quotients.tolist() == [4, 3, 0]
    assert quotients.dtype == np.int64


def test_a_divisor_near_the_largest_integer_does_not_overflow():
    assert ceil_division(np.array([10]), 2**63 - 1).tolist() == [1]
