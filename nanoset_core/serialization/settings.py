"""What the fields of a settings dataclass say of themselves: type, range, choices, default and help.

nanoset.yaml, the options of the commands and docs/configuration.md all read them here.
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
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from nanoset_core.serialization.text import format_number

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MISSING = dataclasses.MISSING
"""The default of a setting that has none."""


@dataclass(frozen=True, slots=True)
class Between:
    """A range of numbers, as the metadata of an annotation: `Annotated[int, Between(1, 10)]`."""

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
    """One field, as it is declared."""

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

    @property
    def type(self) -> str:
        """Its type in words, such as "a whole number"."""
        return describe(self.hint)

    @property
    def between(self) -> Between | None:
        """The range of its values."""
        return range_of(self.hint)

    @property
    def choices(self) -> tuple[str, ...]:
        """All values that it can have, where these are few words."""
        return get_args(self.hint) if get_origin(self.hint) is Literal else ()


def settings(section: type[DataclassInstance], path: str = "") -> Iterator[Setting]:
    """The settings that a mapping of this dataclass holds, in the order declared, each followed by those within it.

    Args:
        section: a dataclass, such as `ProjectConfig`.
        path: what comes before the keys, such as "nanosets.<name>"; "" at the top.
    """
    hints = get_type_hints(section, include_extras=True)
    for field in dataclasses.fields(section):
        if not field.init:
            continue
        key = f"{path}.{field.name}" if path else field.name
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        hint = without_none(hints[field.name])
        yield Setting(section, key, hint, default, field_help(section, field.name))
        for inner, suffix in inner_sections(hint):
            yield from settings(inner, key + suffix)


def setting(section: type[DataclassInstance], name: str) -> Setting:
    """One setting of a dataclass, by its name."""
    return next(found for found in settings(section) if found.key == name)


def field_help(section: type, name: str) -> str:
    """The docstring below a field, read from the source of its class, on one line; "" where there is none."""
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
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def inner_sections(hint: Any) -> Iterator[tuple[Any, str]]:
    """(dataclass within a type, what its keys lie below)."""
    for kind in alternatives(hint):
        origin, arguments = get_origin(kind), get_args(kind)
        if dataclasses.is_dataclass(kind):
            yield kind, ""
        elif origin is tuple and dataclasses.is_dataclass(arguments[0]):
            yield arguments[0], "[]"
        elif origin is Mapping and dataclasses.is_dataclass(arguments[1]):
            yield arguments[1], ".<name>"


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union; of any other type itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def without_none(hint: Any) -> Any:
    """A type without None as an alternative."""
    kinds = tuple(kind for kind in alternatives(hint) if kind is not type(None))
    return hint if len(kinds) == len(alternatives(hint)) else reduce(or_, kinds)


def bare(hint: Any) -> Any:
    """A type without its metadata."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def range_of(hint: Any) -> Between | None:
    """The range in a type's metadata."""
    metadata = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((found for found in metadata if isinstance(found, Between)), None)


def describe(hint: Any) -> str:
    """A type in words, without its range."""
    hint = bare(hint)
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Any: "a plain value"}
    if hint in names:
        return names[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(argument) for argument in arguments if argument is not type(None))
    if origin is Literal:
        return "one of " + ", ".join(repr(argument) for argument in arguments)
    if origin is tuple:
        return f"a list of which each is {describe(arguments[0])}"
    if arguments:
        return f"a mapping of which each value is {describe(arguments[1])}"
    return "a mapping of keys to values"
