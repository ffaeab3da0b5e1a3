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

from nanoset_assets.hosted import ProjectDefs, tick_result
from nanoset_assets.instance_state import (
    AUTOMATION_TAG,
    MOST_REQUESTS,
    WANTED_TAG,
    UnderWay,
    current_inventories,
    load_graph_state,
    register,
    why_held,
)
from nanoset_assets.names import Names
from nanoset_core.config.running import no_cron_line
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.pipeline import raw
from nanoset_core.pipeline.graph import GraphState, Step, graph_over, runnable
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Node
from nanoset_core.pipeline.stages import stages, sweep
from nanoset_core.raw.survey import RawText
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
    name = node.stage.kind if node.stage.by_corpus else node.stage.job.format(subject=node.key.subject)
    return re.sub("[^A-Za-z0-9_]", "_", name)


def run_of(step: Step) -> Hashable:
    """Steps that share a run: the chain of one corpus, or the assets of one split; others have their own."""
    node = step.node
    return node if node.partition is None else (job_of(node), node.partition)


def stale_sensor(hosted: ProjectDefs, jobs: Iterable[Any]) -> dg.SensorDefinition:
    """Make the sensor that has whatever is missing or stale downstream of raw text built, by these jobs."""
    names = hosted.names

    @dg.sensor(
        jobs=list(jobs),
        description="Builds what is missing or stale downstream of raw text, as soon as it can be made. Leaves alone "
        "what failed until something of which it is made has changed, and what waits for a run that is under way.",
        **hosted.ticks(SENSOR),
    )
    def missing_or_stale(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        project, instance = hosted.load(), context.instance
        corpora = instance.get_dynamic_partitions(names.corpora_name)
        state = load_graph_state(graph_over(project, current_inventories(project, corpora)), instance, names)
        runs, held = _due(state, UnderWay(instance, names))
        notes = [f"{label}: {why}" for label, why in list(held.items())[:_SHOWN]]
        notes += [f"and {len(held) - _SHOWN:,} more that have to wait"] if len(held) > _SHOWN else []
        later = len(runs) - MOST_REQUESTS
        notes += [f"{later:,} more runs are asked for later"] if later > 0 else []
        nothing = f"{len(state.steps):,} outputs: none is missing or stale that could be made now"
        asked = [
            _request(names, run, names.definition(SENSOR), job_name=names.definition(job_of(run[0].node)))
            for run in runs[:MOST_REQUESTS]
        ]
        return tick_result(context, asked, notes, nothing)

    return missing_or_stale


def _due(state: GraphState, under_way: UnderWay, *, again: bool = False) -> tuple[list[list[Step]], dict[str, str]]:
    """Return the runs of what is missing or stale and can be made now, and label of other outputs → why they wait.

    `again`: also inventories, for which else the sensor over raw text asks, and what has failed.
    """
    held: dict[str, str] = {}

    def is_asked_for(step: Step) -> bool:
        if not again and step.node.stage is raw.INVENTORY:
            return False
        why = None if again else why_held(under_way.instance, under_way.names, step)
        if why is None and step.node in under_way:
            why = "a run is under way"
        elif why is None and any(need in under_way for need in step.needs):
            why = "waits for a run of what it is made from"
        if why is not None:
            held[step.node.label] = why
        return why is None

    return runnable(state, is_asked_for, run_of), held


def _request(names: Names, run: Sequence[Step], by: str, **more: Any) -> dg.RunRequest:
    """Return the run of some steps that `by` asks for; `more` of dg.RunRequest."""
    tags = {AUTOMATION_TAG: by, names.tag(WANTED_TAG): " ".join(step.digest for step in run)}
    assets = [names.asset(step.node.asset) for step in run]
    return dg.RunRequest(partition_key=run[0].node.partition, asset_selection=assets, tags=tags, **more)


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
    chain = [names.asset(stage.asset) for stage in stages() if stage.kind == raw.INVENTORY.kind and stage.asset]

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
        project, instance = hosted.load(), context.instance
        text = raw.scan(project)
        sweep(project)
        register(instance, names, text.corpora)
        state, unknown, written = _survey(project, names, instance, text)
        runs, night = UnderWay(instance, names), f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}"
        tags = {AUTOMATION_TAG: SCHEDULE}
        requests = [
            dg.RunRequest(
                f"{night}/{name}:{text.corpora[name].signature}", partition_key=name, asset_selection=chain, tags=tags
            )
            for name in unknown
            if name not in runs.corpora
        ]
        requests += [
            _request(names, run, SCHEDULE, run_key=f"{night}/{run[-1].node.label}:{run[-1].digest}")
            for run in _due(state, runs, again=True)[0]
        ]
        for fault in dict.fromkeys(text.faults.values()):
            context.log.warning(visible(Multiline(fault)))
        return requests[:MOST_NIGHTLY] or dg.SkipReason(
            f"{len(state.steps):,} outputs of {len(text.corpora):,} corpora: none is missing or stale"
            + (f"; something writes to {', '.join(written)}" if written else "")
        )

    return [reconcile]


def _survey(
    project: Project, names: Names, instance: dg.DagsterInstance, text: RawText
) -> tuple[GraphState, list[str], list[str]]:
    """Return the state of the corpora whose settled files are known, names of the others, and of those written to."""
    recipes: dict[str, Recipe] = {}
    unknown, written = [], []
    for name, found in text.corpora.items():
        if raw.overwritten(project, name, found.texts) is not None:
            written.append(name)
        elif (inventory := raw.known(project, found, raw.settling(project, name))) is None:
            unknown.append(name)
        else:
            written += [name] if inventory.awaited else []
            recipes |= {name: raw.inventory_recipe(inventory)} if inventory.pieces else {}
    return load_graph_state(graph_over(project, recipes), instance, names), unknown, written


def eager(assets: Iterable[dg.AssetsDefinition], names: Names) -> list[dg.AssetsDefinition]:
    """Let an automation-condition sensor of the host build assets: each when a dependency's data version changed."""
    here, first = dg.AutomationCondition[dg.AssetKey], names.asset(raw.INVENTORY.asset)
    changed = here.any_deps_updated().replace("newly_updated", here.data_version_changed())
    when = here.eager().replace("any_deps_updated", changed) & here.all_deps_blocking_checks_passed()

    def attach(spec: dg.AssetSpec) -> dg.AssetSpec:
        # The sensor over raw text asks for inventories.
        return spec if spec.key == first else spec.replace_attributes(automation_condition=when)

    return list(dg.map_asset_specs(attach, assets))
