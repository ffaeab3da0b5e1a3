"""Summarise an export for `nanoset status` and the UI."""

from __future__ import annotations

import numpy as np

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.exports.writing import JOINED, WRITTEN
from nanoset_core.stages.stage import Summary, counted


def export_summary(manifest: Manifest) -> Summary:
    """Return the counts and size of an export, its format, and how it got its tokens.

    Args:
        manifest: Manifest of the export: its files, and facts such as the number of tokens.

    Returns:
        What `nanoset status` shows. Tokens that are a link to those of the dataset do not count in
        the size.
    """
    facts = manifest.facts
    figures = counted(manifest, "documents", "tokens")
    if facts["made_by"] not in (WRITTEN, JOINED):
        # The tokens are a link to those of the dataset, or share its blocks on the disk, so they
        # take no additional space.
        figures["bytes"] -= facts["tokens"] * np.dtype(facts["dtype"]).itemsize
    return Summary(figures, {"format": facts["format"], "tokens by": facts["made_by"]})
