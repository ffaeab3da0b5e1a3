"""The page of `packs`: what packing cuts, next to what concatenation would cut.

Packs are sequences of one length, such as 2,048 tokens, that are filled with whole documents as far
as possible. The page says how much of them is padding, and compares how many documents are cut with
how many would be if all documents were concatenated and divided into sequences of that length.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """Pack the documents of a dataset, and return what the UI shows of the packs.

    Args:
        run: The run of the asset `packs` for one packing of nanoset.yaml.

    Returns:
        Name → value, as Dagster's UI shows them; see `packs_metadata`.

    Raises:
        NanosetError: The packs could not be made.
    """
    return packs_metadata(run.project, run.make())


def packs_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return what the UI shows of packs: sequences of one length, filled with whole documents.

    Only documents that are longer than a pack are cut.

    Args:
        project: Its outputs and settings are read.
        manifest: Manifest of the packs, the record of its files and counts.

    Returns:
        Name → value: a summary in sentences, a table of the documents that are cut, the first
        documents as text, the path that trainers are given, and counts.
    """
    facts = manifest.facts  # what was counted when the output was made
    readers = readers_text(project, manifest.name)  # which nanosets and other outputs read them
    return {
        "summary": markdown(_summary(facts), readers),
        "cut": _cut_table(manifest),
        "first_documents": first_documents(project, manifest),
        "prefix": dg.MetadataValue.path(facts["prefix"]),  # of the .bin and the .idx
        "dagster/partition_row_count": facts["packs"],
        **facts_of(manifest, "packs", "documents", "tokens", "padding", "cut_documents", "dtype"),
    }


def _summary(facts: Mapping[str, Any]) -> str:
    """Return how many packs there are, and how much of them is padding, in a sentence.

    Args:
        facts: Counts of the packs, and the dataset that they were made from.
    """
    packs = format_count(facts["packs"], "pack")
    length = format_count(facts["length"], "token")
    documents = format_count(facts["documents"], "document")
    dataset = facts["of"]
    padding_share = facts["padding"] / max(facts["tokens"], 1)  # there may be no tokens
    return f"**{packs} of {length}** of {documents} of `{dataset}`; {padding_share:.4%} is padding."


def _cut_table(manifest: Manifest) -> dg.TableMetadataValue:
    """Return a table of how many documents packing cuts, and how many concatenation would cut.

    Args:
        manifest: Manifest of the packs, with both counts.
    """
    packing = {
        "": "best-fit packing",  # a column without a heading
        **facts_of(manifest, "cut_documents", "cut_tokens", "dropped_tokens"),
    }
    # What would happen if all documents were concatenated and divided into sequences.
    concatenation = {
        "": "concatenation (expected)",
        **manifest.facts["concatenated"],
        "dropped_tokens": 0,
    }
    return table([packing, concatenation])
