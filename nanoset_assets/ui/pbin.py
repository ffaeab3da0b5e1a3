"""The page of `packed_dataset` and `packed`: Modalities' .pbin of a dataset.

A `.pbin` is one file with all tokens of a dataset and an index of its documents; the trainer
Modalities reads it. The page shows its size, for example "**5,000 documents, 1,234,567 tokens** of
2 bytes each, 2.47 MB", and how fast the tokens were written.
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from nanoset_assets.assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import (
    counts_text,
    facts_of,
    kept_names,
    markdown,
    per_second,
)
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.stage import size_bytes
from nanoset_core.wording import format_bytes, format_count


def pbin_page(run: AssetRun) -> dict[str, Any]:
    """Write a `.pbin`, the file that the trainer Modalities reads, and return what to show of it.

    Args:
        run: Executes a Dagster asset for one dataset. `run.make()` writes the file, if it does not
            exist yet, and returns its manifest: the record of the file and of what was counted.

    Returns:
        What Dagster's UI shows on the page of the asset: heading → value. See `pbin_metadata`.

    Raises:
        NanosetError: The file could not be made.
    """
    # Each version of the file has a folder. Its name is a digest of what the version is made from.
    project = run.project
    folder = project.outputs.folder / run.stage.layout.path_of(run.key)
    digests_before = kept_names(project, folder)

    manifest = run.make()
    metadata = pbin_metadata(manifest)
    was_written = manifest.digest not in digests_before
    if was_written:
        metadata["tokens_per_second"] = per_second(manifest.facts["tokens"], run.seconds)
    return metadata


def pbin_metadata(manifest: Manifest) -> dict[str, Any]:
    """Return what Dagster's UI shows of a `.pbin`, the file that the trainer Modalities reads.

    For example:

        summary        "**5,000 documents, 1,234,567 tokens** of 2 bytes each, 2.47 MB."
        file           the name of the file
        documents      5000
        tokens         1234567
        token_bytes    2
        left_out       0    (documents without tokens, which the format cannot store)

    Args:
        manifest: The record of the file, with what was counted when it was written.

    Returns:
        Heading → value, as in the example. Dagster plots the counts over time.
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
