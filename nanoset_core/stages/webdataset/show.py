"""What people are shown of a webdataset: its counts, and the tokens that fill no context."""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.stage import Summary, counted


def webdataset_summary(manifest: Manifest) -> Summary:
    """Return the figures of a complete webdataset."""
    dropped = manifest.facts["tokens_dropped"]
    details = {"tokens dropped": "" if dropped is None else f"{dropped:,}"}
    return Summary(counted(manifest, "shards", "sequences", "tokens"), details)
