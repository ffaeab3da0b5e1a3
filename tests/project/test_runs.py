"""Which steps can be made now, and in which runs."""

from __future__ import annotations

from dataclasses import replace

from nanoset_core.project.graph import Step
from nanoset_core.project.runs import GraphState, runnable, with_stale_needs
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


def taken(found, select=lambda place: True, run_of=lambda step: step.node.stage.kind, **settings):
    runs = runnable(found, lambda step: select(int(step.digest)), run_of, **settings)
    return [[int(step.digest) for step in run] for run in runs]


def test_a_run_takes_what_is_stale_and_what_follows_within_it():
    assert taken(state()) == []
    assert taken(state(1, 2)) == [[1, 2]]
    assert taken(state(1, 2, 3)) == [[1, 2]], "another run could not see the dataset yet"
    assert taken(state(1, 2, 3), in_sequence=True) == [[1, 2], [3]]
    assert taken(state(1, 2), run_of=lambda step: step.node) == [[1]]


def test_what_is_not_selected_holds_up_what_needs_it():
    asked = []
    assert taken(state(0, 1, 2), lambda place: asked.append(place) or place != 1) == [[0]]
    assert asked == [0, 1]


def test_marks_of_the_history():
    assert taken(state(unverified=[1])) == [[1]]
    assert taken(state(forced=[3])) == [[3]]
    assert taken(state(3)) == [[3]]
    assert taken(state(3, unverified=[2])) == [[2]], "what is faulty cannot"


def test_stale_needs():
    found = state(0, 2, 3)
    keys = list(found.steps)
    assert with_stale_needs(found, [keys[3]]) == {keys[2], keys[3]}
    assert with_stale_needs(replace(found, unverified=frozenset([keys[1]])), [keys[3]]) == set(keys)
