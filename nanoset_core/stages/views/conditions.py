"""Conditions on the columns of documents, such as `quality >= 3 and not lang = 'en'`.

A condition is written as SQL writes it after WHERE. sqlglot parses it into a tree of operations,
and pyarrow computes these for many documents at once. The tree of the condition above is:

    and
    ├── GTE  column quality, values (3,)
    └── not
        └── EQ  column lang, values ("en",)

If a value is null, a comparison with it is neither true nor false, as in SQL. Only documents for
which the whole condition is true are chosen.
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

MAX_LISTED_VALUES = 20_000
"""Values that one condition may list. sqlglot takes 0.1 ms for each, in every command that reads
nanoset.yaml: 200,000 ids in `id in (…)` took a minute and a half.
"""
_MAX_CHARACTERS = 2_000_000
_MAX_ERROR_CHARACTERS = 300
_EXPECTED = (
    "comparisons of a column with a value, `in`, `is null` and `is not null`, "
    "joined by and, or, not"
)


class _Comparison(NamedTuple):
    """How an operator such as `>=` is computed."""

    arrow_function: str
    """Name of the function in pyarrow.compute, for arrays."""
    compare: Callable[[Any, Any], bool]
    """The same for two Python values."""


_COMPARISONS: Mapping[str, _Comparison] = {
    "EQ": _Comparison("equal", operator.eq),
    "NEQ": _Comparison("not_equal", operator.ne),
    "GT": _Comparison("greater", operator.gt),
    "GTE": _Comparison("greater_equal", operator.ge),
    "LT": _Comparison("less", operator.lt),
    "LTE": _Comparison("less_equal", operator.le),
}
"""By the name of sqlglot's class."""
_MIRRORED = {"GT": "LT", "GTE": "LTE", "LT": "GT", "LTE": "GTE"}
"""The operator that `3 <= quality` becomes when it is turned into `quality >= 3`."""


class ColumnStatistics(NamedTuple):
    """Statistics of a column of a row group, which a Parquet file stores next to the values."""

    minimum: Any
    """Smallest value, or None if it is not known."""
    maximum: Any
    """Greatest value, or None if it is not known."""
    null_count: int | None
    """Number of nulls, or None if it is not known."""
    row_count: int


@dataclass(frozen=True, slots=True)
class _Operation:
    """One operation of a condition: it joins other operations, or compares a column."""

    kind: str
    """`and`, `or`, `not`; `null` (is null), `in`, or a key of `_COMPARISONS`."""
    operands: tuple[_Operation, ...] = ()
    """What `and`, `or` and `not` join; empty for comparisons."""
    column: str = ""
    """What is compared; empty for `and`, `or` and `not`."""
    values: tuple[Any, ...] = ()
    """What the column is compared with: several values for `in`, none for `null`."""

    def walk(self) -> Iterator[_Operation]:
        """Yield this operation, and all operations below it."""
        yield self
        for operand in self.operands:
            yield from operand.walk()

    def comparisons(self) -> Iterator[_Operation]:
        """Yield the operations below this one that compare a column."""
        for operation in self.walk():
            if operation.column:
                yield operation


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition. Two conditions are equal if they say the same, however it is written."""

    text: str = field(compare=False)
    """As it was written."""
    where: str = field(compare=False)
    """The setting that holds it, for messages."""
    _root: _Operation

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that the condition needs."""
        return frozenset(comparison.column for comparison in self._root.comparisons())

    @property
    def comparisons(self) -> list[Condition]:
        """Conditions on single columns that decide this one.

        For each comparison these are the comparison itself, and whether the column is null. If two
        rows agree in all of them, they agree in this condition.
        """
        conditions = []
        for comparison in self._root.comparisons():
            is_null = _Operation("null", column=comparison.column)
            conditions.append(replace(self, _root=is_null))
            conditions.append(replace(self, _root=comparison))
        return conditions

    def mask(self, table: Any, results: dict[object, Any] | None = None) -> NDArray[np.bool_]:
        """Compute for which rows of a table the condition is true.

        Args:
            table: An Arrow table with the columns of the condition.
            results: A cache for one set of rows. It contains the results of operations that were
                computed before, and new ones are added, so that conditions with a common part
                compute it once.

        Returns:
            Shape (n_rows,).

        Raises:
            ConfigError: A column is missing, or cannot be compared with a value.
        """
        import pyarrow.compute as pc

        if results is None:
            results = {}
        is_true = self._result_of(self._root, table, results)
        if is_true.null_count:
            is_true = pc.fill_null(is_true, False)
        mask: NDArray[np.bool_] = is_true.to_numpy(zero_copy_only=False)
        return mask

    def may_hold(self, statistics: Mapping[str, ColumnStatistics]) -> bool:
        """Return whether the condition may be true of a row of a row group.

        Args:
            statistics: Of some columns of the row group, by name.
        """
        return _possible_outcomes(self._root, statistics).may_be_true

    def check(self, schema: Any) -> None:
        """Check that a table with this Arrow schema has the columns, in types that can be compared.

        Raises:
            ConfigError: A column is missing, or cannot be compared with a value.
        """
        self.mask(schema.empty_table())

    def _result_of(self, operation: _Operation, table: Any, results: dict[object, Any]) -> Any:
        """Return whether an operation is true of each row, as an Arrow array of booleans."""
        if operation not in results:
            results[operation] = self._compute(operation, table, results)
        return results[operation]

    def _compute(self, operation: _Operation, table: Any, results: dict[object, Any]) -> Any:
        """Compute an operation whose result is not in the cache; see `_result_of`."""
        import pyarrow.compute as pc

        if operation.column:
            return self._compare(operation, table)

        # "Kleene" functions treat null as SQL does: `null or true` is true, `null and true` null.
        operands = [self._result_of(operand, table, results) for operand in operation.operands]
        match operation.kind:
            case "and":
                return pc.and_kleene(*operands)
            case "or":
                return pc.or_kleene(*operands)
            case _:
                return pc.invert(operands[0])

    def _compare(self, operation: _Operation, table: Any) -> Any:
        """Compare a column of a table, and return an Arrow array of booleans."""
        import pyarrow as pa
        import pyarrow.compute as pc

        names = table.schema.names
        if operation.column not in names:
            raise self._not_computable(
                "no such column", operation.column, f"one of {', '.join(names)}"
            )
        column = as_one_array(table.column(operation.column))

        # Each value of a dictionary is compared once, however many rows have it.
        is_dictionary = pa.types.is_dictionary(column.type)
        values = column.dictionary if is_dictionary else column
        try:
            if operation.kind == "null":
                return pc.is_null(column)
            is_true = _compare_values(operation, values)
        except (
            pa.ArrowInvalid,
            pa.ArrowNotImplementedError,
            pa.ArrowTypeError,
            OverflowError,
        ) as error:
            raise self._not_computable(
                f"{operation.column} holds {values.type}",
                str(operation.values),
                "a value of the column's type",
            ) from error
        return pc.take(is_true, column.indices) if is_dictionary else is_true

    def _not_computable(self, what: str, found: str, expected: str) -> ConfigError:
        """Return the error for a condition that does not fit the columns."""
        return ConfigError(
            f"the condition cannot be computed: {what}",
            where=self.where,
            found=found,
            expected=expected,
            remedy="correct the condition, or add the column by documents.columns or attributes",
        )


def _compare_values(operation: _Operation, values: Any) -> Any:
    """Compare the values of an Arrow array, and return an Arrow array of booleans.

    Raises:
        ArrowInvalid: The values are texts and are compared with numbers, or the other way round.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_null(values.type):
        return pa.nulls(len(values), pa.bool_())
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if any(isinstance(value, str) != is_text for value in operation.values):
        raise pa.ArrowInvalid("texts are compared with numbers")

    if operation.kind != "in":
        function = getattr(pc, _COMPARISONS[operation.kind].arrow_function)
        return function(values, pa.scalar(operation.values[0]))

    listed = pa.array(operation.values)
    if pa.types.is_floating(values.type) or pa.types.is_floating(listed.type):
        # Without this, 1.5 would be cast to an integer column's type, which fails.
        values = values.cast(pa.float64())
        listed = listed.cast(pa.float64())
    is_in_list = pc.is_in(values, value_set=listed.cast(values.type))
    # `is_in` returns false for null, and SQL returns null.
    return pc.if_else(pc.is_valid(values), is_in_list, pa.scalar(None, pa.bool_()))


def parse_condition(text: str, where: str) -> Condition:
    """Parse a condition.

    Args:
        text: Such as "quality >= 3 and lang = 'en'".
        where: The setting that holds it, for messages.

    Raises:
        ConfigError: The text is no condition, or lists too many values.
    """
    from sqlglot.errors import SqlglotError

    n_values = text.count(",") + 1
    if n_values > MAX_LISTED_VALUES or len(text) > _MAX_CHARACTERS:
        raise ConfigError(
            "this condition lists too many values",
            where=where,
            found=f"about {n_values:,} values in {len(text):,} characters",
            expected=f"at most {MAX_LISTED_VALUES:,} values and {_MAX_CHARACTERS:,} characters",
            remedy=(
                "write ids into a file, one on each line, and name it in `include` or `exclude` of "
                "the view; for other columns, add a table by `attributes` with a column that marks "
                "the documents"
            ),
        )
    try:
        return Condition(text, where, _parse(text))
    except (SqlglotError, ValueError, RecursionError) as error:
        reason = repr(error)
        if str(error):
            first_line = str(error).splitlines()[0]
            reason = first_line[:_MAX_ERROR_CHARACTERS]
        raise ConfigError(
            "this is not a condition on documents",
            where=where,
            found=f"{text!r}: {reason}",
            expected=_EXPECTED,
            remedy=(
                "write it as in quality >= 3 and lang = 'en'; "
                "quote a column as \"a b\", a text as 'en'"
            ),
        ) from error


# Cached, since nanoset.yaml is checked and then used by different callers.
@lru_cache(maxsize=64)
def _parse(text: str) -> _Operation:
    """Parse a condition into its tree of operations.

    Raises:
        SqlglotError: The text is not SQL.
        ValueError: The text uses SQL that conditions do not support.
    """
    import sqlglot

    return _operation_of(sqlglot.parse_one(text, dialect="duckdb"))


def _operation_of(expression: Any) -> _Operation:
    """Translate an expression of sqlglot."""
    from sqlglot import exp

    kind = type(expression).__name__
    if isinstance(expression, exp.Paren):
        return _operation_of(expression.this)
    if isinstance(expression, exp.And | exp.Or):
        left = _operation_of(expression.this)
        right = _operation_of(expression.expression)
        return _Operation(kind.lower(), (left, right))
    if isinstance(expression, exp.Not):
        return _Operation("not", (_operation_of(expression.this),))

    if isinstance(expression, exp.Is) and isinstance(expression.expression, exp.Null):
        return _Operation("null", column=_column_name(expression.this))
    if isinstance(expression, exp.In) and expression.expressions:
        column = _column_name(expression.this)
        values = tuple(_literal_value(value) for value in expression.expressions)
        return _Operation("in", column=column, values=values)
    if kind in _COMPARISONS:
        left = expression.this
        right = expression.expression
        if isinstance(right, exp.Column):
            # `3 <= quality`: turn it round.
            return _comparison_of(_MIRRORED.get(kind, kind), column=right, value=left)
        return _comparison_of(kind, column=left, value=right)
    if isinstance(expression, exp.Column):
        # A column of booleans is a condition by itself.
        return _Operation("EQ", column=_column_name(expression), values=(True,))
    raise ValueError(f"{expression.sql(dialect='duckdb')!r} is none of these")


def _comparison_of(kind: str, column: Any, value: Any) -> _Operation:
    """Return the comparison of a column with a literal, both given as expressions of sqlglot."""
    return _Operation(kind, column=_column_name(column), values=(_literal_value(value),))


def _column_name(expression: Any) -> str:
    """Return the name of a column; names of nested columns are joined by dots."""
    from sqlglot import exp

    if not isinstance(expression, exp.Column):
        raise ValueError(f"{expression.sql(dialect='duckdb')!r} is not a column")
    return ".".join(part.name for part in expression.parts)


def _literal_value(expression: Any) -> Any:
    """Return the Python value of a literal: a number, a text or a boolean."""
    from sqlglot import exp

    if isinstance(expression, exp.Boolean):
        return bool(expression.this)
    if isinstance(expression, exp.Literal):
        if expression.is_string:
            return str(expression.this)
        digits = expression.this
        return int(digits) if digits.isdigit() else float(digits)
    if isinstance(expression, exp.Neg):
        value = _literal_value(expression.this)
        if not isinstance(value, str | bool):
            return -value
    if isinstance(expression, exp.Column):
        raise ValueError(f"{expression.sql()} is a column: put a text in single quotes")
    sql = expression.sql(dialect="duckdb")
    raise ValueError(f"{sql!r} is not a number, a text or true or false")


def as_one_array(column: Any) -> Any:
    """Return a column of an Arrow table as one array with one dictionary."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.unify_dictionaries().combine_chunks()


def without_dictionary(column: Any) -> Any:
    """Return a column of an Arrow table with its values in place of a dictionary."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


class _Outcomes(NamedTuple):
    """Whether an operation may be true, and may be false, for some row of a row group.

    If its value is null for all rows, it may be neither.
    """

    may_be_true: bool
    may_be_false: bool


_ANY_OUTCOME = _Outcomes(may_be_true=True, may_be_false=True)


def _possible_outcomes(
    operation: _Operation, statistics: Mapping[str, ColumnStatistics]
) -> _Outcomes:
    """Return the possible outcomes of an operation, as far as statistics of columns exclude any."""
    if not operation.column:
        return _joined_outcomes(
            operation.kind,
            [_possible_outcomes(operand, statistics) for operand in operation.operands],
        )

    column = statistics.get(operation.column)
    if column is None:
        return _ANY_OUTCOME
    if operation.kind == "null":
        return _Outcomes(
            may_be_true=column.null_count != 0,
            may_be_false=column.null_count != column.row_count,
        )
    if column.null_count == column.row_count:
        return _Outcomes(may_be_true=False, may_be_false=False)
    if column.minimum is None or not _has_kind_of(column.minimum, operation.values):
        return _ANY_OUTCOME
    return _comparison_outcomes(operation, column)


def _joined_outcomes(kind: str, operands: list[_Outcomes]) -> _Outcomes:
    """Return the possible outcomes of `and`, `or` or `not`, given those of its operands."""
    if kind == "not":
        (operand,) = operands
        return _Outcomes(may_be_true=operand.may_be_false, may_be_false=operand.may_be_true)
    left, right = operands
    if kind == "and":
        return _Outcomes(
            may_be_true=left.may_be_true and right.may_be_true,
            may_be_false=left.may_be_false or right.may_be_false,
        )
    return _Outcomes(
        may_be_true=left.may_be_true or right.may_be_true,
        may_be_false=left.may_be_false and right.may_be_false,
    )


def _has_kind_of(minimum: Any, values: tuple[Any, ...]) -> bool:
    """Return whether values can be compared with a column's: all texts, or none a text."""
    is_text = isinstance(minimum, str)
    return all(isinstance(value, str) == is_text for value in values)


def _comparison_outcomes(operation: _Operation, column: ColumnStatistics) -> _Outcomes:
    """Return the possible outcomes of a comparison, by the smallest and the greatest value."""
    minimum = column.minimum
    maximum = column.maximum
    is_constant = minimum == maximum
    if operation.kind == "in":
        return _Outcomes(
            may_be_true=any(minimum <= value <= maximum for value in operation.values),
            may_be_false=not (is_constant and minimum in operation.values),
        )

    value = operation.values[0]
    if operation.kind in ("EQ", "NEQ"):
        may_be_equal = minimum <= value <= maximum
        may_differ = not (is_constant and minimum == value)
        if operation.kind == "EQ":
            return _Outcomes(may_be_true=may_be_equal, may_be_false=may_differ)
        return _Outcomes(may_be_true=may_differ, may_be_false=may_be_equal)

    # For <, <=, > and >=, if the smallest and the greatest value have the same outcome, so do all
    # values between them.
    compare = _COMPARISONS[operation.kind].compare
    outcomes = [compare(minimum, value), compare(maximum, value)]
    return _Outcomes(may_be_true=any(outcomes), may_be_false=not all(outcomes))
