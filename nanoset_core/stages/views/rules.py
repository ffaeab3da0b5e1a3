"""The rule of a view: steps that each take documents out or repeat them, and an order.

The rule of this view has three steps, which are applied in this order:

    views:
      clean: {of: web, where: "quality >= 3", exclude: takedown.txt, tokens: 5e9}

    Listed    exclude takedown.txt
    Where     where quality >= 3
    Budget    5,000,000,000 tokens

Listed, Where, Without and HashSplit are filters: they decide about each document separately. A
Budget looks at all documents together, and a Repeat changes how often documents are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nanoset_core.document_tables.conditions import Condition
from nanoset_core.document_tables.relation import DocumentRelation
from nanoset_core.sampling.hashing import below, hash_texts, salted
from nanoset_core.stages.views.ids import Ids

LOCATION_COLUMNS = ("file", "line", "byte_offset")
"""Columns that identify a document without an id."""


class RowGroup(Protocol):
    """Up to 65,536 consecutive documents of a corpus: a row group of a Parquet file."""

    @property
    def first(self) -> int:
        """Number of the first document in the corpus."""
        ...

    @property
    def rows(self) -> int:
        """Number of documents."""
        ...

    def read(self, columns: list[str]) -> Any:
        """Return some columns as an Arrow table."""


class ShardDocuments(Protocol):
    """Consecutive documents of a corpus whose tables are opened together: those of a shard."""

    @property
    def groups(self) -> Sequence[RowGroup]:
        """The documents in parts, in order."""
        ...

    @property
    def relation(self) -> DocumentRelation:
        """The tables of all these documents, for conditions."""
        ...


class GroupReader:
    """Reads a row group for the filters of many views: each column is read once, when needed."""

    def __init__(
        self,
        group: RowGroup,
        condition_masks: Mapping[Condition, NDArray[np.bool_]] | None = None,
    ) -> None:
        """Prepare to read a row group.

        Args:
            group: The row group.
            condition_masks: Condition → the documents that it is true of, shape (n_documents,). The
                filters `Where` need them.
        """
        self.group = group
        self.condition_masks = condition_masks or {}
        self._columns: dict[str, Any] = {}
        self._hashes: dict[str, NDArray[np.uint64]] = {}

    def table(self, columns: frozenset[str]) -> Any:
        """Return some columns of the row group, which are read unless they were read before.

        Args:
            columns: Names of columns.

        Returns:
            An Arrow table with these columns in alphabetical order, without those that do not
            exist.
        """
        import pyarrow as pa

        unread = sorted(columns - self._columns.keys())
        if unread:
            table = self.group.read(unread)
            self._columns |= {name: table.column(name) for name in table.schema.names}
        names = [name for name in sorted(columns) if name in self._columns]
        return pa.table({name: self._columns[name] for name in names})

    def strings(self, name: str) -> Any:
        """Return a column as one Arrow array of strings."""
        import pyarrow as pa

        column = self.table(frozenset({name})).column(name)
        return column.cast(pa.large_string()).combine_chunks()

    @cached_property
    def tokens(self) -> NDArray[np.int32]:
        """Number of tokens of each document, shape (n_documents,)."""
        column = self.table(frozenset({"tokens"})).column("tokens")
        return np.asarray(column.to_numpy())

    def hashes(self, column: str = "id") -> NDArray[np.uint64]:
        """Return a hash of each document's value of a column, shape (n_documents,).

        A document whose value is null has the hash of its file, line and byte offset.
        """
        if column not in self._hashes:
            self._hashes[column] = self._compute_hashes(column)
        return self._hashes[column]

    def _compute_hashes(self, column: str) -> NDArray[np.uint64]:
        """Hash each document's value of a column, or its location if the value is null.

        Args:
            column: Name of the column.

        Returns:
            A hash of each document, shape (n_documents,).
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        values = self.strings(column)
        hashes = hash_texts(values)
        if not values.null_count:
            return hashes

        # Documents without a value are identified by their file, line and byte offset instead.
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(is_null)  # (n_nulls,)
        location_parts = [self.strings(name).take(pa.array(rows)) for name in LOCATION_COLUMNS]
        separator = pa.scalar("\n", pa.large_string())
        locations = pc.binary_join_element_wise(*location_parts, separator)
        hashes[rows] = hash_texts(locations)
        return hashes


@dataclass(frozen=True, slots=True)
class Where:
    """Keeps the documents for which a condition is true.

    Views with equal conditions share the work: their names do not matter.
    """

    view: str = field(compare=False)
    condition: Condition

    @property
    def text(self) -> str:
        """The step in words."""
        return f"where {self.condition.text}"

    def mask(self, reader: GroupReader) -> NDArray[np.bool_]:
        """Return which documents of a row group the condition is true for, shape (n_documents,)."""
        return reader.condition_masks[self.condition]


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Keeps the documents whose ids are listed, or all other documents."""

    view: str
    ids: Ids
    keep: bool
    """True keeps the listed documents (`include`), False the others (`exclude`)."""
    text: str
    """The step in words."""

    def mask(self, reader: GroupReader) -> NDArray[np.bool_]:
        """Return which documents of a row group are kept, shape (n_documents,).

        Call it for each row group, so that `ids` knows in the end which ids no document has.
        """
        texts = reader.strings("id")
        is_listed = self.ids.mask(texts, hash_texts(texts))
        return is_listed if self.keep else ~is_listed


@dataclass(frozen=True, slots=True, eq=False)
class Without:
    """Removes documents by their numbers."""

    view: str
    documents: NDArray[np.int64]
    """Numbers in the corpus, ascending, shape (n_removed,)."""
    text: str
    """The step in words."""

    def mask(self, reader: GroupReader) -> NDArray[np.bool_]:
        """Return which documents of a row group are kept, shape (n_documents,)."""
        # The documents to remove that are in this row group.
        first_document = reader.group.first
        stop_document = first_document + reader.group.rows
        start, stop = np.searchsorted(self.documents, [first_document, stop_document])
        removed = self.documents[start:stop] - first_document  # numbers within the row group

        is_kept = np.ones(reader.group.rows, np.bool_)
        is_kept[removed] = False
        return is_kept


@dataclass(frozen=True, slots=True)
class HashSplit:
    """Keeps the documents whose hashes are in a range.

    Whether a document is kept depends on its own hash alone, and does not change if documents are
    appended to the corpus.
    """

    view: str = field(compare=False)
    by: str
    """Column that is hashed: documents with equal values are either all kept, or none."""
    start: float
    """Start of the range, as a share of all hashes, 0 to 1."""
    stop: float
    """End of the range, as a share of all hashes."""

    @property
    def text(self) -> str:
        """The step in words."""
        return f"split by {self.by}, [{self.start:g}, {self.stop:g})"

    def mask(self, reader: GroupReader) -> NDArray[np.bool_]:
        """Return which documents of a row group are kept, shape (n_documents,)."""
        hashes = salted(reader.hashes(self.by), "split")
        is_kept = below(hashes, self.stop)
        if self.start > 0:
            is_kept &= ~below(hashes, self.start)
        return is_kept


@dataclass(frozen=True, slots=True)
class Budget:
    """Keeps documents in the order of their hashes until the next one would exceed a limit."""

    view: str
    unit: str
    """`documents` or `tokens`."""
    limit: int

    @property
    def text(self) -> str:
        """The step in words."""
        return f"{self.limit:,} {self.unit}"


@dataclass(frozen=True, slots=True)
class Repeat:
    """Repeats every document.

    With `times` = 2.3, every document has two copies, and 30 % of them, chosen by a hash, a third.
    """

    view: str
    times: float

    @property
    def text(self) -> str:
        """The step in words."""
        return f"repeat {self.times:g}"


@dataclass(frozen=True, slots=True)
class ViewOrder:
    """An order of documents other than the one in which they are stored."""

    by: str | None = None
    """Column by which they are sorted."""
    descending: bool = False
    seed: int | None = None
    """Seed by which they are shuffled. Either this or `by` is set."""


Filter = Where | Listed | Without | HashSplit
Step = Filter | Budget | Repeat
FILTERS = (Where, Listed, Without, HashSplit)


@dataclass(frozen=True, slots=True)
class Rule:
    """How a view is chosen from its corpus.

    If a view is chosen from another view, the rule starts with the steps of that one.
    """

    steps: tuple[Step, ...] = ()
    """In the order in which they are applied; `view` of each is the view that it belongs to."""
    order: ViewOrder | None = None
    """None if documents stay in the order in which they are stored."""

    @property
    def leading_filters(self) -> tuple[Filter, ...]:
        """The filters before the first budget or repeat: they can be applied while reading."""
        filters: list[Filter] = []
        for step in self.steps:
            if not isinstance(step, FILTERS):
                break
            filters.append(step)
        return tuple(filters)

    @property
    def needs_hashes(self) -> bool:
        """Whether hashes of the documents are needed after the leading filters were applied."""
        is_shuffled = self.order is not None and self.order.seed is not None
        return is_shuffled or len(self.leading_filters) < len(self.steps)


@dataclass(slots=True)
class StepCount:
    """What is left of a corpus after a step."""

    view: str
    """The view that the step belongs to; empty for the corpus itself."""
    step: str
    """The step in words."""
    documents: int = 0
    """Number of documents, counting each copy."""
    tokens: int = 0
    """Number of their tokens, counting each copy."""

    def add(self, documents: int, tokens: int) -> None:
        """Add documents and tokens to the counts."""
        self.documents += documents
        self.tokens += tokens
