"""Shares that are lowered to their maxima, while the others grow in their old proportion."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.sampling.redistribution import fill_shares

NAMES = "abcdef"
datasets = st.lists(
    st.tuples(st.integers(1, 30), st.fractions(0, 1, max_denominator=20)), min_size=1, max_size=6
)


def slow_fill(shares, max_shares):
    """The shares at the common factor at which they add up to 1, found by halving an interval."""

    def shares_at(factor):
        return {name: min(factor * share, max_shares[name]) for name, share in shares.items()}

    low = Fraction(0)
    high = 1 / min(shares.values())
    for _ in range(100):
        middle = (low + high) / 2
        if sum(shares_at(middle).values()) <= 1:
            low = middle
        else:
            high = middle
    return {name: float(share) for name, share in shares_at(low).items()}


@given(datasets=datasets)
def test_shares_are_those_of_the_common_factor(datasets):
    total = sum(weight for weight, _ in datasets)
    shares = {
        name: Fraction(weight, total) for name, (weight, _) in zip(NAMES, datasets, strict=False)
    }
    max_shares = dict(zip(NAMES, (maximum for _, maximum in datasets), strict=False))

    filled = fill_shares(
        {name: float(share) for name, share in shares.items()},
        {name: float(share) for name, share in max_shares.items()},
    )

    if sum(max_shares.values()) > 1:
        assert filled == pytest.approx(slow_fill(shares, max_shares), abs=1e-9)
        assert list(filled) == list(shares)
    if sum(max_shares.values()) < 1:
        assert filled is None


def test_a_share_above_its_maximum_is_lowered_and_the_others_raised():
    filled = fill_shares({"a": 0.5, "b": 0.25, "c": 0.25}, {"a": 0.2, "b": 1.0, "c": 0.3})

    assert filled == pytest.approx({"a": 0.2, "b": 0.5, "c": 0.3})
