"""The page of `held_out`: documents of valid and test that train reads, too."""

from __future__ import annotations

from typing import Any

import dagster as dg

from nanoset_assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import facts_of, markdown, rows_without_none, table
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.records.text import format_count
from nanoset_core.stages.held_out.settings import SHARED, TRAIN_COPIES
from nanoset_core.stages.held_out.show import total_train_copies


def held_out_page(run: AssetRun) -> dict[str, Any]:
    """Search train for held-out documents, and return the metadata of the result."""
    return held_out_metadata(run.project, run.make())


def held_out_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return what the UI shows of documents that train reads although valid or test hold them out.

    Args:
        project: The project.
        manifest: Manifest of the comparison of a nanoset's splits, named `<nanoset>/…`.
    """
    facts = manifest.facts
    held_out = format_count(facts["held_out"], "document")  # that valid or test read
    n_shared = facts["shared"]  # of these: train reads them, too
    n_copied = facts["copies"]  # of these: train reads a document with the same tokens
    summary = (
        f"**Of {held_out} that are held out, train reads {n_shared:,}, "
        f"and copies of {n_copied:,}.**"
    )
    # Without the setting `held_out`, only the documents themselves are searched for.
    nanoset_name = manifest.name.partition("/")[0]
    if not project.nanoset(nanoset_name).held_out:
        summary += " Copies were not searched for."

    train_copies = facts.get(TRAIN_COPIES, [])
    if train_copies:
        counts = total_train_copies(facts)
        summary += (
            f" {format_count(counts.documents, 'document')} of train, with {counts.tokens:,} "
            "tokens, are copies of another document of train."
        )

    metadata: dict[str, Any] = {"summary": markdown(summary)}
    if train_copies:
        metadata[TRAIN_COPIES] = table(train_copies)
    first_documents = rows_without_none(facts["first"])
    if first_documents:
        metadata["in_train"] = table(first_documents)
    metadata["table"] = dg.MetadataValue.path(manifest.url(SHARED))  # the file with all of them
    metadata |= facts_of(manifest, "held_out", "shared", "copies")
    return metadata
