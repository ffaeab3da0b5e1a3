"""Declarations of settings: the fields of a frozen dataclass give each key's type, range, choices,
default and help.

nanoset.yaml, its JSON schema, the options of the commands and docs/configuration.md are all made
from them.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import pairwise
from operator import or_
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from nanoset_core.records.text import format_number

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MISSING = dataclasses.MISSING
"""The default of a setting that must be given."""
_IS_KEY = "is_key"
NOT_A_KEY: Mapping[str, Any] = {_IS_KEY: False}
"""Metadata of a field that no key sets, such as the file that settings were read from."""
_WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Any: "a plain value",
}
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


@dataclass(frozen=True, slots=True)
class Range:
    """A range of numbers, as the metadata of an annotation: `Annotated[int, Range(1, 10)]`."""

    low: float
    """Least value, inclusive."""
    high: float | None = None
    """Greatest value, inclusive; None is no bound."""

    def __contains__(self, value: float) -> bool:
        return self.low <= value and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        low = format_number(self.low)
        return f"at least {low}" if self.high is None else f"{low} to {format_number(self.high)}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a settings dataclass."""

    section: type[DataclassInstance]
    """The dataclass that declares it."""
    key: str
    """Path of its key, such as `nanosets.<name>.seed`."""
    hint: Any
    """Its type, with ranges, without None."""
    default: Any
    """Its default; MISSING where it must be given."""
    help: str
    """Its attribute docstring, on one line; "" without one."""


def settings(section: type[DataclassInstance], path: str = "") -> Iterator[Setting]:
    """Yield the settings of a dataclass in the order declared, each followed by those within it.

    Args:
        section: a dataclass, such as `ProjectConfig`.
        path: what comes before the keys, such as "nanosets.<name>"; "" at the top.
    """
    for field, hint in own_fields(section):
        key = f"{path}.{key_of(field)}" if path else key_of(field)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        plain = reduce(or_, (kind for kind in alternatives(hint) if kind is not type(None)))
        yield Setting(section, key, plain, default, field_help(section, field.name))
        for inner, suffix in inner_sections(plain):
            if inner is not section:  # a tree, whose keys are the same below each other
                yield from settings(inner, key + suffix)


def setting(section: type[DataclassInstance], name: str) -> Setting:
    """Return one setting of a dataclass by its name."""
    return next(found for found in settings(section) if found.key == name)


@lru_cache(maxsize=256)
def own_fields(section: type[DataclassInstance]) -> list[tuple[dataclasses.Field[Any], Any]]:
    """Return the fields of a dataclass that are keys, each with its type and the ranges in it."""
    hints = get_type_hints(section, include_extras=True)
    fields = [
        field
        for field in dataclasses.fields(section)
        if field.init and _IS_KEY not in field.metadata
    ]
    return [(field, hints[field.name]) for field in fields]


def key_of(field: dataclasses.Field[Any]) -> str:
    """Return the key of a field: its name, without the underscore behind one that Python keeps for
    itself.
    """
    return field.name.removesuffix("_")


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Return whether a field has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def field_help(section: type, name: str) -> str:
    """Return the docstring below a field on one line, read from the source of its class; "" where
    there is none.
    """
    return next((helps[name] for base in section.__mro__ if name in (helps := _helps(base))), "")


@lru_cache(maxsize=256)
def _helps(section: type) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(section))
    except (OSError, TypeError):  # built in, or installed without its source
        return {}
    body = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)).body
    found = {}
    for statement in pairwise(body):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                found[name] = " ".join(text.split())
    return found


def inner_sections(hint: Any) -> Iterator[tuple[Any, str]]:
    """Yield (dataclass within a type, what its keys are below: "", "[]" or ".<name>")."""
    for kind in alternatives(hint):
        origin, arguments = get_origin(kind), get_args(kind)
        if dataclasses.is_dataclass(kind):
            yield kind, ""
        elif origin is tuple and dataclasses.is_dataclass(arguments[0]):
            yield arguments[0], "[]"
        elif origin is Mapping:
            yield from (
                (inner, ".<name>")
                for inner in alternatives(arguments[1])
                if dataclasses.is_dataclass(inner)
            )


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union; of any other type the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def bare(hint: Any) -> Any:
    """Return a type without its metadata."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def range_of(hint: Any) -> Range | None:
    """Return the range in a type's metadata."""
    metadata = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((found for found in metadata if isinstance(found, Range)), None)


def describe(hint: Any) -> str:
    """Return a type in words, without its range."""
    hint = bare(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _WORDS:
        return _WORDS[hint]
    if origin in (Union, types.UnionType):
        return " or ".join(
            describe(argument) for argument in arguments if argument is not type(None)
        )
    if origin is Literal:
        return "one of " + ", ".join(repr(argument) for argument in arguments)
    if origin is tuple:
        return f"a list of which each is {describe(arguments[0])}"
    return (
        f"a mapping of which each value is {describe(arguments[1])}"
        if arguments
        else "a mapping of keys to values"
    )


def json_schema(section: type[DataclassInstance], *, templates: bool = False) -> dict[str, Any]:
    """Return the JSON schema of the mapping that `parse` reads a dataclass from.

    Args:
        section: a dataclass, such as `ProjectConfig`.
        templates: whether a template such as `{{ env.ROOT }}` may stand for any value.
    """
    properties, fields = {}, own_fields(section)
    for field, hint in fields:
        help_text = field_help(section, field.name)
        is_tree = any(
            inner is section for kind in alternatives(hint) for inner, _ in inner_sections(kind)
        )
        schema = {"type": "object"} if is_tree else _schema(hint, templates)
        properties[key_of(field)] = schema | ({"description": help_text} if help_text else {})
    required = [key_of(field) for field, _ in fields if is_required(field)]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _schema(hint: Any, templates: bool) -> dict[str, Any]:
    kinds = [_schema_of_one(kind, templates) for kind in alternatives(hint)]
    is_open = (
        all(kind.get("type") == "object" or kind == {} for kind in kinds)
        or {"type": "string"} in kinds
    )
    if templates and not is_open:
        kinds.append({"type": "string", "pattern": r"\{\{"})
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def _schema_of_one(hint: Any, templates: bool) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if (between := range_of(hint)) is not None:
        ends = {"minimum": between.low} | (
            {} if between.high is None else {"maximum": between.high}
        )
        return _schema_of_one(bare(hint), templates) | ends
    if dataclasses.is_dataclass(hint):
        return json_schema(hint, templates=templates)  # type: ignore[arg-type]
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], templates)}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is Mapping:
        keys = {"propertyNames": {"enum": list(names)}} if (names := get_args(arguments[0])) else {}
        return {"type": "object", "additionalProperties": _schema(arguments[1], templates)} | keys
    return {"type": _JSON_TYPES[hint]} if hint in _JSON_TYPES else {}
