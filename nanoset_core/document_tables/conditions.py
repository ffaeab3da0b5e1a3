"""Conditions on the columns of documents, such as `quality >= 3 and not lang = 'en'`.

Users write a condition in SQL, like a WHERE clause. DuckDB parses it, and its syntax tree is
translated into a tree of the few operations that are documented; anything else is refused. The tree
of the condition above is:

    and
    ├── >=  column quality, values (3,)
    └── not
        └── =  column lang, values ("en",)

Before documents are read, the operations are checked against the types of the columns, and are
written as SQL again. So DuckDB never executes what a user wrote, and a text is never compared with
a number.

If a value is null, a comparison with it is neither true nor false, as in SQL. Only documents for
which the whole condition is true are chosen.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, TypeGuard

from nanoset_core.document_tables.connection import explaining_memory, open_locked, text_literal
from nanoset_core.document_tables.relation import column_reference, value_type
from nanoset_core.errors import ConfigError
from nanoset_core.untrusted import shortened

MAX_LISTED_VALUES = 20_000
"""Values that one condition may list. Every command that reads nanoset.yaml parses its conditions,
and 20,000 values take half a second.
"""
_MAX_CHARACTERS = 2_000_000
_MAX_ERROR_CHARACTERS = 300
_EXPECTED = (
    "comparisons of a column with a value, `in`, `between`, `like`, `starts_with`, `is null` and "
    "`is not null`, joined by and, or, not"
)
_INT64_STOP = 1 << 63
"""DuckDB's BIGINT holds the integers from -_INT64_STOP to _INT64_STOP - 1."""

_COMPARISONS: Mapping[str, str] = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
}
"""Type of a comparison in DuckDB's syntax tree → its operator."""
_BOOLEAN_OF_TEXT = {"true": True, "false": False}
"""Texts that a column of booleans may be compared with."""
_NUMBER_TEXT = re.compile(r"-?(0|[1-9][0-9]{0,99})(\.[0-9]{1,99})?([eE][+-]?[0-9]{1,3})?")
"""Texts that a column of numbers may be compared with."""
_MIRRORED = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "=": "=", "<>": "<>"}
"""The operator that `3 <= quality` becomes when it is turned into `quality >= 3`."""
_PATTERN_FUNCTIONS = {"~~": "like", "!~~": "not like", "starts_with": "starts_with"}
"""Function in DuckDB's syntax tree → how a condition writes it. DuckDB parses `lang like 'd%'` as
the function `~~` with the arguments `lang` and 'd%'.
"""

_CONDITION_WORDS = frozenset({"and", "or", "not", "in", "is", "null", "true", "false", "like"})
"""Reserved words of SQL that conditions use. `between` and `date` are not reserved in DuckDB."""
_TOKEN = re.compile(
    r"""
    '(?:[^']|'')*'    # a text
    | "(?:[^"]|"")*"  # a quoted name
    | --[^\n]*        # a comment
    | \w+             # a word or number
    """,
    re.VERBOSE,
)
"""The parts of a condition that may contain the letters of a keyword."""

Literal = str | bool | int | float | datetime
"""A value that a column is compared with."""


@dataclass(frozen=True, slots=True)
class _Operation:
    """One operation of a condition: it joins other operations, or compares a column."""

    kind: str
    """`and`, `or`, `not`; `null` (is null), `in`, `like`, `starts_with`, or an operator such as
    `>=`.
    """
    operands: tuple[_Operation, ...] = ()
    """What `and`, `or` and `not` join; empty for comparisons."""
    column: str = ""
    """What is compared; empty for `and`, `or` and `not`."""
    values: tuple[Literal, ...] = ()
    """What the column is compared with: several values for `in`, none for `null`."""

    def columns(self) -> Iterator[str]:
        """Yield the columns that this operation and those below it compare."""
        if self.column:
            yield self.column
        for operand in self.operands:
            yield from operand.columns()


class ColumnTypeError(ConfigError):
    """A condition compares a column with values of another type, such as texts with a number."""

    def __init__(self, what: str, *, text_column: str | None = None, **details: Any) -> None:
        """Compose the message.

        Args:
            what: What is wrong.
            text_column: Name of the column if it has texts, and is compared with numbers; otherwise
                None.
            details: The other parts of the message, see `NanosetError`.
        """
        super().__init__(what, **details)
        self.text_column = text_column


class _TypeMismatchError(Exception):
    """A column cannot be compared with the values of an operation."""

    def __init__(self, column_type: Any, operation: _Operation) -> None:
        super().__init__()
        self.column_type = column_type
        self.operation = operation


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition. Two conditions are equal if they have the same text."""

    text: str
    """As it was written."""
    where: str = field(compare=False)
    """The setting that holds it, for messages."""
    _root: _Operation = field(compare=False, repr=False)

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that the condition needs."""
        return frozenset(self._root.columns())

    def for_columns(self, schema: Any) -> SqlCondition:
        """Return this condition as SQL for a table, after a check that it fits the table's columns.

        For example, `quality >= 3` becomes `c1 >= '3'::BIGINT` if `quality` is the second column,
        and has integers.

        Args:
            schema: pyarrow.Schema of the table: the names and types of its columns.

        Raises:
            ConfigError: The table lacks a column.
            ColumnTypeError: A column cannot be compared with the value.
        """
        for column in sorted(self.columns):
            if column not in schema.names:
                raise ConfigError(
                    "the condition cannot be computed: no such column",
                    where=self.where,
                    found=column,
                    expected=f"one of {', '.join(schema.names)}",
                    remedy=(
                        "correct the condition, or add the column by documents.columns or "
                        "attributes"
                    ),
                )
        try:
            return _sql_condition(self._root, schema)
        except _TypeMismatchError as error:
            raise self._type_error(error.operation, error.column_type) from None

    def _type_error(self, comparison: _Operation, column_type: Any) -> ColumnTypeError:
        """Return the error for a comparison that does not fit the type of its column.

            quality = 'high', and quality is a column of integers    correct the condition
            quality > 2.5, and quality is a column of texts          perhaps a value is wrong

        In the second case, a single text such as "n/a" among numbers may have made the column one
        of texts. So the error has the column as its `text_column`, and who catches it can look for
        such a text.

        Args:
            comparison: The comparison.
            column_type: Arrow type of the column.
        """
        column = comparison.column
        compares_numbers = all(_is_comparable_number(value) for value in comparison.values)
        may_have_wrong_values = compares_numbers and not _is_number_type(column_type)
        if may_have_wrong_values:
            text_column = column
            remedy = (
                f"compare {column} with texts, or correct those of its values that are no numbers"
            )
        else:
            text_column = None
            remedy = "correct the condition"
        return ColumnTypeError(
            f"the condition cannot be computed: {column} is a column of type {column_type}",
            where=self.where,
            found=_comparison_text(comparison),
            expected=f"a comparison of {column} with {_fitting_values(column_type)}",
            remedy=remedy,
            text_column=text_column,
        )


@dataclass(frozen=True, slots=True)
class SqlCondition:
    """A condition whose comparisons are SQL.

    DuckDB evaluates it as a whole, or only its comparisons. The second is faster for many
    conditions that have comparisons in common, such as 200 combinations of a topic and a quality:
    each comparison is evaluated once, and `outcome` joins the results.
    """

    kind: str
    """`and`, `or`, `not`, or `comparison`."""
    operands: tuple[SqlCondition, ...] = ()
    """What `and`, `or` and `not` join."""
    comparison: str = ""
    """SQL of a comparison, in parentheses, which is true, false or null."""

    @property
    def sql(self) -> str:
        """SQL of the whole: true for documents that the condition chooses, or false or null."""
        if self.kind == "comparison":
            return self.comparison
        operands = [operand.sql for operand in self.operands]
        if self.kind == "not":
            return f"(NOT {operands[0]})"
        return "(" + f" {self.kind.upper()} ".join(operands) + ")"

    @property
    def comparisons(self) -> Iterator[str]:
        """SQL of each comparison; some may be equal."""
        if self.kind == "comparison":
            yield self.comparison
        for operand in self.operands:
            yield from operand.comparisons

    def outcome(self, outcome_by_comparison: Mapping[str, Any]) -> Any:
        """Return whether a condition on documents is true, false or null (unknown) for each of
        them.

        For example, for the condition `quality >= 3 and lang = 'en'`:

            quality    lang    quality >= 3    lang = 'en'    result
            4          en      true            true           true
            4          de      true            false          false
            null       en      null            true           null

        Args:
            outcome_by_comparison: SQL of each comparison → Arrow array of its results, which DuckDB
                has computed, shape (n_documents,).

        Returns:
            Arrow array of booleans and nulls, shape (n_documents,).
        """
        import pyarrow.compute as pc

        if self.kind == "comparison":
            return outcome_by_comparison[self.comparison]
        # These functions of Arrow treat nulls as SQL does: `null or true` is true.
        outcomes = [operand.outcome(outcome_by_comparison) for operand in self.operands]
        if self.kind == "not":
            return pc.invert(outcomes[0])
        join = pc.and_kleene if self.kind == "and" else pc.or_kleene
        return functools.reduce(join, outcomes)


def parse_condition(text: str, where: str) -> Condition:
    """Parse a condition that a user wrote, such as "quality >= 3 and lang = 'en'".

    Args:
        text: The condition.
        where: The setting that holds it, for messages.

    Raises:
        ConfigError: The text is no condition, or lists too many values.
    """
    # Refuse long lists before they are parsed, which would take seconds. So values are counted by
    # the commas between them: a comma within a text counts as well, which does no harm.
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
    except (ValueError, RecursionError) as error:
        reason = repr(error)
        if str(error):
            first_line = str(error).splitlines()[0]
            reason = shortened(first_line, _MAX_ERROR_CHARACTERS)
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


def values_equal(values: Mapping[str, str | int]) -> Condition:
    """Return the condition that some columns have certain values.

    For example, to find the document of line 3 of a file: {"file": "a.jsonl", "line": 3} is the
    condition file = 'a.jsonl' and line = 3.

    Args:
        values: Name of each column → the value, a text or an integer.
    """
    comparisons = []
    texts = []
    for name, value in values.items():
        comparisons.append(_Operation("=", column=name, values=(value,)))
        texts.append(f"{name} = {value!r}")
    return Condition(
        text=" and ".join(texts),  # for messages
        where="",  # it is in no setting
        _root=_Operation("and", tuple(comparisons)),
    )


# Cached, since nanoset.yaml is checked and then used by different callers.
@lru_cache(maxsize=64)
def _parse(text: str) -> _Operation:
    """Parse a condition that a user wrote in SQL into a tree of a few operations.

    For "quality >= 3 and lang = 'en'":

        and
        ├── >=  column quality, values (3,)
        └── =   column lang, values ("en",)

    Args:
        text: The condition.

    Raises:
        ValueError: The text is not SQL, or uses SQL that conditions do not support, such as calls
            of functions.
    """
    # Put names of columns that SQL reserves, such as `group`, in double quotes.
    condition = _with_quoted_keywords(text)
    # DuckDB parses the SQL, as the WHERE clause of a statement.
    statement = _syntax_tree(condition)  # of `SELECT 1 WHERE <condition>`
    _check_has_no_other_clauses(statement)
    return _operation_of(statement["node"]["where_clause"])


def _check_has_no_other_clauses(statement: dict[str, Any]) -> None:
    """Check that a statement is `SELECT 1 WHERE <condition>`, and nothing more.

    A user's text might add another clause to the statement. In "true ORDER BY x", it is refused
    before, since ORDER is reserved, and was put in quotes as if it were a column. So are all other
    clauses of DuckDB 2.0. This check is for later versions, which may have clauses that begin with
    a word that is not reserved. They would be ignored silently, since only the condition is used.

    With `true` in place of the condition, the statement has to be `SELECT 1 WHERE true`.

    Args:
        statement: The syntax tree of the statement.

    Raises:
        ValueError: It has other clauses.
    """
    plain_statement = _syntax_tree("true")
    plain_condition = plain_statement["node"]["where_clause"]
    node_with_plain_condition = {**statement["node"], "where_clause": plain_condition}
    if {**statement, "node": node_with_plain_condition} != plain_statement:
        raise ValueError("it has more than a condition")


def _syntax_tree(text: str) -> dict[str, Any]:
    """Let DuckDB parse the statement `SELECT 1 WHERE <text>`, and return its syntax tree.

    The statement is not executed. The tree is a nested dictionary; for "quality >= 3", it contains

        {"type": "COMPARE_GREATERTHANOREQUALTO",
         "left": {"type": "COLUMN_REF", "column_names": ["quality"], …},
         "right": {"type": "VALUE_CONSTANT", "literal": {"kind": "INTEGER", "text": "3"}, …}, …}

    Args:
        text: A condition in SQL.

    Raises:
        ValueError: The text is not SQL, or has several statements.
    """
    # The line break ends a comment that the text may contain.
    parsed = _parse_sql(f"SELECT 1 WHERE {text}\n")
    if parsed["error"]:
        raise ValueError(parsed["error_message"])
    statements: list[dict[str, Any]] = parsed["statements"]
    if len(statements) != 1:
        raise ValueError("it has several statements")
    return statements[0]


def _parse_sql(sql: str) -> dict[str, Any]:
    """Let DuckDB parse statements in SQL, without executing them.

    Returns:
        DuckDB's answer: {"error": False, "statements": […]} with a syntax tree for each statement,
        or {"error": True, "error_message": …, …}.

    Raises:
        ValueError: DuckDB did not answer.
    """
    import duckdb

    try:
        # A connection is for one thread. A cursor is another connection, with the same settings.
        with explaining_memory(), _parser().cursor() as cursor:
            result = cursor.execute("SELECT json_serialize_sql(?)", [sql])
            [[serialized]] = result.fetchall()
    except duckdb.Error as error:
        raise ValueError(str(error)) from error
    answer: dict[str, Any] = json.loads(serialized)
    return answer


@cache
def _parser() -> Any:
    """Return the connection that parses conditions. It takes 15 ms to open, so it is kept."""
    return open_locked()


@cache
def _words_to_quote() -> frozenset[str]:
    """Return the keywords of SQL that must be names of columns if a condition has them.

    DuckDB accepts reserved words as names of columns only in double quotes. Those that conditions
    use as keywords, such as `and`, are not among the words: they are never taken for columns.
    """
    with explaining_memory(), _parser().cursor() as cursor:
        query = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
        rows = cursor.execute(query).fetchall()
    reserved_words = frozenset(word for (word,) in rows)
    return reserved_words - _CONDITION_WORDS


def _with_quoted_keywords(text: str) -> str:
    """Put double quotes around columns of a condition that have the name of an SQL keyword.

    Users need not know which names SQL reserves. They may have a column `group`, for example:

        group = 'a group' and year > 2000    →    "group" = 'a group' and year > 2000

    Words within texts stay as they are.

    Args:
        text: The condition.
    """

    def quote(match: re.Match[str]) -> str:
        """Return a token of the condition, in double quotes if it must be the name of a column."""
        token = match.group()
        if token.lower() in _words_to_quote():
            return f'"{token}"'
        return token

    return _TOKEN.sub(quote, text)


def _operation_of(node: Mapping[str, Any]) -> _Operation:
    """Translate a part of a condition from DuckDB's syntax tree to a tree of our own operations.

    DuckDB parses `quality >= 3 and lang = 'en'` to a tree of nodes, each of which is a dictionary:

        CONJUNCTION_AND                     and
          COMPARE_GREATERTHANOREQUALTO        >=  quality  3
          COMPARE_EQUAL                       =   lang  'en'

    Args:
        node: A node of this tree, which is true or false for a document.

    Returns:
        The operation, with the operations below it.

    Raises:
        ValueError: Conditions do not support this kind of expression.
    """
    match node["type"]:
        case "CONJUNCTION_AND" | "CONJUNCTION_OR":
            return _conjunction_of(node)
        case "OPERATOR_NOT":
            return _negated(_operation_of(node["children"][0]))
        case "OPERATOR_IS_NULL":
            return _null_test_of(node)
        case "OPERATOR_IS_NOT_NULL":
            return _negated(_null_test_of(node))
        case "COMPARE_IN":
            return _membership_of(node)
        case "COMPARE_BETWEEN":
            return _range_of(node)
        case "COLUMN_REF":
            return _boolean_column_of(node)
        case "FUNCTION":
            return _pattern_of(node)
        case kind if kind in _COMPARISONS:
            return _comparison_of(_COMPARISONS[kind], node["left"], node["right"])
    raise _unsupported(node)


def _conjunction_of(node: Mapping[str, Any]) -> _Operation:
    """Translate `and` or `or`, with the conditions that it joins."""
    operands = tuple(_operation_of(child) for child in node["children"])
    return _Operation(node["type"].removeprefix("CONJUNCTION_").lower(), operands)


def _boolean_column_of(node: Mapping[str, Any]) -> _Operation:
    """Translate a column of booleans that is a condition by itself: `is_code` in `not is_code`."""
    return _Operation("=", column=_column_name(node), values=(True,))


def _null_test_of(node: Mapping[str, Any]) -> _Operation:
    """Translate `is null`, or the `is null` in `is not null`."""
    return _Operation("null", column=_column_name(node["children"][0]))


def _membership_of(node: Mapping[str, Any]) -> _Operation:
    """Translate `in`, as in `lang in ('de', 'fr')`."""
    column_node, *value_nodes = node["children"]
    values = tuple(_literal_value(value_node) for value_node in value_nodes)
    return _Operation("in", column=_column_name(column_node), values=values)


def _range_of(node: Mapping[str, Any]) -> _Operation:
    """Translate `x between 1 and 5` to `x >= 1 and x <= 5`."""
    column = _column_name(node["input"])
    minimum = _literal_value(node["lower"])
    maximum = _literal_value(node["upper"])
    is_at_least = _Operation(">=", column=column, values=(minimum,))
    is_at_most = _Operation("<=", column=column, values=(maximum,))
    return _Operation("and", (is_at_least, is_at_most))


def _negated(operation: _Operation) -> _Operation:
    """Return the operation `not`."""
    return _Operation("not", (operation,))


def _comparison_of(operator: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> _Operation:
    """Translate a comparison of a column with a literal; the column may be on either side."""
    if right["type"] == "COLUMN_REF":
        # `3 < x` means `x > 3`.
        return _Operation(
            _MIRRORED[operator], column=_column_name(right), values=(_literal_value(left),)
        )
    return _Operation(operator, column=_column_name(left), values=(_literal_value(right),))


def _pattern_of(node: Mapping[str, Any]) -> _Operation:
    """Translate a comparison of a column with the start or the pattern of a text.

        condition                   operation
        lang like 'd%'              like, column lang, values ("d%",)
        lang not like 'd%'          not, with the operand above
        starts_with(lang, 'de')     starts_with, column lang, values ("de",)

    Args:
        node: A call of a function in DuckDB's syntax tree. DuckDB parses `lang like 'd%'` as the
            function `~~` with two arguments, the column and the text.

    Raises:
        ValueError: It is another function, or does not compare a column with a text.
    """
    name = node["function_name"]
    arguments = [argument["expression"] for argument in node["arguments"]]
    if name not in _PATTERN_FUNCTIONS or len(arguments) != 2:
        raise _unsupported(node)

    operator = _PATTERN_FUNCTIONS[name]  # "like" for ~~, "not like" for !~~, or "starts_with"
    column_node, pattern_node = arguments
    pattern = _literal_value(pattern_node)
    if not isinstance(pattern, str):
        raise ValueError(f"{operator} needs a text")

    column = _column_name(column_node)
    if operator == "not like":
        like = _Operation("like", column=column, values=(pattern,))
        return _negated(like)
    return _Operation(operator, column=column, values=(pattern,))


def _unsupported(node: Mapping[str, Any]) -> ValueError:
    """Return the error for an expression that conditions do not support.

    Its text follows a condition in a message, which then lists the supported expressions: "…:
    'lower' is none of these".
    """
    return ValueError(f"{_described(node)} is none of these")


def _column_name(node: Mapping[str, Any]) -> str:
    """Return the name of a column; names of nested columns are joined by dots.

    Raises:
        ValueError: The node is not a column.
    """
    if node["type"] != "COLUMN_REF":
        raise ValueError(f"{_described(node)} is not a column")
    return ".".join(node["column_names"])


def _literal_value(node: Mapping[str, Any]) -> Literal:
    """Return the Python value of a value that is written in a condition.

        in the condition       as DuckDB parses it          result
        3, 'de', true          a constant                   3, "de", True
        date '2024-01-31'      a text, cast to a date       datetime(2024, 1, 31)
        -3                     the function "-" of 3        -3
        de                     a column                     an error: put a text in single quotes

    Args:
        node: What DuckDB made of it in its syntax tree.

    Raises:
        ValueError: It is no value, or the text of a date is not a date.
    """
    match node["type"]:
        case "VALUE_CONSTANT":  # 3, 'de' or true
            return _constant_value(node)
        case "OPERATOR_CAST" if not node["try_cast"]:
            # DuckDB parses `date '2024-01-31'` as `CAST('2024-01-31' AS DATE)`.
            return _date_value(node)
        case "FUNCTION" if node["function_name"] in ("+", "-"):
            # DuckDB parses `-3` as a function `-` of 3.
            return _signed_number(node)
        case "COLUMN_REF":
            raise ValueError(f"{_column_name(node)} is a column: put a text in single quotes")
    raise _not_literal(node)


def _constant_value(node: Mapping[str, Any]) -> Literal:
    """Return the Python value of a constant in a condition, such as 3, 'de' or true.

        in the condition     literal in DuckDB's syntax tree          result
        3                    {"kind": "INTEGER", "text": "3"}         3
        2.5                  {"kind": "NUMERIC", "text": "2.5"}       2.5
        'de'                 {"kind": "STRING", "text": "de"}         "de"

    Args:
        node: The constant in the syntax tree.

    Raises:
        ValueError: It is another constant, such as null.
    """
    text: str = node["literal"]["text"]
    match node["literal"]["kind"]:
        case "BOOLEAN":
            return text == "true"
        case "STRING":
            return text
        case "INTEGER":
            return int(text)
        case "NUMERIC":
            return float(text)
    raise _not_literal(node)


def _signed_number(node: Mapping[str, Any]) -> int | float:
    """Return the value of a number with a sign in a condition.

    DuckDB parses the sign as a function of the number:

        -3        the function "-" with the operand 3           -3
        +2.5      the function "+" with the operand 2.5         2.5
        5 - 3     the function "-" with the operands 5 and 3    refused: this is no number

    Args:
        node: The call of the function in DuckDB's syntax tree.

    Raises:
        ValueError: The function has two operands, or its operand is not a number.
    """
    operands = [argument["expression"] for argument in node["arguments"]]
    number = _literal_value(operands[0])
    has_one_operand = len(operands) == 1
    # A boolean is an int in Python, too.
    if not has_one_operand or isinstance(number, bool) or not isinstance(number, int | float):
        raise _not_literal(node)
    return -number if node["function_name"] == "-" else number


def _not_literal(node: Mapping[str, Any]) -> ValueError:
    """Return the error for an expression that is not a literal."""
    return ValueError(f"{_described(node)} is not a number, a text, a date or true or false")


def _date_value(node: Mapping[str, Any]) -> datetime:
    """Return the date or time that is written in a condition.

    DuckDB parses both as the conversion of a text to a type:

        date '2024-01-31'                    datetime(2024, 1, 31)
        timestamp '2024-01-31 12:00:00'      datetime(2024, 1, 31, 12)

    Args:
        node: The conversion in DuckDB's syntax tree.

    Raises:
        ValueError: It is another conversion, its text is not a date, or the time has a time zone.
    """
    type_name = node["type_expr"].get("type_name", "").lower()
    text = _literal_value(node["child"])
    if type_name not in ("date", "timestamp") or not isinstance(text, str):
        raise _not_literal(node)
    value = datetime.fromisoformat(text)
    if value.tzinfo is not None:
        raise ValueError(f"{text!r} has a time zone: write it in UTC, without one")
    return value


def _described(node: Mapping[str, Any]) -> str:
    """Return what kind of expression a node is, for messages."""
    name = node.get("function_name") or node["type"]
    return repr(str(name).removeprefix("OPERATOR_").removeprefix("VALUE_").lower())


def _fitting_values(arrow_type: Any) -> str:
    """Return in words what a column of an Arrow type can be compared with, for messages."""
    from pyarrow import types

    if types.is_boolean(arrow_type):
        return "true or false"
    if _is_number_type(arrow_type):
        return "numbers of up to 64 bits"
    return "texts in single quotes"


def _comparison_text(comparison: _Operation) -> str:
    """Return a comparison as users write it, such as `quality > 2.5`, for messages.

    Args:
        comparison: The comparison, with at least one value. It is cut off if it is long.
    """
    values = ", ".join(_literal_text(value) for value in comparison.values)
    match comparison.kind:
        case "in":
            text = f"{comparison.column} in ({values})"
        case "starts_with":
            text = f"starts_with({comparison.column}, {values})"
        case operator:  # such as `>=` or `like`
            text = f"{comparison.column} {operator} {values}"
    return shortened(text, _MAX_ERROR_CHARACTERS)


def _literal_text(value: Literal) -> str:
    """Return a value as users write it: 2.5, 'de', true or date '2024-01-31'."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return text_literal(value)
    if isinstance(value, datetime):
        return f"timestamp '{value.isoformat(sep=' ')}'"
    return str(value)


def _sql_condition(operation: _Operation, schema: Any) -> SqlCondition:
    """Write a condition as SQL for a table whose columns and types are known.

    For `quality >= 3 and lang = 'en'`, if `lang` is column 0 and `quality` is column 1:

        and
        ├── (c1 >= '3'::BIGINT)
        └── (c0 = 'en')

    Args:
        operation: The root of the condition, or an operation within it.
        schema: pyarrow.Schema of the documents: the names and types of their columns.

    Returns:
        A tree as above. It is not joined to one text, because several conditions may have the same
        comparison, which is computed once.

    Raises:
        _TypeMismatchError: A column cannot be compared with a value, such as a number with a text.
    """
    if operation.operands:
        operands = tuple(_sql_condition(operand, schema) for operand in operation.operands)
        return SqlCondition(operation.kind, operands)

    arrow_type = value_type(schema.field(operation.column).type)
    reference = column_reference(schema, operation.column)  # such as "c1"
    sql = _comparison_sql(operation, reference, arrow_type)
    return SqlCondition("comparison", comparison=f"({sql})")


def _comparison_sql(operation: _Operation, reference: str, arrow_type: Any) -> str:
    """Return the SQL for the comparison of a column with a value, such as `c0 >= '3'::BIGINT`.

    How it is written depends on the type of the column: the value must have the same type, and
    dates are stored as texts.

    Args:
        operation: The comparison, such as `quality >= 3`.
        reference: How SQL names the column: c0 for the first one.
        arrow_type: Type of the column.

    Raises:
        _TypeMismatchError: The column cannot be compared with the values.
    """
    import pyarrow as pa

    if operation.kind == "null":
        return f"{reference} IS NULL"
    if pa.types.is_null(arrow_type):
        return "NULL::BOOLEAN"  # the column has no value, so every comparison is null
    if pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type):
        return _text_sql(operation, reference, arrow_type)
    return _number_sql(operation, reference, arrow_type)


def _text_sql(operation: _Operation, reference: str, arrow_type: Any) -> str:
    """Write a comparison with a column of texts as SQL. The column may be compared with dates, too.

        condition                      SQL (c0 is the column)
        lang = 'de'                    c0 = 'de'
        date >= date '2024-01-31'      TRY_CAST(c0 AS TIMESTAMP) >= TIMESTAMP '2024-01-31 00:00:00'

    Args:
        operation: The comparison.
        reference: How SQL names its column, such as "c0".
        arrow_type: Type of the column, for errors.

    Raises:
        _TypeMismatchError: A value is neither a text nor a date, or there are both.
    """
    values = list(operation.values)
    if all(isinstance(value, str) for value in values):
        return _compared(operation, reference, values)
    if all(isinstance(value, datetime) for value in values):
        # Columns store dates as texts, such as "2024-01-31". TRY_CAST returns null for a text that
        # is not a date, where CAST would fail.
        date = f"TRY_CAST({reference} AS TIMESTAMP)"
        return _compared(operation, date, values)
    raise _TypeMismatchError(arrow_type, operation)


def _number_sql(operation: _Operation, reference: str, arrow_type: Any) -> str:
    """Return the SQL that compares a column of numbers or booleans with values.

        condition            column        SQL (c0 is the column)
        quality >= 3         integers      c0 >= '3'::BIGINT
        quality < 2.5        integers      CAST(c0 AS DOUBLE) < '2.5'::DOUBLE
        is_code = true       booleans      c0 = TRUE

    Args:
        operation: The comparison.
        reference: How SQL names its column, such as "c0".
        arrow_type: Type of the column.

    Raises:
        _TypeMismatchError: The column has another type, or cannot be compared with the values.
    """
    import pyarrow as pa

    numbers = _comparable_numbers(operation, arrow_type)

    # Compare floats if the column or one of the values is a float.
    has_floats = any(isinstance(number, float) for number in numbers)
    if has_floats or pa.types.is_floating(arrow_type):
        floats = [float(number) for number in numbers]
        return _float_sql(operation, reference, floats)
    if pa.types.is_boolean(arrow_type):
        booleans = [bool(number) for number in numbers]
        return _compared(operation, reference, booleans)
    integers = [int(number) for number in numbers]
    return _compared(operation, reference, integers)


def _comparable_numbers(operation: _Operation, arrow_type: Any) -> list[int | float]:
    """Return the values of a comparison, after a check that they fit a column of numbers.

        condition               column        result
        quality >= 3            integers      [3]
        quality = 'high'        integers      an error: a text
        quality like '3%'       integers      an error: only texts can have a pattern
        quality = true          integers      an error: a boolean
        is_code = 1             booleans      an error: a number
        is_code = true          booleans      [True]
        is_code = 'true'        booleans      [True]
        quality in ('3', '4')   integers      [3, 4]

    Args:
        operation: The comparison.
        arrow_type: Type of the column, which may also be boolean.

    Raises:
        _TypeMismatchError: They do not fit.
    """
    values = operation.values
    if operation.kind in ("=", "<>", "in"):
        values = tuple(_of_column_type(value, arrow_type) for value in values)
    numbers = [value for value in values if _is_comparable_number(value)]

    has_other_values = len(numbers) < len(values)
    if has_other_values or not _can_compare(operation, numbers, arrow_type):
        raise _TypeMismatchError(arrow_type, operation)
    return numbers


def _can_compare(operation: _Operation, numbers: list[int | float], arrow_type: Any) -> bool:
    """Return whether an operation can compare a column with numbers or booleans.

    Booleans are compared with booleans, and numbers with numbers. Only in a list, 0 and 1 may stand
    for booleans, and the other way round: `is_code in (0, 1)`.

    Args:
        operation: The comparison.
        numbers: Its values; if it is not a list (`in`), there is one.
        arrow_type: Type of the column.
    """
    import pyarrow as pa

    needs_texts = operation.kind in ("like", "starts_with")
    if needs_texts or not _is_number_type(arrow_type):
        return False
    if operation.kind == "in":
        return True
    [number] = numbers
    has_boolean_column = bool(pa.types.is_boolean(arrow_type))
    return isinstance(number, bool) == has_boolean_column


def _of_column_type(value: Literal, arrow_type: Any) -> Literal:
    """Return a text that equals a boolean or number as that, for a column of booleans or numbers.

    A mixture that divides a corpus by the values of a column compares the column with them. YAML
    needs quotes for 'true' and '2.5', whatever the type of the column.

    Args:
        value: The value of a comparison: 'true', '2.5', 'high' or 3.
        arrow_type: Type of the column.

    Returns:
        True, 2.5, and the last two unchanged. All are unchanged if the column has other types.
    """
    import pyarrow as pa

    if not isinstance(value, str):
        return value
    if pa.types.is_boolean(arrow_type):
        return _BOOLEAN_OF_TEXT.get(value, value)
    if _is_number_type(arrow_type) and _NUMBER_TEXT.fullmatch(value):
        is_integer = value.lstrip("-").isdigit()
        return int(value) if is_integer else float(value)
    return value


def _is_comparable_number(value: Literal) -> TypeGuard[int | float]:
    """Return whether a value is a boolean or a number that columns can have."""
    if isinstance(value, int):  # a boolean is an int in Python, too
        return -_INT64_STOP <= value < _INT64_STOP
    return isinstance(value, float)


def _is_number_type(arrow_type: Any) -> bool:
    """Return whether a column of an Arrow type has numbers or booleans."""
    import pyarrow as pa

    types = pa.types
    return bool(
        types.is_boolean(arrow_type)
        or types.is_integer(arrow_type)
        or types.is_floating(arrow_type)
        or types.is_decimal(arrow_type)
    )


def _float_sql(operation: _Operation, reference: str, values: list[float]) -> str:
    """Return the SQL that compares a column with floats.

    The result differs from that of DuckDB in two cases:

        condition           value of a document    DuckDB    here
        quality > 3         NaN                    true      false
        quality in (0.0)    -0.0                   true      false

    Args:
        operation: The comparison.
        reference: How SQL names its column, which has integers, floats, decimals or booleans.
        values: The values of the operation as floats.
    """
    number = f"CAST({reference} AS DOUBLE)"
    comparison = _compared(operation, number, values)  # such as `x > 3`

    if operation.kind in (">", ">="):
        # DuckDB takes NaN for larger than all numbers. (So `NaN < 3` is false there, too.)
        return f"{comparison} AND NOT isnan({number})"
    if operation.kind == "in":
        return comparison + _zero_sign_sql(number, values)
    return comparison


def _zero_sign_sql(number: str, listed_values: list[float]) -> str:
    """Return SQL to add to `x IN (…)`, so that 0.0 and -0.0 are different numbers.

    For DuckDB, they are equal. In the first version of conditions, `in` distinguished them, and
    must still choose the same documents.

    Args:
        number: SQL of the compared number.
        listed_values: The values in the list. If 0.0 is one of them, and -0.0 is not, the SQL
            demands that a zero has no minus sign.

    Returns:
        Empty if neither or both zeros are in the list.
    """
    signs_of_zeros = {math.copysign(1, value) for value in listed_values if value == 0}
    if signs_of_zeros == {1.0}:
        return f" AND ({number} <> 0 OR NOT signbit({number}))"
    if signs_of_zeros == {-1.0}:
        return f" AND ({number} <> 0 OR signbit({number}))"
    return ""


def _compared(operation: _Operation, reference: str, values: list[Any]) -> str:
    """Write a comparison as SQL, once its values have the type of the column.

        operation      values         SQL
        >=             [3]            c0 >= '3'::BIGINT
        in             ["de", "en"]   c0 IN ('de', 'en')
        like           ["d%"]         c0 LIKE 'd%'
        starts_with    ["de"]         starts_with(c0, 'de')

    Args:
        operation: The comparison. Its own values are not used.
        reference: SQL of the column, such as "c0" or "CAST(c0 AS DOUBLE)".
        values: The values, at least one.
    """
    literals = [_sql_literal(value) for value in values]
    match operation.kind:
        case "in":
            return f"{reference} IN ({', '.join(literals)})"
        case "like":
            return f"{reference} LIKE {literals[0]}"
        case "starts_with":
            return f"starts_with({reference}, {literals[0]})"
        case operator:
            return f"{reference} {operator} {literals[0]}"


def _sql_literal(value: Literal) -> str:
    """Write a value as SQL, in a way that DuckDB gives it the same type and exactly the same value.

        "it's"                     'it''s'
        3                          '3'::BIGINT
        0.1                        '0.1'::DOUBLE
        True                       TRUE
        datetime(2024, 1, 31)      TIMESTAMP '2024-01-31 00:00:00'

    Args:
        value: The value.
    """
    if isinstance(value, str):
        return _sql_text(value)
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
    if isinstance(value, bool):
        return str(value).upper()
    # DuckDB takes a plain `0.1` as a DECIMAL, and a plain `3` as an INTEGER. As texts with a type,
    # numbers keep all their digits, and `inf` can be written, too.
    if isinstance(value, float):
        return f"'{value!r}'::DOUBLE"
    return f"'{value}'::BIGINT"


def _sql_text(text: str) -> str:
    """Write a text as SQL, in single quotes.

    DuckDB's parser may end a statement at a zero character. So this character is written as chr(0),
    and the texts before and after it are concatenated: ('a' || chr(0) || 'b').
    """
    if "\0" not in text:
        return text_literal(text)
    parts = [text_literal(part) for part in text.split("\0")]
    return f"({' || chr(0) || '.join(parts)})"
