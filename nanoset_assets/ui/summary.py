"""The default page, which shows the `Summary` that a stage returns.

Most outputs have a page of their own in this package. For any other, such as an output of a stage
that another package defines, the page shows its figures, details and preview.
"""

from __future__ import annotations

from typing import Any

from nanoset_assets.assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import folded, table
from nanoset_core.stages.stage import Summary


def summary_page(run: AssetRun) -> dict[str, Any]:
    """Make an output, and return what Dagster's UI shows of it, whatever kind of output it is.

    Each step of the data pipeline can have a page of its own in the UI. This one is for steps that
    have none, such as those that another package adds to the pipeline.

    Args:
        run: Executes a Dagster asset. `run.make()` writes its output, and returns the record of its
            files and counts. `run.stage` is the step of the pipeline, which can summarise its
            output.

    Returns:
        What the page of the asset shows: heading → value. See `summary_metadata`.

    Raises:
        NanosetError: The output could not be made.
    """
    manifest = run.make()
    run.summary = run.stage.show(run.project, manifest)
    return summary_metadata(run.summary)


def summary_metadata(summary: Summary) -> dict[str, Any]:
    """Arrange the summary of an output for Dagster's UI, whatever kind of output it is.

    For example, a summary with two figures, a detail and a preview becomes:

        documents    5000
        tokens       1234567
        details      a table: language "en"
        preview      the start of the text, in a separate window

    Args:
        summary: What the step of the pipeline says about its output. Each field may be empty.

    Returns:
        Heading → value, as in the example. Fields that are empty are left out, and warnings, which
        every page has.
    """
    metadata: dict[str, Any] = {}
    for name, count in summary.figures.items():
        if name != "bytes":  # every page has the size of the output
            metadata[name] = count
    if summary.details:
        metadata["details"] = table([summary.details])
    if summary.preview:
        metadata["preview"] = folded(summary.preview)
    return metadata
