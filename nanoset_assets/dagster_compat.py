"""What this package needs of Dagster that is not public, in one place."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import dagster as dg
import dagster._utils.interrupts as untyped_interrupts
from dagster._core.definitions.definitions_load_context import (
    DefinitionsLoadContext,
    DefinitionsLoadType,
)
from dagster._core.definitions.partitions.subset.default import DefaultPartitionsSubset
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.event_api import PartitionKeyFilter
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus, PartitionBackfill
from dagster._core.launcher.base import (
    CheckRunHealthResult,
    LaunchRunContext,
    RunLauncher,
    WorkerStatus,
)
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import InstigatorType
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._grpc.types import ExecuteRunArgs
from dagster._serdes import ConfigurableClass, ConfigurableClassData
from dagster_shared.check import CheckError

from nanoset_core.execution.interruption import (
    children_shielded,
    handlers_restored,
    ignores_ending_signals,
    received_signal,
)

__all__ = [
    "CheckRunHealthResult",
    "ConfigurableClass",
    "ConfigurableClassData",
    "ExecuteRunArgs",
    "LaunchRunContext",
    "OpenBackfill",
    "RunLauncher",
    "WorkerStatus",
    "code_location_of",
    "condition_sensors",
    "interruptible_runs",
    "is_run_loading",
    "latest_data_versions",
    "latest_materializations",
    "latest_planned",
    "latest_runs",
    "open_backfills",
    "remember_for_runs",
    "remembered_for_run",
    "repository_of",
    "runs_in_code_location",
    "unsound_checks",
]

DATA_VERSION_TAG = "dagster/data_version"
INPUT_DATA_VERSION_TAG = "dagster/input_data_version"
"""Followed by `/` and the key of what an asset was made from."""


def latest_data_versions(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partitions: Collection[str | None]
) -> dict[str | None, str]:
    """Return the data version of each partition's latest materialisation.

    The partition is None for an asset without partitions.

    Those that were never materialised are left out.
    """
    versions: dict[str | None, str] = {}
    if None in partitions:
        event = instance.get_latest_materialization_event(asset)
        materialization = None if event is None else event.asset_materialization
        if materialization is not None:
            versions[None] = (materialization.tags or {}).get(DATA_VERSION_TAG, "")
    if any(partition is not None for partition in partitions):
        # What was reported by hand may have no data version, and so no tag.
        for partition in instance.get_materialized_partitions(asset):
            versions[partition] = ""
        tags_by_partition = instance.event_log_storage.get_latest_tags_by_partition(
            asset, dg.DagsterEventType.ASSET_MATERIALIZATION, [DATA_VERSION_TAG]
        )
        for partition, tags in tags_by_partition.items():
            versions[partition] = tags.get(DATA_VERSION_TAG, "")
    return versions


@dataclass(frozen=True, slots=True)
class OpenBackfill:
    """A backfill that has not ended."""

    backfill_id: str
    assets: frozenset[dg.AssetKey]
    """What it makes; empty for a backfill of a job, which does not say."""
    partitions: frozenset[str] | None
    """Partitions that it targets, of any of its assets; None if Dagster's record of them cannot be
    read here.
    """

    def targets(self, asset: dg.AssetKey, partition: str) -> bool:
        """Return whether it is to make a partition of an asset, as far as its record tells."""
        concerns_asset = not self.assets or asset in self.assets
        return concerns_asset and (self.partitions is None or partition in self.partitions)


def open_backfills(instance: dg.DagsterInstance) -> list[OpenBackfill]:
    """Return all backfills that have not ended."""
    statuses = [BulkActionStatus(name) for name in ("REQUESTED", "CANCELING", "FAILING")]
    backfills: list[OpenBackfill] = []
    for backfill in instance.get_backfills(BulkActionsFilter(statuses=statuses)):
        assets = frozenset(backfill.asset_selection or ())
        backfills.append(OpenBackfill(backfill.backfill_id, assets, _target_partitions(backfill)))
    return backfills


def _target_partitions(backfill: PartitionBackfill) -> frozenset[str] | None:
    """Return the partitions that a backfill targets in any asset, or None if unknown."""
    if backfill.partition_names is not None:
        return frozenset(backfill.partition_names)
    if backfill.asset_backfill_data is None:
        return None  # serialised by an older version, for which Dagster needs the whole workspace
    partitions: set[str] = set()
    target = backfill.asset_backfill_data.target_subset
    for subset in target.partitions_subsets_by_asset_key.values():
        if not isinstance(subset, DefaultPartitionsSubset):
            return None  # such as "all", or a range: its keys depend on the definitions
        partitions.update(subset.get_partition_keys())
    return frozenset(partitions)


def latest_materializations(
    instance: dg.DagsterInstance, assets: Sequence[dg.AssetKey]
) -> dict[dg.AssetKey, int]:
    """Return the event id of each asset's latest materialisation, of any partition.

    Event ids grow with time.
    """
    event_by_asset: dict[dg.AssetKey, int] = {}
    for record in instance.get_asset_records(assets):
        event = record.asset_entry.last_materialization_storage_id
        if event is not None:
            event_by_asset[record.asset_entry.asset_key] = event
    return event_by_asset


@dataclass(frozen=True, slots=True, order=True)
class LatestRun:
    """The last run that was to make an asset."""

    asset: str
    run_id: str
    status: str
    """Empty if the run was deleted."""


def latest_runs(instance: dg.DagsterInstance, assets: Sequence[dg.AssetKey]) -> list[LatestRun]:
    """Return the last run of each asset that a run was to make, sorted."""
    run_by_asset: dict[str, str] = {}
    for record in instance.get_asset_records(assets):
        run_id = record.asset_entry.last_run_id
        if run_id:
            run_by_asset[record.asset_entry.asset_key.to_user_string()] = run_id
    if not run_by_asset:
        return []
    run_ids = sorted(set(run_by_asset.values()))
    status_by_run = {
        run.run_id: run.status.value for run in instance.get_runs(dg.RunsFilter(run_ids=run_ids))
    }
    return sorted(
        LatestRun(asset, run_id, status_by_run.get(run_id, ""))
        for asset, run_id in run_by_asset.items()
    )


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """The last run that was to make an asset, or one partition of it."""

    run_id: str | None
    """None if there is no such run."""
    storage_id: int
    """Of the event that says so; 0 if there is none."""


def latest_planned(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str | None
) -> PlannedRun:
    """Return the last run that was to make an asset, or one partition of it."""
    planned = instance.event_log_storage.get_latest_planned_materialization_info(asset, partition)
    if planned is None:
        return PlannedRun(None, 0)
    return PlannedRun(planned.run_id, planned.storage_id)


def repository_of(context: dg.AssetExecutionContext) -> dg.RepositoryDefinition | None:
    """Return all definitions of the code location of a run; None for a run of a job alone."""
    with suppress(CheckError):
        return context.repository_def
    return None


def unsound_checks(
    instance: dg.DagsterInstance, checks: Iterable[dg.AssetCheckKey]
) -> set[tuple[dg.AssetKey, str | None]]:
    """Return each (asset, partition) whose latest check failed or did not end.

    Partitions that were never checked are not included.
    """
    storage = instance.event_log_storage
    unsound: set[tuple[dg.AssetKey, str | None]] = set()
    for info in storage.get_asset_check_partition_info(list(checks)):
        if info.latest_execution_status.value == "SUCCEEDED":
            continue
        key = info.check_key
        partition = PartitionKeyFilter(key=info.partition_key)
        records = storage.get_latest_asset_check_execution_by_key([key], partition_filter=partition)
        record = records.get(key)
        evaluation = None if record is None else record.evaluation
        # A warning blocks nothing, and is no reason to make anything again.
        if getattr(evaluation, "severity", None) != dg.AssetCheckSeverity.WARN:
            unsound.add((key.asset_key, info.partition_key))
    return unsound


@contextmanager
def interruptible_runs(instance: dg.DagsterInstance) -> Iterator[None]:
    """Raise KeyboardInterrupt in this block on Ctrl-C or SIGTERM, at any point of a run.

    Dagster raises an error of its own, forgets a signal that comes between the last step and the
    end of the run, and starts helpers that copy the run's output, which would die of a Ctrl-C with
    tracebacks. It also sets handlers of signals that this process ignores: then it sets none.
    """
    logs: Any = instance.compute_log_manager
    interrupts: Any = untyped_interrupts
    capture_logs = logs.capture_logs
    replace_signal = interrupts._replace_interrupt_signal
    if ignores_ending_signals():
        interrupts._replace_interrupt_signal = lambda handler: None

    @contextmanager
    def capture_by_deaf_helpers(log_key: Sequence[str]) -> Iterator[Any]:
        with ExitStack() as captured:
            with children_shielded():
                context = captured.enter_context(capture_logs(log_key))
            yield context

    logs.capture_logs = capture_by_deaf_helpers
    try:
        with handlers_restored():
            yield
    except dg.DagsterExecutionInterruptedError as error:
        raise KeyboardInterrupt from error
    except Exception:
        if received_signal() is None:
            raise
    finally:
        logs.capture_logs = capture_logs
        interrupts._replace_interrupt_signal = replace_signal
    if received_signal() is not None:
        raise KeyboardInterrupt


def is_run_loading() -> bool:
    """Return whether definitions are being loaded for a run that a code server launched."""
    return DefinitionsLoadContext.get().load_type is DefinitionsLoadType.RECONSTRUCTION


def remembered_for_run(key: str) -> str | None:
    """Return the text that the code server stored for its runs, or None outside of such a run."""
    if not is_run_loading():
        return None
    text = DefinitionsLoadContext.get().reconstruction_metadata.get(key)
    return None if text is None else str(text)


def remember_for_runs(key: str, text: str) -> None:
    """Store a text that `remembered_for_run` returns in every run this code server launches."""
    DefinitionsLoadContext.get().add_to_pending_reconstruction_metadata(key, text)


def code_location_of(
    instance: dg.DagsterInstance, sensor: str, module: str
) -> RemoteRepositoryOrigin:
    """Return the code location that runs of this process belong to.

    Args:
        instance: The instance.
        sensor: Name of a sensor of the project: the code location in which it ticked last is
            returned.
        module: Module of the definitions; if no such sensor has ticked, the code location that
            `dagster dev -m <module>` makes is returned.
    """
    ticked = [state for state in _sensor_states(instance) if state.origin.instigator_name == sensor]
    if ticked:
        last: RemoteRepositoryOrigin = max(ticked, key=_last_tick).origin.repository_origin
        return last
    target = LoadableTargetOrigin(executable_path=sys.executable, module_name=module)
    return RemoteRepositoryOrigin(
        ManagedGrpcPythonEnvCodeLocationOrigin(target), SINGLETON_REPOSITORY_NAME
    )


def _sensor_states(instance: dg.DagsterInstance) -> Sequence[Any]:
    """Return the recorded states of sensors; an instance in memory has none."""
    with suppress(CheckError):
        return instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
    return []


def _last_tick(state: Any) -> float:
    """Return when a sensor ticked last, seconds since 1970; 0 if it never has."""
    return getattr(state.instigator_data, "last_tick_timestamp", None) or 0.0


@contextmanager
def runs_in_code_location(
    instance: dg.DagsterInstance, location: RemoteRepositoryOrigin
) -> Iterator[None]:
    """Let the runs that are executed in this process belong to a code location.

    Dagster's timeline and its pages of jobs show no others. `execute_in_process` has no argument
    for it.
    """
    this: Any = instance
    create_run_for_job = this.create_run_for_job

    def create_run_in_location(job_def: dg.JobDefinition, **details: Any) -> dg.DagsterRun:
        origin = location.get_job_origin(job_def.name)
        run: dg.DagsterRun = create_run_for_job(
            job_def=job_def, remote_job_origin=origin, **details
        )
        return run

    this.create_run_for_job = create_run_in_location
    try:
        yield
    finally:
        del this.create_run_for_job


def condition_sensors(
    instance: dg.DagsterInstance, repository: dg.RepositoryDefinition, asset: dg.AssetKey
) -> dict[str, bool]:
    """Return the sensors that evaluate an asset's automation condition: name → whether it is on."""
    status_by_name = {
        state.origin.instigator_name: state.status.value for state in _sensor_states(instance)
    }
    graph = repository.asset_graph
    is_running: dict[str, bool] = {}
    for sensor in repository.sensor_defs:
        selection = sensor.asset_selection
        if sensor.sensor_type.value not in ("AUTOMATION", "AUTO_MATERIALIZE") or selection is None:
            continue
        if asset not in selection.resolve(graph):
            continue
        # Until somebody switches a sensor, its state is the one that its definition declares.
        is_on_by_default = sensor.default_status is dg.DefaultSensorStatus.RUNNING
        status = status_by_name.get(sensor.name, "DECLARED_IN_CODE")
        is_running[sensor.name] = (
            is_on_by_default if status == "DECLARED_IN_CODE" else status == "RUNNING"
        )
    return is_running
