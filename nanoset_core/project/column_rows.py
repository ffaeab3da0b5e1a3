"""Rows that show the statistics of columns, for the terminal and the UI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nanoset_core.project.column_statistics import ColumnStatistics, CorpusColumns
from nanoset_core.records.text import format_number

_BAR_CHARACTERS = 20
_VALUE_CHARACTERS = 60
"""Longer texts are cut off."""


class ColumnRow(NamedTuple):
    """A row of the table that lists the columns. Cells that do not apply are empty."""

    column: str
    type: str
    nulls: int
    distinct: str
    """Number of distinct values, such as `12` or `about 1,234,567`."""
    minimum: str
    low: str
    """The value that 5 % of the documents do not exceed."""
    median: str
    high: str
    """The value that 95 % of the documents do not exceed."""
    maximum: str


class ValueRow(NamedTuple):
    """A row of the table of one column: a value, or a bin of a histogram."""

    value: str
    documents: str
    """Number of documents, or a range of numbers if it is not exact."""
    tokens: int | None
    """None if it is not known."""
    bar: str
    """The documents as a bar."""


def column_rows(columns: Sequence[ColumnStatistics]) -> list[ColumnRow]:
    """Return a row for each column."""
    rows: list[ColumnRow] = []
    for column in columns:
        distinct = f"{column.distinct:,}"
        if not column.is_distinct_exact:
            distinct = f"about {column.distinct:,}"
        # Only numbers have a distribution: minimum, three quantiles, maximum.
        distribution = ["", "", "", "", ""]
        numbers = column.numbers
        if numbers is not None:
            distribution = [
                _number_text(numbers.minimum),
                _number_text(numbers.quantiles["0.05"]),
                _number_text(numbers.quantiles["0.5"]),
                _number_text(numbers.quantiles["0.95"]),
                _number_text(numbers.maximum),
            ]
        rows.append(ColumnRow(column.name, column.type, column.nulls, distinct, *distribution))
    return rows


def value_rows(statistics: CorpusColumns, column: ColumnStatistics) -> list[ValueRow]:
    """Return the histogram of a column of numbers, or the most frequent values of another one.

    Documents with other values, without a value, and with NaN follow.

    Args:
        statistics: All columns of the corpus.
        column: One of them.
    """
    if column.numbers is not None:
        return _histogram_rows(column)
    return _frequent_rows(statistics, column)


def _histogram_rows(column: ColumnStatistics) -> list[ValueRow]:
    """Return a row for each bin of the histogram of a column of numbers."""
    bins = [] if column.numbers is None else column.numbers.bins
    counts = [histogram_bin.amounts[0] for histogram_bin in bins]
    most = max([*counts, column.nulls, column.nans])
    rows: list[ValueRow] = []
    for histogram_bin in bins:
        documents, tokens = histogram_bin.amounts
        rows.append(ValueRow(histogram_bin.label, f"{documents:,}", tokens, _bar(documents, most)))
    if column.nulls:
        bar = _bar(column.nulls, most)
        rows.append(ValueRow("null", f"{column.nulls:,}", column.null_tokens, bar))
    if column.nans:
        rows.append(ValueRow("NaN", f"{column.nans:,}", None, _bar(column.nans, most)))
    return rows


def _frequent_rows(statistics: CorpusColumns, column: ColumnStatistics) -> list[ValueRow]:
    """Return a row for each of the most frequent values of a column of texts or booleans.

    All other values have one row together, and so have documents without a value.
    """
    n_documents = statistics.documents  # bars show shares of all documents
    values = column.values
    # If even the most frequent values occur only once, as ids do, none of them has its own row.
    all_occur_once = all(value.max_documents == 1 for value in values)
    if all_occur_once and column.distinct > len(values):
        values = ()

    rows: list[ValueRow] = []
    for value in values:
        documents = f"{value.documents:,}"
        if value.max_documents > value.documents:  # not counted exactly, to save memory
            documents = f"{value.documents:,} to {value.max_documents:,}"
        bar = _bar(value.documents, n_documents)
        rows.append(ValueRow(_value_text(value.value), documents, value.tokens, bar))

    # A row for all values that are not listed.
    n_other_values = column.distinct - len(values)
    if n_other_values > 0:
        n_shown = sum(value.documents for value in values)
        shown_tokens = sum(value.tokens for value in values)
        n_others = n_documents - column.nulls - n_shown
        other_tokens = statistics.tokens - column.null_tokens - shown_tokens
        label = f"{n_other_values:,} other values" if values else f"{n_other_values:,} values"
        if not column.is_distinct_exact:
            label = f"about {label}"
        rows.append(ValueRow(label, f"{n_others:,}", other_tokens, _bar(n_others, n_documents)))
    if column.nulls:
        bar = _bar(column.nulls, n_documents)
        rows.append(ValueRow("null", f"{column.nulls:,}", column.null_tokens, bar))
    return rows


def uncounted_text(column: ColumnStatistics) -> str:
    """Return which values may be missing among the most frequent ones; empty if none are."""
    if not column.uncounted:
        return ""
    return (
        f"{column.name} has too many distinct values to count all of them. "
        f"No value that is not listed is in more than {column.uncounted:,} documents"
    )


def _value_text(value: str) -> str:
    """Return a text as it is shown: quoted if it is empty, and cut off if it is long."""
    if value.strip() == "":
        return repr(value)
    if len(value) > _VALUE_CHARACTERS:
        return f"{value[: _VALUE_CHARACTERS - 1]}…"
    return value


def _number_text(number: float) -> str:
    """Return a number with separators, and at most six digits of a fraction."""
    if isinstance(number, int):
        return f"{number:,}"
    is_short = abs(number) < 1e15 and number == round(number, 4)
    return format_number(number) if is_short else f"{number:.6g}"


def _bar(count: int, most: int) -> str:
    """Return a bar for a number of documents: at least one character if it is not 0.

    Args:
        count: The documents.
        most: The documents of the longest bar.
    """
    if count == 0:
        return ""
    return "█" * max(1, round(count / most * _BAR_CHARACTERS))
