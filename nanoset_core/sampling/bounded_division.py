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
reaches a bound. So it is enough to find the last of these levels whose sum does not exceed the
total; from there on, the amounts that are between their bounds divide what the others leave.
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
    """Return amounts that add up to a total, in proportion to weights except at their bounds.

    Args:
        weights: Weight of each amount.
        bounds: Bounds of each amount.
        total: Sum of the amounts; between the sum of the floors and that of the caps.
    """

    def amounts_at(level: float) -> list[float]:
        """Return the amounts at a level: the module's docstring explains levels."""
        amounts = []
        for weight, bound in zip(weights, bounds, strict=True):
            amounts.append(min(max(level * weight, bound.floor), bound.cap))
        return amounts

    def sum_at(level: float) -> float:
        """Return the sum of the amounts at a level."""
        return plain_sum(amounts_at(level))

    # The levels at which an amount reaches a bound.
    bound_levels = set()
    for weight, bound in zip(weights, bounds, strict=True):
        bound_levels.add(bound.floor / weight)
        bound_levels.add(bound.cap / weight)

    # Find the last of them at which the sum does not exceed the total.
    levels = sorted(bound_levels)
    n_within_total = bisect_right(levels, total, key=sum_at)
    level = levels[max(n_within_total - 1, 0)]

    # From there on, only the amounts between their bounds grow: they divide what the others leave.
    growing_weights = []
    fixed_amounts = []
    for weight, bound, amount in zip(weights, bounds, amounts_at(level), strict=True):
        if bound.floor / weight <= level < bound.cap / weight:
            growing_weights.append(weight)
        else:
            fixed_amounts.append(amount)
    if growing_weights:
        level = (total - plain_sum(fixed_amounts)) / plain_sum(growing_weights)
    return amounts_at(level)
