"""Convert the values of JSON to typed ones and back, as annotations of dataclasses ask for.

| JSON | type |
| --- | --- |
| object | a dataclass, whose fields are the keys; `Mapping[str, X]` or `dict[str, X]` |
| array | `tuple[X, ...]` or `list[X]` |
| array of fixed length | `tuple[X, Y]` or a `NamedTuple`, with a type for each item |
| others | `str`, `int`, `float`, `bool`, `None`, `Literal`, and unions of them |
| any value | `Any`, which stays as it is |

Values are checked, but never converted to another type of number or text: what was read and is
written again has the same bytes. `codec_of` makes a codec once for each type, so that records with
hundreds of thousands of entries are read fast.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, get_args, get_origin, get_type_hints

from nanoset_core.records.settings import (
    MISSING,
    alternatives,
    describe,
    is_required,
    key_of,
    own_fields,
)

_MAX_SHOWN_CHARACTERS = 200
"""Wrong values are cut to this length in messages."""
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


class MismatchError(ValueError):
    """A value of JSON does not have the type that a record declares."""

    def __init__(self, found: str, expected: str) -> None:
        """State what was found.

        Args:
            found: Description of the value.
            expected: Description of the declared type.
        """
        super().__init__(found, expected)
        self.found = found
        self.expected = expected
        self._parts: list[str] = []  # innermost first

    def add_parent(self, part: str) -> None:
        """Say in which key or item of its parent the wrong value is; called from inside out."""
        self._parts.append(part)

    @property
    def path(self) -> str:
        """Path of the wrong value, such as `members[0].rows`; "" for the whole file."""
        path = "".join(reversed(self._parts))
        return path.removeprefix(".")

    def __str__(self) -> str:
        place = f" as {self.path}" if self.path else ""
        return f"{self.found}{place} instead of {self.expected}"


class ValueCodec(Protocol):
    """Converts values of one type."""

    def decode(self, value: Any) -> Any:
        """Return a parsed value of JSON as the type.

        Raises:
            MismatchError: The value does not have the type.
        """

    def encode(self, value: Any) -> Any:
        """Return a value of the type as one that `json.dumps` writes."""


_codecs: dict[Any, ValueCodec] = {}
"""Type → its codec. Making one takes much longer than reading a small record."""


def codec_of(hint: Any) -> ValueCodec:
    """Return the codec of a type.

    Args:
        hint: A type that an annotation declares; see the docstring of this module.

    Raises:
        TypeError: Records cannot have this type.
    """
    codec = _codecs.get(hint)
    if codec is None:
        codec = _make_codec(hint)
        _codecs[hint] = codec
    return codec


def _make_codec(hint: Any) -> ValueCodec:
    """Return a new codec of a type; see `codec_of`."""
    if hint is Any:
        return _AnyCodec()
    if len(alternatives(hint)) > 1:
        return _codec_of_union(hint)
    if hint in _PLAIN_TYPES:
        return _PlainCodec(_PLAIN_TYPES[hint], _describe(hint))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _codec_of_dataclass(hint)
    if hasattr(hint, "_fields"):
        hints = get_type_hints(hint)
        items = tuple(codec_of(hints[name]) for name in hint._fields)
        return _RowCodec(hint._make, items)

    return _codec_of_generic(hint)


def _codec_of_generic(hint: Any) -> ValueCodec:
    """Return the codec of a type with arguments, such as `tuple[int, ...]`."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is Literal:
        return _ChoiceCodec(arguments, describe(hint))
    if origin is list:
        return _SequenceCodec(list, codec_of(arguments[0]))
    if origin is tuple and arguments[1:] == (...,):
        return _SequenceCodec(tuple, codec_of(arguments[0]))
    if origin is tuple:
        return _RowCodec(tuple, tuple(codec_of(item) for item in arguments))
    if origin in (Mapping, dict) and arguments[0] is str:
        return _MappingCodec(codec_of(arguments[1]))
    raise TypeError(f"records cannot have values of the type {hint}")


def _codec_of_union(hint: Any) -> ValueCodec:
    """Return the codec of a union: one of plain types, or one that tries the alternatives."""
    kinds = alternatives(hint)
    if all(kind in _PLAIN_TYPES for kind in kinds):
        allowed: frozenset[type] = frozenset().union(*(_PLAIN_TYPES[kind] for kind in kinds))
        return _PlainCodec(allowed, _describe(hint))
    return _UnionCodec(tuple(codec_of(kind) for kind in kinds), _describe(hint))


def _codec_of_dataclass(kind: Any) -> ValueCodec:
    """Return the codec of a dataclass, without its fields that are marked as `NOT_A_KEY`."""
    fields = []
    for field, hint in own_fields(kind):
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        codec = codec_of(field.metadata.get(_HINT) or hint)
        fields.append(
            _Field(
                name=field.name,
                key=field.metadata.get(_JSON_KEY) or key_of(field),
                codec=codec,
                plain_types=_plain_types_of(codec),
                default=default,
                is_required=is_required(field),
                omit_default=field.metadata.get(_OMIT_DEFAULT, False),
                only_with=field.metadata.get(_ONLY_WITH),
            )
        )
    return _DataclassCodec(kind, fields)


def _describe(hint: Any) -> str:
    """Return a type in words, including "nothing" for None."""
    kinds = alternatives(hint)
    texts = [describe(kind) for kind in kinds if kind is not types.NoneType]
    if types.NoneType in kinds:
        texts.append("null")
    return " or ".join(texts)


def _shown(value: object) -> str:
    """Return a wrong value and its type for a message."""
    text = repr(value)
    if len(text) > _MAX_SHOWN_CHARACTERS:
        text = f"{text[:_MAX_SHOWN_CHARACTERS]}…"
    return f"{text} ({type(value).__name__})"


class _AnyCodec:
    """Any value of JSON, which stays as it is."""

    def decode(self, value: Any) -> Any:
        return value

    def encode(self, value: Any) -> Any:
        return value


class _PlainCodec:
    """Text, numbers, booleans and null."""

    def __init__(self, allowed: frozenset[type], expected: str) -> None:
        """Allow values of some types.

        Args:
            allowed: Their exact types: a bool is not an int here.
            expected: Description of them.
        """
        self.allowed = allowed
        self._expected = expected

    def decode(self, value: Any) -> Any:
        if type(value) not in self.allowed:
            raise MismatchError(_shown(value), self._expected)
        return value

    def encode(self, value: Any) -> Any:
        return value


def _plain_types_of(codec: ValueCodec) -> frozenset[type]:
    """Return the types of values that a codec returns as they are; empty if there are none."""
    return codec.allowed if isinstance(codec, _PlainCodec) else frozenset()


class _ChoiceCodec:
    """One of a few texts."""

    def __init__(self, choices: Sequence[str], expected: str) -> None:
        self._choices = choices
        self._expected = expected

    def decode(self, value: Any) -> Any:
        if type(value) is not str or value not in self._choices:
            raise MismatchError(_shown(value), self._expected)
        return value

    def encode(self, value: Any) -> Any:
        return value


class _UnionCodec:
    """A value of the first type of several that it has."""

    def __init__(self, codecs: Sequence[ValueCodec], expected: str) -> None:
        self._codecs = codecs
        self._expected = expected

    def decode(self, value: Any) -> Any:
        inner_error: MismatchError | None = None
        for codec in self._codecs:
            try:
                return codec.decode(value)
            except MismatchError as error:
                # An error within the value says more than one about the value as a whole.
                if error.path:
                    inner_error = error
        raise inner_error or MismatchError(_shown(value), self._expected)

    def encode(self, value: Any) -> Any:
        # Which of the types a value has is seen from the value.
        if dataclasses.is_dataclass(value):
            return codec_of(type(value)).encode(value)
        if isinstance(value, tuple):
            return [self.encode(item) for item in value]
        if isinstance(value, Mapping):
            return {key: self.encode(item) for key, item in value.items()}
        return value


class _SequenceCodec:
    """An array of any length ↔ a tuple or list."""

    def __init__(self, make: Callable[[list[Any]], Any], item: ValueCodec) -> None:
        """Declare the sequence.

        Args:
            make: Makes it from its items.
            item: Codec of the items.
        """
        self._make = make
        self._item = item
        self._plain_types = _plain_types_of(item)

    def decode(self, value: Any) -> Any:
        if type(value) is not list:
            raise MismatchError(_shown(value), "a list")
        # If all items stay as they are, they need not be decoded one by one.
        if self._plain_types.issuperset(map(type, value)):
            return self._make(value)
        decode = self._item.decode
        items: list[Any] = []
        try:
            for item in value:
                items.append(decode(item))
        except MismatchError as error:
            error.add_parent(f"[{len(items)}]")
            raise
        return self._make(items)

    def encode(self, value: Any) -> list[Any]:
        encode = self._item.encode
        return [encode(item) for item in value]


class _RowCodec:
    """An array of fixed length ↔ a tuple or NamedTuple with a type for each item."""

    def __init__(self, make: Callable[[list[Any]], Any], items: Sequence[ValueCodec]) -> None:
        """Declare the row.

        Args:
            make: Makes it from its items.
            items: Codec of each item.
        """
        self._make = make
        self._items = items

    def decode(self, value: Any) -> Any:
        if type(value) is not list or len(value) != len(self._items):
            raise MismatchError(_shown(value), f"a list of {len(self._items)} values")
        items: list[Any] = []
        try:
            for codec, item in zip(self._items, value, strict=True):
                items.append(codec.decode(item))
        except MismatchError as error:
            error.add_parent(f"[{len(items)}]")
            raise
        return self._make(items)

    def encode(self, value: Any) -> list[Any]:
        pairs = zip(self._items, value, strict=True)
        return [codec.encode(item) for codec, item in pairs]


class _MappingCodec:
    """An object with any keys ↔ a mapping."""

    def __init__(self, item: ValueCodec) -> None:
        self._item = item
        self._plain_types = _plain_types_of(item)
        self._is_any = isinstance(item, _AnyCodec)

    def decode(self, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise MismatchError(_shown(value), "a mapping")
        # If all items stay as they are, they need not be decoded one by one.
        if self._is_any or self._plain_types.issuperset(map(type, value.values())):
            return value
        decode = self._item.decode
        result: dict[str, Any] = {}
        try:
            for key, item in value.items():
                result[key] = decode(item)
        except MismatchError as error:
            error.add_parent(f".{key}")
            raise
        return result

    def encode(self, value: Any) -> dict[str, Any]:
        if self._is_any or self._plain_types:
            return dict(value)
        encode = self._item.encode
        return {key: encode(item) for key, item in value.items()}


class _Field(NamedTuple):
    """A field of a dataclass that is stored."""

    name: str
    key: str
    """Its key in JSON."""
    codec: ValueCodec
    plain_types: frozenset[type]
    """Types of JSON values that the codec returns as they are, both ways."""
    default: Any
    is_required: bool
    omit_default: bool
    """Whether the key is left out if the field has its default."""
    only_with: str | None
    """Name of the field without which the key is left out."""

    @property
    def is_conditional(self) -> bool:
        """Whether the key is left out of some records."""
        return self.omit_default or self.only_with is not None

    def is_stored(self, record: object) -> bool:
        """Return whether the key is written for a record."""
        if self.omit_default and getattr(record, self.name) == self.default:
            return False
        return self.only_with is None or getattr(record, self.only_with) is not None


class _DataclassCodec:
    """An object whose keys are the fields of a dataclass ↔ the dataclass.

    Unknown keys are an error, unless the class has a true attribute `ignores_unknown_keys`.
    """

    def __init__(self, kind: type[Any], fields: Sequence[_Field]) -> None:
        self._kind = kind
        self._fields = fields
        self._ignores_unknown_keys: bool = getattr(kind, "ignores_unknown_keys", False)
        # Manifests have up to 10^6 entries, so the loops below look up what they need only once.
        self._decoding = {
            field.key: (field.name, field.plain_types, field.codec.decode) for field in fields
        }
        self._encoding = [
            (field, field.name, field.key, field.codec.encode, field.is_conditional)
            for field in fields
        ]

    def decode(self, value: Any) -> Any:
        if type(value) is not dict:
            raise MismatchError(_shown(value), "a mapping")

        decoding = self._decoding
        arguments: dict[str, Any] = {}
        try:
            for key, item in value.items():
                if key in decoding:
                    name, plain_types, decode = decoding[key]
                    # The codec would return such a value as it is: the call is saved.
                    arguments[name] = item if type(item) in plain_types else decode(item)
                elif not self._ignores_unknown_keys:
                    raise MismatchError("an unknown key", f"one of {', '.join(decoding)}")
        except MismatchError as error:
            error.add_parent(f".{key}")
            raise

        return self._make(arguments, value)

    def _make(self, arguments: Mapping[str, Any], value: Mapping[str, Any]) -> Any:
        """Return the dataclass.

        Args:
            arguments: Field → its value.
            value: The JSON, in which a required key may be missing.

        Raises:
            MismatchError: A required key is missing.
        """
        try:
            return self._kind(**arguments)
        except TypeError:
            for field in self._fields:
                if field.is_required and field.key not in value:
                    raise MismatchError(f"no key {field.key!r}", "a record with this key") from None
            raise

    def encode(self, value: Any) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for field, name, key, encode, is_conditional in self._encoding:
            if not is_conditional or field.is_stored(value):
                result[key] = encode(getattr(value, name))
        return result
