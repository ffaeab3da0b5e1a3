"""The page of `packs`: what packing cuts, next to what concatenation would cut.

Packs are sequences of one length, such as 2,048 tokens, that are filled with whole documents as far
as possible. The page says how much of them is padding, and compares how many documents are cut with
how many would be if all documents were concatenated and divided into sequences of that length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from nanoset_assets.assets.asset_run import AssetRun
from nanoset_assets.ui.dataset import readers_text
from nanoset_assets.ui.metadata import facts_of, markdown, table
from nanoset_assets.ui.previews import first_documents
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.wording import format_count


def packs_page(run: AssetRun) -> dict[str, Any]:
    """Pack documents into sequences of one length, and return what Dagster's UI shows of them.

    Trainers need sequences of one length, such as 2,048 tokens. Packing fills each with whole
    documents as far as possible, so that few documents are cut in two.

    Args:
        run: Executes the Dagster asset `packs` for one packing that the settings define.
            `run.make()` writes the sequences, and returns their manifest: the record of the files
            and of what was counted.

    Returns:
        What the page of the asset shows: heading → value. See `packs_metadata`.

    Raises:
        NanosetError: The packs could not be made.
    """
    return packs_metadata(run.project, run.make())


def packs_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return what Dagster's UI shows of packs: sequences of one length with whole documents.

    For example, documents of 3, 5 and 2 tokens give two packs of 5 tokens: one has the documents of
    3 and 2 tokens, the other that of 5. No document is cut.

    Args:
        project: Gives access to the documents and to the settings, which say what reads the packs.
        manifest: The record of the packs: their files, and what was counted.

    Returns:
        Heading → value: texts, a table and counts.
    """
    facts = manifest.facts
    readers = readers_text(project, manifest.name)  # the data mixtures that read the packs
    return {
        "summary": markdown(_summary(facts), readers),  # "**2 packs of 5 tokens** of 3 documents …"
        "cut": _cut_table(manifest),  # how many documents are cut, with and without packing
        "first_documents": first_documents(project, manifest),  # the start of their text
        "prefix": dg.MetadataValue.path(facts["prefix"]),  # of the .bin and .idx that trainers read
        "dagster/partition_row_count": facts["packs"],  # Dagster shows it as the size
        **facts_of(manifest, "packs", "documents", "tokens", "padding", "cut_documents", "dtype"),
    }


def _summary(facts: Mapping[str, Any]) -> str:
    """Say in a sentence how many packs there are, and how much of them is padding.

    A pack is a sequence of tokens, filled with whole documents. Tokens that no document fills are
    padding, which makes training slower. For example:

        **600 packs of 2,048 tokens** of 5,000 documents of `web`; 0.1200% is padding.

    Args:
        facts: What was counted when the packs were made, and the name of the dataset (`of`) that
            the documents are from.
    """
    packs = format_count(facts["packs"], "pack")
    length = format_count(facts["length"], "token")
    documents = format_count(facts["documents"], "document")
    dataset = facts["of"]
    # Padding as a share of all tokens. There may be none: then avoid a division by 0.
    padding_share = facts["padding"] / max(facts["tokens"], 1)
    return f"**{packs} of {length}** of {documents} of `{dataset}`; {padding_share:.4%} is padding."


def _cut_table(manifest: Manifest) -> dg.TableMetadataValue:
    """Return a table that shows what packing is good for: far fewer documents are cut in two.

    Without packing, a trainer concatenates all documents, and divides the result into sequences of
    one length. So nearly every sequence starts in the middle of a document. For example:

                                    cut_documents    cut_tokens    dropped_tokens
        best-fit packing            12               31,000        0
        concatenation (expected)    590              820,000       0

    Args:
        manifest: The record of the packs, which has the counts of both rows.
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
