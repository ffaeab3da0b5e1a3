"""What people are shown of a tokenized corpus: losses, repetitions, and rejected lines."""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.records.text import format_count
from nanoset_core.stages.shards.repeats import LOOK
from nanoset_core.stages.shards.shard_sets import recorded_losses, reject_files, repeats_warning
from nanoset_core.stages.stage import Summary


def tokenized_summary(project: Project, tokenized: Manifest) -> Summary:
    """Return warnings on lost and repeated text of a corpus, and its lists of rejected lines.

    Args:
        project: The project.
        tokenized: Manifest of the corpus's set of shards.
    """
    warnings = list(recorded_losses(project.outputs, tokenized).texts())
    repeats = repeats_warning(project, tokenized)
    if repeats:
        warnings.append(f"{repeats}: {LOOK}")  # where to look for the cause

    details = {}
    n_unreadable_files = tokenized.facts["faults"]
    if n_unreadable_files:
        details["unreadable"] = format_count(n_unreadable_files, "file")
    return Summary(details=details, warnings=warnings, rejects=reject_files(project, tokenized))
