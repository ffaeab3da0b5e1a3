"""Conditions on documents: which they choose, and what is refused."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.view_rules import relation_of
from nanoset_core.document_tables.conditions import parse_condition
from nanoset_core.document_tables.scan import DocumentScan
from nanoset_core.errors import ConfigError


def chosen_rows(table: pa.Table, text: str) -> list[bool]:
    """Return for each row of a table whether a condition is true of it."""
    condition = parse_condition(text, "views.v.where")
    scan = DocumentScan([], conditions=[condition])
    [scanned] = scan.batches(relation_of(table))
    return scanned.condition_masks[condition].tolist()


# Random conditions, compared with a loop over rows

COMPARISONS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
TYPE_BY_COLUMN = {
    "number": pa.int64(),
    "score": pa.float64(),
    "a b": pa.string(),
    "flag": pa.bool_(),
}
VALUES_BY_COLUMN = {
    "number": [None, 0, 1, -2, 3, 2**53, -(2**63), 2**63 - 1],
    "score": [None, 0.0, 0.1, -2.5, 3.0, 1e300, math.inf, -math.inf, math.nan],
    "a b": [None, "", "a", "b", "Z", "é", "日本", "😀", "it's", "a\0b", "%"],
    "flag": [None, True, False],
}
ROWS = st.fixed_dictionaries(
    {column: st.sampled_from(values) for column, values in VALUES_BY_COLUMN.items()}
)
Row = Mapping[str, Any]


class EvaluatedCondition(NamedTuple):
    """The text of a condition, and a function that computes it slowly."""

    text: str
    evaluate: Callable[[Row], bool | None]
    """Returns whether the condition is true of a row; None if that is unknown, as in SQL."""


def has_literal(value: Any) -> bool:
    """Return whether a value can be written in a condition; null, nan and inf cannot."""
    if isinstance(value, float):
        return math.isfinite(value)
    return value is not None


def literal(value: Any) -> str:
    """Write a value as a condition does."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value).lower()


def null_test(column: str) -> EvaluatedCondition:
    """Return the condition that a column has no value."""
    return EvaluatedCondition(f'"{column}" is null', lambda row: row[column] is None)


def membership(column: str, values: list[Any]) -> EvaluatedCondition:
    """Return the condition that the value of a column is in a list."""

    def evaluate(row: Row) -> bool | None:
        if row[column] is None:
            return None
        return row[column] in values

    literals = ", ".join(literal(value) for value in values)
    return EvaluatedCondition(f'"{column}" in ({literals})', evaluate)


def comparison(column: str, symbol: str, value: Any) -> EvaluatedCondition:
    """Return the comparison of a column with a value."""

    def evaluate(row: Row) -> bool | None:
        if row[column] is None:
            return None
        return COMPARISONS[symbol](row[column], value)

    return EvaluatedCondition(f'"{column}" {symbol} {literal(value)}', evaluate)


def negation(operand: EvaluatedCondition) -> EvaluatedCondition:
    """Return `not` of a condition."""

    def evaluate(row: Row) -> bool | None:
        value = operand.evaluate(row)
        if value is None:
            return None
        return not value

    return EvaluatedCondition(f"not ({operand.text})", evaluate)


def junction(word: str, left: EvaluatedCondition, right: EvaluatedCondition) -> EvaluatedCondition:
    """Return two conditions that are joined by `and` or `or`."""
    # One operand with this value decides, even if the other one is unknown.
    decisive = {"or": True, "and": False}[word]

    def evaluate(row: Row) -> bool | None:
        values = [left.evaluate(row), right.evaluate(row)]
        if decisive in values:
            return decisive
        if None in values:
            return None
        return not decisive

    return EvaluatedCondition(f"({left.text}) {word} ({right.text})", evaluate)


@st.composite
def simple_conditions(draw: st.DrawFn) -> EvaluatedCondition:
    """Draw a condition on one column."""
    column = draw(st.sampled_from(list(VALUES_BY_COLUMN)))
    values = st.sampled_from([value for value in VALUES_BY_COLUMN[column] if has_literal(value)])
    kind = draw(st.sampled_from([*COMPARISONS, "in", "null"]))
    if kind == "null":
        return null_test(column)
    if kind == "in":
        return membership(column, draw(st.lists(values, min_size=1, max_size=3)))
    return comparison(column, kind, draw(values))


def compound_conditions(
    operands: st.SearchStrategy[EvaluatedCondition],
) -> st.SearchStrategy[EvaluatedCondition]:
    """Draw a condition that contains others."""
    junctions = st.builds(junction, st.sampled_from(["and", "or"]), operands, operands)
    return operands.map(negation) | junctions


CONDITIONS = st.recursive(simple_conditions(), compound_conditions, max_leaves=6)


@given(rows=st.lists(ROWS, min_size=1, max_size=20), condition=CONDITIONS)
def test_a_condition_chooses_the_same_rows_as_a_slow_loop(rows, condition):
    arrays = {}
    for column, arrow_type in TYPE_BY_COLUMN.items():
        arrays[column] = pa.array([row[column] for row in rows], arrow_type)

    mask = chosen_rows(pa.table(arrays), condition.text)

    assert mask == [condition.evaluate(row) is True for row in rows], condition.text


# What conditions may contain


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("url like '%.org/%'", [True, False, False, False]),
        ("url not like '%.org/%'", [False, True, True, False]),
        ("url like '_ttp:%'", [False, True, False, False]),
        ("starts_with(url, 'https://')", [True, False, False, False]),
        ("url between 'a' and 'http:~'", [False, True, True, False]),
        ("size between 2 and 3", [False, True, True, False]),
        ("size not between 2 and 3", [True, False, False, False]),
        ("day >= date '2024-02-01'", [False, True, True, False]),
        ("day < timestamp '2024-02-01 12:00:01'", [True, True, False, False]),
        ("3 <= size", [False, False, True, False]),
        ("size = +1 or size = - 3", [True, False, False, False]),
        ("group = 'x'", [True, False, True, False]),
        ("meta.group is not null and not meta.group in ('y')", [True, False, False, False]),
        ("size = 1 -- a comment", [True, False, False, False]),
        ("Size = 7", [True, True, True, True]),
    ],
)
def test_a_condition_may_use_the_documented_parts_of_sql(text, expected):
    table = pa.table(
        {
            "url": ["https://a.org/", "http://b", "c", None],
            "size": [1, 2, 3, None],
            "day": ["2024-01-31", "2024-02-01T12:00:00+02:00", "2024-03-01", "soon"],
            "group": ["x", "y", "x", None],  # a reserved word of SQL
            "meta.group": ["x", None, "y", None],
            "Size": [7, 7, 7, 7],
        }
    )

    assert chosen_rows(table, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("score = 0", [True, True, False]),
        ("score in (0, 1)", [True, False, True]),
        ("score in (-0.0)", [False, True, False]),
    ],
)
def test_zeros_of_both_signs_are_equal_but_different_in_lists(text, expected):
    table = pa.table({"score": [0.0, -0.0, 1.0]})

    assert chosen_rows(table, text) == expected


def test_texts_in_a_dictionary_have_the_order_of_texts():
    table = pa.table({"lang": pa.array(["en", "de", "fr"]).dictionary_encode()})

    assert chosen_rows(table, "lang < 'en'") == [False, True, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none = 1 or none = 'a'", [False, False]),
        ("none is null", [True, True]),
    ],
)
def test_a_column_without_any_value_is_null(text, expected):
    table = pa.table({"none": pa.nulls(2)})

    assert chosen_rows(table, text) == expected


# What is refused


@pytest.mark.parametrize(
    "text",
    [
        "",
        "'lang'",
        "lang = 'a' limit 3",
        "lang = 'a'; select 2",
        "lang = 'a') or (lang = 'b'",
        "lang in (select 'a')",
        "lang = (select 'a')",
        "lang = other",
        'lang = "other"',
        "lang = null",
        "lang is true",
        "size + 1 = 2",
        "lower(lang) = 'a'",
        "starts_with(lang, other)",
        "read_text('/etc/passwd') = 'x'",
        "getenv('HOME') = 'x'",
        "lang = ?",
        "size::text = '1'",
        "lang like 'a' escape '!'",
        "day > date 'soon'",
        "day > timestamp '2024-01-01 00:00:00+02:00'",
    ],
)
def test_other_parts_of_sql_are_refused(text):
    with pytest.raises(ConfigError, match="this is not a condition on documents"):
        parse_condition(text, "views.v.where")


@pytest.mark.parametrize(
    "text",
    [
        "lang = 3",
        "lang = true",
        "lang",
        "size = 'x'",
        "size = true",
        "size like '1%'",
        "size > date '2024-01-01'",
        "size in (1, 'x')",
        "size = 9223372036854775808",
        "flag = 1",
        "flag > 'a'",
    ],
)
def test_values_of_another_type_than_the_column_are_refused_before_anything_is_read(text):
    schema = pa.schema({"lang": pa.string(), "size": pa.int64(), "flag": pa.bool_()})
    condition = parse_condition(text, "views.v.where")

    with pytest.raises(
        ConfigError, match=r"the condition cannot be computed: .* is a column of type"
    ):
        condition.for_columns(schema)


@pytest.mark.parametrize(
    ("text", "same_text"),
    [
        ("flag = 'true'", "flag = true"),
        ("flag <> 'false'", "flag <> false"),
        ("flag in ('true', 'false')", "flag in (true, false)"),
        ("size = '3'", "size = 3"),
        ("size in ('-3', '9007199254740993')", "size in (-3, 9007199254740993)"),
        ("score in ('2.5', '1e3')", "score in (2.5, 1000.0)"),
    ],
)
def test_a_text_may_stand_for_the_boolean_or_number_that_a_column_equals(text, same_text):
    schema = pa.schema({"score": pa.float64(), "size": pa.int64(), "flag": pa.bool_()})

    sql = parse_condition(text, "views.v.where").for_columns(schema).sql

    assert sql == parse_condition(same_text, "views.v.where").for_columns(schema).sql


@pytest.mark.parametrize(
    ("text", "comparison"),
    [
        ("lang > 2.5", "lang > 2.5"),
        ("size = 1 and not lang in (3, true)", "lang in (3, true)"),
        ("size like 'it''s%'", "size like 'it''s%'"),
        ("starts_with(size, '1')", "starts_with(size, '1')"),
        ("size > date '2024-01-01'", "size > timestamp '2024-01-01 00:00:00'"),
    ],
)
def test_the_comparison_that_does_not_fit_is_named_as_it_was_written(text, comparison):
    schema = pa.schema({"lang": pa.string(), "size": pa.int64()})
    condition = parse_condition(text, "views.v.where")

    with pytest.raises(ConfigError) as caught:
        condition.for_columns(schema)

    assert caught.value.found == comparison


def test_an_unknown_column_is_refused_with_the_names_of_those_that_exist():
    schema = pa.schema({"lang": pa.string()})
    condition = parse_condition("Lang = 'en'", "views.v.where")

    with pytest.raises(ConfigError, match="no such column") as caught:
        condition.for_columns(schema)

    assert "lang" in str(caught.value)


MAX_SECONDS = 5
"""Far more than it takes to refuse a long list of values without parsing it."""


@pytest.mark.parametrize(
    "template",
    [
        pytest.param("{0}", id="integers"),
        pytest.param("'doc-{0}'", id="texts"),
        pytest.param("-{0}.5", id="negative floats"),
    ],
)
def test_a_long_list_of_values_is_refused_quickly_with_what_to_do_instead(template):
    values = ", ".join(template.format(number) for number in range(200_000))
    start = time.monotonic()

    with pytest.raises(ConfigError, match="too many values") as caught:
        parse_condition(f"id in ({values})", "views.v.where")

    assert time.monotonic() - start < MAX_SECONDS
    assert "include" in str(caught.value.remedy)
    assert len(str(caught.value)) < 1000


# Scans


def test_only_documents_that_meet_a_condition_are_returned_with_their_numbers():
    numbers = np.arange(200_000)
    table = pa.table({"number": numbers, "double": 2 * numbers})
    small = parse_condition("number in (1, 65536)", "views.v.where")
    large = parse_condition("number > 199998", "views.w.where")

    scan = DocumentScan(["double"], conditions=[small, large], only=[small, large])
    [scanned] = scan.batches(relation_of(table))

    assert scanned.rows.tolist() == [1, 65536, 199999]
    assert scanned.columns["double"].to_pylist() == [2, 131072, 399998]
    assert scanned.condition_masks[small].tolist() == [True, True, False]
    assert scanned.condition_masks[large].tolist() == [False, False, True]


def test_a_condition_is_parsed_only_once():
    values = ", ".join(map(str, range(1000)))
    text = f"number in ({values})"

    first = parse_condition(text, "a")
    second = parse_condition(text, "b")

    assert first._root is second._root
