"""Plain values → frozen dataclasses, with an error for each unknown key, wrong type and number out of range."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, get_args, get_origin

from nanoset_core.errors import ConfigError, combined
from nanoset_core.serialization.settings import (
    MISSING,
    Range,
    alternatives,
    bare,
    describe,
    field_help,
    range_of,
    type_hints,
)
from nanoset_core.serialization.text import format_number

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
Key = TypeVar("Key")
Value = TypeVar("Value")
WRONG: Any = object()
"""Replaces a value of a wrong type."""
OUT_OF_RANGE = "this value is out of range"


class FrozenDict(dict[Key, Value]):
    """A dict whose changing methods raise TypeError, so that a frozen dataclass is frozen all the way down.

    A dict and not a `types.MappingProxyType`, which json, pickle, copy and `dataclasses.asdict` refuse.
    """

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this dictionary cannot be changed: build a new one, such as {**old, key: value}")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def freeze(value: Any) -> Any:
    """Return a plain value with every dictionary in it frozen and every list a tuple."""
    if isinstance(value, dict):
        return FrozenDict({key: freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return value


def parse(kind: type[T], value: object, path: str, where: object) -> T:
    """Build a dataclass from a mapping.

    Args:
        kind: a dataclass whose fields are str, int, float, bool, Literal, None, tuple, Mapping, other dataclasses,
            unions of those, or Any (then: any plain value); numbers may be `Annotated` with a `Range`. Mappings
            become FrozenDict, lists tuples.
        value: what the file holds.
        path: the key's path so far, such as "nanosets.web"; "" at the top.
        where: the file, for messages.

    Raises:
        ConfigError: unknown or missing keys, values of a wrong type, or numbers out of range; all of them.
    """
    return convert(kind, value, path, where)  # type: ignore[no-any-return]


def convert(hint: Any, value: object, path: str, where: object) -> Any:
    """Return one value in the type that a hint asks for; see `parse`."""
    parser = Parser(where)
    found = parser.read(hint, value, path)
    if parser.errors:
        raise combined(parser.errors, where)
    return found


class Parser:
    """Converts values and collects the errors found on the way."""

    def __init__(self, where: object) -> None:
        self.errors: list[ConfigError] = []
        self._where = where

    def read(self, hint: Any, value: object, path: str) -> Any:
        """Return a value in the type of a hint; WRONG where it has a wrong type, and no default replaces it."""
        try:
            return self._value(hint, value, path)
        except RecursionError:
            remedy = "remove the YAML alias that makes it so"
            self.errors.append(ConfigError("a value holds itself", where=self._where, remedy=remedy))
            return WRONG

    def _value(self, hint: Any, value: Any, path: str) -> Any:
        kind = next((kind for kind in alternatives(hint) if _fits(kind, value)), None)
        if kind is None:
            return self._wrong(hint, value, path)
        origin, arguments = get_origin(bare(kind)), get_args(bare(kind))
        if kind is Any:
            return self._any(value, path)
        if origin is tuple:
            items = [self._value(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(value)]
            return WRONG if any(item is WRONG for item in items) else tuple(items)
        if isinstance(value, Mapping):
            return self._mapping(arguments, value, path) if origin is Mapping else self._section(kind, value, path)
        if origin is Literal and value not in arguments:
            return self._wrong(kind, value, path)
        between = range_of(kind)
        if between is not None and value not in between:
            self.errors.append(out_of_range(between, value, f"{self._where}: {path}"))
        return float(value) if bare(kind) is float else value

    def _section(self, kind: type[DataclassInstance], value: Mapping[Any, Any], path: str) -> Any:
        hints, given = type_hints(kind), {}
        fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
        misspelt = [self._unknown(str(key), fields, path) for key in value if key not in fields]
        for name, field in fields.items():
            inner = f"{path}.{name}" if path else name
            required = field.default is MISSING and field.default_factory is MISSING
            may_be_none = hints[name] is Any or type(None) in alternatives(hints[name])
            if required and (name not in value or (value[name] is None and not may_be_none)):
                if name not in misspelt:
                    self._missing(kind, field, inner, there=name in value)
                given[name] = WRONG
            elif name in value:
                given[name] = self._value(hints[name], value[name], inner)
                if given[name] is WRONG and not required:
                    del given[name]  # its default replaces it, so that the other keys are checked
        return WRONG if any(found is WRONG for found in given.values()) else kind(**given)

    def _mapping(self, arguments: tuple[Any, ...], value: Mapping[Any, Any], path: str) -> FrozenDict[str, Any]:
        names = get_args(arguments[0])  # of a Literal
        found = {}
        for key, item in value.items():
            if type(key) is not str:
                self._wrong_key(key, path)
            elif names and key not in names:
                self._unknown(key, names, path)
            else:
                found[key] = self._value(arguments[1], item, f"{path}.{key}")
        return FrozenDict({key: item for key, item in found.items() if item is not WRONG})

    def _any(self, value: object, path: str) -> Any:
        """Check that a value is one that JSON has."""
        if isinstance(value, Mapping):
            for key, item in value.items():
                if type(key) is str:
                    self._any(item, f"{path}.{key}")
                else:
                    self._wrong_key(key, path)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                self._any(item, f"{path}[{index}]")
        elif type(value) not in (str, int, bool, type(None)) and not _is_number(value):
            self._wrong(str, value, path)
        return freeze(value)

    def _missing(self, kind: type, field: dataclasses.Field[Any], path: str, *, there: bool) -> None:
        """Report a key without a default; the field's metadata may hold an `example` of its value."""
        words, explained = describe(type_hints(kind)[field.name]), field_help(kind, field.name)
        expected = f"{explained.rstrip('.')} ({words})" if explained else words
        example = f'"{field.name}: {field.metadata.get("example", "…")}"'
        if there:
            self._report("this key has no value", path, "no value", expected, f"write {example}")
        else:
            self._report("a key is missing", path, None, expected, f"add it: {example}")

    def _unknown(self, key: str, known: Iterable[str], path: str) -> str | None:
        """Report a key that is not known; return the one that is probably meant."""
        names = list(known)
        meant = next(iter(difflib.get_close_matches(key, names, n=1)), None)
        remedy = f"did you mean {meant!r}?" if meant else "remove it"
        self._report(
            "this key is not known", f"{path}.{key}" if path else key, None, f"one of {', '.join(names)}", remedy
        )
        return meant

    def _wrong_key(self, key: object, path: str) -> None:
        found = f"{key!r} ({type(key).__name__})"
        self._report("this key has the wrong type", f"{path}.{key}", found, "text", f'put it in quotes: "{key}"')

    def _wrong(self, hint: Any, value: object, path: str) -> Any:
        what = "this value is not known" if get_origin(hint) is Literal else "this value has the wrong type"
        found = "no value" if value is None else f"{value!r} ({type(value).__name__})"
        self._report(what, path, found, describe(hint), _remedy(hint, value))
        return WRONG

    def _report(self, what: str, path: str, found: str | None, expected: str, remedy: str) -> None:
        where = f"{self._where}: {path}" if path else self._where
        self.errors.append(ConfigError(what, where=where, found=found, expected=expected, remedy=remedy))


Rule = tuple[object, str, str, object]
"""(whether it is broken, its name, key, what was found)."""


def broken(where: str, texts: Mapping[str, Sequence[str]], *rules: Rule) -> Iterator[ConfigError]:
    """Yield an error for each rule that is broken.

    Args:
        where: what comes before the keys.
        texts: name of a rule → (what is wrong, remedy), and what is expected where that says more.
        rules: all of them.
    """
    for is_broken, name, key, found in rules:
        if is_broken:
            what, remedy, *more = texts[name]
            yield ConfigError(what, where=where + key, found=found, expected=more[0] if more else None, remedy=remedy)


def out_of_range(between: Range, value: float, where: object) -> ConfigError:
    """Return the error for a number that is not in a range."""
    bound = between.low if value < between.low or between.high is None else between.high
    remedy = f"set it to {format_number(bound)} or {'more' if value < between.low else 'less'}"
    return ConfigError(OUT_OF_RANGE, where=where, found=value, expected=str(between), remedy=remedy)


def _fits(hint: Any, value: object) -> bool:
    """Whether a value is of the kind that a type has in YAML: a mapping, a list, text, a number …"""
    kind, origin = bare(hint), get_origin(bare(hint))
    if dataclasses.is_dataclass(kind) or origin is Mapping:
        return isinstance(value, Mapping)
    if origin is tuple:
        return isinstance(value, list)
    if origin is Literal:
        return type(value) is str
    return kind is Any or (_is_number(value) if kind is float else type(value) is kind)


def _is_number(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False


def _remedy(hint: Any, value: object) -> str:
    """What to do about the mistakes that YAML invites."""
    kinds = [bare(kind) for kind in alternatives(hint)]
    if value is None:
        return "give it a value, or remove the key"
    if isinstance(value, str) and (int in kinds or float in kinds) and _is_numeric(value):
        return "write it without quotes, in digits (YAML takes 1e-3 for text, and 1.0e-3 for a number)"
    if str in kinds and isinstance(value, Mapping) and len(value) == 1:
        (name, inner), *_ = value.items()
        return f"write the keys without the dashes of a list, as one mapping: {{{name}: {inner}, …}}"
    if str in kinds and not isinstance(value, Mapping | list | str):
        return f'put it in quotes: "{value}"'
    if any(get_origin(kind) is tuple for kind in kinds) and isinstance(value, str):
        return f"put it in brackets: [{value}]"
    if get_origin(hint) is Literal:
        close = difflib.get_close_matches(str(value), get_args(hint), n=1)
        return f"did you mean {close[0]!r}?" if close else "choose one of these"
    if int in kinds and isinstance(value, float) and value.is_integer():
        return f"write it without a fraction: {value:.0f}"
    return f"write {describe(hint)}"


def _is_numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
