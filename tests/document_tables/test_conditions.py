"""Conditions on documents: what they choose, what is refused, and what is parsed once."""

from __future__ import annotations

import math
import operator
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.view_rules import relation_of
from nanoset_core.document_tables.conditions import parse_condition
from nanoset_core.document_tables.scan import DocumentScan
from nanoset_core.errors import ConfigError

COMPARISONS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NUMBERS = [None, 0, 1, -2, 3, 2**53, -(2**63), 2**63 - 1]
FLOATS = [None, 0.0, 0.1, -2.5, 3.0, 1e300, math.inf, -math.inf, math.nan]
TEXTS = [None, "", "a", "b", "Z", "é", "日本", "😀", "it's", "a\0b", "%"]
BOOLEANS = [None, True, False]
TYPES = {"number": pa.int64(), "score": pa.float64(), "a b": pa.string(), "flag": pa.bool_()}
VALUES = {"number": NUMBERS, "score": FLOATS, "a b": TEXTS, "flag": BOOLEANS}
ROW = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()})


def chosen(table: pa.Table, text: str) -> list[bool]:
    """Return for which rows of a table a condition is true."""
    condition = parse_condition(text, "views.v.where")
    scan = DocumentScan([], conditions=[condition])
    [scanned] = scan.batches(relation_of(table))
    return scanned.condition_masks[condition].tolist()


def literal(value) -> str:
    """Write a value as a condition does."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value).lower()


@st.composite
def comparisons(draw):
    """Draw the text of a comparison, and a function that says whether it is true of a row."""
    column = draw(st.sampled_from(list(VALUES)))
    values = [value for value in VALUES[column] if value is not None]
    values = [value for value in values if isinstance(value, str) or math.isfinite(value)]
    name = f'"{column}"'
    kind = draw(st.sampled_from([*COMPARISONS, "in", "null"]))
    if kind == "null":
        return f"{name} is null", lambda row: row[column] is None
    if kind == "in":
        listed = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        text = f"{name} in ({', '.join(map(literal, listed))})"
        return text, lambda row: None if row[column] is None else row[column] in listed
    value = draw(st.sampled_from(values))

    def compare(row):
        return None if row[column] is None else COMPARISONS[kind](row[column], value)

    return f"{name} {kind} {literal(value)}", compare


def negated(operand):
    """Return `not` of a condition."""
    text, evaluate = operand

    def evaluate_not(row):
        value = evaluate(row)
        return None if value is None else not value

    return f"not ({text})", evaluate_not


def joined(word: str, left, right):
    """Return two conditions joined by `and` or `or`, with null as in SQL."""
    decisive = word == "or"

    def evaluate(row):
        values = [left[1](row), right[1](row)]
        if decisive in values:
            return decisive
        return None if None in values else not decisive

    return f"({left[0]}) {word} ({right[0]})", evaluate


CONDITIONS = st.recursive(
    comparisons(),
    lambda inner: (
        inner.map(negated) | st.builds(joined, st.sampled_from(["and", "or"]), inner, inner)
    ),
    max_leaves=6,
)


@given(rows=st.lists(ROW, min_size=1, max_size=20), condition=CONDITIONS)
def test_a_condition_chooses_what_a_loop_over_rows_does(rows, condition):
    text, evaluate = condition
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in TYPES.items()}

    mask = chosen(pa.table(columns), text)

    assert mask == [evaluate(row) is True for row in rows], text


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
def test_what_a_condition_may_say(text, expected):
    table = pa.table(
        {
            "url": ["https://a.org/", "http://b", "c", None],
            "size": [1, 2, 3, None],
            "day": ["2024-01-31", "2024-02-01T12:00:00+02:00", "2024-03-01", "soon"],
            "group": ["x", "y", "x", None],
            "meta.group": ["x", None, "y", None],
            "Size": [7, 7, 7, 7],
        }
    )

    assert chosen(table, text) == expected


def test_zeros_of_both_signs_are_equal_but_apart_in_lists():
    table = pa.table({"score": [0.0, -0.0, 1.0]})

    assert chosen(table, "score = 0") == [True, True, False]
    assert chosen(table, "score in (0, 1)") == [True, False, True]
    assert chosen(table, "score in (-0.0)") == [False, True, False]


def test_texts_of_a_dictionary_have_the_order_of_texts():
    table = pa.table({"lang": pa.array(["en", "de", "fr"]).dictionary_encode()})

    assert chosen(table, "lang < 'en'") == [False, True, False]


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
def test_whatever_is_not_documented_is_refused(text):
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

    with pytest.raises(ConfigError, match=r"the condition cannot be computed: .* holds"):
        parse_condition(text, "views.v.where").for_columns(schema)


def test_an_unknown_column_is_refused_with_those_that_exist():
    schema = pa.schema({"lang": pa.string()})

    with pytest.raises(ConfigError, match="no such column") as caught:
        parse_condition("Lang = 'en'", "views.v.where").for_columns(schema)

    assert "lang" in str(caught.value)


def test_a_column_without_any_value_is_never_equal_to_anything():
    table = pa.table({"none": pa.nulls(2)})

    assert chosen(table, "none = 1 or none = 'a'") == [False, False]
    assert chosen(table, "none is null") == [True, True]


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


@pytest.mark.parametrize("value", ["{0}", "'doc-{0}'", "-{0}.5"])
def test_a_long_list_of_values_is_refused_at_once_with_what_to_do_instead(value):
    listed = ", ".join(value.format(number) for number in range(200_000))
    begun = time.monotonic()
    with pytest.raises(ConfigError, match="too many values") as caught:
        parse_condition(f"id in ({listed})", "views.v.where")
    assert time.monotonic() - begun < 5
    assert "include" in str(caught.value.remedy)
    assert len(str(caught.value)) < 1000


def test_a_condition_is_parsed_once():
    text = f"number in ({', '.join(map(str, range(1000)))})"
    assert parse_condition(text, "a")._root is parse_condition(text, "b")._root
