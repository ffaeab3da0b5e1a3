"""When the platform builds by itself: whenever an output is not the one that its inputs ask for, and could be made.

A plain sensor asks the project's files, not the events that Dagster has seen: an edit of nanoset.yaml, a new version of
the code, a deleted output or a change while nobody was looking are all the same to it. It is no automation-condition
sensor, of which Dagster allows one an asset: in somebody else's code location, theirs may cover everything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import dagster as dg

from nanoset_assets import run_requests as requests
from nanoset_assets.graph_state import current_graph, load_graph_state
from nanoset_assets.hosted import HostedProject
from nanoset_assets.jobs import job_of
from nanoset_assets.names import Names
from nanoset_core.pipeline.graph import Step, StepKey
from nanoset_core.pipeline.raw import INVENTORY
from nanoset_core.pipeline.runs import GraphState, runnable

SENSOR = "missing_or_stale"
MOST_REQUESTS = 200
"""Runs that one tick asks for; the next ticks ask for the rest."""
_SHOWN = 5


def automation_sensor(hosted: HostedProject, jobs: Iterable[Any]) -> dg.SensorDefinition:
    """The sensor that has built whatever is missing or stale downstream of raw text, by these jobs."""
    spec, names = hosted.config.automation, hosted.names

    @dg.sensor(
        name=names.unit(SENSOR),
        jobs=list(jobs),
        minimum_interval_seconds=spec.sensor_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if spec.enabled else dg.DefaultSensorStatus.STOPPED,
        description="Builds what is missing or stale downstream of raw text, as soon as it can be made. Leaves alone "
        "what failed until something of which it is made has changed, and what waits for a run that is under way.",
    )
    def missing_or_stale(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        project, instance = hosted.load(), context.instance
        corpora = instance.get_dynamic_partitions(names.corpora_name)
        state = load_graph_state(current_graph(project, corpora), instance, names)
        tick = look(state, instance, names, _remembered(context.cursor))
        for note in tick.notes:
            context.log.info(note)
        asked = [_request(names, run) for run in tick.runs[:MOST_REQUESTS]]
        return dg.SensorResult(asked, skip_reason=None if asked else tick.reason(), cursor=tick.cursor())

    return missing_or_stale


class _Failure(NamedTuple):
    """What is remembered of a step's last run, which failed.

    A failure is taken to belong to the inputs that are there when it is first seen. Runs that were killed, or could not
    load the code, are tried again some times, by Dagster's run retries too. Everything is tried again by the nightly
    reconcile, and after a restart.
    """

    run_id: str
    digest: str
    """of the output that was wanted when the failure was first seen"""
    kills: int
    """runs in a row, for that output, that ended without a failed step; 0 when a step failed"""

    def is_held(self, wanted: str) -> bool:
        return self.digest == wanted and not 0 < self.kills < requests.MOST_ATTEMPTS


@dataclass(slots=True)
class Tick:
    """What one look at a project asks for."""

    steps: int
    """outputs that were looked at"""
    runs: list[list[Step]] = field(default_factory=list)
    """the steps of each run, in order; runs in the order of the pipeline"""
    failures: dict[str, _Failure] = field(default_factory=dict)
    """label → the failure of its last run"""
    held: dict[str, str] = field(default_factory=dict)
    """label of what is missing or stale, and not asked for → why"""

    @property
    def notes(self) -> list[str]:
        """Why some outputs are not asked for, and how many more."""
        shown = [f"{label}: {why}" for label, why in list(self.held.items())[:_SHOWN]]
        more = len(self.held) - len(shown)
        later = len(self.runs) - MOST_REQUESTS
        shown += [f"and {more:,} more that have to wait"] if more > 0 else []
        return shown + ([f"{later:,} more runs are asked for later"] if later > 0 else [])

    def reason(self) -> str:
        """Why nothing is asked for."""
        return "; ".join(self.notes) or f"{self.steps:,} outputs: none is missing or stale that could be made now"

    def cursor(self) -> str:
        return json.dumps({label: list(failure) for label, failure in self.failures.items()})


def look(
    state: GraphState, instance: dg.DagsterInstance, names: Names, known: Mapping[str, _Failure] | None = None
) -> Tick:
    """What is missing or stale, could be made now, is not under way, and is not known to fail.

    Args:
        state: the project as it is.
        instance: where its runs are.
        names: of the project.
        known: label → failure, as the last look left them.
    """
    labels = {step.label for step in state.steps.values()}
    tick = Tick(len(state.steps))
    tick.failures |= {label: failure for label, failure in (known or {}).items() if label in labels}
    under_way = _UnderWay(instance, names)

    def is_asked_for(step: Step) -> bool:
        # The sensor over raw text asks for inventories.
        why = "" if step.node.stage is INVENTORY else _why_not(step, under_way, tick, instance, names)
        if why:
            tick.held[step.label] = why
        return why is None

    tick.runs = runnable(
        state, is_asked_for, lambda step: (job_of(step.node.stage, step.node.key.subject), step.partition)
    )
    return tick


def _why_not(
    step: Step,
    under_way: _UnderWay,
    tick: Tick,
    instance: dg.DagsterInstance,
    names: Names,
) -> str | None:
    """Why a step that could be made is not asked for; None: it is."""
    if step.key in under_way:
        return "a run is under way"
    if any(need in under_way for need in step.needs):
        return "waits for a run of what it is made from"
    record = requests.failed_run(instance, names.asset(step.asset), step.partition)
    if record is None:
        tick.failures.pop(step.label, None)
        return None
    failure = tick.failures[step.label] = _after(
        tick.failures.get(step.label), record.dagster_run, step.digest, instance
    )
    if requests.is_retried(record):
        return "its run was killed, and will be started again"
    if failure.is_held(step.digest):
        return f"its run {failure.run_id[:8]} failed, and nothing that it is made from has changed since"
    return None


class _UnderWay:
    """Steps whose last run is queued or has not ended."""

    def __init__(self, instance: dg.DagsterInstance, names: Names) -> None:
        self._instance, self._names = instance, names
        self._is_any = requests.is_any_under_way(instance)
        self._known: dict[StepKey, bool] = {}

    def __contains__(self, key: StepKey) -> bool:
        if not self._is_any:
            return False
        if key not in self._known:
            self._known[key] = requests.is_under_way(self._instance, self._names.asset(key[0]), key[1])
        return self._known[key]


def _remembered(cursor: str | None) -> dict[str, _Failure]:
    """Label → failure, as an earlier tick left them; of anything else than ours, nothing."""
    try:
        return {
            label: _Failure(str(run), str(digest), int(kills))
            for label, (run, digest, kills) in json.loads(cursor or "{}").items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def _after(before: _Failure | None, run: dg.DagsterRun, wanted: str, instance: dg.DagsterInstance) -> _Failure:
    if before is not None and before.run_id == run.run_id:
        return before
    if not requests.was_killed(instance, run):
        return _Failure(run.run_id, wanted, 0)
    return _Failure(run.run_id, wanted, 1 + (before.kills if before is not None and before.digest == wanted else 0))


def _request(names: Names, run: list[Step]) -> dg.RunRequest:
    first = run[0]
    return dg.RunRequest(
        job_name=names.unit(job_of(first.node.stage, first.node.key.subject)),
        partition_key=first.partition,
        asset_selection=[names.asset(step.asset) for step in run],
        tags={requests.AUTOMATION_TAG: names.unit(SENSOR)},
    )


def eager(assets: Iterable[dg.AssetsDefinition], names: Names) -> list[dg.AssetsDefinition]:
    """Assets that somebody else's automation sensor has built: each when what it depends on was made anew."""
    here, first = dg.AutomationCondition[dg.AssetKey], names.asset(INVENTORY.asset)
    when = here.eager() & here.all_deps_blocking_checks_passed()

    def attach(spec: dg.AssetSpec) -> dg.AssetSpec:
        # The sensor over raw text asks for it.
        return spec if spec.key == first else spec.replace_attributes(automation_condition=when)

    return list(dg.map_asset_specs(attach, assets))
