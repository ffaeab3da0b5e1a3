"""Columns of a table: where a key lies among them, and their values as texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.raw.parsing import NotADocumentError, find_or_explain
from nanoset_core.raw.rejects import EXCERPT_BYTES, excerpt

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


@dataclass(slots=True)
class Texts:
    """Texts of consecutive rows."""

    texts: list[str | None]
    """None where there is none."""
    bad: dict[int, tuple[str, str, str]]
    """Row → (reason, detail, excerpt), where it holds no text."""
    text_bytes: int
    """UTF-8 bytes of all of them."""


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
    """Do as `locate`, for a column that can hold text; the reason text_not_a_string where it cannot."""
    place = locate(schema, key)
    if not is_text_type(place.type):
        raise NotADocumentError("text_not_a_string", f"{key!r} is a column of {place.type}")
    return place


def is_text_type(kind: Any) -> bool:
    """Whether a column holds text: strings, or bytes that may be UTF-8, however they are stored."""
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
    """Do as `plain` for a dictionary, once for all slices of a record batch where its values are texts."""
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
    """About how many bytes a row has: the average; where rows may share values, as many as the longest value has."""
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


def texts_at(rows: Any, place: ColumnPath, key: str, max_bytes: int) -> Texts:
    """Return the texts at a place, and why other rows have none: null, not UTF-8, or above `max_bytes`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array, nulls = column_at(rows, place)
    lengths = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
    result = Texts([], {}, int(lengths.sum(dtype=np.int64)))
    if array.null_count:
        for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            result.bad[row] = "text_not_a_string", f"{key!r} is null", ""
    is_long = lengths > max_bytes
    if is_long.any():
        for row in np.flatnonzero(is_long).tolist():
            head = memoryview(array[row].as_buffer())[:EXCERPT_BYTES].tobytes()
            result.bad[row] = "line_too_long", f"{lengths[row]:,} bytes", excerpt(head)
        array = pc.if_else(pa.array(is_long), pa.scalar(None, array.type), array)  # they are not copied
    texts = strings(array)
    result.texts = _decoded(array, result) if texts is None else texts
    for level, is_null in reversed(nulls):  # the outermost null is the one that counts
        for row in np.flatnonzero(is_null).tolist():
            result.bad[row] = "not_an_object", f"{level!r} is null", ""
    return result


def strings(array: Any) -> list[str | None] | None:
    """Return a binary array as strings; None when one of them is not UTF-8."""
    import pyarrow as pa

    try:
        array = array.view(pa.large_string() if pa.types.is_large_binary(array.type) else pa.string())
        texts: list[str | None] = array.to_numpy(zero_copy_only=False).tolist()
    except pa.ArrowException:
        return None
    return texts


def _decoded(array: Any, result: Texts) -> list[str | None]:
    """Decode a binary array one by one, and note what is not UTF-8."""
    texts: list[str | None] = []
    for row, data in enumerate(array.to_pylist()):
        text = None
        try:
            text = None if data is None else data.decode("utf-8")
        except UnicodeDecodeError as error:
            found = f"byte 0x{data[error.start]:02x} at byte {error.start} of the text: {error.reason}"
            result.bad[row] = "invalid_utf8", found, excerpt(data)
        texts.append(text)
    return texts
