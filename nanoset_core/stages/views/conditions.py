"""Conditions on columns of documents, as SQL writes them after WHERE: parsed by sqlglot, computed
by pyarrow.

Where a value is null, a comparison is neither true nor false, as in SQL; only documents for which
the whole condition is true are chosen.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError

_EXPECTED = "comparisons of a column with a value, `in`, `is null` and `is not null`, joined by and, or, not"
_COMPARED: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "EQ": ("equal", operator.eq),
    "NEQ": ("not_equal", operator.ne),
    "GT": ("greater", operator.gt),
    "GTE": ("greater_equal", operator.ge),
    "LT": ("less", operator.lt),
    "LTE": ("less_equal", operator.le),
}
"""Name of sqlglot's node → (pyarrow's function, Python's)."""
MOST_LISTED = 20_000
"""Values that one condition may list."""
_MOST_CHARACTERS = 2_000_000
_MOST_VALUES = 1024
"""Of a column whose values are told apart."""
_MIRRORED = {"GT": "LT", "GTE": "LTE", "LT": "GT", "LTE": "GTE"}


class Range(NamedTuple):
    """What the statistics of a row group say of a column."""

    low: Any
    high: Any
    """Least and greatest value; None where that is not known."""
    nulls: int | None
    rows: int


@dataclass(frozen=True, slots=True)
class _Node:
    """One operation: `and`, `or`, `not`, `null`, `in`, or the name of a comparison."""

    kind: str
    parts: tuple[_Node, ...] = ()
    column: str = ""
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that was parsed."""

    text: str = field(compare=False)
    """As it was given."""
    where: str = field(compare=False)
    """The setting that holds it, for messages."""
    _root: _Node

    @property
    def columns(self) -> frozenset[str]:
        """The columns that it names."""
        return frozenset(node.column for node in _all(self._root) if node.column)

    @property
    def comparisons(self) -> Iterator[Condition]:
        """Yield its parts that look at a column, and whether that is null: of rows where these are
        alike, it is.
        """
        for node in _all(self._root):
            if node.column:
                yield from (
                    replace(self, _root=one) for one in (_Node("null", (), node.column), node)
                )

    def mask(self, rows: Any, known: dict[object, Any] | None = None) -> NDArray[np.bool_]:
        """Return for which rows of a table it is true, bool, shape (rows,).

        `known` holds what other conditions computed of the same rows. ConfigError where a column is
        not there, or cannot be compared with a value.
        """
        import pyarrow.compute as pc

        found = self._computed(self._root, rows, {} if known is None else known)
        whole = pc.fill_null(found, False) if found.null_count else found
        plain: NDArray[np.bool_] = whole.to_numpy(zero_copy_only=False)
        return plain

    def may_hold(self, statistics: Mapping[str, Range]) -> bool:
        """Return whether it may be true of a row, given statistics of some of its columns."""
        return _outcomes(self._root, statistics)[0]

    def check(self, schema: Any) -> None:
        """Raise ConfigError where it names a column that a schema has not, or compares it with
        another type.
        """
        self.mask(schema.empty_table())

    def _computed(self, node: _Node, rows: Any, known: dict[object, Any]) -> Any:
        if node not in known:
            known[node] = self._compute(node, rows, known)
        return known[node]

    def _compute(self, node: _Node, rows: Any, known: dict[object, Any]) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        parts = [self._computed(part, rows, known) for part in node.parts]
        if node.kind in ("and", "or"):
            return getattr(pc, f"{node.kind}_kleene")(*parts)
        if node.kind == "not":
            return pc.invert(parts[0])
        if node.column not in rows.schema.names:
            raise self._refused(
                "no such column", node.column, f"one of {', '.join(rows.schema.names)}"
            )
        column = _whole(rows.column(node.column))
        codes = column.indices if pa.types.is_dictionary(column.type) else None
        values = column if codes is None else column.dictionary
        try:
            if node.kind == "null":
                return pc.is_null(column)
            found = self._compared(node, values)
        except (
            pa.ArrowInvalid,
            pa.ArrowNotImplementedError,
            pa.ArrowTypeError,
            OverflowError,
        ) as error:
            expected = "a value of the column's type"
            raise self._refused(
                f"{node.column} holds {values.type}", f"{node.values}", expected
            ) from error
        return found if codes is None else pc.take(found, codes)

    def _compared(self, node: _Node, values: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_null(values.type):
            return pa.nulls(len(values), pa.bool_())
        if any(isinstance(value, str) != _is_text(values.type) for value in node.values):
            raise pa.ArrowInvalid("another type")
        if node.kind != "in":
            return getattr(pc, _COMPARED[node.kind][0])(values, pa.scalar(node.values[0]))
        among = pa.array(node.values)
        if pa.types.is_floating(values.type) or pa.types.is_floating(among.type):
            values, among = values.cast(pa.float64()), among.cast(pa.float64())
        inside = pc.is_in(values, value_set=among.cast(values.type))
        return pc.if_else(pc.is_valid(values), inside, pa.scalar(None, pa.bool_()))

    def _refused(self, what: str, found: str, expected: str) -> ConfigError:
        remedy = "correct the condition, or give the column by documents.columns or attributes"
        return ConfigError(
            f"the condition cannot be computed: {what}",
            where=self.where,
            found=found,
            expected=expected,
            remedy=remedy,
        )


def parse_condition(text: str, where: str) -> Condition:
    """Parse a condition; ConfigError, which says `where`, for what is none, or holds too many
    values.
    """
    from sqlglot.errors import SqlglotError

    # sqlglot takes 0.1 ms for a value: 200,000 ids in `in (…)` took a minute and a half of every
    # command.
    n_values = text.count(",") + 1
    if n_values > MOST_LISTED or len(text) > _MOST_CHARACTERS:
        raise ConfigError(
            "this condition lists too many values",
            where=where,
            found=f"about {n_values:,} values in {len(text):,} characters",
            expected=f"at most {MOST_LISTED:,} values and {_MOST_CHARACTERS:,} characters",
            remedy="write ids into a file, one a line, and name it in `include` or `exclude` of the view; of other "
            "columns give a table by `attributes` with a column that says which documents are meant",
        )
    try:
        return Condition(text, where, _parsed(text))
    except (SqlglotError, ValueError, RecursionError) as error:
        found = str(error).splitlines()[0][:300] if str(error) else repr(error)
        remedy = (
            "write it as in quality >= 3 and lang = 'en'; quote a column as \"a b\", a text as 'en'"
        )
        what = "this is not a condition on documents"
        raise ConfigError(
            what, where=where, found=f"{text!r}: {found}", expected=_EXPECTED, remedy=remedy
        ) from error


@lru_cache(maxsize=64)
def _parsed(text: str) -> _Node:
    """Return what a condition says; kept, since settings are checked and used by different callers."""
    import sqlglot

    return _node(sqlglot.parse_one(text, dialect="duckdb"))


def _node(tree: Any) -> _Node:
    from sqlglot import exp

    kind = type(tree).__name__
    if isinstance(tree, exp.Paren):
        return _node(tree.this)
    if isinstance(tree, exp.And | exp.Or):
        return _Node(kind.lower(), (_node(tree.this), _node(tree.expression)))
    if isinstance(tree, exp.Not):
        return _Node("not", (_node(tree.this),))
    if isinstance(tree, exp.Is) and isinstance(tree.expression, exp.Null):
        return _Node("null", (), _column(tree.this))
    if isinstance(tree, exp.In) and tree.expressions:
        return _Node("in", (), _column(tree.this), tuple(map(_value, tree.expressions)))
    if kind in _COMPARED:
        if isinstance(tree.expression, exp.Column):
            return _Node(
                _MIRRORED.get(kind, kind), (), _column(tree.expression), (_value(tree.this),)
            )
        return _Node(kind, (), _column(tree.this), (_value(tree.expression),))
    if isinstance(tree, exp.Column):
        return _Node("EQ", (), _column(tree), (True,))
    raise ValueError(f"{tree.sql(dialect='duckdb')!r} is none of these")


def _column(tree: Any) -> str:
    from sqlglot import exp

    if not isinstance(tree, exp.Column):
        raise ValueError(f"{tree.sql(dialect='duckdb')!r} is not a column")
    return ".".join(part.name for part in tree.parts)


def _value(tree: Any) -> Any:
    from sqlglot import exp

    if isinstance(tree, exp.Neg):
        value = _value(tree.this)
        if not isinstance(value, str | bool):
            return -value
    elif isinstance(tree, exp.Boolean):
        return bool(tree.this)
    elif isinstance(tree, exp.Literal):
        if tree.is_string:
            return str(tree.this)
        return int(tree.this) if tree.this.isdigit() else float(tree.this)
    elif isinstance(tree, exp.Column):
        raise ValueError(f"{tree.sql()} is a column: put a text in single quotes")
    raise ValueError(f"{tree.sql(dialect='duckdb')!r} is not a number, a text or true or false")


def _all(node: _Node) -> Iterator[_Node]:
    yield node
    for part in node.parts:
        yield from _all(part)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _whole(column: Any) -> Any:
    """Return a table's column as one array."""
    return (
        column.chunk(0) if column.num_chunks == 1 else column.unify_dictionaries().combine_chunks()
    )


def codes_of(column: Any) -> tuple[NDArray[np.integer[Any]], int, object] | None:
    """Return codes of a table's column, alike for equal values, 0 to count - 1; the count; what the
    codes mean.

    None for a column of many values, or of a type of which that would be slow.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column, low = _whole(column), 0
    if pa.types.is_dictionary(column.type):
        numbers, meaning, count = column.indices, column.dictionary, len(column.dictionary)
        order = pc.sort_indices(meaning).to_numpy() if count <= _MOST_VALUES else np.empty(0)
        if (order[1:] < order[:-1]).any():  # row groups have the same values in different orders
            numbers, meaning = (
                pc.take(pa.array(np.argsort(order)), numbers),
                meaning.take(pa.array(order)),
            )
    elif pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        numbers = column.cast(pa.int64())
    else:
        return None
    codes: NDArray[np.integer[Any]] = (
        pc.fill_null(numbers, 0) if column.null_count else numbers
    ).to_numpy()
    if not pa.types.is_dictionary(column.type):
        low = min(0, int(codes.min()))
        meaning = count = int(codes.max()) - low + 1
    if count > _MOST_VALUES:
        return None
    codes = codes - low if low else codes
    if column.null_count:
        codes, count = (
            np.where(column.is_null().to_numpy(zero_copy_only=False), count, codes),
            count + 1,
        )
    return codes, count, (low, count, meaning)


def plain(column: Any) -> Any:
    """Return a table's column without a dictionary."""
    import pyarrow as pa

    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _outcomes(node: _Node, statistics: Mapping[str, Range]) -> tuple[bool, bool]:
    """Return whether a condition may be true of a row, and whether it may be false."""
    parts = [_outcomes(part, statistics) for part in node.parts]
    if node.kind == "not":
        return parts[0][1], parts[0][0]
    if parts:
        true, false = zip(*parts, strict=True)
        return (all(true), any(false)) if node.kind == "and" else (any(true), all(false))
    known = statistics.get(node.column)
    if known is None:
        return True, True
    if node.kind == "null":
        return known.nulls != 0, known.nulls != known.rows
    if known.nulls == known.rows:
        return False, False
    if known.low is None or any(
        isinstance(value, str) != isinstance(known.low, str) for value in node.values
    ):
        return True, True
    if node.kind == "in":
        inside = any(known.low <= value <= known.high for value in node.values)
        return inside, not (known.low == known.high and known.low in node.values)
    if node.kind in ("EQ", "NEQ"):
        value = node.values[0]
        is_equal, differs = known.low <= value <= known.high, not known.low == known.high == value
        return (is_equal, differs) if node.kind == "EQ" else (differs, is_equal)
    ends = [_COMPARED[node.kind][1](end, node.values[0]) for end in (known.low, known.high)]
    return any(ends), not all(ends)
