"""The page of `packed_dataset` and `packed`: Modalities' .pbin of a dataset.

A `.pbin` is one file with all tokens of a dataset and an index of its documents; the trainer
Modalities reads it. The page shows its size, for example "**5,000 documents, 1,234,567 tokens** of
2 bytes each, 2.47 MB", and how fast the tokens were written.
"""

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
    """Make a `.pbin`, the file that Modalities trains on, and return what the UI shows of it.

    Args:
        run: The run of the asset `packed_dataset` (of a corpus) or `packed` (of a view or packs).

    Returns:
        Name → value, as Dagster's UI shows them; see `pbin_metadata`. If the run has written the
        file, the tokens written per second are included.

    Raises:
        NanosetError: The file could not be made.
    """
    # Look up which versions exist, to find out whether the run makes a new one. The name of a
    # version's folder is its digest.
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
        manifest: Manifest of the file, the record of its files and counts.

    Returns:
        Name → value: a summary in a sentence, the path of the file, and counts.
    """
    facts = manifest.facts  # what was counted when the output was made
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
