"""The project's graph beside what Dagster has recorded of it: what is to be run, and what could be."""

from __future__ import annotations

from collections.abc import Iterable

import dagster as dg

from nanoset_assets.checks import CHECK, unverified_of
from nanoset_assets.dagster_compat import latest_data_versions
from nanoset_assets.names import Names
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.pipeline.graph import Graph, Step, StepKey, graph_over
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.raw import INVENTORY
from nanoset_core.pipeline.runs import GraphState
from nanoset_core.pipeline.stage import Key


def load_graph_state(
    graph: Graph, instance: dg.DagsterInstance, names: Names, *, same_versions: bool = False
) -> GraphState:
    """Compare a graph with the history of its project.

    Args:
        graph: the graph.
        instance: where the history is.
        names: of the project.
        same_versions: take a step for recorded only where the last materialisation is of the very version that its
            inputs ask for, and not of any version.
    """
    steps = {step.key: step for step in graph.steps()}
    assets: dict[tuple[str, ...], list[Step]] = {}
    for step in steps.values():
        assets.setdefault(step.asset, []).append(step)
    recorded: set[StepKey] = set()
    for asset, parts in assets.items():
        versions = latest_data_versions(instance, names.asset(asset), {step.partition for step in parts})
        recorded.update(
            step.key
            for step in parts
            if step.partition in versions and (not same_versions or versions[step.partition] == step.digest)
        )
    checks = [dg.AssetCheckKey(names.asset(asset), CHECK) for asset in assets]
    return GraphState(steps, frozenset(steps) - recorded, frozenset(unverified_of(instance, checks, names)))


def current_graph(project: Project, corpora: Iterable[str]) -> Graph:
    """The graph over the inventories that are current, whatever the files are now."""
    return graph_over(project, current_inventories(project, corpora))


def current_inventories(project: Project, corpora: Iterable[str]) -> dict[str, Recipe]:
    """Corpus → recipe of its current inventory; those without one, or with one that cannot be read, are left out."""
    recipes: dict[str, Recipe] = {}
    listed = sorted(corpora)
    for corpus, current in zip(listed, INVENTORY.current_of_all(project, list(map(Key, listed))), strict=True):
        if current.manifest is not None and current.problem is None:
            recipes[corpus] = Recipe(**current.manifest.recipe)
    return recipes
