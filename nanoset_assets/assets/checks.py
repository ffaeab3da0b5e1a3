"""Asset checks: an output is verified before anything downstream is built from it.

Dagster runs the checks of an asset after each run of the asset. The check `verified` blocks
everything downstream if it finds errors, for example a shard whose file was cut off. Other checks
only show warnings, such as documents that contain texts of evaluations.
"""

# There is no `from __future__ import annotations` here: Dagster reads the annotations of functions
# that it calls, and does not understand them as texts.

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import dagster as dg

from nanoset_assets.assets.output_names import asset_path
from nanoset_assets.assets.stage_assets import (
    asset_outputs,
    check_partition_is_chosen,
    key_of,
    partitions_of,
)
from nanoset_assets.assets.table import shape_of
from nanoset_assets.project_defs import ProjectDefs
from nanoset_assets.tags import CHECK, RECORDED
from nanoset_assets.ui.metadata import table, visible_metadata
from nanoset_core.errors import NanosetError
from nanoset_core.project.project import Project
from nanoset_core.stages.check_records import record_outcome
from nanoset_core.stages.registry import stages
from nanoset_core.stages.report import BUILD, Report
from nanoset_core.stages.stage import (
    Key,
    Node,
    Stage,
    require,
    settings_warnings,
)
from nanoset_core.untrusted import Multiline, visible

NOTHING_WRONG = "nothing is wrong"
"""The description of a check that found nothing."""
_FINDING_COLUMNS = ("severity", "output", "what", "where", "found", "expected", "remedy")
"""The attributes of a finding that the UI shows as columns of a table."""
_Evaluate = Callable[[dg.AssetCheckExecutionContext, ProjectDefs, Stage, Key], dg.AssetCheckResult]
"""A function that checks one output of a stage in a run."""


class VerificationError(NanosetError, ValueError):
    """A check found errors in an output that was just made."""


@dataclass(frozen=True, slots=True)
class _Check:
    """One kind of check of a stage's assets."""

    name: str
    description: str
    """What it examines, for the UI."""
    is_blocking: bool
    """Whether errors keep runs from making anything downstream."""
    evaluate: _Evaluate
    """Executes the check for one output."""


def checks_for(project_defs: ProjectDefs) -> list[dg.AssetChecksDefinition]:
    """Return the asset checks of the project, one or two for each asset.

    In Dagster, an asset is what is made (such as the datasets of all text collections), and a check
    is a function that examines it after each run. For example, `indexed_dataset` has the check
    `verified`, which reads the dataset that was just made and compares it with its list of digests.

    Args:
        project_defs: The names and settings of the project in Dagster. Its settings decide which
            assets there are.

    Returns:
        The definitions of the checks. Each examines one partition of its asset in a run, such as
        the dataset of `web`.
    """
    definitions: list[dg.AssetChecksDefinition] = []
    for stage in stages():
        checks = _checks_of(stage)
        for subject, keys in asset_outputs(stage, project_defs.config).items():
            for check in checks:
                definitions.append(_define_check(project_defs, stage, subject, keys, check))
    return definitions


def _checks_of(stage: Stage) -> list[_Check]:
    """Return the checks that the assets of one stage have. A stage makes one kind of output.

    There are two kinds of checks:

    - One verifies that files are intact. If it finds errors, nothing is made from the output.
    - One shows warnings, such as documents that contain texts of evaluations. It stops nothing.

    They are two checks since Dagster makes nothing from an asset whose first check has failed, even
    if it has failed with a warning only.

    Args:
        stage: The stage, such as the one that makes datasets.

    Returns:
        One or two checks: the one that verifies first. Every asset has that one, so that nothing is
        built from a damaged output.
    """
    shape = shape_of(stage)
    checks = [_Check(CHECK, shape.check, is_blocking=True, evaluate=_verify)]
    warning = shape.warning_check
    if warning is not None:
        checks.append(_Check(warning.name, warning.description, is_blocking=False, evaluate=_warn))
    return checks


def _define_check(
    project_defs: ProjectDefs, stage: Stage, subject: str, keys: Sequence[Key], kind: _Check
) -> dg.AssetChecksDefinition:
    """Define a check of an asset, which Dagster executes after each run of the asset.

    Args:
        project_defs: The names and settings of the project in Dagster.
        stage: The step of the pipeline that makes the asset.
        subject: What the asset is made for, such as the data mixture "pretrain"; `ALL_CORPORA` for
            an asset of all text collections.
        keys: The outputs of the asset, such as its splits. A check examines one of them.
        kind: The name of the check, and the function that does it.
    """
    asset = project_defs.names.asset(asset_path(Node(stage, Key(subject))))
    with warnings.catch_warnings():
        # Dagster warns that checks with partitions are a preview feature. They are needed: without
        # partitions, the UI would not show which output has failed.
        warnings.filterwarnings("ignore", category=dg.PreviewWarning)

        @dg.asset_check(
            asset=asset,
            name=kind.name,
            description=kind.description,
            blocking=kind.is_blocking,
            partitions_def=partitions_of(stage, project_defs, keys),
        )
        def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
            """Check the output that is the partition of this run."""
            check_partition_is_chosen(context, project_defs)
            output = key_of(context, stage, subject)
            return kind.evaluate(context, project_defs, stage, output)

    return check


def _verify(
    context: dg.AssetCheckExecutionContext, project_defs: ProjectDefs, stage: Stage, key: Key
) -> dg.AssetCheckResult:
    """Verify an output that was just made, and return the result of the check for Dagster.

    For example, if the file of a shard was cut off, the check fails, and Dagster builds nothing
    from this output. Each error and warning is a *finding*, which says what is wrong and where.
    They are written to the log of the run, and shown as a table in Dagster's web page.

    Args:
        context: Dagster's context of the run, with its log.
        project_defs: The names and settings of the project in Dagster.
        stage: The stage (step of the pipeline) that makes the output.
        key: Which of its outputs is verified.
    """
    project = project_defs.load_in_step(context)
    report = stage.verify(project, key)
    has_failure_record = _try_to_record(context.log, project, Node(stage, key), report)
    if report.passed and has_failure_record:
        report.error(
            "`nanoset verify --deep` has found an error, which this quick check cannot find",
            remedy=f"{BUILD}, or materialize the asset: it is made again",
        )
    if not report.passed:
        # `nanoset build` reports this error, since Dagster's own says only that the run failed.
        project_defs.failures.append((Node(stage, key), _verification_error(report)))
    _log_findings(context.log, report)
    return _check_result(report, has_failure_record=has_failure_record)


def _try_to_record(log: dg.DagsterLogManager, project: Project, node: Node, report: Report) -> bool:
    """Record whether an output is right; if that is impossible, log a warning.

    Dagster's history has the result, too, but another machine may have another history, and
    commands such as `nanoset status` do not read it. The disk may be full, or read-only for this
    user. That must not hide what the check has found.

    Args:
        log: The log of the run.
        project: The project.
        node: The output.
        report: What the check has found.

    Returns:
        Whether there is a record of a failure now.
    """
    try:
        return record_outcome(project, node, report, is_deep=False)
    except (NanosetError, OSError) as error:
        text = f"this result is not recorded, so `nanoset status` may be wrong: {error}"
        log.warning(visible(text))
        return False


def _check_result(report: Report, *, has_failure_record: bool) -> dg.AssetCheckResult:
    """Return the result of a verification as Dagster shows it: passed or failed, with a table.

    Args:
        report: The result of the verification. Each finding is one error or warning.
        has_failure_record: Whether a record of the failure was stored next to the outputs. This is
            noted in Dagster's history.
    """
    metadata = visible_metadata(report.figures)
    if report.findings:
        metadata["findings"] = _findings_table(report)
    if has_failure_record:
        metadata[RECORDED] = True
    description = "; ".join(finding.what for finding in report.findings)
    return dg.AssetCheckResult(
        passed=report.passed,
        description=visible(description or NOTHING_WRONG),
        metadata=metadata,
    )


def _log_findings(log: dg.DagsterLogManager, report: Report) -> None:
    """Write each error and warning of a verification into the log of a run.

    They may quote text of users, so characters that could steer a terminal are escaped.

    Args:
        log: The log of the run.
        report: The result of the verification. Each finding is one error or warning.
    """
    for finding in report.findings:
        text = visible(Multiline(finding))
        if finding.severity == "error":
            log.error(text)
        else:
            log.warning(text)


def _findings_table(report: Report) -> dg.TableMetadataValue:
    """Return a table for Dagster's web page, with a row for each finding (an error or a warning).

    Its columns are _FINDING_COLUMNS. Values that a finding does not have are empty:

        severity    output          what                     where       …
        error       datasets/web    (what is wrong there)    web.bin     …

    Args:
        report: The result of a verification.
    """
    rows: list[dict[str, object]] = []
    for finding in report.findings:
        rows.append({column: getattr(finding, column) or "" for column in _FINDING_COLUMNS})
    return table(rows)


def _verification_error(report: Report) -> VerificationError:
    """Return the error that `nanoset build` prints for an output whose verification has failed.

    It describes the first problem and counts the others: "what was made is not right: (first
    problem) (and 2 more: run `nanoset verify`)".

    Args:
        report: The result of the verification, with at least one error.
    """
    first = report.errors[0]
    message = f"what was made is not right: {first.what}"
    n_more = len(report.errors) - 1
    if n_more:
        message += f" (and {n_more:,} more: run `nanoset verify`)"

    where = first.output  # such as "datasets/web"
    if first.where is not None:
        where += f": {first.where}"
    return VerificationError(
        message, where=where, found=first.found, expected=first.expected, remedy=first.remedy
    )


def _warn(
    context: dg.AssetCheckExecutionContext, project_defs: ProjectDefs, stage: Stage, key: Key
) -> dg.AssetCheckResult:
    """Check an output for what is allowed, but perhaps not intended; return the result for Dagster.

    For example, documents contain texts of evaluations. Dagster shows this as a warning, and still
    builds what is made from the output.

    Args:
        context: Dagster's context of the run.
        project_defs: The names and settings of the project in Dagster.
        stage: The step of the pipeline that makes the output.
        key: Which of its outputs is examined.

    Raises:
        MissingError: The output has not been built.
    """
    project = project_defs.load_in_step(context)
    manifest = require(project, stage, key)  # the record of the output
    warnings_of_content = stage.show(project, manifest).warnings
    warnings_of_settings = settings_warnings(stage, project.config, key)
    texts = [*warnings_of_content, *warnings_of_settings]
    return dg.AssetCheckResult(
        passed=not texts,
        severity=dg.AssetCheckSeverity.WARN,
        description=visible("; ".join(texts) or NOTHING_WRONG),
    )
