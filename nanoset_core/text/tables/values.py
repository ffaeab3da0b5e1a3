"""Convert values that are kept with documents to Arrow arrays of a few types.

Documents come in batches, and shards are written by different workers. A column must have the same
type in all of them, however the documents are divided. So each array has a kind: a type, and what
has to be known to choose one type for several arrays.

| kind | values |
| --- | --- |
| null | nothing but nulls |
| bool | booleans |
| int | integers that a float64 represents exactly |
| int64 | other integers |
| double | floats |
| string | text, and anything else as text |

For any two kinds, there is a kind that holds the values of both without a loss; see `joined`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from nanoset_core.text.json_writing import json_text
from nanoset_core.text.tables.columns import (
    as_unchecked_strings,
    is_bytes_array,
    plain_array,
    to_strings,
)
from nanoset_core.text.tables.json_values import json_values

MOST_BYTES = 4096
"""Longer texts are not kept, since a writer has 65,536 values of each column in memory at once."""
_MAX_EXACT = 1 << 53
"""A float64 represents all integers up to this one exactly."""
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def joined(kinds: Iterable[str]) -> str:
    """Return the narrowest kind of values that can hold the values of all these kinds exactly.

    A column of documents may have integers in one file and texts in another one. Then it has texts
    in the whole corpus:

        int, double     double
        int, string     string
        bool, int       string    since `true` is no number
        no kinds        null

    Args:
        kinds: Kinds from the table of this module, in any order.
    """
    joined_kind = "null"
    for kind in kinds:
        joined_kind = _kind_of_both(joined_kind, kind)
    return joined_kind


def _kind_of_both(first: str, second: str) -> str:
    """Return the kind of values that can hold the values of two kinds exactly.

        int, double      double: all integers of this kind are exact as 64-bit floats
        int64, double    string: they are larger, so a float may not be exact
        int, int64       int64
        null, double     double
        bool, int        string

    Args:
        first: A kind from the table of this module.
        second: Another one, or the same.
    """
    if first == second or second == "null":
        return first
    if first == "null":
        return second
    kinds = {first, second}
    if kinds == {"int", "int64"}:
        return "int64"
    # A float64 represents exactly all values of the kind int, but not those of int64.
    if kinds == {"int", "double"}:
        return "double"
    return "string"


def type_of(kind: str) -> Any:
    """Return the Arrow type in which a column of a table is stored.

    Documents may have further values, such as a URL or a score, which become columns of a table.
    Each column has one of six kinds. The kinds "int" and "int64" are both stored as int64. They are
    only distinguished since a float can represent all numbers of "int" exactly, but not of "int64".

    Args:
        kind: The kind: a key of the dictionary below.
    """
    import pyarrow as pa

    types = {
        "null": pa.null(),
        "bool": pa.bool_(),
        "int": pa.int64(),
        "int64": pa.int64(),
        "double": pa.float64(),
        "string": pa.string(),
    }
    return types[kind]


def kind_of(array: Any) -> str:
    """Return the kind of the values in an Arrow array, such as "int" or "string".

    Integers are of two kinds, since they may be joined with floats: "int" if all are exact as
    64-bit floats (up to 2**53), and otherwise "int64".

    Args:
        array: An array that `from_json` or `narrowed` returned.

    Returns:
        "null" if all values are null, "bool", "double", "string", "int" or "int64".
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if array.null_count == len(array):
        return "null"
    if array.type == pa.bool_():
        return "bool"
    if array.type == pa.float64():
        return "double"
    if array.type != pa.int64():
        return "string"

    extremes = pc.min_max(array).as_py()
    is_exact = extremes["min"] >= -_MAX_EXACT and extremes["max"] <= _MAX_EXACT
    return "int" if is_exact else "int64"


def as_type(array: Any, target: Any) -> Any:
    """Convert an Arrow array to another type, so that several arrays can be one column.

    For example, one file has the numbers 1 and 2.5, and another one has "high". Together, they are
    a column of texts: "1", "2.5" and "high".

    Args:
        array: An array that `from_json` or `narrowed` returned; it may be chunked.
        target: Arrow type that can hold all values of the array.
    """
    import pyarrow as pa

    if array.type == target:
        return array
    if array.null_count == len(array):
        return pa.nulls(len(array), target)
    if array.type == pa.float64() and target == pa.string():
        return _floats_as_strings(array)
    return array.cast(target)


def _floats_as_strings(array: Any) -> Any:
    """Convert an Arrow array of floats to texts, with whole numbers as integers.

        [1.0, 2.5]    "1", "2.5"

    Arrow would write the 1 as "1.0" if its column has a 2.5, and as "1" in a column of integers.
    But the text of a number must not depend on the other numbers of its column. Above 2**53, a
    float no longer shows which integer was meant, so it is written as a float.

    Args:
        array: An array of float64.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    has_no_fraction = pc.equal(pc.floor(array), array)
    is_exact = pc.less_equal(pc.abs(array), float(_MAX_EXACT))
    is_integer = pc.and_(has_no_fraction, is_exact)
    integers = pc.if_else(is_integer, array, None).cast(pa.int64())
    return pc.coalesce(integers.cast(pa.string()), array.cast(pa.string()))


def from_json(values: Sequence[Any]) -> Any:
    """Return values that were read from JSON as an Arrow array of one type.

        [1, 2]           integers
        [1, 2.5]         floats
        ["a", null]      strings
        [1, "a", [2]]    strings, with the JSON of the others: "1", "a", "[2]"
        [0.5, NaN]       floats; NaN and the infinities, which JSON does not have, become null

    Args:
        values: The values, as Python's json module returns them.
    """
    import pyarrow as pa

    types = set(map(type, values)) - {type(None)}
    if not types:  # nothing but None
        return pa.nulls(len(values))

    # Values of one type keep it, and so do integers and floats together, as floats.
    arrow_type = _common_type(types)
    if arrow_type is not None:
        try:
            return _only_finite(pa.array(values, arrow_type))
        except (OverflowError, UnicodeEncodeError, pa.ArrowInvalid):
            pass  # a number is too large, or a text has half a surrogate pair

    # Otherwise each value becomes a text.
    return pa.array(map(_as_text, values), pa.string())


def _common_type(types: set[type]) -> Any:
    """Return the Arrow type that can hold some JSON values, given their types in Python.

        {int}           int64
        {int, float}    float64
        {int, str}      None, since no Arrow type holds both

    Args:
        types: The types of the values, without that of None; at least one.
    """
    import pyarrow as pa

    if types == {bool}:
        return pa.bool_()
    if types == {int}:
        return pa.int64()
    if types in ({float}, {int, float}):
        return pa.float64()
    if types == {str}:
        return pa.string()
    return None


def narrowed(array: Any) -> Any:
    """Convert a column of any Arrow type to one of few types, in which values are stored.

    Files have columns of many types, but users only compare and show the values. So four are
    enough:

        int8, uint32, …         int64 (string, if a uint64 is too large)
        float32, float64        float64, with null for NaN and infinity
        date 2024-01-31         string "2024-01-31"
        list [1, 2]             string "[1,2]"
        struct {a: 1}           string '{"a":1}'
        boolean, string         unchanged

    Args:
        array: The values of the column, as an Arrow array.

    Raises:
        NotJsonError: The values cannot be written as JSON.
        pyarrow.ArrowException: The array is damaged.
    """
    import pyarrow as pa
    from pyarrow import types

    array = plain_array(array)
    if types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())

    if is_bytes_array(array):
        return _bytes_as_strings(array)
    if types.is_integer(array.type):
        try:
            return array.cast(pa.int64())
        except pa.ArrowInvalid:  # an unsigned number that is too large
            return array.cast(pa.string())
    if types.is_boolean(array.type) or types.is_null(array.type):
        return array
    if types.is_floating(array.type):
        return _only_finite(array.cast(pa.float64()))
    return from_json(json_values(array))  # dates, lists, structs and so on


def _bytes_as_strings(array: Any) -> Any:
    r"""Convert an Arrow array of bytes to strings. Bytes that are not UTF-8 are written as \xNN.

    For example, b"caf\xe9" is "café" in the old encoding Latin-1, and no UTF-8. It becomes a text
    of seven characters, the last four of which are a backslash and "xe9".

    Args:
        array: The array.
    """
    import pyarrow as pa

    try:
        strings = as_unchecked_strings(array)
        strings.validate(full=True)
        return strings.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(to_strings(array, "backslashreplace"), pa.string())


def limited(array: Any) -> tuple[Any, int]:
    """Replace the texts that are longer than 4,096 bytes by null, and count them.

    They belong to documents, as their URL does. Very long ones would need too much memory.

    Args:
        array: An Arrow array of any type; only strings can be too long.

    Returns:
        (array without them, how many there are).
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if array.type != pa.string():
        return array, 0
    is_too_long = pc.greater(pc.binary_length(array), MOST_BYTES)
    count = pc.sum(is_too_long).as_py() or 0
    if count == 0:
        return array, 0
    return pc.if_else(is_too_long, None, array), count


def _only_finite(array: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by null: [0.5, NaN] → [0.5, null].

    Args:
        array: An Arrow array of any type; only one of 64-bit floats has such numbers.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if array.type != pa.float64():
        return array
    return pc.if_else(pc.is_finite(array), array, None)


def _as_text(value: Any) -> str | None:
    r"""Return a JSON value as text, for a column in which other values are text; None for null.

        "Hello"      "Hello"
        2.0          "2"
        true         "true"
        [1, "a"]     "[1,\"a\"]"

    Args:
        value: The value, as Python's json module returns it.
    """
    if value is None:
        return None
    if type(value) is float:
        return _float_as_text(value)
    if type(value) is not str:
        value = json_text(value, _ENCODER)
    # JSON may have the first half of an emoji, which UTF-8 cannot represent: write it as \ud83d.
    return _escape_surrogates(value)


def _float_as_text(value: float) -> str | None:
    """Return a float as text: 2.0 as "2", and 0.5 as "0.5". Return None for NaN and infinities.

    If a column has numbers and texts, its numbers become texts. Which function does that depends on
    how the values are divided into batches when they are read:

        [2.0, "a"]      one batch with both: this function is called for 2.0
        [2.0]  ["a"]    a batch of numbers: `as_type` converts it when the next one has texts

    The result must not depend on the batches, so this function leaves the conversion to `as_type`,
    which takes an Arrow array.

    Args:
        value: The float.
    """
    import pyarrow as pa

    array_of_one = _only_finite(pa.array([value]))  # NaN and infinities become null
    texts = as_type(array_of_one, pa.string())
    text: str | None = texts[0].as_py()
    return text


def _escape_surrogates(text: str) -> str:
    r"""Replace halves of characters, which UTF-8 cannot represent, by escapes such as \ud83d.

    JSON may contain "\ud83d" alone, which is the first half of an emoji.

    Args:
        text: The text.
    """
    return text.encode("utf-8", "backslashreplace").decode()
