"""The page of `packs`: what packing cuts, next to what concatenation would cut."""

from __future__ import annotations

from typing import Any

import dagster as dg

from nanoset_assets.asset_run import AssetRun
from nanoset_assets.ui.dataset import readers_text
from nanoset_assets.ui.metadata import facts_of, markdown, table
from nanoset_assets.ui.previews import first_documents
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.records.text import format_count


def packs_page(run: AssetRun) -> dict[str, Any]:
    """Make packs, and return their metadata."""
    return packs_metadata(run.project, run.make())


def packs_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return what the UI shows of packs: sequences of one length, filled with whole documents.

    Only documents that are longer than a pack are cut.

    Args:
        project: The project.
        manifest: Manifest of the packs.
    """
    facts = manifest.facts
    n_packs = facts["packs"]
    n_tokens = facts["tokens"]
    packs = format_count(n_packs, "pack")
    length = format_count(facts["length"], "token")
    documents = format_count(facts["documents"], "document")
    dataset = facts["of"]
    padding_share = facts["padding"] / max(n_tokens, 1)  # there may be no tokens
    summary = (
        f"**{packs} of {length}** of {documents} of `{dataset}`; {padding_share:.4%} is padding."
    )

    # Compare how many documents are cut with what would happen if all documents were concatenated
    # and divided into sequences of this length.
    packing = {
        "": "best-fit packing",  # a column without a heading
        **facts_of(manifest, "cut_documents", "cut_tokens", "dropped_tokens"),
    }
    concatenation = {"": "concatenation (expected)", **facts["concatenated"], "dropped_tokens": 0}
    return {
        # The second sentence says which nanosets and other outputs read the packs.
        "summary": markdown(summary, readers_text(project, manifest.name)),
        "cut": table([packing, concatenation]),
        "first_documents": first_documents(project, manifest),
        "prefix": dg.MetadataValue.path(facts["prefix"]),
        "dagster/partition_row_count": n_packs,
        **facts_of(manifest, "packs", "documents", "tokens", "padding", "cut_documents", "dtype"),
    }
