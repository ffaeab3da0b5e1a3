"""Runs that the platform asks for by itself: what is under way, and what has been tried."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import dagster as dg

from nanoset_assets.dagster_compat import DATA_VERSION_TAG, backfilled_assets, latest_planned_run
from nanoset_assets.names import Names

RAW_TAG = ".dagster/nanoset_raw_text"
"""On runs that the sensor asked for: corpus:mark of its files. Dagster shows no tags of this prefix."""
_SHOWN_RAW_TAG = "nanoset/raw_text"
"""Its name in older runs."""
AUTOMATION_TAG = "nanoset/automation"
"""On runs that the sensor over everything downstream, or the schedule, asked for."""
MOST_ATTEMPTS = 5
"""As often is a run asked for, for the same files, that was killed or whose output is gone."""
RETRY_SECONDS = 600
"""Dagster starts a killed run again within moments; after this long it has forgotten to."""
LOADED = time.time()
"""When this process began, seconds since 1970: what failed before may have failed for reasons that are gone."""
UNSUCCESSFUL = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_UNFINISHED = [status for status in dg.DagsterRunStatus if status not in (*UNSUCCESSFUL, dg.DagsterRunStatus.SUCCESS)]
_PARTITION_TAG = "dagster/partition"
_WILL_RETRY_TAG = "dagster/will_retry"


def was_asked_by_itself(names: Names, tags: Mapping[str, str]) -> bool:
    """Whether a sensor or the schedule asked for a run with these tags, as they see files, and no person."""
    return not {names.tag(RAW_TAG), _SHOWN_RAW_TAG, AUTOMATION_TAG}.isdisjoint(tags)


def partitions_under_way(instance: dg.DagsterInstance, job: str, assets: Collection[dg.AssetKey]) -> set[str]:
    """Partitions of all runs of a job, or of some of its assets, that are queued or have not ended."""
    return {
        run.tags[_PARTITION_TAG]
        for run in instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED))
        if _PARTITION_TAG in run.tags and (run.job_name == job or not (run.asset_selection or set()).isdisjoint(assets))
    }


def assets_under_way(instance: dg.DagsterInstance, assets: Collection[dg.AssetKey]) -> set[dg.AssetKey]:
    """Those of some assets, of whatever partition, that a run or a backfill is to make which has not ended."""
    runs = instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED))
    chosen = {key for run in runs for key in run.asset_selection or ()} | backfilled_assets(instance)
    unsaid = any(run.asset_selection is None for run in runs)  # a whole job
    return {key for key in assets if key in chosen or (unsaid and is_under_way(instance, key, None))}


def is_any_under_way(instance: dg.DagsterInstance) -> bool:
    """Whether any run of an instance is queued or has not ended."""
    return instance.get_runs_count(dg.RunsFilter(statuses=_UNFINISHED)) > 0


def last_run(instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str | None) -> dg.RunRecord | None:
    """The last run that was to make an asset, or one partition of it."""
    run_id = latest_planned_run(instance, asset, partition)
    return None if run_id is None else instance.get_run_record_by_id(run_id)


def failed_run(instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str | None) -> dg.RunRecord | None:
    """The last run that was to make it, if that did not succeed and ended since this process began."""
    record = last_run(instance, asset, partition)
    if record is None or record.dagster_run.status not in UNSUCCESSFUL or _ended(record) < LOADED:
        return None
    return record


def is_under_way(instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str | None) -> bool:
    """Whether the last run that was to make it is queued or has not ended."""
    record = last_run(instance, asset, partition)
    return record is not None and record.dagster_run.status in _UNFINISHED


@dataclass(frozen=True, slots=True)
class Attempts:
    """The runs that were asked for, for one state of one corpus."""

    state: str
    """corpus:mark"""
    count: int = 0
    """runs so far, retries included"""
    last: dg.RunRecord | None = None
    """the latest of them"""
    held: str | None = None
    """why no other run is asked for; None when one is"""

    @property
    def next_key(self) -> str:
        """The run key of the next one. A tick that is repeated gives it again, and so no second run."""
        return self.state if self.count == 0 else f"{self.state}:{self.count}"

    @staticmethod
    def of(instance: dg.DagsterInstance, names: Names, state: str) -> Attempts:
        """Look up what was tried."""
        records = [
            record
            for tag in (names.tag(RAW_TAG), *([] if names.key_prefix else [_SHOWN_RAW_TAG]))
            for record in instance.get_run_records(dg.RunsFilter(tags={tag: state}))
        ]
        if not records:
            return Attempts(state)
        return Attempts(state, len(records), records[0], _held(instance, records[0], len(records)))

    def took(self, instance: dg.DagsterInstance, asset: dg.AssetKey, inventory: str | None) -> bool:
        """Whether an inventory, an output of `asset`, is the one that the last run took of this very state."""
        if self.last is None or self.last.dagster_run.status != dg.DagsterRunStatus.SUCCESS:
            return False
        partition = self.last.dagster_run.tags.get(_PARTITION_TAG)
        wanted = dg.AssetRecordsFilter(asset_key=asset, asset_partitions=[partition] if partition else None)
        records = instance.fetch_materializations(wanted, limit=1).records
        event = records[0].asset_materialization if records else None
        version = (event.tags or {}).get(DATA_VERSION_TAG) if event is not None else None
        return bool(records) and records[0].run_id == self.last.dagster_run.run_id and version == inventory


def _held(instance: dg.DagsterInstance, last: dg.RunRecord, count: int) -> str | None:
    run = last.dagster_run
    if is_retried(last):
        return "its run was killed, and will be started again"
    if run.status in UNSUCCESSFUL and _ended(last) >= LOADED and not was_killed(instance, run):
        was = "failed" if run.status == dg.DagsterRunStatus.FAILURE else "was cancelled"
        return f"its run {run.run_id[:8]} {was}; it is built when its files change, or from the UI"
    if count >= MOST_ATTEMPTS and _ended(last) >= LOADED:
        return f"{count} runs did not build it; the last is {run.run_id[:8]}"
    return None


def _ended(record: dg.RunRecord) -> float:
    """When a run ended; one that never started has no such time, and counts as having ended when it was changed."""
    return record.end_time or record.update_timestamp.timestamp()


def is_retried(record: dg.RunRecord) -> bool:
    """Whether Dagster's run retries are about to start a killed run again."""
    awaited = time.time() - _ended(record) < RETRY_SECONDS
    return awaited and record.dagster_run.tags.get(_WILL_RETRY_TAG) == "true"


def was_killed(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether a run ended without any of its steps failing."""
    return run.status == dg.DagsterRunStatus.FAILURE and instance.get_run_stats(run.run_id).steps_failed == 0
