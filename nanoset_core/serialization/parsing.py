"""Plain values → frozen dataclasses: unknown keys, wrong types, numbers out of range are errors with the key's path."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from nanoset_core.errors import ConfigError
from nanoset_core.serialization.settings import MISSING, Between, alternatives, bare, describe, field_help, range_of
from nanoset_core.serialization.text import format_number

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
Key = TypeVar("Key")
Value = TypeVar("Value")
_PLAIN = (str, int, float, bool, type(None))
_OUT_OF_RANGE = "this value is out of range"


class FrozenDict(dict[Key, Value]):
    """A dict whose changing methods raise TypeError: what a frozen dataclass needs to be frozen all the way down.

    A dict and not a `types.MappingProxyType`, which json, pickle, copy and `dataclasses.asdict` refuse.
    """

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this dictionary cannot be changed: build a new one, such as {**old, key: value}")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> FrozenDict[Key, Value]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenDict[Key, Value]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def freeze(value: Any) -> Any:
    """A plain value (of JSON or YAML) with every dictionary in it frozen and every list a tuple."""
    if isinstance(value, dict):
        return FrozenDict({key: freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return value


def parse(kind: type[T], value: object, path: str, where: object) -> T:
    """Build a dataclass from a mapping.

    Args:
        kind: a dataclass whose fields are str, int, float, bool, Literal, None, tuple, Mapping, other dataclasses,
            unions of those, or Any (then: any plain value); numbers may be `Annotated` with the range `Between`.
            Mappings become FrozenDict, lists tuples.
        value: what the file holds.
        path: the key's path so far, such as "nanosets.web"; "" at the top.
        where: the file, for messages.

    Raises:
        ConfigError: an unknown or missing key, a value of the wrong type, or a number out of range.
    """
    if not isinstance(value, Mapping):
        raise _wrong(kind, value, path, where)
    hints = _hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    for key in value:
        if key not in fields:
            raise _unknown(str(key), fields, path, where)
    given = {}
    for name, field in fields.items():
        inner = f"{path}.{name}" if path else name
        required = field.default is MISSING and field.default_factory is MISSING
        may_be_none = hints[name] is Any or type(None) in get_args(hints[name])
        if required and (name not in value or (value[name] is None and not may_be_none)):
            raise _missing(kind, field, hints[name], inner, where, there=name in value)
        if name in value:
            given[name] = convert(hints[name], value[name], inner, where)
    return kind(**given)


def convert(hint: Any, value: object, path: str, where: object) -> Any:
    """Check one value against a type hint and return it in that type.

    Raises:
        ConfigError: it is of another type, or out of range.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _convert_number(hint, value, path, where)
    if origin in (Union, types.UnionType):
        return _convert_union(hint, arguments, value, path, where)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return parse(hint, value, path, where)
    if origin is tuple and isinstance(value, list):
        return tuple(convert(arguments[0], item, f"{path}[{index}]", where) for index, item in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping):
        return _convert_mapping(arguments, value, path, where)
    if origin is Literal and type(value) is str and value in arguments:
        return value
    if hint is Any:
        return _any(value, path, where)
    if not _is_plain(hint, value):
        raise _wrong(hint, value, path, where)
    return float(value) if hint is float else value  # type: ignore[arg-type]


def check_range(between: Between, value: float, path: str, where: object) -> None:
    """Refuse a number out of range.

    Raises:
        ConfigError: it is below or above.
    """
    if value not in between:
        bound = between.low if value < between.low or between.high is None else between.high
        raise ConfigError(
            _OUT_OF_RANGE,
            where=f"{where}: {path}",
            found=value,
            expected=str(between),
            remedy=f"set it to {format_number(bound)} or {'more' if value < between.low else 'less'}",
        )


def _is_plain(hint: Any, value: object) -> bool:
    if hint is float:
        return type(value) in (int, float) and _is_finite(value)
    return hint in _PLAIN and type(value) is hint


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _any(value: object, path: str, where: object) -> Any:
    """Any value that JSON knows."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if type(key) is not str:
                raise _wrong_key(key, path, where)
            _any(item, f"{path}.{key}", where)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _any(item, f"{path}[{index}]", where)
    elif type(value) not in _PLAIN or (type(value) is float and not math.isfinite(value)):
        raise _wrong(str, value, path, where)
    return freeze(value)


def _convert_number(hint: Any, value: object, path: str, where: object) -> Any:
    number = convert(bare(hint), value, path, where)
    between = range_of(hint)
    if between is not None:
        check_range(between, number, path, where)
    return number


def _convert_mapping(
    arguments: tuple[Any, ...], value: Mapping[Any, Any], path: str, where: object
) -> FrozenDict[Any, Any]:
    names = get_args(arguments[0])  # of a Literal
    for key in value:
        if not _is_plain(str, key):
            raise _wrong_key(key, path, where)
        if names and key not in names:
            raise _unknown(key, names, path, where)
    return FrozenDict({key: convert(arguments[1], item, f"{path}.{key}", where) for key, item in value.items()})


def _convert_union(hint: Any, arguments: tuple[Any, ...], value: object, path: str, where: object) -> Any:
    inner: ConfigError | None = None
    for argument in arguments:
        try:
            return convert(argument, value, path, where)
        except ConfigError as error:
            # An error deeper in, or of the range, says more than "none of these kinds fits".
            if error.where != f"{where}: {path}" or error.what == _OUT_OF_RANGE:
                inner = error
    raise inner or _wrong(hint, value, path, where)


def _missing(
    kind: type, field: dataclasses.Field[Any], hint: Any, path: str, where: object, *, there: bool
) -> ConfigError:
    """The error for a key without a default; the field's metadata may hold an `example` of its value."""
    explained = field_help(kind, field.name)
    return ConfigError(
        "this key has no value" if there else "a key is missing",
        where=f"{where}: {path}",
        expected=f"{explained.rstrip('.')} ({describe(hint)})" if explained else describe(hint),
        found="no value" if there else None,
        remedy=f'{"write" if there else "add it:"} "{field.name}: {field.metadata.get("example", "…")}"',
    )


@lru_cache(maxsize=256)
def _hints(kind: type[DataclassInstance]) -> Mapping[str, Any]:
    """Types of a dataclass's fields, which Python would evaluate anew for each of a thousand manifests."""
    return get_type_hints(kind, include_extras=True)


def _wrong(hint: Any, value: object, path: str, where: object) -> ConfigError:
    return ConfigError(
        "this value has the wrong type" if get_origin(hint) is not Literal else "this value is not known",
        where=f"{where}: {path}" if path else where,
        found="no value" if value is None else f"{value!r} ({type(value).__name__})",
        expected=describe(hint),
        remedy=_remedy(hint, value),
    )


def _wrong_key(key: object, path: str, where: object) -> ConfigError:
    return ConfigError(
        "this key has the wrong type",
        where=f"{where}: {path}.{key}",
        found=f"{key!r} ({type(key).__name__})",
        expected="text",
        remedy=f'put it in quotes: "{key}"',
    )


def _unknown(key: str, known: Iterable[str], path: str, where: object) -> ConfigError:
    names = list(known)
    return ConfigError(
        "this key is not known",
        where=f"{where}: {path}.{key}" if path else f"{where}: {key}",
        expected=f"one of {', '.join(names)}",
        remedy=_suggestion(key, names) or "remove it",
    )


def _remedy(hint: Any, value: object) -> str:
    """What to do about the mistakes that YAML invites."""
    kinds = [bare(kind) for kind in alternatives(hint)]
    if value is None:
        return "give it a value, or remove the key"
    if isinstance(value, str) and (int in kinds or float in kinds) and _is_number(value):
        return "write it without quotes, in digits (YAML takes 1e-3 for text, and 1.0e-3 for a number)"
    if str in kinds and isinstance(value, Mapping) and len(value) == 1:
        (name, inner), *_ = value.items()
        return f"write the keys without the dashes of a list, as one mapping: {{{name}: {inner}, …}}"
    if str in kinds and not isinstance(value, Mapping | list | str):
        return f'put it in quotes: "{value}"'
    if any(get_origin(kind) is tuple for kind in kinds) and isinstance(value, str):
        return f"put it in brackets: [{value}]"
    if get_origin(hint) is Literal:
        return _suggestion(str(value), get_args(hint)) or "choose one of these"
    if int in kinds and isinstance(value, float) and value.is_integer():
        return f"write it without a fraction: {value:.0f}"
    return f"write {describe(hint)}"


def _suggestion(word: str, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"write {close[0]!r} instead" if close else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
