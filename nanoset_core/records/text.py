"""Numbers as people read them, in the terminal, in messages and in the UI."""

from __future__ import annotations

from numbers import Integral, Real

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def format_bytes(size: float) -> str:
    """Return bytes in decimal units, to three digits: 1,234,567 → 1.23 MB."""
    unit = 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size /= 1000
        unit += 1
    digits = 0 if unit == 0 or size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{size:,.{digits}f} {_UNITS[unit]}"


def format_age(seconds: float) -> str:
    """Return a time span in its two greatest units: 3 d 4 h."""
    seconds = max(int(seconds), 0)
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days} d {hours} h" if days < 30 else f"{days:,} d"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{seconds} s"


def format_count(count: int, noun: str) -> str:
    """Return a count and its noun: 1 file, 12,345 files."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def format_number(value: float) -> str:
    """Return a number with separators, a whole one without a fraction: 1e6 → 1,000,000."""
    return f"{int(value):,}" if isinstance(value, int) or value.is_integer() else f"{value:,}"


def format_cell(value: object) -> str | None:
    """Return a number of a table with separators, whatever its type (also NumPy's); None for
    anything else.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        return format_number(float(value))
    return None
