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
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.statistics.hashing import U64
from nanoset_core.statistics.ranks import order_keys, values_of_keys

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
    """Return a histogram: for ranges of numbers (bins), the sums of amounts that belong to them.

    For example, the numbers are lengths of documents. Two amounts belong to each length: 1, to
    count documents, and the length again, to count tokens. For documents of 50, 70 and 120 tokens,
    if bins were 100 wide (for these few numbers, they would be narrower):

        bin            documents    tokens
        0 to 99        1 + 1        50 + 70
        100 to 199     1            120

    Args:
        chunks: Function that returns the numbers and their amounts in chunks, so that they need not
            fit into memory. It is called twice.

    Returns:
        The bins, ascending, at most MAX_BINS + 2; empty if there are no numbers.
    """
    # Read the numbers a first time to find out between which values they are.
    spread = _spread_of(chunks())
    if spread is None:
        return []

    # Read them a second time to add up the amounts of each bin.
    if spread.minimum == spread.maximum:
        return [_only_bin(chunks(), spread)]
    edges = _round_edges(spread)  # [0, 100, 200]
    sums = sum_by_bin(chunks(), [float(edge) for edge in edges])  # (n_edges + 1, n_amounts)
    return _bins_of(edges, sums, spread)


def _only_bin(chunks: Iterable[WeighedValues], spread: _Spread) -> Bin:
    """Return the only bin of a histogram of numbers that are all equal, such as "7".

    Args:
        chunks: The numbers, and what belongs to them, such as documents and tokens.
        spread: The range of the numbers, from 7 to 7.
    """
    value = float(spread.minimum)
    exact_value = Decimal(spread.minimum) if spread.is_whole else value
    sums = sum_by_bin(chunks, edges=[])[0]  # (n_amounts,) of the only bin, as there are no edges
    return Bin(_number_text(exact_value), value, value, tuple(sums.tolist()))


def sum_by_bin(chunks: Iterable[WeighedValues], edges: Sequence[float]) -> NDArray[np.int64]:
    """Count, for each bin of a histogram, the documents or tokens whose numbers are in the bin.

    For example, one document has 5 tokens, one has 7, and four have 20. The edges 10 and 20 make
    three bins:

        bin          below 10    10 to 20    from 20 on
        documents    2           0           4             the result

    Args:
        chunks: At least one chunk of numbers (5, 7, 20), with the amounts that are added up (1, 1,
            4). There may be several kinds of amounts, such as documents and tokens.
        edges: The numbers at which a bin ends and the next one starts, ascending.

    Returns:
        int64, shape (n_edges + 1, n_amounts).
    """
    edge_array = np.asarray(edges, np.float64)
    sums_of_chunks = (_sum_chunk_by_bin(chunk, edge_array) for chunk in chunks)
    return reduce(np.add, sums_of_chunks)


def _sum_chunk_by_bin(chunk: WeighedValues, edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """Count the documents or tokens in each bin of a histogram, for a part of all numbers.

    `sum_by_bin` adds up these counts for all parts.

    Args:
        chunk: The numbers, with an array for each kind of amount, such as the documents and the
            tokens that have each number.
        edges: The numbers at which a bin ends and the next one starts, ascending. A number that
            equals an edge is in the bin after it.

    Returns:
        Shape (n_edges + 1, n_amounts).
    """
    n_bins = len(edges) + 1
    bins = np.searchsorted(edges, chunk.values, side="right")  # (n_values,) the bin of each number
    sums = [np.bincount(bins, amounts, n_bins) for amounts in chunk.amounts]
    # bincount adds up floats, which are exact for whole numbers up to 2**53. So the counts are
    # converted to integers before those of other chunks are added.
    return np.stack(sums, axis=1).astype(np.int64)


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
    """Find the smallest and the greatest of some numbers, and between which most of them are.

    A histogram should not be stretched by a few extreme numbers. So half a percent at either end is
    ignored. For example, the lengths of documents are from 1 to 2,000,000, but 99 % of them from 20
    to 9,000: `low` is about 20, and `high` about 9,000.

    The numbers are not sorted, since there may be billions of them. They are counted in 65,536
    intervals, so one pass is enough.

    Args:
        chunks: The numbers.

    Returns:
        None if there are no numbers.
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
    """Find about where the middle 99 % of some numbers are, and about their median.

    Numbers were counted by small intervals, such as 4 to 4.25. So the results are borders of
    intervals. For example, of 1,000 numbers, the 5 smallest and the 5 greatest are left out.

    Args:
        counts: How many numbers are in each interval, shape (n_intervals,); not all are 0.
    """
    n_numbers = int(counts.sum())  # 1,000
    n_left_out = int(_EXTREME_SHARE * n_numbers)  # 5 at either end: half a percent
    first_interval = _interval_of_rank(n_left_out, counts)  # it has the sixth number
    median_interval = _interval_of_rank(n_numbers // 2, counts)
    last_interval = _interval_of_rank(n_numbers - n_left_out - 1, counts)
    return _Middle(
        low=_interval_start(first_interval),
        median=_interval_end(median_interval),
        high=_interval_end(last_interval),
    )


def _count_by_interval(values: NDArray[Any]) -> NDArray[np.int64]:
    """Count how many numbers are in each of 65,536 small intervals.

    Intervals of small numbers are narrow, and those of great ones are wide: 1 to 1.0625 is one, and
    1,024 to 1,088. Each float has a *key*, an integer of 64 bits, such that greater floats have
    greater keys. The number of its interval is the first 16 bits of the key.

    Args:
        values: int64 or float64, shape (n_values,). Infinite ones are not counted.

    Returns:
        A count for each interval, from the lowest numbers to the highest; shape (65536,).
    """
    floats = values.astype(np.float64)
    keys = order_keys(floats[np.isfinite(floats)])  # (n_finite,)
    intervals = (keys >> U64(_REST_BITS)).astype(np.int64)  # their first 16 bits
    counts: NDArray[np.int64] = np.bincount(intervals, minlength=1 << _INTERVAL_BITS)
    return counts


def _interval_of_rank(rank: int, counts: NDArray[np.int64]) -> int:
    """Return in which interval the n-th smallest of some numbers is.

    For example, 7 numbers are counted in three intervals:

        interval                     0       1       2
        numbers                      2       0       5
        up to its end                2       2       7
        ranks of its numbers         0, 1            2 to 6

    Args:
        rank: How many numbers are smaller: 0 for the smallest one.
        counts: Numbers in each interval, shape (n_intervals,).
    """
    counts_up_to_end = np.cumsum(counts)  # [2, 2, 7]
    # The first interval up to whose end there are more than `rank` numbers.
    return int(np.searchsorted(counts_up_to_end, rank, side="right"))


def _interval_start(interval: int) -> float:
    """Return the smallest number of an interval, such as 1.0 for the floats from 1 to 1.0625.

    Each float has a *key*, an integer of 64 bits, such that greater floats have greater keys. The
    number of an interval is the first 16 bits of all keys in it. In hexadecimal digits:

        interval    keys                          floats
        bff0        bff0000000000000              1.0
                    to bff0ffffffffffff           to 1.0624999...

    Args:
        interval: Number of the interval, from 0: 0xbff0.
    """
    smallest_key = interval << _REST_BITS  # append 48 zero bits
    floats = values_of_keys(np.array([smallest_key], np.uint64), np.float64)
    return float(floats[0])


def _interval_end(interval: int) -> float:
    """Return the number at which an interval ends, such as 1.0625 for the floats from 1 to 1.0625.

    The next interval starts there. After the interval of the greatest floats, only infinity
    follows. Callers cannot compute with it, so the result is the greatest float then.

    Args:
        interval: Number of the interval, from 0.
    """
    greatest_float = float(np.finfo(np.float64).max)
    return min(_interval_start(interval + 1), greatest_float)


def _round_edges(spread: _Spread) -> list[Decimal]:
    """Choose round numbers as the edges between the bins of a histogram.

    For most numbers, all bins get the same width. For numbers from 3.2 to 10.2, the width is 0.5:

        3    3.5    4    4.5    ...    10    10.5

    If most of the numbers are much smaller than the greatest ones, the bins become wider:

        2    5    10    20    50    100    ...

    Args:
        spread: The range of the numbers; `low` and `high` are 3.2 and 10.2 in the example.

    Returns:
        The edges, ascending, at most MAX_BINS + 1.
    """
    is_skewed = spread.high > _SKEWED * spread.median  # 10 times the median
    if is_skewed and spread.minimum >= 0:
        return _growing_edges(spread)

    low = Decimal(spread.low)
    high = Decimal(spread.high)
    step = _round_step(high - low, is_whole=spread.is_whole)  # 0.5
    first = _steps_below(low, step)  # 6 steps of 0.5 are 3
    last = _steps_below(high, step) + 1  # 21 steps of 0.5 are 10.5
    return [step * number for number in range(first, last + 1)]


def _steps_below(value: Decimal, step: Decimal) -> int:
    """Return how many steps lead from 0 up to a value: 6 steps of 0.5 for 3.2, -7 for -3.2."""
    return int((value / step).to_integral_value("ROUND_FLOOR"))


def _growing_edges(spread: _Spread) -> list[Decimal]:
    """Choose edges of bins that become wider, for numbers most of which are small.

    For numbers from 3 to 4,000, these are

        2    5    10    20    50    100    200    500    1,000    2,000    5,000    10,000

    Args:
        spread: The range of the numbers, which are not negative: `low` is 3 and `high` 4,000.
    """
    power = _power_of_ten_below(Decimal(spread.high))  # 1,000

    # Go down, so that the lowest edges are left out if there are too many.
    descending: list[Decimal] = []
    for edge in _descending_round_numbers(power):  # 10,000, 5,000, 2,000, 1,000, ...
        separates_no_integers = spread.is_whole and edge < 1
        if separates_no_integers or len(descending) == MAX_BINS:
            break
        descending.append(edge)
        has_numbers_below = edge > Decimal(spread.low)
        if not has_numbers_below:
            break
    return descending[::-1]


def _descending_round_numbers(power: Decimal) -> Iterator[Decimal]:
    """Yield ever smaller round numbers: for the power 10, these are 100, 50, 20, 10, 5, 2, ..."""
    while True:
        for factor in (10, 5, 2):
            yield factor * power
        power /= 10


def _round_step(width: Decimal, *, is_whole: bool) -> Decimal:
    """Choose a round number as the width of a histogram's bins, so that there are not too many.

    Round numbers are 0.1, 0.2, 0.5, 1, 2, 5, 10, ... For example, numbers from 3 to 10 have a range
    of 7. With at most 18 steps, a step is at least 7 / 18 = 0.39, so the result is 0.5.

    Args:
        width: Width of the range: 7.
        is_whole: Whether the numbers are integers. Then the result is an integer, too.
    """
    # Two of the MAX_BINS (20) bins may be needed below and above the range, since bins start at
    # multiples of their width.
    min_step = width / (MAX_BINS - 2)
    if is_whole:
        min_step = max(min_step, Decimal(1))
    if min_step == 0:
        return Decimal(1)
    power = _power_of_ten_below(min_step)
    candidates = [factor * power for factor in _STEPS]  # [0.1, 0.2, 0.5, 1]
    return next(step for step in candidates if step >= min_step)


def _power_of_ten_below(value: Decimal) -> Decimal:
    """Return the greatest power of ten that is not above a positive value: 0.1 for 0.39."""
    return Decimal(10) ** value.adjusted()


def _bins_of(edges: Sequence[Decimal], sums: NDArray[np.int64], spread: _Spread) -> list[Bin]:
    """Return the bins of a histogram, each with its label and what it contains.

    The edges 10 and 20 make three bins. Empty ones at either end are left out:

        bin            start    stop    contains
        below 10       None     10      7
        10 to 20       10       20      12
        20 or more     20       None    0            left out

    Args:
        edges: The numbers between the bins, ascending.
        sums: What each bin contains, such as documents and tokens; shape (n_edges + 1, n_amounts).
        spread: The range of the numbers.
    """
    starts = [None, *edges]
    stops = [*edges, None]
    bins = []
    for index in _filled_range(sums):
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


def _filled_range(sums: NDArray[np.int64]) -> range:
    """Return the range from the first to the last bin that is not empty.

    Args:
        sums: What each bin contains, shape (n_bins, n_amounts).
    """
    filled = np.flatnonzero(sums.any(axis=1))
    if not len(filled):
        return range(0)
    return range(int(filled[0]), int(filled[-1]) + 1)


def _bin_label(start: Decimal | None, stop: Decimal | None, *, is_whole: bool) -> str:
    """Describe in words which numbers a bin of a histogram contains.

        start    stop    label
        10       20      "10 to 20", or "10 to 19" for integers
        10       11      "10 to 11", or "10" for integers
        None     20      "below 20"
        20       None    "20 or more"

    Args:
        start: The smallest number of the bin; None if it contains all smaller ones.
        stop: The numbers are smaller than this one; None if it contains all greater ones.
        is_whole: Whether the numbers are integers.
    """
    if start is None:
        return f"below {_number_text(stop)}"
    if stop is None:
        return f"{_number_text(start)} or more"
    if not is_whole:
        return f"{_number_text(start)} to {_number_text(stop)}"
    if stop - start == 1:
        return _number_text(start)
    return f"{_number_text(start)} to {_number_text(stop - 1)}"


def _number_text(number: Any) -> str:
    """Write a number for a label: 12,500, or 0.5 without more zeros, or 1e+20 if it is large."""
    if isinstance(number, Decimal) and abs(number) < 10**15 and number.adjusted() > -6:
        text = f"{number.normalize():,f}"
        return "0" if text == "-0" else text
    return f"{float(number):.6g}"
