"""Histograms of numbers, whose bins begin and end at round numbers.

Usually all bins have the same width. If most numbers are much smaller than the greatest ones, as
lengths of documents are, the bins become wider from one to the next: 1, 2, 5, 10, 20, 50, ….

The first and the last bin also contain the values that are much smaller or greater than all others,
so that a few extreme values do not put everything else into one bin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.sampling.hashing import U64
from nanoset_core.sampling.ranks import order_keys, values_of_keys

MAX_BINS = 20
_EXTREME_SHARE = 0.005
"""Share of the values at either end that do not decide the width of the bins."""
_INTERVAL_BITS = 16
"""Numbers are counted in 65,536 intervals, to find out roughly where most of them are. An interval
has the floats that begin with the same 16 bits: the sign, the exponent and 4 bits of the fraction.
From 1 to 2, these are 16 intervals of equal width: [1, 1.0625), [1.0625, 1.125), …
"""
_REST_BITS = 64 - _INTERVAL_BITS
_SKEWED = 10
"""Bins become wider from one to the next if the greatest numbers are this many times the median."""
_STEPS = (Decimal(1), Decimal(2), Decimal(5), Decimal(10))
"""Widths of bins, times a power of ten."""


class WeighedValues(NamedTuple):
    """Some numbers, and the amounts that a histogram adds up for each bin."""

    values: NDArray[Any]
    """Numbers other than NaN, int64 or float64, shape (n_values,)."""
    amounts: Sequence[NDArray[np.int64]]
    """For each amount, such as documents and tokens: that of each number, shape (n_values,)."""


Chunks = Callable[[], Iterable[WeighedValues]]
"""Returns all numbers of a histogram in chunks. It is called twice."""


@dataclass(frozen=True, slots=True)
class Bin:
    """A bin of a histogram: the values from `start` on that are smaller than `stop`."""

    label: str
    """The values in words, such as `0.5 to 1`."""
    start: float | None
    """None in the first bin if it also contains much smaller values."""
    stop: float | None
    """None in the last bin if it also contains much greater values."""
    amounts: tuple[int, ...]
    """Sums of the amounts of the values in the bin."""


def histogram(chunks: Chunks) -> list[Bin]:
    """Return a histogram of some numbers.

    Args:
        chunks: Returns the numbers in chunks; called twice.

    Returns:
        The bins, ascending, at most MAX_BINS + 2; empty if there are no numbers.
    """
    # Read the numbers once to choose round edges between bins, and again to add up the amounts.
    spread = _spread_of(chunks())
    if spread is None:
        return []
    if spread.minimum == spread.maximum:
        return [_only_bin(spread, sum_by_bin(chunks(), edges=[])[0])]
    edges = _round_edges(spread)
    sums = sum_by_bin(chunks(), [float(edge) for edge in edges])  # (n_edges + 1, n_amounts)
    return _bins_of(edges, sums, spread)


def _only_bin(spread: _Spread, sums: NDArray[np.int64]) -> Bin:
    """Return the bin of numbers that are all equal.

    Args:
        spread: The range of the numbers: a single one.
        sums: The amounts of all numbers, shape (n_amounts,).
    """
    value = float(spread.minimum)
    exact_value = Decimal(spread.minimum) if spread.is_whole else value
    return Bin(_number_text(exact_value), value, value, tuple(sums.tolist()))


def sum_by_bin(chunks: Iterable[WeighedValues], edges: Sequence[float]) -> NDArray[np.int64]:
    """Add up what belongs to the numbers of each bin, such as documents and tokens.

    For example, the edges 10 and 20 make three bins: below 10, from 10 to 20, and 20 or more. If
    the numbers 5, 7 and 20 have 1, 1 and 4 documents, the sums are 2, 0 and 4 documents.

    Args:
        chunks: The numbers with their amounts, at least one chunk.
        edges: The numbers at which a bin ends and the next one starts, ascending.

    Returns:
        int64, shape (n_edges + 1, n_amounts).
    """
    n_bins = len(edges) + 1
    total: NDArray[np.int64] | None = None  # (n_bins, n_amounts) sums of the chunks so far
    for chunk in chunks:
        # (n_values,) a number that is equal to an edge belongs to the bin that starts there
        bins = np.searchsorted(np.asarray(edges, np.float64), chunk.values, side="right")
        sums = [np.bincount(bins, amounts, n_bins) for amounts in chunk.amounts]
        # bincount adds up floats, which are exact up to 2**53.
        sums_of_chunk = np.stack(sums, axis=1).astype(np.int64)
        total = sums_of_chunk if total is None else total + sums_of_chunk
    assert total is not None  # there is at least one chunk
    return total


@dataclass(frozen=True, slots=True)
class _Spread:
    """The range of some numbers."""

    minimum: Any
    maximum: Any
    low: float
    """Finite; smaller than almost all of the numbers, or the smallest of them."""
    high: float
    """Finite; greater than almost all of the numbers, or the greatest of them."""
    median: float
    """About the median: not more than 7 % greater."""
    is_whole: bool
    """Whether the numbers are integers."""


def _spread_of(chunks: Iterable[WeighedValues]) -> _Spread | None:
    """Return the range of some numbers, and about that of the middle 99 %; None if there are none.

    The numbers are not sorted. They are counted in intervals, so that one pass is enough.
    """
    counts = np.zeros(1 << _INTERVAL_BITS, np.int64)  # finite numbers in each interval
    minima = []
    maxima = []
    is_whole = True
    for chunk in chunks:
        if len(chunk.values) > 0:
            is_whole &= chunk.values.dtype == np.int64
            minima.append(chunk.values.min().item())
            maxima.append(chunk.values.max().item())
            counts += _count_by_interval(chunk.values)
    if not minima:
        return None

    minimum = min(minima)
    maximum = max(maxima)
    if not counts.any():  # all numbers are infinite
        return _Spread(minimum, maximum, low=0.0, high=0.0, median=0.0, is_whole=is_whole)
    middle = _middle_of(counts)
    return _Spread(
        minimum,
        maximum,
        low=max(middle.low, minimum),
        high=min(middle.high, maximum),
        median=middle.median,
        is_whole=is_whole,
    )


class _Middle(NamedTuple):
    """About where the middle 99 % of some numbers are."""

    low: float
    median: float
    high: float


def _middle_of(counts: NDArray[np.int64]) -> _Middle:
    """Return about where the middle 99 % of some numbers are, by their counts in intervals.

    Args:
        counts: Numbers in each interval, shape (n_intervals,); not all are 0.
    """
    # If all numbers were sorted, half a percent at either end would be left out.
    n_numbers = int(counts.sum())
    n_extreme = int(_EXTREME_SHARE * n_numbers)
    low_interval = _interval_of_rank(n_extreme, counts)
    median_interval = _interval_of_rank(n_numbers // 2, counts)
    high_interval = _interval_of_rank(n_numbers - n_extreme - 1, counts)

    # An interval ends where the next one starts.
    return _Middle(
        low=_interval_start(low_interval),
        median=_interval_start(median_interval + 1),
        high=_interval_start(high_interval + 1),
    )


def _count_by_interval(values: NDArray[Any]) -> NDArray[np.int64]:
    """Count the finite numbers in each of the intervals that `_INTERVAL_BITS` describes.

    Args:
        values: int64 or float64, shape (n_values,).

    Returns:
        Shape (2**_INTERVAL_BITS,), of ascending intervals.
    """
    floats = values.astype(np.float64)
    # Keys are integers that sort like the numbers; their first bits number the interval.
    keys = order_keys(floats[np.isfinite(floats)])
    intervals = (keys >> U64(_REST_BITS)).astype(np.int64)
    counts: NDArray[np.int64] = np.bincount(intervals, minlength=1 << _INTERVAL_BITS)
    return counts


def _interval_of_rank(rank: int, counts: NDArray[np.int64]) -> int:
    """Return the interval of one of the numbers, if they were sorted.

    For example, three intervals have 2, 0 and 5 numbers. The ranks 0 and 1 are in interval 0, and
    the ranks 2 to 6 in interval 2.

    Args:
        rank: Rank of the number, 0 for the smallest.
        counts: Numbers in each interval, shape (n_intervals,).
    """
    return int(np.searchsorted(np.cumsum(counts), rank, side="right"))


def _interval_start(interval: int) -> float:
    """Return the smallest number of an interval, or the largest finite one if it is infinity.

    All floats with the same first 16 bits are one interval, such as [1, 1.0625), whose smallest
    number has only zeros after these bits.

    Args:
        interval: Number of an interval with finite numbers, or of the next one after these.
    """
    key = np.array([interval << _REST_BITS], np.uint64)
    start = float(values_of_keys(key, np.float64)[0])
    # The interval after the largest finite numbers starts with infinity.
    return min(start, float(np.finfo(np.float64).max))


def _round_edges(spread: _Spread) -> list[Decimal]:
    """Return the edges between the bins of a histogram: round numbers, ascending.

    They cover the range from `spread.low` to `spread.high`, which most numbers are in. For 3.2 to
    10, they are 3, 3.5, 4, …, 10 and 10.5. There are at most MAX_BINS + 1.
    """
    # Most numbers are much smaller than the greatest ones.
    if spread.minimum >= 0 and spread.high > _SKEWED * spread.median:
        return _growing_edges(spread)

    # Multiples of a round step such as 0.5, from the last one that is not above the low end (6 *
    # 0.5) to the first one that is above the high end (21 * 0.5).
    low = Decimal(spread.low)
    high = Decimal(spread.high)
    step = _round_step(high - low, is_whole=spread.is_whole)
    first = (low / step).to_integral_value("ROUND_FLOOR")
    last = (high / step).to_integral_value("ROUND_FLOOR") + 1
    return [step * number for number in range(int(first), int(last) + 1)]


def _growing_edges(spread: _Spread) -> list[Decimal]:
    """Return ascending edges for numbers of which most are much smaller than the greatest ones.

    For numbers from 3 to 4,000, these are 2, 5, 10, 20, 50, 100, …, 2,000, 5,000 and 10,000.

    Args:
        spread: The range of the numbers, which are not negative.
    """
    # From the high end down, so that the lowest edges are left out if there are too many.
    descending: list[Decimal] = []
    power = Decimal(10) ** Decimal(spread.high).adjusted()
    for edge in _descending_round_numbers(power):
        is_fraction = spread.is_whole and edge < 1
        if is_fraction or len(descending) == MAX_BINS:
            break
        descending.append(edge)
        if edge <= Decimal(spread.low):  # all numbers are covered
            break
    return descending[::-1]


def _descending_round_numbers(power: Decimal) -> Iterator[Decimal]:
    """Yield ever smaller round numbers, from ten times a power of ten on: 100, 50, 20, 10, 5, …"""
    while True:
        for factor in (10, 5, 2):
            yield factor * power
        power /= 10


def _round_step(width: Decimal, *, is_whole: bool) -> Decimal:
    """Return the smallest round number that divides a range into at most MAX_BINS - 1 steps.

    For example, for a range of 7, the step must be at least 7 / 18 = 0.39. Of the round numbers
    0.1, 0.2, 0.5, 1, 2, …, it is 0.5.

    Args:
        width: Width of the range.
        is_whole: Whether the step must be an integer.
    """
    # Two bins less than there may be: the first one can begin below the range, and the last one can
    # end above it.
    least = width / (MAX_BINS - 2)
    if is_whole:
        least = max(least, Decimal(1))
    if least == 0:
        return Decimal(1)

    # The greatest power of ten that is not above `least`: 0.1 for 0.39.
    power = Decimal(10) ** least.adjusted()
    candidates = [factor * power for factor in _STEPS]  # 1, 2, 5 and 10 times the power
    return next(step for step in candidates if step >= least)


def _bins_of(edges: Sequence[Decimal], sums: NDArray[np.int64], spread: _Spread) -> list[Bin]:
    """Return the bins of a histogram, without empty ones at either end.

    For the edges 10 and 20, the bins are below 10, from 10 to 20, and 20 or more.

    Args:
        edges: The numbers between the bins, ascending.
        sums: Amounts of each bin, shape (n_edges + 1, n_amounts).
        spread: The range of the numbers.
    """
    filled = np.flatnonzero(sums.any(axis=1))  # indices of the bins with amounts
    if not len(filled):
        return []
    starts = [None, *edges]
    stops = [*edges, None]
    bins = []
    for index in range(int(filled[0]), int(filled[-1]) + 1):
        start = starts[index]
        stop = stops[index]
        bins.append(
            Bin(
                label=_bin_label(start, stop, is_whole=spread.is_whole),
                start=None if start is None else float(start),
                stop=None if stop is None else float(stop),
                amounts=tuple(sums[index].tolist()),
            )
        )
    return bins


def _bin_label(start: Decimal | None, stop: Decimal | None, *, is_whole: bool) -> str:
    """Return the values of a bin in words.

    For example, 10 and 20 are "10 to 20"; for integers, "10 to 19". Without a start, the bin is
    "below 20".

    Args:
        start: Its start, or None if it contains all smaller values.
        stop: Its end, which is not part of it, or None if it contains all greater values.
        is_whole: Whether values are integers.
    """
    if start is None:
        return f"below {_number_text(stop)}"
    if stop is None:
        return f"{_number_text(start)} or more"
    if is_whole and stop - start == 1:
        return _number_text(start)
    if is_whole:
        return f"{_number_text(start)} to {_number_text(stop - 1)}"
    return f"{_number_text(start)} to {_number_text(stop)}"


def _number_text(number: Any) -> str:
    """Return a number without zeros at its end: with separators, or very large ones as 1e+20."""
    if isinstance(number, Decimal) and abs(number) < 10**15 and number.adjusted() > -6:
        text = f"{number.normalize():,f}"
        return "0" if text == "-0" else text
    return f"{float(number):.6g}"
