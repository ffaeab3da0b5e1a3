"""Combine output files and Dagster's history into the state of a project's outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dagster as dg

from nanoset_assets.active_runs import ActiveRuns
from nanoset_assets.asset_names import asset_path, partition_of
from nanoset_assets.dagster_compat import DATA_VERSION_TAG, latest_data_versions, unsound_checks
from nanoset_assets.names import Names
from nanoset_assets.tags import CHECK
from nanoset_assets.ui.mappings import reader_metadata
from nanoset_assets.ui.metadata import place, size_bytes
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.graph import Graph, Step
from nanoset_core.project.project import Project
from nanoset_core.project.runs import GraphState
from nanoset_core.stages.handoff.stage import TRAINER_FILES
from nanoset_core.stages.inventory.stage import INVENTORY


def load_graph_state(
    graph: Graph,
    instance: dg.DagsterInstance,
    names: Names,
    active_runs: ActiveRuns | None = None,
) -> GraphState:
    """Compare outputs with Dagster's history, and return their state.

    Outputs that are up to date but missing from the history are added to it, so that no run makes
    them again. Another machine may have made them, or a build whose history was deleted.

    Args:
        graph: The outputs of the project.
        instance: The instance.
        names: The names of the project.
        active_runs: The active runs, looked up before any output was read; default: look them up
            now.
    """
    if active_runs is None:
        active_runs = ActiveRuns(instance, names)
    steps = {step.node: step for step in graph.steps()}
    partitions_by_asset: dict[tuple[str, ...], set[str | None]] = {}
    for node in steps:
        partitions_by_asset.setdefault(asset_path(node), set()).add(partition_of(node))

    # Record outputs that the history does not know, in the order of a run: inputs first.
    recorded: dict[tuple[str, ...], dict[str | None, str]] = {}
    for asset, partitions in partitions_by_asset.items():
        recorded[asset] = latest_data_versions(instance, names.asset(asset), partitions)
    for node, step in steps.items():
        if not step.done or recorded[asset_path(node)].get(partition_of(node)) == step.digest:
            continue
        # An output of an active run is recorded by that run. If nothing is active, do not query the
        # history: a new one lacks all of the project's outputs, which may be thousands.
        if active_runs.runs and node in active_runs:
            continue
        instance.report_runless_asset_event(_materialization_of_existing(graph, step, names))

    # Outputs whose last check found errors are faulty, and are rebuilt.
    check_keys = [dg.AssetCheckKey(names.asset(asset), CHECK) for asset in partitions_by_asset]
    unsound = unsound_checks(instance, check_keys)
    unsound_paths = {(names.path(asset), partition) for asset, partition in unsound}
    faulty = {node for node in steps if (asset_path(node), partition_of(node)) in unsound_paths}
    return GraphState(steps, frozenset(faulty))


def _materialization_of_existing(graph: Graph, step: Step, names: Names) -> dg.AssetMaterialization:
    """Return a materialisation for an output that was made without a run of this history."""
    node = step.node
    project = graph.project
    manifest = graph.current(node).manifest
    metadata: dict[str, Any] = {
        "summary": "made on another machine, or recorded in another history of runs"
    }
    if manifest is not None:
        metadata |= node.stage.show(project, manifest).figures
        metadata["size_bytes"] = size_bytes(manifest)
        metadata["path"] = place(project, manifest.url())
        metadata["digest"] = manifest.digest
    if node.stage is TRAINER_FILES:
        metadata |= reader_metadata(project, node.key.subject)
    return dg.AssetMaterialization(
        names.asset(asset_path(node)),
        metadata=metadata,
        partition=partition_of(node),
        tags={DATA_VERSION_TAG: step.digest},
    )


def current_inventories(project: Project, corpora: Iterable[str]) -> dict[str, Recipe]:
    """Return corpus → recipe of its current inventory, without those that cannot be read."""
    names = sorted(corpora)
    versions = project.outputs.current_versions(INVENTORY.layout.folder, names)
    recipes: dict[str, Recipe] = {}
    for corpus, version in zip(names, versions, strict=True):
        if version.manifest is not None and version.problem is None:
            recipes[corpus] = Recipe(**version.manifest.recipe)
    return recipes
