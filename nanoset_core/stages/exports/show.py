"""What people are shown of an export: its counts, its format, and where its tokens come from."""

from __future__ import annotations

import numpy as np

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.exports.writing import JOINED, WRITTEN
from nanoset_core.stages.stage import Summary, counted


def export_summary(manifest: Manifest) -> Summary:
    """Return the figures of an export."""
    facts = manifest.facts
    figures = counted(manifest, "documents", "tokens")
    if facts["made_by"] not in (WRITTEN, JOINED):
        # The tokens are a link to those of the dataset, or share its blocks, and take no room of
        # their own.
        figures["bytes"] -= facts["tokens"] * np.dtype(facts["dtype"]).itemsize
    return Summary(figures, {"format": facts["format"], "tokens by": facts["made_by"]})
