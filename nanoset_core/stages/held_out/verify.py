"""Verify the comparison of a nanoset's splits: whether train reads documents that are held out."""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_current
from nanoset_core.stages.held_out.settings import SHARED
from nanoset_core.stages.held_out.show import held_out_finding
from nanoset_core.stages.held_out.stage import HELD_OUT
from nanoset_core.stages.report import Report, Severity
from nanoset_core.stages.stage import Key


def verify_held_out(project: Project, nanoset: str, deep: bool = False) -> Report:
    """Check the comparison of a nanoset's splits: its files, and what it found.

    Held-out documents that train reads are an error with `held_out: block`, otherwise a warning.
    """

    def report_finding(report: Report, manifest: Manifest, is_fresh: bool) -> None:
        finding = held_out_finding(manifest.facts)
        if finding is None:
            return
        severity: Severity = "warning"
        if project.nanoset(nanoset).held_out == "block":
            severity = "error"
        report.note(
            severity,
            finding.what,
            finding.where,
            finding.found,
            "none of them",
            "leave these out of what train reads, by `exclude` or `split` of a view; "
            f"{manifest.url(SHARED)} lists them",
        )

    figures = ("held_out", "shared", "copies")
    return check_current(project, HELD_OUT, Key(nanoset), report_finding, *figures, deep=deep)
