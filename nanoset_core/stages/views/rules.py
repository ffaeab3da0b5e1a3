"""The rule of a view: steps that each take documents out or repeat them, and an order.

The rule of this view has three steps, which are applied in this order:

    views:
      clean: {of: web, where: "quality >= 3", exclude: takedown.txt, tokens: 5e9}

    Listed    exclude takedown.txt
    Where     where quality >= 3
    Budget    5,000,000,000 tokens

Listed, Where, Without and HashSplit are filters: they decide about each document separately. A Top
and a Budget look at all documents together, and a Repeat changes how often documents are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nanoset_core.document_tables.conditions import Condition
from nanoset_core.document_tables.relation import DocumentRelation
from nanoset_core.document_tables.scan import LOCATION_COLUMNS, TOKENS_COLUMN, ScannedRows
from nanoset_core.stages.views.ids import Ids
from nanoset_core.statistics.hashing import below, hash_texts, salted


class ShardDocuments(Protocol):
    """Consecutive documents of a corpus that one query reads: those of one or several shards."""

    @property
    def first(self) -> int:
        """Number of the first document in the corpus."""
        ...

    @property
    def n_documents(self) -> int:
        """Number of documents."""
        ...

    @property
    def n_tokens(self) -> int:
        """Number of tokens of all documents together."""
        ...

    @property
    def relation(self) -> DocumentRelation:
        """The tables of these documents."""
        ...


class DocumentValues:
    """Some documents of a corpus, and the values of their columns that the filters of views need.

    A value that several views need, such as the hash of each id, is computed once.
    """

    def __init__(
        self,
        first_document: int,
        scanned: ScannedRows,
        numbers_by_ids: Mapping[Ids, NDArray[np.int64]] | None = None,
    ) -> None:
        """Describe some documents that were read from a table, with the values of their columns.

        Args:
            first_document: Number in the corpus of the table's first document.
            scanned: What a query has read: rows of the table, and their values.
            numbers_by_ids: Set of ids, which a view includes or excludes → numbers in the corpus of
                all documents of the table that have one of them, ascending. For example, the ids
                {"d12", "d30"} → [40, 97].
        """
        self.numbers: NDArray[np.int64] = first_document + scanned.rows
        """Numbers in the corpus, ascending, shape (n_documents,)."""
        self.columns = scanned.columns
        """Name of each column → its values, an Arrow array of shape (n_documents,)."""
        self.condition_masks = scanned.condition_masks
        """Condition → the documents that it is true of, shape (n_documents,)."""
        self.numbers_by_ids = numbers_by_ids or {}
        """Set of ids → numbers in the corpus of documents that have one of them, ascending."""
        self._hashes: dict[str, NDArray[np.uint64]] = {}

    def strings(self, name: str) -> Any:
        """Return a column as texts. Other values, such as the integer 17, are converted: "17".

        Args:
            name: Name of the column.

        Returns:
            A pyarrow.Array of large_string, shape (n_documents,); values that are missing are null.
        """
        import pyarrow as pa

        return self.columns[name].cast(pa.large_string())

    @cached_property
    def tokens(self) -> NDArray[np.int32]:
        """Number of tokens of each document, shape (n_documents,)."""
        return np.asarray(self.columns[TOKENS_COLUMN].to_numpy())

    def hashes(self, column: str = "id") -> NDArray[np.uint64]:
        """Return a hash of each document's value of a column, to choose documents at random.

        For example, the documents with the lowest 10 % of hashes are a random tenth of them, and
        always the same. A document without a value has the hash of the line of the raw text that it
        is from.

        Args:
            column: Name of the column.

        Returns:
            uint64, shape (n_documents,). Equal values have equal hashes.
        """
        if column not in self._hashes:
            self._hashes[column] = self._compute_hashes(column)
        return self._hashes[column]

    def _compute_hashes(self, column: str) -> NDArray[np.uint64]:
        """Hash each document's value of a column, or its location if it has no value.

        All documents without a value would have the same hash otherwise, and would always be chosen
        together. Their location is the file, line and byte offset that they were read from.

        Args:
            column: Name of the column, such as `id`.

        Returns:
            uint64, shape (n_documents,).
        """
        values = self.strings(column)
        hashes = hash_texts(values)
        if values.null_count > 0:
            is_null = values.is_null().to_numpy(zero_copy_only=False)
            rows = np.flatnonzero(is_null)  # (n_nulls,)
            hashes[rows] = hash_texts(self._locations(rows))
        return hashes

    def _locations(self, rows: NDArray[np.int64]) -> Any:
        """Return from where some documents were read, such as "web/part-0.jsonl\\n17\\n4096".

        Args:
            rows: Rows of the documents, shape (n_rows,).

        Returns:
            A pyarrow.Array of the file, line and byte offset of each document, shape (n_rows,).
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = [self.strings(name).take(pa.array(rows)) for name in LOCATION_COLUMNS]
        separator = pa.scalar("\n", pa.large_string())
        return pc.binary_join_element_wise(*columns, separator)


def _is_among(numbers: NDArray[np.int64], listed: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For each of some numbers, return whether it is in a list; shape (n_numbers,).

        numbers    3      5      8           list    1    5    7    9
        result     False  True   False

    Args:
        numbers: The numbers, ascending, shape (n_numbers,); many, such as 10,000.
        listed: The list, ascending, shape (n_listed,); often short.
    """
    is_listed = np.zeros(len(numbers), np.bool_)
    if len(numbers) == 0:
        return is_listed
    # The list is short, so its entries are looked up among the numbers, not the other way round.
    entries = _entries_between(numbers[0], numbers[-1], listed)  # [5, 7]
    positions = np.searchsorted(numbers, entries)  # [1, 2], the first numbers not below: 5 and 8
    is_equal = numbers[positions] == entries  # [True, False]
    is_listed[positions[is_equal]] = True
    return is_listed


def _entries_between(first: int, last: int, ascending: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the entries of a sorted array from one number to another, both included.

    From 3 to 8, these are [5, 7] in [1, 5, 7, 9].
    """
    start = np.searchsorted(ascending, first)
    stop = np.searchsorted(ascending, last, side="right")
    return ascending[start:stop]


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

    def mask(self, documents: DocumentValues) -> NDArray[np.bool_]:
        """For each document, return whether the condition is true for it.

        Args:
            documents: The documents. The query that read them has evaluated the condition.

        Returns:
            bool, shape (n_documents,).
        """
        return documents.condition_masks[self.condition]


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Keeps the documents whose ids are listed, or all other documents."""

    view: str
    id_sets: tuple[Ids, ...]
    """A document is listed if any of these sets has its id."""
    keep: bool
    """True keeps the listed documents (`include`), False the others (`exclude`)."""
    text: str
    """The step in words."""

    def mask(self, documents: DocumentValues) -> NDArray[np.bool_]:
        """For each document, return whether it is kept, by its id.

        A document has an id, such as "d12", and a number, which is its position in the corpus. Ids
        were looked up before, so only numbers are compared:

            numbers of the documents                      95     96     97
            numbers of those with listed ids              40, 97
            kept by `include`                             no     no     yes

        Args:
            documents: The documents, and the numbers of those that have a listed id.

        Returns:
            bool, shape (n_documents,).
        """
        is_listed = np.zeros(len(documents.numbers), np.bool_)
        for ids in self.id_sets:
            listed_numbers = documents.numbers_by_ids[ids]
            is_listed |= _is_among(documents.numbers, listed_numbers)
        if self.keep:  # `include`
            return is_listed
        return ~is_listed  # `exclude`


@dataclass(frozen=True, slots=True, eq=False)
class Without:
    """Removes documents by their numbers."""

    view: str
    documents: NDArray[np.int64]
    """Numbers in the corpus, ascending, shape (n_removed,)."""
    text: str
    """The step in words."""

    def mask(self, documents: DocumentValues) -> NDArray[np.bool_]:
        """For each document, return whether it is kept: its number is not one to be removed.

        Args:
            documents: The documents, with their numbers in the corpus.

        Returns:
            bool, shape (n_documents,).
        """
        return ~_is_among(documents.numbers, self.documents)


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
    seed: int | None = None
    """Seed of the hash."""

    @property
    def text(self) -> str:
        """The step in words."""
        seed_text = "" if self.seed is None else f", seed {self.seed}"
        return f"split by {self.by}, [{self.start:g}, {self.stop:g}){seed_text}"

    def mask(self, documents: DocumentValues) -> NDArray[np.bool_]:
        """For each document, return whether its hash is in the part of all hashes that is kept.

        A hash is a number below 2**64 that looks random. For the part from 0.1 to 0.3, these are
        the hashes from 0.1 * 2**64 to 0.3 * 2**64, which about a fifth of all documents have.

        Args:
            documents: The documents, whose values of the column `by` are hashed.

        Returns:
            bool, shape (n_documents,).
        """
        # With each seed, documents have other hashes, so that another fifth of them is kept.
        name = "split" if self.seed is None else f"split {self.seed}"
        hashes = salted(documents.hashes(self.by), name)  # hashed again, together with the name

        is_kept = below(hashes, self.stop)  # hash < 0.3 * 2**64
        if self.start > 0:
            is_kept &= ~below(hashes, self.start)  # and not hash < 0.1 * 2**64
        return is_kept


@dataclass(frozen=True, slots=True)
class Top:
    """Keeps the documents with the best values of a column until the next one exceeds a limit.

    Documents with equal values are taken in the order of their hashes, as by a `Budget`. Documents
    without a value are not kept.
    """

    view: str
    by: str
    """A column of numbers."""
    unit: str
    """`documents` or `tokens`: what is limited."""
    limit: int | None = None
    share: float | None = None
    """Share of the documents that have a value, 0 to 1. Either this or `limit` is set."""
    ascending: bool = False
    """Whether the lowest values are the best ones."""

    @property
    def text(self) -> str:
        """The step in words."""
        if self.limit is None:
            percent = (Decimal(repr(self.share)) * 100).normalize()
            amount = f"{percent:f} % of the documents"
        else:
            amount = f"{self.limit:,} {self.unit}"
        text = f"top {amount} by {self.by}"
        return f"{text}, lowest first" if self.ascending else text


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
Step = Filter | Top | Budget | Repeat
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
        """The filters before the first step of another kind: they can be applied while reading."""
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
        """Count more documents that are left after the step.

        Args:
            documents: Their number, counting each copy.
            tokens: The number of their tokens, counting each copy.
        """
        self.documents += documents
        self.tokens += tokens
