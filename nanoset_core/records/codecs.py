"""Convert plain values, as JSON and YAML have them, to typed ones, and back to those of JSON.

This is the only typed parser of nanoset: settings that people write as YAML and records that are
stored as JSON are both declared as frozen dataclasses, and read by the codecs of their types.

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
are read fast.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from nanoset_core.errors import closest_name
from nanoset_core.records.frozen import FrozenDict
from nanoset_core.records.mismatches import (
    Mismatch,
    MismatchError,
    key_of_wrong_type,
    missing_key,
    out_of_range,
    unknown_key,
    unwritable_key,
    unwritable_text,
    wrong_value,
)
from nanoset_core.records.settings import (
    Range,
    alternatives,
    bare,
    default_of,
    field_help,
    is_required,
    key_of,
    own_fields,
    range_of,
)

_MOST_MISMATCHES = 1000
"""A list or mapping with more mistakes than this is not read further, since it is something else.
"""
_JSON_KEY = "json_key"
_OMIT_DEFAULT = "omit_default"
_ONLY_WITH = "only_with"
_HINT = "hint"
_PLAIN_TYPES: Mapping[Any, frozenset[type]] = {
    str: frozenset([str]),
    int: frozenset([int]),
    float: frozenset([float, int]),  # JSON does not distinguish 1 from 1.0
    bool: frozenset([bool]),
    types.NoneType: frozenset([types.NoneType]),
}
"""Annotation → types of the values of JSON that it allows."""
_EXPONENT = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]{1,3}")
"""Numbers such as 10e9. YAML 1.1 takes them for text, since they lack a point or a sign."""
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that YAML can express by escapes, but that no path, name or UTF-8 file can contain."""
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


def stored(
    key: str | None = None,
    *,
    omit_default: bool = False,
    only_with: str | None = None,
    hint: Any = None,
) -> dict[str, Any]:
    """Return the metadata of a field that is not stored as fields usually are.

    Args:
        key: Its key in JSON, if that is not the field's name.
        omit_default: Whether the key is left out if the field has its default. Fields that earlier
            versions of nanoset did not have are left out, so that old digests stay the same.
        only_with: Name of another field. The key is left out unless that field has a value.
        hint: Type of the stored value, if the field's annotation allows types that JSON lacks.
    """
    return {
        _JSON_KEY: key,
        _OMIT_DEFAULT: omit_default,
        _ONLY_WITH: only_with,
        _HINT: hint,
    }


class ValueCodec(ABC):
    """Converts values of one declared type."""

    @abstractmethod
    def fits(self, value: Any) -> bool:
        """Return whether a plain value has the form of the type, such as that of a list.

        The choices of a `Literal`, and what is in a list or a mapping, are not looked at. In a
        union, the first type that fits a value decodes it.
        """

    @abstractmethod
    def decode(self, value: Any) -> Any:
        """Return a plain value as the type.

        Raises:
            MismatchError: The value does not have the type.
        """

    def encode(self, value: Any) -> Any:
        """Return a value of the type as one that `json.dumps` writes."""
        return value


_codecs: dict[tuple[Any, Notation], ValueCodec] = {}
"""(Type, notation) → codec. Making one takes much longer than reading a small record."""


def codec_of(hint: Any, notation: Notation = Notation.JSON) -> ValueCodec:
    """Return the codec of a type.

    Args:
        hint: A type that an annotation declares; see the docstring of this module.
        notation: Where the values come from.

    Raises:
        TypeError: No key can have this type.
    """
    codec = _codecs.get((hint, notation))
    if codec is None:
        codec = _make_codec(hint, notation)
        _codecs[hint, notation] = codec
    return codec


def _make_codec(hint: Any, notation: Notation) -> ValueCodec:
    """Return a new codec of a type, by its form: a union, a number in a range, a dataclass, …

    Args:
        hint: A type that an annotation declares.
        notation: Where the values come from.

    Raises:
        TypeError: No key can have this type.
    """
    if len(alternatives(hint)) > 1:
        return _codec_of_union(hint, notation)
    value_range = range_of(hint)
    if value_range is not None:
        return _RangeCodec(codec_of(bare(hint), notation), value_range)
    if get_origin(hint) is Annotated:
        return codec_of(bare(hint), notation)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _DataclassCodec(hint, notation)
    if hasattr(hint, "_fields"):
        hints = get_type_hints(hint)
        return _RowCodec(hint._make, [codec_of(hints[name], notation) for name in hint._fields])
    if get_origin(hint) is not None:
        return _codec_of_generic(hint, notation)
    return _codec_of_scalar(hint, notation)


def _codec_of_scalar(hint: Any, notation: Notation) -> ValueCodec:
    """Return the codec of text, a number, a boolean, None, or any value.

    Args:
        hint: The type, without arguments.
        notation: Where the values come from.

    Raises:
        TypeError: The type is something else.
    """
    if hint is Any and notation is Notation.YAML:
        return _AnySettingCodec()
    if hint is Any:
        return _AnyCodec()
    if hint is str and notation is Notation.YAML:
        return _SettingTextCodec()
    if hint is float and notation is Notation.YAML:
        return _SettingNumberCodec()
    if hint in _PLAIN_TYPES:
        allowed = _PLAIN_TYPES[hint]
        if notation is Notation.YAML:
            allowed = frozenset([hint])
        return _PlainCodec(hint, allowed)
    raise TypeError(f"no key can have values of the type {hint}")


def _codec_of_generic(hint: Any, notation: Notation) -> ValueCodec:
    """Return the codec of a type with arguments, such as `tuple[int, ...]`.

    Args:
        hint: The type.
        notation: Where the values come from.

    Raises:
        TypeError: No key can have this type.
    """
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is Literal:
        return _ChoiceCodec(hint)
    if origin is list:
        return _SequenceCodec(hint, list, codec_of(arguments[0], notation))
    if origin is tuple and arguments[1:] == (...,):
        return _SequenceCodec(hint, tuple, codec_of(arguments[0], notation))
    if origin is tuple:
        return _RowCodec(tuple, [codec_of(item, notation) for item in arguments])
    if origin is Mapping and notation is Notation.YAML:
        return _SettingMappingCodec(hint, codec_of(arguments[1], notation))
    if origin in (Mapping, dict) and arguments[0] is str:
        return _MappingCodec(hint, codec_of(arguments[1], notation))
    raise TypeError(f"no key can have values of the type {hint}")


def _codec_of_union(hint: Any, notation: Notation) -> ValueCodec:
    """Return the codec of a union: one of plain types, or one that chooses an alternative."""
    codecs = [codec_of(kind, notation) for kind in alternatives(hint)]
    plain_types = [_plain_types_of(codec) for codec in codecs]
    if all(plain_types):
        return _PlainCodec(hint, frozenset().union(*plain_types))
    return _UnionCodec(hint, codecs)


class _AnyCodec(ValueCodec):
    """Any value of JSON, which stays as it is."""

    def fits(self, value: Any) -> bool:
        return True

    def decode(self, value: Any) -> Any:
        return value


class _AnySettingCodec(ValueCodec):
    """Any value that a setting can have, with mappings and lists that cannot be changed."""

    @cached_property
    def _codec(self) -> ValueCodec:
        """The codec of the union that `Any` stands for. It contains this codec again."""
        return codec_of(_ANY_SETTING, Notation.YAML)

    def fits(self, value: Any) -> bool:
        return True

    def decode(self, value: Any) -> Any:
        return self._codec.decode(value)


class _PlainCodec(ValueCodec):
    """Text, numbers, booleans and None, which stay as they are."""

    def __init__(self, hint: Any, allowed: frozenset[type]) -> None:
        """Allow values of some types.

        Args:
            hint: The declared type.
            allowed: Exact types of the values: a bool is not an int here.
        """
        self._hint = hint
        self.allowed = allowed

    def fits(self, value: Any) -> bool:
        return type(value) in self.allowed

    def decode(self, value: Any) -> Any:
        if type(value) not in self.allowed:
            raise wrong_value(self._hint, value)
        return value


def _plain_types_of(codec: ValueCodec) -> frozenset[type]:
    """Return the types of values that a codec returns as they are; empty if there are none."""
    return codec.allowed if isinstance(codec, _PlainCodec) else frozenset()


class _SettingTextCodec(ValueCodec):
    """Text that a name, a path or a UTF-8 file can contain."""

    def fits(self, value: Any) -> bool:
        return type(value) is str

    def decode(self, value: Any) -> str:
        if type(value) is not str:
            raise wrong_value(str, value)
        if _UNWRITABLE.search(value) is not None:
            raise unwritable_text(value)
        return value


class _SettingNumberCodec(ValueCodec):
    """A number that may have a fraction, and may be written as 10e9."""

    def fits(self, value: Any) -> bool:
        number = self._number(value)
        # Infinity and NaN are not numbers that a setting can have. A bool is not an int here.
        return type(number) in (int, float) and abs(number) <= sys.float_info.max

    def decode(self, value: Any) -> float:
        if not self.fits(value):
            raise wrong_value(float, value)
        return float(self._number(value))

    @staticmethod
    def _number(value: Any) -> Any:
        """Return text such as "10e9", which YAML does not take for a number, as a number."""
        if isinstance(value, str) and _EXPONENT.fullmatch(value):
            return float(value)
        return value


class _RangeCodec(ValueCodec):
    """A number in a range."""

    def __init__(self, codec: ValueCodec, value_range: Range) -> None:
        """Limit numbers.

        Args:
            codec: ValueCodec of all numbers of the type.
            value_range: The allowed ones.
        """
        self._codec = codec
        self._range = value_range

    def fits(self, value: Any) -> bool:
        return self._codec.fits(value)

    def decode(self, value: Any) -> Any:
        number = self._codec.decode(value)
        if number not in self._range:
            raise out_of_range(self._range, value, number)
        return number


class _ChoiceCodec(ValueCodec):
    """One of a few texts."""

    def __init__(self, hint: Any) -> None:
        """Take the choices of a type such as `Literal["a", "b"]`."""
        self._hint = hint
        self._choices = get_args(hint)

    def fits(self, value: Any) -> bool:
        return type(value) is str

    def decode(self, value: Any) -> Any:
        if type(value) is not str or value not in self._choices:
            raise wrong_value(self._hint, value)
        return value


class _UnionCodec(ValueCodec):
    """A value of the first of several types that it has the form of."""

    def __init__(self, hint: Any, codecs: Sequence[ValueCodec]) -> None:
        """Declare the union.

        Args:
            hint: The declared type.
            codecs: ValueCodec of each alternative, in their order.
        """
        self._hint = hint
        self._codecs = codecs

    def fits(self, value: Any) -> bool:
        return any(codec.fits(value) for codec in self._codecs)

    def decode(self, value: Any) -> Any:
        """Return a value as the first type that it has the form of; see `ValueCodec.fits`.

        Raises:
            MismatchError: It has the form of none of the types, or is not valid as this type.
        """
        for codec in self._codecs:
            if codec.fits(value):
                return codec.decode(value)
        raise wrong_value(self._hint, value)

    def encode(self, value: Any) -> Any:
        """Return a value as plain JSON values. Which of the types it has is seen from the value."""
        if dataclasses.is_dataclass(value):
            return codec_of(type(value)).encode(value)
        if isinstance(value, tuple):
            return [self.encode(item) for item in value]
        if isinstance(value, Mapping):
            return {key: self.encode(item) for key, item in value.items()}
        return value


class _SequenceCodec(ValueCodec):
    """A list of any length ↔ a tuple or list."""

    def __init__(self, hint: Any, make: Callable[[list[Any]], Any], item: ValueCodec) -> None:
        """Declare the sequence.

        Args:
            hint: The declared type.
            make: Makes it from its items.
            item: ValueCodec of the items.
        """
        self._hint = hint
        self._make = make
        self._item = item
        self._plain_types = _plain_types_of(item)

    def fits(self, value: Any) -> bool:
        return isinstance(value, list)

    def decode(self, value: Any) -> Any:
        """Return a list as the sequence, with each item converted to the type of the items.

        Raises:
            MismatchError: The value is not a list, or some of its items have a wrong type.
        """
        if not isinstance(value, list):
            raise wrong_value(self._hint, value)
        # If all items stay as they are, they need not be decoded one by one.
        if self._plain_types.issuperset(map(type, value)):
            return self._make(value)
        return self._make(_decode_items([self._item] * len(value), value))

    def encode(self, value: Any) -> list[Any]:
        encode = self._item.encode
        return [encode(item) for item in value]


def _decode_items(codecs: Sequence[ValueCodec], values: Sequence[Any]) -> list[Any]:
    """Return the items of a list, each decoded by its codec.

    Args:
        codecs: The codec of each item.
        values: The plain value of each item.

    Raises:
        MismatchError: Some items do not have their types.
    """
    items: list[Any] = []
    mismatches: list[Mismatch] = []
    for index, value in enumerate(values):
        try:
            items.append(codecs[index].decode(value))
        except MismatchError as error:
            mismatches += error.below(f"[{index}]")
            if len(mismatches) > _MOST_MISMATCHES:
                break
    if mismatches:
        raise MismatchError(mismatches)
    return items


class _RowCodec(ValueCodec):
    """A list of fixed length ↔ a tuple or NamedTuple with a type for each item."""

    def __init__(self, make: Callable[[list[Any]], Any], items: Sequence[ValueCodec]) -> None:
        """Declare the row.

        Args:
            make: Makes it from its items.
            items: ValueCodec of each item.
        """
        self._make = make
        self._items = items

    def fits(self, value: Any) -> bool:
        return isinstance(value, list)

    def decode(self, value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(self._items):
            raise wrong_value(list, value, expected=f"a list of {len(self._items)} values")
        return self._make(_decode_items(self._items, value))

    def encode(self, value: Any) -> list[Any]:
        pairs = zip(self._items, value, strict=True)
        return [codec.encode(item) for codec, item in pairs]


class _MappingCodec(ValueCodec):
    """A mapping with any keys ↔ a mapping. One of values that need no change is not copied."""

    def __init__(self, hint: Any, item: ValueCodec) -> None:
        """Declare the mapping.

        Args:
            hint: The declared type.
            item: ValueCodec of the values.
        """
        self._hint = hint
        self._item = item
        self._plain_types = _plain_types_of(item)
        self._is_any = isinstance(item, _AnyCodec)

    def fits(self, value: Any) -> bool:
        return isinstance(value, dict)

    def decode(self, value: Any) -> Mapping[str, Any]:
        """Return a mapping with each value converted to the type of the values.

        Raises:
            MismatchError: The value is not a mapping, or some of its values have a wrong type.
        """
        if not isinstance(value, dict):
            raise wrong_value(self._hint, value)
        # If all items stay as they are, they need not be decoded one by one.
        if self._is_any or self._plain_types.issuperset(map(type, value.values())):
            return value
        return self._decode_values(value, [])

    def _decode_values(
        self, value: Mapping[str, Any], mismatches: list[Mismatch]
    ) -> dict[str, Any]:
        """Return a mapping with each of its values decoded.

        Args:
            value: The mapping.
            mismatches: Mistakes that were found in its keys, to be reported with those in values.

        Raises:
            MismatchError: The mapping has mistakes; all of them are listed.
        """
        decode = self._item.decode
        result: dict[str, Any] = {}
        for key, item in value.items():
            try:
                result[key] = decode(item)
            except MismatchError as error:
                mismatches = mismatches + error.below(f".{key}")
                if len(mismatches) > _MOST_MISMATCHES:
                    break
        if mismatches:
            raise MismatchError(mismatches)
        return result

    def encode(self, value: Any) -> dict[str, Any]:
        if self._is_any or self._plain_types:
            return dict(value)
        encode = self._item.encode
        return {key: encode(item) for key, item in value.items()}


class _SettingMappingCodec(_MappingCodec):
    """A mapping whose keys are text, or choices of a `Literal` ↔ a mapping that is frozen."""

    def __init__(self, hint: Any, item: ValueCodec) -> None:
        super().__init__(hint, item)
        key_hint, _ = get_args(hint)
        self._choices = get_args(bare(key_hint))  # of a Literal; empty for other types

    def decode(self, value: Any) -> FrozenDict[str, Any]:
        """Return a mapping that cannot be changed, with each value converted.

        Raises:
            MismatchError: The value is not a mapping, or some of its keys or values are wrong.
        """
        if not isinstance(value, dict):
            raise wrong_value(self._hint, value)
        mismatches: list[Mismatch] = []
        known: dict[str, Any] = {}
        for key, item in value.items():
            mistake = self._mistake_of_key(key)
            if mistake is None:
                known[key] = item
            else:
                mismatches.append(mistake)
        return FrozenDict(self._decode_values(known, mismatches))

    def _mistake_of_key(self, key: object) -> Mismatch | None:
        """Return what is wrong with a key, or None."""
        if type(key) is not str:
            return key_of_wrong_type(key)
        if _UNWRITABLE.search(key) is not None:
            return unwritable_key(key)
        if self._choices and key not in self._choices:
            return unknown_key(key, self._choices)
        return None


class _Field(NamedTuple):
    """A field of a dataclass that is a key, with what its codec asks about it most often."""

    field: dataclasses.Field[Any]
    hint: Any
    """Its declared type."""
    name: str
    key: str
    codec: ValueCodec
    plain_types: frozenset[type]
    """Types of plain values that the codec returns as they are, both ways."""
    default: Any
    is_required: bool
    omit_default: bool
    """Whether the key is left out of JSON if the field has its default."""
    only_with: str | None
    """Name of the field without which the key is left out of JSON."""

    @property
    def is_conditional(self) -> bool:
        """Whether the key is left out of some records."""
        return self.omit_default or self.only_with is not None

    def is_stored(self, record: object) -> bool:
        """Return whether the key is written for a record."""
        if self.omit_default and getattr(record, self.name) == self.default:
            return False
        return self.only_with is None or getattr(record, self.only_with) is not None


class _DataclassCodec(ValueCodec):
    """A mapping whose keys are the fields of a dataclass ↔ the dataclass.

    Fields that are marked as `NOT_A_KEY` are left out. Unknown keys are an error, unless the class
    has a true attribute `ignores_unknown_keys`.
    """

    def __init__(self, kind: Any, notation: Notation) -> None:
        """Declare the dataclass.

        Args:
            kind: The class.
            notation: Where the values come from.
        """
        self._kind = kind
        self._notation = notation
        self._ignores_unknown_keys: bool = getattr(kind, "ignores_unknown_keys", False)

    # Fields are looked up when they are first needed, since the type of a field may contain the
    # class again, as a group of a mixture contains groups. Manifests have up to 10^6 entries, so
    # the loops of `decode` and `encode` get what they need of each field in one step.

    @cached_property
    def _field_by_key(self) -> Mapping[str, _Field]:
        """Key → its field."""
        fields = [self._field(field, hint) for field, hint in own_fields(self._kind)]
        return {field.key: field for field in fields}

    @cached_property
    def _decoding(self) -> Mapping[str, tuple[str, frozenset[type], Callable[[Any], Any]]]:
        """Key → name of its field, types of values that stay as they are, what decodes others."""
        return {
            key: (field.name, field.plain_types, field.codec.decode)
            for key, field in self._field_by_key.items()
        }

    @cached_property
    def _encoding(self) -> Sequence[tuple[_Field, str, str, Callable[[Any], Any], bool]]:
        """Of each field: itself, name, key, what encodes it, and whether it may be left out."""
        return [
            (field, field.name, field.key, field.codec.encode, field.is_conditional)
            for field in self._field_by_key.values()
        ]

    def _field(self, field: dataclasses.Field[Any], hint: Any) -> _Field:
        """Return what the codec needs to know of a field.

        Args:
            field: The field.
            hint: Its declared type.
        """
        codec = codec_of(field.metadata.get(_HINT) or hint, self._notation)
        return _Field(
            field=field,
            hint=hint,
            name=field.name,
            key=field.metadata.get(_JSON_KEY) or key_of(field),
            codec=codec,
            plain_types=_plain_types_of(codec),
            default=default_of(field),
            is_required=is_required(field),
            omit_default=field.metadata.get(_OMIT_DEFAULT, False),
            only_with=field.metadata.get(_ONLY_WITH),
        )

    def fits(self, value: Any) -> bool:
        return isinstance(value, dict)

    def decode(self, value: Any) -> Any:
        """Return a mapping as the dataclass, with each value converted to the type of its field.

        Raises:
            MismatchError: The value is not a mapping, or some of its keys are unknown, missing, or
                have values of a wrong type. The error lists all of these.
        """
        if not isinstance(value, dict):
            raise wrong_value(self._kind, value)

        # Convert the value of each key to an argument of the class. This loop decides how fast
        # manifests are read.
        decoding = self._decoding
        arguments: dict[str, Any] = {}
        mismatches: list[Mismatch] = []
        for key, item in value.items():
            if key in decoding:
                name, plain_types, decode = decoding[key]
                if type(item) in plain_types:
                    arguments[name] = item  # `decode` would return it as it is
                else:
                    try:
                        arguments[name] = decode(item)
                    except MismatchError as error:
                        mismatches += self._mismatches_of(key, item, error)
            elif not self._ignores_unknown_keys:
                mismatches.append(unknown_key(str(key), decoding))

        if mismatches:
            raise MismatchError([*mismatches, *self._missing_keys(value)])
        try:
            return self._kind(**arguments)
        except TypeError:
            # Usually, a required key is missing. If not, the class itself has raised the error.
            missing_keys = self._missing_keys(value)
            if not missing_keys:
                raise
        raise MismatchError(missing_keys)

    def _mismatches_of(self, key: str, item: object, error: MismatchError) -> list[Mismatch]:
        """Return the mistakes in the value of a key.

        Args:
            key: The key.
            item: Its value.
            error: The error of the codec of the key.
        """
        field = self._field_by_key[key]
        # A required key without a value is described like one that is missing.
        if item is None and field.is_required:
            return [self._missing(field, is_null=True)]
        return error.below(f".{key}")

    def _missing_keys(self, value: Mapping[Any, Any]) -> list[Mismatch]:
        """Return a mistake for each required key that a mapping does not have.

        A key is left out if the mapping has an unknown key that is probably a misspelling of it,
        because that one was reported already. If unknown keys are ignored, it was not.
        """
        known = self._field_by_key
        misspelt: set[str | None] = set()
        if not self._ignores_unknown_keys:
            misspelt = {closest_name(str(key), known) for key in value if key not in known}
        return [
            self._missing(field, is_null=False)
            for key, field in known.items()
            if field.is_required and key not in value and key not in misspelt
        ]

    def _missing(self, field: _Field, *, is_null: bool) -> Mismatch:
        """Return the mistake of a required key that is missing, or has no value (`is_null`)."""
        return missing_key(
            field.key,
            field.hint,
            explanation=field_help(self._kind, field.name),
            example=field.field.metadata.get("example", "…"),
            is_null=is_null,
        )

    def encode(self, value: Any) -> dict[str, Any]:
        """Return the dataclass as a mapping, without keys that its class leaves out (`stored`)."""
        result: dict[str, Any] = {}
        for field, name, key, encode, is_conditional in self._encoding:
            if not is_conditional or field.is_stored(value):
                result[key] = encode(getattr(value, name))
        return result
