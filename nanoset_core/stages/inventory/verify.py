"""Verify an inventory: warn of files that are not read, empty, smaller than before or missing.

None of these is an error, since a user may have intended it.
"""

from __future__ import annotations

from nanoset_core.errors import NanosetError
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.corpora import scan_corpora
from nanoset_core.stages.inventory.make import STAGE
from nanoset_core.stages.inventory.notices import corpus_notices
from nanoset_core.stages.report import Report


def verify_inventory(project: Project, corpus: str) -> Report:
    """Return a report with a warning for each problem with the files of a corpus.

    Problems are files that are not read, empty, missing, or smaller than in the last build.

    Args:
        project: The project.
        corpus: Name of the corpus.
    """
    report = Report(f"{STAGE}/{corpus}")
    try:
        folder = project.config.corpus_folder(corpus)
        notices = corpus_notices(project, corpus)
    except NanosetError as error:
        report.add_exception(error, severity="warning")
        return report
    for notice in notices:
        if not notice.is_expected:
            report.warn(notice.text, where=folder, remedy=notice.remedy)
    return report


def verify_raw_folder(project: Project) -> Report:
    """Warn of files and folders in the raw folder that belong to no corpus, so are not read.

    Args:
        project: The project.

    Returns:
        A report with a warning for each of them.
    """
    report = Report("raw")
    for name, reason in scan_corpora(project, names_only=True).unread_entries.items():
        report.warn(
            reason,
            where=project.config.raw_folder / name,
            remedy="put files there that are read, or move it out of the raw folder",
        )
    return report
