"""Decide which outputs have to be made, and divide the work into runs of Dagster.

A *node* is one output of one stage, and a *step* is the work of making one node; see
`project/graph.py`. A *run* makes the outputs of some steps in sequence, such as all outputs of one
corpus. `nanoset build` executes its runs in sequence, too. Sensors and the schedule request runs
from Dagster, which may execute them at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass

from nanoset_core.project.graph import Step
from nanoset_core.stages.stage import Node


@dataclass(frozen=True, slots=True)
class GraphState:
    """Every step of a project at one moment, with what Dagster's history says about its output."""

    steps: Mapping[Node, Step]
    """Output → its step; each step comes after those that it needs."""
    failed_check: frozenset[Node] = frozenset()
    """Outputs whose last check found errors, or did not end."""
    forced: frozenset[Node] = frozenset()
    """Outputs to rebuild even if they are up to date."""

    def is_fresh(self, node: Node) -> bool:
        """Return whether an output is current, whole, and not known to be faulty.

        Args:
            node: The output. One without a step, whose inputs are not known, is not fresh.
        """
        return (
            node in self.steps and self.steps[node].is_up_to_date and node not in self.failed_check
        )

    def is_stale(self, node: Node) -> bool:
        """Return whether an output is missing, stale or faulty, and has a step that makes it.

        Args:
            node: The output.
        """
        return node in self.steps and not self.is_fresh(node)

    def needs_run(self, node: Node) -> bool:
        """Return whether an output has to be made, because it is stale or its rebuild is forced.

        Args:
            node: The output. One without a step cannot be made.
        """
        return self.is_stale(node) or (node in self.forced and node in self.steps)

    def inputs_of(self, node: Node) -> tuple[Node, ...]:
        """Return the outputs that an output is made directly from.

        Args:
            node: The output, which must have a step.
        """
        return self.steps[node].needs


def add_stale_inputs(
    outputs: Collection[Node],
    *,
    inputs_of: Callable[[Node], Iterable[Node]],
    is_stale: Callable[[Node], bool],
) -> set[Node]:
    """Return some outputs, together with the stale outputs that have to be made before them.

    For example, a dataset is made from shards, and these from an inventory. If the shards are
    stale and the inventory is not, the dataset gives the dataset and the shards.

    Args:
        outputs: The outputs to start from, stale or not.
        inputs_of: Returns the outputs that an output is made directly from.
        is_stale: Returns whether an output has to be made.
    """
    # Follow stale inputs only: what an input that is up to date was made from need not be rebuilt.
    result = set(outputs)
    unexamined = list(outputs)  # outputs in `result` whose inputs were not looked at yet
    while unexamined:
        for parent in inputs_of(unexamined.pop()):
            if parent not in result and is_stale(parent):
                result.add(parent)
                unexamined.append(parent)
    return result


def divide_into_runs(
    state: GraphState,
    accepts: Callable[[Step], bool],
    run_key: Callable[[Step], Hashable],
    *,
    runs_in_sequence: bool = False,
) -> list[list[Step]]:
    """Return the runs that can start now, with their steps in the order of the pipeline.

    A step makes one output. The runs contain each step that has to run, that the caller accepts,
    and whose inputs will exist: they are up to date now, or are made earlier in the same run.

    Args:
        state: The steps, and which of them have to run.
        accepts: Returns whether the caller wants a step. It is called in the order of the pipeline,
            once for each step that has to run and whose inputs will exist.
        run_key: Returns a key of the run that a step belongs to; steps with equal keys share a run.
        runs_in_sequence: Whether the runs are executed in sequence, so that a step may also use
            what an earlier run makes. Runs that Dagster executes at the same time can't wait for
            each other.

    Returns:
        The steps of each run. A run without steps is left out.
    """
    steps_by_run: dict[Hashable, list[Step]] = {}
    run_by_node: dict[Node, Hashable] = {}  # the outputs that the runs make so far
    for node, step in state.steps.items():
        if not state.needs_run(node):
            continue

        run = run_key(step)
        inputs_will_exist = all(
            state.is_fresh(input_node)
            or _is_made_before(input_node, run, run_by_node, runs_in_sequence)
            for input_node in step.needs
        )
        if inputs_will_exist and accepts(step):
            steps_by_run.setdefault(run, []).append(step)
            run_by_node[node] = run
    return list(steps_by_run.values())


def _is_made_before(
    node: Node, run: Hashable, run_by_node: Mapping[Node, Hashable], runs_in_sequence: bool
) -> bool:
    """Return whether an output will have been made once the next step of a run begins.

    Args:
        node: The output.
        run: Key of the run.
        run_by_node: The outputs that all runs make so far → the key of their run.
        runs_in_sequence: Whether earlier runs will have ended by then.
    """
    if node not in run_by_node:
        return False
    return runs_in_sequence or run_by_node[node] == run
