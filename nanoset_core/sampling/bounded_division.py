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

    For example, 10 is divided. Each amount is a common factor times its weight, or its floor if
    that is more, or its cap if that is less. Here the factor must be 3, since then the amounts add
    up to 10:

        weight    floor    cap    in proportion    3 * weight    result
        1         0        100    2.5              3             3
        2         0        3      5                6             3         the cap
        1         4        100    2.5              3             4         the floor

    To find the factor, let it grow from 0. At some factors, an amount reaches its cap and stops, or
    exceeds its floor and begins to grow. The last such factor before 3 is 1.5, where the second
    amount reaches its cap (2 * 1.5 = 3). From there on, only the first amount grows. The others
    have 3 and 4, so it gets the rest, 3.

    Args:
        weights: Weight of each amount, greater than 0.
        bounds: Floor and cap of each amount.
        total: Sum of the amounts; between the sum of the floors and that of the caps.

    Returns:
        The amounts, in the order of the weights.
    """
    shares = [_Share(weight, bound) for weight, bound in zip(weights, bounds, strict=True)]

    # Find the last factor at which an amount begins or stops to grow, and the sum is not too large.
    factor = _last_bound_factor(shares, total)  # 1.5

    # From there on, some amounts keep their floor or cap. The others divide what these leave, in
    # proportion to their weights, so the factor is what they get for a weight of 1.
    growing = [share for share in shares if share.grows_at(factor)]  # the first
    if growing:
        fixed = [share for share in shares if not share.grows_at(factor)]
        fixed_sum = plain_sum(share.amount(factor) for share in fixed)  # 3 + 4
        factor = (total - fixed_sum) / plain_sum(share.weight for share in growing)  # 3 / 1
    return [share.amount(factor) for share in shares]


def _last_bound_factor(shares: Sequence[_Share], total: float) -> float:
    """Find how far a common factor can grow, from bound to bound, before amounts exceed a total.

    Each amount is factor * weight, but at least a floor and at most a cap. For example, one with
    the weight 2 and the cap 3 grows up to the factor 1.5, and then stays 3. The factors at which an
    amount begins or stops to grow are floor / weight and cap / weight. They are its *bounds*. For a
    total of 10:

        weight    floor    cap    bounds          amount for the factor 0    1.5    4     100
        1         0        100    0 and 100                             0    1.5    4     100
        2         0        3      0 and 1.5                             0    3      3     3
        1         4        100    4 and 100                             4    4      4     100
        sum                                                             4    8.5    11    203

    The result is 1.5, the last bound at which the sum is at most 10. So the sum reaches 10 between
    1.5 and 4. As there is no bound between them, the same amounts grow all the time (here only the
    first), so that the caller can compute the factor directly.

    Args:
        shares: The weights with their floors and caps.
        total: The total.
    """

    def sum_at(factor: float) -> float:
        """Return the sum of the amounts for a factor: the last row."""
        return plain_sum(share.amount(factor) for share in shares)

    bounds = set()
    for share in shares:
        bounds.add(share.floor_factor)
        bounds.add(share.cap_factor)
    factors = sorted(bounds)  # [0, 1.5, 4, 100]

    # Count the sums that are at most the total. They are ascending, so a binary search is enough.
    n_within_total = bisect_right(factors, total, key=sum_at)  # 2
    # Due to rounding, the total can be slightly below all sums. Then take the first factor.
    return factors[max(n_within_total - 1, 0)]


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
