"""The first filters of many views as one tree."""

import numpy as np
import pytest

from nanoset_core.stages.views.conditions import parse_condition
from nanoset_core.stages.views.filter_tree import FilterTree
from nanoset_core.stages.views.rules import Budget, HashSplit, Rule, Where


@pytest.fixture
def tree():
    """Three views of English documents: all, and two shares of them."""

    def english(view):
        return Where(view, parse_condition("lang = 'en'", view))

    return FilterTree(
        [
            Rule((english("v1"),)),
            Rule((english("v2"), HashSplit("v2", "id", 0.0, 0.1))),
            Rule((english("v3"), HashSplit("v3", "id", 0.1, 1.0))),
        ]
    )


def test_views_with_a_common_beginning_share_its_nodes(tree):
    assert tree.paths == [[0, 1], [0, 1, 2], [0, 1, 3]]
    assert tree.last_nodes == [1, 2, 3]


def test_equal_filters_of_different_views_are_computed_once(tree):
    assert tree.n_filters == 3
    assert [condition.number for condition in tree.conditions] == [0]


def test_a_node_keeps_what_its_parent_and_its_filter_keep(tree):
    answers = np.array(
        [
            [True, True, False],  # lang = 'en'
            [True, False, True],  # the first share
            [False, True, False],  # the other share
        ]
    )

    passed = tree.passed(answers)

    assert passed.tolist() == [
        [True, True, True],
        [True, True, False],
        [True, False, False],
        [False, True, False],
    ]


def test_filters_after_a_budget_are_not_in_the_tree():
    later_filter = HashSplit("v", "id", 0.0, 0.5)
    tree = FilterTree([Rule((Budget("v", "tokens", 9), later_filter))])

    assert tree.n_filters == 0
    assert tree.paths == [[0]]
