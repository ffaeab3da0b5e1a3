"""What a view says of its documents, as steps: filters, budgets and repeats, one after the other,
and an order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from nanoset_core.sampling.hashing import below, hash_texts, salted
from nanoset_core.stages.views.conditions import Condition, Range
from nanoset_core.stages.views.ids import Ids

KEY = ("file", "line", "byte_offset")
"""What names a document that has no id of its own."""


class Group(Protocol):
    """A row group: up to 65,536 documents of a corpus, in order."""

    first: int
    """Number of its first document."""
    rows: int
    """Documents."""

    def read(self, columns: list[str]) -> Any:
        """Return some columns as an Arrow table."""

    def statistics(self) -> Mapping[str, Range]:
        """Return what is known of the columns without reading them."""


class Rows:
    """The documents of a row group; each column is read when it is first asked for."""

    def __init__(self, group: Group) -> None:
        self.group, self.known = group, dict[object, Any]()
        self._columns: dict[str, Any] = {}

    def table(self, columns: frozenset[str]) -> Any:
        """Return some columns as an Arrow table."""
        import pyarrow as pa

        missing = sorted(columns - self._columns.keys())
        if missing:
            table = self.group.read(missing)
            self._columns |= {name: table.column(name) for name in table.schema.names}
        return pa.table(
            {name: self._columns[name] for name in sorted(columns) if name in self._columns}
        )

    def column(self, name: str) -> Any:
        """Return a column as one Arrow array of strings."""
        import pyarrow as pa

        column = self.table(frozenset({name})).column(name)
        return column.cast(pa.large_string()).combine_chunks()

    @cached_property
    def tokens(self) -> NDArray[np.int32]:
        """Tokens of each document, int32."""
        return np.asarray(self.table(frozenset({"tokens"})).column("tokens").to_numpy())

    @cached_property
    def statistics(self) -> Mapping[str, Range]:
        """What is known of the columns without reading them."""
        return self.group.statistics()

    def keys(self, column: str = "id") -> NDArray[np.uint64]:
        """Return a hash of each document by a column, where that is null by its file and line;
        uint64.
        """
        if ("keys", column) not in self.known:
            self.known["keys", column] = self._keys(column)
        found: NDArray[np.uint64] = self.known["keys", column]
        return found

    def _keys(self, column: str) -> NDArray[np.uint64]:
        import pyarrow as pa
        import pyarrow.compute as pc

        values = self.column(column)
        keys = hash_texts(values)
        if values.null_count:
            rows = pa.array(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)))
            parts = [self.column(name).take(rows) for name in KEY]
            keys[rows.to_numpy()] = hash_texts(
                pc.binary_join_element_wise(*parts, pa.scalar("\n", pa.large_string()))
            )
        return keys


@dataclass(frozen=True, slots=True)
class Where:
    """Keeps documents of which a condition is true."""

    name: str = field(compare=False)
    condition: Condition

    @property
    def text(self) -> str:
        """The rule in words."""
        return f"where {self.condition.text}"

    def mask(self, rows: Rows, alive: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which documents of a row group it keeps."""
        if not alive.any() or not self.condition.may_hold(rows.statistics):
            return np.zeros(len(alive), np.bool_)
        return self.condition.mask(rows.table(self.condition.columns), rows.known)


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Keeps documents whose ids are listed, or all others."""

    name: str
    ids: Ids
    keep: bool
    text: str

    def mask(self, rows: Rows, alive: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which documents of a row group it keeps; ids are looked up in all of them, to find
        them all.
        """
        found = self.ids.mask(rows.column("id"), hash_texts(rows.column("id")))
        return found if self.keep else ~found


@dataclass(frozen=True, slots=True, eq=False)
class Without:
    """Leaves documents out by their numbers, int64, ascending."""

    name: str
    documents: NDArray[np.int64]
    text: str

    def mask(self, rows: Rows, alive: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which documents of a row group it keeps."""
        first = rows.group.first
        begin, end = np.searchsorted(self.documents, (first, first + len(alive)))
        kept = np.ones(len(alive), np.bool_)
        kept[self.documents[begin:end] - first] = False
        return kept


@dataclass(frozen=True, slots=True)
class Split:
    """Keeps a share of the documents by the hash of a column: a document never changes sides."""

    name: str = field(compare=False)
    by: str
    begin: float
    end: float

    @property
    def text(self) -> str:
        """The rule in words."""
        return f"split by {self.by}, [{self.begin:g}, {self.end:g})"

    def mask(self, rows: Rows, alive: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which documents of a row group it keeps."""
        if not alive.any():
            return alive
        keys = salted(rows.keys(self.by), "split")
        return (
            below(keys, self.end) & ~below(keys, self.begin)
            if self.begin > 0
            else below(keys, self.end)
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """Keeps documents in the order of their hashes until one would exceed a number of documents or
    tokens.
    """

    name: str
    unit: str
    most: int

    @property
    def text(self) -> str:
        """The rule in words."""
        return f"{self.most:,} {self.unit}"


@dataclass(frozen=True, slots=True)
class Repeat:
    """Gives every document so often; of a fraction, that share of the documents once more."""

    name: str
    times: float

    @property
    def text(self) -> str:
        """The rule in words."""
        return f"repeat {self.times:g}"


@dataclass(frozen=True, slots=True)
class Order:
    """In which order documents are given, where not as they are stored."""

    by: str | None = None
    descending: bool = False
    seed: int | None = None


Filter = Where | Listed | Without | Split
Step = Filter | Budget | Repeat
FILTERS = (Where, Listed, Without, Split)


@dataclass(frozen=True, slots=True)
class Rule:
    """All that leads from a corpus to a view: the steps of the views that it is of, and its own."""

    steps: tuple[Step, ...] = ()
    """`name` of each is the view that it belongs to."""
    order: Order | None = None

    @property
    def leading(self) -> tuple[Filter, ...]:
        """The filters before the first step that looks at all documents."""
        first = next(
            (n for n, step in enumerate(self.steps) if not isinstance(step, FILTERS)),
            len(self.steps),
        )
        return cast("tuple[Filter, ...]", self.steps[:first])

    @property
    def needs_keys(self) -> bool:
        """Whether hashes of the chosen documents are needed after they were read."""
        return len(self.leading) < len(self.steps) or (
            self.order is not None and self.order.seed is not None
        )


@dataclass(slots=True)
class Left:
    """What a step left."""

    view: str
    step: str
    documents: int = 0
    tokens: int = 0

    def add(self, documents: int, tokens: int) -> None:
        """Count some more."""
        self.documents += documents
        self.tokens += tokens
