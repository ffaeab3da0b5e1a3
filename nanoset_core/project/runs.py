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
        """Return whether an output is up to date, undamaged, and passed its last check.

        Args:
            node: The output. One without a step, because it is not known what it should be made
                from, is not fresh.
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
    """Add to some outputs what has to be made for them: those of their inputs that are out of date.

    For example, a dataset is to be made. It is made from shards (tokenized pieces of text), and
    these from a list of files:

        list of files      up to date       not added
        shards             out of date      added
        dataset            to be made

    So the result is the shards and the dataset.

    Args:
        outputs: The outputs that are to be made, here the dataset.
        inputs_of: Returns the outputs that an output is made directly from.
        is_stale: Returns whether an output is out of date.
    """
    to_make = set(outputs)
    nodes_to_examine = list(outputs)
    while nodes_to_examine:
        node = nodes_to_examine.pop()
        for input_node in inputs_of(node):
            # The inputs of an input that is up to date need not be looked at.
            if input_node not in to_make and is_stale(input_node):
                to_make.add(input_node)
                nodes_to_examine.append(input_node)
    return to_make


def divide_into_runs(
    state: GraphState,
    accepts: Callable[[Step], bool],
    run_key: Callable[[Step], Hashable],
    *,
    runs_in_sequence: bool = False,
) -> list[list[Step]]:
    """Divide the work of a build into runs of Dagster, which executes several runs at once.

    A step makes one output. For example, four steps, of which the last one needs the second, are
    divided by the text collection that they belong to:

        run "web"         1. tokens of web,  2. dataset of web
        run "code"        3. tokens of code
        run "pretrain"    4. index, which needs the dataset of web

    If the runs are executed one after another, step 4 can be done. If they are executed at the same
    time, it may begin before the dataset exists. So it is left out, and done another time.

    Args:
        state: The steps, inputs first, and which of them have to run.
        accepts: Returns whether the caller wants a step. It is called in the order of the steps,
            once for each that has to run and whose inputs will exist.
        run_key: Returns a key of the run that a step belongs to, such as "web".
        runs_in_sequence: Whether the runs are executed one after another.

    Returns:
        The steps of each run, in their order. A run without steps is left out.
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
    """Return whether an output will exist when a step of a build needs it.

    A build consists of runs, such as one for each text collection, and a run takes several steps,
    one after another.

    Args:
        node: The output that is needed.
        run: Key of the run that needs it, such as "web".
        run_by_node: The outputs that earlier steps make → key of the run that makes each.
        runs_in_sequence: Whether each run ends before the next one begins. Otherwise, runs are
            executed at the same time.
    """
    if node not in run_by_node:
        return False
    is_same_run = run_by_node[node] == run
    return is_same_run or runs_in_sequence
