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
    """Return what the UI shows of an export: its files, and the code that opens them.

    Args:
        manifest: Manifest of the export, which is a dataset in the format of another reader.
    """
    facts = manifest.facts
    export_format = FORMATS[facts["format"]]
    example = export_format.example(manifest.url(), manifest.name, facts)
    files: list[dict[str, str]] = []
    for name, fact in manifest.files.items():
        files.append({"file": name, "size": format_bytes(fact.size)})
    return {
        "summary": markdown(_summary(manifest, export_format.reader)),
        "opened_by": dg.MetadataValue.md(f"```python\n{example}\n```"),
        "files": table(files),
        "dagster/partition_row_count": facts["documents"],
        **facts_of(manifest, "documents", "tokens", "left_out", "dtype", "format"),
    }


def _summary(manifest: Manifest, reader: str) -> str:
    """Return the documents, tokens and samples of an export, in sentences.

    Args:
        manifest: Manifest of the export.
        reader: Name of the program that reads its format.
    """
    facts = manifest.facts
    dataset = code(facts["of"])
    method = facts["made_by"]  # how the file of tokens was made, such as "hard link" or "copy"
    n_left_out = facts["left_out"]
    first = f"{counts_text(facts)} of {dataset} for {reader} (tokens: {method})"
    if n_left_out:
        empty_documents = format_count(n_left_out, "document")
        first += f"; {empty_documents} without tokens left out"
    sentences = [f"{first}."]

    if "samples" in facts:
        samples = format_count(facts["samples"], "sample")
        length = format_count(facts["sequence_length"], "token")
        n_dropped = facts["dropped"]
        second = f"{samples} of {length}"
        if n_dropped:
            # Tokens after the last complete sample are never read.
            dropped_tokens = format_count(n_dropped, "token")
            second += f"; the last {dropped_tokens} are not read"
        sentences.append(f"{second}.")
    return " ".join(sentences)
