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
    relation_to_train: str
    """What train reads of the first one, as a clause: the document itself, or a copy of it."""


def held_out_finding(facts: Mapping[str, Any]) -> HeldOutFinding | None:
    """Describe the documents of valid and test that train reads, too.

    Train may read the document itself, which is then shared by two splits, or a copy: another
    document with the same tokens.

    Args:
        facts: What a comparison of a nanoset's splits has found. `held_out`, `shared` and `copies`
            are numbers of documents; `first` describes the first documents found.

    Returns:
        The description, with the first document as an example; None if there are no such documents.
    """
    if not facts["first"]:
        return None

    n_copies = facts["copies"]
    n_in_train = facts["shared"] + n_copies
    what = f"{n_in_train:,} of {facts['held_out']:,} documents that are held out are in train"
    if n_copies:
        what += f", {n_copies:,} of them as a copy"

    # The first held-out document, by its file and line.
    first = facts["first"][0]
    line = f"{first['corpus']}/{first['file']}:{first['line']}"
    where = f"{line} ({first['split']})"
    if first["id"] is not None:
        where = f"{line} ({first['split']}, id {first['id']!r})"

    # The document that train reads. If it has the same file and line, it is the same document.
    train_line = f"{first['train_corpus']}/{first['train_file']}:{first['train_line']}"
    relation_to_train = "train reads it"
    if train_line != line:
        relation_to_train = f"its tokens are those of {train_line}, which train reads"
    return HeldOutFinding(what, where, relation_to_train)


def held_out_summary(manifest: Manifest) -> Summary:
    """Return the figures of a comparison, and a warning if train reads held-out documents."""
    figures = counted(manifest)
    finding = held_out_finding(manifest.facts)
    if finding is None:
        return Summary(figures)
    example = f"{finding.where}: {finding.relation_to_train}"
    warning = f"{finding.what}: {example}; see {manifest.url(SHARED)}"
    return Summary(figures, warnings=[warning])
