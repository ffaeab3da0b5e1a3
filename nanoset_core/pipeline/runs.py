"""Which outputs can be made now, and which of them share a run: for the sensors, the schedule and `nanoset build`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass

from nanoset_core.pipeline.graph import Step
from nanoset_core.pipeline.stage import Node


@dataclass(frozen=True, slots=True)
class GraphState:
    """Every step of a project at one moment, with what a history of runs knows of it."""

    steps: Mapping[Node, Step]
    """In an order in which each step comes after those it needs."""
    unrecorded: frozenset[Node] = frozenset()
    """Steps that the history has no materialisation of."""
    unverified: frozenset[Node] = frozenset()
    """Steps whose last check found errors, or did not end."""
    forced: frozenset[Node] = frozenset()
    """Steps to make again though they are up to date."""

    def is_fresh(self, node: Node) -> bool:
        """Return whether a step's output is current, whole, and not known to be faulty."""
        return node in self.steps and self.steps[node].done and node not in self.unverified

    def needs_run(self, node: Node) -> bool:
        """Return whether a step is missing, stale, faulty, not recorded, or forced."""
        return node in self.steps and (not self.is_fresh(node) or node in self.unrecorded or node in self.forced)


def runnable(
    state: GraphState,
    select: Callable[[Step], bool],
    run_of: Callable[[Step], Hashable],
    *,
    in_sequence: bool = False,
) -> list[list[Step]]:
    """Return the runs that can start now: the steps of each in order, runs in the order of the pipeline.

    A step is taken when it needs a run, everything it needs is fresh or made before it, and `select` accepts it.

    Args:
        state: the project's steps.
        select: called in order, for each step that needs a run and could be made; whether to make it.
        run_of: step → its run. The steps of a run are made one after the other, so one may need another.
        in_sequence: runs are executed one after the other, so a step may also need a step of an earlier run.
    """
    runs: dict[Hashable, list[Step]] = {}
    taken: dict[Node, Hashable] = {}
    for node, step in state.steps.items():
        if not state.needs_run(node):
            continue
        run = run_of(step)
        made = {need for need in step.needs if need in taken and (in_sequence or taken[need] == run)}
        if all(need in made or state.is_fresh(need) for need in step.needs) and select(step):
            runs.setdefault(run, []).append(step)
            taken[node] = run
    return list(runs.values())


def with_stale_needs(state: GraphState, nodes: Collection[Node]) -> set[Node]:
    """Return steps together with everything they need, directly or not, that is not fresh."""
    found, waiting = set(nodes), list(nodes)
    while waiting:
        for need in state.steps[waiting.pop()].needs:
            if need in state.steps and need not in found and not state.is_fresh(need):
                found.add(need)
                waiting.append(need)
    return found
