"""Columns of record batches: find them by their names, and convert them to texts.

Tables store the same values in many ways: as dictionaries, runs, views, or extension types.
`plain_array` reduces these to a few, so that other functions need not know them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.text.parsing import NotADocumentError, find
from nanoset_core.text.rejects import AMBIGUOUS_COLUMN, EXCERPT_BYTES, FaultError, excerpt

_UUID = "arrow.uuid"
"""Arrow's name of the type that Parquet calls UUID."""
_UUID_HYPHENS = (8, 12, 16, 20)
"""Numbers of the hexadecimal digits of a UUID before which it has a hyphen."""


def row_bytes(array: Any) -> float:
    """Estimate how many bytes of memory a row of an Arrow array needs once it is decoded.

    Usually, that is the average size of a value. But some encodings store a value only once,
    although many rows have it:

        dictionary: ["a", "a text of 1 MB"]        rows: 0, 1, 1, 1, 1, 1, …

    When rows are decoded, each gets its own copy. So with such an encoding, the estimate is the
    size of the longest value, here 1 MB.

    Args:
        array: An Arrow array of any type.
    """
    import pyarrow as pa

    if isinstance(array.type, pa.BaseExtensionType):
        return row_bytes(array.storage)
    longest = _longest_shared_value(array)
    if longest is not None:
        return longest
    return float(array.get_total_buffer_size()) / max(len(array), 1)


def _longest_shared_value(array: Any) -> float | None:
    """Return the size of the longest value if an array stores each value once for many rows.

    Three kinds of Arrow arrays save memory in this way:

        dictionary         values ["en", "de"], and their numbers in the rows: 0, 0, 1, 0, …
        run-end encoded    values ["en", "de"], and the rows at which each of them ends: 1000, 1200
        view               a text in each row is a reference to bytes, which rows may share

    A program that gives each row its own copy may then need far more memory than the array has.

    Args:
        array: An Arrow array, the values of a column.

    Returns:
        The size in bytes; None if the array is of another kind, which stores a value for each row.
    """
    import pyarrow as pa

    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        return _longest_view(array)
    if pa.types.is_dictionary(array.type):
        return _longest_value(array.dictionary)
    if pa.types.is_run_end_encoded(array.type):
        return _longest_value(array.values)
    return None


def _longest_value(values: Any) -> float:
    """Return how many bytes of memory the longest value of an Arrow array takes, or an upper limit.

    Args:
        values: The values that an array such as a dictionary stores once, for many rows.

    Returns:
        Such as 3 for ["a", "abc"]. A float, since it may be computed as an average.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_strings_or_bytes = is_bytes_array(as_bytes(values))
    if is_strings_or_bytes:
        longest = pc.max(pc.binary_length(values)).as_py()  # None if there are only nulls
        return float(longest or 0)
    if pa.types.is_nested(values.type):
        # Lists and structs: Arrow does not tell the size of a single one, but only that of all.
        return float(values.get_total_buffer_size())
    # All numbers have the same size, so that the average is the longest, too. (The values may also
    # be a dictionary themselves. Then `row_bytes` calls this function for its values.)
    return row_bytes(values)


def _longest_view(array: Any) -> float:
    """Return the size in bytes of the longest value of an array of views."""
    # (n, 4) int32: a view has 16 bytes, and starts with the length of its value as an int32.
    views = np.frombuffer(array.buffers()[1], "<i4", 4 * len(array), 16 * array.offset)
    lengths = views.reshape(-1, 4)[:, 0]  # (n,)
    return float(lengths.max(initial=0))


def as_bytes(array: Any) -> Any:
    """View an Arrow array of strings as an array of bytes; the memory is shared and not copied.

    Arrow promises that its strings are UTF-8, but those of a damaged file may not be. Many
    functions of Arrow fail on such strings, but accept them as bytes. So callers work with bytes,
    and decode them at the end, value by value.

        type of the array     type of the result
        string                binary
        large_string          large_binary
        string_view           binary_view
        any other, as int64   the same: the array itself is returned

    Args:
        array: A pyarrow.Array.
    """
    import pyarrow as pa

    bytes_types = {
        pa.string(): pa.binary(),
        pa.large_string(): pa.large_binary(),
        pa.string_view(): pa.binary_view(),
    }
    if array.type not in bytes_types:
        return array
    return array.view(bytes_types[array.type])


def as_unchecked_strings(array: Any) -> Any:
    """View an Arrow array of bytes as an array of strings; the memory is shared and not copied.

    Arrow's strings have to be UTF-8. This function does not check that, since a check takes time:
    the caller has checked the bytes before, or checks the strings afterwards.

    Args:
        array: An Arrow array of the type binary or large_binary.

    Returns:
        An array of the type string or large_string.
    """
    import pyarrow as pa

    if pa.types.is_large_binary(array.type):
        return array.view(pa.large_string())
    return array.view(pa.string())


def is_bytes_array(array: Any) -> bool:
    """Return whether an Arrow array holds bytes of any length, and not as views.

    Args:
        array: An Arrow array of any type.

    Returns:
        True for the types binary and large_binary.
    """
    from pyarrow import types

    return bool(types.is_binary(array.type) or types.is_large_binary(array.type))


def plain_array(array: Any) -> Any:
    """Return the values of an Arrow array, without the encoding in which a file stores them.

        dictionary ["a", "b"] with the rows 0, 0, 1    →    "a", "a", "b"
        runs: 3 times "a"                              →    "a", "a", "a"
        UUIDs of 16 bytes                              →    texts such as 6ba7b810-9dad-11d1-…

    Strings are returned as bytes, since those of a damaged file may not be UTF-8.

    Args:
        array: A slice of a column, since decoded values may need much more memory.

    Raises:
        pyarrow.ArrowException: The array is damaged.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    # An encoding may contain another one, such as a dictionary of an extension type. So each branch
    # removes one, and calls this function again for what is inside.
    if isinstance(array.type, pa.BaseExtensionType):
        if array.type.extension_name == _UUID:
            return _uuid_texts(array.storage)
        return plain_array(array.storage)

    # In a damaged file, offsets and indices may lead out of the memory of an array. Arrow follows
    # them without a check, so `validate` has to precede everything else.
    if pa.types.is_dictionary(array.type):
        # `validate` refuses strings that are not UTF-8, but not bytes.
        values = as_bytes(array.dictionary)
        encoded = pa.DictionaryArray.from_arrays(array.indices, values, safe=False)
        encoded.validate(full=True)
        return plain_array(encoded.dictionary_decode())

    # From here on, strings and views of strings are bytes and views of bytes.
    array = as_bytes(array)
    array.validate(full=True)
    if pa.types.is_run_end_encoded(array.type):
        return plain_array(pc.run_end_decode(array))
    if pa.types.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    return array


def _holds_uuids(kind: Any) -> bool:
    """Return whether a column of this Arrow type holds UUIDs, which are ids and no text."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _holds_uuids(kind.value_type)
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == _UUID


def _uuid_texts(storage: Any) -> Any:
    r"""Convert a column of UUIDs, which are stored as 16 bytes each, to texts in their usual form.

    Documents often have a UUID as their id. For a column with one UUID and one null:

        b"\x6b\xa7\xb8…\xc8"    b"6ba7b810-9dad-11d1-80b4-00c04fd430c8"
        null                    null

    Args:
        storage: An Arrow array of fixed_size_binary[16]: the 16 bytes of each UUID, or null.

    Returns:
        An Arrow array of binary: the 36 characters of each UUID in ASCII, or null.
    """
    import pyarrow as pa

    storage.validate(full=True)
    # An array of nulls alone may have no bytes that could be converted.
    if storage.null_count == len(storage):
        return pa.nulls(len(storage), pa.binary())
    texts = _hyphenated_hex(_fixed_size_bytes(storage))
    # A null has 16 arbitrary bytes, and so an arbitrary text. Mask it, so that it is null again.
    is_null = storage.is_null().to_numpy(zero_copy_only=False)  # (n_uuids,)
    return pa.array(texts, pa.binary(), mask=is_null)


def _hyphenated_hex(uuids: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    """Write UUIDs as texts: 32 hexadecimal digits each, with four hyphens between them.

    All UUIDs are converted together, which is much faster than Python's `uuid` for each.

    Args:
        uuids: The bytes of each UUID, shape (n_uuids, 16).

    Returns:
        A text such as b"6ba7b810-9dad-11d1-80b4-00c04fd430c8" for each UUID, shape (n_uuids,), with
        the type "S36": 36 ASCII characters.
    """
    # Write all UUIDs as one text without separators: 6ba7b8109dad11d180b400c04fd430c8…
    hex_text = uuids.tobytes().hex().encode("ascii")
    digits = np.frombuffer(hex_text, np.uint8).reshape(-1, 32)  # (n_uuids, 32) ASCII codes

    # Insert four hyphens into each row: 6ba7b810-9dad-11d1-80b4-00c04fd430c8
    characters = np.insert(digits, _UUID_HYPHENS, ord("-"), axis=1)  # (n_uuids, 36)

    # Regard the 36 codes of a row as one value of 36 bytes.
    return characters.view("S36").ravel()  # (n_uuids,)


def _fixed_size_bytes(array: Any) -> NDArray[np.uint8]:
    """Return the values of an Arrow array of values of equal size as a NumPy array, without a copy.

    Args:
        array: An Arrow array of fixed_size_binary, such as UUIDs of 16 bytes each. It must not
            consist of nulls alone, since it may then have no bytes.

    Returns:
        The bytes, shape (n_values, bytes of a value). Those of a null are arbitrary.
    """
    # The buffer of a slice is that of the whole array: leave out the values before the slice.
    _, data = array.buffers()  # which values are null; the values
    value_bytes = array.type.byte_width
    start = array.offset * value_bytes
    values = np.frombuffer(data, np.uint8, count=len(array) * value_bytes, offset=start)
    return values.reshape(-1, value_bytes)


def to_strings(array: Any, errors: str = "strict") -> list[str | None]:
    r"""Decode the bytes in an Arrow array to Python strings.

        [b"Hello", null]       ["Hello", None]
        [b"caf\xe9"]           an error, or "caf\xe9" with a backslash: it is not UTF-8

    Args:
        array: An Arrow array of the type binary or large_binary.
        errors: What to do with bytes that are not UTF-8, in the words of `bytes.decode`: "strict"
            raises an error, "backslashreplace" writes them as \xNN.

    Raises:
        UnicodeDecodeError: Bytes are not UTF-8, and `errors` is "strict".
    """
    import pyarrow as pa

    # Convert all values together, which is fast. It fails if any of them is not UTF-8.
    try:
        strings = as_unchecked_strings(array)
        texts: list[str | None] = strings.to_numpy(zero_copy_only=False).tolist()
        return texts
    except pa.ArrowException:
        pass

    # Decode each value alone.
    texts = []
    for data in array.to_pylist():
        text = None
        if data is not None:
            text = data.decode(errors=errors)
        texts.append(text)
    return texts


def locate(schema: Any, key: str, *, is_text: bool = False) -> tuple[str, ...]:
    """Find the column of a table that a user has named, such as the column with the texts.

    Columns can have fields. Suppose that a table has the columns `text`, `meta` with the fields
    `url` and `lang`, and `a.b`, which just has a dot in its name:

        key         result
        text        ("text",)
        meta.url    ("meta", "url")
        a.b         ("a.b",)
        title       NotADocumentError: there is no such column

    Args:
        schema: Arrow schema of a file: the names and types of its columns.
        key: Name of a column, or dotted path to a field of a column.
        is_text: Whether the column has to contain texts.

    Returns:
        The names that lead to the column: those of the columns that contain it, then its own.

    Raises:
        NotADocumentError: There is no such column, or it contains no texts. So no row of the file
            is a document. The reason is missing_key, not_an_object, or text_not_a_string.
        FaultError: Several columns, or several fields of a column, have one of the names.
    """
    field, names = find(schema, key, _fields_by_name)
    _check_unambiguous(schema, names)
    if is_text and not _holds_texts(field.type):
        raise NotADocumentError("text_not_a_string", f"{key!r} is a column of {field.type}")
    return names


def _holds_texts(arrow_type: Any) -> bool:
    """Return whether the values of a column are texts, also if they are stored in a dictionary.

    Args:
        arrow_type: Arrow type of the column.
    """
    import pyarrow as pa

    # `plain_array` decodes all ways to store texts, and returns them as bytes. Without values, this
    # shows the type. UUIDs become bytes, too, but they are ids.
    decoded = plain_array(pa.nulls(0, arrow_type))
    return is_bytes_array(decoded) and not _holds_uuids(arrow_type)


def _fields_by_name(value: Any, name: str) -> dict[str, Any]:
    """Return the fields of a schema, or of a column of structs, by their names.

    For example, of the column `meta: struct<url: string, score: double>`: {"url": …, "score": …}.

    Args:
        value: The schema of a table, or a field of it.
        name: Name of the field, for the error; empty for a schema.

    Raises:
        NotADocumentError: The column does not consist of structs.
    """
    import pyarrow as pa

    fields = value if isinstance(value, pa.Schema) else value.type
    if name and not pa.types.is_struct(fields):
        raise NotADocumentError("not_an_object", f"{name!r} is a column of {fields}")
    return {field.name: field for field in fields}


def _check_unambiguous(schema: Any, names: Sequence[str]) -> None:
    """Check that each of the names that lead to a column is the name of only one field.

    Arrow allows a table with two columns `text`. Then it is not clear which one has the texts.

    Args:
        schema: Arrow schema of a file.
        names: Names of the structs around the column, the outermost first, then its own: ("meta",
            "url").

    Raises:
        FaultError: Several fields have one of the names.
    """
    fields = list(schema)
    for depth, name in enumerate(names, start=1):
        matching = [field for field in fields if field.name == name]
        if len(matching) > 1:
            path = ".".join(names[:depth])
            raise FaultError(
                AMBIGUOUS_COLUMN,
                # The detail is written to the file of rejects, whose bytes must not change.
                f"{len(matching)} columns are named {path!r}, so that it cannot be told which of "
                "them is meant: rename or remove all but one",
                line=1,
            )
        if depth < len(names):
            fields = list(matching[0].type)


def column_at(rows: Any, names: tuple[str, ...]) -> Any:
    """Return the column of a table to which some names lead: ("meta", "url") to `url` in `meta`.

    A value is null if the struct around it is null.

    Args:
        rows: A pyarrow.RecordBatch, some rows of the table.
        names: Names of the structs around the column, the outermost first, then its own.

    Returns:
        The values, without the encoding in which the file stores them; see `plain_array`.
    """
    return plain_array(_field_at(rows, names))


def _field_at(rows: Any, names: tuple[str, ...]) -> Any:
    """Return the column of a table to which some names lead: ("meta", "url") to `url` in `meta`.

    Args:
        rows: A pyarrow.RecordBatch, some rows of the table.
        names: Names of the structs around the column, the outermost first, then its own name. Each
            must be the name of exactly one field, which `locate` has checked.

    Returns:
        An Arrow array, in the encoding in which the file stores it.
    """
    import pyarrow.compute as pc

    # Treat the record batch as a struct whose fields are the columns.
    batch_as_struct = rows.to_struct_array()
    indices: list[int] = []
    struct_type = batch_as_struct.type
    for name in names:
        index = struct_type.get_field_index(name)
        indices.append(index)
        struct_type = struct_type[index].type
    return pc.struct_field(batch_as_struct, indices)


class RowProblem(NamedTuple):
    """Why a row holds no text; the fields are those of `Reject`."""

    reason: str
    detail: str
    excerpt: str


class ColumnTexts(NamedTuple):
    """The texts of a column."""

    texts: list[str | None]
    """Text of each row, or None for a row without one."""
    problems: dict[int, RowProblem]
    """Index of each row without a text, and the reason."""
    n_bytes: int
    """Bytes of all values, including those that are no texts."""


def texts_at(rows: Any, names: tuple[str, ...], max_bytes: int) -> ColumnTexts:
    """Return the texts of the column to which some names lead.

    A row has no text if its value, or a struct around it, is null, if its bytes are not UTF-8, or
    if there are too many of them.

    Args:
        rows: A pyarrow.RecordBatch.
        names: Names of the structs around the column, the outermost first, then its own.
        max_bytes: The most bytes of a text.

    Returns:
        The text of each row, or why the row has none.
    """
    import pyarrow.compute as pc

    array = column_at(rows, names)  # bytes
    sizes = pc.binary_length(array)
    n_bytes = pc.sum(sizes).as_py() or 0  # None if all rows are null
    longest = pc.max(sizes).as_py() or 0

    # Convert all rows together, which is fast. That is not possible if a text is too long, or is
    # not UTF-8.
    texts: list[str | None] = [None] * len(array)
    if longest <= max_bytes:
        with suppress(UnicodeDecodeError):
            texts = to_strings(array)
    if None not in texts:
        return ColumnTexts(texts, problems={}, n_bytes=n_bytes)

    # Look at each row without a text: at those that are null, or at all if none was converted.
    structs = [_field_at(rows, names[:depth]) for depth in range(1, len(names))]
    levels = [*structs, array]
    problems: dict[int, RowProblem] = {}
    rows_without_text = [row for row, text in enumerate(texts) if text is None]
    for row in rows_without_text:
        text = _text_of_row(levels, names, row, max_bytes)
        if isinstance(text, RowProblem):
            problems[row] = text
        else:
            texts[row] = text
    return ColumnTexts(texts, problems, n_bytes)


def _text_of_row(
    levels: Sequence[Any], names: tuple[str, ...], row: int, max_bytes: int
) -> str | RowProblem:
    """Return the text of one row of a column, or why it has none.

    The column may be part of structs, as `meta.body.text` is. If the text is null, the outermost
    part that is null is reported:

        meta    body    text       result
        …       …       "Hello"    "Hello"
        …       …       null       text_not_a_string: 'meta.body.text' is null
        …       null    null       not_an_object: 'meta.body' is null

    Args:
        levels: Arrow arrays: the structs around the column, the outermost first, then the column
            itself as bytes.
        names: Names of these structs and of the column: ("meta", "body", "text").
        row: Index of the row.
        max_bytes: The most bytes of a text.
    """
    # If the text is null because a struct around it is, report the outermost such struct.
    for depth, level in enumerate(levels, start=1):
        is_null = not level[row].is_valid
        if is_null:
            is_struct = depth < len(levels)
            reason = "not_an_object" if is_struct else "text_not_a_string"
            path = ".".join(names[:depth])
            return RowProblem(reason, detail=f"{path!r} is null", excerpt="")
    return _decode(levels[-1][row], max_bytes)


def _decode(value: Any, max_bytes: int) -> str | RowProblem:
    r"""Decode the text in one row of a table, or describe why the row is no document.

        value               result for max_bytes = 1,000
        b"Hello"            "Hello"
        2,000 bytes         a problem: line_too_long, "2,000 bytes"
        b"caf\xe9 noir"     a problem: invalid_utf8, "byte 0xe9 at byte 3 of the text: …"

    Args:
        value: The text as an Arrow scalar of bytes, which is not null.
        max_bytes: The most bytes that a text may have.

    Returns:
        The text, or the problem, with the beginning of the text so that the user can find it.
    """
    data = memoryview(value.as_buffer())  # no copy of a long text
    if len(data) > max_bytes:
        beginning = bytes(data[:EXCERPT_BYTES])
        return RowProblem("line_too_long", f"{len(data):,} bytes", excerpt(beginning))
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        detail = f"byte 0x{byte:02x} at byte {error.start} of the text: {error.reason}"
        return RowProblem("invalid_utf8", detail, excerpt(error.object))
