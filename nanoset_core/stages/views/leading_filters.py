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

Row groups are added one by one. For each node, the documents and tokens that it keeps are counted.
For each view, a scratch file gets a bit for each document: whether the last node of the view keeps
it. If a view keeps no document of a row group, nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.views.rules import Filter, GroupReader, Listed, Rule
from nanoset_core.stages.views.scratch import ScratchArray

_GROUPS_PER_CHUNK = 16
"""Row groups whose documents `LeadingFilters.chunks` yields together."""


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
        """Build the tree of the filters, in which views share the nodes of filters they share.

        Args:
            rules: Rules of the views. Methods name a view by its position here.
            scratch: An empty folder for scratch files.
        """
        # Equal filters get the same number. Nodes with the same filter and parent are one node, and
        # get the same number, too. `setdefault` returns the number of one that is known.
        number_by_filter: dict[Filter, int] = {}
        number_by_node: dict[_FilterNode, int] = {}
        self._paths: list[list[int]] = []
        """Of each view, the numbers of the nodes from the root to its last leading filter."""
        for rule in rules:
            path = [0]
            for step in rule.leading_filters:
                filter_number = number_by_filter.setdefault(step, len(number_by_filter))
                node = _FilterNode(path[-1], filter_number)
                path.append(number_by_node.setdefault(node, len(number_by_node) + 1))
            self._paths.append(path)
        self._filters = list(number_by_filter)
        self._nodes = list(number_by_node)  # the nodes 1, 2, …

        # Documents and tokens that each node keeps, shape (n_nodes, 2).
        self._counts = np.zeros((len(self._nodes) + 1, 2), np.int64)
        self._group_sizes: list[int] = []
        self._last_masks: list[NDArray[np.bool_]] = []
        """Documents of the last row group that each node keeps, shape (n_documents,)."""
        self._kept_documents = [_KeptDocuments(scratch / f"kept-{n}") for n in range(len(rules))]

    def add(self, reader: GroupReader) -> None:
        """Apply the filters of all views to the next row group of the corpus's tables.

        Args:
            reader: The row group: some consecutive documents.
        """
        # Of each node of the tree, which documents it keeps: those of its parent for which its
        # filter is true. The root, node 0, keeps all. A parent precedes its children.
        masks = [np.ones(reader.group.rows, np.bool_)]  # each (n_documents,)
        mask_by_filter: dict[int, NDArray[np.bool_]] = {}  # several nodes may have the same filter
        for node in self._nodes:
            parent_mask = masks[node.parent]
            number = node.filter_number
            step = self._filters[number]
            # Lists of ids look at all documents, to find out which ids no document has.
            if parent_mask.any() or isinstance(step, Listed):
                if number not in mask_by_filter:
                    mask_by_filter[number] = step.mask(reader)
                masks.append(parent_mask & mask_by_filter[number])
            else:
                masks.append(parent_mask)

        # Count what each node keeps. The root keeps all documents, which need no mask.
        self._counts[0] += reader.group.rows, reader.tokens.sum(dtype=np.int64)
        for number, mask in enumerate(masks[1:], start=1):
            n_kept = np.count_nonzero(mask)
            if n_kept:
                self._counts[number, 0] += n_kept
                self._counts[number, 1] += reader.tokens[mask].sum(dtype=np.int64)

        # A view keeps what the last node of its path keeps.
        for path, kept in zip(self._paths, self._kept_documents, strict=True):
            kept.add(masks[path[-1]])
        self._group_sizes.append(reader.group.rows)
        self._last_masks = masks

    def kept(self, view: int) -> NDArray[np.bool_]:
        """Return which documents of the last row group a view keeps, shape (n_documents,)."""
        return self._last_masks[self._paths[view][-1]]

    def counts(self, view: int) -> Iterator[RemainingCounts]:
        """Yield the counts of the corpus, and then those after each leading filter of a view."""
        for node in self._paths[view]:
            documents, tokens = self._counts[node].tolist()
            yield RemainingCounts(documents, tokens)

    def chunks(self, view: int) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of the documents that a view keeps, ascending.

        Args:
            view: Number of the view.

        Yields:
            Numbers in the corpus, of the documents of 16 row groups each time.
        """
        kept = self._kept_documents[view]
        bits = kept.bits()
        all_groups = range(len(self._group_sizes))
        first_document = 0
        for start in range(0, len(all_groups), _GROUPS_PER_CHUNK):
            parts = [np.empty(0, np.int64)]
            for group in all_groups[start : start + _GROUPS_PER_CHUNK]:
                n_documents = self._group_sizes[group]
                parts.append(first_document + kept.documents(bits, group, n_documents))
                first_document += n_documents
            yield np.concatenate(parts)


class _KeptDocuments:
    """Which documents of each row group a view keeps, as bits in a scratch file."""

    def __init__(self, path: Path) -> None:
        """Describe the file; it is created when a document is kept."""
        self._file = ScratchArray(path, np.uint8)
        self._starts: list[int | None] = []
        """First byte of each row group; None if the view keeps no document of it."""

    def add(self, mask: NDArray[np.bool_]) -> None:
        """Append a row group, given which of its documents are kept, shape (n_documents,)."""
        if not mask.any():
            self._starts.append(None)
            return
        self._starts.append(self._file.size)
        self._file.append(np.packbits(mask))

    def bits(self) -> NDArray[np.uint8]:
        """Return the content of the file, mapped into memory."""
        return self._file.mapped()

    def documents(self, bits: NDArray[np.uint8], group: int, n_documents: int) -> NDArray[np.int64]:
        """Return which documents of a row group are kept.

        Args:
            bits: The content of the scratch file, as `bits` returned it.
            group: Number of the row group.
            n_documents: Number of documents of the row group.

        Returns:
            Numbers within the row group, ascending, shape (n_kept,).
        """
        start = self._starts[group]
        if start is None:
            return np.empty(0, np.int64)
        n_bytes = -(-n_documents // 8)  # a bit for each document, rounded up
        mask = np.unpackbits(bits[start : start + n_bytes], count=n_documents)
        return np.flatnonzero(mask)
