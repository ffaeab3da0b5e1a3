"""Asset checks: an output is verified before anything downstream is built from it."""

import warnings
from collections.abc import Callable, Sequence

import dagster as dg

from nanoset_assets.asset_names import asset_path
from nanoset_assets.asset_table import shape_of
from nanoset_assets.hosted import ProjectDefs
from nanoset_assets.stage_assets import key_of, partitions_of, subjects_of
from nanoset_assets.tags import CHECK
from nanoset_assets.ui.metadata import table, visible_metadata
from nanoset_core.errors import NanosetError
from nanoset_core.stages.registry import stages
from nanoset_core.stages.report import Report
from nanoset_core.stages.stage import Key, Node, Stage, require, settings_warnings
from nanoset_core.untrusted import Multiline, visible

NOTHING_WRONG = "nothing is wrong"
_FINDING_COLUMNS = ("severity", "output", "what", "where", "found", "expected", "remedy")
_Evaluate = Callable[[dg.AssetCheckExecutionContext, ProjectDefs, Stage, Key], dg.AssetCheckResult]


class VerificationError(NanosetError, ValueError):
    """A check found errors in an output that was just made."""


def checks_for(hosted: ProjectDefs) -> list[dg.AssetChecksDefinition]:
    """Return the asset checks of the project.

    There are two kinds. A check that verifies an output blocks everything downstream if it finds
    errors. A check that shows warnings blocks nothing. They are separate, because Dagster's
    automation conditions build nothing from an asset whose blocking check has failed, even if it
    failed with a mere warning.
    """
    checks: list[dg.AssetChecksDefinition] = []
    for stage in stages():
        shape = shape_of(stage)
        for subject, keys in subjects_of(stage, hosted.config).items():
            if shape.check is not None:
                checks.append(_check(stage, hosted, subject, keys, CHECK, shape.check, _verify))
            warning = shape.warning_check
            if warning is not None:
                checks.append(
                    _check(stage, hosted, subject, keys, warning.name, warning.description, _warn)
                )
    return checks


def _check(
    stage: Stage,
    hosted: ProjectDefs,
    subject: str,
    keys: Sequence[Key],
    name: str,
    description: str,
    evaluate: _Evaluate,
) -> dg.AssetChecksDefinition:
    """Make one check of the asset of a stage.

    Args:
        stage: See `stage_asset`.
        hosted: See `stage_asset`.
        subject: See `stage_asset`.
        keys: See `stage_asset`.
        name: The name of the check.
        description: What it checks, for the UI.
        evaluate: Executes the check for one output.
    """
    with warnings.catch_warnings():
        # Dagster warns that checks with partitions are a preview feature. Without them, it
        # be visible which corpus has failed.
        warnings.filterwarnings("ignore", category=dg.PreviewWarning)

        @dg.asset_check(
            asset=hosted.names.asset(asset_path(Node(stage, Key(subject)))),
            name=name,
            description=description,
            blocking=name == CHECK,
            partitions_def=partitions_of(stage, hosted, keys),
        )
        def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
            return evaluate(context, hosted, stage, key_of(context, stage, subject))

    return check


def _verify(
    context: dg.AssetCheckExecutionContext, hosted: ProjectDefs, stage: Stage, key: Key
) -> dg.AssetCheckResult:
    """Verify an output: errors fail the check, warnings are only listed."""
    report = stage.verify(hosted.load_in_step(context), key)
    if not report.passed:
        hosted.failures.append((Node(stage, key), _verification_error(report)))

    rows: list[dict[str, object]] = []
    for finding in report.findings:
        log = context.log.error if finding.severity == "error" else context.log.warning
        log(visible(Multiline(finding)))
        rows.append({column: getattr(finding, column) or "" for column in _FINDING_COLUMNS})

    metadata = visible_metadata(report.figures)
    if rows:
        metadata["findings"] = table(rows)
    description = "; ".join(finding.what for finding in report.findings)
    return dg.AssetCheckResult(
        passed=not report.errors,
        description=visible(description or NOTHING_WRONG),
        metadata=metadata,
    )


def _verification_error(report: Report) -> VerificationError:
    """Return an exception for the first error of a check, which also says how many follow."""
    first = report.errors[0]
    what = f"what was made is not right: {first.what}"
    n_more = len(report.errors) - 1
    if n_more:
        what += f" (and {n_more:,} more: run `nanoset verify`)"
    where = first.output if first.where is None else f"{first.output}: {first.where}"
    return VerificationError(
        what, where=where, found=first.found, expected=first.expected, remedy=first.remedy
    )


def _warn(
    context: dg.AssetCheckExecutionContext, hosted: ProjectDefs, stage: Stage, key: Key
) -> dg.AssetCheckResult:
    """Report the warnings about an output."""
    project = hosted.load_in_step(context)
    manifest = require(project, stage, key)
    texts = [
        *stage.show(project, manifest).warnings,
        *settings_warnings(stage, project.config, key),
    ]
    return dg.AssetCheckResult(
        passed=not texts,
        severity=dg.AssetCheckSeverity.WARN,
        description=visible("; ".join(texts) or NOTHING_WRONG),
    )
