"""What people are shown of held-out documents that train reads: how many, and the first of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.held_out.settings import SHARED
from nanoset_core.stages.stage import Summary, counted


class HeldOutFinding(NamedTuple):
    """Held-out documents that train reads, in words."""

    what: str
    """How many there are."""
    where: str
    """File, line, split and id of the first one."""
    found: str
    """What train reads of the first one: itself, or a copy."""


def held_out_finding(facts: Mapping[str, Any]) -> HeldOutFinding | None:
    """Describe the documents of valid and test that train reads, too.

    Args:
        facts: Facts of the comparison of a nanoset's splits.

    Returns:
        The description, with the first document as an example; None if there are no such documents.
    """
    if not facts["first"]:
        return None

    n_in_train = facts["shared"] + facts["copies"]
    what = f"{n_in_train:,} of {facts['held_out']:,} documents that are held out are in train"
    if facts["copies"]:
        what += f", {facts['copies']:,} of them as a copy"

    # Describe the first pair of a held-out document and a document of train. Both are the same
    # document, or one is a copy of the other.
    first = facts["first"][0]
    line = f"{first['corpus']}/{first['file']}:{first['line']}"
    where = f"{line} ({first['split']})"
    if first["id"] is not None:
        where = f"{line} ({first['split']}, id {first['id']!r})"

    train_line = f"{first['train_corpus']}/{first['train_file']}:{first['train_line']}"
    if line == train_line:
        how = "train reads it"
    else:
        how = f"its tokens are those of {train_line}, which train reads"
    return HeldOutFinding(what=what, where=where, found=how)


def held_out_summary(manifest: Manifest) -> Summary:
    """Return the figures of a comparison, and a warning if train reads held-out documents."""
    figures = counted(manifest)
    finding = held_out_finding(manifest.facts)
    if finding is None:
        return Summary(figures)
    warning = f"{finding.what}: {finding.where}: {finding.found}; see {manifest.url(SHARED)}"
    return Summary(figures, warnings=[warning])
