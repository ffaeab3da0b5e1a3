"""Summaries of packs: their size, what was cut, and what concatenation would have cut.

`nanoset status` and `nanoset map` show them as columns of a table.
"""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.stage import Summary, counted


def packs_summary(manifest: Manifest) -> Summary:
    """Return what commands show about packs: samples of one length that are filled with documents.

        padding                1,204      tokens
        documents cut          31         only documents that are longer than a pack
        tokens dropped         0
        cut if concatenated    812        documents that would be cut without packs

    (Without packs, trainers concatenate all documents, and cut the result into samples.)

    Args:
        manifest: What is recorded about packs. Before they are built, some counts are None.
    """
    facts = manifest.facts
    details = {
        "padding": _count(facts["padding"]),
        "documents cut": _count(facts["cut_documents"]),
        "tokens dropped": _count(facts["dropped_tokens"]),
        "cut if concatenated": _count(facts["concatenated"]["cut_documents"]),
    }
    warnings = []
    if facts["documents"] == 0:
        warnings.append("they hold no document")
    return Summary(counted(manifest, "packs", "documents", "tokens"), details, warnings)


def packs_row(name: str, manifest: Manifest) -> dict[str, str]:
    """Return what `nanoset map` prints about some packs, as a row of its table: heading → text.

    Packs are samples of one length that are filled with documents.

    Args:
        name: Name of the packs.
        manifest: What is recorded about them.

    Returns:
        Such as `{"packs": "web-packs-2048", "documents": "1,200", …}`. The size in bytes is left
        out, since the table is about documents and samples.
    """
    summary = packs_summary(manifest)  # `figures` are numbers, and `details` are texts
    row = {"packs": name}
    for figure, count in summary.figures.items():
        if figure != "bytes":
            row[figure] = f"{count:,}"
    return {**row, **summary.details}


def _count(count: int | None) -> str:
    """Return a count with commas, or "" for a count that is not known before a build."""
    return "" if count is None else f"{count:,}"
