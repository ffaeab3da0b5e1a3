"""The page of `document_columns` and `document_attributes`: columns, their types and values."""

from __future__ import annotations

from typing import Any

import dagster as dg

from nanoset_assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import table
from nanoset_core.errors import NanosetError, one_line
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.column_rows import column_rows, value_rows
from nanoset_core.project.column_statistics import CorpusColumns, corpus_columns
from nanoset_core.project.project import Project
from nanoset_core.stages.attributes.settings import COUNTS
from nanoset_core.text.values import type_of

MAX_VALUES = 20_000_000
"""Documents times columns up to which a page shows statistics; reading them takes 5 to 10 s."""
MAX_COLUMNS = 20
"""Columns whose values are shown."""


def columns_page(run: AssetRun) -> dict[str, Any]:
    """Make the columns of a corpus's documents, log their warnings, and return their metadata."""
    manifest = run.make()
    for warning in run.stage.show(run.project, manifest).warnings:
        run.warn(warning)
    try:
        statistics = page_statistics(run.project, manifest)
    except NanosetError as error:
        # The columns were made; another run may have replaced the corpus meanwhile.
        run.warn(f"its statistics are not shown: {one_line(error)}")
        statistics = None
    return columns_metadata(manifest, statistics)


def page_statistics(project: Project, manifest: Manifest) -> CorpusColumns | None:
    """Return the statistics of some columns; None if the corpus is too large for a page.

    Args:
        project: The project.
        manifest: Manifest of the current version of `document_columns` or `document_attributes`.
    """
    names = [column["name"] for column in manifest.facts["columns"]]
    if manifest.facts["documents"] * len(names) > MAX_VALUES:
        return None
    return corpus_columns(project, manifest.name, names)


def columns_metadata(manifest: Manifest, statistics: CorpusColumns | None) -> dict[str, Any]:
    """Return what the UI shows of the columns that a corpus has in addition to its text.

    Args:
        manifest: Manifest of a version of `document_columns` or `document_attributes`.
        statistics: Statistics of its columns; None if they are not shown.
    """
    facts = manifest.facts
    rows: list[dict[str, Any]] = []
    for column in facts["columns"]:
        row = {
            "column": column["name"],
            "type": str(type_of(column["kind"])),
            "nulls": column["nulls"],
        }
        rows.append(row)
    # Dagster shows the metadata `dagster/column_schema` on a separate tab.
    schema = dg.TableSchema([dg.TableColumn(row["column"], row["type"]) for row in rows])

    metadata: dict[str, Any] = {
        "columns": table(rows, len(rows)),
        "dagster/column_schema": schema,
        "dagster/partition_row_count": facts["documents"],
    }
    if statistics is None:
        metadata["values"] = f"`nanoset columns {manifest.name}` shows the values of the columns"
    else:
        metadata |= _statistics_metadata(statistics)
    # Only `document_attributes` has the facts COUNTS and `rows`.
    for name in ("documents", *COUNTS, "rows"):
        if name in facts:
            metadata[name] = facts[name]
    # The size of the tables: the output only lists them, and they are stored elsewhere.
    metadata["size_bytes"] = facts["bytes"]
    return metadata


def _statistics_metadata(statistics: CorpusColumns) -> dict[str, Any]:
    """Return a table of all columns, and one of the values of each of the first MAX_COLUMNS."""
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
    metadata: dict[str, Any] = {"statistics": table(rows, len(rows))}
    for shown in statistics.columns[:MAX_COLUMNS]:
        value_table: list[dict[str, Any]] = []
        for row in value_rows(statistics, shown):
            value_table.append(
                {
                    "value": row.value,
                    "documents": row.documents,
                    "tokens": "" if row.tokens is None else row.tokens,
                    " ": row.bar,
                }
            )
        metadata[f"values of {shown.name}"] = table(value_table, len(value_table))
    return metadata
