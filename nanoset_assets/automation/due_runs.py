"""Decide which missing and stale outputs a sensor or the schedule requests now, and in which runs.

A step is the work of making one output. A run makes the outputs of several steps in sequence, such
as all outputs of one corpus; see `runs.py`. An output has to wait if, for example, an active run
makes one of its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from nanoset_assets.assets.output_names import asset_path, label_of, partition_of
from nanoset_assets.automation.active_runs import ActiveRuns
from nanoset_assets.automation.failed_runs import reason_not_requested
from nanoset_assets.code_location.loaded import RELOAD, LoadedAssets
from nanoset_assets.history.graph_state import GraphState
from nanoset_assets.names import Names
from nanoset_assets.runs import divide_into_runs
from nanoset_assets.tags import AUTOMATION_TAG, WANTED_TAG
from nanoset_core.project.graph.reasons_to_build import check_failed_reason
from nanoset_core.project.graph.step import Step
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.stage import Node

_MAX_REASONS = 5
"""For how many waiting outputs the log of a tick says why they wait."""


@dataclass(frozen=True, slots=True)
class DueRuns:
    """The missing and stale outputs: those that can be built now, and those that have to wait."""

    runs: list[list[Step]] = field(default_factory=list)
    """The steps of each run that can start now."""
    waiting_reasons: dict[str, str] = field(default_factory=dict)
    """Label of each output that has to wait → why."""


def due_runs(
    state: GraphState,
    active_runs: ActiveRuns,
    loaded_assets: LoadedAssets,
    *,
    retries_failed: bool,
    includes_inventories: bool,
) -> DueRuns:
    """Return the runs that should start now, and why other outputs have to wait.

    A sensor or schedule calls this at each tick, and requests these runs from Dagster. For example:

        output              state                                       decision
        tokens of web       out of date                                 in a run
        dataset of web      out of date                                 in the same run, after them
        tokens of books     out of date, but a run makes them already   wait: "a run is under way"
        dataset of code     up to date                                  nothing to do

    Args:
        state: Which outputs are missing, out of date or up to date.
        active_runs: The runs that were active before the outputs were read.
        loaded_assets: The assets that Dagster has loaded. It refuses requests for others.
        retries_failed: Whether outputs whose last run failed are requested again.
        includes_inventories: Whether runs are also requested for corpora (text collections) with
            changed files. Otherwise, the sensor that watches the files does that.

    Returns:
        The runs, in the order of the pipeline, and the reasons of the outputs that wait.
    """
    waiting_reasons: dict[str, str] = {}  # label of an output → why it is not made now

    def can_start(step: Step) -> bool:
        """Return whether a step can start now. If not, add the reason to `waiting_reasons`."""
        if _lists_changed_files(step) and not includes_inventories:
            return False  # left to the sensor that watches the files, so it needs no reason
        reason = _reason_to_wait(step, active_runs, loaded_assets, retries_failed=retries_failed)
        if reason is not None:
            waiting_reasons[label_of(step.node)] = reason
        return reason is None

    runs = divide_into_runs(state, accepts=can_start)
    return DueRuns(runs, waiting_reasons)


def _lists_changed_files(step: Step) -> bool:
    """Return whether a step lists the files of a corpus because they have changed.

    The list of files, the inventory, is the first output of a corpus (a text collection). If the
    files are the same as before, such a step only has to run if the check of the list has failed.

    Args:
        step: The work of making any output.
    """
    if step.node.stage is not INVENTORY or step.is_up_to_date:
        return False
    return step.reasons != (check_failed_reason(step.node),)


def _reason_to_wait(
    step: Step, active_runs: ActiveRuns, loaded_assets: LoadedAssets, *, retries_failed: bool
) -> str | None:
    """Return why a missing or stale output cannot be requested now, or None if it can.

        case                                                   reason
        it is new in nanoset.yaml: Dagster must load it first  "not loaded yet: …"
        its last run failed, and nothing has changed since     "its run 1f2e3d4c failed; …"
        a run makes it at this moment                          "a run is under way"
        a run makes one of its inputs                          "waits for a run of what it is …"

    Args:
        step: The work of making the output.
        active_runs: The runs that were active before the outputs were read.
        loaded_assets: The assets that Dagster has loaded.
        retries_failed: Whether to request the output even if its last run failed.
    """
    if step.node not in loaded_assets:
        return f"not loaded yet: {RELOAD}"
    if not retries_failed:
        reason = reason_not_requested(active_runs.instance, active_runs.names, step)
        if reason is not None:
            return reason
    if step.node in active_runs:
        return "a run is under way"
    if any(parent in active_runs for parent in step.needs):
        return "waits for a run of what it is made from"
    return None


def run_request(names: Names, run: Sequence[Step], requested_by: str, **more: Any) -> dg.RunRequest:
    """Return the request with which a sensor or schedule starts a run of the pipeline in Dagster.

    Args:
        names: The names of the project in Dagster.
        run: What the run makes, one output a step: such as the tokens of the text collection `web`,
            and then the dataset. All steps have the same partition, here `web`, or none.
        requested_by: Name of the sensor or schedule.
        more: Further arguments of `dg.RunRequest`, such as `job_name`.
    """
    assets = [names.asset(asset_path(step.node)) for step in run]
    # Each step has a digest, which changes with its inputs and settings, also with settings that
    # only forbid it. Store the digests in a tag of the run, "5f0c… 81c2…", so that a later call
    # sees that this run was requested already.
    digests = " ".join(step.attempt_digest for step in run)
    return dg.RunRequest(
        partition_key=partition_of(run[0].node),
        asset_selection=assets,
        tags={AUTOMATION_TAG: requested_by, names.tag(WANTED_TAG): digests},
        **more,
    )


def waiting_notes(due: DueRuns) -> list[str]:
    """Say for the log of a sensor or schedule which outputs have to wait, and why.

    For example:

        pretrain/blend: waits for a run of what it is made from
        …                                             (at most five such lines)
        and 12 more that have to wait

    Args:
        due: The outputs that have to wait.
    """
    waiting = [f"{label}: {reason}" for label, reason in due.waiting_reasons.items()]
    notes = waiting[:_MAX_REASONS]
    n_more = len(waiting) - _MAX_REASONS
    if n_more > 0:
        notes.append(f"and {n_more:,} more that have to wait")
    return notes


def later_notes(n_later: int) -> list[str]:
    """Say that some runs are not requested yet, because a call may request only so many.

    Args:
        n_later: How many runs a later call of the sensor or schedule requests.

    Returns:
        Such as ["30 more runs are requested later"]; empty if there are none.
    """
    if n_later == 0:
        return []
    if n_later == 1:
        return ["1 more run is requested later"]
    return [f"{n_later:,} more runs are requested later"]


def idle_reason(outputs: Sequence[Node], state: GraphState) -> str:
    """Say why no run is requested: all outputs are up to date, or nothing can be built yet.

    Args:
        outputs: All outputs that the settings request.
        state: Which of them are up to date. It does not know those whose corpora are not built yet.
    """
    n_stale = sum(not state.is_fresh(output) for output in outputs)
    if n_stale == 0:
        return f"{len(outputs):,} outputs: none is missing or stale"
    return f"{len(outputs):,} outputs: {n_stale:,} missing or stale, which cannot be built yet"
