"""Where a key lies among the columns of a table, and its values as texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.raw.parsing import NotADocumentError, missing
from nanoset_core.raw.rejects import EXCERPT_BYTES, excerpt


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


@dataclass(frozen=True, slots=True)
class Leaf:
    """The values of one place in a record batch."""

    array: Any
    """Arrow array; what lies below a null struct is not masked."""
    outer: tuple[tuple[str, Any], ...]
    """(dotted name, validity as a boolean array) of each struct around it that has nulls, outermost first."""

    def slice(self, begin: int, count: int) -> Leaf:
        """Rows [begin, begin + count), without a copy."""
        return Leaf(
            self.array.slice(begin, count),
            tuple((level, valid.slice(begin, count)) for level, valid in self.outer),
        )


@dataclass(slots=True)
class Texts:
    """Texts of consecutive rows."""

    texts: list[str | None]
    """None where there is none."""
    bad: dict[int, tuple[NotADocumentError, str]] = field(default_factory=dict)
    """Row in the slice → why it holds no text, and an excerpt."""
    text_bytes: int = 0
    """UTF-8 bytes of all of them."""


def locate(schema: Any, key: str) -> ColumnPath:
    """Find a key as `parsing.find` does, in the fields of a schema; of two columns of one name the last counts.

    Raises:
        NotADocumentError: with the reason that every row has: missing_key or not_an_object.
    """
    import pyarrow as pa

    fields, rest = {item.name: item for item in schema}, key
    names: tuple[str, ...] = ()
    while rest not in fields:
        outer, dot, inner = rest.partition(".")
        level = ".".join(names)
        if not dot or outer not in fields:
            raise NotADocumentError("missing_key", missing(outer, fields, level))
        names, rest = (*names, outer), inner
        if not pa.types.is_struct(fields[outer].type):
            raise NotADocumentError("not_an_object", f"{'.'.join(names)!r} is a column of {fields[outer].type}")
        fields = {item.name: item for item in fields[outer].type}
    return ColumnPath((*names, rest), fields[rest].type)


def locate_text(schema: Any, key: str) -> ColumnPath:
    """`locate`, for a column that can hold text; the reason text_not_a_string where it cannot."""
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

    return (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())


def leaf_at(batch: Any, place: ColumnPath) -> Leaf:
    """The values of a place in a record batch; texts as bytes, so that one that is not UTF-8 spoils no other.

    Raises:
        pyarrow.ArrowInvalid: the arrays are damaged.
    """
    array, outer = batch.column(_last_named(batch.schema, place.names[0])), []
    for depth, name in enumerate(place.names[1:], 1):
        array.validate()
        if array.null_count:
            outer.append((".".join(place.names[:depth]), array.is_valid()))
        array = array.field(_last_named(array.type, name))
    array = _as_bytes(array)
    array.validate(full=True)
    return Leaf(array, tuple(outer))


def _last_named(fields: Any, name: str) -> int:
    return max(number for number, item in enumerate(fields) if item.name == name)


def _as_bytes(array: Any) -> Any:
    """The same array with strings as bytes, without a copy; other types as they are."""
    import pyarrow as pa

    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _as_bytes(array.storage)
    if pa.types.is_dictionary(kind):
        values = _as_bytes(array.dictionary)
        return pa.DictionaryArray.from_arrays(array.indices, values, ordered=kind.ordered, safe=False)
    if pa.types.is_run_end_encoded(kind):
        return pa.RunEndEncodedArray.from_buffers(
            pa.run_end_encoded(kind.run_end_type, _as_bytes(array.values).type),
            len(array),
            [None],
            0,
            array.offset,
            [array.run_ends, _as_bytes(array.values)],
        )
    plain = dict(zip(_text_types()[:3], _text_types()[3:], strict=True)).get(kind)
    return array if plain is None else array.view(plain)


def slices(leaves: list[Leaf], rows: int, target_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut the rows of a batch into (begin, count) of about `target_bytes` of values, by their average.

    Where rows repeat values that are stored once, by the longest of these.
    """
    row_bytes = sum(_average_bytes(leaf.array) for leaf in leaves)
    step = int(max(1, min(target_bytes / max(row_bytes, 1), target_bytes >> 6)))
    for begin in range(0, rows, step):
        yield begin, min(step, rows - begin)


def _average_bytes(array: Any) -> float:
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        return _longest_bytes(array.dictionary)
    if pa.types.is_run_end_encoded(array.type):
        return _longest_bytes(array.values)
    if array.type in (pa.string_view(), pa.binary_view()):
        return _longest_view(array)
    try:
        size: int = array.nbytes
    except pa.ArrowTypeError:  # views in lists or structs, in older releases of pyarrow
        size = array.get_total_buffer_size()
    return size / max(len(array), 1)


def _longest_bytes(array: Any) -> float:
    """Of one value: those that are stored once may be what every row repeats."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        return float(pc.max(pc.binary_length(array)).as_py() or 0)
    return float(array.nbytes) if pa.types.is_nested(array.type) else _average_bytes(array)


def _longest_view(array: Any) -> int:
    """Of one text: all rows may show the same bytes. A view is 16 bytes, of which the first four are its length."""
    views = array.buffers()[1]
    lengths = np.frombuffer(views, "<i4", 4 * len(array), 16 * array.offset)[::4]
    return int(lengths.max(initial=0))


def texts_of(leaf: Leaf, key: str, max_bytes: int) -> Texts:
    """The texts of a leaf, with every row that has none: null, not UTF-8, or longer than `max_bytes`."""
    import pyarrow.compute as pc

    array = _plain(leaf.array)
    lengths = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
    is_long = lengths > max_bytes
    result = _decoded(array, is_long if is_long.any() else None)
    result.text_bytes = int(lengths.sum(dtype=np.int64))
    for row in np.flatnonzero(is_long).tolist():
        start = excerpt(memoryview(array[row].as_buffer())[:EXCERPT_BYTES].tobytes())
        result.bad[row] = NotADocumentError("line_too_long", f"{lengths[row]:,} bytes"), start
    if array.null_count or leaf.outer:
        _note_nulls(leaf, array, key, result)
    return result


def readable_texts(array: Any) -> list[str | None]:
    """Texts of an array of bytes, where those that are not UTF-8 show their bytes as \\xNN."""
    plain = _plain(array)
    texts = _strings(plain)
    if texts is not None:
        return texts
    return [None if data is None else data.decode("utf-8", "backslashreplace") for data in plain.to_pylist()]


def _strings(array: Any) -> list[str | None] | None:
    """A binary array as strings; None when one of them is not UTF-8."""
    import pyarrow as pa

    strings = array.view(pa.large_string() if pa.types.is_large_binary(array.type) else pa.string())
    try:
        texts: list[str | None] = strings.to_numpy(zero_copy_only=False).tolist()
    except pa.ArrowException:
        return None
    return texts


def _plain(array: Any) -> Any:
    """Bytes as a binary or large_binary array, whichever way they are stored."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        return _plain(array.dictionary_decode())
    if pa.types.is_run_end_encoded(array.type):
        return _plain(pc.run_end_decode(array))
    if array.type != pa.binary_view():
        return array
    try:
        return array.cast(pa.large_binary())
    except pa.ArrowNotImplementedError:  # older releases of pyarrow
        return pa.array(array.to_pylist(), pa.large_binary())


def _decoded(array: Any, left_out: NDArray[np.bool_] | None) -> Texts:
    """Texts of a binary array; rows that are left out (bool, shape (rows,); None: no row is) are not copied."""
    import pyarrow as pa

    if left_out is None:
        texts = _strings(array)
        return _decoded_one_by_one(array) if texts is None else Texts(texts)
    kept = np.flatnonzero(~left_out)
    others, result = _decoded(array.take(pa.array(kept)), None), Texts([None] * len(array))
    rows = kept.tolist()
    for row, text in zip(rows, others.texts, strict=True):
        result.texts[row] = text
    result.bad = {rows[number]: why for number, why in others.bad.items()}
    return result


def _decoded_one_by_one(array: Any) -> Texts:
    result = Texts([])
    for row, data in enumerate(array.to_pylist()):
        text = None
        try:
            text = None if data is None else data.decode("utf-8")
        except UnicodeDecodeError as error:
            found = f"byte 0x{data[error.start]:02x} at byte {error.start} of the text: {error.reason}"
            result.bad[row] = NotADocumentError("invalid_utf8", found), excerpt(data)
        result.texts.append(text)
    return result


def _note_nulls(leaf: Leaf, array: Any, key: str, result: Texts) -> None:
    for row in np.flatnonzero(~array.is_valid().to_numpy(zero_copy_only=False)).tolist():
        result.bad[row] = NotADocumentError("text_not_a_string", f"{key!r} is null"), ""
    for level, valid in reversed(leaf.outer):  # the outermost null is the one that counts
        for row in np.flatnonzero(~valid.to_numpy(zero_copy_only=False)).tolist():
            result.bad[row] = NotADocumentError("not_an_object", f"{level!r} is null"), ""
