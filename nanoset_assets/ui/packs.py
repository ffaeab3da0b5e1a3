"""Metadata of packs: what they hold, and what the same documents would lose if they were concatenated."""

from __future__ import annotations

from typing import Any

import dagster as dg

from nanoset_assets.ui.corpus import readers
from nanoset_assets.ui.metadata import markdown, table
from nanoset_assets.ui.previews import first_documents
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline.project import Project
from nanoset_core.serialization.text import format_count


def pack_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return the metadata of packs: their counts beside those of concatenation, and what reads them."""
    facts = manifest.facts
    counts = f"**{format_count(facts['packs'], 'pack')} of {format_count(facts['length'], 'token')}**"
    apart, padding = facts["concatenated"], facts["padding"]
    share = padding / facts["tokens"] if facts["tokens"] else 0
    summary = f"{counts} of {format_count(facts['documents'], 'document')} of `{facts['of']}`; {share:.4%} is padding."
    rows = [
        {"": "best-fit packing", **{name: facts[name] for name in ("cut_documents", "cut_tokens", "dropped_tokens")}},
        {"": "concatenation (expected)", **apart, "dropped_tokens": 0},
    ]
    return {
        "summary": markdown(summary, readers(project, manifest.name)),
        "cut": table(rows),
        "first_documents": first_documents(project, manifest),
        "prefix": dg.MetadataValue.path(facts["prefix"]),
        "dagster/partition_row_count": facts["packs"],
        **{name: facts[name] for name in ("packs", "documents", "tokens", "padding", "cut_documents", "dtype")},
    }
