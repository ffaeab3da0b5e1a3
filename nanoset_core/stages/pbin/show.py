"""What people are shown of a `.pbin`: its counts, and the size of a token."""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.stage import Summary, counted


def pbin_summary(manifest: Manifest) -> Summary:
    """Return the figures of a `.pbin`; see `PbinCounts` for the facts."""
    details = {
        "bytes a token": f"{manifest.facts['token_bytes']:,}",
        "left out": f"{manifest.facts['left_out']:,}",
    }
    return Summary(counted(manifest, "documents", "tokens"), details)
