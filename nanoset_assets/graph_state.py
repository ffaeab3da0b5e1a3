"""Combine output files and Dagster's history into the state of a project's outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from nanoset_assets.active_runs import ActiveRuns
from nanoset_assets.asset_names import asset_path, partition_of
from nanoset_assets.dagster_compat import (
    DATA_VERSION_TAG,
    checks_without_success,
    latest_data_versions,
)
from nanoset_assets.names import Names
from nanoset_assets.tags import CHECK
from nanoset_assets.ui.mappings import reader_metadata
from nanoset_assets.ui.metadata import place, size_bytes
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.graph import Graph, Step
from nanoset_core.project.project import Project
from nanoset_core.project.runs import GraphState
from nanoset_core.records.json_records import from_plain
from nanoset_core.stages.handoff.stage import TRAINER_FILES
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.stage import Node


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
    _record_existing_outputs(graph, steps, instance, names, active_runs)
    faulty = _faulty_outputs(steps, instance, names)
    return GraphState(steps, failed_check=faulty)


def _record_existing_outputs(
    graph: Graph,
    steps: Mapping[Node, Step],
    instance: dg.DagsterInstance,
    names: Names,
    active_runs: ActiveRuns,
) -> None:
    """Add outputs to Dagster's history that are up to date but not recorded there.

    Args:
        graph: The outputs of the project.
        steps: Output → its step. Inputs precede what is made from them, as in a run.
        instance: The instance.
        names: The names of the project.
        active_runs: The active runs. They record what they make themselves.
    """
    partitions_by_asset: dict[tuple[str, ...], set[str | None]] = {}
    for node in steps:
        partitions_by_asset.setdefault(asset_path(node), set()).add(partition_of(node))

    # Asset → partition → digest of the version that the history knows.
    recorded_digests: dict[tuple[str, ...], dict[str | None, str]] = {}
    for asset, partitions in partitions_by_asset.items():
        recorded_digests[asset] = latest_data_versions(instance, names.asset(asset), partitions)

    for node, step in steps.items():
        recorded_digest = recorded_digests[asset_path(node)].get(partition_of(node))
        if not step.is_up_to_date or recorded_digest == step.digest:
            continue
        # `node in active_runs` queries the history. Without active runs, save these queries: a new
        # history lacks all outputs of the project, which may be thousands.
        is_recorded_by_run = bool(active_runs.runs) and node in active_runs
        if not is_recorded_by_run:
            event = _materialization_of_existing(graph, step, names)
            instance.report_runless_asset_event(event)


def _faulty_outputs(
    nodes: Iterable[Node], instance: dg.DagsterInstance, names: Names
) -> frozenset[Node]:
    """Return the outputs whose last blocking check found errors, or did not end.

    Args:
        nodes: The outputs to look up.
        instance: The instance, which records the results of checks.
        names: The names of the project.
    """
    outputs = list(nodes)
    check_keys: dict[dg.AssetCheckKey, None] = {}  # a set that keeps the order
    for node in outputs:
        check_keys[dg.AssetCheckKey(names.asset(asset_path(node)), CHECK)] = None

    unsound: set[tuple[tuple[str, ...] | None, str | None]] = set()
    for asset_key, partition in checks_without_success(instance, check_keys):
        unsound.add((names.path(asset_key), partition))
    return frozenset(node for node in outputs if (asset_path(node), partition_of(node)) in unsound)


def _materialization_of_existing(graph: Graph, step: Step, names: Names) -> dg.AssetMaterialization:
    """Return a materialisation for an output that was made without a run of this history.

    Args:
        graph: The outputs of the project.
        step: The step of the output, which is up to date.
        names: The names of the project.
    """
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
    # Assets that train on a nanoset find it by the metadata of its handoff.
    if node.stage is TRAINER_FILES:
        metadata |= reader_metadata(project, node.key.subject)
    return dg.AssetMaterialization(
        names.asset(asset_path(node)),
        metadata=metadata,
        partition=partition_of(node),
        tags={DATA_VERSION_TAG: step.digest},
    )


def current_inventories(project: Project, corpora: Iterable[str]) -> dict[str, Recipe]:
    """Return the recipes of the current inventories of corpora.

    Args:
        project: The project.
        corpora: Names of the corpora.

    Returns:
        Corpus → recipe. Corpora whose inventory is missing or damaged are left out.
    """
    names = sorted(corpora)
    versions = project.outputs.current_versions(INVENTORY.layout.folder, names)
    recipes: dict[str, Recipe] = {}
    for corpus, version in zip(names, versions, strict=True):
        if version.manifest is not None and version.problem is None:
            recipes[corpus] = from_plain(Recipe, version.manifest.recipe)
    return recipes
