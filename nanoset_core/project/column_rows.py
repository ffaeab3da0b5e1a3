"""Rows that show the statistics of columns, for the terminal and the UI.

A table of all columns has a row for each column. The table of one column has a row for each bin of
its histogram, or for each frequent value: for example, the value "en" with 1,200 documents, their
tokens, and a bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nanoset_core.project.column_statistics import ColumnStatistics, CorpusColumns, NumberStatistics
from nanoset_core.records.text import format_number
from nanoset_core.sampling.frequent import FrequentValue
from nanoset_core.sampling.histogram import Bin

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
    """Return the rows of the table that lists the columns of a corpus.

    Args:
        columns: The statistics of each column.
    """
    rows: list[ColumnRow] = []
    for column in columns:
        distinct = f"{column.distinct:,}"
        if not column.is_distinct_exact:
            distinct = f"about {column.distinct:,}"
        minimum, low, median, high, maximum = _distribution_cells(column.numbers)
        row = ColumnRow(
            column=column.name,
            type=column.type,
            nulls=column.nulls,
            distinct=distinct,
            minimum=minimum,
            low=low,
            median=median,
            high=high,
            maximum=maximum,
        )
        rows.append(row)
    return rows


def _distribution_cells(numbers: NumberStatistics | None) -> list[str]:
    """Return the cells that show how numbers are distributed.

    Args:
        numbers: Their statistics; None for a column of texts, whose cells are empty.

    Returns:
        Minimum, three quantiles (5 %, the median and 95 %) and maximum, such as
        ["1", "12", "340", "2,100", "81,000"].
    """
    if numbers is None:
        return ["", "", "", "", ""]
    return [
        _number_text(numbers.minimum),
        _number_text(numbers.quantiles["0.05"]),
        _number_text(numbers.quantiles["0.5"]),
        _number_text(numbers.quantiles["0.95"]),
        _number_text(numbers.maximum),
    ]


def value_rows(statistics: CorpusColumns, column: ColumnStatistics) -> list[ValueRow]:
    """Return the rows of the table of one column.

    Args:
        statistics: All columns of the corpus.
        column: One of them.

    Returns:
        The histogram of a column of numbers, or the most frequent values of another one. Documents
        with other values, without a value, and with NaN follow.
    """
    if column.numbers is not None:
        return _histogram_rows(column, column.numbers.bins)
    return _frequent_rows(statistics, column)


def _histogram_rows(column: ColumnStatistics, bins: Sequence[Bin]) -> list[ValueRow]:
    """Return a row for each bin of the histogram of a column of numbers, and for null and NaN.

    Args:
        column: The statistics of the column.
        bins: The bins, such as "0.5 to 1", in ascending order.
    """
    # Each row has a bar, as long as its share of the documents of the largest row.
    document_counts = [column.nulls, column.nans]
    for histogram_bin in bins:
        documents, _ = histogram_bin.amounts
        document_counts.append(documents)
    longest = max(document_counts)

    rows: list[ValueRow] = []
    for histogram_bin in bins:
        documents, tokens = histogram_bin.amounts
        rows.append(_value_row(histogram_bin.label, documents, tokens, longest))
    if column.nulls:
        rows.append(_value_row("null", column.nulls, column.null_tokens, longest))
    if column.nans:
        # The tokens of documents with NaN are not counted.
        rows.append(_value_row("NaN", column.nans, None, longest))
    return rows


def _frequent_rows(statistics: CorpusColumns, column: ColumnStatistics) -> list[ValueRow]:
    """Return a row for each of the most frequent values of a column of texts or booleans.

    Args:
        statistics: All columns of the corpus, with the number of its documents.
        column: The statistics of the column.

    Returns:
        The values, most frequent first; then one row for all other values, and one for null.
    """
    # Bars show shares of the corpus: a value of all documents would have a full bar.
    full_bar = statistics.documents
    listed = _listed_values(column)
    rows = [_frequent_row(value, full_bar) for value in listed]
    if column.distinct > len(listed):
        rows.append(_other_values_row(statistics, column, listed))
    if column.nulls:
        rows.append(_value_row("null", column.nulls, column.null_tokens, full_bar))
    return rows


def _listed_values(column: ColumnStatistics) -> Sequence[FrequentValue]:
    """Return the values of a column that are worth a row each, most frequent first.

    Args:
        column: The statistics of the column. If even its most frequent values occur only once, as
            ids do, none is worth a row, unless these are all values.
    """
    all_occur_once = all(value.max_documents == 1 for value in column.values)
    if all_occur_once and column.distinct > len(column.values):
        return ()
    return column.values


def _frequent_row(value: FrequentValue, longest: int) -> ValueRow:
    """Return the row of one value, such as "en" with "1,200" documents.

    Args:
        value: The value. If it was not counted exactly, to save memory, the row has a range such as
            "1,150 to 1,200".
        longest: The documents of the longest bar.
    """
    documents = f"{value.documents:,}"
    if value.max_documents > value.documents:
        documents = f"{value.documents:,} to {value.max_documents:,}"
    return ValueRow(
        _value_text(value.value), documents, value.tokens, _bar(value.documents, longest)
    )


def _other_values_row(
    statistics: CorpusColumns, column: ColumnStatistics, listed: Sequence[FrequentValue]
) -> ValueRow:
    """Return the row for all values of a column that are not listed: such as "12 other values".

    Args:
        statistics: All columns of the corpus, with the number of its documents.
        column: The statistics of the column.
        listed: The values that have a row of their own.
    """
    n_values = column.distinct - len(listed)
    label = f"{n_values:,} other values" if listed else f"{n_values:,} values"
    if not column.is_distinct_exact:
        label = f"about {label}"

    # Their documents are those of the corpus, without those that have null or a listed value.
    # This is exact, also if the number of values is an estimate.
    documents_elsewhere = column.nulls + sum(value.documents for value in listed)
    tokens_elsewhere = column.null_tokens + sum(value.tokens for value in listed)
    return _value_row(
        label,
        documents=statistics.documents - documents_elsewhere,
        tokens=statistics.tokens - tokens_elsewhere,
        longest=statistics.documents,
    )


def _value_row(label: str, documents: int, tokens: int | None, longest: int) -> ValueRow:
    """Return a row with a label and an exact number of documents, which is also shown as a bar.

    Args:
        label: What the documents have in common.
        documents: Their number.
        tokens: Their tokens; None if they are not known.
        longest: The documents of the longest bar.
    """
    return ValueRow(label, f"{documents:,}", tokens, _bar(documents, longest))


def uncounted_text(column: ColumnStatistics) -> str:
    """Return a sentence about values that may be missing among the most frequent ones.

    Args:
        column: The statistics of the column.

    Returns:
        The sentence; empty if all values were counted.
    """
    if not column.uncounted:
        return ""
    return (
        f"{column.name} has too many distinct values to count all of them. "
        f"No value that is not listed is in more than {column.uncounted:,} documents"
    )


def _value_text(value: str) -> str:
    """Return a text as it is shown: quoted if it is empty, and cut off if it is long.

    Args:
        value: The text, of any length.
    """
    if value.strip() == "":
        return repr(value)
    if len(value) > _VALUE_CHARACTERS:
        return f"{value[: _VALUE_CHARACTERS - 1]}…"
    return value


def _number_text(number: float) -> str:
    """Return a number with separators, and at most six digits of a fraction.

    Args:
        number: For example, 1234567 gives "1,234,567", and 0.123456789 gives "0.123457".
    """
    if isinstance(number, int):
        return f"{number:,}"
    is_short = abs(number) < 1e15 and number == round(number, 4)
    return format_number(number) if is_short else f"{number:.6g}"


def _bar(documents: int, longest: int) -> str:
    """Return a bar for a number of documents: at least one character if it is not 0.

    Args:
        documents: The number.
        longest: The documents of the longest bar, which has _BAR_CHARACTERS.
    """
    if documents == 0:
        return ""
    return "█" * max(1, round(documents / longest * _BAR_CHARACTERS))
