"""Verify a handoff: check that the files with which a trainer is started are unchanged."""

from __future__ import annotations

from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_freshness
from nanoset_core.stages.handoff.stage import TRAINER_FILES
from nanoset_core.stages.report import BUILD, Report, check_file, live_manifest
from nanoset_core.stages.stage import Key

_REMEDY = f"{BUILD}; add your own options to the command after these arguments, not in the files"


def verify_handoff(project: Project, name: str) -> Report:
    """Check every byte of a nanoset's current handoff, since its files are small.

    Args:
        project: The project.
        name: Name of the nanoset.
    """
    key = Key(name)
    folder = TRAINER_FILES.layout.folder
    output = TRAINER_FILES.layout.name_of(key)
    report = Report(f"{folder}/{output}")
    with report.catching(BUILD):
        manifest = live_manifest(project.outputs, folder, output)
        check_freshness(report, project, TRAINER_FILES, key, manifest)
        for file in manifest.files:
            check_file(report, manifest, file, deep=True, remedy=_REMEDY)
    return report
