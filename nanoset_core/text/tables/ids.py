"""The ids of documents in a column of a table, as the texts by which other files name them.

Lists of ids, attributes and other tables name documents by these texts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from nanoset_core.text.parsing import id_text
from nanoset_core.text.tables.columns import (
    as_unchecked_strings,
    is_bytes_array,
    plain_array,
    to_strings,
)
from nanoset_core.text.tables.json_values import NotJsonError, json_values


class TableIds(NamedTuple):
    """The ids of some rows."""

    texts: list[str | None]
    """Id of each row, or None if it has no id, or one that cannot be kept."""
    n_dropped: int = 0
    """Rows whose id has no usual text form, or is too long."""
    n_escaped: int = 0
    """Rows whose id is bytes that are not UTF-8; such bytes are in its text as \\xNN."""


def ids_of(array: Any) -> TableIds:
    r"""Return the ids of documents, which are a column of a table, as the texts that users know.

        column        value               id
        texts         "doc-7"             doc-7
        bytes         b"doc-\xff"         doc-\xff        not UTF-8: written as an escape
        integers      7                   7
        UUIDs         16 bytes            6ba7b810-9dad-11d1-80b4-00c04fd430c8
        texts         5,000 characters    None            too long for an id: dropped, and counted

    Args:
        array: An Arrow array of any type, one id a row.

    Raises:
        pyarrow.ArrowException: The array is damaged.
    """
    array = _plain_values(array)
    if is_bytes_array(array):
        # Bytes that are not UTF-8 are written as \xNN.
        values: list[Any] = to_strings(array, "backslashreplace")
    else:
        values = _json_values_or_none(array)

    # `id_text` returns None for a null, and for a value that cannot be an id, such as a very long
    # text. Only the latter are counted as dropped.
    texts = [id_text(value) for value in values]
    n_dropped = texts.count(None) - array.null_count
    return TableIds(texts, n_dropped=n_dropped, n_escaped=count_not_utf8(array))


def count_not_utf8(array: Any) -> int:
    r"""Count the values of a table's column that are bytes, but no valid UTF-8, for a warning.

    They are stored as text with escapes: b"caf\xe9" as "caf\\xe9". In the column [b"x7",
    b"caf\xe9", null], there is one.

    Args:
        array: An Arrow array of any type. Numbers and other types have no such values: the result
            is 0.
    """
    import pyarrow as pa

    array = _plain_values(array)
    if not is_bytes_array(array):
        return 0

    # Usually all values are UTF-8. Arrow checks that for all at once, much faster than Python.
    try:
        as_unchecked_strings(array).validate(full=True)
    except pa.ArrowInvalid:
        # Some are not, so look at each. Nulls are no values.
        values = array.drop_null().to_pylist()
        return sum(not _is_utf_8(value) for value in values)
    return 0


def _plain_values(array: Any) -> Any:
    """Return a column of a table with its values stored in the simplest way.

    For example, values in a dictionary become an ordinary array, and strings and bytes of a fixed
    length (as the 16 bytes of a UUID) become bytes.

    Args:
        array: An Arrow array of any type.
    """
    import pyarrow as pa

    array = plain_array(array)  # all but the last of these
    if pa.types.is_fixed_size_binary(array.type):
        return array.cast(pa.binary())
    return array


def _is_utf_8(value: bytes) -> bool:
    """Return whether bytes are valid UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _json_values_or_none(array: Any) -> list[Any]:
    """Return the values of a column as values of JSON, and None for each that JSON cannot express.

    For example, an instant in the year 300,000 has no text in ISO 8601.

    Args:
        array: An Arrow array of any type.
    """
    try:
        return json_values(array)
    except NotJsonError:
        pass

    # If even an empty array fails, no value of this type can be written.
    try:
        json_values(array.slice(0, 0))
    except NotJsonError:
        return [None] * len(array)

    # Otherwise only some values cannot, such as an instant in the year 300,000: try each alone.
    values: list[Any] = []
    for row in range(len(array)):
        try:
            values += json_values(array.slice(row, 1))
        except NotJsonError:
            values.append(None)
    return values
