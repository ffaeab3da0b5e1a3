"""What a Dagster instance knows of a project: partitions, materialisations, checks, and runs under way or tried."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg

from nanoset_assets.asset_table import asset_path, is_asset, partition_of, shape_of
from nanoset_assets.dagster_compat import (
    DATA_VERSION_TAG,
    OpenBackfill,
    latest_data_versions,
    latest_planned,
    open_backfills,
    unsound_checks,
)
from nanoset_assets.names import Names
from nanoset_assets.ui.metadata import place, size_bytes
from nanoset_assets.ui.nanoset import reader_metadata
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.graph import Graph, Step
from nanoset_core.project.project import Project
from nanoset_core.project.runs import GraphState
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.handoff.stage import TRAINER_FILES
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import CorpusStage, Node, Stage, is_of_corpora

CHECK = "verified"
"""The name of every check: one an asset, which blocks what is made of it."""
RAW_TAG = ".dagster/nanoset_raw_text"
"""On runs that the sensor over raw text asked for: corpus:mark of its files. Dagster shows no tags of this prefix."""
WANTED_TAG = ".dagster/nanoset_wanted"
"""On runs that other sensors or the schedule asked for, and on runs that failed: digests of the outputs wanted."""
AUTOMATION_TAG = "nanoset/automation"
"""On runs that the sensor over everything downstream, or the schedule, asked for."""
OWNER_TAG = ".dagster/nanoset_process"
"""On runs that have begun: host:pid:begin:run of the process that executes them."""
CONFIG_ERROR_TAG = ".dagster/nanoset_config_error"
"""On runs that failed because nanoset.yaml could not be loaded: they are tried again once it can."""
MOST_REQUESTS = 200
"""Runs that one tick of a sensor asks for; the next ticks ask for the rest."""
MOST_ATTEMPTS = 5
"""How often a run is asked for, for the same output, that was killed, whose output is gone, or that failed because
nanoset.yaml could not be loaded."""
RETRY_SECONDS = 600
"""Dagster starts a killed run again within moments; after this long it has forgotten to."""
LOADED = time.time()
"""When this process began, seconds since 1970: what failed before may have failed for reasons that are gone."""
UNSUCCESSFUL = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED = [status for status in dg.DagsterRunStatus if status not in (*UNSUCCESSFUL, dg.DagsterRunStatus.SUCCESS)]
_PARTITION_TAG = "dagster/partition"
_BACKFILL_TAG = "dagster/backfill"
_WILL_RETRY_TAG = "dagster/will_retry"


def partition_set_of(names: Names, stage: Stage) -> dg.DynamicPartitionsDefinition:
    """Return the partitions of a stage whose partitions are corpora.

    A stage that every corpus has shares one set. A stage that only some corpora have, such as `packed_dataset`, has a
    set of its own, named like its asset: of the shared set, the other partitions would stay missing for ever, and
    "Materialize all" would end as a failed backfill.
    """
    if isinstance(stage, CorpusStage) or not is_asset(stage):
        return names.corpora
    return names.partition_set(shape_of(stage).asset)


def corpora_by_partition_set(config: ProjectConfig, names: Names, corpora: Iterable[str]) -> dict[str, set[str]]:
    """Return name of each set of partitions → those of some corpora that are in it."""
    present = set(corpora)
    corpora_by_set = {names.corpora_name: present}
    for stage in stages():
        if is_of_corpora(stage) and is_asset(stage) and not isinstance(stage, CorpusStage):
            requested = {key.subject for key in stage.keys(config, sorted(present))}
            corpora_by_set[partition_set_of(names, stage).name or ""] = requested & present
    return corpora_by_set


def assets_of_partition_set(names: Names, set_name: str) -> list[dg.AssetKey]:
    """Return the assets whose partitions are those of a set."""
    by_corpus = [stage for stage in stages() if is_of_corpora(stage) and is_asset(stage)]
    return [
        names.asset(shape_of(stage).asset or "")
        for stage in by_corpus
        if partition_set_of(names, stage).name == set_name
    ]


def register(instance: dg.DagsterInstance, names: Names, corpora: Collection[str], config: ProjectConfig) -> None:
    """Add corpora as partitions of the assets that they have, those that the instance does not know."""
    from sqlalchemy.exc import IntegrityError

    for set_name, members in corpora_by_partition_set(config, names, corpora).items():
        new = sorted(members.difference(instance.get_dynamic_partitions(set_name)))
        if not new:
            continue
        try:
            instance.add_dynamic_partitions(set_name, new)
        except IntegrityError:  # another build added some at this very moment
            instance.add_dynamic_partitions(set_name, new)


def load_graph_state(
    graph: Graph, instance: dg.DagsterInstance, names: Names, active_runs: ActiveRuns | None = None
) -> GraphState:
    """Compare a graph with what the instance knows of its project.

    What is up to date, but was made by another machine or under another history, is recorded: no run makes it again.

    Args:
        graph: the outputs of the project.
        instance: the instance.
        names: the names of the project.
        active_runs: those of the instance, looked up before any output is read; default: they are looked up here.
    """
    if active_runs is None:
        active_runs = ActiveRuns(instance, names)
    steps = {step.node: step for step in graph.steps()}
    assets: dict[tuple[str, ...], set[str | None]] = {}
    for node in steps:
        assets.setdefault(asset_path(node), set()).add(partition_of(node))
    known = {asset: latest_data_versions(instance, names.asset(asset), parts) for asset, parts in assets.items()}
    for node, step in steps.items():  # what an output is made from before it, as by a run
        if not step.done or known[asset_path(node)].get(partition_of(node)) == step.digest:
            continue
        # A new history knows none of a project's thousands of outputs: ask for their runs only if there are any.
        if active_runs.runs and node in active_runs:
            continue  # its run records it
        instance.report_runless_asset_event(_found(graph, step, names))
    faulty = unsound_checks(instance, [dg.AssetCheckKey(names.asset(asset), CHECK) for asset in assets])
    paths = {(names.path(asset), partition) for asset, partition in faulty}
    return GraphState(steps, frozenset(node for node in steps if (asset_path(node), partition_of(node)) in paths))


def _found(graph: Graph, step: Step, names: Names) -> dg.AssetMaterialization:
    """Return the event of an output that was found, with what its manifest says of it."""
    node, project, manifest = step.node, graph.project, graph.current(step.node).manifest
    shown: dict[str, Any] = {"summary": "made on another machine, or recorded by another history of runs"}
    if manifest is not None:
        shown |= {**node.stage.show(project, manifest).figures, "size_bytes": size_bytes(manifest)}
        shown |= {"path": place(project, manifest.url()), "digest": manifest.digest}
    if node.stage is TRAINER_FILES:
        shown |= reader_metadata(project, node.key.subject)
    version = {DATA_VERSION_TAG: step.digest}
    return dg.AssetMaterialization(
        names.asset(asset_path(node)), metadata=shown, partition=partition_of(node), tags=version
    )


def current_inventories(project: Project, corpora: Iterable[str]) -> dict[str, Recipe]:
    """Return corpus → recipe of its current inventory; those without one that can be read are left out."""
    listed = sorted(corpora)
    found = zip(listed, project.outputs.current_versions(INVENTORY.layout.folder, listed), strict=True)
    return {
        corpus: Recipe(**current.manifest.recipe)
        for corpus, current in found
        if current.manifest is not None and current.problem is None
    }


def was_automatic(names: Names, tags: Mapping[str, str]) -> bool:
    """Return whether a sensor or the schedule asked for a run with these tags, because of files they saw."""
    return names.tag(RAW_TAG) in tags or AUTOMATION_TAG in tags


class ActiveRuns:
    """The runs of an instance that were queued or had not ended when this object was made.

    Make it before outputs are read. A run that ends between the two still counts as active, so that nothing is
    requested for what it has just made; the next tick looks again.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        names: Names,
        upstream: Mapping[str, Sequence[dg.AssetKey]] | None = None,
    ) -> None:
        """Look up the runs.

        Args:
            instance: the instance.
            names: the names of the project.
            upstream: corpus → the host's assets that land its text; default: none.
        """
        self.instance = instance
        self.names = names
        self.upstream = upstream or {}
        self.looked_up_at = time.time()
        """Seconds since 1970."""
        self.runs: Sequence[dg.DagsterRun] = instance.get_runs(dg.RunsFilter(statuses=UNFINISHED))
        self._run_ids = {run.run_id for run in self.runs}
        self._is_active_by_node: dict[Node, bool] = {}

    @cached_property
    def corpora(self) -> set[str]:
        """The corpora that an active run is about."""
        job = self.names.definition(INVENTORY.kind)
        assets = {
            self.names.asset(shape_of(stage).asset) for stage in stages() if is_of_corpora(stage) and is_asset(stage)
        }
        ours = [run for run in self.runs if run.job_name == job or not assets.isdisjoint(run.asset_selection or ())]
        return {run.tags[_PARTITION_TAG] for run in ours if _PARTITION_TAG in run.tags}

    @cached_property
    def backfills(self) -> list[OpenBackfill]:
        """The backfills that have not ended."""
        return open_backfills(self.instance)

    @cached_property
    def landing(self) -> dict[str, str]:
        """Corpus whose text is being landed → the asset that a run or backfill is to make."""
        keys = {key for keys in self.upstream.values() for key in keys}
        chosen: set[dg.AssetKey] = set()
        for backfill in self.backfills:
            chosen.update(backfill.assets)
        for run in self.runs:
            chosen.update(run.asset_selection or ())

        # A run of a job does not list its assets: ask which run was to make each asset last.
        if self.runs or self.backfills:
            open_ids = {backfill.backfill_id for backfill in self.backfills}
            for key in keys:
                record = _last_run(self.instance, key, None)
                if record is None:
                    continue
                run = record.dagster_run
                # Of a backfill of a job, other runs may be yet to come.
                if self._is_active(record) or run.tags.get(_BACKFILL_TAG) in open_ids:
                    chosen.add(key)

        landing: dict[str, str] = {}
        for corpus, corpus_keys in self.upstream.items():
            chosen_keys = [key for key in corpus_keys if key in chosen]
            if chosen_keys:
                landing[corpus] = chosen_keys[0].to_user_string()
        return landing

    def targets(self, asset: dg.AssetKey, partition: str) -> bool:
        """Return whether an active run or an open backfill is to make a partition of an asset, as far as is known."""
        if any(backfill.targets(asset, partition) for backfill in self.backfills):
            return True
        record = _last_run(self.instance, asset, partition)
        return record is not None and self._is_active(record)

    def __contains__(self, node: Node) -> bool:
        """Return whether the last run that was to make an output is active."""
        if node not in self._is_active_by_node:
            record = _last_run(self.instance, self.names.asset(asset_path(node)), partition_of(node))
            self._is_active_by_node[node] = record is not None and self._is_active(record)
        return self._is_active_by_node[node]

    def _is_active(self, record: dg.RunRecord) -> bool:
        run = record.dagster_run
        if run.run_id in self._run_ids or run.status in UNFINISHED:
            return True
        # It began and ended since the runs were looked up.
        return _ended(record) >= self.looked_up_at


def _last_run(instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str | None) -> dg.RunRecord | None:
    run_id, _ = latest_planned(instance, asset, partition)
    return None if run_id is None else instance.get_run_record_by_id(run_id)


def why_held(instance: dg.DagsterInstance, names: Names, step: Step) -> str | None:
    """Return why a step is not asked for, since its last run failed for the output that is wanted; None: ask for it.

    A run that bears no digest, since a person started it, is taken to have failed for the output that is wanted when
    its failure is first seen, and is tagged so.
    """
    record = _last_run(instance, names.asset(asset_path(step.node)), partition_of(step.node))
    if record is None or record.dagster_run.status not in UNSUCCESSFUL or _ended(record) < LOADED:
        return None
    run, tag = record.dagster_run, names.tag(WANTED_TAG)
    wanted = run.tags.get(tag)
    if wanted is None:
        wanted = step.digest
        instance.add_run_tags(run.run_id, {tag: wanted})
    if step.digest not in wanted.split() and not _is_retried(record):
        return None
    return why_not_again(instance, record, instance.get_run_records(dg.RunsFilter(tags={tag: wanted})))


def why_not_again(instance: dg.DagsterInstance, last: dg.RunRecord, others: Sequence[dg.RunRecord]) -> str | None:
    """Return why no other run is asked for after the last one; None: one is, as after a restart of this process."""
    run = last.dagster_run
    if _is_retried(last):
        return "its run was killed, and will be started again"
    if _ended(last) < LOADED:
        return None
    may_be_repeated = CONFIG_ERROR_TAG in run.tags or _was_killed(instance, run)
    if run.status in UNSUCCESSFUL and not may_be_repeated:
        was = "failed" if run.status == dg.DagsterRunStatus.FAILURE else "was cancelled"
        return f"its run {run.run_id[:8]} {was}; it is built when what it is made from changes, or from the UI"
    count = sum(_ended(other) >= LOADED for other in others)
    return f"{count} runs did not build it; the last is {run.run_id[:8]}" if count >= MOST_ATTEMPTS else None


def took(instance: dg.DagsterInstance, last: dg.RunRecord, asset: dg.AssetKey, partition: str, digest: str) -> bool:
    """Return whether a run succeeded, and the last materialisation of a partition is by it and of this digest."""
    wanted = dg.AssetRecordsFilter(asset, asset_partitions=[partition])
    run = last.dagster_run
    return run.is_success and any(
        record.run_id == run.run_id
        and record.asset_materialization is not None
        and (record.asset_materialization.tags or {}).get(DATA_VERSION_TAG) == digest
        for record in instance.fetch_materializations(wanted, limit=1).records
    )


def _ended(record: dg.RunRecord) -> float:
    """Return when a run ended; one that never started has no such time: then when it was changed last."""
    return record.end_time or record.update_timestamp.timestamp()


def _is_retried(record: dg.RunRecord) -> bool:
    """Return whether Dagster's run retries are about to start a killed run again."""
    awaited = time.time() - _ended(record) < RETRY_SECONDS
    return awaited and record.dagster_run.tags.get(_WILL_RETRY_TAG) == "true"


def _was_killed(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a run ended without any of its steps failing."""
    return run.status == dg.DagsterRunStatus.FAILURE and instance.get_run_stats(run.run_id).steps_failed == 0


def is_run_process() -> bool:
    """Return whether this process executes a run, and not one step of it, which ends before the run does."""
    return multiprocessing.parent_process() is None and "execute_step" not in sys.argv


def owner_tag(names: Names, run_id: str = "") -> dict[str, str]:
    """Return the tag for a run that this process executes; the run may be left out for one that is yet to be created.

    The begin is in clock ticks since the machine started, 0 where that is not known.
    """
    return {names.tag(OWNER_TAG): f"{socket.gethostname()}:{os.getpid()}:{_began(os.getpid())}:{run_id}"}


def close_abandoned_runs(instance: dg.DagsterInstance, names: Names) -> list[str]:
    """Report this project's runs as failed whose process on this machine is gone; return their ids.

    They would look as if they were under way forever: Dagster notices a killed run while its code server lives, but not
    after a restart of everything, nor one inside `nanoset build`.
    """
    tag = names.tag(OWNER_TAG)
    runs = instance.get_runs(dg.RunsFilter(statuses=UNFINISHED))
    abandoned = [run for run in runs if tag in run.tags and _is_abandoned(run, *run.tags[tag].split(":"))]
    for run in abandoned:
        instance.report_run_failed(run, "its process was killed; what it had finished is kept")
    return [run.run_id for run in abandoned]


def _is_abandoned(run: dg.DagsterRun, host: str, pid: str, began: str, run_id: str) -> bool:
    # A run that is a retry of another one bears that one's tag until it starts.
    is_own = run_id == run.run_id or (not run_id and run.parent_run_id is None)
    if not is_own or host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # another user's
    return int(began) not in (0, _began(int(pid)))


def _began(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])
