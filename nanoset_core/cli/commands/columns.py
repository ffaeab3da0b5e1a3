"""`nanoset columns`: print which values the columns of a corpus's documents have.

A column is a value of each document, such as its language or a score of its quality. For a column
of texts, the command prints the most frequent values; for numbers, quantiles and a histogram.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import CONFIG_OPTION, JSON_OPTION, option
from nanoset_core.cli.progress import shown_progress
from nanoset_core.cli.terminal import Row, print_json, print_notices, print_rows
from nanoset_core.wording import format_count

if TYPE_CHECKING:
    from nanoset_core.project.columns.statistics import (
        ColumnStatistics,
        CorpusColumns,
        NumberStatistics,
    )
    from nanoset_core.statistics.histogram import Bin


@click.command("columns", short_help="Show the values of a corpus's columns.")
@click.argument("corpus")
@option("--column names", "Show only this column; may be repeated.", multiple=True)
@option(
    "--values n_values",
    "How many of the most frequent values to show of a column of texts.",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
)
@CONFIG_OPTION
@JSON_OPTION
def command(
    corpus: str, names: tuple[str, ...], n_values: int, config: Path, as_json: bool
) -> None:
    """Show which values the columns and attributes of CORPUS have.

    For each column, such as `lang`, the command prints its type, how many documents have no value,
    and how many distinct values there are. For numbers, it also prints quantiles and a histogram.
    For texts, it prints the most frequent values, with their numbers of documents and tokens.

    The command reads the tables that `nanoset build` has written, and writes nothing.
    """
    from nanoset_core.project.columns.statistics import corpus_columns
    from nanoset_core.project.project import Project

    with shown_progress() as progress:
        project = Project.open(config, progress)
        statistics = corpus_columns(project, corpus, names or None, n_values)
    if as_json:
        print_json(_to_json(statistics), ensure_ascii=False)
        return

    documents = format_count(statistics.documents, "document")
    tokens = format_count(statistics.tokens, "token")
    echo(f"{corpus}: {documents}, {tokens}")
    _print_columns(statistics)
    for column in statistics.columns:
        _print_values(statistics, column)
    _print_notices(statistics)


def _print_notices(statistics: CorpusColumns) -> None:
    """Print notes on columns that lack values, or that have not been built yet.

    For example: "no document has a value of lang".

    Args:
        statistics: The statistics of all columns of a corpus, which is a collection of texts.
    """
    from nanoset_core.project.columns.rows import null_text

    text_on_nulls = null_text(statistics.columns)
    if text_on_nulls:
        print_notices([text_on_nulls])
    empty_columns = _columns_without_values(statistics)
    if empty_columns:
        print_notices([f"no document has a value of {', '.join(empty_columns)}"])
    if statistics.unbuilt:
        unbuilt = ", ".join(statistics.unbuilt)
        print_notices([f"not built yet, so run `nanoset build` to see them: {unbuilt}"])


def _columns_without_values(statistics: CorpusColumns) -> list[str]:
    """Return the columns of which no document has a value, perhaps since their name is misspelt.

    Every corpus has the column `id`, also if its documents have no ids. So it is left out.
    """
    empty_columns = []
    for column in statistics.columns:
        if column.name != "id" and column.nulls == statistics.documents:
            empty_columns.append(column.name)
    return empty_columns


def _to_json(statistics: CorpusColumns) -> dict[str, Any]:
    """Return what `nanoset columns --json` prints: the values that the documents of a corpus have.

    A column is a value of each document, such as its language or a score of its quality.

    Args:
        statistics: The statistics of all columns of a corpus, which is a collection of texts.

    Returns:
        Plain values such as {"corpus": "web", "documents": 1000, "tokens": 50000, "columns": […],
        …}.
    """
    return {
        "corpus": statistics.corpus,
        "documents": statistics.documents,
        "tokens": statistics.tokens,
        "columns": [_column_to_json(column) for column in statistics.columns],
        "unbuilt": list(statistics.unbuilt),
    }


def _column_to_json(column: ColumnStatistics) -> dict[str, Any]:
    """Return the statistics of one column as plain values, for JSON.

        texts      the most frequent values: "values": [{"value": "en", "documents": 600, …}, …]
        numbers    "minimum": 0.1, "maximum": 1.0, "quantiles": {…}, "histogram": […]

    Both have the type of the values, how many documents have none (`nulls`), how many have "not a
    number" (`nans`), and how many different values there are (`distinct`).

    Args:
        column: The statistics.
    """
    record: dict[str, Any] = {
        "name": column.name,
        "type": column.type,
        "nulls": column.nulls,
        "null_tokens": column.null_tokens,
        "nans": column.nans,
        "distinct": column.distinct,
        "is_distinct_exact": column.is_distinct_exact,
    }
    if column.numbers is not None:
        record |= _numbers_to_json(column.numbers)
    else:
        record["values"] = [value._asdict() for value in column.values]
        record["uncounted"] = column.uncounted
    return record


def _numbers_to_json(numbers: NumberStatistics) -> dict[str, Any]:
    """Return how the numbers of a column are distributed, as plain values for JSON.

    For example: {"minimum": 0.1, "maximum": "inf", "quantiles": {…}, "histogram": […]}. JSON has no
    infinite numbers, so these are written as texts.

    Args:
        numbers: Minimum, maximum, quantiles, and the bins of a histogram.
    """
    from nanoset_core.records.json_records import finite_or_text

    quantiles = {share: finite_or_text(value) for share, value in numbers.quantiles.items()}
    return {
        "minimum": finite_or_text(numbers.minimum),
        "maximum": finite_or_text(numbers.maximum),
        "quantiles": quantiles,
        "histogram": [_bin_to_json(histogram_bin) for histogram_bin in numbers.bins],
    }


def _bin_to_json(histogram_bin: Bin) -> dict[str, Any]:
    """Return one bar of a histogram as plain values, for JSON.

    For example, 400 documents with 20,000 tokens have values from 0.5 to 0.75: {"values": "0.5 to
    0.75", "start": 0.5, "stop": 0.75, "documents": 400, "tokens": 20000}.

    Args:
        histogram_bin: The range of values, and the documents and tokens with these values.
    """
    from nanoset_core.records.json_records import finite_or_text

    documents, tokens = histogram_bin.amounts
    return {
        "values": histogram_bin.label,
        "start": finite_or_text(histogram_bin.start),
        "stop": finite_or_text(histogram_bin.stop),
        "documents": documents,
        "tokens": tokens,
    }


def _print_columns(statistics: CorpusColumns) -> None:
    """Print a table with a row for each column, such as the language of each document.

        column   type     nulls   distinct   min   5 %   median   95 %   max
        lang     string       0          5
        score    double      12        981   0.1   0.2      0.5    0.9   1.0

    `nulls` counts documents without a value, and `distinct` the different values.

    Args:
        statistics: The statistics of all columns of a corpus, which is a collection of texts.
    """
    from nanoset_core.project.columns.rows import column_rows

    rows: list[Row] = []
    for row in column_rows(statistics.columns):
        rows.append(
            {
                "column": row.column,
                "type": row.type,
                "nulls": row.nulls,
                "distinct": row.distinct,
                "min": row.minimum,
                "5 %": row.low,
                "median": row.median,
                "95 %": row.high,
                "max": row.maximum,
            }
        )
    print_rows(rows)


def _print_values(statistics: CorpusColumns, column: ColumnStatistics) -> None:
    """Print a table of a column's values, with a bar for the number of documents.

    For example, of the languages of documents:

        lang
        value             documents   tokens
        en                      600    30000   ████████████
        de                      350    20000   ███████
        3 other values           50     2500   █

    Args:
        statistics: The statistics of all columns, with the number of all documents, to which the
            length of a bar is proportional.
        column: The column whose values are printed.
    """
    from nanoset_core.project.columns.rows import uncounted_text, value_rows

    rows: list[Row] = []
    for row in value_rows(statistics, column):
        rows.append(
            {
                "value": row.value,
                "documents": row.documents,
                "tokens": "" if row.tokens is None else row.tokens,
                " ": row.bar,
            }
        )
    print_rows(rows, text=[" "], title=column.name)
    notice = uncounted_text(column)
    if notice:
        print_notices([notice])
