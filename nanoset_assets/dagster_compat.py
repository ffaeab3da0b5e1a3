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
from dagster._core.events import DagsterEvent
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus, PartitionBackfill
from dagster._core.instance.utils import RUNLESS_JOB_NAME
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
from dagster._core.storage.asset_check_execution_record import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
)
from dagster._core.storage.event_log import EventLogStorage
from dagster._core.storage.runs import RunStorage
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.utils import make_new_run_id
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
    "has_failed_last_check",
    "interruptible_runs",
    "is_run_loading",
    "latest_data_versions",
    "latest_evaluation",
    "latest_materializations",
    "latest_planned",
    "latest_runs",
    "open_backfills",
    "partitioned_assets_of_run",
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
    """Return which version of each partition of an asset was made last, as Dagster's history says.

    For example, the asset `indexed_dataset` has a partition for each text collection. Dagster calls
    an identifier of a version its data version:

        {"web": "81c2…", "books": "5f0c…", "old": ""}

    Args:
        instance: The instance of Dagster, whose history is read.
        asset: Key of the asset.
        partitions: The partitions to look up. `{None}` for an asset without partitions; the result
            is then such as `{None: "81c2…"}`.

    Returns:
        Partition → data version, "" if none was recorded. Partitions that were never made are left
        out. There may be partitions that were not requested.
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
    """Return which version of an asset without partitions was made last, as Dagster's history says.

    Args:
        instance: The instance of Dagster, whose history is read.
        asset: Key of the asset, such as `pretrain/handoff`.

    Returns:
        The data version. "" if none was recorded with it; None if the asset was never made.
    """
    event = instance.get_latest_materialization_event(asset)
    if event is None or event.asset_materialization is None:
        return None
    tags = event.asset_materialization.tags or {}
    return tags.get(DATA_VERSION_TAG, "")


def _data_version_by_partition(
    instance: dg.DagsterInstance, asset: dg.AssetKey
) -> dict[str | None, str]:
    """Return which version of each partition of an asset was made last, in two queries.

    Dagster stores the version as a tag of the event that says that the partition was made. An event
    that a user has reported by hand may have none:

        partitions that were made        web, books, old
        those with a version tag         web: "81c2…", books: "5f0c…"
        result                           {"web": "81c2…", "books": "5f0c…", "old": ""}

    Args:
        instance: The instance of Dagster, whose history is read.
        asset: Key of the asset.
    """
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
        """Return whether the backfill may make a certain partition of an asset.

        A backfill is a request for many partitions, such as `web` and `books` of one asset. In some
        cases, Dagster's record of it does not say which. Then this assumes that it makes all.

        Args:
            asset: Key of the asset.
            partition: Name of the partition.
        """
        are_assets_unknown = not self.assets  # a backfill of a job does not list them
        may_make_asset = are_assets_unknown or asset in self.assets
        may_make_partition = self.partitions is None or partition in self.partitions
        return may_make_asset and may_make_partition


def open_backfills(instance: dg.DagsterInstance) -> list[OpenBackfill]:
    """Return all backfills that have not ended. A backfill is a request for many partitions.

    For example, a user asks in Dagster's web page for the datasets of all text collections. Dagster
    then starts one run after the other, and meanwhile nothing else should make these datasets.

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
    """Return the partitions that a backfill is going to make; None if they are not known.

    A backfill is a request for many partitions, such as the datasets of web and books.

    Args:
        backfill: Dagster's record of the backfill.
    """
    # A backfill of a job has their names.
    if backfill.partition_names is not None:
        return frozenset(backfill.partition_names)

    # A backfill of assets has a set of partitions for each asset. In the records of older versions
    # of Dagster, these can only be read by a process that has loaded all definitions.
    if backfill.asset_backfill_data is None:
        return None
    partitions: set[str] = set()
    target = backfill.asset_backfill_data.target_subset
    for subset in target.partitions_subsets_by_asset_key.values():
        if not isinstance(subset, DefaultPartitionsSubset):
            return None  # "all", or a range: only the definitions say which ones these are
        partitions.update(subset.get_partition_keys())
    return frozenset(partitions)


def latest_materializations(
    instance: dg.DagsterInstance, assets: Sequence[dg.AssetKey]
) -> dict[dg.AssetKey, int]:
    """Return the id of the event in which each asset was made last, any partition of it.

    Event ids grow with time. If an asset has another id than at the last look, it was made again.

    Args:
        instance: The instance of Dagster, whose history is read.
        assets: Keys of the assets.

    Returns:
        Asset → event id, such as 1234. Assets that were never made are left out.
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

    For example:

        asset                 run         status
        indexed_dataset       1f2e3d4c    SUCCESS
        tokenized_shards      1f2e3d4c    SUCCESS      (the same run made both)
        pretrain/blend        77aa01bc    ""           (the run was deleted)

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
    """Return the last run that was to make an asset, or one partition of it.

    When Dagster creates a run, it records what the run plans to make. So this also finds runs that
    have not started yet, and runs that have failed.

    Args:
        instance: The instance of Dagster that has the runs.
        asset: Key of the asset, such as `indexed_dataset`.
        partition: The partition, such as `web`; None for an asset without partitions.
    """
    planned = instance.event_log_storage.get_latest_planned_materialization_info(asset, partition)
    if planned is None:
        return PlannedRun(None, 0)
    return PlannedRun(planned.run_id, planned.storage_id)


def repository_of(context: dg.AssetExecutionContext) -> dg.RepositoryDefinition | None:
    """Return all definitions that Dagster has loaded together with the asset of a run.

    A process of a run may have loaded only the job that it executes. Then the result is None.

    Args:
        context: Dagster's context of the run.
    """
    with suppress(CheckError):
        return context.repository_def
    return None


def partitioned_assets_of_run(
    context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext,
) -> list[dg.AssetKey]:
    """Return the assets that a run makes or checks, and that have partitions; sorted.

    Args:
        context: Dagster's context of the run. If the run was started for some assets of a job, its
            `job_def` has only these.
    """
    graph = context.job_def.asset_layer.asset_graph
    partitioned: set[dg.AssetKey] = set()
    for asset in graph.executable_asset_keys:
        if graph.get(asset).partitions_def is not None:
            partitioned.add(asset)
    for check in graph.asset_check_keys:
        if graph.get(check).partitions_def is not None:
            partitioned.add(check.asset_key)
    return sorted(partitioned)


def assets_with_failed_check(
    instance: dg.DagsterInstance, checks: Iterable[dg.AssetCheckKey]
) -> set[tuple[dg.AssetKey, str | None]]:
    """Return the assets and partitions whose last check has failed: they must not be used.

    In Dagster, a check examines an asset after each run of it. The last result of a check may be:

        passed                              not returned
        failed, with a warning only         not returned
        failed, with an error               returned
        planned or started, but not ended   returned: the process may have been killed

    Args:
        instance: The instance of Dagster, which records the results of checks.
        checks: The checks to look up.

    Returns:
        Such as {(`indexed_dataset`, "web")}; the partition is None for an asset without partitions.
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
    """Return whether a check that did not pass has only found a warning.

    Dagster's summary says that a check has failed, but not how seriously. That is in the record of
    its last execution. If this has not ended, the record has no result: it counts as more than a
    warning.

    Args:
        instance: The instance of Dagster, which records the results of checks.
        check: Key of the check.
        partition: The partition that was checked; None for an asset without partitions.
    """
    evaluation = latest_evaluation(instance, check, partition)
    return evaluation is not None and evaluation.severity == dg.AssetCheckSeverity.WARN


def latest_evaluation(
    instance: dg.DagsterInstance, check: dg.AssetCheckKey, partition: str | None
) -> dg.AssetCheckEvaluation | None:
    """Return the result of the last check of an asset; None if it has not ended.

    Args:
        instance: The instance of Dagster, which records the results of checks.
        check: Key of the check.
        partition: The partition that was checked; None for an asset without partitions.
    """
    records = instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [check], partition_filter=PartitionKeyFilter(key=partition)
    )
    record = records.get(check)
    if record is None:
        return None
    # The record of a check that has not ended has another kind of object here.
    return record.evaluation if isinstance(record.evaluation, dg.AssetCheckEvaluation) else None


def report_check(instance: dg.DagsterInstance, evaluation: dg.AssetCheckEvaluation) -> None:
    """Add the result of a check to Dagster's history that no run of Dagster has executed.

    Dagster's `report_runless_asset_event` can only store one result of each check and partition,
    since its index allows a check only once in a run, and all these events have the same run id,
    "". A second result would raise an error of the database. So each result gets a new run id.

    Args:
        instance: The instance of Dagster.
        evaluation: The result of the check.
    """
    event = DagsterEvent(
        event_type_value=dg.DagsterEventType.ASSET_CHECK_EVALUATION.value,
        event_specific_data=evaluation,
        job_name=RUNLESS_JOB_NAME,
    )
    instance.report_dagster_event(event, run_id=make_new_run_id())


def has_failed_last_check(
    instance: dg.DagsterInstance, check: dg.AssetCheckKey, partition: str | None
) -> bool:
    """Return whether the last check of an asset that has ended found an error.

    Unlike `assets_with_failed_check`, this ignores checks that are planned. So a run can use it
    before its own check, which Dagster has planned when it created the run.

    Args:
        instance: The instance of Dagster, which records the results of checks.
        check: Key of the check.
        partition: The partition that was checked; None for an asset without partitions.
    """
    records = instance.event_log_storage.get_asset_check_execution_history(
        check,
        limit=1,  # the latest
        status=COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
        partition_filter=PartitionKeyFilter(key=partition),
    )
    if not records:
        return False
    evaluation = records[0].evaluation
    if not isinstance(evaluation, dg.AssetCheckEvaluation):
        return False
    return not evaluation.passed and evaluation.severity == dg.AssetCheckSeverity.ERROR


@contextmanager
def interruptible_runs(instance: dg.DagsterInstance) -> Iterator[None]:
    """Raise KeyboardInterrupt in this block on Ctrl-C or SIGTERM, at any point of a run of Dagster.

    Dagster has its own handling of these signals, which does not suit a command in a terminal. What
    it does, and what happens in this block:

        Dagster by itself                                        in this block
        1. lets its helper processes print tracebacks            they ignore Ctrl-C
        2. reacts to signals although `nohup` should prevent it  signals are ignored
        3. raises an error of its own                            KeyboardInterrupt is raised
        4. forgets a signal after the last step of a run         KeyboardInterrupt is raised

    Args:
        instance: The instance of Dagster with which runs are executed in the block.

    Raises:
        KeyboardInterrupt: A signal arrived in the block.
    """
    with ExitStack() as changes_of_dagster:
        changes_of_dagster.enter_context(_log_helpers_shielded(instance))  # line 1 of the table
        if ignores_ending_signals():  # as under `nohup`
            changes_of_dagster.enter_context(_dagster_sets_no_handlers())  # line 2
        try:
            with handlers_restored():  # Dagster replaces signal handlers
                yield  # here, the runs are executed
        except dg.DagsterExecutionInterruptedError as error:  # line 3
            raise KeyboardInterrupt from error
        except Exception as error:
            # A signal may also interrupt other code, which then fails with an error of its own.
            if received_signal() is not None:
                raise KeyboardInterrupt from error
            raise

    # Line 4: the block has ended without an error, but Dagster may have forgotten a signal.
    if received_signal() is not None:
        raise KeyboardInterrupt


@contextmanager
def _log_helpers_shielded(instance: dg.DagsterInstance) -> Iterator[None]:
    """Let the processes that capture Dagster's logs ignore Ctrl-C, within the `with` block.

    Dagster starts such a process for each step of a run, in its method `capture_logs`. If the user
    presses Ctrl-C, the terminal sends it to this process, too, which would print a traceback.
    Dagster has no option for that, so its method is replaced.

    Args:
        instance: The instance of Dagster with which runs are executed in the block.
    """
    logs: Any = instance.compute_log_manager
    original_method = logs.capture_logs

    @contextmanager
    def capture_logs(log_key: Sequence[str]) -> Iterator[Any]:
        """Do what Dagster's method does, but let the processes that it starts ignore Ctrl-C."""
        with ExitStack() as stack:
            with children_shielded():  # processes that are started in this block ignore Ctrl-C
                context = stack.enter_context(original_method(log_key))
            yield context  # the step is executed: processes that it starts do react to Ctrl-C

    logs.capture_logs = capture_logs
    try:
        yield
    finally:
        logs.capture_logs = original_method


@contextmanager
def _dagster_sets_no_handlers() -> Iterator[None]:
    """Keep Dagster from replacing the signal handlers of this process in the `with` block.

    Under `nohup`, a process should ignore the signal that a closed terminal sends. Dagster would
    replace this by a handler that ends the run. So the function of Dagster that replaces handlers
    is itself replaced, by one that does nothing.
    """
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
    """Return a text that Dagster's server has stored for its runs, in a process of such a run.

    The server loads all definitions, and starts a process for each run, which loads them again. If
    nanoset.yaml was changed in between, both would differ. So the server stores the text of the
    file with `remember_for_runs`, and the process gets it here.

    Args:
        key: The key with which the text was stored.

    Returns:
        The text; None in any other process, or if no text was stored.
    """
    if not is_run_loading():
        return None
    text = DefinitionsLoadContext.get().reconstruction_metadata.get(key)
    return None if text is None else str(text)


def remember_for_runs(key: str, text: str) -> None:
    """Store a text that the processes of runs can read, when they load the definitions again.

    Dagster's server calls this while it loads the definitions; see `remembered_for_run`.

    Args:
        key: Identifies the text.
        text: The text, such as that of nanoset.yaml. Dagster stores it with each run.
    """
    DefinitionsLoadContext.get().add_to_pending_reconstruction_metadata(key, text)


def code_location_of(
    instance: dg.DagsterInstance, sensor: str, module: str
) -> RemoteRepositoryOrigin:
    """Return where Dagster's server has loaded a project from, by what it stored with a sensor.

    Dagster calls this place a *code location*: a Python module, and the Python program that loads
    it. Its web pages list runs by code location. Runs that a server starts have one, but those that
    a command in a terminal executes do not, and would be missing in some pages. So the command
    looks it up here, and adds it to its runs.

    Args:
        instance: The instance of Dagster.
        sensor: Name of a sensor of the project.
        module: The Python module with the definitions of the project. If no server has called the
            sensor yet, assume that `dagster dev -m <module>` will load it.

    Returns:
        Dagster's record of the code location.
    """
    # The server stores a record of each sensor that it has called. (An *instigator* is a sensor or
    # a schedule.)
    states = [state for state in _sensor_states(instance) if state.origin.instigator_name == sensor]
    if not states:
        return _location_of_module(module)
    # If the project was moved, there is also a record with its old place. Take the latest.
    latest_state = max(states, key=_last_tick)
    return cast(RemoteRepositoryOrigin, latest_state.origin.repository_origin)


def _location_of_module(module: str) -> RemoteRepositoryOrigin:
    """Return the code location that a server started by `dagster dev -m <module>` would have.

    Args:
        module: A Python module with definitions, such as "nanoset_assets.definitions".

    Returns:
        Dagster's record of the code location.
    """
    # Which Python program imports which module.
    target = LoadableTargetOrigin(executable_path=sys.executable, module_name=module)
    # The server starts this program as a process of its own, and talks to it by gRPC.
    location = ManagedGrpcPythonEnvCodeLocationOrigin(target)
    # Dagster gives this name to all definitions of a module together.
    return RemoteRepositoryOrigin(location, SINGLETON_REPOSITORY_NAME)


def _sensor_states(instance: dg.DagsterInstance) -> Sequence[Any]:
    """Return what Dagster has recorded about each sensor, such as whether it is on.

    An instance without a database, which only exists in memory, has no such records.

    Args:
        instance: The instance of Dagster.
    """
    with suppress(CheckError):
        return instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
    return []


def _last_tick(state: Any) -> float:
    """Return when Dagster has last called a sensor, in seconds since 1970; 0 if it never did.

    Args:
        state: What Dagster has recorded about the sensor.
    """
    return getattr(state.instigator_data, "last_tick_timestamp", None) or 0.0


@contextmanager
def runs_in_code_location(
    instance: dg.DagsterInstance, location: RemoteRepositoryOrigin
) -> Iterator[None]:
    """Let the runs that are executed in this block appear in Dagster's timeline and job pages.

    These pages only show runs that belong to a *code location*, a set of definitions that Dagster's
    server has loaded. A run that is executed in this process belongs to none, and Dagster has no
    option for that. So its method that creates runs is replaced during the block.

    Args:
        instance: The instance of Dagster that records the runs.
        location: The code location, as `code_location_of` returns it.
    """
    patched: Any = instance  # `Any`, since a method of the instance is replaced below
    original_method = patched.create_run_for_job

    def create_run_for_job(job_def: dg.JobDefinition, **details: Any) -> dg.DagsterRun:
        """Create a run as Dagster's method does, and assign it to the code location."""
        origin = location.get_job_origin(job_def.name)
        run: dg.DagsterRun = original_method(job_def=job_def, remote_job_origin=origin, **details)
        return run

    # The function hides the method of the class until it is deleted.
    patched.create_run_for_job = create_run_for_job
    try:
        yield
    finally:
        del patched.create_run_for_job


@contextmanager
def event_log_replaced(instance: dg.DagsterInstance, event_log: EventLogStorage) -> Iterator[None]:
    """Let an instance of Dagster use another event log until the block ends.

    The event log is the part of Dagster's history that says what was made when. Dagster opens its
    file anew for each query; a command with many queries is faster with one that keeps the file
    open.

    Args:
        instance: The instance of Dagster.
        event_log: The other event log, which uses the same file.
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
    """Let an instance of Dagster use another list of runs until the block ends.

    As with `event_log_replaced`, the purpose is one that keeps its file open for many queries.

    Args:
        instance: The instance of Dagster.
        run_storage: The other list of runs, which uses the same file.
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
    """Return the sensors that build an asset as soon as its automation condition is met.

    An automation condition says when an asset is to be built, such as "when an input has changed".
    Dagster only looks at it if there is a sensor for that, and the user has switched it on.

    Args:
        instance: The instance of Dagster, which records which sensors are on or off.
        repository: All definitions that Dagster has loaded together.
        asset: Key of the asset.

    Returns:
        Name of each sensor → whether it is switched on, such as {"my_sensor": False}.
    """
    # What users have switched on or off: name of a sensor → such as "RUNNING".
    status_by_sensor: dict[str, str] = {}
    for state in _sensor_states(instance):
        status_by_sensor[state.origin.instigator_name] = state.status.value

    is_on_by_sensor: dict[str, bool] = {}
    for sensor in repository.sensor_defs:
        selection = sensor.asset_selection  # the assets whose conditions it looks at
        if sensor.sensor_type.value not in _CONDITION_SENSOR_TYPES or selection is None:
            continue
        if asset in selection.resolve(repository.asset_graph):
            status = status_by_sensor.get(sensor.name)
            is_on_by_sensor[sensor.name] = _is_sensor_on(sensor, status)
    return is_on_by_sensor


def _is_sensor_on(sensor: dg.SensorDefinition, recorded_status: str | None) -> bool:
    """Return whether a sensor is switched on.

        what Dagster has recorded         result
        RUNNING or STOPPED                what the user has chosen in Dagster's web page
        DECLARED_IN_CODE, or nothing      the default status in the definition of the sensor

    Args:
        sensor: The definition of the sensor.
        recorded_status: What Dagster has recorded, or None.
    """
    if recorded_status in (None, "DECLARED_IN_CODE"):
        return sensor.default_status is dg.DefaultSensorStatus.RUNNING
    return recorded_status == "RUNNING"
