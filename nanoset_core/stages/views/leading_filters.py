"""Apply the first filters of many views at once to the documents of a corpus.

A filter decides about each document separately, such as `where lang = 'en'`. The leading filters of
a view are those before its first step of another kind, such as a budget.

Views often begin with the same filters, since a view may be chosen from another view. So the
filters form a tree. For three views

    v1    where lang = 'en'
    v2    where lang = 'en', split [0, 0.1)
    v3    where lang = 'en', split [0.1, 1)

the tree has four nodes, which are numbered so that parents precede their children. Each node keeps
the documents that its parent and its filter keep:

    node 0    all documents
    └── node 1    where lang = 'en'         v1
        ├── node 2    split [0, 0.1)        v2
        └── node 3    split [0.1, 1)        v3

The path of v2 from the root to its last filter is 0, 1, 2.

Documents are added some ten thousand at a time. For each node, the documents and tokens that it
keeps are counted. For each view, the documents that its last node keeps are written to a scratch
file, as bits: from the first to the last one that is kept, a document takes one bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.rounding import ceil_division
from nanoset_core.stages.scratch_arrays import ScratchArray
from nanoset_core.stages.views.rules import DocumentValues, Filter, Rule

_RUNS_PER_CHUNK = 16
"""Runs of documents that `LeadingFilters.chunks` yields together; see `_KeptRun`."""


class RemainingCounts(NamedTuple):
    """What is left of a corpus after a filter."""

    documents: int
    tokens: int


class _FilterNode(NamedTuple):
    """A node of the tree of filters."""

    parent: int
    """Number of the parent, which is smaller than that of the node."""
    step: Filter | None
    """A filter of the documents that the parent keeps; None for the root, which keeps all."""


class _FilterTree(NamedTuple):
    """The filters with which some views begin. Views share the filters that they begin with."""

    nodes: list[_FilterNode]
    """The nodes by their numbers: the root, and further ones after their parents."""
    paths: list[list[int]]
    """For each view, the numbers of the nodes from the root to its last leading filter."""


def _tree_of(rules: Sequence[Rule]) -> _FilterTree:
    """Arrange the filters with which views begin as a tree, so that each is evaluated only once.

    A view is a selection of documents by steps, and several views may begin with the same steps.
    For example, if view A begins with the filters x, y, and view B with x, z, then the tree is

        0 (all documents) ── 1 (x) ─┬─ 2 (y)     path of A: 0, 1, 2
                                    └─ 3 (z)     path of B: 0, 1, 3

    Args:
        rules: The steps of each view.
    """
    root = _FilterNode(parent=0, step=None)
    number_by_node = {root: 0}  # in the order of the numbers
    paths = []
    for rule in rules:
        path = [0]
        for step in rule.leading_filters:
            node = _FilterNode(parent=path[-1], step=step)
            # Another view may have a node with the same parent and filter: share it.
            if node not in number_by_node:
                number_by_node[node] = len(number_by_node)  # the next number
            path.append(number_by_node[node])
        paths.append(path)
    return _FilterTree(list(number_by_node), paths)


class LeadingFilters:
    """The leading filters of some views, and which documents of a corpus they keep."""

    def __init__(self, rules: Sequence[Rule], scratch: Path) -> None:
        """Prepare to apply the first filters of some views to the documents of a corpus.

        A view selects documents by steps. Views that begin with the same filters share them, so the
        filters form a tree: see `_tree_of`.

        Args:
            rules: The steps of each view. Methods name a view by its position here.
            scratch: An empty folder for temporary files.
        """
        tree = _tree_of(rules)
        self._nodes = tree.nodes
        self._paths = tree.paths

        self._document_counts = np.zeros(len(self._nodes), np.int64)
        """How many documents each node keeps, shape (n_nodes,)."""
        self._token_counts = np.zeros(len(self._nodes), np.int64)
        """How many tokens these documents have, shape (n_nodes,)."""
        self._last_rows: list[NDArray[np.int64]] = []
        """The rows that each node keeps of the documents that were added last, ascending."""
        self._kept_documents: list[_KeptDocuments] = []
        """What each view keeps of the corpus, in a scratch file."""
        for number in range(len(rules)):
            self._kept_documents.append(_KeptDocuments(scratch / f"kept-{number}"))

    def add_totals(self, n_documents: int, n_tokens: int) -> None:
        """Count documents and tokens of the corpus, also those that `add` does not get.

        The caller need not pass documents to `add` that no view keeps, but the counts of the whole
        corpus include them.

        Args:
            n_documents: Number of documents.
            n_tokens: Their tokens.
        """
        self._document_counts[0] += n_documents
        self._token_counts[0] += n_tokens

    def add(self, documents: DocumentValues) -> None:
        """Apply the filters of all views to the next documents of the corpus.

        Views that begin with the same filters share them. For example, view A has the filters x, y,
        and view B has x, z. So the filters form a tree, and each is applied once:

            node 0                     all documents
            node 1 (x, of node 0)      keeps the documents 0, 1, 3
            node 2 (y, of node 1)      keeps 1, 3: the last filter of view A
            node 3 (z, of node 1)      keeps 0: the last filter of view B

        What each node keeps is counted, for users to see. What the last node of a view keeps is
        stored for the view.

        Args:
            documents: Some documents, such as 10,000. The caller may leave documents out of which
                it knows that no view keeps them.
        """
        self._last_rows = self._rows_by_node(documents)
        self._count_rows(documents.tokens)
        for view, kept_documents in enumerate(self._kept_documents):
            kept_documents.add(documents.numbers[self.kept_rows(view)])

    def _count_rows(self, tokens: NDArray[np.integer[Any]]) -> None:
        """Count which of the documents that were added last each filter keeps, and their tokens.

        The first node, which has no filter, is left out: `add_totals` counts all documents.

        Args:
            tokens: Number of tokens of each of these documents, shape (n_documents,).
        """
        for node in range(1, len(self._last_rows)):
            rows = self._last_rows[node]
            self._document_counts[node] += len(rows)
            self._token_counts[node] += tokens[rows].sum(dtype=np.int64)

    def _rows_by_node(self, documents: DocumentValues) -> list[NDArray[np.int64]]:
        """Return which documents are left after each filter of a tree of filters.

        A filter is applied to what its parent in the tree leaves. For example, for four documents:

            node 0    all documents                rows 0, 1, 2, 3
            node 1    lang = 'en', of node 0       rows 0, 1, 3
            node 2    quality > 3, of node 1       rows 1, 3

        Args:
            documents: The documents, whose rows are counted from 0.

        Returns:
            For each node, the rows that are left, ascending, shape (n_left,).
        """
        masks = _FilterMasks(documents)
        rows_by_node: list[NDArray[np.int64]] = []
        for node in self._nodes:  # parents precede their children
            if node.step is None:  # the root, which has no filter
                rows = np.arange(len(documents.numbers))
            else:
                rows = masks.keep(rows_by_node[node.parent], node.step)
            rows_by_node.append(rows)
        return rows_by_node

    def kept_rows(self, view: int) -> NDArray[np.int64]:
        """Return which of the documents that were added last are left after the filters of a view.

        Args:
            view: Number of the view: the position of its rule.

        Returns:
            Rows of these documents, such as [1, 3], shape (n_kept,).
        """
        last_node = self._paths[view][-1]
        return self._last_rows[last_node]

    def counts(self, view: int) -> Iterator[RemainingCounts]:
        """Yield how many documents and tokens are left after each leading filter of a view.

        Args:
            view: Number of the view: the position of its rule.

        Yields:
            The counts of the whole corpus, and then those after each filter.
        """
        for node in self._paths[view]:
            yield RemainingCounts(int(self._document_counts[node]), int(self._token_counts[node]))

    def chunks(self, view: int) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of the documents that a view keeps, ascending, in chunks.

        Args:
            view: Number of the view: the position of its rule.

        Yields:
            Numbers in the corpus, int64, shape (n_documents_in_chunk,).
        """
        yield from self._kept_documents[view].chunks()


class _FilterMasks:
    """Evaluates filters for some documents, each filter only once.

    Args:
        documents: The documents, whose rows are counted from 0.
    """

    def __init__(self, documents: DocumentValues) -> None:
        self._documents = documents
        self._mask_by_filter: dict[Filter, NDArray[np.bool_]] = {}

    def keep(self, rows: NDArray[np.int64], step: Filter) -> NDArray[np.int64]:
        """Return which of some documents a filter keeps.

        Of the rows [0, 1, 3], a filter with the mask [False, True, True, True] keeps [1, 3]. If
        there are no rows, the filter is not evaluated.

        Args:
            rows: Rows of documents, ascending, shape (n_rows,).
            step: The filter.
        """
        if len(rows) == 0:
            return rows
        mask = self._mask(step)
        has_all_rows = len(rows) == len(mask)
        if has_all_rows:
            return np.flatnonzero(mask)  # the same as below, but faster
        return rows[mask[rows]]

    def _mask(self, step: Filter) -> NDArray[np.bool_]:
        """Return whether a filter keeps each of the documents, shape (n_documents,)."""
        if step not in self._mask_by_filter:
            self._mask_by_filter[step] = step.mask(self._documents)
        return self._mask_by_filter[step]


class _KeptRun(NamedTuple):
    """Consecutive documents of a corpus, of which a view keeps the first, the last and others.

    If a view keeps the documents 5, 6 and 9, the run is 5 to 9, and its bits are 1, 1, 0, 0, 1.
    """

    first_document: int
    n_documents: int
    first_byte: int
    """Where the bits of the documents start in the scratch file."""


class _KeptDocuments:
    """The documents that a view keeps, as bits in a scratch file."""

    def __init__(self, path: Path) -> None:
        """Describe the file; it is created when a document is kept."""
        self._file = ScratchArray(path, np.uint8)
        self._runs: list[_KeptRun] = []

    def add(self, documents: NDArray[np.int64]) -> None:
        """Append documents, given their numbers, ascending, shape (n_kept,)."""
        if len(documents) == 0:
            return
        first = int(documents[0])
        n_documents = int(documents[-1]) + 1 - first
        self._runs.append(_KeptRun(first, n_documents, self._file.size))
        is_kept = np.zeros(n_documents, np.bool_)  # (n_documents,) of the run
        is_kept[documents - first] = True
        self._file.append(np.packbits(is_kept))

    def chunks(self) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of all documents that were added, ascending, many at a time."""
        bits = self._file.mapped()
        for start in range(0, len(self._runs), _RUNS_PER_CHUNK):
            runs = self._runs[start : start + _RUNS_PER_CHUNK]
            yield np.concatenate([_documents_of_run(run, bits) for run in runs])


def _documents_of_run(run: _KeptRun, bits: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the numbers of the documents of a run that a view keeps, ascending, shape (n_kept,).

    Args:
        run: The run, such as the documents 5 to 9.
        bits: All bytes of the scratch file, which have a bit for each document of each run.
    """
    n_bytes = ceil_division(run.n_documents, 8)
    run_bits = bits[run.first_byte : run.first_byte + n_bytes]
    is_kept = np.unpackbits(run_bits, count=run.n_documents)
    return run.first_document + np.flatnonzero(is_kept)
