"""Verify an inventory: warn of files that are not read, empty, smaller than before or missing.

None of these is an error, since a user may have intended it.
"""

from __future__ import annotations

from nanoset_core.errors import NanosetError
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.corpora import scan_corpora
from nanoset_core.stages.inventory.names import FOLDER
from nanoset_core.stages.inventory.notices import corpus_notices
from nanoset_core.stages.report import Report


def verify_inventory(project: Project, corpus: str) -> Report:
    """Warn of problems with the text files of a corpus.

        3 files are not read: …
        1 file is empty: …
        1 file is smaller than in the previous version: …
        2 files of the previous version are missing or were renamed: …

    Args:
        project: The project.
        corpus: Name of the corpus, a folder of texts.

    Returns:
        A report with a warning for each kind of problem.
    """
    report = Report(f"{FOLDER}/{corpus}")
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
    """Warn of everything in the folder of raw text that is not read at all.

    Each folder of texts in it is a corpus. A file next to them belongs to none, for example:

        raw/web/a.jsonl      the corpus "web"
        raw/b.jsonl          a warning

    Args:
        project: The project.

    Returns:
        A report with a warning for each such file or folder.
    """
    report = Report("raw")
    for name, reason in scan_corpora(project, names_only=True).unread_entries.items():
        report.warn(
            reason,
            where=project.config.raw_folder / name,
            remedy="put files there that are read, or move it out of the raw folder",
        )
    return report
