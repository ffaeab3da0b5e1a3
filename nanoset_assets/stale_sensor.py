"""The sensor that builds outputs which are not the ones that their inputs ask for.

It asks the project's files, not the events that Dagster has seen. An edit of nanoset.yaml, a new
version of the code, a deleted output and a change while Dagster was down are all the same to it. It
is a plain sensor: Dagster allows one sensor that evaluates automation conditions for each asset,
and a host's may cover all of its assets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dagster as dg

from nanoset_assets.active_runs import ActiveRuns
from nanoset_assets.asset_names import job_of
from nanoset_assets.asset_table import shape_of
from nanoset_assets.due_runs import due_runs, run_request
from nanoset_assets.graph_state import current_inventories, load_graph_state
from nanoset_assets.hosted import ProjectDefs, tick_result
from nanoset_assets.loaded import LoadedAssets, not_loaded
from nanoset_assets.names import Names
from nanoset_assets.partition_sets import register
from nanoset_assets.tags import MAX_REQUESTS
from nanoset_core.project.graph import graph_over
from nanoset_core.stages.inventory.stage import INVENTORY

SENSOR = "missing_or_stale"
_SHOWN = 5
"""Outputs that wait, of which the log says why."""


def stale_sensor(hosted: ProjectDefs, jobs: Iterable[Any]) -> dg.SensorDefinition:
    """Make the sensor that builds whatever is missing or stale downstream of raw text.

    Args:
        hosted: The project.
        jobs: All jobs of its assets.
    """
    names = hosted.names

    @dg.sensor(
        jobs=list(jobs),
        description="Builds what is missing or stale downstream of raw text, as soon as it can be made. Leaves alone "
        "what failed until something of which it is made has changed, what waits for a run that is under way, and "
        "what nanoset.yaml has that is not loaded yet.",
        **hosted.sensor_options(SENSOR),
    )
    def missing_or_stale(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        instance = context.instance
        project = hosted.load()
        loaded_assets = LoadedAssets.of(hosted.config)

        # Runs first: what ends while outputs are read would else be built again.
        active_runs = ActiveRuns(instance, names)
        corpora = instance.get_dynamic_partitions(names.corpora_name)
        register(instance, names, corpora, project.config)
        graph = graph_over(project, current_inventories(project, corpora))
        state = load_graph_state(graph, instance, names, active_runs)
        due = due_runs(state, active_runs, loaded_assets)

        # The log of the tick: what needs a reload, what waits, and how much is requested later.
        notes = not_loaded(hosted.config, project.config)
        waiting = [f"{label}: {reason}" for label, reason in due.waiting_reasons.items()]
        notes += waiting[:_SHOWN]
        if len(waiting) > _SHOWN:
            notes.append(f"and {len(waiting) - _SHOWN:,} more that have to wait")
        if len(due.runs) > MAX_REQUESTS:
            notes.append(f"{len(due.runs) - MAX_REQUESTS:,} more runs are asked for later")

        requests: list[dg.RunRequest] = []
        sensor = names.definition(SENSOR)
        for run in due.runs[:MAX_REQUESTS]:
            job = names.definition(job_of(run[0].node))
            requests.append(run_request(names, run, sensor, job_name=job))
        nothing = f"{len(state.steps):,} outputs: none is missing or stale that could be made now"
        return tick_result(context, requests, notes, nothing)

    return missing_or_stale


def with_condition(
    assets: Iterable[dg.AssetsDefinition], names: Names
) -> list[dg.AssetsDefinition]:
    """Give assets the condition by which an automation-condition sensor of the host builds them.

    Each is built when the data version of an input changes.

    Inventories have no condition: the sensor over raw text requests them.
    """
    condition = dg.AutomationCondition[dg.AssetKey]
    new_version = condition.any_deps_updated().replace(
        "newly_updated", condition.data_version_changed()
    )
    eager = condition.eager().replace("any_deps_updated", new_version)
    when = eager & condition.all_deps_blocking_checks_passed()
    inventory = names.asset(shape_of(INVENTORY).asset)

    def attach(spec: dg.AssetSpec) -> dg.AssetSpec:
        if spec.key == inventory:
            return spec
        return spec.replace_attributes(automation_condition=when)

    return list(dg.map_asset_specs(attach, assets))
