"""Decide which missing and stale outputs are built now, and in which runs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from nanoset_assets.active_runs import ActiveRuns
from nanoset_assets.asset_names import asset_path, job_of, label_of, partition_of
from nanoset_assets.failed_runs import why_not_requested
from nanoset_assets.loaded import RELOAD, LoadedAssets
from nanoset_assets.names import Names
from nanoset_assets.tags import AUTOMATION_TAG, WANTED_TAG
from nanoset_core.project.graph import Step
from nanoset_core.project.runs import GraphState, runnable
from nanoset_core.stages.inventory.stage import INVENTORY


@dataclass(frozen=True, slots=True)
class DueRuns:
    """The missing and stale outputs: those that can be built now, and those that have to wait."""

    runs: list[list[Step]] = field(default_factory=list)
    """The steps of each run that can start now."""
    waiting_reasons: dict[str, str] = field(default_factory=dict)
    """Label of each output that has to wait → why."""


def run_of(step: Step) -> Hashable:
    """Return a key that steps of one run share.

    All steps of one corpus share a run, and so do those of one split. Any other step has a separate
    run.
    """
    partition = partition_of(step.node)
    return step.node if partition is None else (job_of(step.node), partition)


def due_runs(
    state: GraphState, active_runs: ActiveRuns, loaded_assets: LoadedAssets, *, again: bool = False
) -> DueRuns:
    """Return the runs that are due and can start now, and why other outputs have to wait.

    Args:
        state: The state of the project's outputs.
        active_runs: The runs that were active before the outputs were read.
        loaded_assets: The assets of the loaded definitions, which alone can be requested.
        again: Also request outputs that failed, and inventories that differ from the raw text;
            otherwise the sensor over raw text requests those. An inventory whose check did not end
            is requested in any case, since its text has not changed.
    """
    due = DueRuns()

    def reason_to_wait(step: Step) -> str | None:
        if step.node not in loaded_assets:
            return f"not loaded yet: {RELOAD}"
        if not again:
            reason = why_not_requested(active_runs.instance, active_runs.names, step)
            if reason is not None:
                return reason
        if step.node in active_runs:
            return "a run is under way"
        if any(need in active_runs for need in step.needs):
            return "waits for a run of what it is made from"
        return None

    def can_be_requested(step: Step) -> bool:
        if step.node.stage is INVENTORY and not step.done and not again:
            # The sensor over raw text requests it.
            return False
        reason = reason_to_wait(step)
        if reason is not None:
            due.waiting_reasons[label_of(step.node)] = reason
        return reason is None

    due.runs.extend(runnable(state, can_be_requested, run_of))
    return due


def run_request(names: Names, run: Sequence[Step], requested_by: str, **more: Any) -> dg.RunRequest:
    """Return the request for a run.

    Args:
        names: The names of the project.
        run: The steps of the run.
        requested_by: Name of the sensor or schedule, for a tag.
        more: Further arguments of `dg.RunRequest`.
    """
    digests = [step.digest for step in run]
    tags = {AUTOMATION_TAG: requested_by, names.tag(WANTED_TAG): " ".join(digests)}
    assets = [names.asset(asset_path(step.node)) for step in run]
    return dg.RunRequest(
        partition_key=partition_of(run[0].node), asset_selection=assets, tags=tags, **more
    )
