"""Verify a handoff: check that the files with which a trainer is started are unchanged."""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_file, check_freshness, current_manifest
from nanoset_core.stages.handoff.stage import TRAINER_FILES
from nanoset_core.stages.report import BUILD, Report
from nanoset_core.stages.stage import Key

_REMEDY = f"{BUILD}; add your own options to the command after these arguments, not in the files"
"""What the user should do if a file was edited, which the next build would undo."""


def verify_handoff(project: Project, name: str) -> Report:
    """Check that the files which start a trainer are unchanged, and fit the present data.

    These files are called the handoff of the data. For example, arguments.txt must have the bytes
    that were written, and must have been made from the present versions of the index files.

    Args:
        project: The project.
        name: Name of the training data in nanoset.yaml, such as "pretrain".

    Returns:
        A report that lists what was checked, and the faults: a handoff that is missing, that was
        made from other inputs than the present ones, or that has a changed file.
    """
    key = Key(name)
    report = Report(TRAINER_FILES.report_name(key))
    with report.catching(remedy=BUILD):  # errors become faults of the report
        manifest = current_manifest(project, TRAINER_FILES, key)
        check_freshness(report, project, TRAINER_FILES, key, manifest)
        _check_files(report, manifest)
    return report


def _check_files(report: Report, manifest: Manifest) -> None:
    """Check all bytes of the files of a handoff, of several at the same time in a bucket.

    Args:
        report: Gets an error for each file that was deleted or changed, in the order of the files.
        manifest: The manifest of the handoff.
    """

    def check(name: str) -> Report:
        """Return a report on one file."""
        file_report = Report(report.output)
        check_file(file_report, manifest, name, deep=True, remedy=_REMEDY)  # deep: all bytes
        return file_report

    report.add_up(manifest.access.each(check, manifest.files))
