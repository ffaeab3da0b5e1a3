"""The sensor that builds missing and stale outputs downstream of raw text.

It compares the outputs with nanoset.yaml and the code, instead of waiting for Dagster's events. So
it notices an edit of nanoset.yaml, a new version of the code, a deleted output, or a change while
Dagster was down. For example, after an edit of a nanoset's weights it requests a run of its blend.

It is a plain sensor, not one that evaluates automation conditions: Dagster allows only one of those
for each asset, and the host may already have one that covers all assets. For hosts that prefer
conditions, there is `with_condition`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dagster as dg

from nanoset_assets.assets.output_names import job_of
from nanoset_assets.assets.partition_sets import register
from nanoset_assets.assets.table import shape_of
from nanoset_assets.automation.active_runs import ActiveRuns
from nanoset_assets.automation.due_runs import (
    DueRuns,
    due_runs,
    idle_reason,
    later_notes,
    run_request,
    waiting_notes,
)
from nanoset_assets.automation.ticks import tick_result
from nanoset_assets.code_location.loaded import LoadedAssets, reload_notes
from nanoset_assets.history.graph_state import load_graph_state
from nanoset_assets.names import Names
from nanoset_assets.project_defs import ProjectDefs
from nanoset_assets.tags import INDIRECT, MAX_REQUESTS
from nanoset_core.project.graph.graph import graph_over
from nanoset_core.stages.inventory.make import current_inventory_recipes
from nanoset_core.stages.inventory.stage import INVENTORY

SENSOR = "missing_or_stale"
"""Name of the sensor, without the project's prefix."""


def stale_sensor(project_defs: ProjectDefs, jobs: Iterable[Any]) -> dg.SensorDefinition:
    """Make a Dagster sensor that builds every output which is missing or out of date.

    Dagster calls it every few seconds. It compares all outputs with their settings and inputs:
    after an edit of the settings, for example, it requests runs for the outputs that have to be
    built again.

    Args:
        project_defs: The names and settings of the project in Dagster.
        jobs: The jobs that build the outputs. Each request of the sensor names one of them.

    Returns:
        The sensor `missing_or_stale`.
    """

    @dg.sensor(
        jobs=list(jobs),
        description="Builds missing and stale outputs downstream of raw text as soon as their "
        "inputs are ready. Does not request outputs that failed until one of their inputs changes, "
        "outputs that wait for an active run, and assets that are not loaded yet.",
        **project_defs.sensor_options(SENSOR),
    )
    def missing_or_stale(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        """Request runs for the missing and stale outputs that can be built now."""
        return _evaluate(context, project_defs)

    return missing_or_stale


def _evaluate(context: dg.SensorEvaluationContext, project_defs: ProjectDefs) -> dg.SensorResult:
    """Request runs for the outputs that are missing or out of date. Dagster calls this regularly.

    For example, after an edit of the settings:

        output                                    decision
        tokens of the text collection `web`       a run: they are made with another tokenizer now
        dataset of `web`                          the same run makes it after the tokens
        a data mixture with `web`                 a later call: the dataset has to be made first
        tokens of `books`                         none: a run is making them already
        anything of `code`, whose files are new   none: another sensor watches the files

    Args:
        context: Dagster's context of this call.
        project_defs: The names and settings of the project in Dagster.
    """
    instance = context.instance
    names = project_defs.names
    project = project_defs.load()  # with the current nanoset.yaml
    # Look up the active runs first, and then the outputs. The other way round, a run could build an
    # output and end in between: the output would look missing, and be requested again.
    active_runs = ActiveRuns.look_up(instance, names)

    # A corpus (a text collection) is a partition of each asset that is made from it. After an edit
    # of the settings, it may have to become one of a further asset.
    corpora = instance.get_dynamic_partitions(names.corpora_name)
    register(instance, names, corpora, project.config)

    # Which outputs are missing or out of date, and which of these can be built now? An output has
    # to wait if one of its inputs has to be built first, or if a run is working on it.
    graph = graph_over(project, current_inventory_recipes(project, corpora))
    state = load_graph_state(graph, instance, names, active_runs)
    loaded_assets = LoadedAssets.of(project_defs.config)  # the assets that Dagster knows
    pending = due_runs(
        state,
        active_runs,
        loaded_assets,
        retries_failed=False,  # not before one of their inputs has changed
        includes_inventories=False,  # the sensor `raw_text` requests corpora with changed files
    )

    requests = _run_requests(names, pending)
    notes = reload_notes(project_defs.config, project.config)
    notes += waiting_notes(pending)
    notes += later_notes(len(pending.runs) - len(requests))
    return tick_result(context, requests, notes, idle_reason(graph.nodes(), state))


def _run_requests(names: Names, due: DueRuns) -> list[dg.RunRequest]:
    """Return requests for runs, which Dagster starts after this call of a sensor.

    Dagster gets at most 200 requests in a call (MAX_REQUESTS). The next calls request the rest.

    Args:
        names: Knows the names of the project in Dagster.
        due: The runs that can start. A run is a list of steps, each of which makes one output.
    """
    sensor_name = names.definition(SENSOR)
    requests = []
    for steps in due.runs[:MAX_REQUESTS]:
        job_name = names.definition(job_of(steps[0].node))
        requests.append(run_request(names, steps, requested_by=sensor_name, job_name=job_name))
    return requests


def _no_input_has_failed_its_check() -> dg.AutomationCondition[Any]:
    """Return a condition of Dagster: an asset may be built, as no input has failed its check.

    Each input has checks, which Dagster runs when the input was built. The condition depends on
    what is known of them:

        check of the input                            the asset
        has passed                                    may be built
        will run in the same run as the asset,        may be built; the run stops if the check
          right after the input was built               fails
        has no result                                 may be built
        has failed, or is running                     has to wait

    Dagster's own `all_deps_blocking_checks_passed` also waits for a check without a result. But
    when two runs build an input at the same time, Dagster can lose the result of its check. Then
    the asset would wait until the input changes again, perhaps forever.
    """
    has_passed = dg.AutomationCondition.check_passed()
    will_run_in_same_run = dg.AutomationCondition.will_be_requested()
    has_no_result = dg.AutomationCondition.missing()
    allows_building = has_passed | will_run_in_same_run | has_no_result

    # It has to hold for all checks of an input, and for all inputs ("deps") of the asset.
    all_checks_allow = dg.AutomationCondition.all_checks_match(allows_building, blocking_only=True)
    all_inputs_allow = dg.AutomationCondition.all_deps_match(all_checks_allow)
    return all_inputs_allow.with_label("no_input_has_failed_its_check")


def with_condition(
    assets: Iterable[dg.AssetsDefinition], names: Names
) -> list[dg.AssetsDefinition]:
    """Let Dagster itself decide when to build the project's assets, by a condition of each asset.

    This is for teams that have a sensor of their own which evaluates such conditions for all
    assets. An asset is to be built if an input has another *version* than before (a checksum of its
    content), and no input has failed its check.

    Dagster has a ready-made condition, `eager`. It is composed of parts with names, and would also
    build an asset if an input was built again with the same result. So one part is replaced:

        eager
          any_deps_updated           some input was updated, which means:
            newly_updated            ... it was built      (is replaced by the next line)
            data_version_changed     ... it has another version
          other parts                (stay as they are)

    Indirect inputs do not count. The tars of a webdataset, for example, have to wait for its plan,
    and not only for the datasets from which the plan is made: these change earlier.

    Args:
        assets: All assets of the project.
        names: Knows the names of the project in Dagster.

    Returns:
        The same assets with the condition. Only `raw_jsonl`, the list of raw files, has none, since
        a separate sensor watches these files.
    """
    # Dagster makes conditions by static methods of this class. `replace` finds a part by its name.
    condition = dg.AutomationCondition[dg.AssetKey]
    any_input_changed = condition.any_deps_updated().replace(
        "newly_updated", condition.data_version_changed()
    )
    eager = condition.eager().replace("any_deps_updated", any_input_changed)
    has_to_be_built = eager & _no_input_has_failed_its_check()
    inventories = names.asset(shape_of(INVENTORY).asset)  # the asset raw_jsonl

    def add_condition(spec: dg.AssetSpec) -> dg.AssetSpec:
        """Return the spec of an asset with the condition, unless a sensor requests the asset."""
        if spec.key == inventories:
            return spec  # the sensor over raw text requests it
        condition_of_asset = has_to_be_built
        indirect_inputs = [dep.asset_key for dep in spec.deps if INDIRECT in dep.metadata]
        if indirect_inputs:
            ignored = dg.AssetSelection.assets(*indirect_inputs)
            condition_of_asset = has_to_be_built.ignore(ignored)
        return spec.replace_attributes(automation_condition=condition_of_asset)

    return list(dg.map_asset_specs(add_condition, assets))
