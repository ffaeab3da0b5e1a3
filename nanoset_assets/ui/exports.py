"""The page of `export`: the files of another reader, and how to open them."""

from __future__ import annotations

from typing import Any

import dagster as dg

from nanoset_assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import code, counts_text, facts_of, markdown, table
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.records.text import format_bytes, format_count
from nanoset_core.stages.exports.formats import FORMATS


def export_page(run: AssetRun) -> dict[str, Any]:
    """Make an export, and return its metadata."""
    return export_metadata(run.make())


def export_metadata(manifest: Manifest) -> dict[str, Any]:
    """Return the metadata of an export: its files, and how they are opened."""
    facts = manifest.facts
    export_format = FORMATS[facts["format"]]
    example = export_format.example(manifest.url(), manifest.name, facts)
    files = [
        {"file": name, "size": format_bytes(fact.size)} for name, fact in manifest.files.items()
    ]
    return {
        "summary": markdown(_summary(manifest, export_format.reader)),
        "opened_by": dg.MetadataValue.md(f"```python\n{example}\n```"),
        "files": table(files),
        "dagster/partition_row_count": facts["documents"],
        **facts_of(manifest, "documents", "tokens", "left_out", "dtype", "format"),
    }


def _summary(manifest: Manifest, reader: str) -> str:
    """Return in sentences what an export holds: its documents, its tokens and its samples."""
    facts = manifest.facts
    first = f"{counts_text(facts)} of {code(facts['of'])} for {reader}"
    first += f" (tokens: {facts['made_by']})"  # hard link, copy, written in order …
    if facts["left_out"]:
        empty_documents = format_count(facts["left_out"], "document")
        first += f"; {empty_documents} without tokens left out"
    sentences = [f"{first}."]

    if "samples" in facts:
        samples = format_count(facts["samples"], "sample")
        length = format_count(facts["sequence_length"], "token")
        second = f"{samples} of {length}"
        if facts["dropped"]:
            # What remains after the last whole sample is never read.
            dropped_tokens = format_count(facts["dropped"], "token")
            second += f"; the last {dropped_tokens} are not read"
        sentences.append(f"{second}.")
    return " ".join(sentences)
