"""The page of `packed_dataset` and `packed`: Modalities' .pbin of a dataset."""

from __future__ import annotations

from typing import Any

import dagster as dg

from nanoset_assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import (
    counts_text,
    facts_of,
    kept_names,
    markdown,
    per_second,
    size_bytes,
)
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.records.text import format_bytes, format_count


def pbin_page(run: AssetRun) -> dict[str, Any]:
    """Make a `.pbin`, and return what the UI shows of it.

    Args:
        run: The run that makes it.
    """
    # Look up which versions exist, to find out whether the run makes a new one.
    project = run.project
    layout = run.stage.layout
    folder = project.outputs.folder / layout.folder / layout.name_of(run.key)
    digests_before = kept_names(project, folder)

    manifest = run.make()
    metadata = pbin_metadata(manifest)
    # If the version existed before, there is no speed: a plot over time would show a jump.
    if manifest.digest not in digests_before:
        metadata["tokens_per_second"] = per_second(manifest.facts["tokens"], run.seconds)
    return metadata


def pbin_metadata(manifest: Manifest) -> dict[str, Any]:
    """Return what the UI shows of a `.pbin`, the file that Modalities trains on.

    Args:
        manifest: Manifest of the file.
    """
    facts = manifest.facts
    size = format_bytes(size_bytes(manifest))
    token_bytes = facts["token_bytes"]
    n_left_out = facts["left_out"]
    summary = f"{counts_text(facts)} of {token_bytes} bytes each, {size}"
    if n_left_out:
        empty_documents = format_count(n_left_out, "document")
        summary += f"; {empty_documents} without tokens left out"
    return {
        "summary": markdown(f"{summary}."),
        "file": dg.MetadataValue.path(facts["file"]),
        "dagster/partition_row_count": facts["documents"],
        **facts_of(manifest, "documents", "tokens", "token_bytes", "left_out"),
    }
