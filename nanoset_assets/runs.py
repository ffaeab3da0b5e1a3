"""Divide the work of a build into runs of Dagster.

A step is the work of making one output; see `nanoset_core/project/graph/step.py`. A *run* makes the
outputs of some steps in sequence, such as all outputs of one corpus. `nanoset build` executes its
runs in sequence, too. Sensors and the schedule request runs from Dagster, which may execute them at
the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from nanoset_assets.assets.output_names import job_of, partition_of
from nanoset_assets.history.graph_state import GraphState
from nanoset_core.project.graph.step import Step
from nanoset_core.stages.stage import Node


def run_key(step: Step) -> Hashable:
    """Return which run of Dagster a step belongs to: all steps with the same key are one run.

    A run makes one partition of some assets, such as everything of the text collection `web`:

        file list of web, tokens of web, dataset of web    ("corpus", "web")
        dataset of books                                   ("corpus", "books")
        an asset without partitions                        the output itself: a run of its own

    Args:
        step: The work of making one output.
    """
    partition = partition_of(step.node)
    if partition is None:
        return step.node
    return (job_of(step.node), partition)


def divide_into_runs(
    state: GraphState,
    accepts: Callable[[Step], bool],
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
        run: Key of the run that needs it, such as ("corpus", "web"); see `run_key`.
        run_by_node: The outputs that earlier steps make → key of the run that makes each.
        runs_in_sequence: Whether each run ends before the next one begins. Otherwise, runs are
            executed at the same time.
    """
    if node not in run_by_node:
        return False
    is_same_run = run_by_node[node] == run
    return is_same_run or runs_in_sequence
