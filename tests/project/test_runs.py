"""Which steps can be made now, and in which runs."""

from __future__ import annotations

from dataclasses import replace

from nanoset_core.project.graph import Step
from nanoset_core.project.runs import GraphState, add_stale_inputs, divide_into_runs
from nanoset_core.stages.registry import DATASET, INVENTORY, PBIN, TOKENIZED
from nanoset_core.stages.stage import Key, Node

CHAIN = [Node(stage, Key("web")) for stage in (INVENTORY, TOKENIZED, DATASET, PBIN)]


def state(*stale, **marks):
    """A chain of four steps, of which those at some places are stale."""
    steps = {
        node: Step(
            node,
            str(place),
            ("stale",) if place in stale else (),
            (CHAIN[place - 1],) if place else (),
        )
        for place, node in enumerate(CHAIN)
    }
    return GraphState(
        steps,
        **{name: frozenset(CHAIN[place] for place in places) for name, places in marks.items()},
    )


def taken(found, select=lambda place: True, run_key=lambda step: step.node.stage.kind, **settings):
    runs = divide_into_runs(found, lambda step: select(int(step.digest)), run_key, **settings)
    return [[int(step.digest) for step in run] for run in runs]


def test_a_run_takes_what_is_stale_and_what_follows_within_it():
    assert taken(state()) == []
    assert taken(state(1, 2)) == [[1, 2]]
    assert taken(state(1, 2, 3)) == [[1, 2]], "another run could not see the dataset yet"
    assert taken(state(1, 2, 3), runs_in_sequence=True) == [[1, 2], [3]]
    assert taken(state(1, 2), run_key=lambda step: step.node) == [[1]]


def test_what_is_not_selected_holds_up_what_needs_it():
    asked = []
    assert taken(state(0, 1, 2), lambda place: asked.append(place) or place != 1) == [[0]]
    assert asked == [0, 1]


def test_marks_of_the_history():
    assert taken(state(unverified=[1])) == [[1]]
    assert taken(state(forced=[3])) == [[3]]
    assert taken(state(3)) == [[3]]
    assert taken(state(3, unverified=[2])) == [[2]], "what is faulty cannot"


def stale_before(found, node):
    """Return a node and the stale outputs that have to be made before it."""
    return add_stale_inputs([node], inputs_of=found.inputs_of, is_stale=found.is_stale)


def test_stale_inputs_are_added_up_to_the_first_one_that_is_fresh():
    first, second, third, last = CHAIN
    found = state(0, 2, 3)
    assert stale_before(found, last) == {third, last}

    faulty = replace(found, unverified=frozenset([second]))
    assert stale_before(faulty, last) == {first, second, third, last}
