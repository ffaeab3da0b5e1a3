"""Asset checks: what was just made is verified before anything is made of it."""

import warnings
from collections.abc import Callable
from typing import Any

import dagster as dg

from nanoset_assets.hosted import ProjectDefs
from nanoset_assets.instance_state import CHECK
from nanoset_assets.stages_table import partitions_of, subjects_of
from nanoset_assets.ui.metadata import table
from nanoset_core.errors import NanosetError
from nanoset_core.pipeline.stage import Key, Node, Stage
from nanoset_core.pipeline.tokenization import TOKENIZED
from nanoset_core.verification.report import Report
from nanoset_core.verification.verify import CHECKS

LOSSES = "losses"
"""The name of the check that warns of text that did not become tokens."""


class VerificationError(NanosetError, ValueError):
    """A check found errors in what was just made."""


def _failure(report: Report) -> VerificationError:
    """Make the error that says what a check found."""
    first, *others = report.errors
    more = f" (and {len(others):,} more: run `nanoset verify`)" if others else ""
    return VerificationError(
        f"what was made is not right: {first.what}{more}",
        where=f"{first.output}: {first.where}" if first.where is not None else first.output,
        found=first.found,
        expected=first.expected,
        remedy=first.remedy,
    )


def checks_for(hosted: ProjectDefs) -> list[dg.AssetChecksDefinition]:
    """Make one blocking check for each asset whose faults would spoil what is made of it, and one of losses."""
    checks = [_check(stage, hosted, subject) for stage in CHECKS for subject in subjects_of(stage, hosted.config)]
    return [*checks, *(_losses(TOKENIZED, hosted, subject) for subject in subjects_of(TOKENIZED, hosted.config))]


def _check(stage: Stage, hosted: ProjectDefs, subject: str) -> dg.AssetChecksDefinition:
    return _make(stage, hosted, subject, CHECK, CHECKS[stage][1], _verified(stage, hosted, subject), blocking=True)


def _losses(stage: Stage, hosted: ProjectDefs, subject: str) -> dg.AssetChecksDefinition:
    """Make the check that warns of text that did not become tokens; apart, since Dagster's conditions wait for it."""

    def losses(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        project, key = hosted.load(), Key(context.partition_key)
        lost = list(stage.warnings(project, stage.require(project, key)))
        return dg.AssetCheckResult(
            passed=not lost,
            severity=dg.AssetCheckSeverity.WARN,
            description="; ".join(lost) or "every line became a document, or has no text",
        )

    description = "Warns of rejected lines and of files that are not readable to the end; blocks nothing."
    return _make(stage, hosted, subject, LOSSES, description, losses, blocking=False)


def _make(
    stage: Stage,
    hosted: ProjectDefs,
    subject: str,
    name: str,
    description: str,
    check: Callable[..., dg.AssetCheckResult],
    *,
    blocking: bool,
) -> dg.AssetChecksDefinition:
    with warnings.catch_warnings():
        # Dagster calls checks by partition a preview; without them a failed corpus could not be told from another.
        warnings.filterwarnings("ignore", category=dg.PreviewWarning)
        decorate = dg.asset_check(
            asset=hosted.names.asset(Node(stage, Key(subject)).asset),
            name=name,
            description=description,
            blocking=blocking,
            partitions_def=partitions_of(stage, hosted, subject),
        )
        return decorate(check)


def _verified(stage: Stage, hosted: ProjectDefs, subject: str) -> Callable[..., dg.AssetCheckResult]:
    def verified(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        part = context.partition_key if context.has_partition_key else None
        key = Key(part or "") if stage.by_corpus else Key(subject, part)
        names = (key.subject,) if key.part is None else (key.subject, key.part)
        report = CHECKS[stage][0](hosted.load(), *names)
        if not report.passed:
            hosted.note_failure(Node(stage, key), _failure(report))
        for finding in report.findings:
            (context.log.error if finding.severity == "error" else context.log.warning)(str(finding))
        return _result(report)

    return verified


def _result(report: Report) -> dg.AssetCheckResult:
    """Return what a check found: errors fail it and block, warnings are described."""
    metadata: dict[str, Any] = dict(report.figures)
    names = ("severity", "output", "what", "where", "found", "expected", "remedy")
    if report.findings:
        rows = [{name: getattr(finding, name) or "" for name in names} for finding in report.findings]
        metadata["findings"] = table(rows)
    description = "; ".join(finding.what for finding in report.findings) or "nothing is wrong"
    return dg.AssetCheckResult(passed=not report.errors, description=description, metadata=metadata)
