"""Verify the comparison of a nanoset's splits: whether train reads documents that are held out.

For example, if train reads line 12 of web/a.jsonl, and so does valid, the report has a warning with
this line. If the nanoset sets `held_out: block`, the comparison also forbids making its index files
of train: `check_not_leaked` raises the error.
"""

from __future__ import annotations

from nanoset_core.errors import ForbiddenError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_files, check_freshness, current_manifest
from nanoset_core.stages.held_out.names import SHARED
from nanoset_core.stages.held_out.show import held_out_finding, removal_text
from nanoset_core.stages.held_out.stage import HELD_OUT
from nanoset_core.stages.report import BUILD, Report
from nanoset_core.stages.stage import Key


def verify_held_out(project: Project, nanoset: str, *, deep: bool) -> Report:
    """Check that train reads no documents that are meant for valid or test, as far as is known.

    An earlier step has compared what they read, and stored a list of such documents. So this only
    checks that the list is whole and up to date, and reports what is in it.

    Args:
        project: The project.
        nanoset: Name of the training data, such as "pretrain".
        deep: Compare the sha256 of the stored files; otherwise only their sizes.

    Returns:
        The report. Such documents are a warning in it, whatever the setting `held_out`: the list is
        right.
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
        try:
            check_not_leaked(manifest)
        except ForbiddenError as error:
            report.add_exception(error, severity="warning")
    return report


def check_not_leaked(manifest: Manifest) -> None:
    """Check that train reads no document of valid and test, and no copy of one.

    The error names the first one as an example:

        5 of 200 documents that are held out are in train
        where       web/a.jsonl:12 (valid)
        found       train reads it
        expected    none of them

    Args:
        manifest: The result of the comparison, with these texts as facts.

    Raises:
        ForbiddenError: Train reads such a document. The remedy says how to remove them all.
    """
    finding = held_out_finding(manifest.facts)
    if finding is None:
        return
    raise ForbiddenError(
        finding.how_many,
        where=finding.example_line,
        found=finding.example_in_train,
        expected="none of them",
        remedy=removal_text(manifest.facts, manifest.url(SHARED)),
    )
