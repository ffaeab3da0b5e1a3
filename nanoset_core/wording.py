"""Write numbers and lists for people: in the terminal, in messages and in the UI."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
"""Units of bytes, each 1,000 times the one before."""


def format_bytes(size: float) -> str:
    """Write a number of bytes for people, with three digits and a unit.

        999          999 B
        1,234,567    1.23 MB
        12,345,678   12.3 MB
        99,950       100 kB     (not 99.95 kB, which would be four digits)

    Args:
        size: The number of bytes, not negative.
    """
    unit = 0
    while size >= 999.5 and unit < len(_UNITS) - 1:  # 999.5 would be rounded to 1,000
        size /= 1000
        unit += 1

    n_decimals = 0 if unit == 0 else _decimals_for_three_digits(size)
    return f"{size:,.{n_decimals}f} {_UNITS[unit]}"


def _decimals_for_three_digits(number: float) -> int:
    """Return with how many decimals a number has three digits: 1.23, 12.3 or 123.

    Args:
        number: The number, at least 0.9995. If it has more than three digits before the point, it
            gets no decimals.
    """
    if number >= 99.95:
        return 0
    if number >= 9.995:
        return 1
    return 2


def format_age(seconds: float) -> str:
    """Return a time span in its two greatest units, for messages such as "built 3 d 4 h ago".

        45        45 s
        3,700     1 h 1 min
        273,600   3 d 4 h

    Args:
        seconds: Length of the time span. Fractions are dropped, and negative numbers count as 0.
    """
    seconds = max(int(seconds), 0)
    minutes = seconds // 60
    hours = minutes // 60
    days = hours // 24
    if days >= 30:
        return f"{days:,} d"
    if days > 0:
        return f"{days} d {hours % 24} h"
    if hours > 0:
        return f"{hours} h {minutes % 60} min"
    if minutes > 0:
        return f"{minutes} min"
    return f"{seconds} s"


def format_count(count: int, noun: str) -> str:
    """Return a count and its noun, which gets an s in the plural: 1 file, 12,345 files.

    Args:
        count: The count.
        noun: The noun in the singular. Its plural must be formed by an s.
    """
    plural = "" if count == 1 else "s"
    return f"{count:,} {noun}{plural}"


def format_number(value: float) -> str:
    """Return a number with separators, and without a fraction if it is whole: 1e6 is 1,000,000.

    Args:
        value: A finite number.
    """
    if isinstance(value, int) or value.is_integer():
        return f"{int(value):,}"
    return f"{value:,}"


def format_cell(value: object) -> str | None:
    """Write a value of a table for people if it is a number; return None if it is none.

        1234567     "1,234,567"
        0.5         "0.5"
        True        None: in Python, a boolean is an integer, but not here
        "web"       None

    Args:
        value: A value of any type, also a number of NumPy's.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        return format_number(float(value))
    return None


def abbreviated(names: Sequence[str], n_shown: int = 3) -> str:
    """Return the first names of a list as text, and how many more it has: "a, b, c and 1,997 more".

    Args:
        names: The names, in the order in which they are shown.
        n_shown: How many are shown.
    """
    text = ", ".join(names[:n_shown])
    n_more = len(names) - n_shown
    if n_more > 0:
        text += f" and {n_more:,} more"
    return text


def alternatives_text(names: Sequence[str]) -> str:
    """Return names as alternatives, such as "gzip, zstd or bzip2".

    Args:
        names: At least two names.
    """
    return f"{', '.join(names[:-1])} or {names[-1]}"
