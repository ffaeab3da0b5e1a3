"""Asset checks: what was just made is verified before anything is made of it."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import dagster as dg

# Not public, but the only way to read the state of a partition's check.
from dagster._core.event_api import PartitionKeyFilter
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from nanoset_assets.partitions import CORPORA, SPLIT_PARTITIONS
from nanoset_assets.resources import ProjectResource
from nanoset_assets.ui.metadata import table
from nanoset_core.config.project import ProjectConfig
from nanoset_core.errors import NanosetError
from nanoset_core.pipeline.project import Project
from nanoset_core.verification.report import Report
from nanoset_core.verification.verify import (
    verify_blend,
    verify_indexed,
    verify_mappings,
    verify_shards,
    verify_webdataset,
)

CHECK = "verified"
"""The name of every check: one an asset, which blocks what is made of it."""


class VerificationError(NanosetError, ValueError):
    """A check found errors in what was just made."""


Verify = Callable[[Project, str | None], Report]
"""Takes the project and the partition."""

_failures: ContextVar[list[Report] | None] = ContextVar("failures", default=None)


@contextmanager
def failed_reports() -> Iterator[list[Report]]:
    """The reports with errors of all checks that run in this process within the block."""
    found: list[Report] = []
    token = _failures.set(found)
    try:
        yield found
    finally:
        _failures.reset(token)


def failure(reports: list[Report]) -> VerificationError | None:
    """The error that says what checks found; None where they found none."""
    findings = [finding for report in reports for finding in report.errors]
    if not findings:
        return None
    first = findings[0]
    more = f" (and {len(findings) - 1:,} more: run `nanoset verify`)" if len(findings) > 1 else ""
    return VerificationError(
        f"what was made is not right: {first.what}{more}",
        where=f"{first.output}: {first.where}" if first.where is not None else first.output,
        found=first.found,
        expected=first.expected,
        remedy=first.remedy,
    )


def unverified(instance: dg.DagsterInstance, definitions: dg.Definitions) -> set[tuple[tuple[str, ...], str | None]]:
    """(asset, partition) of all whose last check found errors, or never came to its end; not those never checked."""
    return unverified_of(instance, definitions.resolve_asset_graph().asset_check_keys)


def unverified_of(
    instance: dg.DagsterInstance, checks: Iterable[dg.AssetCheckKey]
) -> set[tuple[tuple[str, ...], str | None]]:
    """As `unverified`, for some checks."""
    storage = instance.event_log_storage
    found: set[tuple[tuple[str, ...], str | None]] = set()
    for info in storage.get_asset_check_partition_info(list(checks)):
        if info.latest_execution_status == AssetCheckExecutionRecordStatus.SUCCEEDED:
            continue
        key, partition = info.check_key, info.partition_key
        record = storage.get_latest_asset_check_execution_by_key(
            [key], partition_filter=PartitionKeyFilter(key=partition)
        ).get(key)
        evaluation = None if record is None else record.evaluation
        if evaluation is None or getattr(evaluation, "severity", None) != dg.AssetCheckSeverity.WARN:
            found.add((tuple(key.asset_key.path), partition))
    return found


def checks_for(config: ProjectConfig) -> list[dg.AssetChecksDefinition]:
    """One blocking check for each asset whose faults would spoil what is made of it."""
    checks = [
        _check(
            ["tokenized_shards"],
            CORPORA,
            "Every line is a document, skipped or rejected; no more rejects than allowed; the shards are whole.",
            lambda project, corpus: verify_shards(project, corpus or ""),
        ),
        _check(
            ["indexed_dataset"],
            CORPORA,
            "Counts, lengths, pointers and type of the .idx; ids within the vocabulary; end-of-document tokens; "
            "sampled documents give the same tokens when their source lines are tokenized again.",
            lambda project, corpus: verify_indexed(project, corpus or ""),
        ),
    ]
    for name, spec in config.nanosets.items():
        checks.append(_mappings(name))
        if spec.is_blended:
            checks.append(_blend(name))
    return checks + [_webdataset(name) for name in config.webdatasets]


def _mappings(name: str) -> dg.AssetChecksDefinition:
    return _check(
        [name, "index_mappings"],
        SPLIT_PARTITIONS,
        "Every file that the trainer will look for is there, fresh against its .idx, and within range.",
        lambda project, split: verify_mappings(project, name, split),  # type: ignore[arg-type]
    )


def _blend(name: str) -> dg.AssetChecksDefinition:
    return _check(
        [name, "blend"],
        SPLIT_PARTITIONS,
        "The blend's files are there, belong to the index mappings, and name corpora and samples that exist.",
        lambda project, split: verify_blend(project, name, split),  # type: ignore[arg-type]
    )


def _webdataset(name: str) -> dg.AssetChecksDefinition:
    return _check(
        [name, "manifest"],
        None,
        "Every tar is there and listed; opened ones hold the contexts of their plan.",
        lambda project, _: verify_webdataset(project, name),
    )


def _check(
    asset: list[str], partitions: dg.PartitionsDefinition | None, description: str, verify: Verify
) -> dg.AssetChecksDefinition:
    with warnings.catch_warnings():
        # Dagster calls checks by partition a preview; without them a failed corpus could not be told from another.
        warnings.filterwarnings("ignore", category=dg.PreviewWarning)
        decorate = dg.asset_check(
            asset=dg.AssetKey(asset),
            name=CHECK,
            description=description,
            blocking=True,
            partitions_def=partitions,
        )
        return decorate(_verified(verify, partitions is not None))


def _verified(verify: Verify, partitioned: bool) -> Callable[..., dg.AssetCheckResult]:
    def verified(context: dg.AssetCheckExecutionContext, project: ProjectResource) -> dg.AssetCheckResult:
        report = verify(Project.open(project.config_file), context.partition_key if partitioned else None)
        if not report.passed and (failures := _failures.get()) is not None:
            failures.append(report)
        for finding in report.findings:
            (context.log.error if finding.severity == "error" else context.log.warning)(str(finding))
        return _result(report)

    return verified


def _result(report: Report) -> dg.AssetCheckResult:
    """Errors fail the check and block; warnings fail it without blocking, so that they show."""
    severity = dg.AssetCheckSeverity.ERROR if report.errors else dg.AssetCheckSeverity.WARN
    metadata: dict[str, object] = dict(report.figures)
    names = ("severity", "output", "what", "where", "found", "expected", "remedy")
    if report.findings:
        rows = [{name: getattr(finding, name) or "" for name in names} for finding in report.findings]
        metadata["findings"] = table(rows)
    description = "; ".join(finding.what for finding in report.findings) or "nothing is wrong"
    return dg.AssetCheckResult(
        passed=not report.findings, severity=severity, description=description, metadata=metadata
    )
