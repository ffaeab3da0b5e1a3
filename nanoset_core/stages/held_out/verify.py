"""Verify the comparison of a nanoset's splits: whether train reads documents that are held out.

For example, if train reads line 12 of web/a.jsonl, and so does valid, the report has an error or a
warning with this line, depending on the nanoset's setting `held_out`.
"""

from __future__ import annotations

from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_files, check_freshness, current_manifest
from nanoset_core.stages.held_out.names import SHARED
from nanoset_core.stages.held_out.show import HeldOutFinding, held_out_finding, removal_text
from nanoset_core.stages.held_out.stage import HELD_OUT
from nanoset_core.stages.report import BUILD, Report, Severity
from nanoset_core.stages.stage import Key


def verify_held_out(project: Project, nanoset: str, *, deep: bool = False) -> Report:
    """Check that train reads no documents that are meant for valid or test, as far as is known.

    An earlier step has compared what they read, and stored a list of such documents. So this only
    checks that the list is whole and up to date, and reports what is in it.

    Args:
        project: The project.
        nanoset: Name of the training data, such as "pretrain".
        deep: Compare the sha256 of the stored files; otherwise only their sizes.

    Returns:
        The report. Such documents are an error in it if the settings say `held_out: block`, and a
        warning otherwise.
    """
    key = Key(nanoset)
    report = Report(HELD_OUT.report_name(key))
    with report.catching(remedy=BUILD):  # errors that are raised go into the report
        manifest = current_manifest(project, HELD_OUT, key)
        # Numbers of documents: all that valid or test reads; those of them that train reads, too;
        # and those of which train reads a copy.
        report.copy_facts(manifest, ["held_out", "shared", "copies"])
        check_files(report, manifest, deep=deep)
        check_freshness(report, project, HELD_OUT, key, manifest)

        finding = held_out_finding(manifest.facts)
        if finding is not None:
            blocks_training = project.nanoset(nanoset).held_out == "block"
            severity: Severity = "error" if blocks_training else "warning"
            remedy = removal_text(manifest.facts, manifest.url(SHARED))
            _report_leak(report, finding, severity, remedy)
    return report


def _report_leak(report: Report, finding: HeldOutFinding, severity: Severity, remedy: str) -> None:
    """Report that train reads documents of valid or test, with the first one as an example.

    For example, the report has this error:

        5 of 200 documents that are held out are in train
        where       web/a.jsonl:12 (valid)
        found       train reads it
        expected    none of them

    Args:
        report: Gets the error or warning.
        finding: The first three of these texts. The last two are about the example.
        severity: Whether it is an error or a warning.
        remedy: How to remove these documents.
    """
    report.add(
        finding.how_many,
        severity=severity,
        where=finding.example_line,
        found=finding.example_in_train,
        expected="none of them",
        remedy=remedy,
    )
