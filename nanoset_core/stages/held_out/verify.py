"""Verify what was found for a nanoset: whether train reads documents that are held out."""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_current
from nanoset_core.stages.held_out.stage import HELD_OUT, SHARED, finding
from nanoset_core.stages.report import Report
from nanoset_core.stages.stage import Key


def verify_held_out(project: Project, nanoset: str, deep: bool = False) -> Report:
    """Check what was found for a nanoset: its files, and, with `held_out: block`, that train reads
    nothing of it.
    """

    def look(report: Report, manifest: Manifest, is_fresh: bool) -> None:
        if (found := finding(manifest.facts)) is not None:
            tell = report.error if project.nanoset(nanoset).held_out == "block" else report.warn
            remedy = f"leave these out of what train reads, by `exclude` or `split` of a view; {manifest.url(SHARED)}"
            tell(*found, "none of them", f"{remedy} lists them")

    return check_current(
        project, HELD_OUT, Key(nanoset), look, "held_out", "shared", "copies", deep=deep
    )
