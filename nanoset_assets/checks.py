"""Asset checks: an output is verified before anything downstream is built from it."""

import warnings
from collections.abc import Callable, Sequence

import dagster as dg

from nanoset_assets.asset_names import asset_path
from nanoset_assets.asset_table import shape_of
from nanoset_assets.project_defs import ProjectDefs
from nanoset_assets.stage_assets import asset_outputs, key_of, partitions_of
from nanoset_assets.tags import CHECK
from nanoset_assets.ui.metadata import table, visible_metadata
from nanoset_core.errors import NanosetError
from nanoset_core.stages.registry import stages
from nanoset_core.stages.report import Report
from nanoset_core.stages.stage import Key, Node, Stage, require, settings_warnings
from nanoset_core.untrusted import Multiline, visible

NOTHING_WRONG = "nothing is wrong"
"""The description of a check that found nothing."""
_FINDING_COLUMNS = ("severity", "output", "what", "where", "found", "expected", "remedy")
"""The attributes of a finding that the UI shows as columns of a table."""
_Evaluate = Callable[[dg.AssetCheckExecutionContext, ProjectDefs, Stage, Key], dg.AssetCheckResult]
"""A function that checks one output of a stage in a run."""


class VerificationError(NanosetError, ValueError):
    """A check found errors in an output that was just made."""


def checks_for(project_defs: ProjectDefs) -> list[dg.AssetChecksDefinition]:
    """Return the asset checks of the project.

    A check that verifies an output blocks everything downstream if it finds errors. Warnings have a
    separate check, which blocks nothing: Dagster's automation conditions build nothing from an
    asset whose blocking check has failed, even with a mere warning.
    """
    checks: list[dg.AssetChecksDefinition] = []
    for stage in stages():
        shape = shape_of(stage)
        for subject, keys in asset_outputs(stage, project_defs.config).items():
            if shape.check is not None:
                verifying_check = _make_check(
                    project_defs=project_defs,
                    stage=stage,
                    subject=subject,
                    keys=keys,
                    name=CHECK,
                    description=shape.check,
                    is_blocking=True,
                    evaluate=_verify,
                )
                checks.append(verifying_check)
            if shape.warning_check is not None:
                warning_check = _make_check(
                    project_defs=project_defs,
                    stage=stage,
                    subject=subject,
                    keys=keys,
                    name=shape.warning_check.name,
                    description=shape.warning_check.description,
                    is_blocking=False,
                    evaluate=_warn,
                )
                checks.append(warning_check)
    return checks


def _make_check(
    *,
    project_defs: ProjectDefs,
    stage: Stage,
    subject: str,
    keys: Sequence[Key],
    name: str,
    description: str,
    is_blocking: bool,
    evaluate: _Evaluate,
) -> dg.AssetChecksDefinition:
    """Make one check of an asset. A run of the check examines one partition of the asset.

    Args:
        project_defs: The project, for names in Dagster and to open it in a run.
        stage: The stage whose outputs the asset contains.
        subject: The nanoset, webdataset, … whose asset is checked; `ALL_CORPORA` for an asset whose
            partitions are corpora.
        keys: The outputs of the asset, which decide its partitions.
        name: The name of the check.
        description: What the check examines, for the UI.
        is_blocking: Whether errors keep runs from making anything downstream.
        evaluate: Executes the check for one output.
    """
    asset = project_defs.names.asset(asset_path(Node(stage, Key(subject))))
    with warnings.catch_warnings():
        # Dagster warns that checks with partitions are a preview feature. They are needed: without
        # partitions, the UI would not show which corpus or split has failed.
        warnings.filterwarnings("ignore", category=dg.PreviewWarning)

        @dg.asset_check(
            asset=asset,
            name=name,
            description=description,
            blocking=is_blocking,
            partitions_def=partitions_of(stage, project_defs, keys),
        )
        def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
            """Check the output that is the partition of this run."""
            output = key_of(context, stage, subject)
            return evaluate(context, project_defs, stage, output)

    return check


def _verify(
    context: dg.AssetCheckExecutionContext, project_defs: ProjectDefs, stage: Stage, key: Key
) -> dg.AssetCheckResult:
    """Verify an output, and return the result as that of a check in Dagster.

    Args:
        context: The context of the check's run, whose log lists the findings.
        project_defs: The names and settings of the project in Dagster.
    """
    report = stage.verify(project_defs.load_in_step(context), key)
    if not report.passed:
        # `nanoset build` reports this error, since Dagster's own says only that the run failed.
        project_defs.failures.append((Node(stage, key), _verification_error(report)))

    # Findings may quote text of users, so `visible` escapes characters that steer a terminal.
    rows: list[dict[str, object]] = []
    for finding in report.findings:
        text = visible(Multiline(finding))
        if finding.severity == "error":
            context.log.error(text)
        else:
            context.log.warning(text)
        rows.append({column: getattr(finding, column) or "" for column in _FINDING_COLUMNS})

    metadata = visible_metadata(report.figures)
    if rows:
        metadata["findings"] = table(rows)
    description = "; ".join(finding.what for finding in report.findings)
    return dg.AssetCheckResult(
        passed=report.passed,
        description=visible(description or NOTHING_WRONG),
        metadata=metadata,
    )


def _verification_error(report: Report) -> VerificationError:
    """Return the exception that `nanoset build` reports for an output that failed its check.

    Args:
        report: Report with at least one error. The first is described, and the others are counted.
    """
    first = report.errors[0]
    message = f"what was made is not right: {first.what}"
    n_more = len(report.errors) - 1
    if n_more:
        message += f" (and {n_more:,} more: run `nanoset verify`)"
    where = first.output if first.where is None else f"{first.output}: {first.where}"
    return VerificationError(
        message, where=where, found=first.found, expected=first.expected, remedy=first.remedy
    )


def _warn(
    context: dg.AssetCheckExecutionContext, project_defs: ProjectDefs, stage: Stage, key: Key
) -> dg.AssetCheckResult:
    """Report the warnings about an output: about its content, and about its settings.

    Raises:
        MissingError: The output has not been built.
    """
    project = project_defs.load_in_step(context)
    manifest = require(project, stage, key)
    content_warnings = stage.show(project, manifest).warnings
    texts = [*content_warnings, *settings_warnings(stage, project.config, key)]
    return dg.AssetCheckResult(
        passed=not texts,
        severity=dg.AssetCheckSeverity.WARN,
        description=visible("; ".join(texts) or NOTHING_WRONG),
    )
