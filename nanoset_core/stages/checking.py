"""Checks that most outputs have in common: whether the current version is fresh, and its files
whole.
"""

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
    """Check the current version of an output: whether it is fresh, where `deep` is given its files,
    and as `look` does.

    `look` takes the report, the manifest, and whether it is fresh; `figures` are facts for the
    report.
    """
    folder, name = stage.layout.folder, stage.layout.name_of(key)
    report = Report(f"{folder}/{name}")
    with report.catching(BUILD):
        manifest = live_manifest(project.outputs, folder, name)
        report.figures.update({name: manifest.facts[name] for name in figures})
        if deep is not None:
            check_files(report, manifest, deep=deep)
        look(report, manifest, check_freshness(report, project, stage, key, manifest))
    return report


def check_freshness(
    report: Report, project: Project, stage: Stage, key: Key, manifest: Manifest
) -> bool:
    """Warn where an output is stale, in the words of `nanoset status`; return whether it is fresh."""
    if reasons := stale_reasons(project, stage, key):
        report.warn("this output is stale", manifest.folder, "; ".join(reasons), None, BUILD)
    return not reasons
