"""The page of any output: what its stage shows of it, as Dagster's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanoset_assets.ui.metadata import code, folded, markdown, table
from nanoset_core.stages.stage import Summary


def summary_metadata(summary: Summary) -> Mapping[str, Any]:
    """Return the metadata of a version: its warnings and figures, a table of its details, and a preview."""
    metadata: dict[str, Any] = {}
    if summary.warnings:
        metadata["warnings"] = markdown(*[f"**{code(warning)}**" for warning in summary.warnings])
    metadata |= {name: count for name, count in summary.figures.items() if name != "bytes"}
    if summary.details:
        metadata["details"] = table([summary.details])
    if summary.preview:
        metadata["preview"] = folded(summary.preview)
    return metadata
