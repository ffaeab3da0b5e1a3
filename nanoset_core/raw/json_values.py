"""Arrow arrays → values that JSON can hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_Offsets: TypeAlias = NDArray[np.integer[Any]]
MOST_LISTED = 1 << 24
"""Values in the lists of one array: nulls and overlapping lists take no room, so that a small file may hold 2^31."""


class NotJsonError(ValueError):
    """Values that cannot be written as JSON without a loss; caught where the file and column are known."""


def json_values(array: Any) -> list[Any]:
    """One Python value per entry of an Arrow array, each of which JSON can hold; nulls are None.

    Integers and booleans are themselves. Floats are themselves, widened exactly to 64 bits; NaN and the infinities,
    which JSON lacks, are None. Decimals are strings with all their digits. Bytes are text. Times are ISO 8601 strings
    in the column's unit: 2024-01-31, 23:59:59.000001, 2024-01-31T23:59:59.000001, and with a Z, in UTC, where the
    column has a time zone; durations are whole numbers of the column's unit. Lists are lists, structs are dicts, maps
    are lists of [key, value]. Dictionary-encoded and extension types are as the values that they stand for.

    Raises:
        NotJsonError: bytes that are not UTF-8, a struct with two fields of one name, an instant that has no ISO form,
            more than 16 million values in lists, or a type that is not listed above.
        pyarrow.ArrowException: the array is damaged.
    """
    import pyarrow as pa

    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return json_values(array.storage)
    for matches, convert in _conversions():
        if matches(kind):
            return convert(array)
    raise NotJsonError(f"a column of {kind}")


def _conversions() -> list[tuple[Callable[[Any], bool], Callable[[Any], list[Any]]]]:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    return [
        (lambda kind: types.is_string(kind) or types.is_large_string(kind), _strings),
        (lambda kind: types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind), _as_they_are),
        (types.is_string_view, _as_they_are),
        (types.is_floating, _floats),
        (types.is_dictionary, lambda array: json_values(array.dictionary_decode())),
        (types.is_run_end_encoded, lambda array: json_values(pc.run_end_decode(array))),
        (types.is_struct, _structs),
        (types.is_map, _maps),
        (lambda kind: types.is_list_view(kind) or types.is_large_list_view(kind), _list_views),
        (types.is_fixed_size_list, _fixed_size_lists),
        (lambda kind: types.is_list(kind) or types.is_large_list(kind), _lists),
        (_is_bytes, _bytes),
        (types.is_decimal, lambda array: array.cast(pa.string()).to_pylist()),
        (lambda kind: types.is_date(kind) or types.is_time(kind), lambda array: array.cast(pa.string()).to_pylist()),
        (types.is_timestamp, _timestamps),
        (types.is_duration, lambda array: array.cast(pa.int64()).to_pylist()),
    ]


def _is_bytes(kind: Any) -> bool:
    from pyarrow import types

    kinds = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return any(matches(kind) for matches in kinds)


def _as_they_are(array: Any) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


def _strings(array: Any) -> list[Any]:
    values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return values


def _floats(array: Any) -> list[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    wide = array.cast(pa.float64())
    return _as_they_are(pc.if_else(pc.is_finite(wide), wide, None))


def _bytes(array: Any) -> list[Any]:
    try:
        return [None if data is None else data.decode("utf-8") for data in array.to_pylist()]
    except UnicodeDecodeError as error:
        raise NotJsonError(f"bytes that are not UTF-8: {error.object[:20]!r}") from error


def _timestamps(array: Any) -> list[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    suffix = "Z" if array.type.tz is not None else ""
    texts = array.cast(pa.timestamp(array.type.unit)).cast(pa.string())
    if pc.any(pc.starts_with(texts, "<")).as_py():
        raise NotJsonError(f"an instant beyond the calendar, in a column of {array.type}")
    return [None if text is None else text.replace(" ", "T") + suffix for text in texts.to_pylist()]


def _structs(array: Any) -> list[Any]:
    names = [field.name for field in array.type]
    if len(set(names)) != len(names):
        raise NotJsonError(f"two fields of one name, in a column of {array.type}")
    columns = [json_values(array.field(number)) for number in range(len(names))]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return _masked(rows or [{} for _ in range(len(array))], array)


def _maps(array: Any) -> list[Any]:
    offsets = array.offsets.to_numpy()
    begin, end = int(offsets[0]), int(offsets[-1])
    _check_listed(end - begin)
    keys = json_values(array.keys.slice(begin, end - begin))
    items = json_values(array.items.slice(begin, end - begin))
    pairs = [list(pair) for pair in zip(keys, items, strict=True)]
    return _gathered(array, pairs, offsets[:-1] - begin, offsets[1:] - begin)


def _lists(array: Any) -> list[Any]:
    offsets = array.offsets.to_numpy()
    begin, end = int(offsets[0]), int(offsets[-1])
    _check_listed(end - begin)
    values = json_values(array.values.slice(begin, end - begin))
    return _gathered(array, values, offsets[:-1] - begin, offsets[1:] - begin)


def _list_views(array: Any) -> list[Any]:
    begins = array.offsets.to_numpy().astype(np.int64)
    ends = begins + array.sizes.to_numpy()
    _check_listed(int((ends - begins).sum()))
    low, high = (int(begins.min()), int(ends.max())) if len(begins) else (0, 0)
    _check_listed(high - low)
    return _gathered(array, json_values(array.values.slice(low, high - low)), begins - low, ends - low)


def _fixed_size_lists(array: Any) -> list[Any]:
    size = array.type.list_size
    _check_listed(len(array) * size)
    begins = np.arange(len(array)) * size
    values = json_values(array.values.slice(array.offset * size, len(array) * size))
    return _gathered(array, values, begins, begins + size)


def _check_listed(count: int) -> None:
    if count > MOST_LISTED:
        raise NotJsonError(f"{count:,} values in lists")


def _gathered(array: Any, values: list[Any], begins: _Offsets, ends: _Offsets) -> list[Any]:
    rows = [values[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    return _masked(rows, array)


def _masked(rows: list[Any], array: Any) -> list[Any]:
    if array.null_count:
        valid = array.is_valid().to_pylist()
        return [row if here else None for row, here in zip(rows, valid, strict=True)]
    return rows
