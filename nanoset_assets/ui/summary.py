"""The default page, which shows the `Summary` that a stage returns.

Most outputs have a page of their own in this package. For any other, such as an output of a stage
that another package defines, the page shows its warnings, figures, details and preview.
"""

from __future__ import annotations

from typing import Any

from nanoset_assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import bold_code, folded, markdown, table
from nanoset_core.stages.stage import Summary


def summary_page(run: AssetRun) -> dict[str, Any]:
    """Make an output, and return what the UI shows of its summary.

    Args:
        run: The run of any asset whose stage has no page of its own.

    Returns:
        Name → value, as Dagster's UI shows them; see `summary_metadata`.

    Raises:
        NanosetError: The output could not be made.
    """
    manifest = run.make()
    summary = run.stage.show(run.project, manifest)
    for warning in summary.warnings:
        run.warn(warning)
    return summary_metadata(summary)


def summary_metadata(summary: Summary) -> dict[str, Any]:
    """Return what the UI shows of an output whose stage has no page of its own.

    Args:
        summary: The summary of the output: warnings, figures, details and a preview.

    Returns:
        Name → value: the warnings in bold, each figure under its own name (such as `documents`),
        the details as a table, and the preview as Markdown.
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
