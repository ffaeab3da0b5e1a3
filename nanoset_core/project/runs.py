"""Decide which steps can run now, and in which runs, for builds, sensors and the schedule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass

from nanoset_core.project.graph import Step
from nanoset_core.stages.stage import Node


@dataclass(frozen=True, slots=True)
class GraphState:
    """Every step of a project at one moment, with what Dagster's history says about its output."""

    steps: Mapping[Node, Step]
    """Output → its step; each step comes after those that it needs."""
    unverified: frozenset[Node] = frozenset()
    """Outputs whose last check found errors, or did not end."""
    forced: frozenset[Node] = frozenset()
    """Outputs to rebuild even if they are up to date."""

    def is_fresh(self, node: Node) -> bool:
        """Return whether an output is current, whole, and not known to be faulty."""
        return node in self.steps and self.steps[node].done and node not in self.unverified

    def needs_run(self, node: Node) -> bool:
        """Return whether an output is missing, stale, faulty, or forced."""
        return node in self.steps and (not self.is_fresh(node) or node in self.forced)


def runnable(
    state: GraphState,
    select: Callable[[Step], bool],
    run_of: Callable[[Step], Hashable],
    *,
    in_sequence: bool = False,
) -> list[list[Step]]:
    """Return the runs that can start now, with their steps in the order of the pipeline.

    A step is included if it needs a run and everything that it needs is fresh, or is made before
    it.

    Args:
        state: The steps, and which of them are fresh.
        select: Accepts or refuses a step; called once for each step that could be included, in
            order.
        run_of: Returns what identifies the run that a step belongs to. The steps of a run are made
            in sequence, so one may need another.
        in_sequence: Whether the runs are executed in sequence as well, so that a step may need one
            of an earlier run.
    """
    runs: dict[Hashable, list[Step]] = {}
    run_by_node: dict[Node, Hashable] = {}
    for node, step in state.steps.items():
        if not state.needs_run(node):
            continue
        run = run_of(step)
        made_before = [
            need
            for need in step.needs
            if need in run_by_node and (in_sequence or run_by_node[need] == run)
        ]
        missing = [
            need for need in step.needs if need not in made_before and not state.is_fresh(need)
        ]
        if not missing and select(step):
            runs.setdefault(run, []).append(step)
            run_by_node[node] = run
    return list(runs.values())


def with_stale_needs(state: GraphState, nodes: Collection[Node]) -> set[Node]:
    """Return outputs, and everything that they need, directly or not, and that is not fresh."""
    needed = set(nodes)
    waiting = list(nodes)
    while waiting:
        for need in state.steps[waiting.pop()].needs:
            if need in state.steps and need not in needed and not state.is_fresh(need):
                needed.add(need)
                waiting.append(need)
    return needed
