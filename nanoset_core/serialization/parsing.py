"""Plain values → frozen dataclasses: unknown keys and wrong types are errors that name the key's path."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from nanoset_core.errors import ConfigError
from nanoset_core.serialization.frozen import FrozenDict, freeze

T = TypeVar("T")
_PLAIN = (str, int, float, bool, type(None))


def parse(kind: type[T], value: object, path: str, where: object) -> T:
    """Build the dataclass `kind` from a mapping.

    Args:
        kind: a dataclass whose fields are str, int, float, bool, Literal, None, tuple, Mapping, other dataclasses,
            unions of those, or Any (then: any plain value). Mappings become FrozenDict, lists tuples.
        value: what the file holds.
        path: the key's path so far, such as "nanosets.web"; "" at the top.
        where: the file, for messages.

    Raises:
        ConfigError: an unknown or missing key, or a value of the wrong type.
    """
    if not isinstance(value, Mapping):
        raise _wrong(kind, value, path, where)
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}  # type: ignore[arg-type]
    for key in value:
        if key not in fields:
            raise _unknown(str(key), list(fields), path, where)
    given = {}
    for name, field in fields.items():
        inner = f"{path}.{name}" if path else name
        if name in value:
            given[name] = convert(hints[name], value[name], inner, where)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(
                "a key is missing", where=f"{where}: {inner}", expected=_describe(hints[name]), remedy="add it"
            )
    return kind(**given)


def convert(hint: Any, value: object, path: str, where: object) -> Any:
    """Check one value against a type hint and return it in that type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _convert_union(hint, arguments, value, path, where)
    if dataclasses.is_dataclass(hint):
        return parse(hint, value, path, where)  # type: ignore[type-var]
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


def _convert_mapping(
    arguments: tuple[Any, ...], value: Mapping[Any, Any], path: str, where: object
) -> FrozenDict[Any, Any]:
    for key in value:
        if not _is_plain(arguments[0], key):
            raise _wrong_key(key, path, where)
    return FrozenDict({key: convert(arguments[1], item, f"{path}.{key}", where) for key, item in value.items()})


def _convert_union(hint: Any, arguments: tuple[Any, ...], value: object, path: str, where: object) -> Any:
    inner: ConfigError | None = None
    for argument in arguments:
        try:
            return convert(argument, value, path, where)
        except ConfigError as error:
            # An error deeper in says more than "none of these kinds fits".
            if error.where != f"{where}: {path}":
                inner = error
    raise inner or _wrong(hint, value, path, where)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _describe(hint: Any) -> str:
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Any: "a plain value"}
    if hint in names:
        return names[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(argument) for argument in arguments if argument is not type(None))
    if origin is Literal:
        return "one of " + ", ".join(repr(argument) for argument in arguments)
    if origin is tuple:
        return f"a list of which each is {_describe(arguments[0])}"
    if arguments:
        return f"a mapping of which each value is {_describe(arguments[1])}"
    return "a mapping of keys to values"


def _wrong(hint: Any, value: object, path: str, where: object) -> ConfigError:
    return ConfigError(
        "this value has the wrong type" if get_origin(hint) is not Literal else "this value is not known",
        where=f"{where}: {path}" if path else where,
        found=f"{value!r} ({type(value).__name__})",
        expected=_describe(hint),
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


def _remedy(hint: Any, value: object) -> str:
    """What to do about the mistakes that YAML invites."""
    kinds = _alternatives(hint)
    if value is None:
        return "give it a value, or remove the key"
    if isinstance(value, str) and (int in kinds or float in kinds) and _is_number(value):
        return "write it without quotes, in digits (YAML takes 1e-3 for text, and 1.0e-3 for a number)"
    if str in kinds and not isinstance(value, Mapping | list | str):
        return f'put it in quotes: "{value}"'
    return "correct the value"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _unknown(key: str, known: list[str], path: str, where: object) -> ConfigError:
    close = difflib.get_close_matches(key, known, n=1)
    return ConfigError(
        "this key is not known",
        where=f"{where}: {path}.{key}" if path else f"{where}: {key}",
        expected=f"one of {', '.join(known)}",
        remedy=f"write {close[0]!r} instead" if close else "remove it",
    )
