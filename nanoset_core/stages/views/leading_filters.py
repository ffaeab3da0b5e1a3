"""Apply the first filters of many views at once to the documents of a corpus.

Views often begin with the same filters, since a view may be chosen from another view. So the
filters form a tree. For three views

    v1    where lang = 'en'
    v2    where lang = 'en', split [0, 0.1)
    v3    where lang = 'en', split [0.1, 1)

the tree has four nodes. Each node keeps the documents that its parent and its filter keep:

    node 0    all documents
    └── node 1    where lang = 'en'         v1
        ├── node 2    split [0, 0.1)        v2
        └── node 3    split [0.1, 1)        v3

Documents are added some ten thousand at a time. For each node, the documents and tokens that it
keeps are counted. For each view, the documents that its last node keeps are written to a scratch
file, as bits: from the first to the last one that is kept, a document takes one bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.views.rules import DocumentValues, Filter, Rule
from nanoset_core.stages.views.scratch import ScratchArray

_RUNS_PER_CHUNK = 16
"""Runs of documents that `LeadingFilters.chunks` yields together; see `_KeptRun`."""


class RemainingCounts(NamedTuple):
    """What is left of a corpus after a filter."""

    documents: int
    tokens: int


class _FilterNode(NamedTuple):
    """A node of the tree, other than its root."""

    parent: int
    """Number of another node, which is smaller than its own number."""
    filter_number: int


class LeadingFilters:
    """The leading filters of some views, and which documents of a corpus they keep."""

    def __init__(self, rules: Sequence[Rule], scratch: Path) -> None:
        """Build a tree of the filters with which views begin, so that views share equal filters.

        If view A begins with the filters x, y, and view B with x, z, then the tree has the nodes

            0 (root) ── 1 (x) ─┬─ 2 (y)     path of A: 0, 1, 2
                               └─ 3 (z)     path of B: 0, 1, 3

        Args:
            rules: Rules of the views. Methods name a view by its position here.
            scratch: An empty folder for scratch files.
        """
        # Number filters and nodes in the order in which they first occur. `setdefault` returns the
        # number of an equal one, if there is one, and otherwise adds it with the next number. Nodes
        # are equal if they have the same filter and the same parent.
        number_by_filter: dict[Filter, int] = {}
        number_by_node: dict[_FilterNode, int] = {}
        self._paths: list[list[int]] = []
        """A path for each view: numbers of the nodes from the root to its last leading filter."""
        for rule in rules:
            parent = 0  # the root, which keeps all documents and has no filter
            path = [parent]
            for step in rule.leading_filters:
                filter_number = number_by_filter.setdefault(step, len(number_by_filter))
                node = _FilterNode(parent, filter_number)
                node_number = number_by_node.setdefault(node, len(number_by_node) + 1)
                path.append(node_number)
                parent = node_number
            self._paths.append(path)
        self._filters = list(number_by_filter)
        self._nodes = list(number_by_node)  # the nodes 1, 2, …

        # (n_nodes, 2) number of documents and of tokens that each node keeps, the root included
        self._counts = np.zeros((len(self._nodes) + 1, 2), np.int64)
        self._last_kept: list[NDArray[np.int64]] = []
        """The rows that each node keeps of the documents that were added last, ascending."""
        self._kept_documents: list[_KeptDocuments] = []
        """What each view keeps of the corpus, in a scratch file."""
        for number in range(len(rules)):
            self._kept_documents.append(_KeptDocuments(scratch / f"kept-{number}"))

    def add_totals(self, n_documents: int, n_tokens: int) -> None:
        """Count documents and tokens of the corpus, whether or not `add` gets them."""
        self._counts[0] += n_documents, n_tokens

    def add(self, documents: DocumentValues) -> None:
        """Apply the filters of all views to the next documents of the corpus.

        Args:
            documents: The documents. Those that no view keeps may be left out.
        """
        kept_rows = self._rows_by_node(documents)
        for node, rows in enumerate(kept_rows):
            if node > 0:  # the root is counted by `add_totals`
                n_tokens = documents.tokens[rows].sum(dtype=np.int64)
                self._counts[node] += [len(rows), n_tokens]

        # A view keeps what the last node of its path keeps.
        for path, kept_documents in zip(self._paths, self._kept_documents, strict=True):
            last_node = path[-1]
            kept_documents.add(documents.numbers[kept_rows[last_node]])
        self._last_kept = kept_rows  # for `kept`

    def _rows_by_node(self, documents: DocumentValues) -> list[NDArray[np.int64]]:
        """Return which documents each node of the tree of filters keeps, the root first.

        A node keeps those documents that its parent keeps and for which its filter is true.

        Args:
            documents: The documents.

        Returns:
            For each node the rows of documents, ascending, shape (n_kept,).
        """
        kept_rows = [np.arange(len(documents.numbers))]  # the root keeps all
        mask_by_filter: dict[int, NDArray[np.bool_]] = {}  # several nodes may have one filter
        for node in self._nodes:  # parents precede their children
            parent_rows = kept_rows[node.parent]
            if len(parent_rows) == 0:  # the filter need not be computed
                kept_rows.append(parent_rows)
                continue

            if node.filter_number not in mask_by_filter:
                node_filter = self._filters[node.filter_number]
                mask_by_filter[node.filter_number] = node_filter.mask(documents)
            mask = mask_by_filter[node.filter_number]
            if node.parent == 0:
                kept_rows.append(np.flatnonzero(mask))  # faster than to index by all rows
            else:
                kept_rows.append(parent_rows[mask[parent_rows]])
        return kept_rows

    def kept(self, view: int) -> NDArray[np.int64]:
        """Return which of the documents that were added last a view keeps.

        Returns:
            Rows of these documents, ascending, shape (n_kept,).
        """
        return self._last_kept[self._paths[view][-1]]

    def counts(self, view: int) -> Iterator[RemainingCounts]:
        """Yield the counts of the corpus, and then those after each leading filter of a view."""
        for node in self._paths[view]:
            documents, tokens = self._counts[node].tolist()
            yield RemainingCounts(documents, tokens)

    def chunks(self, view: int) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of the documents that a view keeps, ascending, in chunks.

        Args:
            view: Number of the view.
        """
        yield from self._kept_documents[view].chunks()


class _KeptRun(NamedTuple):
    """Consecutive documents of a corpus, of which a view keeps the first, the last and others."""

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
        if not len(documents):
            return
        first = int(documents[0])
        n_documents = int(documents[-1]) + 1 - first
        self._runs.append(_KeptRun(first, n_documents, self._file.size))
        is_kept = np.zeros(n_documents, np.bool_)
        is_kept[documents - first] = True
        self._file.append(np.packbits(is_kept))

    def chunks(self) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of all documents, ascending, in chunks."""
        bits = self._file.mapped()
        for start in range(0, len(self._runs), _RUNS_PER_CHUNK):
            parts = []
            for run in self._runs[start : start + _RUNS_PER_CHUNK]:
                n_bytes = -(-run.n_documents // 8)  # a bit for each document, rounded up
                run_bits = bits[run.first_byte : run.first_byte + n_bytes]
                is_kept = np.unpackbits(run_bits, count=run.n_documents)
                parts.append(run.first_document + np.flatnonzero(is_kept))
            yield np.concatenate(parts)
