"""What a Dagster instance knows of a project: partitions, materialisations, checks, and runs under way or tried."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import dagster as dg

from nanoset_assets.dagster_compat import (
    DATA_VERSION_TAG,
    backfilled_assets,
    latest_data_versions,
    latest_planned,
    unsuccessful_checks,
)
from nanoset_assets.names import Names
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.pipeline.graph import Graph, Step
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.raw import INVENTORY
from nanoset_core.pipeline.runs import GraphState
from nanoset_core.pipeline.stage import Key, Node

CHECK = "verified"
"""The name of every check: one an asset, which blocks what is made of it."""
RAW_TAG = ".dagster/nanoset_raw_text"
"""On runs that the sensor over raw text asked for: corpus:mark of its files. Dagster shows no tags of this prefix."""
_SHOWN_RAW_TAG = "nanoset/raw_text"
"""Its name in older runs."""
WANTED_TAG = ".dagster/nanoset_wanted"
"""On runs that other sensors or the schedule asked for, and on runs that failed: digests of the outputs wanted."""
AUTOMATION_TAG = "nanoset/automation"
"""On runs that the sensor over everything downstream, or the schedule, asked for."""
MOST_ATTEMPTS = 5
"""How often a run is asked for, for the same output, that was killed or whose output is gone."""
RETRY_SECONDS = 600
"""Dagster starts a killed run again within moments; after this long it has forgotten to."""
LOADED = time.time()
"""When this process began, seconds since 1970: what failed before may have failed for reasons that are gone."""
UNSUCCESSFUL = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_UNFINISHED = [status for status in dg.DagsterRunStatus if status not in (*UNSUCCESSFUL, dg.DagsterRunStatus.SUCCESS)]
_PARTITION_TAG = "dagster/partition"
_WILL_RETRY_TAG = "dagster/will_retry"
_RETRIED = "its run was killed, and will be started again"


def register(instance: dg.DagsterInstance, names: Names, corpora: Collection[str]) -> None:
    """Add corpora as partitions, those that the instance does not know."""
    from sqlalchemy.exc import IntegrityError

    new = sorted(set(corpora).difference(instance.get_dynamic_partitions(names.corpora_name)))
    try:
        instance.add_dynamic_partitions(names.corpora_name, new)
    except IntegrityError:  # another build added some at this very moment
        instance.add_dynamic_partitions(names.corpora_name, new)


def load_graph_state(
    graph: Graph, instance: dg.DagsterInstance, names: Names, *, same_versions: bool = False
) -> GraphState:
    """Compare a graph with what the instance has recorded of its project.

    Args:
        graph: The graph.
        instance: Where the runs are recorded.
        names: Of the project.
        same_versions: Take a step for recorded only where the last materialisation is of the very version that its
            inputs ask for, and not of any version.
    """
    steps = {step.node: step for step in graph.steps()}
    assets: dict[tuple[str, ...], list[Step]] = {}
    for step in steps.values():
        assets.setdefault(step.node.asset, []).append(step)
    recorded: set[Node] = set()
    for asset, parts in assets.items():
        versions = latest_data_versions(instance, names.asset(asset), {step.node.partition for step in parts})
        recorded.update(
            step.node
            for step in parts
            if step.node.partition in versions and (not same_versions or versions[step.node.partition] == step.digest)
        )
    faulty = unverified(instance, [dg.AssetCheckKey(names.asset(asset), CHECK) for asset in assets], names)
    unsound = frozenset(node for node in steps if (node.asset, node.partition) in faulty)
    return GraphState(steps, frozenset(steps) - recorded, unsound)


def unverified(
    instance: dg.DagsterInstance, checks: Iterable[dg.AssetCheckKey], names: Names
) -> set[tuple[tuple[str, ...] | None, str | None]]:
    """Return the (asset, partition) whose last check found errors, or did not end; not those never checked."""
    return {
        (names.path(key.asset_key), partition)
        for key, partition, evaluation in unsuccessful_checks(instance, checks)
        if evaluation is None or evaluation.severity != dg.AssetCheckSeverity.WARN
    }


def current_inventories(project: Project, corpora: Iterable[str]) -> dict[str, Recipe]:
    """Return corpus → recipe of its current inventory; those without one that can be read are left out."""
    listed = sorted(corpora)
    found = zip(listed, INVENTORY.current_of_all(project, list(map(Key, listed))), strict=True)
    return {
        corpus: Recipe(**current.manifest.recipe)
        for corpus, current in found
        if current.manifest is not None and current.problem is None
    }


def was_automatic(names: Names, tags: Mapping[str, str]) -> bool:
    """Return whether a sensor or the schedule asked for a run with these tags, because of files they saw."""
    return not {names.tag(RAW_TAG), _SHOWN_RAW_TAG, AUTOMATION_TAG}.isdisjoint(tags)


@dataclass
class UnderWay:
    """The runs of an instance that are queued or have not ended, looked up once."""

    instance: dg.DagsterInstance
    names: Names
    _steps: dict[tuple[dg.AssetKey, str | None], bool] = field(default_factory=dict)

    @cached_property
    def runs(self) -> list[dg.DagsterRun]:
        return list(self.instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED)))

    def corpora(self, job: str, assets: Collection[dg.AssetKey]) -> set[str]:
        """Return the partitions of all runs of a job, or of some of its assets."""
        return {
            run.tags[_PARTITION_TAG]
            for run in self.runs
            if _PARTITION_TAG in run.tags
            and (run.job_name == job or not (run.asset_selection or set()).isdisjoint(assets))
        }

    def assets(self, assets: Collection[dg.AssetKey]) -> set[dg.AssetKey]:
        """Return those of some assets, of whatever partition, that a run or a backfill is to make."""
        chosen = {key for run in self.runs for key in run.asset_selection or ()} | backfilled_assets(self.instance)
        is_whole_job = any(run.asset_selection is None for run in self.runs)
        return {key for key in assets if key in chosen or (is_whole_job and self.makes(key, None))}

    def makes(self, asset: dg.AssetKey, partition: str | None) -> bool:
        """Return whether the last run that was to make an asset, or one partition of it, has not ended."""
        if self.runs and (asset, partition) not in self._steps:
            record = _last_run(self.instance, asset, partition)
            self._steps[asset, partition] = record is not None and record.dagster_run.status in _UNFINISHED
        return self._steps.get((asset, partition), False)

    def __contains__(self, node: Node) -> bool:
        return self.makes(self.names.asset(node.asset), node.partition)


def _last_run(instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str | None) -> dg.RunRecord | None:
    run_id, _ = latest_planned(instance, asset, partition)
    return None if run_id is None else instance.get_run_record_by_id(run_id)


def why_held(instance: dg.DagsterInstance, names: Names, step: Step) -> str | None:
    """Return why a step is not asked for, since its last run failed for the output that is wanted; None: ask for it.

    A run that bears no digest, since a person started it, is taken to have failed for the output that is wanted when
    its failure is first seen, and is tagged so. A restart of this process has everything tried again.
    """
    record = _last_run(instance, names.asset(step.node.asset), step.node.partition)
    if record is None or record.dagster_run.status not in UNSUCCESSFUL or _ended(record) < LOADED:
        return None
    if _is_retried(record):
        return _RETRIED
    run, tag = record.dagster_run, names.tag(WANTED_TAG)
    wanted = run.tags.get(tag)
    if wanted is None:
        wanted = step.digest
        instance.add_run_tags(run.run_id, {tag: wanted})
    if step.digest not in wanted.split():
        return None
    tried = instance.get_run_records(dg.RunsFilter(tags={tag: wanted}))
    return _why_not_again(instance, record, sum(_ended(other) >= LOADED for other in tried))


@dataclass(frozen=True, slots=True)
class Attempts:
    """The runs that were asked for, for one state of one corpus."""

    state: str
    """corpus:mark"""
    count: int = 0
    """Runs so far, retries included."""
    last: dg.RunRecord | None = None
    """The latest of them."""
    held: str | None = None
    """Why no other run is asked for; None when one is."""

    @property
    def next_key(self) -> str:
        """The run key of the next one. A tick that is repeated gives it again, and so no second run."""
        return self.state if self.count == 0 else f"{self.state}:{self.count}"

    @staticmethod
    def of(instance: dg.DagsterInstance, names: Names, state: str) -> Attempts:
        """Look up what was tried."""
        tags = (names.tag(RAW_TAG), *([] if names.key_prefix else [_SHOWN_RAW_TAG]))
        records = [record for tag in tags for record in instance.get_run_records(dg.RunsFilter(tags={tag: state}))]
        if not records:
            return Attempts(state)
        return Attempts(state, len(records), records[0], _why_not_again(instance, records[0], len(records)))

    def took(self, instance: dg.DagsterInstance, asset: dg.AssetKey, inventory: str | None) -> bool:
        """Return whether an inventory, an output of `asset`, is the one that the last run took of this very state."""
        if self.last is None or self.last.dagster_run.status != dg.DagsterRunStatus.SUCCESS:
            return False
        partition = self.last.dagster_run.tags.get(_PARTITION_TAG)
        wanted = dg.AssetRecordsFilter(asset_key=asset, asset_partitions=[partition] if partition else None)
        records = instance.fetch_materializations(wanted, limit=1).records
        event = records[0].asset_materialization if records else None
        version = (event.tags or {}).get(DATA_VERSION_TAG) if event is not None else None
        return bool(records) and records[0].run_id == self.last.dagster_run.run_id and version == inventory


def _why_not_again(instance: dg.DagsterInstance, last: dg.RunRecord, count: int) -> str | None:
    run = last.dagster_run
    if _is_retried(last):
        return _RETRIED
    if _ended(last) < LOADED:
        return None
    if run.status in UNSUCCESSFUL and not was_killed(instance, run):
        was = "failed" if run.status == dg.DagsterRunStatus.FAILURE else "was cancelled"
        return f"its run {run.run_id[:8]} {was}; it is built when what it is made from changes, or from the UI"
    return f"{count} runs did not build it; the last is {run.run_id[:8]}" if count >= MOST_ATTEMPTS else None


def _ended(record: dg.RunRecord) -> float:
    """Return when a run ended; one that never started has no such time: then when it was changed last."""
    return record.end_time or record.update_timestamp.timestamp()


def _is_retried(record: dg.RunRecord) -> bool:
    """Return whether Dagster's run retries are about to start a killed run again."""
    awaited = time.time() - _ended(record) < RETRY_SECONDS
    return awaited and record.dagster_run.tags.get(_WILL_RETRY_TAG) == "true"


def was_killed(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a run ended without any of its steps failing."""
    return run.status == dg.DagsterRunStatus.FAILURE and instance.get_run_stats(run.run_id).steps_failed == 0
