"""Divide a total in proportion to weights, where each amount has a smallest and a largest value.

Each amount is `factor * weight`, or its bound if that is outside of its bounds; the *factor* is the
same for all. The task is to find the factor at which the amounts add up to the total. For a total
of 10:

    weight   bounds       factor 1   factor 2   factor 3
    1        0 to 100     1          2          3
    2        0 to 3       2          3 (cap)    3 (cap)
    1        4 to 100     4 (floor)  4 (floor)  4 (floor)
    sum                   7          9          10

The factor is 3, and the amounts are 3, 3 and 4.

The sum of the amounts grows with the factor, in straight lines between the factors at which an
amount reaches a bound:

    factor    0    1.5    4     100
    sum       4    8.5    11    203

The last of these factors whose sum does not exceed the total is 1.5. From there on, only the first
amount grows, so it gets what the others leave: 10 - 3 - 4 = 3.
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

    Each amount is a common factor times its weight, unless its floor is more or its cap is less.
    The factor is chosen such that the amounts add up to the total. For a total of 10, it is 3:

        weight    floor    cap    3 * weight    amount
        1         0        100    3             3
        2         0        3      6             3         its cap
        1         4        100    3             4         its floor

    Args:
        weights: Weight of each amount, greater than 0.
        bounds: Floor and cap of each amount.
        total: Sum of the amounts; between the sum of the floors and that of the caps.

    Returns:
        The amounts, in the order of the weights.
    """
    shares = [_Share(weight, bound) for weight, bound in zip(weights, bounds, strict=True)]
    factor = _last_change_within(total, shares)  # 1.5
    if any(share.grows_at(factor) for share in shares):
        factor = _factor_of_total(total, shares, factor)  # 3
    return [share.amount(factor) for share in shares]


def _last_change_within(total: float, shares: Sequence[_Share]) -> float:
    """Return the last factor at which an amount changes, and all add up to at most a total.

    If the factor grows from 0, each amount begins to grow at some factor, where it exceeds its
    floor, and stops at another, where it reaches its cap. For a total of 10, the result is 1.5:

        factor                0    1.5    4     100
        sum of the amounts    4    8.5    11    203

    Args:
        total: The total.
        shares: Gives each amount at a factor.
    """

    def sum_at(factor: float) -> float:
        """Return the sum of the amounts at a factor."""
        return plain_sum(share.amount(factor) for share in shares)

    changes = {share.floor_factor for share in shares}
    changes |= {share.cap_factor for share in shares}
    factors = sorted(changes)
    # The sums are ascending, so a binary search can count those that are at most the total.
    n_within_total = bisect_right(factors, total, key=sum_at)  # 2
    # Due to rounding, the total can be slightly below all sums. Then take the first factor.
    return factors[max(n_within_total - 1, 0)]


def _factor_of_total(total: float, shares: Sequence[_Share], factor: float) -> float:
    """Return the factor at which amounts add up to a total, if no other amount changes until then.

    For example, a total of 10 needs the factor 3: two amounts are fixed at 3 and 4, and the third
    one, of weight 1, gets the remaining 3.

    Args:
        total: The total.
        shares: Gives each amount at a factor.
        factor: A smaller factor, from which on the same amounts grow, at least one.
    """
    growing = [share for share in shares if share.grows_at(factor)]
    fixed = [share for share in shares if not share.grows_at(factor)]
    fixed_sum = plain_sum(share.amount(factor) for share in fixed)
    return (total - fixed_sum) / plain_sum(share.weight for share in growing)


class _Share(NamedTuple):
    """A part of the total: `factor * weight`, or a bound if that is outside of its bounds."""

    weight: float
    bounds: Bounds

    @property
    def floor_factor(self) -> float:
        """The factor up to which the amount is its floor."""
        return self.bounds.floor / self.weight

    @property
    def cap_factor(self) -> float:
        """The factor from which on the amount is its cap."""
        return self.bounds.cap / self.weight

    def amount(self, factor: float) -> float:
        """Return the amount at a factor."""
        return min(max(factor * self.weight, self.bounds.floor), self.bounds.cap)

    def grows_at(self, factor: float) -> bool:
        """Return whether the amount grows if the factor is raised."""
        return self.floor_factor <= factor < self.cap_factor
