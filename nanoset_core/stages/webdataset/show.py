"""Summarise a webdataset for `nanoset status` and the UI: the counts of its shards and tokens."""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.stage import Summary, counted


def webdataset_summary(manifest: Manifest) -> Summary:
    """Return what `nanoset status` shows of a complete dataset of tar files.

    These are the counts of tars (shards), training samples (sequences) and tokens, such as "2
    shards, 15 sequences, 15,000 tokens", and how many tokens of the texts are in no sample.

    Args:
        manifest: Record of the dataset, with these counts.
    """
    dropped = manifest.facts["tokens_dropped"]  # None if it was not recorded
    details = {"tokens dropped": "" if dropped is None else f"{dropped:,}"}
    return Summary(counted(manifest, "shards", "sequences", "tokens"), details)
