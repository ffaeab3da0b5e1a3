"""Convert the values of Arrow arrays to Python values that JSON can hold."""

from __future__ import annotations

from typing import Any

from nanoset_core.text.tables.columns import is_bytes_array, plain_array, to_strings


class NotJsonError(ValueError):
    """Values cannot be written as JSON without a loss.

    Callers that know the file and the column catch it, and name both in their own error.
    """


def json_values(array: Any) -> list[Any]:
    """Return each value of an Arrow array as a Python value that JSON can hold.

    | Arrow | JSON |
    | --- | --- |
    | null | null |
    | integers and booleans | the same |
    | floats | the same, widened exactly to 64 bits; NaN and the infinities are null |
    | decimals | strings with all their digits |
    | strings and bytes | strings |
    | dates, times, timestamps | ISO 8601 in the column's unit: 2024-01-31, 23:59:59.000001, |
    | | 2024-01-31T23:59:59.000001; with a Z, in UTC, if the column has a time zone |
    | durations | whole numbers of the column's unit |
    | lists | arrays |
    | structs | objects |
    | maps | arrays of [key, value] |
    | dictionaries, runs, extension types | as the values that they encode |

    Args:
        array: A pyarrow.Array of any type.

    Raises:
        NotJsonError: Bytes are not UTF-8, a struct has two fields of one name, an instant has no
            ISO form, or the type is not in the table.
        pyarrow.ArrowException: The array is damaged.
    """
    import pyarrow as pa
    from pyarrow import types

    array = plain_array(array)
    arrow_type = array.type
    if types.is_struct(arrow_type):
        return _struct_values(array)
    if types.is_nested(arrow_type) and not types.is_union(arrow_type):
        return _list_values(array)
    if types.is_timestamp(arrow_type):
        return _timestamp_values(array)

    # Cast the remaining types to those that `_scalar_values` accepts.
    if types.is_fixed_size_binary(arrow_type):
        array = array.cast(pa.binary())
    elif types.is_duration(arrow_type):
        array = array.cast(pa.int64())
    elif types.is_decimal(arrow_type) or types.is_date(arrow_type) or types.is_time(arrow_type):
        array = array.cast(pa.string())
    elif types.is_floating(arrow_type):
        array = array.cast(pa.float64())
    return _scalar_values(array)


def _scalar_values(array: Any) -> list[Any]:
    """Return the values of an Arrow array of one of the simple types that JSON has.

        bytes b"Hello"     "Hello"
        7                  7
        0.5, NaN           0.5, None: JSON has no NaN
        a union            an error: JSON has nothing like it

    Args:
        array: The array.

    Raises:
        NotJsonError: The array has another type, or bytes are not UTF-8.
    """
    import pyarrow.compute as pc
    from pyarrow import types

    if is_bytes_array(array):
        try:
            return to_strings(array)
        except UnicodeDecodeError as error:
            raise NotJsonError(f"bytes that are not UTF-8: {error.object[:20]!r}") from error

    if types.is_floating(array.type):
        array = pc.if_else(pc.is_finite(array), array, None)
    elif not _has_json_type(array):
        raise NotJsonError(f"a column of {array.type}")
    values: list[Any] = array.to_pylist()
    return values


def _has_json_type(array: Any) -> bool:
    """Return whether JSON has the type of an Arrow array: integers, booleans, nulls or strings."""
    from pyarrow import types

    return bool(
        types.is_integer(array.type)
        or types.is_boolean(array.type)
        or types.is_null(array.type)
        or types.is_string(array.type)
    )


def _timestamp_values(array: Any) -> list[Any]:
    """Return instants as texts in the format ISO 8601, such as "2024-01-31T23:59:59".

    If the column has a time zone, they are in UTC and end with a Z: "2024-01-31T22:59:59Z".

    Args:
        array: An Arrow array of timestamps.

    Raises:
        NotJsonError: The year of an instant is too far in the past or future for Arrow to write it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    # Arrow stores instants in UTC. It also writes them in UTC if the type has no time zone.
    without_zone = array.cast(pa.timestamp(array.type.unit))
    texts = without_zone.cast(pa.string())  # "2024-01-31 23:59:59" or "<value out of range: …>"

    is_out_of_range = pc.starts_with(texts, "<")
    if pc.any(is_out_of_range).as_py():
        raise NotJsonError(f"an instant beyond the calendar, in a column of {array.type}")

    suffix = "" if array.type.tz is None else "Z"
    values: list[Any] = []
    for text in texts.to_pylist():
        if text is None:
            values.append(None)
        else:
            values.append(text.replace(" ", "T") + suffix)
    return values


def _struct_values(array: Any) -> list[Any]:
    """Return the structs of an Arrow array as dictionaries: {"url": "a.org", "score": 3}.

    A null becomes None.

    Args:
        array: An Arrow array of structs.

    Raises:
        NotJsonError: Two fields have one name, or JSON cannot hold a field.
    """
    names = [field.name for field in array.type]
    if len(set(names)) != len(names):
        raise NotJsonError(f"two fields of one name, in a column of {array.type}")

    # Convert each field as a column, and then combine the columns row by row.
    columns = [json_values(array.field(index)) for index in range(len(names))]
    values: list[Any] = []
    for is_valid, *fields in zip(array.is_valid().to_pylist(), *columns, strict=True):
        if is_valid:
            values.append(dict(zip(names, fields, strict=True)))
        else:
            values.append(None)
    return values


def _list_values(array: Any) -> list[Any]:
    """Return the lists of an Arrow array as Python lists.

        a list     ["a", "b"]             ["a", "b"]
        a map      "a" → 1, "b" → 2       [["a", 1], ["b", 2]]
        a null                            None

    Args:
        array: An Arrow array of lists, of any of Arrow's kinds of lists, or of maps.

    Raises:
        NotJsonError: JSON cannot hold the items.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_map = pa.types.is_map(array.type)
    if is_map:
        # Regard a map as a list of pairs, each of which is a struct of a key and a value.
        pair_field = array.type.field(0)
        array = array.cast(pa.list_(pair_field))

    items = json_values(array.flatten())  # of all lists together, which is faster
    if is_map:
        items = [list(pair.values()) for pair in items]
    lengths = pc.list_value_length(array).to_pylist()
    return _divided(items, lengths)


def _divided(items: list[Any], lengths: list[int | None]) -> list[list[Any] | None]:
    """Divide the items of several lists, which were concatenated, into these lists again.

    For example, the items [1, 2, 3] and the lengths [2, None, 1] give [[1, 2], None, [3]].

    Args:
        items: The items of all lists.
        lengths: Number of items of each list; None for a null instead of a list.
    """
    lists: list[list[Any] | None] = []
    start = 0
    for length in lengths:
        if length is None:
            lists.append(None)
            continue
        lists.append(items[start : start + length])
        start += length
    return lists
