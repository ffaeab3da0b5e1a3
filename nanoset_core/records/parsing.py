"""Convert plain values, such as those of a YAML file, to frozen dataclasses.

A dataclass declares the keys of a mapping: its fields have the keys' names and types, and may have
defaults. For example, `{count: 3}` becomes `Spec(count=3, name="a")` by

    @dataclass(frozen=True)
    class Spec:
        count: Annotated[int, Range(1, 10)]
        name: str = "a"

Unknown keys, missing keys, values of a wrong type and numbers out of range are errors. All of them
are collected, so that a user sees every mistake of a file at once.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from nanoset_core.errors import ConfigError, closest_name, combined
from nanoset_core.records.frozen import FrozenDict
from nanoset_core.records.settings import (
    Range,
    alternatives,
    bare,
    describe,
    field_help,
    is_required,
    key_of,
    own_fields,
    range_of,
)
from nanoset_core.records.text import format_number

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

CONFIG_FILE = "nanoset.yaml"
"""Name of the file with a project's settings."""
_EXPONENT = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]{1,3}")
"""Numbers such as 10e9. YAML 1.1 takes them for text, since they lack a point or a sign."""
_PLAIN = Mapping[str, Any] | tuple[Any, ...] | str | bool | int | float | None
"""Type of a value for a field that is declared as `Any`."""
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that YAML can express by escapes, but that no path, name or UTF-8 file can contain."""
_MAX_SHOWN_CHARACTERS = 500
"""Wrong values are cut to this length in messages."""


def parse(hint: Any, value: object, path: str, where: object) -> Any:
    """Return a plain value converted to the type that a hint asks for.

    Mappings become dataclasses or `FrozenDict`, and lists become tuples.

    Args:
        hint: A dataclass, or another type that its fields may have: str, int, float, bool, Literal,
            None, tuple, Mapping, unions of these, and Any for any plain value. Numbers may be
            `Annotated` with a `Range`.
        value: Value that was read from a file.
        path: Path of the value's key, such as "nanosets.web"; empty for the whole file.
        where: The file, for messages.

    Raises:
        ConfigError: Keys are unknown or missing, or values have a wrong type or are out of range.
            The error lists all mistakes.
    """
    parser = Parser(where)
    result = parser.read(hint, value, path)
    if parser.errors:
        raise combined(parser.errors, where)
    return result


class Parser:
    """Converts plain values to typed ones, and collects the mistakes in `errors`.

    If there are errors, the results of `read` must not be used.
    """

    def __init__(self, where: object) -> None:
        """Start without errors.

        Args:
            where: The file, for messages.
        """
        self.errors: list[ConfigError] = []
        self._where = where

    def read(self, hint: Any, value: object, path: str) -> Any:
        """Return a value converted to the type that a hint asks for; see `parse`."""
        try:
            return self._value(hint, value, path)
        except RecursionError:
            return self._report(
                "a value holds itself", "", remedy="remove the YAML alias that makes it so"
            )

    def _value(self, hint: Any, value: Any, path: str) -> Any:
        """Return a value converted to the first alternative of a hint that it fits."""
        kind = next((kind for kind in alternatives(hint) if _fits(kind, value)), None)
        if kind is None:
            return self._wrong_value(hint, value, path)
        plain_kind = bare(kind)  # without its range
        origin = get_origin(plain_kind)
        arguments = get_args(plain_kind)
        if origin is Literal and value not in arguments:
            return self._wrong_value(kind, value, path)
        if isinstance(value, str) and _UNWRITABLE.search(value) is not None:
            return self._report(
                "this text holds a character that no name and no file can hold",
                path,
                found=ascii(_shortened(value)),
                expected="text without NUL and halves of surrogates",
                remedy="remove the escape",
            )

        if kind is Any:
            return self._value(_PLAIN, value, path)
        if origin is tuple:
            items = enumerate(value)
            return tuple(
                self._value(arguments[0], item, f"{path}[{index}]") for index, item in items
            )
        if isinstance(value, Mapping):
            if origin is Mapping:
                return self._mapping(arguments, value, path)
            return self._section(kind, value, path)

        if plain_kind is float:
            value = _number(value)
        value_range = range_of(kind)
        if value_range is not None and value not in value_range:
            self.errors.append(out_of_range(value_range, value, f"{self._where}: {path}"))
        return float(value) if plain_kind is float else value

    def _wrong_value(self, hint: Any, value: object, path: str) -> None:
        """Report a value that does not have the type, or is none of the choices, of a hint."""
        what = "this value has the wrong type"
        if get_origin(hint) is Literal:
            what = "this value is not known"
        found = "no value"
        if value is not None:
            found = f"{_shortened(repr(value))} ({type(value).__name__})"
        self._report(what, path, found=found, expected=describe(hint), remedy=_remedy(hint, value))

    def _section(self, kind: type[DataclassInstance], value: Mapping[Any, Any], path: str) -> Any:
        """Return a mapping as a dataclass, or None if any error has been reported so far."""
        fields = {key_of(field): (field, hint) for field, hint in own_fields(kind)}

        # A key that is missing is not reported if an unknown key is probably a misspelling of it.
        misspelt = set()
        for key in value:
            if key not in fields:
                misspelt.add(self._unknown(str(key), fields, path))

        arguments = {}
        for key, (field, hint) in fields.items():
            inner_path = f"{path}.{key}" if path else key
            is_given = key in value
            is_null = is_given and value[key] is None
            may_be_null = hint is Any or type(None) in alternatives(hint)
            if is_given and (may_be_null or not is_null or not is_required(field)):
                arguments[field.name] = self._value(hint, value[key], inner_path)
            elif is_required(field) and key not in misspelt:
                self._missing(kind, field, hint, inner_path, is_null=is_null)
        return None if self.errors else kind(**arguments)

    def _missing(
        self,
        kind: type[DataclassInstance],
        field: dataclasses.Field[Any],
        hint: Any,
        path: str,
        *,
        is_null: bool,
    ) -> None:
        """Report a required key that is missing, or has no value.

        Args:
            kind: The dataclass.
            field: Its field.
            hint: Type of the field.
            path: Path of the key.
            is_null: Whether the key is there, but without a value.
        """
        expected = describe(hint)
        explanation = field_help(kind, field.name)
        if explanation:
            expected = f"{explanation.rstrip('.')} ({expected})"

        example = f'"{key_of(field)}: {field.metadata.get("example", "…")}"'
        if is_null:
            self._report(
                "this key has no value",
                path,
                found="no value",
                expected=expected,
                remedy=f"write {example}",
            )
        else:
            self._report("a key is missing", path, expected=expected, remedy=f"add it: {example}")

    def _mapping(
        self, arguments: tuple[Any, ...], value: Mapping[Any, Any], path: str
    ) -> FrozenDict[str, Any]:
        """Return a mapping whose keys are names that the user chooses, or choices.

        Args:
            arguments: The types of keys and values.
            value: The mapping.
            path: Path of its key.
        """
        key_hint, value_hint = arguments
        choices = get_args(key_hint)  # of a Literal; empty for other types
        result = {}
        for key, item in value.items():
            inner_path = f"{path}.{key}"
            if type(key) is not str:
                self._report(
                    "this key has the wrong type",
                    inner_path,
                    found=f"{_shortened(repr(key))} ({type(key).__name__})",
                    expected="text",
                    remedy=f'put it in quotes: "{key}"',
                )
            elif _UNWRITABLE.search(key) is not None:
                self._report(
                    "this key holds a character that no name can hold",
                    path,
                    found=ascii(key),
                    remedy="remove the escape",
                )
            elif choices and key not in choices:
                self._unknown(key, choices, path)
            else:
                result[key] = self._value(value_hint, item, inner_path)
        return FrozenDict(result)

    def _unknown(self, key: str, known: Iterable[str], path: str) -> str | None:
        """Report an unknown key, and return the known key that is probably meant, if any."""
        names = list(known)
        meant = closest_name(key, names)
        self._report(
            "this key is not known",
            f"{path}.{key}" if path else key,
            expected=f"one of {', '.join(names)}",
            remedy=f"did you mean {meant!r}?" if meant else "remove it",
        )
        return meant

    def _report(
        self,
        what: str,
        path: str,
        *,
        found: str | None = None,
        expected: str | None = None,
        remedy: str,
    ) -> None:
        """Add an error about the value at a path; an empty path is the whole file."""
        where = f"{self._where}: {path}" if path else self._where
        self.errors.append(
            ConfigError(what, where=where, found=found, expected=expected, remedy=remedy)
        )


Rule = tuple[object, str, str, object]
"""A rule that settings have to follow, for `broken`.

The items are: whether it is broken (as by `bool`), its name, the key, and what was found.
"""


def broken(where: str, texts: Mapping[str, Sequence[str]], *rules: Rule) -> Iterator[ConfigError]:
    """Yield an error for each rule that is broken.

    Args:
        where: Text in front of the keys, such as the file and the section.
        texts: Name of a rule → what is wrong, the remedy and, optionally, what is expected.
        rules: The rules.
    """
    for is_broken, name, key, found in rules:
        if not is_broken:
            continue
        what, remedy, *more = texts[name]
        expected = more[0] if more else None
        yield ConfigError(what, where=where + key, found=found, expected=expected, remedy=remedy)


def out_of_range(value_range: Range, value: float, where: object) -> ConfigError:
    """Return the error for a number that is not in a range.

    Args:
        value_range: The range.
        value: The number.
        where: Place of the number.
    """
    if value < value_range.low or value_range.high is None:
        bound = value_range.low
    else:
        bound = value_range.high
    direction = "more" if value < value_range.low else "less"
    return ConfigError(
        "this value is out of range",
        where=where,
        found=value,
        expected=str(value_range),
        remedy=f"set it to {format_number(bound)} or {direction}",
    )


def _fits(hint: Any, value: object) -> bool:
    """Return whether a value has the form that a type has in YAML, such as a list for a tuple.

    The items of lists and mappings, and the choices of a Literal, are not looked at.
    """
    kind = bare(hint)
    origin = get_origin(kind)
    if dataclasses.is_dataclass(kind) or origin is Mapping:
        return isinstance(value, Mapping)
    if origin is tuple:
        return isinstance(value, list)
    if origin is Literal:
        return type(value) is str
    if kind is float:
        number = _number(value)
        # Infinity and NaN are not numbers that a setting can have. A bool is not an int here.
        return type(number) in (int, float) and abs(number) <= sys.float_info.max
    return kind is Any or type(value) is kind


def _number(value: Any) -> Any:
    """Return text such as "10e9", which YAML does not take for a number, as a number."""
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        return float(value)
    return value


def _remedy(hint: Any, value: object) -> str:
    """Return what to do about a value that does not fit a hint, for mistakes that YAML invites."""
    kinds = [bare(kind) for kind in alternatives(hint)]
    takes_tuple = any(get_origin(kind) is tuple for kind in kinds)
    if value is None:
        return "give it a value, or remove the key"
    if isinstance(value, str) and (int in kinds or float in kinds):
        return (
            f"write {describe(hint)}, without quotes "
            "(YAML takes 1e-3 for text, and 1.0e-3 for a number)"
        )
    if str in kinds and isinstance(value, Mapping) and len(value) == 1:
        # An item of a list such as `- web: 2`, which looks like an entry of a mapping.
        name, inner = next(iter(value.items()))
        mapping = f"{{{name}: {_shortened(str(inner))}, …}}"
        return f"write the keys without the dashes of a list, as one mapping: {mapping}"
    if str in kinds and not isinstance(value, Mapping | list | str):
        return f'put it in quotes: "{_shortened(str(value))}"'
    if takes_tuple and isinstance(value, str):
        return f"put it in brackets: [{_shortened(value)}]"
    if get_origin(hint) is Literal:
        meant = closest_name(str(value), map(str, get_args(hint)))
        return "choose one of these" if meant is None else f"did you mean {meant!r}?"
    if int in kinds and isinstance(value, float) and value.is_integer():
        return f"write it without a fraction: {value:.0f}"
    return f"write {describe(hint)}"


def _shortened(text: str) -> str:
    """Return a text cut to `_MAX_SHOWN_CHARACTERS`, for a message."""
    if len(text) <= _MAX_SHOWN_CHARACTERS:
        return text
    return f"{text[:_MAX_SHOWN_CHARACTERS]}…"
