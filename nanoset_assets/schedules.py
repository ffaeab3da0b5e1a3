"""The nightly comparison of everything that is there with everything that should be."""

from __future__ import annotations

import dagster as dg

from nanoset_assets.dagster_compat import is_valid_cron_string
from nanoset_assets.graph_state import load_graph_state
from nanoset_assets.hosted import HostedProject
from nanoset_assets.names import Names
from nanoset_assets.registration import register
from nanoset_assets.run_requests import AUTOMATION_TAG, is_under_way
from nanoset_core.config.running import no_cron_line
from nanoset_core.pipeline import raw
from nanoset_core.pipeline.graph import Step, graph_over
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.runs import GraphState, runnable
from nanoset_core.pipeline.stages import stages, sweep
from nanoset_core.raw.survey import CorpusFiles, RawText

SCHEDULE = "reconcile"
EVERY_ASSET = "__ASSET_JOB"
"""Dagster's own job over all assets, the only one whose assets may differ in their partitions."""
MOST_REQUESTS = 1000
"""Runs that one night asks for; the sensor and the next night ask for the rest."""


def reconcile_schedule(hosted: HostedProject) -> list[dg.ScheduleDefinition]:
    """The schedule, where one is configured; ConfigError where it is no cron line."""
    spec, names = hosted.config.automation, hosted.names
    if spec.reconcile is None:
        return []
    if not is_valid_cron_string(spec.reconcile):
        raise no_cron_line(hosted.config.file, spec.reconcile)

    @dg.schedule(
        name=names.unit(SCHEDULE),
        job_name=EVERY_ASSET,
        cron_schedule=spec.reconcile,
        execution_timezone=spec.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING if spec.enabled else dg.DefaultScheduleStatus.STOPPED,
        description="Compares every output with the one that the files, settings and code of today ask for, and has "
        "made what is missing, stale, not recorded or found faulty and could be made now. What comes after it follows "
        "by itself.",
    )
    def reconcile(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        project = hosted.load()
        text = raw.scan(project)
        sweep(project.outputs)
        register(project, names, context.instance, text.corpora)
        state, unknown, awaited = _look(project, names, context.instance, text)
        night = f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}"
        requests = [_survey_request(names, night, text.corpora[corpus]) for corpus in unknown]
        requests += [_request(names, night, run) for run in runnable(state, lambda step: True, _run_of)]
        requests = [request for request in requests if not _is_under_way(context.instance, request)]
        for fault in dict.fromkeys(text.faults.values()):
            context.log.warning(str(fault))
        if requests:
            return requests[:MOST_REQUESTS]
        return dg.SkipReason(
            f"{len(state.steps):,} outputs of {len(text.corpora):,} corpora: none is missing or stale"
            + (f"; something writes to {', '.join(awaited)}" if awaited else "")
        )

    return [reconcile]


def _look(
    project: Project, names: Names, instance: dg.DagsterInstance, text: RawText
) -> tuple[GraphState, list[str], list[str]]:
    """The state of the corpora whose settled files have been hashed, names of the others, and of those written to."""
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


def _run_of(step: Step) -> tuple[object, ...]:
    """Steps of one corpus, or of one split of a nanoset, share a run; others have their own."""
    if step.node.stage.by_corpus:
        return "corpus", step.partition
    return (step.asset if step.partition is None else step.node.key.subject), step.partition


def _request(names: Names, night: str, run: list[Step]) -> dg.RunRequest:
    last = run[-1]
    return dg.RunRequest(
        run_key=f"{night}/{last.label}:{last.digest}",
        partition_key=last.partition,
        asset_selection=[names.asset(step.asset) for step in run],
        tags={AUTOMATION_TAG: SCHEDULE},
    )


def _survey_request(names: Names, night: str, found: CorpusFiles) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=f"{night}/{found.corpus}:{found.signature}",
        partition_key=found.corpus,
        asset_selection=[
            names.asset(stage.asset) for stage in stages() if stage.kind == raw.INVENTORY.kind and stage.asset
        ],
        tags={AUTOMATION_TAG: SCHEDULE},
    )


def _is_under_way(instance: dg.DagsterInstance, request: dg.RunRequest) -> bool:
    return any(is_under_way(instance, key, request.partition_key) for key in request.asset_selection or [])
