"""Arrow columns as values of JSON: which value each type becomes, and which have none."""

import datetime
import decimal
import json
import math
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.text.tables.json_values import NotJsonError, json_values


class NameType(pa.ExtensionType):
    """A type of names, which are stored as strings."""

    def __init__(self):
        super().__init__(pa.string(), "test.name")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        return cls()


class Column(NamedTuple):
    """A column, and its values in JSON."""

    array: pa.Array
    values: list[Any]


COLUMNS = {
    "null": Column(pa.array([None, None]), [None, None]),
    "boolean": Column(pa.array([True, None]), [True, None]),
    "int64": Column(pa.array([-(2**63), 2**63 - 1], pa.int64()), [-(2**63), 2**63 - 1]),
    "uint64": Column(pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
    "double": Column(
        pa.array([0.1, -0.0, math.nan, math.inf, -math.inf, None]),
        [0.1, -0.0, None, None, None, None],
    ),
    "float": Column(pa.array([0.1], pa.float32()), [float(np.float32(0.1))]),
    "half float": Column(
        pa.array([np.float16(0.1), np.float16("nan")], pa.float16()),
        [float(np.float16(0.1)), None],
    ),
    "decimal128": Column(
        pa.array([decimal.Decimal("12.340"), None], pa.decimal128(9, 3)),
        ["12.340", None],
    ),
    "decimal256": Column(
        pa.array([decimal.Decimal("1")], pa.decimal256(40, 30)),
        ["1." + "0" * 30],
    ),
    "large string": Column(pa.array(["é", None, ""], pa.large_string()), ["é", None, ""]),
    "string view": Column(pa.array(["é" * 20, None], pa.string_view()), ["é" * 20, None]),
    "binary": Column(pa.array(["é".encode(), None], pa.binary()), ["é", None]),
    "binary of a fixed size": Column(pa.array([b"ab"], pa.binary(2)), ["ab"]),
    "date": Column(pa.array([datetime.date(2024, 1, 31), None]), ["2024-01-31", None]),
    "time": Column(pa.array([86_399_000_001], pa.time64("us")), ["23:59:59.000001"]),
    "timestamp in ns": Column(
        pa.array([1], pa.timestamp("ns")),
        ["1970-01-01T00:00:00.000000001"],
    ),
    "timestamp with a zone": Column(
        pa.array([0, None], pa.timestamp("s", "Europe/Paris")),
        ["1970-01-01T00:00:00Z", None],
    ),
    "timestamp before Christ": Column(
        pa.array([-(10**11)], pa.timestamp("s")),
        ["-1199-02-15T14:13:20"],
    ),
    "duration": Column(pa.array([1500], pa.duration("ms")), [1500]),
    "list": Column(
        pa.array([[1, None], None, []], pa.list_(pa.int8())),
        [[1, None], None, []],
    ),
    "large list": Column(pa.array([[1], [2, 3]], pa.large_list(pa.int8())), [[1], [2, 3]]),
    "list of a fixed size": Column(
        pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
        [[1, 2], None, [3, 4]],
    ),
    "list view": Column(
        pa.array([[1, 2], None, [3]], pa.list_view(pa.int8())),
        [[1, 2], None, [3]],
    ),
    "map": Column(
        pa.array([[("k", 1), ("k", None)], None, []], pa.map_(pa.string(), pa.int8())),
        [[["k", 1], ["k", None]], None, []],
    ),
    "struct": Column(pa.array([{"a": 1, "b": [math.nan]}, None]), [{"a": 1, "b": [None]}, None]),
    "empty struct": Column(pa.array([{}, None], pa.struct([])), [{}, None]),
    "dictionary": Column(pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
    "run-end encoded": Column(
        pa.RunEndEncodedArray.from_arrays([2, 3], ["x", "y"]),
        ["x", "x", "y"],
    ),
    "extension": Column(
        pa.ExtensionArray.from_storage(NameType(), pa.array(["a", None])),
        ["a", None],
    ),
}
"""A column of each type."""

every_type = pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS.keys())


@every_type
def test_every_type_has_values_in_json(column):
    assert json_values(column.array) == column.values


@every_type
def test_a_slice_of_a_column_has_the_values_of_its_rows(column):
    assert json_values(column.array.slice(1)) == column.values[1:]


@every_type
def test_a_column_without_rows_has_no_values(column):
    assert json_values(column.array.slice(0, 0)) == []


@every_type
def test_values_are_the_same_after_they_were_written_and_read(column):
    data = orjson.dumps(json_values(column.array))

    assert json.loads(data) == column.values


@pytest.mark.parametrize(
    ("array", "message"),
    [
        pytest.param(pa.array([b"\xff"]), "bytes that are not UTF-8", id="bytes"),
        pytest.param(pa.array([[b"ok", b"\x80"]]), "bytes that are not UTF-8", id="list of bytes"),
        pytest.param(pa.array([2**60], pa.timestamp("s")), "beyond the calendar", id="far instant"),
        pytest.param(
            pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]),
            "two fields of one name",
            id="fields of one name",
        ),
        pytest.param(
            pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
            "a column of month_day_nano_interval",
            id="interval",
        ),
    ],
)
def test_values_that_json_cannot_hold_are_an_error(array, message):
    with pytest.raises(NotJsonError, match=message):
        json_values(array)


# Nested values, compared with a slow conversion of Python's values

SCALARS = {
    "int16": st.integers(-9, 9),
    "int8": st.integers(-9, 9),
    "double": st.floats(),
    "string": st.text(max_size=3),
    "bool": st.booleans(),
}
"""Values by the name of their type."""


def types_with(item_types):
    """Draw a type whose values contain others."""
    return st.one_of(
        item_types.map(pa.list_),
        item_types.map(pa.large_list),
        item_types.map(lambda item_type: pa.list_(item_type, 2)),
        item_types.map(lambda item_type: pa.struct([("a", item_type), ("b", pa.int8())])),
        item_types.map(lambda item_type: pa.map_(pa.string(), item_type)),
    )


NESTED_TYPES = st.recursive(
    st.sampled_from([pa.int16(), pa.float64(), pa.string(), pa.bool_()]), types_with, max_leaves=3
)


def values_of(arrow_type):
    """Draw a value of a type, or None."""
    if pa.types.is_fixed_size_list(arrow_type):
        values = st.lists(values_of(arrow_type.value_type), min_size=2, max_size=2)
    elif pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        values = st.lists(values_of(arrow_type.value_type), max_size=3)
    elif pa.types.is_struct(arrow_type):
        values = st.fixed_dictionaries({field.name: values_of(field.type) for field in arrow_type})
    elif pa.types.is_map(arrow_type):
        items = st.tuples(st.text(max_size=2), values_of(arrow_type.item_type))
        values = st.lists(items, max_size=3)
    else:
        values = SCALARS[str(arrow_type)]
    return st.none() | values


@st.composite
def slices_of_nested_columns(draw):
    """Draw an array of any nested type, and return a slice of it."""
    arrow_type = draw(NESTED_TYPES)
    array = pa.array(draw(st.lists(values_of(arrow_type), max_size=8)), arrow_type)
    start = min(draw(st.integers(0, 3)), len(array))
    stop = max(len(array) - draw(st.integers(0, 3)), start)
    return array.slice(start, stop - start)


def slow_json_value(value):
    """Return a Python value as the value of JSON that it becomes."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: slow_json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [slow_json_value(item) for item in value]
    return value


@given(array=slices_of_nested_columns())
def test_nested_values_are_those_of_a_slow_conversion(array):
    assert json_values(array) == slow_json_value(array.to_pylist())
