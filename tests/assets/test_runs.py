"""Which steps can be made now, and in which runs.

The tests use a chain of four steps of the corpus `web`, each made from the one before: inventory,
shards and dataset, which share a run, and a `.pbin`, which has a run of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from nanoset_assets.history.graph_state import GraphState
from nanoset_assets.runs import divide_into_runs
from nanoset_core.project.graph.nodes import add_stale_inputs
from nanoset_core.project.graph.step import Step
from nanoset_core.stages.registry import DATASET, INVENTORY, PBIN, TOKENIZED
from nanoset_core.stages.stage import Key, Node

CHAIN = [Node(stage, Key("web")) for stage in (INVENTORY, TOKENIZED, DATASET, PBIN)]


def chain_state(
    *, stale: Collection[int] = (), faulty: Collection[int] = (), forced: Collection[int] = ()
) -> GraphState:
    """Return the state of the chain; steps are named by their positions in it, from 0."""
    steps: dict[Node, Step] = {}
    inputs: tuple[Node, ...] = ()
    for position, node in enumerate(CHAIN):
        reasons = ("stale",) if position in stale else ()
        steps[node] = Step(node, str(position), reasons, inputs)
        inputs = (node,)
    return GraphState(
        steps,
        failed_check=frozenset(CHAIN[position] for position in faulty),
        forced=frozenset(CHAIN[position] for position in forced),
    )


def position_of(step: Step) -> int:
    """Return the position of a step in the chain, which `chain_state` stores as its digest."""
    return int(step.digest)


def runs_of(
    state: GraphState,
    accepts: Callable[[int], bool] = lambda position: True,
    **options: bool,
) -> list[list[int]]:
    """Return the positions of the steps of each run."""
    runs = divide_into_runs(state, lambda step: accepts(position_of(step)), **options)
    return [list(map(position_of, run)) for run in runs]


def test_nothing_runs_if_everything_is_fresh():
    assert runs_of(chain_state()) == []


def test_a_run_contains_stale_steps_and_those_that_are_made_from_them():
    assert runs_of(chain_state(stale=[1, 2])) == [[1, 2]]


def test_a_step_waits_if_another_run_makes_its_input():
    assert runs_of(chain_state(stale=[1, 2, 3])) == [[1, 2]]


def test_a_step_does_not_wait_for_another_run_that_is_executed_before():
    assert runs_of(chain_state(stale=[1, 2, 3]), runs_in_sequence=True) == [[1, 2], [3]]


def test_nothing_is_made_from_a_step_that_the_caller_refuses():
    offered = []

    def accepts(position: int) -> bool:
        offered.append(position)
        return position != 1

    assert runs_of(chain_state(stale=[0, 1, 2]), accepts) == [[0]]
    # The step after the refused one is not even offered.
    assert offered == [0, 1]


def test_a_faulty_output_is_rebuilt():
    assert runs_of(chain_state(faulty=[1])) == [[1]]


def test_a_faulty_output_is_rebuilt_before_anything_is_made_from_it():
    # Without the fault, the last step would be made at once.
    assert runs_of(chain_state(stale=[3])) == [[3]]

    assert runs_of(chain_state(stale=[3], faulty=[2])) == [[2]]


def test_a_forced_output_is_made_although_it_is_fresh():
    assert runs_of(chain_state(forced=[3])) == [[3]]


def stale_before(state: GraphState, node: Node) -> set[Node]:
    """Return a node and the stale outputs that have to be made before it."""
    return add_stale_inputs([node], inputs_of=state.inputs_of, is_stale=state.is_stale)


def test_stale_inputs_are_added_up_to_the_first_one_that_is_fresh():
    _, _, third, last = CHAIN
    assert stale_before(chain_state(stale=[0, 2, 3]), last) == {third, last}


def test_faulty_inputs_count_as_stale():
    assert stale_before(chain_state(stale=[0, 2, 3], faulty=[1]), CHAIN[-1]) == set(CHAIN)
