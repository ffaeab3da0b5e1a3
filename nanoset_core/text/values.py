"""Values that stand beside a document's text → Arrow arrays of few types, the same however
documents are divided.

A kind is a type with what has to be known to find one type for several arrays: null, bool, int
(every number is also a float64), int64, double, string. Two kinds have a third one in common that
holds the values of both without a loss.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from nanoset_core.text.columns import is_bytes_array, plain_array, to_strings
from nanoset_core.text.importing import json_values

MOST_BYTES = 4096
"""Longer texts are left out: 65,536 of each column are held at once."""
_EXACT = 1 << 53
_SHARED = {
    frozenset({"int", "int64"}): "int64",
    frozenset({"int", "double"}): "double",
}


def joined(kinds: Iterable[str]) -> str:
    """Return the narrowest kind that holds the values of all; any two others than numbers share
    text.
    """

    def both(one: str, other: str) -> str:
        if one == other or "null" in (one, other):
            return other if one == "null" else one
        return _SHARED.get(frozenset({one, other}), "string")

    return reduce(both, kinds, "null")


def type_of(kind: str) -> Any:
    """Return the Arrow type of a kind."""
    import pyarrow as pa

    types = {"null": pa.null(), "bool": pa.bool_(), "double": pa.float64(), "string": pa.string()}
    return types.get(kind, pa.int64())


def kind_of(array: Any) -> str:
    """Return the kind of an array that `from_json` or `narrowed` gave."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if array.null_count == len(array):
        return "null"
    if array.type == pa.int64():
        ends = pc.min_max(array).as_py()
        return "int" if ends["min"] >= -_EXACT and ends["max"] <= _EXACT else "int64"
    return {pa.bool_(): "bool", pa.float64(): "double"}.get(array.type, "string")


def as_type(array: Any, target: Any) -> Any:
    """Return an array, or a chunked one, as the type of a kind that holds its values.

    Of numbers as text 1.0 is 1: how a number was written is not known of all.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if array.type == target:
        return array
    if array.null_count == len(array):
        return pa.nulls(len(array), target)
    if array.type == pa.float64() and target == pa.string():
        whole = pc.and_(
            pc.equal(pc.floor(array), array), pc.less_equal(pc.abs(array), float(_EXACT))
        )
        return pc.coalesce(
            pc.if_else(whole, array, None).cast(pa.int64()).cast(target), array.cast(target)
        )
    return array.cast(target)


def from_json(values: Sequence[Any]) -> Any:
    """Return values of JSON as an array; objects, lists, and values of several types as JSON text,
    NaN as null.
    """
    import pyarrow as pa

    types = {*map(type, values)} - {type(None)}
    alike = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    kind = (
        alike.get(next(iter(types)))
        if len(types) == 1
        else pa.float64()
        if types == {int, float}
        else None
    )
    if kind is not None:
        try:
            return _finite(pa.array(values, kind))
        except (
            OverflowError,
            UnicodeEncodeError,
            pa.ArrowInvalid,
        ):  # a number that is too large, half a surrogate pair
            pass
    return pa.array(map(_text, values), pa.string()) if types else pa.nulls(len(values))


def narrowed(array: Any) -> Any:
    """Return an Arrow array as one of the few types: times and decimals as text, nested values as
    JSON text.

    NotJsonError or an ArrowException where it cannot be.
    """
    import pyarrow as pa
    from pyarrow import types

    array = plain_array(array)
    if types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    try:
        if is_bytes_array(array):
            text = array.view(
                pa.large_string() if types.is_large_binary(array.type) else pa.string()
            )
            text.validate(full=True)
            return text.cast(pa.string())
        if types.is_integer(array.type):
            return array.cast(pa.int64())
    except pa.ArrowInvalid:  # bytes that are not UTF-8, a number that is too large
        return (
            pa.array(to_strings(array, "backslashreplace"), pa.string())
            if is_bytes_array(array)
            else array.cast(pa.string())
        )
    if types.is_boolean(array.type) or types.is_null(array.type):
        return array
    return (
        _finite(array.cast(pa.float64()))
        if types.is_floating(array.type)
        else from_json(json_values(array))
    )


def limited(array: Any) -> tuple[Any, int]:
    """Return an array with null in place of texts longer than MOST_BYTES, and how many these are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if array.type != pa.string():
        return array, 0
    too_long = pc.greater(pc.binary_length(array), MOST_BYTES)
    count = pc.sum(too_long).as_py() or 0
    return (pc.if_else(too_long, None, array), count) if count else (array, 0)


def _finite(array: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(pc.is_finite(array), array, None) if array.type == pa.float64() else array


def _text(value: Any) -> str | None:
    """Return a value as the text that it is among texts; None where it has none."""
    if value is None:
        return None
    if type(value) is str:
        return value.encode("utf-8", "backslashreplace").decode()
    if type(value) is float:
        import pyarrow as pa

        text: str | None = as_type(_finite(pa.array([value])), pa.string())[0].as_py()
        return text
    return (
        json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        .encode("utf-8", "backslashreplace")
        .decode()
    )
