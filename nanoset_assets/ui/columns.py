"""The page of `document_columns` and `document_attributes`: columns, their types and values.

Documents of a corpus can have columns in addition to their text, such as a score or a language.
The page lists the columns with their types, and shows how the values are distributed. For example,
the column `language` gets a table with a row for `en`, one for `de`, and so on.
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from nanoset_assets.assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import table
from nanoset_core.errors import NanosetError, one_line
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.columns.rows import column_rows, value_rows
from nanoset_core.project.columns.statistics import ColumnStatistics, CorpusColumns, corpus_columns
from nanoset_core.project.project import Project
from nanoset_core.stages.attributes.names import COUNTS
from nanoset_core.text.tables.values import type_of

MAX_VALUES = 20_000_000
"""Documents times columns up to which a page shows statistics; reading them takes 5 to 10 s."""
MAX_COLUMNS = 20
"""Columns whose values are shown."""


def columns_page(run: AssetRun) -> dict[str, Any]:
    """Collect values that documents have in addition to their text; return what the UI shows.

    For example, each document of a corpus (a text collection) has a score and a language. These are
    two columns of a table.

    Args:
        run: Executes a Dagster asset for one corpus. `run.make()` writes the table, and returns its
            manifest: the record of its files and counts.

    Returns:
        What the page of the asset shows: heading → value. See `columns_metadata`.

    Raises:
        NanosetError: The columns could not be made.
    """
    manifest = run.make()
    try:
        statistics = page_statistics(run.project, manifest)
    except NanosetError as error:
        # The columns were made; another run may have replaced the corpus meanwhile.
        run.warn(f"its statistics are not shown: {one_line(error)}")
        statistics = None
    return columns_metadata(manifest, statistics)


def page_statistics(project: Project, manifest: Manifest) -> CorpusColumns | None:
    """Return how the values of a corpus's columns are distributed, if it is small enough for that.

    A column has a value for each document, such as its score. For its statistics, all values are
    read, which takes too long for a page in the browser if there are very many:

        documents       columns    values
        1,000,000       5           5,000,000    read, in a few seconds
        10,000,000      5          50,000,000    not read: more than MAX_VALUES (20 million)

    Args:
        project: Gives access to the files with the columns.
        manifest: The record of the files and counts of the columns, which names the corpus.

    Returns:
        Statistics of each column, or None if there are too many values.

    Raises:
        NanosetError: The tables of the columns cannot be read.
    """
    counts = manifest.facts  # recorded when the columns were made
    names = [column["name"] for column in counts["columns"]]
    n_values = counts["documents"] * len(names)
    if n_values > MAX_VALUES:
        return None
    return corpus_columns(project, manifest.name, names)


def columns_metadata(manifest: Manifest, statistics: CorpusColumns | None) -> dict[str, Any]:
    """Return what Dagster's UI shows of the values that documents have in addition to their text.

    For example, each document of a text collection (corpus) has a score and a language.

    Args:
        manifest: The record of the files and counts of these columns.
        statistics: Statistics of the columns; None if reading the values would take too long.

    Returns:
        Heading → value: tables and counts.
    """
    counts = manifest.facts
    metadata = _column_list(manifest)  # a table: `score` is a double, `language` a string
    metadata["dagster/partition_row_count"] = counts["documents"]  # Dagster shows it as the size

    if statistics is None:
        metadata["values"] = f"`nanoset columns {manifest.name}` shows the values of the columns"
    else:
        metadata["statistics"] = _statistics_table(statistics)  # minimum, median, maximum, …
        for column in statistics.columns[:MAX_COLUMNS]:
            # How many documents have a score from 0 to 1, or the language `en`.
            metadata[f"values of {column.name}"] = _values_table(statistics, column)

    metadata["documents"] = counts["documents"]
    # Columns from tables of the user also have counts such as that of rows without a document.
    for name in (*COUNTS, "rows"):
        if name in counts:
            metadata[name] = counts[name]
    return metadata


def _column_list(manifest: Manifest) -> dict[str, Any]:
    """Return two descriptions of the columns of a corpus: a table, and a schema that Dagster knows.

    A column has a value for each document, such as its score. The table has a row for each column:

        column      type      nulls
        score       double    12       (12 documents have no score)
        language    string    0

    Dagster shows a value under the heading `dagster/column_schema` on a separate tab.

    Args:
        manifest: The record of the output. It has a list of the columns, such as `[{"name":
            "score", "kind": "double", "nulls": 12}]`.
    """
    rows: list[dict[str, Any]] = []
    for column in manifest.facts["columns"]:
        row = {
            "column": column["name"],
            "type": str(type_of(column["kind"])),
            "nulls": column["nulls"],
        }
        rows.append(row)
    # Dagster shows the metadata `dagster/column_schema` on a separate tab.
    schema = dg.TableSchema([dg.TableColumn(row["column"], row["type"]) for row in rows])
    return {"columns": table(rows, len(rows)), "dagster/column_schema": schema}


def _statistics_table(statistics: CorpusColumns) -> dg.TableMetadataValue:
    """Return a table of how the values of each column of a corpus are distributed.

    A column has a value for each document. For example:

        column      distinct    min    5 %    median    95 %    max
        score       4,870       0.1    0.4    2.5       4.6     5
        language    2                                                 (texts have no order)

    Args:
        statistics: The statistics of all columns.
    """
    rows: list[dict[str, Any]] = []
    for column in column_rows(statistics.columns):
        rows.append(
            {
                "column": column.column,
                "distinct": column.distinct,
                "min": column.minimum,
                "5 %": column.low,
                "median": column.median,
                "95 %": column.high,
                "max": column.maximum,
            }
        )
    return table(rows, len(rows))


def _values_table(statistics: CorpusColumns, column: ColumnStatistics) -> dg.TableMetadataValue:
    """Return a table of how many documents of a corpus have which value in one column.

    For a column of texts, a row is one value; for a column of numbers, a row is a range of values:

        value    documents    tokens       (the last column is a bar, as in a bar chart)
        en       4,000        2,100,000    ████████████
        de       1,000        500,000      ███

    Args:
        statistics: Statistics of all columns of the corpus.
        column: The statistics of the column to show.
    """
    rows: list[dict[str, Any]] = []
    for row in value_rows(statistics, column):
        rows.append(
            {
                "value": row.value,
                "documents": row.documents,
                "tokens": "" if row.tokens is None else row.tokens,
                " ": row.bar,  # a column without a heading
            }
        )
    return table(rows, len(rows))
