"""The default page, which shows the `Summary` that a stage returns."""

from __future__ import annotations

from typing import Any

from nanoset_assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import bold_code, folded, markdown, table
from nanoset_core.stages.stage import Summary


def summary_page(run: AssetRun) -> dict[str, Any]:
    """Make an output, and return the metadata of its summary."""
    manifest = run.make()
    summary = run.stage.show(run.project, manifest)
    for warning in summary.warnings:
        run.warn(warning)
    return summary_metadata(summary)


def summary_metadata(summary: Summary) -> dict[str, Any]:
    """Return what the UI shows of an output whose stage has no page of its own.

    Args:
        summary: The summary of the output: warnings, figures, details and a preview.
    """
    metadata: dict[str, Any] = {}
    if summary.warnings:
        metadata["warnings"] = markdown(*map(bold_code, summary.warnings))
    for name, count in summary.figures.items():
        if name != "bytes":  # every page has the size of the output
            metadata[name] = count
    if summary.details:
        metadata["details"] = table([summary.details])
    if summary.preview:
        metadata["preview"] = folded(summary.preview)
    return metadata
