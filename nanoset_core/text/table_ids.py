"""The ids of documents in a table's column → the texts by which lists, attributes and other tables
name them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from nanoset_core.text.columns import is_bytes_array, plain_array, to_strings
from nanoset_core.text.importing import NotJsonError, json_values
from nanoset_core.text.parsing import id_text


class TableIds(NamedTuple):
    """The ids of some rows."""

    texts: list[str | None]
    """Id of each row, None if it has none or none that can be kept."""
    n_unkept: int = 0
    """Rows whose id has no usual text form, or is too long."""
    n_escaped: int = 0
    """Rows whose id is bytes that are not UTF-8; such bytes are in its text as \\xNN."""


def ids_of(array: Any) -> TableIds:
    """Return the ids in a column as text, so that an id of any usual type can be named in a list of
    ids.

    Strings and bytes are their text, UUIDs have hyphens, numbers, times and other values are
    written as JSON does.

    Args:
        array: an Arrow array of any type, one id a row.

    Raises:
        pyarrow.ArrowException: the array is damaged.
    """
    import pyarrow as pa

    array = plain_array(array)
    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())

    values = (
        to_strings(array, "backslashreplace")
        if is_bytes_array(array)
        else _json_values_or_none(array)
    )
    texts = [id_text(value) for value in values]
    n_unkept = texts.count(None) - array.null_count
    return TableIds(texts, n_unkept=n_unkept, n_escaped=escaped_count(array))


def escaped_count(array: Any) -> int:
    """Return how many values of a column are bytes that are not UTF-8.

    Args:
        array: an Arrow array of any type; only bytes can be no UTF-8.
    """
    import pyarrow as pa

    array = plain_array(array)
    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    if not is_bytes_array(array):
        return 0

    # Arrow checks all bytes at once, much faster than Python decodes them.
    try:
        array.view(
            pa.large_string() if pa.types.is_large_binary(array.type) else pa.string()
        ).validate(full=True)
    except pa.ArrowInvalid:
        return sum(not _is_utf_8(value) for value in array.drop_null().to_pylist())
    return 0


def _is_utf_8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _json_values_or_none(array: Any) -> list[Any]:
    """Return the values of a column as `json_values`, but None for each that JSON cannot hold."""
    try:
        return json_values(array)
    except NotJsonError:
        pass

    # No value of this type can be written.
    try:
        json_values(array.slice(0, 0))
    except NotJsonError:
        return [None] * len(array)

    # Some values cannot, such as an instant beyond the calendar: the other ones are kept.
    values: list[Any] = []
    for row in range(len(array)):
        try:
            values += json_values(array.slice(row, 1))
        except NotJsonError:
            values.append(None)
    return values
