"""The sensor and the nightly schedule that build outputs which are not the ones that their inputs ask for.

Both ask the project's files, not the events that Dagster has seen: an edit of nanoset.yaml, a new version of the code,
a deleted output or a change while Dagster was down are all the same to them. The sensor is a plain one: of sensors that
evaluate automation conditions Dagster allows one an asset, and a host's may cover all of its assets.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import dagster as dg

from nanoset_assets.asset_table import asset_path, is_asset, label_of, partition_of, shape_of
from nanoset_assets.hosted import ProjectDefs, tick_result
from nanoset_assets.instance_state import (
    AUTOMATION_TAG,
    MOST_REQUESTS,
    WANTED_TAG,
    ActiveRuns,
    current_inventories,
    load_graph_state,
    register,
    why_held,
)
from nanoset_assets.loaded import RELOAD, LoadedAssets, not_loaded
from nanoset_assets.names import Names
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.graph import Step, graph_over
from nanoset_core.project.project import Project
from nanoset_core.project.running import no_cron_line
from nanoset_core.project.runs import GraphState, runnable
from nanoset_core.stages.inventory.corpora import scan_corpora
from nanoset_core.stages.inventory.make import inventory_recipe, overwritten_file, quiet_period, remembered_inventory
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.registry import stages, sweep
from nanoset_core.stages.stage import Node, is_of_corpora
from nanoset_core.text.survey import RawText
from nanoset_core.untrusted import Multiline, visible

SENSOR = "missing_or_stale"
SCHEDULE = "reconcile"
EVERY_ASSET = "__ASSET_JOB"
"""Dagster's own job over all assets, the only one whose assets may differ in their partitions."""
MOST_NIGHTLY = 1000
"""Runs that one night asks for; the sensor and the next night ask for the rest."""
_SHOWN = 5


def job_of(node: Node) -> str:
    """Return the job that an asset is a part of: all of a nanoset or webdataset, or one kind of all corpora."""
    name = node.stage.kind if is_of_corpora(node.stage) else shape_of(node.stage).job.format(subject=node.key.subject)
    return re.sub("[^A-Za-z0-9_]", "_", name)


def run_of(step: Step) -> Hashable:
    """Steps that share a run: the chain of one corpus, or the assets of one split; others have their own."""
    node = step.node
    return node if partition_of(node) is None else (job_of(node), partition_of(node))


def stale_sensor(hosted: ProjectDefs, jobs: Iterable[Any]) -> dg.SensorDefinition:
    """Make the sensor that has whatever is missing or stale downstream of raw text built, by these jobs."""
    names = hosted.names

    @dg.sensor(
        jobs=list(jobs),
        description="Builds what is missing or stale downstream of raw text, as soon as it can be made. Leaves alone "
        "what failed until something of which it is made has changed, what waits for a run that is under way, and "
        "what nanoset.yaml has that is not loaded yet.",
        **hosted.ticks(SENSOR),
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
        runs, waiting_reasons = _due(state, active_runs, loaded_assets)

        # The log of the tick: what needs a reload, what waits, and how much is requested later.
        notes = not_loaded(hosted.config, project.config)
        notes += [f"{label}: {reason}" for label, reason in list(waiting_reasons.items())[:_SHOWN]]
        if len(waiting_reasons) > _SHOWN:
            notes.append(f"and {len(waiting_reasons) - _SHOWN:,} more that have to wait")
        if len(runs) > MOST_REQUESTS:
            notes.append(f"{len(runs) - MOST_REQUESTS:,} more runs are asked for later")
        requests = [
            _request(names, run, names.definition(SENSOR), job_name=names.definition(job_of(run[0].node)))
            for run in runs[:MOST_REQUESTS]
        ]
        nothing = f"{len(state.steps):,} outputs: none is missing or stale that could be made now"
        return tick_result(context, requests, notes, nothing)

    return missing_or_stale


def _due(
    state: GraphState, active_runs: ActiveRuns, loaded_assets: LoadedAssets, *, again: bool = False
) -> tuple[list[list[Step]], dict[str, str]]:
    """Return the runs of what is missing or stale and can be made now, and why other outputs have to wait.

    Args:
        state: the outputs of the project.
        active_runs: those that were active before the outputs were read.
        loaded_assets: those that a run can make.
        again: also take what has failed, and inventories that differ from the text, which the sensor over raw text
            requests otherwise. An inventory whose check was cut off is taken in any case: its text has not changed.

    Returns:
        The runs, and label of output → reason.
    """
    waiting_reasons: dict[str, str] = {}

    def reason_to_wait(step: Step) -> str | None:
        if step.node not in loaded_assets:
            return f"not loaded yet: {RELOAD}"
        failure = None if again else why_held(active_runs.instance, active_runs.names, step)
        if failure is not None:
            return failure
        if step.node in active_runs:
            return "a run is under way"
        if any(need in active_runs for need in step.needs):
            return "waits for a run of what it is made from"
        return None

    def can_be_requested(step: Step) -> bool:
        if step.node.stage is INVENTORY and not step.done and not again:
            return False  # the sensor over raw text requests it
        reason = reason_to_wait(step)
        if reason is not None:
            waiting_reasons[label_of(step.node)] = reason
        return reason is None

    runs = runnable(state, can_be_requested, run_of)
    return runs, waiting_reasons


def _request(names: Names, run: Sequence[Step], by: str, **more: Any) -> dg.RunRequest:
    """Return the run of some steps that `by` asks for; `more` of dg.RunRequest."""
    tags = {AUTOMATION_TAG: by, names.tag(WANTED_TAG): " ".join(step.digest for step in run)}
    assets = [names.asset(asset_path(step.node)) for step in run]
    return dg.RunRequest(partition_key=partition_of(run[0].node), asset_selection=assets, tags=tags, **more)


def reconcile_schedule(hosted: ProjectDefs) -> list[dg.ScheduleDefinition]:
    """Make the schedule, where one is configured; ConfigError where it is no cron line.

    It does what the sensor does, without leaving alone what failed, and looks at the files of raw text, too.
    """
    spec, names = hosted.config.automation, hosted.names
    if spec.reconcile is None:
        return []
    try:
        dg.ScheduleDefinition(job_name=EVERY_ASSET, cron_schedule=spec.reconcile)
    except dg.DagsterInvalidDefinitionError as error:
        raise no_cron_line(hosted.config.file, spec.reconcile) from error
    chain = [
        names.asset(shape_of(stage).asset) for stage in stages() if stage.kind == INVENTORY.kind and is_asset(stage)
    ]

    @dg.schedule(
        name=names.definition(SCHEDULE),
        job_name=EVERY_ASSET,
        cron_schedule=spec.reconcile,
        execution_timezone=spec.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING if spec.enabled else dg.DefaultScheduleStatus.STOPPED,
        description="Compares every output with the one that the files, settings and code of today ask for, and has "
        "made what is missing, stale or found faulty and could be made now. What comes after it follows by itself.",
    )
    def reconcile(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        instance = context.instance
        project = hosted.load()
        loaded_assets = LoadedAssets.of(hosted.config)

        # Runs first: what ends while files and outputs are read would else be built again.
        active_runs = ActiveRuns(instance, names)
        text = scan_corpora(project)
        sweep(project)
        register(instance, names, text.corpora, project.config)
        state, unknown, written = _survey(project, active_runs, text)
        runs, _ = _due(state, active_runs, loaded_assets, again=True)

        # Corpora whose files are not known yet, then everything that can be made of the others.
        night = f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}"
        requests = [
            dg.RunRequest(
                f"{night}/{name}:{text.corpora[name].signature}",
                partition_key=name,
                asset_selection=chain,
                tags={AUTOMATION_TAG: SCHEDULE},
            )
            for name in unknown
            if name not in active_runs.corpora
        ]
        for run in runs:
            last = run[-1]
            requests.append(_request(names, run, SCHEDULE, run_key=f"{night}/{label_of(last.node)}:{last.digest}"))

        for fault in dict.fromkeys(text.faults.values()):
            context.log.warning(visible(Multiline(fault)))
        for note in not_loaded(hosted.config, project.config):
            context.log.warning(note)
        if requests:
            return requests[:MOST_NIGHTLY]
        nothing = f"{len(state.steps):,} outputs of {len(text.corpora):,} corpora: none is missing or stale"
        if written:
            nothing += f"; something writes to {', '.join(written)}"
        return dg.SkipReason(nothing)

    return [reconcile]


def _survey(project: Project, active_runs: ActiveRuns, text: RawText) -> tuple[GraphState, list[str], list[str]]:
    """Return the state of the corpora whose settled files are known, names of the others, and of those written to."""
    recipes: dict[str, Recipe] = {}
    unknown: list[str] = []
    written: list[str] = []
    for name, contents in text.corpora.items():
        if overwritten_file(project, name, contents.texts) is not None:
            written.append(name)
            continue
        inventory = remembered_inventory(project, contents, quiet_period(project, name))
        if inventory is None:
            unknown.append(name)
            continue
        if inventory.awaited:
            written.append(name)
        if inventory.pieces:
            recipes[name] = inventory_recipe(inventory)
    graph = graph_over(project, recipes)
    return load_graph_state(graph, active_runs.instance, active_runs.names, active_runs), unknown, written


def eager(assets: Iterable[dg.AssetsDefinition], names: Names) -> list[dg.AssetsDefinition]:
    """Let an automation-condition sensor of the host build assets: each when a dependency's data version changed."""
    here, first = dg.AutomationCondition[dg.AssetKey], names.asset(shape_of(INVENTORY).asset)
    changed = here.any_deps_updated().replace("newly_updated", here.data_version_changed())
    when = here.eager().replace("any_deps_updated", changed) & here.all_deps_blocking_checks_passed()

    def attach(spec: dg.AssetSpec) -> dg.AssetSpec:
        # The sensor over raw text asks for inventories.
        return spec if spec.key == first else spec.replace_attributes(automation_condition=when)

    return list(dg.map_asset_specs(attach, assets))
