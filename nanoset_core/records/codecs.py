"""Convert plain values, as JSON and YAML have them, to typed ones, and back to those of JSON.

For example, the codec of `tuple[int, ...]` converts the list [1, 2] to the tuple (1, 2), and says
of ["a"] that its first item should be a whole number. This is the only typed parser of nanoset:
settings that people write as YAML and records that are stored as JSON are both declared as frozen
dataclasses, and read by the codecs of their types.

| plain value | type |
| --- | --- |
| mapping | a dataclass, whose fields are the keys; `Mapping[str, X]` |
| list | `tuple[X, ...]`, or in JSON also `list[X]` |
| list of fixed length | `tuple[X, Y]` or a `NamedTuple`, with a type for each item (JSON) |
| others | `str`, `int`, `float`, `bool`, `None`, `Literal`, and unions of them |
| number in a range | `Annotated[int, Range(1, 10)]` |
| any value | `Any` |

The two notations differ in a few types, see `Notation`. In both, unknown keys, missing keys and
values of a wrong type are errors, and a `MismatchError` lists all of them.

pydantic is not used here, although Dagster requires it anyway. Importing it takes 40 ms of CPU time
in every call of `nanoset status` and every process that calls `load_nanoset`, and its errors would
still have to be translated to lines of the file, suggestions and remedies.

`codec_of` makes a codec once for each type, so that records with hundreds of thousands of entries
are read fast. The codecs are defined in `scalar_codecs.py`, `container_codecs.py` and
`dataclass_codec.py`, and those of unions and of settings that are `Any` here, since they look up
other codecs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cached_property, partial
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from nanoset_core.records.container_codecs import (
    MappingCodec,
    RowCodec,
    SequenceCodec,
    SettingMappingCodec,
)
from nanoset_core.records.dataclass_codec import DataclassCodec
from nanoset_core.records.mismatches import wrong_value
from nanoset_core.records.scalar_codecs import (
    PLAIN_TYPES,
    AnyCodec,
    ChoiceCodec,
    PlainCodec,
    RangeCodec,
    SettingNumberCodec,
    SettingTextCodec,
    plain_types_of,
)
from nanoset_core.records.settings import alternatives, bare, range_of
from nanoset_core.records.value_codec import ValueCodec

_ANY_SETTING = Mapping[str, Any] | tuple[Any, ...] | str | bool | int | float | None
"""Type of a setting that is declared as `Any`."""


class Notation(Enum):
    """Where plain values come from."""

    JSON = "JSON"
    """Records that nanoset stored. What was read and is written again has the same bytes, so values
    are never converted to another type of number or text: 1 stays an int as a `float`.
    """
    YAML = "YAML"
    """Settings that people wrote. They cannot be changed after they were read: mappings become
    `FrozenDict`. Numbers of the type `float` are floats, and may be written as 10e9. Text cannot
    have characters that no file can contain.
    """


_codecs: dict[tuple[Any, Notation], ValueCodec] = {}
"""(Type, notation) → codec. Making one takes much longer than reading a small record."""


def codec_of(hint: Any, notation: Notation = Notation.JSON) -> ValueCodec:
    """Return the codec of a type, which converts values of the type to and from JSON or YAML.

    Files have only lists, mappings, texts, numbers, booleans and null. For example:

        type                in the file      in the program
        tuple[int, ...]     [1, 2]           (1, 2)
        a dataclass File    {"bytes": 80}    File(bytes=80)

    Args:
        hint: The type, as an annotation declares it.
        notation: Whether the file is JSON or YAML. YAML is written by users, and read more
            strictly.

    Returns:
        The codec. It is made once, and is the same object for each call with the same arguments.

    Raises:
        TypeError: No value in a file can have this type.
    """
    codec = _codecs.get((hint, notation))
    if codec is None:
        codec = _make_codec(hint, notation)
        _codecs[hint, notation] = codec
    return codec


def _make_codec(hint: Any, notation: Notation) -> ValueCodec:
    """Make the codec of a type, an object that converts values of the type from and to a file.

    JSON and YAML have only lists, mappings, texts, numbers, booleans and null. The program has more
    types, which its dataclasses declare in annotations:

        type                            in a file        in the program
        int                             7                7
        Annotated[int, Range(1, 10)]    7                7        (11 is refused)
        int | tuple[int, ...]           [1, 2]           (1, 2)
        a dataclass File                {"bytes": 80}    File(bytes=80)

    This function recognizes what kind of type it is. Another function makes the codec of each kind.

    Args:
        hint: The type, as an annotation declares it.
        notation: Whether the file is JSON or YAML. YAML is written by users, and read more
            strictly.

    Raises:
        TypeError: No value in a file can have this type.
    """
    if len(alternatives(hint)) > 1:  # such as int | str
        return _codec_of_union(hint, notation)
    if get_origin(hint) is Annotated:  # such as Annotated[int, Range(1, 10)]
        return _codec_of_annotated(hint, notation)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return DataclassCodec(hint, partial(codec_of, notation=notation))
    if hasattr(hint, "_fields"):  # a NamedTuple
        return _codec_of_named_tuple(hint, notation)
    if get_origin(hint) is not None:  # such as tuple[int, ...]
        return _codec_of_generic(hint, notation)
    return _codec_of_scalar(hint, notation)


def _codec_of_annotated(hint: Any, notation: Notation) -> ValueCodec:
    """Return the codec of a type with metadata, of which only a range matters for the codec.

    Args:
        hint: The type, such as `Annotated[int, Range(1, 10)]`.
        notation: Where the values come from: JSON or YAML.
    """
    codec = codec_of(bare(hint), notation)  # such as that of int
    value_range = range_of(hint)
    return codec if value_range is None else RangeCodec(codec, value_range)


def _codec_of_named_tuple(hint: Any, notation: Notation) -> ValueCodec:
    """Return the codec of a NamedTuple, which is a list in JSON and YAML.

    Args:
        hint: The class.
        notation: Where the values come from: JSON or YAML.
    """
    hint_by_field = get_type_hints(hint)
    item_codecs = [codec_of(hint_by_field[name], notation) for name in hint._fields]
    return RowCodec(hint._make, item_codecs)


def _codec_of_scalar(hint: Any, notation: Notation) -> ValueCodec:
    """Return what checks and converts the values of a simple type: text, a number, a boolean, None.

    The values are from a file: JSON, which this program wrote, or YAML, which users wrote:

        type     in JSON                 in YAML
        int      7                       7
        float    1.5 and 1               1.5, 1 and "10e9", which all become floats
        str      any text                no text with characters that no file can contain
        Any      anything, unchanged     anything; lists and mappings can no longer be changed

    Args:
        hint: The type, such as `int`, or `Any`.
        notation: Whether the values are from JSON or from YAML.

    Raises:
        TypeError: The type is something else.
    """
    if notation is Notation.YAML:
        if hint is Any:
            return AnySettingCodec()
        if hint is str:
            return SettingTextCodec()
        if hint is float:
            return SettingNumberCodec()
        if hint in PLAIN_TYPES:  # int, bool, None
            return PlainCodec(hint, frozenset([hint]))
    else:
        if hint is Any:
            return AnyCodec()
        if hint in PLAIN_TYPES:  # str, int, float, bool, None
            # JSON does not distinguish 1 from 1.0, so a float may be an int: {int, float}.
            return PlainCodec(hint, PLAIN_TYPES[hint])
    raise TypeError(f"no key can have values of the type {hint}")


def _codec_of_generic(hint: Any, notation: Notation) -> ValueCodec:
    """Return the codec of a type that has other types, or values, in brackets.

    A codec converts values from a file, JSON or YAML, to values of the type:

        type                  in a file         in the program
        Literal["a", "b"]     "a"               "a"                (all other texts are refused)
        tuple[int, ...]       [1, 2]            (1, 2)
        Mapping[str, int]     {"web": 3}        {"web": 3}

    Args:
        hint: The type.
        notation: Whether the values are from JSON or from YAML.

    Raises:
        TypeError: It is another type, such as `set[int]`, for which files have no values.
    """
    origin = get_origin(hint)  # such as tuple for tuple[int, ...]
    if origin is Literal:  # such as Literal["a", "b"]
        return ChoiceCodec(hint)
    if origin in (list, tuple):
        return _codec_of_list(hint, notation)
    if origin in (Mapping, dict):
        return _codec_of_mapping(hint, notation)
    raise TypeError(f"no key can have values of the type {hint}")


def _codec_of_list(hint: Any, notation: Notation) -> ValueCodec:
    """Return what checks and converts values of a list or tuple type, which are lists in a file.

        type               in a file       in the program
        list[int]          [1, 2, 3]       [1, 2, 3]
        tuple[int, ...]    [1, 2, 3]       (1, 2, 3)      any number of integers
        tuple[str, int]    ["a", 1]        ("a", 1)       exactly a text and an integer

    Args:
        hint: The type.
        notation: Whether the values are from JSON or from YAML.

    Raises:
        TypeError: The type of the items is one that no value in a file can have.
    """
    item_hints = get_args(hint)  # such as (int, ...)
    if get_origin(hint) is list:
        return SequenceCodec(hint, list, codec_of(item_hints[0], notation))
    has_any_length = item_hints[1:] == (...,)
    if has_any_length:
        return SequenceCodec(hint, tuple, codec_of(item_hints[0], notation))
    return RowCodec(tuple, [codec_of(item_hint, notation) for item_hint in item_hints])


def _codec_of_mapping(hint: Any, notation: Notation) -> ValueCodec:
    """Return what checks and converts mappings from a file, such as {"web": 3}.

    Args:
        hint: The type of the mapping, such as `Mapping[str, int]` or `dict[str, int]`.
        notation: Whether the values are from JSON or YAML.

    Raises:
        TypeError: The type of its keys or of its values is not supported.
    """
    key_hint, value_hint = get_args(hint)  # str and int in the example
    value_codec = codec_of(value_hint, notation)

    # Users write YAML, and settings are of the type `Mapping`. The type of the names may have
    # rules, such as `Literal["a", "b"]`, which this codec checks.
    is_setting = get_origin(hint) is Mapping and notation is Notation.YAML
    if is_setting:
        return SettingMappingCodec(hint, value_codec)
    if key_hint is str:
        return MappingCodec(hint, value_codec)
    raise TypeError(f"no key can have values of the type {hint}")


def _codec_of_union(hint: Any, notation: Notation) -> ValueCodec:
    """Return the object that checks and converts values of one of several types: `int | str`.

    Args:
        hint: The union of types.
        notation: Whether the values are from JSON or YAML.
    """
    member_codecs = [codec_of(member, notation) for member in alternatives(hint)]

    # Types such as int and str need no conversion: it is enough to check that a value has one of
    # them. Others do: a list becomes a tuple. For these, the set of plain types is empty.
    plain_types_of_members = [plain_types_of(codec) for codec in member_codecs]  # [{int}, {str}]
    needs_no_conversion = all(len(types) > 0 for types in plain_types_of_members)
    if needs_no_conversion:
        return PlainCodec(hint, frozenset().union(*plain_types_of_members))
    return UnionCodec(hint, member_codecs)  # finds the type of a value, and then converts it


class AnySettingCodec(ValueCodec):
    """Any value that a setting can have, with mappings and lists that cannot be changed."""

    @cached_property
    def _codec(self) -> ValueCodec:
        """The codec of the union that `Any` stands for. It contains this codec again."""
        return codec_of(_ANY_SETTING, Notation.YAML)

    def fits(self, value: Any) -> bool:
        return True

    def decode(self, value: Any) -> Any:
        return self._codec.decode(value)


class UnionCodec(ValueCodec):
    """A value of one of several types: the first that it fits."""

    def __init__(self, hint: Any, codecs: Sequence[ValueCodec]) -> None:
        """Declare the union.

        Args:
            hint: The declared type, such as `tuple[int, ...]`.
            codecs: The codec of each type of the union, in the declared order.
        """
        self._hint = hint
        self._codecs = codecs

    def fits(self, value: Any) -> bool:
        return any(codec.fits(value) for codec in self._codecs)

    def decode(self, value: Any) -> Any:
        """Return a value from a file as the first type of the union that it fits.

        For `int | tuple[int, ...]`, 1 stays an int, and the list [1, 2] becomes the tuple (1, 2).

        Args:
            value: A value from JSON or YAML.

        Raises:
            MismatchError: The value fits none of the types; or it fits one, as a mapping fits a
                dataclass, but something in it is wrong.
        """
        for codec in self._codecs:
            if codec.fits(value):
                return codec.decode(value)
        raise wrong_value(self._hint, value)

    def encode(self, value: Any) -> Any:
        """Convert a value, whose type is one of several, to values that JSON can express.

        The declared types are not needed for that, since the value itself shows what it is:

            File(bytes=80)        {"bytes": 80}        (a dataclass)
            (1, File(bytes=80))   [1, {"bytes": 80}]
            7                     7

        Args:
            value: A value of one of the types.
        """
        if dataclasses.is_dataclass(value):
            return codec_of(type(value), Notation.JSON).encode(value)
        if isinstance(value, tuple):
            return [self.encode(item) for item in value]
        if isinstance(value, Mapping):
            return {key: self.encode(item) for key, item in value.items()}
        return value
