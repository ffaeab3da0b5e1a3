"""Metadata of a view: what it chooses, from what, and who reads it."""

from __future__ import annotations

from typing import Any

import dagster as dg

from nanoset_assets.ui.corpus import readers
from nanoset_assets.ui.metadata import markdown, table
from nanoset_assets.ui.previews import first_documents
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline.choosing import step_rows
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.views import VIEW
from nanoset_core.serialization.text import format_bytes, format_count


def view_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return the metadata of a view's dataset: what each rule left, its first documents, and what reads it."""
    facts, size = manifest.facts, VIEW.figures(manifest)["bytes"]
    counts = f"**{format_count(facts['documents'], 'document')}, {format_count(facts['tokens'], 'token')}**"
    missing = [f"**{count:,} ids of {key} are of no document.**" for key, count in facts["missing_ids"].items()]
    summary = f"{counts} of `{facts['corpus']}`, in an index of {format_bytes(size)} over the tokens of its dataset."
    rows = [
        {"of": row.view, "rule": row.step, "documents": row.documents, "tokens": row.tokens, "left": row.bar}
        for row in step_rows(facts)
    ]
    return {
        "summary": markdown(summary, *missing, readers(project, manifest.name)),
        "chosen": table(rows),
        "first_documents": first_documents(project, manifest),
        "prefix": dg.MetadataValue.path(facts["prefix"]),
        "dagster/partition_row_count": facts["documents"],
        "index_bytes": size,
        **{name: facts[name] for name in ("documents", "sequences", "tokens", "dtype")},
    }
