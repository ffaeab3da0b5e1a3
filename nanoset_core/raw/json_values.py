"""Arrow arrays → values that JSON can hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.raw.columns import plain, strings

MOST_LISTED = 1 << 24
"""Values in the lists of one array: nulls and overlapping lists take no room, so that a small file may hold 2^31."""


class NotJsonError(ValueError):
    """Values that cannot be written as JSON without a loss; caught where the file and column are known."""


def json_values(array: Any) -> list[Any]:
    """Give one Python value per entry of an Arrow array, each of which JSON can hold; nulls are None.

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
    array = plain(array)
    for matches, convert in _conversions():
        if matches(array.type):
            return convert(array)
    raise NotJsonError(f"a column of {array.type}")


def _conversions() -> list[tuple[Callable[[Any], bool], Callable[[Any], list[Any]]]]:
    import pyarrow as pa
    from pyarrow import types

    return [
        (lambda kind: types.is_binary(kind) or types.is_large_binary(kind), _texts),
        (lambda kind: types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind), _as_they_are),
        (types.is_floating, _floats),
        (types.is_struct, _structs),
        (lambda kind: types.is_nested(kind) and not types.is_union(kind), _lists),
        (types.is_fixed_size_binary, lambda array: _texts(array.cast(pa.binary()))),
        (types.is_timestamp, _timestamps),
        (types.is_duration, lambda array: _as_they_are(array.cast(pa.int64()))),
        (
            lambda kind: types.is_decimal(kind) or types.is_date(kind) or types.is_time(kind),
            lambda array: _as_they_are(array.cast(pa.string())),
        ),
    ]


def _as_they_are(array: Any) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


def _texts(array: Any) -> list[Any]:
    texts = strings(array)
    if texts is not None:
        return texts
    try:
        return [None if data is None else data.decode() for data in array.to_pylist()]
    except UnicodeDecodeError as error:
        raise NotJsonError(f"bytes that are not UTF-8: {error.object[:20]!r}") from error


def _floats(array: Any) -> list[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    wide = array.cast(pa.float64())
    return _as_they_are(pc.if_else(pc.is_finite(wide), wide, None))


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


def _lists(array: Any) -> list[Any]:
    """Convert lists of all kinds, and maps."""
    from pyarrow import types

    begins, ends = _extents(array)
    low, high = (int(begins.min()), int(ends.max())) if len(array) else (0, 0)
    if (count := max(int((ends - begins).sum()), high - low)) > MOST_LISTED:
        raise NotJsonError(f"{count:,} values in lists")
    parts = [array.keys, array.items] if types.is_map(array.type) else [array.values]
    columns = [json_values(part.slice(low, high - low)) for part in parts]
    values = columns[0] if len(columns) == 1 else [list(pair) for pair in zip(*columns, strict=True)]
    bounds = zip((begins - low).tolist(), (ends - low).tolist(), strict=True)
    return _masked([values[begin:end] for begin, end in bounds], array)


def _extents(array: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where among all values each list begins and ends; int64, shape (lists,)."""
    from pyarrow import types

    kind = array.type
    if types.is_fixed_size_list(kind):
        begins = (np.arange(len(array)) + array.offset) * kind.list_size
        return begins, begins + kind.list_size
    offsets = array.offsets.to_numpy().astype(np.int64)
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return offsets, offsets + array.sizes.to_numpy()
    return offsets[:-1], offsets[1:]


def _masked(rows: list[Any], array: Any) -> list[Any]:
    if array.null_count:
        valid = array.is_valid().to_pylist()
        return [row if here else None for row, here in zip(rows, valid, strict=True)]
    return rows
