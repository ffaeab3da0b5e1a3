"""When the platform builds by itself: whenever an output is not the one that its inputs ask for, and could be made.

The conditions ask the project's files, not only the events that Dagster has seen: an edit of nanoset.yaml, a new
version of the code, a deleted output or a change while nobody was looking are all the same to them.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import dagster as dg

from nanoset_assets import run_requests as requests
from nanoset_assets.graph_state import GraphState, current_graph, load_graph_state
from nanoset_assets.partitions import CORPORA
from nanoset_core.config.running import AutomationSpec
from nanoset_core.pipeline.graph import StepKey
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.raw import INVENTORY

SENSOR = "missing_or_stale"
_states: WeakKeyDictionary[object, GraphState] = WeakKeyDictionary()


class _StepCondition(dg.AutomationCondition[dg.AssetKey]):
    """Holds for some steps of a project, given its state at the time of the tick."""

    label = ""

    def __init__(self, config_file: str) -> None:
        self.config_file = config_file

    @property
    def requires_cursor(self) -> bool:
        return False

    @property
    def description(self) -> str:
        return self.label

    def holds(self, state: GraphState, key: StepKey) -> bool:
        raise NotImplementedError

    def evaluate(self, context: dg.AutomationContext[dg.AssetKey]) -> dg.AutomationResult[dg.AssetKey]:
        state = self.state(context)
        return self.result(context, lambda key: self.holds(state, key))

    def state(self, context: dg.AutomationContext[dg.AssetKey]) -> GraphState:
        """The same for every asset of one tick."""
        view = context.asset_graph_view
        if view not in _states:
            project = Project.open(self.config_file)
            corpora = view.instance.get_dynamic_partitions(CORPORA.name or "")
            _states[view] = load_graph_state(current_graph(project, corpora), view.instance)
        return _states[view]

    def result(
        self, context: dg.AutomationContext[dg.AssetKey], holds: Callable[[StepKey], bool], cursor: str | None = None
    ) -> dg.AutomationResult[dg.AssetKey]:
        """True for those candidates for which `holds` is."""
        asset, candidates = tuple(context.key.path), context.candidate_subset
        if context.partitions_def is None:
            true = candidates if not candidates.is_empty and holds((asset, None)) else context.get_empty_subset()
        else:
            names = {name for name in candidates.expensively_compute_partition_keys() if holds((asset, name))}
            view = context.asset_graph_view
            true = view.get_subset_from_partition_keys(context.key, context.partitions_def, names)
        return dg.AutomationResult(context, true, cursor=cursor)


class OutputDiffers(_StepCondition):
    """The output is not there, is not the one that inputs, settings and code of today ask for, or was not verified."""

    label = "its output is missing, not the one that its inputs ask for, or was not found good"

    def holds(self, state: GraphState, key: StepKey) -> bool:
        return state.needs_run(key)


class InputsReady(_StepCondition):
    """Everything that a step is made from is as it should be."""

    label = "everything that it is made from is there, up to date and not found faulty"

    def holds(self, state: GraphState, key: StepKey) -> bool:
        return state.is_ready(key)


class FailedBefore(_StepCondition):
    """The last run failed, and neither the inputs nor this process have changed since.

    A failure is taken to belong to the inputs that are there when it is first seen. Runs that were killed, or could not
    load the code, are tried again some times, by Dagster's run retries too. Everything is tried again by the nightly
    reconcile, and after a restart.
    """

    label = "its last run failed, and nothing that it is made from has changed since"

    @property
    def requires_cursor(self) -> bool:
        return True

    def evaluate(self, context: dg.AutomationContext[dg.AssetKey]) -> dg.AutomationResult[dg.AssetKey]:
        state = self.state(context)
        asset, instance = tuple(context.key.path), context.asset_graph_view.instance
        known = _remembered(context.cursor)
        failures = {name: failure for name, failure in known.items() if (asset, name or None) in state.steps}

        def is_held(key: StepKey) -> bool:
            name, wanted = key[1] or "", state.steps[key].digest
            record = requests.failed_run(instance, dg.AssetKey(key[0]), key[1])
            if record is None:
                failures.pop(name, None)
                return False
            failures[name] = _after(failures.get(name), record.dagster_run, wanted, instance)
            return failures[name].is_held(wanted) or requests.is_retried(record)

        true = self.result(context, is_held).true_subset
        return dg.AutomationResult(context, true, cursor=json.dumps({name: list(f) for name, f in failures.items()}))


class _Failure(NamedTuple):
    """What is remembered of a step's last run, which failed."""

    run_id: str
    digest: str
    """of the output that was wanted when the failure was first seen"""
    kills: int
    """runs in a row, for that output, that ended without a failed step; 0 when a step failed"""

    def is_held(self, wanted: str) -> bool:
        return self.digest == wanted and not 0 < self.kills < requests.MOST_ATTEMPTS


def _remembered(cursor: str | None) -> dict[str, _Failure]:
    """Partition → failure, as an earlier tick left them; of anything else than ours, nothing."""
    try:
        return {
            name: _Failure(str(run), str(digest), int(kills))
            for name, (run, digest, kills) in json.loads(cursor or "{}").items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def _after(before: _Failure | None, run: dg.DagsterRun, wanted: str, instance: dg.DagsterInstance) -> _Failure:
    if before is not None and before.run_id == run.run_id:
        return before
    if not requests.was_killed(instance, run):
        return _Failure(run.run_id, wanted, 0)
    return _Failure(run.run_id, wanted, 1 + (before.kills if before is not None and before.digest == wanted else 0))


def condition(config_file: str) -> dg.AutomationCondition[dg.AssetKey]:
    """Due, possible, not under way, and not known to fail."""
    here = dg.AutomationCondition[dg.AssetKey]
    ready = InputsReady(config_file) | here.any_deps_match(here.will_be_requested())
    return (
        OutputDiffers(config_file)
        & ready
        & ~here.in_progress()
        & ~here.any_deps_in_progress()
        & ~FailedBefore(config_file)
    )


def automated(assets: Iterable[dg.AssetsDefinition], config_file: str) -> list[dg.AssetsDefinition]:
    """The assets, each with the condition under which it is built."""
    when = condition(config_file)

    def attach(spec: dg.AssetSpec) -> dg.AssetSpec:
        # The sensor over raw text asks for it.
        by_sensor = tuple(spec.key.path) == (INVENTORY.asset,)
        return spec if by_sensor else spec.replace_attributes(automation_condition=when)

    return list(dg.map_asset_specs(attach, assets))


def automation_sensor(spec: AutomationSpec) -> dg.AutomationConditionSensorDefinition:
    """The sensor that evaluates the conditions: one run for each partition, in this project's own process."""
    with warnings.catch_warnings():
        # Conditions of our own are only evaluated where our code is, which Dagster calls a beta feature.
        warnings.simplefilter("ignore", category=dg.BetaWarning)
        return dg.AutomationConditionSensorDefinition(
            SENSOR,
            target=dg.AssetSelection.all(),
            description="Builds what is missing or stale downstream of raw text, as soon as it can be made.",
            minimum_interval_seconds=spec.sensor_seconds,
            default_status=dg.DefaultSensorStatus.RUNNING if spec.enabled else dg.DefaultSensorStatus.STOPPED,
            use_user_code_server=True,
            emit_backfills=False,  # a backfill starts its runs some 20 s later
            run_tags={requests.AUTOMATION_TAG: SENSOR},
        )
