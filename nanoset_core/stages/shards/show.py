"""What people are shown of a tokenized corpus: losses, repetitions, and rejected lines."""

from __future__ import annotations

from collections.abc import Iterable

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.shards.repeats import LOOK
from nanoset_core.stages.shards.shard_sets import (
    id_key_warning,
    recorded_losses,
    reject_files,
    repeats_warning,
)
from nanoset_core.stages.stage import Summary
from nanoset_core.wording import format_count


def tokenized_summary(
    project: Project, tokenized: Manifest, shards: Iterable[Manifest] | None = None
) -> Summary:
    """Return what `nanoset status` shows of a tokenized corpus: what was lost or is repeated.

        warning    3 rejected lines that may be damaged (invalid_json 3): 3 in a.jsonl
        warning    no document has an id at 'docid', …
        warning    12.0% of the documents repeat others, more than …
        detail     unreadable: 1 file
        rejects    shards/web/3f9c…/rejects.jsonl, a list of the rejected lines

    Args:
        project: Its outputs are read, and its limit for repeated documents.
        tokenized: Manifest of the tokenized corpus, which records what was lost.
        shards: The parts in which it was tokenized, if the caller has read their manifests already.
    """
    losses = recorded_losses(project.outputs, tokenized, shards)
    warnings = list(losses.texts())
    id_warning = id_key_warning(project, tokenized)
    if id_warning:
        warnings.append(id_warning)
    repeats = repeats_warning(project, tokenized)
    if repeats:
        where_to_look = LOOK
        warnings.append(f"{repeats}: {where_to_look}")

    details = {}
    n_unreadable_files = tokenized.facts["faults"]  # files that could not be read to their end
    if n_unreadable_files:
        details["unreadable"] = format_count(n_unreadable_files, "file")
    return Summary(details=details, warnings=warnings, rejects=reject_files(losses))
