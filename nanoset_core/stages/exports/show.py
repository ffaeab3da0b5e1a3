"""Summarise an export for `nanoset status` and the UI."""

from __future__ import annotations

import numpy as np

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.exports.writing import LINKED
from nanoset_core.stages.stage import Summary, counted


def export_summary(manifest: Manifest) -> Summary:
    """Return what `nanoset status` shows of an export, such as its documents, tokens and size.

    An export has the tokens of a dataset in the files of another program. Its file of tokens may be
    a link to that of the dataset. Then it takes no space of its own, and does not count in the
    size:

        tokens by           bytes
        written in order    2,001,000
        hard link           1,000        only the small files

    Args:
        manifest: Manifest of the export: its files, and facts such as the number of tokens.
    """
    facts = manifest.facts
    figures = counted(manifest, "documents", "tokens")
    if facts["made_by"] == LINKED:
        figures["bytes"] -= facts["tokens"] * np.dtype(facts["dtype"]).itemsize
    return Summary(figures, {"format": facts["format"], "tokens by": facts["made_by"]})
