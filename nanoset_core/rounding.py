"""Round integers exactly, without floating-point numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_Integers = TypeVar("_Integers", int, "NDArray[np.int64]")
"""An integer, or an array of them."""


def ceil_division(dividend: _Integers, divisor: int) -> _Integers:
    """Return a quotient of integers, rounded up: 4 for 10 and 3.

    It answers, for example, how many files are needed for 10 samples if each holds 3.

    Args:
        dividend: An integer, or an array of signed integers.
        divisor: An integer, not 0.

    Returns:
        An integer, or an array of the same shape. It is exact, however large the numbers are;
        `math.ceil(a / b)` is not above 2**53.
    """
    # `//` rounds down, so the quotient of the negated dividend is the negated result.
    return -(-dividend // divisor)
