"""Apply the first filters of many views at once to the documents of a corpus.

Row groups are added one by one. The documents of a row group are divided into classes that all
filters treat alike (see `classes`), and each filter is asked about classes instead of documents.
For two views over six documents:

    document                            0  1  2  3  4  5
    class                               0  2  1  0  2  2

    class                               0  1  2
    view 1 keeps (bits)                 1  0  1
    view 2 keeps (bits)                 0  0  1
    documents, tokens (counts)          2, 91   1, 20   3, 64

So view 1 keeps the documents 0, 1, 3, 4 and 5. Only the class of each document, at most two bytes,
and the bits of each view are stored in scratch files, however many views there are. Documents and
tokens that a view keeps are sums over its classes.

Two kinds of filters divide the documents:

- Conditions on columns. A column of few values divides by its values, and any other column by the
  comparisons that the conditions make. Most row groups have the same classes as the one before;
  then its answers are used again.
- Filters that look at each document, by its id or number: they divide by what they keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.views.classes import (
    DocumentClasses,
    encode_column,
    pack_codes,
    unpack_codes,
)
from nanoset_core.stages.views.filter_tree import FilterTree
from nanoset_core.stages.views.rules import GroupReader, Listed, Rule
from nanoset_core.stages.views.scratch import ScratchArray

_GROUPS_PER_CHUNK = 16
"""Row groups whose documents `Sieve.chunks` yields together."""


class RemainingCounts(NamedTuple):
    """What is left of a corpus after a filter."""

    documents: int
    tokens: int


@dataclass(frozen=True, slots=True)
class _ClassTable:
    """The classes of a row group, and which of them each filter keeps.

    Later row groups with the same classes use the table again, without asking the filters.
    """

    meaning: list[object]
    """What the classes stand for; see `DocumentClasses.meaning`."""
    has_documents: NDArray[np.bool_]
    """Whether a class had a document when the filters were asked, shape (n_classes,). The answers
    for other classes mean nothing.
    """
    answers: NDArray[np.bool_]
    """Which classes each filter keeps, shape (n_filters, n_classes)."""
    passed: NDArray[np.bool_]
    """Which classes each node of the filter tree keeps, shape (n_nodes, n_classes)."""
    counts: NDArray[np.int64]
    """Documents and tokens of each class so far, shape (n_classes, 2)."""

    @staticmethod
    def of(
        tree: FilterTree,
        classes: DocumentClasses,
        answers: NDArray[np.bool_],
    ) -> _ClassTable:
        """Return a table without counts.

        Args:
            tree: The filters.
            classes: The documents of a row group.
            answers: Which classes each filter keeps, shape (n_filters, n_classes).
        """
        return _ClassTable(
            meaning=list(classes.meaning),
            has_documents=classes.sizes > 0,
            answers=answers,
            passed=tree.passed(answers),
            counts=np.zeros((classes.count, 2), np.int64),
        )

    def fits(self, classes: DocumentClasses) -> bool:
        """Return whether the answers hold for the classes of another row group, too."""
        if classes.meaning != self.meaning:
            return False
        is_new_class = (classes.sizes > 0) & ~self.has_documents
        return not is_new_class.any()


@dataclass(frozen=True, slots=True)
class _StoredGroup:
    """Where the results of a row group are in the scratch files."""

    n_documents: int
    n_classes: int
    codes_start: int
    """First byte of the classes of its documents."""
    bits_start: int
    """First byte of the bits of its classes, those of the first view before those of the second."""


class Sieve:
    """The leading filters of some views, and which documents of a corpus they keep."""

    def __init__(self, rules: Sequence[Rule], folder: Path) -> None:
        """Prepare for the first row group.

        Args:
            rules: Of the views. Methods name a view by its position here.
            folder: An empty folder for scratch files.
        """
        self._tree = FilterTree(rules)
        comparisons = []
        for numbered in self._tree.conditions:
            comparisons += numbered.condition.comparisons
        self._comparisons = list(dict.fromkeys(comparisons))

        # Documents and tokens that each node keeps, shape (n_nodes, 2), without those that are
        # still in the counts of the current table.
        self._node_counts = np.zeros((self._tree.n_nodes, 2), np.int64)
        self._condition_table: _ClassTable | None = None
        """Answers of the conditions for the last row groups."""
        self._table: _ClassTable | None = None
        """Answers of all filters for the last row groups."""
        self._last_codes: NDArray[np.int64] = np.zeros(0, np.int64)
        """Class of each document of the last row group, shape (n_documents,)."""

        self._groups: list[_StoredGroup] = []
        self._codes_file = ScratchArray(folder / "classes", np.uint8)
        self._bits_file = ScratchArray(folder / "bits", np.uint8)
        self._bits_start = 0
        """Where the bits of the current table start."""

    def add(self, reader: GroupReader) -> None:
        """Apply the filters to the next row group, which has at least one document."""
        classes = DocumentClasses(reader.group.rows)
        table = self._apply_conditions(reader, classes)
        if self._tree.document_filters:
            table = self._apply_document_filters(reader, classes, table)
        if table is not self._table:
            self._replace_table(table)

        table.counts[:, 0] += classes.sizes
        token_sums = np.bincount(classes.codes, reader.tokens, classes.count)
        table.counts[:, 1] += token_sums.astype(np.int64)

        stored = _StoredGroup(
            reader.group.rows, classes.count, self._codes_file.size, self._bits_start
        )
        self._groups.append(stored)
        self._codes_file.append(pack_codes(classes.codes, classes.count))
        self._last_codes = classes.codes

    def _apply_conditions(self, reader: GroupReader, classes: DocumentClasses) -> _ClassTable:
        """Divide documents by the columns that the conditions need, and return their answers.

        Filters that are not conditions keep all classes.
        """
        # Read only the columns of conditions that may be true for a document, by the statistics of
        # the file.
        columns: frozenset[str] = frozenset()
        for numbered in self._tree.conditions:
            is_known = numbered.columns <= columns  # other conditions need these columns anyway
            if not is_known and numbered.condition.may_hold(reader.statistics):
                columns |= numbered.columns
        rows = reader.table(columns | {"tokens"})  # an Arrow table needs a column to have rows
        rows = rows.select([name for name in rows.schema.names if name in columns])

        classes.meaning.append(columns)
        for name in rows.schema.names:
            self._divide_by_column(name, rows, reader.results, classes)
        if self._condition_table is not None and self._condition_table.fits(classes):
            return self._condition_table

        # One document of each class answers for all of them.
        examples = rows.take(classes.examples())
        results: dict[object, Any] = {}
        answers = np.ones((self._tree.n_filters, classes.count), np.bool_)
        for numbered in self._tree.conditions:
            if numbered.columns <= columns:
                answers[numbered.number] = numbered.condition.mask(examples, results)
            else:  # by the statistics, the condition is true for no document
                answers[numbered.number] = False
        self._condition_table = _ClassTable.of(self._tree, classes, answers)
        return self._condition_table

    def _divide_by_column(
        self, name: str, rows: Any, results: dict[object, Any], classes: DocumentClasses
    ) -> None:
        """Divide documents by the values of a column, or by comparisons if it has many values."""
        codes = encode_column(rows.column(name))
        if codes is not None:
            classes.divide(codes)
            return
        for comparison in self._comparisons:
            if comparison.columns == {name}:
                classes.divide_by_mask(comparison.mask(rows, results))

    def _apply_document_filters(
        self, reader: GroupReader, classes: DocumentClasses, table: _ClassTable
    ) -> _ClassTable:
        """Divide documents by the filters that are not conditions; return the answers of all.

        Args:
            reader: The row group.
            classes: Its documents, as the conditions divide them.
            table: The answers of the conditions.
        """
        condition_codes = classes.codes  # (n_documents,)
        has_documents = classes.sizes > 0
        all_documents = np.ones(reader.group.rows, np.bool_)

        masks: dict[int, NDArray[np.bool_]] = {}  # number of a filter → documents that it keeps
        for number, step in self._tree.document_filters:
            parents = self._tree.parents_of(number)
            gets_documents = table.passed[parents][:, has_documents].any()
            # Lists of ids look at all documents, to find out which ids no document has.
            if gets_documents or isinstance(step, Listed):
                masks[number] = step.mask(reader, all_documents)
                classes.divide_by_mask(masks[number])

        # Each new class is a part of one class of the conditions.
        examples = classes.examples()  # (n_classes,)
        answers = table.answers[:, condition_codes[examples]]
        for number, mask in masks.items():
            answers[number] = mask[examples]
        return _ClassTable.of(self._tree, classes, answers)

    def _replace_table(self, table: _ClassTable) -> None:
        """Make a table the current one, and store which classes each view keeps."""
        self._add_up_counts()
        self._table = table
        self._bits_start = self._bits_file.size
        kept_by_view = table.passed[self._tree.last_nodes]  # (n_views, n_classes)
        self._bits_file.append(np.packbits(kept_by_view, axis=1).reshape(-1))

    def _add_up_counts(self) -> None:
        """Add the counts of the current table to those of the nodes, and reset them."""
        if self._table is None:
            return
        counts = self._table.counts
        if not counts.any():  # an earlier call has added them already
            return
        for node, passed in enumerate(self._table.passed):
            self._node_counts[node] += passed @ counts
        counts[:] = 0

    def kept(self, view: int) -> NDArray[np.bool_]:
        """Return which documents of the last row group a view keeps, shape (n_documents,)."""
        if self._table is None:
            raise ValueError("no row group was added")
        kept_classes = self._table.passed[self._tree.last_nodes[view]]  # (n_classes,)
        kept_documents: NDArray[np.bool_] = kept_classes[self._last_codes]
        return kept_documents

    def counts(self, view: int) -> Iterator[RemainingCounts]:
        """Yield the counts of the corpus, and then those after each leading filter of a view."""
        self._add_up_counts()
        for node in self._tree.paths[view]:
            documents, tokens = self._node_counts[node].tolist()
            yield RemainingCounts(documents, tokens)

    def chunks(self, view: int) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of the documents that a view keeps, ascending, 16 row groups a time."""
        codes = self._codes_file.mapped()
        bits = self._bits_file.mapped()
        first_document = 0
        for start in range(0, len(self._groups), _GROUPS_PER_CHUNK):
            parts = [np.empty(0, np.int64)]
            for group in self._groups[start : start + _GROUPS_PER_CHUNK]:
                kept_documents = _kept_documents(group, codes, bits, view)
                parts.append(first_document + kept_documents)
                first_document += group.n_documents
            yield np.concatenate(parts)


def _kept_documents(
    group: _StoredGroup, codes: NDArray[np.uint8], bits: NDArray[np.uint8], view: int
) -> NDArray[np.int64]:
    """Return which documents of a stored row group a view keeps, ascending.

    Args:
        group: The row group.
        codes: The file with the classes of the documents.
        bits: The file with the classes that each view keeps.
        view: Position of the view.

    Returns:
        Numbers within the row group, shape (n_kept,).
    """
    bytes_per_view = -(-group.n_classes // 8)  # a bit for each class, rounded up
    view_start = group.bits_start + view * bytes_per_view
    view_bits = bits[view_start : view_start + bytes_per_view]
    is_kept_class = np.unpackbits(view_bits, count=group.n_classes)
    if not is_kept_class.any():  # most row groups, if a view is small
        return np.empty(0, np.int64)
    document_classes = unpack_codes(codes[group.codes_start :], group.n_documents, group.n_classes)
    # `clip` is faster than the default, which checks the indices.
    return np.flatnonzero(is_kept_class.take(document_classes, mode="clip"))
