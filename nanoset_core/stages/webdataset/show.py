"""Summarise a webdataset for `nanoset status` and the UI."""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.stage import Summary, counted


def webdataset_summary(manifest: Manifest) -> Summary:
    """Return the counts of a complete webdataset, and of the tokens that are in no context."""
    dropped = manifest.facts["tokens_dropped"]
    details = {"tokens dropped": "" if dropped is None else f"{dropped:,}"}
    return Summary(counted(manifest, "shards", "sequences", "tokens"), details)
