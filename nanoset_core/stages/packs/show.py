"""Summaries of packs: their size, what was cut, and what concatenation would have cut.

`nanoset status` and `nanoset map` show them as columns of a table.
"""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.stage import Summary, counted


def packs_summary(manifest: Manifest) -> Summary:
    """Return the figures of packs, which are sequences of one length filled with documents.

    Without packs, trainers concatenate all documents, and cut the result into sequences. For
    comparison, the figures say how many documents would be cut then: "documents cut: 31" next to
    "cut if concatenated: 812".

    Args:
        manifest: Manifest of built or planned packs, whose facts are those of `PackCounts`. Planned
            packs have None instead of counts that are not known before they are built.
    """
    facts = manifest.facts
    details = {
        "padding": _count(facts["padding"]),
        "documents cut": _count(facts["cut_documents"]),
        "tokens dropped": _count(facts["dropped_tokens"]),
        "cut if concatenated": _count(facts["concatenated"]["cut_documents"]),
    }
    warnings = [] if facts["documents"] else ["they hold no document"]
    return Summary(counted(manifest, "packs", "documents", "tokens"), details, warnings)


def packs_row(name: str, manifest: Manifest) -> dict[str, str]:
    """Return the row of packs in the table that `nanoset map` prints: heading → text.

    Unlike `nanoset status`, it has no size in bytes.

    Args:
        name: Name of the packs.
        manifest: Their manifest, of built or planned packs.

    Returns:
        Such as `{"packs": "web-packs-2048", "documents": "1,200", …}`.
    """
    summary = packs_summary(manifest)
    row = {"packs": name}
    for figure, count in summary.figures.items():
        if figure != "bytes":
            row[figure] = f"{count:,}"
    return {**row, **summary.details}


def _count(count: int | None) -> str:
    """Return a count with commas, or "" for a count that is not known before a build."""
    return "" if count is None else f"{count:,}"
