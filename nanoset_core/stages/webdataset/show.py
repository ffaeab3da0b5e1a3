"""Summarise a webdataset for `nanoset status` and the UI: the counts of its shards and tokens."""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.stage import Summary, counted


def webdataset_summary(manifest: Manifest) -> Summary:
    """Return what `nanoset status` shows of a complete dataset of tar files.

    These are the counts of tars (shards), training samples (sequences) and tokens, such as "2
    shards, 15 sequences, 15,000 tokens", and what of the texts is in no sample:

        tokens dropped       294    at the ends of texts: too few for a sample
        contexts left out    11     samples in no tar, so that all tars have the same number

    Args:
        manifest: Record of the dataset, with these counts.
    """
    dropped = manifest.facts["tokens_dropped"]  # None if it was not recorded
    details = {"tokens dropped": "" if dropped is None else f"{dropped:,}"}
    left_out = manifest.facts.get("contexts_left_out")  # datasets of old versions do not have it
    if left_out:
        details["contexts left out"] = f"{left_out:,}"
    return Summary(counted(manifest, "shards", "sequences", "tokens"), details)
