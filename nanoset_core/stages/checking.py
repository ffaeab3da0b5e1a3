"""Checks that most outputs have in common: whether the current version is fresh and whole."""

from __future__ import annotations

from collections.abc import Callable

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.graph import stale_reasons
from nanoset_core.project.project import Project
from nanoset_core.stages.report import BUILD, Report, check_files, live_manifest
from nanoset_core.stages.stage import Key, Stage


def check_current(
    project: Project,
    stage: Stage,
    key: Key,
    look: Callable[[Report, Manifest, bool], None],
    *figures: str,
    deep: bool | None = None,
) -> Report:
    """Check the current version of an output: its files, its freshness, and what `look` checks.

    Args:
        project: The project.
        stage: Stage of the output.
        key: The output.
        look: Does the checks of the stage. It is called with the report, the manifest, and whether
            the output is fresh.
        figures: Names of facts in the manifest that are added to the report.
        deep: Whether files are read to compare their sha256; None if `look` checks the files.
    """
    folder = stage.layout.folder
    name = stage.layout.name_of(key)
    report = Report(f"{folder}/{name}")
    with report.catching(BUILD):
        manifest = live_manifest(project.outputs, folder, name)
        for figure in figures:
            report.figures[figure] = manifest.facts[figure]
        if deep is not None:
            check_files(report, manifest, deep=deep)
        is_fresh = check_freshness(report, project, stage, key, manifest)
        look(report, manifest, is_fresh)
    return report


def check_freshness(
    report: Report, project: Project, stage: Stage, key: Key, manifest: Manifest
) -> bool:
    """Warn if an output is stale; return whether it is fresh.

    Args:
        report: Report to add to. The warning gives the same reasons as `nanoset status`.
        project: The project.
        stage: Stage of the output.
        key: The output.
        manifest: Manifest of its current version.
    """
    reasons = stale_reasons(project, stage, key)
    if not reasons:
        return True
    report.warn(
        "this output is stale", where=manifest.folder, found="; ".join(reasons), remedy=BUILD
    )
    return False
