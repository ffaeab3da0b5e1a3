"""The first filters of many views as one tree, so that views with a common beginning share it.

For three views

    v1    where lang = 'en'
    v2    where lang = 'en', split [0, 0.1)
    v3    where lang = 'en', split [0.1, 1)

the tree has four nodes. Each node keeps the documents that its parent and its filter keep:

    node 0    all documents
    └── node 1    where lang = 'en'         v1
        ├── node 2    split [0, 0.1)        v2
        └── node 3    split [0.1, 1)        v3
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.views.conditions import Condition
from nanoset_core.stages.views.rules import Filter, Rule, Where


class _FilterNode(NamedTuple):
    """A node of the tree, other than its root."""

    parent: int
    filter_number: int


class NumberedCondition(NamedTuple):
    """A filter that is a condition on columns."""

    number: int
    """Number of the filter in the tree."""
    condition: Condition
    columns: frozenset[str]


class NumberedFilter(NamedTuple):
    """A filter that is not a condition: it has to look at each document."""

    number: int
    """Number of the filter in the tree."""
    filter: Filter


class FilterTree:
    """The leading filters of some views."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        """Number the filters and the nodes. Equal filters have one number.

        Args:
            rules: Of the views; results are in the same order.
        """
        number_by_filter: dict[Filter, int] = {}
        number_by_node: dict[_FilterNode, int] = {}
        self.paths: list[list[int]] = []
        """Of each view, the numbers of the nodes from the root to its last leading filter."""
        for rule in rules:
            path = [0]
            for step in rule.leading_filters:
                filter_number = number_by_filter.setdefault(step, len(number_by_filter))
                node = _FilterNode(path[-1], filter_number)
                path.append(number_by_node.setdefault(node, len(number_by_node) + 1))
            self.paths.append(path)

        self._nodes = list(number_by_node)
        """The nodes 1, 2, …; a parent precedes its children."""
        self.n_nodes = len(self._nodes) + 1
        self.n_filters = len(number_by_filter)
        self.last_nodes = [path[-1] for path in self.paths]
        """Of each view, the node that keeps what all its leading filters keep."""

        self.conditions: list[NumberedCondition] = []
        self.document_filters: list[NumberedFilter] = []
        for step, number in number_by_filter.items():
            if isinstance(step, Where):
                condition = step.condition
                self.conditions.append(NumberedCondition(number, condition, condition.columns))
            else:
                self.document_filters.append(NumberedFilter(number, step))

    def parents_of(self, filter_number: int) -> list[int]:
        """Return the nodes whose documents a filter gets."""
        return [node.parent for node in self._nodes if node.filter_number == filter_number]

    def passed(self, answers: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which classes of documents each node keeps.

        Args:
            answers: Which classes each filter keeps, shape (n_filters, n_classes).

        Returns:
            Shape (n_nodes, n_classes).
        """
        passed = np.ones((self.n_nodes, answers.shape[1]), np.bool_)
        for number, node in enumerate(self._nodes, start=1):
            np.logical_and(passed[node.parent], answers[node.filter_number], out=passed[number])
        return passed
