"""Columns of a table: where a key lies among them, and their values as texts or as what JSON can hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.raw.parsing import NotADocumentError, find_or_explain
from nanoset_core.raw.rejects import EXCERPT_BYTES, excerpt

MOST_LISTED = 1 << 24
"""Values in the lists of one array: nulls and overlapping lists take no room, so that a small file may hold 2^31."""
_known_dictionaries: dict[tuple[Any, ...], tuple[Any, Any]] = {}
"""Type, length and buffers → (the dictionary, which keeps the buffers in their places; its values as `plain` gives)."""


@dataclass(frozen=True, slots=True)
class ColumnPath:
    """A column, or a field of nested struct columns."""

    names: tuple[str, ...]
    """From the column inwards."""
    type: Any
    """Its Arrow type."""

    @property
    def selector(self) -> str:
        """As Parquet names it when columns are chosen."""
        return ".".join(self.names)


Why = tuple[str, str, str]
"""Why a row holds no text: reason, detail, excerpt."""


def locate(schema: Any, key: str) -> ColumnPath:
    """Find a key as `parsing.find` does, in the fields of a schema; of two columns of one name the last counts.

    Raises:
        NotADocumentError: with the reason that every row has: missing_key or not_an_object.
    """
    found, names = find_or_explain(schema, key, _fields)
    return ColumnPath(names, found.type)


def _fields(value: Any, name: str) -> dict[str, Any]:
    """Return the fields by name, of a schema or of a field whose type is a struct."""
    import pyarrow as pa

    fields = value if isinstance(value, pa.Schema) else value.type
    if name and not pa.types.is_struct(fields):
        raise NotADocumentError("not_an_object", f"{name!r} is a column of {fields}")
    return {item.name: item for item in fields}


def locate_text(schema: Any, key: str) -> ColumnPath:
    """Find a key as `locate` does, in a column that can hold text; the reason text_not_a_string where it cannot."""
    place = locate(schema, key)
    if not is_text_type(place.type):
        raise NotADocumentError("text_not_a_string", f"{key!r} is a column of {place.type}")
    return place


def is_text_type(kind: Any) -> bool:
    """Return whether a column holds text: strings, or bytes that may be UTF-8, however they are stored."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return is_text_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return is_text_type(kind.value_type)
    return kind in _text_types()


def _text_types() -> tuple[Any, ...]:
    import pyarrow as pa

    return pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()


def plain(array: Any) -> Any:
    """Unwrap extension types, dictionaries, runs and views, and turn strings into bytes, which need not be UTF-8.

    Dictionaries and runs are expanded: pass a slice.

    Raises:
        pyarrow.ArrowException: the array is damaged.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return plain(array.storage)
    if pa.types.is_dictionary(kind):
        indices, values = array.indices, _plain_values(array.dictionary)
        # The indices are checked alone: to validate the array would go through all values again.
        pa.DictionaryArray.from_arrays(indices, pa.nulls(len(values)), safe=False).validate(full=True)
        return pa.DictionaryArray.from_arrays(indices, values, safe=False).dictionary_decode()
    bytes_of = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
    array = array.view(bytes_of[kind]) if kind in bytes_of else array
    array.validate(full=True)
    if pa.types.is_run_end_encoded(kind):
        return plain(pc.run_end_decode(array))
    return array.cast(pa.large_binary()) if pa.types.is_binary_view(array.type) else array


def _plain_values(values: Any) -> Any:
    """Unwrap a dictionary as `plain` does, once for all slices of a record batch where its values are texts."""
    if values.type not in _text_types():
        return plain(values)
    buffers = tuple((buffer.address, buffer.size) if buffer is not None else None for buffer in values.buffers())
    key = str(values.type), len(values), values.offset, buffers
    known = _known_dictionaries.get(key)
    if known is None:
        known = _known_dictionaries[key] = values, plain(values)
    return known[1]


def forget_dictionaries() -> None:
    """Let go of the dictionaries that `plain` has kept: call it after each record batch."""
    _known_dictionaries.clear()


def row_bytes(array: Any) -> float:
    """Return about how many bytes a row has: the average, or those of the longest value where rows may share values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return row_bytes(array.storage)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        # A view is 16 bytes, of which the first four are its length.
        lengths = np.frombuffer(array.buffers()[1], "<i4", 4 * len(array), 16 * array.offset)[::4]
        return float(lengths.max(initial=0))
    if not pa.types.is_dictionary(kind) and not pa.types.is_run_end_encoded(kind):
        return _stored_bytes(array) / max(len(array), 1)
    shared = array.dictionary if pa.types.is_dictionary(kind) else array.values
    if pa.types.is_string(shared.type) or pa.types.is_large_string(shared.type) or pa.types.is_binary(shared.type):
        return float(pc.max(pc.binary_length(shared)).as_py() or 0)
    return float(_stored_bytes(shared)) if pa.types.is_nested(shared.type) else row_bytes(shared)


def _stored_bytes(array: Any) -> int:
    import pyarrow as pa

    try:
        return int(array.nbytes)
    except pa.ArrowTypeError:  # views in lists or structs, in pyarrow 21
        return int(array.get_total_buffer_size())


def column_at(rows: Any, place: ColumnPath) -> tuple[Any, list[tuple[str, NDArray[np.bool_]]]]:
    """Return the values of a place in a record batch, as `plain` gives them.

    Returns:
        (Arrow array, (dotted name, whether each row of it is null) of each struct around it that has nulls, outermost
        first); what lies below a null struct is not masked.

    Raises:
        pyarrow.ArrowException: the arrays are damaged.
    """
    array, nulls = rows.column(_last_named(rows.schema, place.names[0])), []
    for depth, name in enumerate(place.names[1:], 1):
        array.validate()
        if array.null_count:
            nulls.append((".".join(place.names[:depth]), array.is_null().to_numpy(zero_copy_only=False)))
        array = array.field(_last_named(array.type, name))
    return plain(array), nulls


def _last_named(fields: Any, name: str) -> int:
    return max(number for number, item in enumerate(fields) if item.name == name)


def texts_at(rows: Any, place: ColumnPath, key: str, max_bytes: int) -> tuple[list[str | None], dict[int, Why], int]:
    """Return the texts at a place, why other rows have none, and the UTF-8 bytes of all.

    Rows have none that are null, not UTF-8, or above `max_bytes`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    array, nulls = column_at(rows, place)
    bad: dict[int, Why] = {}
    lengths = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
    for row in _rows(array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None):
        bad[row] = "text_not_a_string", f"{key!r} is null", ""
    is_long = lengths > max_bytes
    if is_long.any():
        for row in _rows(is_long):
            head = memoryview(array[row].as_buffer())[:EXCERPT_BYTES].tobytes()
            bad[row] = "line_too_long", f"{lengths[row]:,} bytes", excerpt(head)
        array = pc.if_else(pa.array(is_long), pa.scalar(None, array.type), array)  # they are not copied

    def note(row: int, error: UnicodeDecodeError) -> None:
        found = f"byte 0x{error.object[error.start]:02x} at byte {error.start} of the text: {error.reason}"
        bad[row] = "invalid_utf8", found, excerpt(error.object)

    texts = strings(array, note)
    for level, is_null in reversed(nulls):  # the outermost null is the one that counts
        for row in _rows(is_null):
            bad[row] = "not_an_object", f"{level!r} is null", ""
    return texts, bad, int(lengths.sum(dtype=np.int64))


def _rows(chosen: NDArray[np.bool_] | None) -> list[int]:
    return [] if chosen is None else np.flatnonzero(chosen).tolist()


def strings(array: Any, otherwise: Callable[[int, UnicodeDecodeError], str | None]) -> list[str | None]:
    """Return a binary array as strings; `otherwise` takes the row of one that is not UTF-8, and the error."""
    import pyarrow as pa

    try:
        kind = pa.large_string() if pa.types.is_large_binary(array.type) else pa.string()
        texts: list[str | None] = array.view(kind).to_numpy(zero_copy_only=False).tolist()
    except pa.ArrowException:
        return [_decoded(row, data, otherwise) for row, data in enumerate(array.to_pylist())]
    return texts


def _decoded(row: int, data: bytes | None, otherwise: Callable[[int, UnicodeDecodeError], str | None]) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        return otherwise(row, error)


class NotJsonError(ValueError):
    """Values that cannot be written as JSON without a loss; caught where the file and column are known."""


def json_values(array: Any) -> list[Any]:
    """Return one Python value per entry of an Arrow array, each of which JSON can hold; nulls are None.

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
    def refuse(_row: int, error: UnicodeDecodeError) -> None:
        raise NotJsonError(f"bytes that are not UTF-8: {error.object[:20]!r}") from error

    return strings(array, refuse)


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
