"""Find the largest number that fulfils a condition, if all smaller ones fulfil it, too."""

from __future__ import annotations

from collections.abc import Callable


def largest_that_fits(maximum: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 0 to a maximum that fits, by a binary search.

    For example, the largest number whose square is at most 50:

        >>> largest_that_fits(100, lambda number: number * number <= 50)
        7

    Args:
        maximum: The largest number that is considered.
        fits: Returns whether a number fits. If a number does, every smaller one must, too; 0 is
            taken to fit, and is not tried.
    """
    low = 0  # the largest number that is known to fit
    high = maximum  # no larger number fits
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
