"""Metadata of an export: what it holds, how it shares the tokens, and how a reader opens it."""

from __future__ import annotations

from typing import Any

import dagster as dg

from nanoset_assets.ui.metadata import code, markdown, table
from nanoset_core.exits.formats import FORMATS
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.serialization.text import format_bytes, format_count


def export_metadata(manifest: Manifest) -> dict[str, Any]:
    """Return the metadata of an export."""
    facts, exit_format = manifest.facts, FORMATS[manifest.facts["format"]]
    counts = f"**{format_count(facts['documents'], 'document')}, {format_count(facts['tokens'], 'token')}**"
    left_out = f"; {format_count(facts['left_out'], 'document')} without tokens" if facts["left_out"] else ""
    how = f"{counts} of {code(facts['of'])} for {exit_format.reader}; the tokens: {facts['made_by']}{left_out}."
    if "samples" in facts:
        how += f" {format_count(facts['samples'], 'sample')} of {format_count(facts['sequence_length'], 'token')}"
        how += f"; the last {format_count(facts['dropped'], 'token')} it passes over." if facts["dropped"] else "."
    files = [{"file": name, "size": format_bytes(fact.size)} for name, fact in manifest.files.items()]
    return {
        "summary": markdown(how),
        "opened_by": dg.MetadataValue.md(
            f"```python\n{exit_format.example(manifest.url(), manifest.name, facts)}\n```"
        ),
        "files": table(files),
        "dagster/partition_row_count": facts["documents"],
        **{name: facts[name] for name in ("documents", "tokens", "left_out", "dtype", "format")},
    }
