"""Everything in this package that relies on Dagster's private API.

Other modules import it from here. When a new version of Dagster renames something, only this module
has to change. The functions that query Dagster's history use public methods where these exist. For
example, `latest_data_versions(instance, asset, {"web"})` returns `{"web": "5f0c…"}`, the version of
the partition `web` that was materialised last.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

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
from dagster._core.storage.event_log import EventLogStorage
from dagster._core.storage.runs import RunStorage
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
    "assets_with_failed_check",
    "code_location_of",
    "condition_sensors",
    "event_log_replaced",
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
    "run_storage_replaced",
    "runs_in_code_location",
]

DATA_VERSION_TAG = "dagster/data_version"
"""On materialisations: the data version of the asset."""
INPUT_DATA_VERSION_TAG = "dagster/input_data_version"
"""On materialisations, followed by `/` and an asset key: the data version of this input."""
_CONDITION_SENSOR_TYPES = ("AUTOMATION", "AUTO_MATERIALIZE")
"""Types of the sensors that evaluate automation conditions: yours, and Dagster's default one."""


def latest_data_versions(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partitions: Collection[str | None]
) -> dict[str | None, str]:
    """Return the data version of the latest materialisation of an asset's partitions.

    Args:
        instance: The instance of Dagster, whose history is read.
        asset: Key of the asset.
        partitions: The partitions to look up; None for an asset without partitions.

    Returns:
        Partition → data version, "" if the materialisation has none. Partitions that were never
        materialised are missing. There may be partitions that were not requested.
    """
    versions: dict[str | None, str] = {}
    if None in partitions:
        version = _latest_data_version(instance, asset)
        if version is not None:
            versions[None] = version
    if any(partition is not None for partition in partitions):
        versions |= _data_version_by_partition(instance, asset)
    return versions


def _latest_data_version(instance: dg.DagsterInstance, asset: dg.AssetKey) -> str | None:
    """Return the data version of an asset without partitions.

    Args:
        instance: The instance of Dagster, whose history is read.
        asset: Key of the asset.

    Returns:
        "" if its latest materialisation has none; None if it was never materialised.
    """
    event = instance.get_latest_materialization_event(asset)
    materialization = None if event is None else event.asset_materialization
    if materialization is None:
        return None
    tags = materialization.tags or {}
    return tags.get(DATA_VERSION_TAG, "")


def _data_version_by_partition(
    instance: dg.DagsterInstance, asset: dg.AssetKey
) -> dict[str | None, str]:
    """Return the data versions of all materialised partitions of an asset, in two queries.

    Args:
        instance: The instance of Dagster, whose history is read.
        asset: Key of the asset.

    Returns:
        Partition → data version, "" if its latest materialisation has none.
    """
    # A materialisation that was reported by hand may have no version.
    versions: dict[str | None, str] = {}
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
    """The assets that it materialises; empty for a backfill of a job, which does not list them."""
    partitions: frozenset[str] | None
    """Partitions that it targets in any of its assets; None if they cannot be read from Dagster's
    record.
    """

    def targets(self, asset: dg.AssetKey, partition: str) -> bool:
        """Return whether the backfill may materialise a partition of an asset.

        If its assets or partitions are unknown, it is assumed to target all of them.

        Args:
            asset: Key of the asset.
            partition: Name of the partition.
        """
        concerns_asset = not self.assets or asset in self.assets
        return concerns_asset and (self.partitions is None or partition in self.partitions)


def open_backfills(instance: dg.DagsterInstance) -> list[OpenBackfill]:
    """Return all backfills, which are requests for many partitions, that have not ended.

    Args:
        instance: The instance of Dagster that has the backfills.
    """
    statuses = [BulkActionStatus(name) for name in ("REQUESTED", "CANCELING", "FAILING")]
    backfills: list[OpenBackfill] = []
    for backfill in instance.get_backfills(BulkActionsFilter(statuses=statuses)):
        assets = frozenset(backfill.asset_selection or ())
        backfills.append(OpenBackfill(backfill.backfill_id, assets, _target_partitions(backfill)))
    return backfills


def _target_partitions(backfill: PartitionBackfill) -> frozenset[str] | None:
    """Return the partitions that a backfill is going to make.

    A backfill is a request for many partitions, such as all corpora, for which Dagster starts one
    run after the other.

    Args:
        backfill: Dagster's record of the backfill.

    Returns:
        Names of partitions, of any asset; None if the record alone does not show them.
    """
    # The record of a backfill of a job has the names of the partitions.
    if backfill.partition_names is not None:
        return frozenset(backfill.partition_names)

    # The record of a backfill of assets has a set of partitions for each asset. If an older version
    # of Dagster wrote it, it can only be read by a process that has loaded all definitions.
    if backfill.asset_backfill_data is None:
        return None
    partitions: set[str] = set()
    target = backfill.asset_backfill_data.target_subset
    for subset in target.partitions_subsets_by_asset_key.values():
        if not isinstance(subset, DefaultPartitionsSubset):
            # "All" or a range: which partitions these are depends on the definitions.
            return None
        partitions.update(subset.get_partition_keys())
    return frozenset(partitions)


def latest_materializations(
    instance: dg.DagsterInstance, assets: Sequence[dg.AssetKey]
) -> dict[dg.AssetKey, int]:
    """Return the event id of each asset's latest materialisation, of any partition.

    Event ids grow with time, so they show which of two materialisations is the later one.

    Args:
        instance: The instance of Dagster, whose history is read.
        assets: Keys of the assets.

    Returns:
        Asset → event id. Assets that were never materialised are missing.
    """
    event_id_by_asset: dict[dg.AssetKey, int] = {}
    for record in instance.get_asset_records(assets):
        event_id = record.asset_entry.last_materialization_storage_id
        if event_id is not None:
            event_id_by_asset[record.asset_entry.asset_key] = event_id
    return event_id_by_asset


@dataclass(frozen=True, slots=True, order=True)
class LatestRun:
    """The last run that was started to materialise an asset, whether or not it succeeded."""

    asset: str
    """The asset key, its parts joined by `/`."""
    run_id: str
    status: str
    """The value of a `DagsterRunStatus`, such as SUCCESS; empty if the run was deleted."""


def latest_runs(instance: dg.DagsterInstance, assets: Sequence[dg.AssetKey]) -> list[LatestRun]:
    """Return the last run that was started for each asset, with its status.

    Args:
        instance: The instance of Dagster that has the runs.
        assets: Keys of the assets.

    Returns:
        The runs, sorted by asset; assets without a run are left out.
    """
    run_id_by_asset: dict[str, str] = {}
    for record in instance.get_asset_records(assets):
        entry = record.asset_entry
        if entry.last_run_id:
            run_id_by_asset[entry.asset_key.to_user_string()] = entry.last_run_id

    # Many assets share a run: look all runs up at once.
    status_by_run = _status_by_run(instance, set(run_id_by_asset.values()))
    latest: list[LatestRun] = []
    for asset, run_id in sorted(run_id_by_asset.items()):
        status = status_by_run.get(run_id, "")
        latest.append(LatestRun(asset, run_id, status))
    return latest


def _status_by_run(instance: dg.DagsterInstance, run_ids: Collection[str]) -> dict[str, str]:
    """Return the status of each run, such as SUCCESS. Runs that were deleted are left out.

    Args:
        instance: The instance of Dagster that has the runs.
        run_ids: Ids of the runs.
    """
    if not run_ids:
        return {}  # Dagster refuses a filter with an empty list of ids
    runs = instance.get_runs(dg.RunsFilter(run_ids=sorted(run_ids)))
    return {run.run_id: run.status.value for run in runs}


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """The last run that planned to materialise an asset, or one partition of it."""

    run_id: str | None
    """None if no run ever did."""
    storage_id: int
    """Id of the event that records the plan; 0 if no run ever did."""


def latest_planned(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str | None
) -> PlannedRun:
    """Return the last run that planned to materialise an asset, or one partition of it.

    Args:
        instance: The instance of Dagster that has the runs.
        asset: Key of the asset.
        partition: The partition; None for an asset without partitions.

    Returns:
        The run, whether or not it has started or succeeded.
    """
    planned = instance.event_log_storage.get_latest_planned_materialization_info(asset, partition)
    if planned is None:
        return PlannedRun(None, 0)
    return PlannedRun(planned.run_id, planned.storage_id)


def repository_of(context: dg.AssetExecutionContext) -> dg.RepositoryDefinition | None:
    """Return the definitions of a run's code location, or None if the run knows only its job.

    Args:
        context: Dagster's context of the run.
    """
    with suppress(CheckError):
        return context.repository_def
    return None


def assets_with_failed_check(
    instance: dg.DagsterInstance, checks: Iterable[dg.AssetCheckKey]
) -> set[tuple[dg.AssetKey, str | None]]:
    """Return the assets, each with a partition, whose latest check found errors or did not end.

    Checks that only found warnings do not count.

    Args:
        instance: The instance of Dagster, which records the results of checks.
        checks: The checks to look up.

    Returns:
        (asset, partition) of each; the partition is None for an asset without partitions.
    """
    storage = instance.event_log_storage
    partitions: set[tuple[dg.AssetKey, str | None]] = set()
    for info in storage.get_asset_check_partition_info(list(checks)):
        has_succeeded = info.latest_execution_status.value == "SUCCEEDED"
        if has_succeeded or _is_warning(instance, info.check_key, info.partition_key):
            continue
        partitions.add((info.check_key.asset_key, info.partition_key))
    return partitions


def _is_warning(
    instance: dg.DagsterInstance, check: dg.AssetCheckKey, partition: str | None
) -> bool:
    """Return whether the latest evaluation of a check that did not succeed is only a warning.

    Args:
        instance: The instance of Dagster, which records the results of checks.
        check: Key of the check.
        partition: The partition that was checked; None for an asset without partitions.
    """
    records = instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [check], partition_filter=PartitionKeyFilter(key=partition)
    )
    record = records.get(check)
    evaluation = None if record is None else record.evaluation
    # This is another kind of object if the check was planned, but did not end.
    if not isinstance(evaluation, dg.AssetCheckEvaluation):
        return False
    return evaluation.severity == dg.AssetCheckSeverity.WARN


@contextmanager
def interruptible_runs(instance: dg.DagsterInstance) -> Iterator[None]:
    """Raise KeyboardInterrupt in this block on Ctrl-C or SIGTERM, at any point of a run.

    Otherwise Dagster would handle signals in ways that do not suit a command:

    - It raises its own error in place of KeyboardInterrupt.
    - It forgets a signal that arrives between the last step and the end of the run.
    - It starts helper processes that copy the run's output. A Ctrl-C reaches them too, and they end
      with tracebacks on the terminal.
    - It handles signals that this process should ignore, as under `nohup`.

    Args:
        instance: The instance of Dagster with which runs are executed in the block.

    Raises:
        KeyboardInterrupt: A signal arrived in the block.
    """
    with ExitStack() as changes_of_dagster:
        changes_of_dagster.enter_context(_log_helpers_shielded(instance))
        if ignores_ending_signals():  # as under `nohup`
            changes_of_dagster.enter_context(_dagster_sets_no_handlers())
        try:
            with handlers_restored():  # Dagster replaces signal handlers
                yield
        except dg.DagsterExecutionInterruptedError as error:
            raise KeyboardInterrupt from error
        except Exception as error:
            # Whatever a signal interrupts may fail with an error of its own.
            if received_signal() is not None:
                raise KeyboardInterrupt from error
            raise

    # The block ended without an error, but Dagster may have forgotten a signal.
    if received_signal() is not None:
        raise KeyboardInterrupt


@contextmanager
def _log_helpers_shielded(instance: dg.DagsterInstance) -> Iterator[None]:
    """Let the helper processes that Dagster starts in the `with` block ignore Ctrl-C.

    Dagster starts a process for each step of a run, which copies the output of the step to a file.
    If the user presses Ctrl-C, the terminal sends it to these processes, too, and they end with
    tracebacks. Dagster has no option for that. So the method that starts them is replaced during
    the block.

    Args:
        instance: The instance of Dagster with which runs are executed in the block.
    """
    logs: Any = instance.compute_log_manager
    capture_logs = logs.capture_logs

    @contextmanager
    def capture_logs_shielded(log_key: Sequence[str]) -> Iterator[Any]:
        """Do what `capture_logs` does, and let the processes that it starts ignore Ctrl-C."""
        with ExitStack() as capture:
            # Entering `capture_logs` starts the processes. Only that is shielded from Ctrl-C, and
            # not the step, which is executed in place of `yield`.
            with children_shielded():
                context = capture.enter_context(capture_logs(log_key))
            yield context

    logs.capture_logs = capture_logs_shielded
    try:
        yield
    finally:
        logs.capture_logs = capture_logs


@contextmanager
def _dagster_sets_no_handlers() -> Iterator[None]:
    """Keep Dagster from replacing this process's signal handlers."""
    interrupts: Any = untyped_interrupts
    replace_signal = interrupts._replace_interrupt_signal
    interrupts._replace_interrupt_signal = lambda handler: None
    try:
        yield
    finally:
        interrupts._replace_interrupt_signal = replace_signal


def is_run_loading() -> bool:
    """Return whether definitions are being loaded for a run that a code server launched."""
    return DefinitionsLoadContext.get().load_type is DefinitionsLoadType.RECONSTRUCTION


def remembered_for_run(key: str) -> str | None:
    """Return a text that `remember_for_runs` stored when Dagster's server loaded the definitions.

    Dagster passes such texts on to the processes of the runs, which load the definitions again.

    Args:
        key: The key with which the text was stored.

    Returns:
        The text; None in a process that is not of such a run, or if none was stored.
    """
    if not is_run_loading():
        return None
    text = DefinitionsLoadContext.get().reconstruction_metadata.get(key)
    return None if text is None else str(text)


def remember_for_runs(key: str, text: str) -> None:
    """Store a text for `remembered_for_run` in every run that this code server launches.

    Args:
        key: Identifies the text.
        text: The text. Dagster stores it with each run.
    """
    DefinitionsLoadContext.get().add_to_pending_reconstruction_metadata(key, text)


def code_location_of(
    instance: dg.DagsterInstance, sensor: str, module: str
) -> RemoteRepositoryOrigin:
    """Return the code location in which Dagster's UI shows the project.

    The UI lists each run below a *code location*, a set of definitions that a server has loaded. A
    run that this process starts by itself belongs to none, and would be missing in some pages.
    Dagster stores the code location together with every sensor that it has called, so it is looked
    up there.

    Args:
        instance: The instance of Dagster.
        sensor: Name of a sensor of the project. If it was called in several code locations, the
            latest one counts.
        module: If the sensor was never called, the code location that `dagster dev -m <module>`
            would make is returned.

    Returns:
        Dagster's record of the code location.
    """
    # An *origin* is Dagster's record of where it loads something from.
    states = [state for state in _sensor_states(instance) if state.origin.instigator_name == sensor]
    if states:
        latest_state = max(states, key=_last_tick)
        return cast(RemoteRepositoryOrigin, latest_state.origin.repository_origin)

    # The origin that `dagster dev -m <module>` makes, with the same Python.
    target = LoadableTargetOrigin(executable_path=sys.executable, module_name=module)
    location = ManagedGrpcPythonEnvCodeLocationOrigin(target)
    return RemoteRepositoryOrigin(location, SINGLETON_REPOSITORY_NAME)


def _sensor_states(instance: dg.DagsterInstance) -> Sequence[Any]:
    """Return the recorded states of sensors; an instance in memory has none."""
    with suppress(CheckError):
        return instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
    return []


def _last_tick(state: Any) -> float:
    """Return when a sensor last ticked, in seconds since 1970; 0 if it never did."""
    return getattr(state.instigator_data, "last_tick_timestamp", None) or 0.0


@contextmanager
def runs_in_code_location(
    instance: dg.DagsterInstance, location: RemoteRepositoryOrigin
) -> Iterator[None]:
    """Assign the runs that are executed in this block to a code location.

    Dagster's timeline and its job pages show only runs of a code location, and `execute_in_process`
    has no argument for it. So this adds it where the instance creates a run.

    Args:
        instance: The instance of Dagster that records the runs.
        location: The code location, as `code_location_of` returns it.
    """
    patched: Any = instance  # `Any`, since a method of the instance is replaced below
    create_run_for_job = patched.create_run_for_job

    def create_run_in_location(job_def: dg.JobDefinition, **details: Any) -> dg.DagsterRun:
        """Create a run as the instance does, and assign it to the code location."""
        origin = location.get_job_origin(job_def.name)
        run: dg.DagsterRun = create_run_for_job(
            job_def=job_def, remote_job_origin=origin, **details
        )
        return run

    # The function shadows the method of the class until it is deleted.
    patched.create_run_for_job = create_run_in_location
    try:
        yield
    finally:
        del patched.create_run_for_job


@contextmanager
def event_log_replaced(instance: dg.DagsterInstance, event_log: EventLogStorage) -> Iterator[None]:
    """Let an instance use another event log until the block ends.

    Args:
        instance: The instance of Dagster.
        event_log: The other event log, which stores events in the same place.
    """
    patched: Any = instance  # `Any`, since a private attribute of the instance is replaced below
    original = patched._event_storage
    event_log.register_instance(instance)
    patched._event_storage = event_log
    try:
        yield
    finally:
        patched._event_storage = original


@contextmanager
def run_storage_replaced(instance: dg.DagsterInstance, run_storage: RunStorage) -> Iterator[None]:
    """Let an instance use another list of runs until the block ends.

    Args:
        instance: The instance of Dagster.
        run_storage: The other list of runs, which stores them in the same place.
    """
    patched: Any = instance  # `Any`, since a private attribute of the instance is replaced below
    original = patched._run_storage
    run_storage.register_instance(instance)
    patched._run_storage = run_storage
    try:
        yield
    finally:
        patched._run_storage = original


def condition_sensors(
    instance: dg.DagsterInstance, repository: dg.RepositoryDefinition, asset: dg.AssetKey
) -> dict[str, bool]:
    """Return the sensors that evaluate an asset's automation condition.

    Args:
        instance: The instance of Dagster, which records which sensors the user has switched on or
            off.
        repository: All definitions of the code location.
        asset: Key of the asset.

    Returns:
        Name of each sensor → whether it is switched on.
    """
    status_by_sensor: dict[str, str] = {}
    for state in _sensor_states(instance):
        status_by_sensor[state.origin.instigator_name] = state.status.value

    graph = repository.asset_graph
    is_on_by_sensor: dict[str, bool] = {}
    for sensor in repository.sensor_defs:
        selection = sensor.asset_selection
        if sensor.sensor_type.value not in _CONDITION_SENSOR_TYPES or selection is None:
            continue
        if asset in selection.resolve(graph):
            status = status_by_sensor.get(sensor.name)
            is_on_by_sensor[sensor.name] = _is_sensor_on(sensor, status)
    return is_on_by_sensor


def _is_sensor_on(sensor: dg.SensorDefinition, recorded_status: str | None) -> bool:
    """Return whether a sensor is switched on.

    Args:
        sensor: The definition of the sensor, with its default status.
        recorded_status: RUNNING or STOPPED if a user has switched the sensor on or off; otherwise
            DECLARED_IN_CODE or None, and the default status applies.
    """
    if recorded_status in (None, "DECLARED_IN_CODE"):
        return sensor.default_status is dg.DefaultSensorStatus.RUNNING
    return recorded_status == "RUNNING"
