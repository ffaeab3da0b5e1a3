"""The page of `document_columns` and `document_attributes`: columns, their types and counts."""

from __future__ import annotations

from typing import Any

import dagster as dg

from nanoset_assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import table
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.attributes.settings import COUNTS
from nanoset_core.text.values import type_of


def columns_page(run: AssetRun) -> dict[str, Any]:
    """Make the columns of a corpus's documents, log their warnings, and return their metadata."""
    manifest = run.make()
    for warning in run.stage.show(run.project, manifest).warnings:
        run.warn(warning)
    return columns_metadata(manifest)


def columns_metadata(manifest: Manifest) -> dict[str, Any]:
    """Return what the UI shows of the columns that a corpus has in addition to its text.

    Args:
        manifest: Manifest of a version of `document_columns` or `document_attributes`.
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
    # Only `document_attributes` has the facts COUNTS and `rows`.
    for name in ("documents", *COUNTS, "rows"):
        if name in facts:
            metadata[name] = facts[name]
    # The size of the tables: the output only lists them, and they are stored elsewhere.
    metadata["size_bytes"] = facts["bytes"]
    return metadata
