"""Rows that show the statistics of columns, for the terminal and the UI.

A table of all columns has a row for each column. The table of one column has a row for each bin of
its histogram, or for each frequent value: for example, the value "en" with 1,200 documents, their
tokens, and a bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nanoset_core.project.columns.statistics import (
    ColumnStatistics,
    CorpusColumns,
    NumberStatistics,
)
from nanoset_core.statistics.frequent import FrequentValue
from nanoset_core.statistics.histogram import Bin
from nanoset_core.untrusted import shortened
from nanoset_core.wording import format_number

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
    """Return the rows of the table that `nanoset columns web` prints. For example:

        column   type     nulls   distinct          min   5 %   median   95 %   max
        lang     string       5   12
        score    double       0   about 1,234,567   0     0.1   0.7      0.9    1

    Args:
        columns: The statistics of each column of the documents.
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
    """Return the cells that show how the numbers of a column are distributed.

    For example, of the lengths of documents:

        minimum   5 %   median   95 %     maximum
        1         12    340      2,100    81,000

    Args:
        numbers: Their statistics; None for a column of texts, whose cells are empty.
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
    """Return the rows of the table that `nanoset columns web lang` prints for one column.

    A column of numbers is shown as a histogram, and any other by its most frequent values:

        en                600    ████████████
        de                300    ██████
        12 other values   100    ██

    Args:
        statistics: All columns of a text collection.
        column: The column.
    """
    if column.numbers is not None:
        return _histogram_rows(column, column.numbers.bins)
    return _frequent_rows(statistics, column)


def _histogram_rows(column: ColumnStatistics, bins: Sequence[Bin]) -> list[ValueRow]:
    """Return the rows that show a column of numbers as a histogram. For example:

        value       documents    tokens
        0 to 0.5    300          9,000     ██████████
        0.5 to 1    600          20,000    ████████████████████
        null        30           700       █                       (documents without a value)
        NaN         30                     █                       (their tokens are not counted)

    Args:
        column: The statistics of the column.
        bins: The bins, in ascending order. The amounts of each are documents and tokens.
    """
    # The longest bar belongs to the row with the most documents.
    document_counts = [histogram_bin.amounts[0] for histogram_bin in bins]
    max_documents = max([*document_counts, column.nulls, column.nans])

    rows: list[ValueRow] = []
    for histogram_bin in bins:
        documents, tokens = histogram_bin.amounts
        rows.append(_value_row(histogram_bin.label, documents, tokens, max_documents))
    if column.nulls > 0:
        rows.append(_value_row("null", column.nulls, column.null_tokens, max_documents))
    if column.nans > 0:
        rows.append(_value_row("NaN", column.nans, None, max_documents))
    return rows


def _frequent_rows(statistics: CorpusColumns, column: ColumnStatistics) -> list[ValueRow]:
    """Return the rows that show the most frequent values of a column of texts. For example, `lang`:

        value             documents    tokens
        en                600          20,000    ████████████
        de                300          9,000     ██████
        12 other values   70           2,000     █
        null              30           700       █

    Args:
        statistics: The columns of a text collection, with the number of its documents, here 1,000.
        column: The statistics of this column.
    """
    n_documents = statistics.documents  # a bar of full length stands for all documents
    listed_values = _listed_values(column)  # en and de
    rows = [_frequent_row(value, n_documents) for value in listed_values]

    has_other_values = column.distinct > len(listed_values)
    if has_other_values:
        rows.append(_other_values_row(statistics, column, listed_values))
    if column.nulls > 0:
        rows.append(_value_row("null", column.nulls, column.null_tokens, n_documents))
    return rows


def _listed_values(column: ColumnStatistics) -> Sequence[FrequentValue]:
    """Return which values of a column get a row of their own in a table, most frequent first.

    Args:
        column: The statistics of the column, with its most frequent values.
    """
    # Of a column such as `id`, each value occurs once. Some of them would be of no use.
    all_occur_once = all(value.max_documents == 1 for value in column.values)
    has_more_values = column.distinct > len(column.values)
    if all_occur_once and has_more_values:
        return ()
    return column.values


def _frequent_row(value: FrequentValue, longest: int) -> ValueRow:
    """Return the row of one value of a column of texts, such as of the language "en".

        en    1,200             ████████████
        fr    1,150 to 1,200    ███████████

    Args:
        value: The value, with its documents and tokens.
        longest: The number of documents that has the longest bar.
    """
    documents = f"{value.documents:,}"
    # If there are too many distinct values to count them all, the number is only known as a range.
    if value.documents < value.max_documents:
        documents = f"{value.documents:,} to {value.max_documents:,}"
    bar = _bar(value.documents, longest)
    return ValueRow(_value_text(value.value), documents, value.tokens, bar)


def _other_values_row(
    statistics: CorpusColumns, column: ColumnStatistics, listed: Sequence[FrequentValue]
) -> ValueRow:
    """Return the row that sums up the rare values of a column of texts: "12 other values".

    Args:
        statistics: The columns of a text collection, with the number of its documents.
        column: The statistics of this column.
        listed: The frequent values, which have a row of their own.
    """
    n_other_values = column.distinct - len(listed)
    label = f"{n_other_values:,} values"
    if listed:
        label = f"{n_other_values:,} other values"
    if not column.is_distinct_exact:
        label = f"about {label}"

    # The documents of all other rows: those with frequent values, and those without a value.
    documents_in_other_rows = column.nulls
    tokens_in_other_rows = column.null_tokens
    for value in listed:
        documents_in_other_rows += value.documents
        tokens_in_other_rows += value.tokens
    return _value_row(
        label,
        documents=statistics.documents - documents_in_other_rows,
        tokens=statistics.tokens - tokens_in_other_rows,
        longest=statistics.documents,  # a bar of full length stands for all documents
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


def null_text(columns: Sequence[ColumnStatistics]) -> str:
    """Return a sentence that says what the nulls of columns with fractions are.

    For example: "null in quality: there is no value, or it is NaN or infinite".

    Args:
        columns: The statistics of all columns.

    Returns:
        The sentence; empty if no such column has nulls.
    """
    names = [column.name for column in columns if column.type == "double" and column.nulls > 0]
    if not names:
        return ""
    return f"null in {', '.join(names)}: there is no value, or it is NaN or infinite"


def uncounted_text(column: ColumnStatistics) -> str:
    """Return a sentence that says which values of a column may be missing in a list of its values.

    For example: "title has too many distinct values to count all of them. No value that is not
    listed is in more than 40 documents".

    Args:
        column: The statistics of the column.

    Returns:
        The sentence; empty if all values were counted.
    """
    max_documents = column.uncounted  # how frequent a value can be that was not counted
    if max_documents == 0:
        return ""
    return (
        f"{column.name} has too many distinct values to count all of them. "
        f"No value that is not listed is in more than {max_documents:,} documents"
    )


def _value_text(value: str) -> str:
    """Return a text as it is shown: quoted if it could be misread, and cut off if it is long.

    Texts are quoted that are empty, or "null", which the row of the documents without a value is
    called, too; and those with spaces at an end, as " en" would look like "en".

    Args:
        value: The text, of any length.
    """
    short_value = shortened(value, _VALUE_CHARACTERS)
    has_spaces_at_end = value != value.strip()
    if has_spaces_at_end or value in ("", "null"):
        return repr(short_value)
    return short_value


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
