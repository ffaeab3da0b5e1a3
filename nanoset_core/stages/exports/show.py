"""Summarise an export for `nanoset status` and the UI."""

from __future__ import annotations

import numpy as np

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.exports.writing import LINKED
from nanoset_core.stages.stage import Summary, counted


def export_summary(manifest: Manifest) -> Summary:
    """Return what `nanoset status` shows of an export, such as its documents, tokens and size.

    The size is the disk space that the export takes in addition to its dataset. An export has all
    tokens of the dataset. If these are a link to the dataset's file, they take no space, and are
    subtracted from the size of the files:

        tokens by           size of the files    bytes shown
        written in order    2,001,000            2,001,000
        hard link           2,001,000                1,000

    Args:
        manifest: Manifest of the export: its files, and facts such as the number of tokens.
    """
    facts = manifest.facts
    figures = counted(manifest, "documents", "tokens")  # and "bytes", the size of the files
    if facts["made_by"] == LINKED:
        figures["bytes"] -= facts["tokens"] * np.dtype(facts["dtype"]).itemsize
    return Summary(figures, {"format": facts["format"], "tokens by": facts["made_by"]})
