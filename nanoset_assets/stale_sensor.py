"""The sensor and the nightly schedule that build outputs which are not the ones that their inputs ask for.

Both ask the project's files, not the events that Dagster has seen: an edit of nanoset.yaml, a new version of the code,
a deleted output or a change while Dagster was down are all the same to them. The sensor is a plain one: of sensors that
evaluate automation conditions Dagster allows one an asset, and a host's may cover all of its assets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from nanoset_assets.dagster_compat import is_valid_cron_string
from nanoset_assets.hosted import ProjectDefs
from nanoset_assets.instance_state import (
    AUTOMATION_TAG,
    WANTED_TAG,
    UnderWay,
    current_inventories,
    load_graph_state,
    register,
    why_held,
)
from nanoset_assets.names import Names
from nanoset_core.config.running import no_cron_line
from nanoset_core.pipeline import raw
from nanoset_core.pipeline.graph import Step, graph_over
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.runs import GraphState, runnable
from nanoset_core.pipeline.stage import Stage
from nanoset_core.pipeline.stages import stages, sweep
from nanoset_core.raw.survey import RawText

SENSOR = "missing_or_stale"
SCHEDULE = "reconcile"
EVERY_ASSET = "__ASSET_JOB"
"""Dagster's own job over all assets, the only one whose assets may differ in their partitions."""
MOST_REQUESTS = 200
"""Runs that one tick of the sensor asks for; the next ticks ask for the rest."""
MOST_NIGHTLY = 1000
"""Runs that one night asks for; the sensor and the next night ask for the rest."""
_SHOWN = 5


def job_of(stage: Stage, subject: str) -> str:
    """Return the job that an asset is a part of: all of a nanoset or webdataset, or one kind of all corpora."""
    return stage.kind if stage.by_corpus else subject.replace("-", "_")


def stale_sensor(hosted: ProjectDefs, jobs: Iterable[Any]) -> dg.SensorDefinition:
    """Make the sensor that has whatever is missing or stale downstream of raw text built, by these jobs."""
    spec, names = hosted.config.automation, hosted.names

    @dg.sensor(
        name=names.definition(SENSOR),
        jobs=list(jobs),
        minimum_interval_seconds=spec.sensor_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if spec.enabled else dg.DefaultSensorStatus.STOPPED,
        description="Builds what is missing or stale downstream of raw text, as soon as it can be made. Leaves alone "
        "what failed until something of which it is made has changed, and what waits for a run that is under way.",
    )
    def missing_or_stale(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        project, instance = hosted.load(), context.instance
        corpora = instance.get_dynamic_partitions(names.corpora_name)
        state = load_graph_state(graph_over(project, current_inventories(project, corpora)), instance, names)

        def why_not(step: Step) -> str | None:
            # The sensor over raw text asks for inventories.
            return "" if step.node.stage is raw.INVENTORY else why_held(instance, names, step)

        plan = look(state, UnderWay(instance, names), _job_of, why_not)
        for note in plan.notes:
            context.log.info(note)
        asked = [_request(names, run) for run in plan.runs[:MOST_REQUESTS]]
        nothing = f"{len(state.steps):,} outputs: none is missing or stale that could be made now"
        return dg.SensorResult(asked, skip_reason=None if asked else "; ".join(plan.notes) or nothing)

    return missing_or_stale


@dataclass(slots=True)
class Plan:
    """What one look at a project asks for."""

    runs: list[list[Step]] = field(default_factory=list)
    """The steps of each run, in order; runs in the order of the pipeline."""
    held: dict[str, str] = field(default_factory=dict)
    """Label of what is missing or stale, and not asked for → why."""

    @property
    def notes(self) -> list[str]:
        """Why some outputs are not asked for, and how many more."""
        shown = [f"{label}: {why}" for label, why in list(self.held.items())[:_SHOWN]]
        more = len(self.held) - len(shown)
        later = len(self.runs) - MOST_REQUESTS
        shown += [f"and {more:,} more that have to wait"] if more > 0 else []
        return shown + ([f"{later:,} more runs are asked for later"] if later > 0 else [])


def look(
    state: GraphState,
    under_way: UnderWay,
    run_of: Callable[[Step], tuple[object, ...]],
    why_not: Callable[[Step], str | None] = lambda step: None,
) -> Plan:
    """Plan what is missing or stale, could be made now, and is not under way.

    Args:
        state: The project as it is.
        under_way: Its runs.
        run_of: Step → the run that makes it.
        why_not: Says of a step that could be made why it is not asked for; None: it is.
    """
    plan = Plan()

    def is_asked_for(step: Step) -> bool:
        why = why_not(step)
        if why is None and step.node in under_way:
            why = "a run is under way"
        elif why is None and any(need in under_way for need in step.needs):
            why = "waits for a run of what it is made from"
        if why:
            plan.held[step.node.label] = why
        return why is None

    plan.runs = runnable(state, is_asked_for, run_of)
    return plan


def _job_of(step: Step) -> tuple[object, ...]:
    return job_of(step.node.stage, step.node.key.subject), step.node.partition


def _request(names: Names, run: Sequence[Step]) -> dg.RunRequest:
    first = run[0]
    return dg.RunRequest(
        job_name=names.definition(job_of(first.node.stage, first.node.key.subject)),
        partition_key=first.node.partition,
        asset_selection=[names.asset(step.node.asset) for step in run],
        tags={AUTOMATION_TAG: names.definition(SENSOR)} | _wanted(names, run),
    )


def _wanted(names: Names, run: Sequence[Step]) -> dict[str, str]:
    return {names.tag(WANTED_TAG): " ".join(step.digest for step in run)}


def reconcile_schedule(hosted: ProjectDefs) -> list[dg.ScheduleDefinition]:
    """Make the schedule, where one is configured; ConfigError where it is no cron line.

    It does what the sensor does, without leaving alone what failed, and looks at the files of raw text, too.
    """
    spec, names = hosted.config.automation, hosted.names
    if spec.reconcile is None:
        return []
    if not is_valid_cron_string(spec.reconcile):
        raise no_cron_line(hosted.config.file, spec.reconcile)

    @dg.schedule(
        name=names.definition(SCHEDULE),
        job_name=EVERY_ASSET,
        cron_schedule=spec.reconcile,
        execution_timezone=spec.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING if spec.enabled else dg.DefaultScheduleStatus.STOPPED,
        description="Compares every output with the one that the files, settings and code of today ask for, and has "
        "made what is missing, stale, not recorded or found faulty and could be made now. What comes after it follows "
        "by itself.",
    )
    def reconcile(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        project, instance = hosted.load(), context.instance
        text = raw.scan(project)
        sweep(project.outputs)
        register(instance, names, text.corpora)
        state, unknown, written = _survey(project, names, instance, text)
        under_way, night = UnderWay(instance, names), f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}"
        chain = [stage.asset for stage in stages() if stage.kind == raw.INVENTORY.kind and stage.asset]
        requests = [
            _nightly(names, f"{night}/{corpus}:{text.corpora[corpus].signature}", corpus, chain)
            for corpus in unknown
            if not any(under_way.makes(names.asset(asset), corpus) for asset in chain)
        ]
        for run in look(state, under_way, _nightly_run_of).runs:
            key, assets = f"{night}/{run[-1].node.label}:{run[-1].digest}", [step.node.asset for step in run]
            requests.append(_nightly(names, key, run[-1].node.partition, assets, _wanted(names, run)))
        for fault in dict.fromkeys(text.faults.values()):
            context.log.warning(str(fault))
        return requests[:MOST_NIGHTLY] or dg.SkipReason(
            f"{len(state.steps):,} outputs of {len(text.corpora):,} corpora: none is missing or stale"
            + (f"; something writes to {', '.join(written)}" if written else "")
        )

    return [reconcile]


def _survey(
    project: Project, names: Names, instance: dg.DagsterInstance, text: RawText
) -> tuple[GraphState, list[str], list[str]]:
    """Return the state of the corpora whose settled files are known, names of the others, and of those written to."""
    rewritten = [name for name, found in text.corpora.items() if raw.overwritten(project, name, found.files)]
    inventories = {
        name: raw.known(project, found, raw.settling(project, name))
        for name, found in text.corpora.items()
        if name not in rewritten
    }
    known = {name: inventory for name, inventory in inventories.items() if inventory is not None}
    recipes = {name: raw.inventory_recipe(inventory) for name, inventory in known.items() if inventory.pieces}
    state = load_graph_state(graph_over(project, recipes), instance, names)
    awaited = [name for name, inventory in known.items() if inventory.awaited]
    return state, [name for name in inventories if name not in known], sorted([*rewritten, *awaited])


def _nightly_run_of(step: Step) -> tuple[object, ...]:
    """Steps of one corpus, or of one split of a nanoset, share a run; others have their own."""
    if step.node.stage.by_corpus:
        return "corpus", step.node.partition
    return (step.node.asset if step.node.partition is None else step.node.key.subject), step.node.partition


def _nightly(
    names: Names,
    key: str,
    partition: str | None,
    assets: Iterable[str | Sequence[str]],
    tags: Mapping[str, str] | None = None,
) -> dg.RunRequest:
    selection = [names.asset(asset) for asset in assets]
    tags = {AUTOMATION_TAG: SCHEDULE, **(tags or {})}
    return dg.RunRequest(key, partition_key=partition, asset_selection=selection, tags=tags)


def eager(assets: Iterable[dg.AssetsDefinition], names: Names) -> list[dg.AssetsDefinition]:
    """Let an automation-condition sensor of the host build assets: each when a dependency's data version changed."""
    here, first = dg.AutomationCondition[dg.AssetKey], names.asset(raw.INVENTORY.asset)
    changed = here.any_deps_updated().replace("newly_updated", here.data_version_changed())
    when = here.eager().replace("any_deps_updated", changed) & here.all_deps_blocking_checks_passed()

    def attach(spec: dg.AssetSpec) -> dg.AssetSpec:
        # The sensor over raw text asks for inventories.
        return spec if spec.key == first else spec.replace_attributes(automation_condition=when)

    return list(dg.map_asset_specs(attach, assets))
