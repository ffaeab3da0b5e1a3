"""Shares that are lowered to their maxima, while the others grow in their old proportion."""

from fractions import Fraction
from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nanoset_core.sampling.redistribution import fill_shares, fill_shares_together

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


shared_limits = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(NAMES), st.integers(1, 2), min_size=1, max_size=3),
        st.fractions(Fraction(1, 20), 2, max_denominator=20),
    ),
    max_size=3,
)


class CombinedLimit:
    """A limit on the sum of the shares of several datasets, each times its copies of a document."""

    def __init__(self, copies, maximum):
        self.limit = SimpleNamespace(copies=copies)
        self.maximum = maximum

    def load(self, shares):
        return sum(shares.get(name, 0) * copies for name, copies in self.limit.copies.items())

    def fits(self, shares):
        return self.load(shares) <= self.maximum


def slow_fill_together(shares, max_shares, limits):
    """The shares that grow in proportion until a limit stops them, in exact numbers."""
    fixed = {}
    while len(fixed) < len(shares):
        free = {name: share for name, share in shares.items() if name not in fixed}
        rest = 1 - sum(fixed.values())
        full = {name: share / sum(free.values()) * rest for name, share in free.items()}

        # The part of their growth at which each limit is reached, and whom it stops.
        stops = [(max_shares[name] / share, {name}) for name, share in full.items()]
        for limit in limits:
            if limit.load(full) > 0:
                part = (limit.maximum - limit.load(fixed)) / limit.load(full)
                stops.append((part, limit.limit.copies.keys() & full.keys()))
        assume(all(abs(part - 1) > Fraction(1, 10**6) for part, _ in stops))
        first = min(part for part, _ in stops)
        if first > 1:
            return fixed | full
        for part, names in stops:
            if part == first:
                fixed |= {name: full[name] * first for name in names}
        if 0 in fixed.values():
            return None
    return None


@given(datasets=datasets, limits=shared_limits)
def test_shares_with_limits_of_several_datasets_grow_in_proportion(datasets, limits):
    total = sum(weight for weight, _ in datasets)
    shares = {}
    max_shares = {}
    for name, (weight, maximum) in zip(NAMES, datasets, strict=False):
        shares[name] = Fraction(weight, total)
        max_shares[name] = maximum
    combined = []
    for copies, maximum in limits:
        known = {name: count for name, count in copies.items() if name in shares}
        if known:
            combined.append(CombinedLimit(known, maximum))
    expected = slow_fill_together(shares, max_shares, combined)

    filled = fill_shares_together(
        {name: float(share) for name, share in shares.items()},
        {name: float(share) for name, share in max_shares.items()},
        combined,
    )

    if expected is None:
        assert filled is None
    else:
        assert filled == pytest.approx(expected, abs=1e-6)
        assert list(filled) == list(shares)
