"""What this package needs of Dagster that is not public, in one place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import dagster as dg
import dagster._utils.interrupts as untyped_interrupts
from dagster._core.event_api import PartitionKeyFilter
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus
from dagster._core.launcher.base import CheckRunHealthResult, LaunchRunContext, RunLauncher, WorkerStatus
from dagster._grpc.types import ExecuteRunArgs
from dagster._serdes import ConfigurableClass, ConfigurableClassData
from dagster_shared.check import CheckError

from nanoset_core.execution.interruption import are_ignored, handlers_kept, ignore_sigint, received_signal

__all__ = [
    "CheckRunHealthResult",
    "ConfigurableClass",
    "ConfigurableClassData",
    "ExecuteRunArgs",
    "LaunchRunContext",
    "RunLauncher",
    "WorkerStatus",
    "interruptible_runs",
    "latest_data_versions",
    "latest_materializations",
    "latest_planned",
    "latest_runs",
    "open_backfills",
    "repository_of",
    "unsound_checks",
]

DATA_VERSION_TAG = "dagster/data_version"
INPUT_DATA_VERSION_TAG = "dagster/input_data_version"
"""Followed by `/` and the key of what an asset was made from."""


def latest_data_versions(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partitions: Collection[str | None]
) -> dict[str | None, str]:
    """Return partition → data version of its last materialisation; None stands for an asset without partitions.

    Those that were never materialised are left out.
    """
    found: dict[str | None, str] = {}
    if None in partitions:
        event = instance.get_latest_materialization_event(asset)
        made = None if event is None else event.asset_materialization
        if made is not None:
            found[None] = (made.tags or {}).get(DATA_VERSION_TAG, "")
    if any(partition is not None for partition in partitions):
        tags = instance.event_log_storage.get_latest_tags_by_partition(
            asset, dg.DagsterEventType.ASSET_MATERIALIZATION, [DATA_VERSION_TAG]
        )
        # What was reported by hand may have no data version, and so no tag.
        found |= dict.fromkeys(instance.get_materialized_partitions(asset), "")
        found |= {partition: version.get(DATA_VERSION_TAG, "") for partition, version in tags.items()}
    return found


def open_backfills(instance: dg.DagsterInstance) -> dict[str, set[dg.AssetKey]]:
    """Return backfill → its assets, of all that have not ended; one of a job does not say which assets it makes."""
    going_on = BulkActionsFilter(statuses=[BulkActionStatus(name) for name in ("REQUESTED", "CANCELING", "FAILING")])
    return {found.backfill_id: set(found.asset_selection or ()) for found in instance.get_backfills(going_on)}


def latest_materializations(instance: dg.DagsterInstance, assets: Sequence[dg.AssetKey]) -> dict[dg.AssetKey, int]:
    """Return asset → id of the event of its last materialisation, of any partition; ids grow with time."""
    entries = (record.asset_entry for record in instance.get_asset_records(assets))
    latest = {entry.asset_key: entry.last_materialization_storage_id for entry in entries}
    return {key: event for key, event in latest.items() if event is not None}


def latest_runs(instance: dg.DagsterInstance, assets: Sequence[dg.AssetKey]) -> list[tuple[str, str, str]]:
    """Return (asset, its last run, that run's status), sorted, of assets that a run was to make."""
    entries = [record.asset_entry for record in instance.get_asset_records(assets)]
    last = {entry.asset_key.to_user_string(): entry.last_run_id for entry in entries if entry.last_run_id}
    runs = instance.get_runs(dg.RunsFilter(run_ids=sorted(set(last.values())))) if last else []
    status = {run.run_id: run.status.value for run in runs}
    return sorted((asset, run, status.get(run, "")) for asset, run in last.items())


def latest_planned(instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str | None) -> tuple[str | None, int]:
    """Return (the last run that was to make an asset, or one partition of it; id of the event that says so, or 0)."""
    planned = instance.event_log_storage.get_latest_planned_materialization_info(asset, partition)
    return (None, 0) if planned is None else (planned.run_id, planned.storage_id)


def repository_of(context: dg.AssetExecutionContext) -> dg.RepositoryDefinition | None:
    """Return all definitions of the code location in which a run is; None where it is of a job alone."""
    with suppress(CheckError):
        return context.repository_def
    return None


def unsound_checks(
    instance: dg.DagsterInstance, checks: Iterable[dg.AssetCheckKey]
) -> set[tuple[dg.AssetKey, str | None]]:
    """Return the (asset, partition) whose last check found errors, or did not end; not those never checked."""
    storage = instance.event_log_storage
    found = set()
    for info in storage.get_asset_check_partition_info(list(checks)):
        if info.latest_execution_status.value == "SUCCEEDED":
            continue
        key, partition = info.check_key, PartitionKeyFilter(key=info.partition_key)
        record = storage.get_latest_asset_check_execution_by_key([key], partition_filter=partition).get(key)
        evaluation = None if record is None else record.evaluation
        if getattr(evaluation, "severity", None) != dg.AssetCheckSeverity.WARN:  # a warning blocks and repeats nothing
            found.add((key.asset_key, info.partition_key))
    return found


@contextmanager
def interruptible_runs(instance: dg.DagsterInstance) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM leave this block as KeyboardInterrupt, whatever part of a run they come in.

    Dagster raises an error of its own, forgets a signal that comes between the last step and the end of the run, and
    starts helpers that copy the run's output, which would die of a Ctrl-C with tracebacks. It also sets handlers of
    signals that this process ignores: then it sets none.
    """
    logs: Any = instance.compute_log_manager
    interrupts: Any = untyped_interrupts
    capture_logs, replace = logs.capture_logs, interrupts._replace_interrupt_signal
    if are_ignored():
        interrupts._replace_interrupt_signal = lambda handler: None

    @contextmanager
    def capture_by_deaf_helpers(log_key: Sequence[str]) -> Iterator[Any]:
        with ExitStack() as captured:
            with ignore_sigint():
                context = captured.enter_context(capture_logs(log_key))
            yield context

    logs.capture_logs = capture_by_deaf_helpers
    try:
        with handlers_kept():
            yield
    except dg.DagsterExecutionInterruptedError as error:
        raise KeyboardInterrupt from error
    except Exception:
        if received_signal() is None:
            raise
    finally:
        logs.capture_logs, interrupts._replace_interrupt_signal = capture_logs, replace
    if received_signal() is not None:
        raise KeyboardInterrupt
