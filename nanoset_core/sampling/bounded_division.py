"""Divide a total in proportion to weights, where each amount has a smallest and a largest value.

Each amount is `level * weight`, or its bound if that is outside of its bounds; the *level* is the
same for all. The task is to find the level at which the amounts add up to the total. For a total of
10:

    weight   bounds       level 1    level 2    level 3
    1        0 to 100     1          2          3
    2        0 to 3       2          3 (cap)    3 (cap)
    1        4 to 100     4 (floor)  4 (floor)  4 (floor)
    sum                   7          9          10

The level is 3, and the amounts are 3, 3 and 4.

The sum of the amounts grows with the level, in straight lines between the levels at which an amount
reaches a bound:

    level    0    1.5    4     100
    sum      4    8.5    11    203

The last of these whose sum does not exceed the total is 1.5. From there on, only the first amount
grows, so it gets what the others leave: 10 - 3 - 4 = 3.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from nanoset_core.sampling.splits import plain_sum


class Bounds(NamedTuple):
    """The smallest and the largest value of an amount."""

    floor: float
    cap: float


def divide_within_bounds(
    weights: Sequence[float], bounds: Sequence[Bounds], total: float
) -> list[float]:
    """Divide a total in proportion to weights, but keep each amount between a floor and a cap.

    For example, 10 is divided by the weights 1, 2 and 1. The second amount may be at most 3, and
    the third must be at least 4. Then the amounts are 3, 3 and 4.

    Args:
        weights: Weight of each amount, greater than 0.
        bounds: Floor and cap of each amount.
        total: Sum of the amounts; between the sum of the floors and that of the caps.

    Returns:
        The amounts, in the order of the weights.
    """
    shares = [_Share(weight, bound) for weight, bound in zip(weights, bounds, strict=True)]

    # An amount that is not at a bound is `level * weight`, with one level for all. Let the level
    # rise until one more step, to where the next amount reaches a bound, would be too far.
    level = _last_bound_level(shares, total)

    # From there on, some amounts stay at a bound. The others divide what these leave.
    growing = [share for share in shares if share.grows_at(level)]
    if growing:
        fixed = [share for share in shares if not share.grows_at(level)]
        fixed_sum = plain_sum(share.amount(level) for share in fixed)
        level = (total - fixed_sum) / plain_sum(share.weight for share in growing)
    return [share.amount(level) for share in shares]


def _last_bound_level(shares: Sequence[_Share], total: float) -> float:
    """Return the last level at which an amount reaches a bound and the sum is at most the total.

    An amount is `level * weight`, kept between its floor and its cap. For a total of 10:

        weight, floor, cap    reaches bounds at    level 0   1.5    4      100
        1       0      100    0 and 100                  0   1.5    4      100
        2       0      3      0 and 1.5                  0   3      3      3
        1       4      100    4 and 100                  4   4      4      100
        sum                                              4   8.5    11     203

    The result is 1.5, since 8.5 is the last sum that is at most 10.

    Args:
        shares: Weight and bounds of each amount.
        total: The sum that the amounts should have.
    """

    def sum_at(level: float) -> float:
        """Return the sum of the amounts at a level, which grows with the level."""
        return plain_sum(share.amount(level) for share in shares)

    bound_levels = {share.floor_level for share in shares}
    bound_levels.update(share.cap_level for share in shares)
    levels = sorted(bound_levels)
    # A binary search: how many of the levels have a sum of at most the total?
    n_within_total = bisect_right(levels, total, key=sum_at)
    return levels[max(n_within_total - 1, 0)]  # rounding can put the total below all sums


class _Share(NamedTuple):
    """A part of the total: `level * weight`, or a bound if that is outside of its bounds."""

    weight: float
    bounds: Bounds

    @property
    def floor_level(self) -> float:
        """The level up to which the amount is its floor."""
        return self.bounds.floor / self.weight

    @property
    def cap_level(self) -> float:
        """The level from which on the amount is its cap."""
        return self.bounds.cap / self.weight

    def amount(self, level: float) -> float:
        """Return the amount at a level."""
        return min(max(level * self.weight, self.bounds.floor), self.bounds.cap)

    def grows_at(self, level: float) -> bool:
        """Return whether the amount grows if the level is raised."""
        return self.floor_level <= level < self.cap_level
