"""Record next to the outputs what a check of one of them has found.

There are two callers, and an error has the same consequences from both: Dagster's check `verified`,
after an output was made, and `nanoset verify`, at any time later. As long as an error is recorded,
nothing is built from the output, and the next build makes the output again.
"""

from __future__ import annotations

from nanoset_core.outputs import failed_checks
from nanoset_core.outputs.failed_checks import FailedChecks
from nanoset_core.project.project import Project
from nanoset_core.stages.report import Report
from nanoset_core.stages.stage import InParts, Node, current_version


def record_outcome(project: Project, node: Node, report: Report, *, is_deep: bool) -> bool:
    """Record whether an output is right, for `nanoset status` and builds, on all machines.

        outcome of the check                        the record
        an error in what the output contains        is written
        the output could not be examined            stays as it is
        no error                                    is removed
        no error, but an earlier deep check had     stays: a quick check may miss the error
          found one, and this check is quick

    Args:
        project: The project.
        node: The output.
        report: What the check has found in this output.
        is_deep: Whether the check has read every byte.

    Returns:
        Whether there is a record of a failure of the current version now.

    Raises:
        NanosetError: The record cannot be written to a bucket, or removed from it.
        OSError: The same for outputs on a disk.
    """
    outputs = project.outputs
    folder = node.stage.layout.folder
    if not report.passed and not report.has_damage:
        return False

    earlier_checks = FailedChecks.read(outputs)  # usually none
    if report.passed and not earlier_checks.includes_output(folder, node.name):
        return False

    digest = None  # a part, such as a group of tars, has no version of its own
    if not isinstance(node.stage, InParts):
        manifest = current_version(project, node.stage, node.key).manifest
        if manifest is not None:
            digest = manifest.digest
        elif not report.passed:
            return False  # there is no version, which every command notices by itself

    needs_deep_check = earlier_checks.needs_deep_check(folder, node.name, digest)
    if not report.passed:
        failed_checks.record_failure(
            outputs, folder, node.name, digest, is_deep=is_deep or needs_deep_check
        )
        return True
    if needs_deep_check and not is_deep:
        return True
    failed_checks.record_success(outputs, folder, node.name)
    return False
