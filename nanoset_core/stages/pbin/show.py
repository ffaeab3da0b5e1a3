"""Summarise a `.pbin` for `nanoset status` and the UI.

For example: 1,200 documents, 980,112 tokens of 2 bytes, and 3 documents left out.
"""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.stage import Summary, counted


def pbin_summary(manifest: Manifest) -> Summary:
    """Return the counts of a `.pbin`, the size of its tokens, and the documents left out.

    Args:
        manifest: Manifest of the `.pbin`. A document is left out if it has no tokens.
    """
    details = {
        "bytes a token": f"{manifest.facts['token_bytes']:,}",
        "left out": f"{manifest.facts['left_out']:,}",
    }
    return Summary(counted(manifest, "documents", "tokens"), details)
