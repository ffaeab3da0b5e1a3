"""YAML and plain values → frozen dataclasses, with an error for each unknown key, wrong type and
number in no range.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, get_args, get_origin

from nanoset_core.errors import ConfigError, closest_name, combined, joined_lines
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
from nanoset_core.untrusted import visible

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

CONFIG_FILE = "nanoset.yaml"
"""Name of a project's settings."""
Key = TypeVar("Key")
Value = TypeVar("Value")
_EXPONENT = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]{1,3}")
_PLAIN = Mapping[str, Any] | tuple[Any, ...] | str | bool | int | float | None
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
"""Characters that YAML can write as escapes, and that no path, name or UTF-8 file holds."""
_SHOWN_CHARACTERS = 500
"""Of a value that is wrong, as many are shown."""
MOST_BYTES = 16 << 20
"""A larger file is no file of settings."""
MOST_VALUES = 100_000
"""That a file may hold, with each alias and each merge key (`<<`) counted as what it stands for."""
MOST_DEPTH = 100
"""Of values within values."""
_MOST_DIGITS = 64
"""Of a whole number; Python shows none of more than 4,300 digits."""
_ERRORS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What PyYAML raises, besides its own errors, for a tag at a value of another kind."""


class FrozenDict(dict[Key, Value]):
    """A dict whose changing methods raise TypeError, so that a frozen dataclass is frozen all the
    way down.

    A dict and not a `types.MappingProxyType`, which json, pickle, copy and `dataclasses.asdict`
    refuse.
    """

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            "this dictionary cannot be changed: build a new one, such as {**old, key: value}"
        )

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


def parse(hint: Any, value: object, path: str, where: object) -> Any:
    """Return a plain value in the type that a hint asks for.

    Args:
        hint: a dataclass whose fields are str, int, float, bool, Literal, None, tuple, Mapping,
            other dataclasses, unions of those, or Any (then: any plain value); numbers may be
            `Annotated` with a `Range`. Mappings become FrozenDict, lists tuples. Or the type of
            such a field.
        value: what the file holds.
        path: the key's path so far, such as "nanosets.web"; "" at the top.
        where: the file, for messages.

    Raises:
        ConfigError: unknown or missing keys, values of a wrong type, or numbers out of range; all
            of them.
    """
    parser = Parser(where)
    found = parser.read(hint, value, path)
    if parser.errors:
        raise combined(parser.errors, where)
    return found


class Parser:
    """Converts values and collects the errors found on the way; with errors, what it returns is not
    to be used.
    """

    def __init__(self, where: object) -> None:
        self.errors: list[ConfigError] = []
        self._where = where

    def read(self, hint: Any, value: object, path: str) -> Any:
        """Return a value in the type of a hint."""
        try:
            return self._value(hint, value, path)
        except RecursionError:
            return self._report(
                "a value holds itself", "", "remove the YAML alias that makes it so"
            )

    def _value(self, hint: Any, value: Any, path: str) -> Any:
        kind = next((kind for kind in alternatives(hint) if _fits(kind, value)), None)
        origin, arguments = get_origin(bare(kind)), get_args(bare(kind))
        if kind is None or (origin is Literal and value not in arguments):
            asked = hint if kind is None else kind
            what = (
                "this value is not known"
                if get_origin(asked) is Literal
                else "this value has the wrong type"
            )
            found = (
                "no value"
                if value is None
                else f"{_shortened(repr(value))} ({type(value).__name__})"
            )
            return self._report(what, path, _remedy(asked, value), found, describe(asked))
        if isinstance(value, str) and _NO_TEXT.search(value) is not None:
            what, remedy = (
                "this text holds a character that no name and no file can hold",
                "remove the escape",
            )
            return self._report(
                what,
                path,
                remedy,
                ascii(_shortened(value)),
                "text without NUL and halves of surrogates",
            )
        if kind is Any:
            return self._value(_PLAIN, value, path)
        if bare(kind) is float:
            value = _number(value)
        if origin is tuple:
            return tuple(
                self._value(arguments[0], item, f"{path}[{index}]")
                for index, item in enumerate(value)
            )
        if isinstance(value, Mapping):
            return (
                self._mapping(arguments, value, path)
                if origin is Mapping
                else self._section(kind, value, path)
            )
        between = range_of(kind)
        if between is not None and value not in between:
            self.errors.append(out_of_range(between, value, f"{self._where}: {path}"))
        return float(value) if bare(kind) is float else value

    def _section(self, kind: type[DataclassInstance], value: Mapping[Any, Any], path: str) -> Any:
        fields, given = {key_of(field): (field, hint) for field, hint in own_fields(kind)}, {}
        misspelt = [self._unknown(str(key), fields, path) for key in value if key not in fields]
        for name, (field, hint) in fields.items():
            inner, is_null = (
                f"{path}.{name}" if path else name,
                name in value and value[name] is None,
            )
            may_be_null = hint is Any or type(None) in alternatives(hint)
            if name in value and (may_be_null or not is_null or not is_required(field)):
                given[field.name] = self._value(hint, value[name], inner)
            elif is_required(field) and name not in misspelt:
                words, explained = describe(hint), field_help(kind, field.name)
                expected = f"{explained.rstrip('.')} ({words})" if explained else words
                what, remedy = (
                    ("this key has no value", "write")
                    if is_null
                    else ("a key is missing", "add it:")
                )
                example = f'"{name}: {field.metadata.get("example", "…")}"'
                self._report(
                    what, inner, f"{remedy} {example}", "no value" if is_null else None, expected
                )
        return None if self.errors else kind(**given)

    def _mapping(
        self, arguments: tuple[Any, ...], value: Mapping[Any, Any], path: str
    ) -> FrozenDict[str, Any]:
        names = get_args(arguments[0])  # of a Literal
        found = {}
        for key, item in value.items():
            inner = f"{path}.{key}"
            if type(key) is str and _NO_TEXT.search(key) is not None:
                self._report(
                    "this key holds a character that no name can hold",
                    path,
                    "remove the escape",
                    ascii(key),
                )
            elif type(key) is not str:
                kind = f"{_shortened(repr(key))} ({type(key).__name__})"
                self._report(
                    "this key has the wrong type", inner, f'put it in quotes: "{key}"', kind, "text"
                )
            elif names and key not in names:
                self._unknown(key, names, path)
            else:
                found[key] = self._value(arguments[1], item, inner)
        return FrozenDict(found)

    def _unknown(self, key: str, known: Iterable[str], path: str) -> str | None:
        """Report a key that is not known; return the one that is probably meant."""
        names = list(known)
        meant = closest_name(key, names)
        remedy, inner = (
            f"did you mean {meant!r}?" if meant else "remove it",
            f"{path}.{key}" if path else key,
        )
        self._report("this key is not known", inner, remedy, None, f"one of {', '.join(names)}")
        return meant

    def _report(
        self,
        what: str,
        path: str,
        remedy: str,
        found: str | None = None,
        expected: str | None = None,
    ) -> None:
        where = f"{self._where}: {path}" if path else self._where
        self.errors.append(
            ConfigError(what, where=where, found=found, expected=expected, remedy=remedy)
        )


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
            yield ConfigError(
                what,
                where=where + key,
                found=found,
                expected=more[0] if more else None,
                remedy=remedy,
            )


def out_of_range(between: Range, value: float, where: object) -> ConfigError:
    """Return the error for a number that is not in a range."""
    bound = between.low if value < between.low or between.high is None else between.high
    remedy = f"set it to {format_number(bound)} or {'more' if value < between.low else 'less'}"
    return ConfigError(
        "this value is out of range", where=where, found=value, expected=str(between), remedy=remedy
    )


def _fits(hint: Any, value: object) -> bool:
    """Whether a value is of the kind that a type has in YAML: a mapping, a list, text, a number …"""
    kind, origin = bare(hint), get_origin(bare(hint))
    if dataclasses.is_dataclass(kind) or origin is Mapping:
        return isinstance(value, Mapping)
    if origin is tuple:
        return isinstance(value, list)
    if origin is Literal:
        return type(value) is str
    if kind is float:
        value = _number(value)
        return type(value) in (int, float) and abs(value) <= sys.float_info.max  # type: ignore[arg-type]
    return kind is Any or type(value) is kind


def _number(value: Any) -> Any:
    """Return 10e9, which YAML takes for text, as a number."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def _remedy(hint: Any, value: object) -> str:
    """What to do about the mistakes that YAML invites."""
    kinds = [bare(kind) for kind in alternatives(hint)]
    if value is None:
        return "give it a value, or remove the key"
    if isinstance(value, str) and (int in kinds or float in kinds):
        return f"write {describe(hint)}, without quotes (YAML takes 1e-3 for text, and 1.0e-3 for a number)"
    if str in kinds and isinstance(value, Mapping) and len(value) == 1:
        (name, inner), *_ = value.items()
        return f"write the keys without the dashes of a list, as one mapping: {{{name}: {_shortened(str(inner))}, …}}"
    if str in kinds and not isinstance(value, Mapping | list | str):
        return f'put it in quotes: "{_shortened(str(value))}"'
    if any(get_origin(kind) is tuple for kind in kinds) and isinstance(value, str):
        return f"put it in brackets: [{_shortened(value)}]"
    if get_origin(hint) is Literal:
        meant = closest_name(str(value), map(str, get_args(hint)))
        return f"did you mean {meant!r}?" if meant is not None else "choose one of these"
    if int in kinds and isinstance(value, float) and value.is_integer():
        return f"write it without a fraction: {value:.0f}"
    return f"write {describe(hint)}"


def _shortened(text: str) -> str:
    """Return the first characters of what a file holds, for a message."""
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def located(file: Path, text: str, errors: Iterable[ConfigError]) -> ConfigError:
    """Return errors about keys of a YAML text (where: "file: key") as one, by their lines (where:
    "file:line: key").
    """
    import yaml

    root = yaml.compose(text)
    lines = {"": 1} if root is None else dict(_lines(root, "", root.start_mark.line + 1, set()))
    located_errors = []
    for error in errors:
        place, mark, key = (error.where or "").partition(f"{file}: ")
        if mark and not place:
            line = lines[_nearest(key, lines)]
            located_errors.append((line, error.at(f"{file}:{line}: {key}")))
        else:
            located_errors.append((0, error))
    located_errors.sort(key=lambda pair: pair[0])
    return combined([error for _, error in located_errors], file)


def _nearest(key: str, lines: Mapping[str, int]) -> str:
    """Return the longest path of a key that is known and at or above another one; "" is above all."""
    ends = [match.start() for match in re.finditer(r"[.[]", key)]
    for end in (len(key), *reversed(ends)):
        if key[:end] in lines:
            return key[:end]
    return ""


def _lines(node: Any, path: str, line: int, seen: set[int]) -> Iterator[tuple[str, int]]:
    """Yield (path of a key such as `nanosets.web.phases[1].until`, its line, from 1), what is named
    twice once.
    """
    yield path, line
    if isinstance(node.value, str) or id(node) in seen:
        return
    seen.add(id(node))
    for number, item in enumerate(node.value):
        if isinstance(item, tuple):
            yield from _lines(
                item[1], f"{path}.{item[0].value}".lstrip("."), item[0].start_mark.line + 1, seen
            )
        else:
            yield from _lines(item, f"{path}[{number}]", item.start_mark.line + 1, seen)


def read_yaml(file: Path, *, remedy: str) -> tuple[Any, str]:
    """Read a YAML file → (plain values, which are not to be changed; its text).

    Raises:
        OSError: it cannot be read.
        ConfigError: it is not UTF-8, not YAML, has a key twice, or is no regular file.
    """
    if file.exists() and not (file.is_file() or file.is_dir()):
        raise ConfigError(
            "not a regular file",
            where=file,
            found="a pipe or a device",
            expected="YAML",
            remedy=remedy,
        )
    with file.open("rb") as opened:
        data = opened.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        found = f"{file.stat().st_size:,} bytes"
        expected = f"at most {MOST_BYTES:,} bytes of settings"
        raise ConfigError(
            "this file is too large", where=file, found=found, expected=expected, remedy=remedy
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            "not UTF-8 text", where=file, found=str(error), remedy="save it as UTF-8"
        ) from error
    return parse_yaml(text, file, remedy=remedy), text


def parse_yaml(text: str, where: object, *, remedy: str) -> Any:
    """Return the plain values of a YAML text, which are not to be changed.

    Raises:
        ConfigError: it is not YAML, has a key twice, or holds too many values or too deep ones.
    """
    import yaml

    try:
        return _parsed(text)
    except _TooMuchError as error:
        raise ConfigError(
            error.what, where=where, found=error.found, expected=error.expected, remedy=remedy
        ) from error
    except yaml.MarkedYAMLError as error:
        raise ConfigError("not YAML", where=where, found=_mistake(error), remedy=remedy) from error
    except (yaml.YAMLError, *_ERRORS) as error:
        found = joined_lines(error)[:1000]
        raise ConfigError("not YAML", where=where, found=found, remedy=remedy) from error


class _TooMuchError(Exception):
    """A YAML text would unpack to more than any file of settings needs."""

    def __init__(self, what: str, found: str, expected: str) -> None:
        super().__init__(what)
        self.what = what
        self.found = found
        self.expected = expected


def _too_many_values(line: int) -> _TooMuchError:
    """Return the error for more values than `MOST_VALUES`; `line` counts from 0."""
    found = f"more in line {line + 1}, with what aliases and merge keys stand for"
    return _TooMuchError(
        "this unpacks to too many values", found, f"at most {MOST_VALUES:,} values"
    )


def _mistake(error: Any) -> str:
    """Return in one line what PyYAML says of a mistake, and where: its own text has an excerpt in
    several lines.
    """
    parts = []
    for text, mark in ((error.context, error.context_mark), (error.problem, error.problem_mark)):
        if text:
            place = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
            parts.append(f"{joined_lines(text)}{place}")
    return "; ".join(parts)[:1000]


_PLAIN_TEXT = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./@+=:-]*[A-Za-z0-9_./@+=-]|[A-Za-z0-9_./]")


def yaml_value(text: str) -> str:
    """Return a text as it is written into YAML after a key, quoted unless it is plain everywhere."""
    if _PLAIN_TEXT.fullmatch(text) is not None:
        import yaml

        if yaml.safe_load(text) == text:
            return text
    return json.dumps(text, ensure_ascii=visible(text) != text)


@lru_cache(maxsize=2)
def _parsed(text: str) -> Any:
    """The value of a text; the last ones are kept, since each run and tick of Dagster reads the
    same settings.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML's, which refuses keys that stand twice, and what unpacks to too much."""

        depth = 0
        n_values = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.n_values += 1
            if self.n_values > MOST_VALUES:
                raise _too_many_values(self.peek_event().start_mark.line)  # type: ignore[no-untyped-call]
            if self.depth >= MOST_DEPTH:
                mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
                found = f"more in line {mark.line + 1}, column {mark.column + 1}"
                raise _TooMuchError(
                    "values are nested too deeply",
                    found,
                    f"at most {MOST_DEPTH:,} within each other",
                )
            self.depth += 1
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for node_of_key, _ in node.value:
                if (key := str(node_of_key.value)) in seen:
                    what = f"the key {key!r} stands twice"
                    raise yaml.constructor.ConstructorError(
                        None, None, what, node_of_key.start_mark
                    )
                seen.add(key)
            return super().construct_mapping(node, deep)

        def construct_yaml_int(self, node: Any) -> int:
            digits = len(node.value)
            if digits > _MOST_DIGITS:
                what = f"a whole number of {digits:,} characters, of which at most {_MOST_DIGITS} make sense"
                raise yaml.constructor.ConstructorError(None, None, what, node.start_mark)
            return int(super().construct_yaml_int(node))

    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    loader = Loader(text)
    root = loader.get_single_node()
    if root is None:
        return None
    _check_size(root)
    return loader.construct_document(root)


def _check_size(root: Any) -> None:
    """Raise _TooMuchError if a YAML document holds too many values, or one that holds itself.

    Aliases and merge keys share nodes, so that a few hundred bytes can stand for any number of
    values. Each node is looked at once: the values below it are those of its children, with what is
    shared counted as often as it is named.
    """
    values_below: dict[int, int] = {}
    unfinished: set[int] = set()
    pending = [(root, False)]
    while pending:
        node, is_counted = pending.pop()
        children = _children(node)
        if is_counted:
            unfinished.discard(id(node))
            count = 1 + sum(values_below[id(child)] for child in children)
            if count > MOST_VALUES:
                raise _too_many_values(node.start_mark.line)
            values_below[id(node)] = count
            continue
        if id(node) in values_below:
            continue
        if id(node) in unfinished:
            found = f"an alias in line {node.start_mark.line + 1}"
            raise _TooMuchError("a value holds itself", found, "no alias within what it stands for")
        unfinished.add(id(node))
        pending.append((node, True))
        pending.extend((child, False) for child in children if id(child) not in values_below)


def _children(node: Any) -> list[Any]:
    """Return the nodes right below one: the items of a list, the keys and values of a mapping."""
    if isinstance(node.value, str):
        return []
    children: list[Any] = []
    for item in node.value:
        children.extend(item if isinstance(item, tuple) else [item])
    return children
