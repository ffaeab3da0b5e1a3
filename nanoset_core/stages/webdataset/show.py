"""Summarise a webdataset for `nanoset status` and the UI: the counts of its shards and tokens."""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.stage import Summary, counted


def webdataset_summary(manifest: Manifest) -> Summary:
    """Return what `nanoset status` shows of a complete webdataset.

    Args:
        manifest: Manifest of the webdataset: its files, and facts about each tar.

    Returns:
        Counts of shards, sequences and tokens, and how many tokens of the sources are in no
        context.
    """
    dropped = manifest.facts["tokens_dropped"]
    details = {"tokens dropped": "" if dropped is None else f"{dropped:,}"}
    return Summary(counted(manifest, "shards", "sequences", "tokens"), details)
