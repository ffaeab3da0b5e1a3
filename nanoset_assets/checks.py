"""Asset checks: what was just made is verified before anything is made of it."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import dagster as dg

from nanoset_assets.dagster_compat import unsuccessful_checks
from nanoset_assets.failures import note_failure
from nanoset_assets.hosted import HostedProject
from nanoset_assets.names import Names
from nanoset_assets.partitions import partitions_of
from nanoset_assets.running import open_in_check
from nanoset_assets.stage_assets import subjects_of
from nanoset_assets.ui.metadata import table
from nanoset_core.errors import NanosetError
from nanoset_core.pipeline.indexed import DATASET
from nanoset_core.pipeline.mapping import BLENDED, INDEX_MAPPINGS, split_of
from nanoset_core.pipeline.packed import PACKED
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.raw import INVENTORY
from nanoset_core.pipeline.shuffling import WEBDATASET
from nanoset_core.pipeline.stage import Key, Node, Stage
from nanoset_core.pipeline.tokenization import TOKENIZED
from nanoset_core.verification.report import Report
from nanoset_core.verification.verify import (
    verify_blend,
    verify_indexed,
    verify_inventory,
    verify_mappings,
    verify_packed,
    verify_shards,
    verify_webdataset,
)

CHECK = "verified"
"""The name of every check: one an asset, which blocks what is made of it."""


class VerificationError(NanosetError, ValueError):
    """A check found errors in what was just made."""


Verify = Callable[[Project, Key], Report]
"""Verifies one output of a stage."""


def _failure(report: Report) -> VerificationError:
    """The error that says what a check found."""
    first, *others = report.errors
    more = f" (and {len(others):,} more: run `nanoset verify`)" if others else ""
    return VerificationError(
        f"what was made is not right: {first.what}{more}",
        where=f"{first.output}: {first.where}" if first.where is not None else first.output,
        found=first.found,
        expected=first.expected,
        remedy=first.remedy,
    )


def unverified_of(
    instance: dg.DagsterInstance, checks: Iterable[dg.AssetCheckKey], names: Names
) -> set[tuple[tuple[str, ...], str | None]]:
    """(asset, partition) of those whose last check found errors, or never came to its end; not those never checked."""
    return {
        (asset, partition)
        for key, partition, evaluation in unsuccessful_checks(instance, checks)
        if (evaluation is None or evaluation.severity != dg.AssetCheckSeverity.WARN)
        and (asset := names.path(key.asset_key)) is not None
    }


_CHECKS: dict[Stage, tuple[str, Verify]] = {
    INVENTORY: (
        "Warns of files that are not read, empty, unfinished, or smaller than before.",
        lambda project, key: verify_inventory(project, key.subject),
    ),
    TOKENIZED: (
        "Every line is a document, skipped or rejected; no more rejects than allowed; the shards are whole.",
        lambda project, key: verify_shards(project, key.subject),
    ),
    DATASET: (
        "Counts, lengths, pointers and type of the .idx; ids within the vocabulary; end-of-document tokens; "
        "sampled documents give the same tokens when their source lines are tokenized again.",
        lambda project, key: verify_indexed(project, key.subject),
    ),
    INDEX_MAPPINGS: (
        "Every file that the trainer will look for is there, fresh against its .idx, and within range.",
        lambda project, key: verify_mappings(project, key.subject, split_of(key)),
    ),
    BLENDED: (
        "The blend's files are there, belong to the index mappings, and name corpora and samples that exist.",
        lambda project, key: verify_blend(project, key.subject, split_of(key)),
    ),
    PACKED: (
        "The .pbin is whole: its index covers the tokens exactly, and documents and tokens are the dataset's.",
        lambda project, key: verify_packed(project, key.subject),
    ),
    WEBDATASET: (
        "Every tar is there and listed; opened ones hold the contexts of their plan.",
        lambda project, key: verify_webdataset(project, key.subject),
    ),
}
"""Stages whose faults would spoil what is made of their outputs."""


def checks_for(hosted: HostedProject) -> list[dg.AssetChecksDefinition]:
    """One blocking check for each asset whose faults would spoil what is made of it."""
    return [_check(stage, hosted, subject) for stage in _CHECKS for subject in subjects_of(stage, hosted.config)]


def _check(stage: Stage, hosted: HostedProject, subject: str) -> dg.AssetChecksDefinition:
    description, verify = _CHECKS[stage]
    with warnings.catch_warnings():
        # Dagster calls checks by partition a preview; without them a failed corpus could not be told from another.
        warnings.filterwarnings("ignore", category=dg.PreviewWarning)
        decorate = dg.asset_check(
            asset=hosted.names.asset(Node(stage, Key(subject)).asset),
            name=CHECK,
            description=description,
            blocking=True,
            partitions_def=partitions_of(stage, hosted, subject),
        )
        return decorate(_verified(stage, hosted, subject, verify))


def _verified(stage: Stage, hosted: HostedProject, subject: str, verify: Verify) -> Callable[..., dg.AssetCheckResult]:
    def verified(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        part = context.partition_key if context.has_partition_key else None
        key = Key(part or "") if stage.by_corpus else Key(subject, part)
        report = verify(open_in_check(hosted), key)
        if not report.passed:
            note_failure(Node(stage, key), _failure(report))
        for finding in report.findings:
            (context.log.error if finding.severity == "error" else context.log.warning)(str(finding))
        return _result(report)

    return verified


def _result(report: Report) -> dg.AssetCheckResult:
    """Errors fail the check and block; warnings fail it without blocking, so that they show."""
    severity = dg.AssetCheckSeverity.ERROR if report.errors else dg.AssetCheckSeverity.WARN
    metadata: dict[str, Any] = dict(report.figures)
    names = ("severity", "output", "what", "where", "found", "expected", "remedy")
    if report.findings:
        rows = [{name: getattr(finding, name) or "" for name in names} for finding in report.findings]
        metadata["findings"] = table(rows)
    description = "; ".join(finding.what for finding in report.findings) or "nothing is wrong"
    return dg.AssetCheckResult(
        passed=not report.findings, severity=severity, description=description, metadata=metadata
    )
