import datetime
import decimal
import json
import math

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.text.json_values import NotJsonError, json_values

pa = pytest.importorskip("pyarrow")


@pytest.mark.parametrize(
    ("array", "values"),
    [
        (pa.array([None, None]), [None, None]),
        (pa.array([True, None]), [True, None]),
        (pa.array([-(2**63), 2**63 - 1], pa.int64()), [-(2**63), 2**63 - 1]),
        (pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
        (
            pa.array([0.1, -0.0, math.nan, math.inf, -math.inf, None]),
            [0.1, -0.0, None, None, None, None],
        ),
        (pa.array([0.1], pa.float32()), [float(np.float32(0.1))]),
        (
            pa.array([np.float16(0.1), np.float16("nan")], pa.float16()),
            [float(np.float16(0.1)), None],
        ),
        (pa.array([decimal.Decimal("12.340"), None], pa.decimal128(9, 3)), ["12.340", None]),
        (pa.array([decimal.Decimal("1")], pa.decimal256(40, 30)), ["1." + "0" * 30]),
        (pa.array(["é", None, ""], pa.large_string()), ["é", None, ""]),
        (pa.array(["é" * 20, None], pa.string_view()), ["é" * 20, None]),
        (pa.array(["é".encode(), None], pa.binary()), ["é", None]),
        (pa.array([b"ab"], pa.binary(2)), ["ab"]),
        (pa.array([datetime.date(2024, 1, 31), None]), ["2024-01-31", None]),
        (pa.array([86_399_000_001], pa.time64("us")), ["23:59:59.000001"]),
        (pa.array([1], pa.timestamp("ns")), ["1970-01-01T00:00:00.000000001"]),
        (pa.array([0, None], pa.timestamp("s", "Europe/Paris")), ["1970-01-01T00:00:00Z", None]),
        (pa.array([-(10**11)], pa.timestamp("s")), ["-1199-02-15T14:13:20"]),
        (pa.array([1500], pa.duration("ms")), [1500]),
        (pa.array([[1, None], None, []], pa.list_(pa.int8())), [[1, None], None, []]),
        (pa.array([[1], [2, 3]], pa.large_list(pa.int8())), [[1], [2, 3]]),
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)), [[1, 2], None, [3, 4]]),
        (pa.array([[1, 2], None, [3]], pa.list_view(pa.int8())), [[1, 2], None, [3]]),
        (
            pa.array([[("k", 1), ("k", None)], None, []], pa.map_(pa.string(), pa.int8())),
            [[["k", 1], ["k", None]], None, []],
        ),
        (pa.array([{"a": 1, "b": [math.nan]}, None]), [{"a": 1, "b": [None]}, None]),
        (pa.array([{}, None], pa.struct([])), [{}, None]),
        (pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
        (pa.RunEndEncodedArray.from_arrays([2, 3], ["x", "y"]), ["x", "x", "y"]),
    ],
)
def test_values(array, values):
    assert json_values(array) == values
    assert json_values(array.slice(1)) == values[1:]
    assert json_values(array.slice(0, 0)) == []
    assert json.loads(orjson.dumps(json_values(array))) == values


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (pa.array([b"\xff"]), "bytes that are not UTF-8"),
        (pa.array([[b"ok", b"\x80"]]), "bytes that are not UTF-8"),
        (pa.array([2**60], pa.timestamp("s")), "beyond the calendar"),
        (
            pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]),
            "two fields of one name",
        ),
        (
            pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
            "a column of month_day_nano_interval",
        ),
    ],
)
def test_values_that_json_cannot_hold(array, message):
    with pytest.raises(NotJsonError, match=message):
        json_values(array)


TYPES = st.recursive(
    st.sampled_from([pa.int16(), pa.float64(), pa.string(), pa.bool_()]),
    lambda inner: (
        inner.map(pa.list_)
        | inner.map(pa.large_list)
        | inner.map(lambda kind: pa.list_(kind, 2))
        | inner.map(lambda kind: pa.struct([("a", kind), ("b", pa.int8())]))
        | inner.map(lambda kind: pa.map_(pa.string(), kind))
    ),
    max_leaves=3,
)


def values_of(kind):
    if pa.types.is_fixed_size_list(kind):
        values = st.lists(values_of(kind.value_type), min_size=2, max_size=2)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = st.lists(values_of(kind.value_type), max_size=3)
    elif pa.types.is_struct(kind):
        values = st.fixed_dictionaries({field.name: values_of(field.type) for field in kind})
    elif pa.types.is_map(kind):
        values = st.lists(st.tuples(st.text(max_size=2), values_of(kind.item_type)), max_size=3)
    else:
        values = {
            "int16": st.integers(-9, 9),
            "int8": st.integers(-9, 9),
            "double": st.floats(),
            "string": st.text(max_size=3),
        }.get(str(kind), st.booleans())
    return st.none() | values


def slowly(value):
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: slowly(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [slowly(item) for item in value]
    return value


@settings(max_examples=150, deadline=None)
@given(st.data(), TYPES, st.integers(0, 3), st.integers(0, 3))
def test_nested_values_are_those_of_the_slow_way(data, kind, skip, drop):
    array = pa.array(data.draw(st.lists(values_of(kind), max_size=8)), kind)
    part = array.slice(min(skip, len(array)), max(len(array) - skip - drop, 0))
    assert json_values(part) == slowly(part.to_pylist())


def test_extension_types_are_what_they_are_stored_as():
    class Name(pa.ExtensionType):
        def __init__(self):
            super().__init__(pa.string(), "test.name")

        def __arrow_ext_serialize__(self):
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage_type, serialized):
            return cls()

    assert json_values(pa.ExtensionArray.from_storage(Name(), pa.array(["a", None]))) == ["a", None]
