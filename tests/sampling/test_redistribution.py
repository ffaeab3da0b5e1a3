"""Shares above their maxima are lowered to them, and the others grow in their old proportion."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nanoset_core.sampling.redistribution import fill_shares, fill_shares_together

NAMES = "abcdef"


class DrawnShares(NamedTuple):
    """Datasets with a share and a maximum each, as exact numbers."""

    shares: dict[str, Fraction]
    """They add up to 1."""
    max_shares: dict[str, Fraction]


drawn_datasets = st.lists(
    st.fixed_dictionaries(
        {"weight": st.integers(1, 30), "max_share": st.fractions(0, 1, max_denominator=20)}
    ),
    min_size=1,
    max_size=len(NAMES),
)


def shares_of(datasets):
    """Return the shares of datasets with weights, and their maxima."""
    total = sum(dataset["weight"] for dataset in datasets)
    shares = {}
    max_shares = {}
    for name, dataset in zip(NAMES, datasets, strict=False):
        shares[name] = Fraction(dataset["weight"], total)
        max_shares[name] = dataset["max_share"]
    return DrawnShares(shares, max_shares)


drawn_shares = drawn_datasets.map(shares_of)


def as_floats(shares):
    """Return shares as floats, which the functions take."""
    return {name: float(share) for name, share in shares.items()}


# Each dataset has a maximum of its own


def slow_fill(shares, max_shares):
    """Multiply all shares by the factor at which they add up to 1; none exceeds its maximum.

    The factor is found by halving an interval.
    """

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
    return as_floats(shares_at(low))


@given(drawn=drawn_shares)
def test_shares_are_those_of_the_common_factor(drawn):
    shares, max_shares = drawn
    assume(sum(max_shares.values()) > 1)

    filled = fill_shares(as_floats(shares), as_floats(max_shares))

    assert filled == pytest.approx(slow_fill(shares, max_shares), abs=1e-9)
    assert list(filled) == list(shares)


@settings(max_examples=25)
@given(drawn=drawn_shares)
def test_there_are_no_shares_if_the_maxima_add_up_to_less_than_1(drawn):
    sum_of_maxima = sum(drawn.max_shares.values())
    max_shares = {name: maximum / (sum_of_maxima + 1) for name, maximum in drawn.max_shares.items()}

    filled = fill_shares(as_floats(drawn.shares), as_floats(max_shares))

    assert filled is None


def test_a_share_above_its_maximum_is_lowered_and_the_others_raised():
    filled = fill_shares({"a": 0.5, "b": 0.25, "c": 0.25}, {"a": 0.2, "b": 1.0, "c": 0.3})

    assert filled == pytest.approx({"a": 0.2, "b": 0.5, "c": 0.3})


FILL_SHARES = """
from nanoset_core.sampling.redistribution import fill_shares, fill_shares_together

shares = {"a": 0.25, "b": 0.35, "c": 0.38, "d": 0.01, "e": 0.01}
max_shares = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 1.0, "e": 1.0}
print(fill_shares(shares, max_shares), fill_shares_together(shares, max_shares, []))
"""


def test_shares_are_rounded_alike_in_all_processes():
    # 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in the last bit, and the order of a set of texts
    # depends on the seed of their hashes.
    outputs = set()
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", FILL_SHARES]
        outputs.add(subprocess.check_output(command, env=environment))
    assert len(outputs) == 1


# Several datasets have a limit together


class CombinedLimit:
    """A limit on the sum of the shares of several datasets, each times its copies of a document."""

    def __init__(self, copies, maximum):
        """Remember the limit.

        Args:
            copies: Name of each dataset → copies of the document in it.
            maximum: Largest allowed sum.
        """
        self.copies = copies
        self.maximum = maximum

    def load(self, shares):
        """Return the sum at some shares."""
        return sum(shares.get(name, 0) * copies for name, copies in self.copies.items())

    @property
    def prefixes(self):
        """Names of the datasets that have copies."""
        return self.copies.keys()

    def fits(self, shares):
        """Return whether some shares keep the limit."""
        return self.load(shares) <= self.maximum


def drawn_limits(names):
    """Draw up to three limits, each of up to three datasets."""
    copies = st.dictionaries(st.sampled_from(names), st.integers(1, 2), min_size=1, max_size=3)
    maximum = st.fractions(Fraction(1, 20), 2, max_denominator=20)
    return st.lists(st.builds(CombinedLimit, copies, maximum), max_size=3)


class LimitReached(NamedTuple):
    """A limit that stops the growth of some shares."""

    progress: Fraction
    """The part of their growth at which it is reached; above 1, it is not reached."""
    names: set[str]
    """The datasets that it stops."""


def slow_fill_together(shares, max_shares, limits):
    """Let shares grow in proportion until a limit stops them, in exact numbers.

    In each round, all shares that are not stopped grow until they add up to 1, or until the first
    limit is reached, which stops some of them.

    Returns:
        The shares, or None if there are none.
    """
    stopped = {}
    while len(stopped) < len(shares):
        free = {name: share for name, share in shares.items() if name not in stopped}
        rest = 1 - sum(stopped.values())
        sum_of_free = sum(free.values())
        goal = {name: share / sum_of_free * rest for name, share in free.items()}

        reached = []
        for name, share in goal.items():
            reached.append(LimitReached(max_shares[name] / share, {name}))
        for limit in limits:
            load = limit.load(goal)
            if load > 0:
                progress = (limit.maximum - limit.load(stopped)) / load
                reached.append(LimitReached(progress, limit.prefixes & goal.keys()))
        # Leave out cases in which the rounding of floats decides whether a limit is reached.
        assume(all(abs(stop.progress - 1) > Fraction(1, 10**6) for stop in reached))

        first_progress = min(stop.progress for stop in reached)
        if first_progress > 1:
            return stopped | goal
        for stop in reached:
            if stop.progress == first_progress:
                stopped |= {name: goal[name] * first_progress for name in stop.names}
        if 0 in stopped.values():
            return None
    return None


@given(drawn=drawn_shares, data=st.data())
def test_shares_with_limits_of_several_datasets_grow_in_proportion(drawn, data):
    shares, max_shares = drawn
    limits = data.draw(drawn_limits(list(shares)))
    expected = slow_fill_together(shares, max_shares, limits)

    filled = fill_shares_together(as_floats(shares), as_floats(max_shares), limits)

    if expected is None:
        assert filled is None
    else:
        assert filled == pytest.approx(expected, abs=1e-6)
        assert list(filled) == list(shares)
