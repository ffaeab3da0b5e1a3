"""Read declarations of settings from frozen dataclasses, each field of which declares a key.

A field gives its key's name, type, range, choices and default, and the docstring below it is the
help text:

    @dataclass(frozen=True)
    class PacksSpec:
        length: Annotated[int, Range(1, 1 << 20)] = 4096
        "Tokens of a pack."

This declares the key `length`, a whole number from 1 to 1,048,576. nanoset.yaml, its JSON schema,
the options of the commands and docs/configuration.md are all derived from these declarations. A
*hint* is the type of a field as Python's annotations express it, such as `int | None`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from nanoset_core.wording import format_number

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MISSING = dataclasses.MISSING
"""The default of a setting that is required."""
_IS_NOT_A_KEY = "is_not_a_key"
NOT_A_KEY: Mapping[str, Any] = {_IS_NOT_A_KEY: True}
"""Metadata of a field that no key sets, such as the file that settings were read from."""
_TEXT_BY_TYPE = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Any: "a plain value",
}
"""Descriptions of types for users."""
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
"""Names of types in JSON schemas."""


@dataclass(frozen=True, slots=True)
class Range:
    """A range of numbers, for the annotation of a field: `Annotated[int, Range(1, 10)]`."""

    low: float
    """Smallest allowed value."""
    high: float | None = None
    """Greatest allowed value; None if there is no limit."""

    def __contains__(self, value: float) -> bool:
        return self.low <= value and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        low = format_number(self.low)
        if self.high is None:
            return f"at least {low}"
        return f"{low} to {format_number(self.high)}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a settings dataclass, with the path of its key."""

    section: type[DataclassInstance]
    """The dataclass that declares it."""
    key: str
    """Path of its key, such as `nanosets.<name>.seed`."""
    hint: Any
    """Its type with ranges, but without None."""
    default: Any
    """Its default, or `MISSING` if it is required."""
    help: str
    """Its docstring on one line, or "" if it has none."""


def settings(section: type[DataclassInstance], path: str = "") -> Iterator[Setting]:
    """Yield all settings that a file can have, with their documentation, for tables in the manual.

    The settings are declared as dataclasses that contain each other. For example, the field `views`
    of a class is a mapping of names to objects with the field `of`. Then the settings are "views"
    and "views.<name>.of".

    Args:
        section: The dataclass, such as that of the whole file.
        path: Path of its key in the file, such as "views.<name>"; empty for the whole file.

    Yields:
        The settings in the order of the fields, each followed by those within it.
    """
    for field, hint in own_fields(section):
        key = f"{path}.{key_of(field)}".removeprefix(".")
        type_of_values = _without_none(hint)
        yield Setting(
            section=section,
            key=key,
            hint=type_of_values,
            default=default_of(field),
            help=field_help(section, field.name),
        )
        for inner in inner_sections(type_of_values):
            # A section may contain sections of its own class, as a group of corpora contains
            # groups. Without this check, there would be no end.
            if inner.section is not section:
                yield from settings(inner.section, path=f"{key}{inner.suffix}")  # "views.<name>"


def _without_none(hint: Any) -> Any:
    """Return a type without None: `int | str` for `int | str | None`.

    In the program, None means that a key is absent from the file. Users do not write it, so the
    documentation of a setting does not name it.

    Args:
        hint: The type, with at least one member other than None.
    """
    types_of_values = [kind for kind in alternatives(hint) if kind is not type(None)]
    union = types_of_values[0]
    for other_type in types_of_values[1:]:
        union = union | other_type
    return union


def setting(section: type[DataclassInstance], name: str) -> Setting:
    """Return one setting of a dataclass.

    Args:
        section: The dataclass.
        name: Path of the setting's key within it, such as "seed" or "split.by".

    Raises:
        StopIteration: There is no such setting.
    """
    return next(candidate for candidate in settings(section) if candidate.key == name)


@lru_cache(maxsize=256)
def own_fields(section: type[DataclassInstance]) -> list[tuple[dataclasses.Field[Any], Any]]:
    """Return the fields of a dataclass that are keys in a file, each with its type.

        seed: Annotated[int, Range(1, 10)] = 1     with this type, including the range
        file: Path = field(metadata=NOT_A_KEY)     left out: the program sets it
        count: int = field(init=False)             left out: it is computed

    The types are looked up for all fields together, which is slow, so results are kept.

    Args:
        section: The dataclass.

    Returns:
        Pairs (field, type), in the order of the fields.
    """
    # A field's own `type` may be text, because of `from __future__ import annotations`.
    hint_by_name = get_type_hints(section, include_extras=True)
    fields = []
    for field in dataclasses.fields(section):
        is_key = field.init and not field.metadata.get(_IS_NOT_A_KEY, False)
        if is_key:
            fields.append((field, hint_by_name[field.name]))
    return fields


def key_of(field: dataclasses.Field[Any]) -> str:
    """Return the key of a field: its name without a trailing underscore.

    Fields have one if the key is a keyword of Python: `continue_` declares the key `continue`.

    Args:
        field: A field of a dataclass of settings.
    """
    return field.name.removesuffix("_")


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Return whether a field has no default, so that its key must be in the file.

    Args:
        field: A field of a dataclass of settings.
    """
    return field.default is MISSING and field.default_factory is MISSING


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, or `MISSING` if it has none.

    Args:
        field: The field. If a function makes its default, such as an empty list, it is called.
    """
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def field_help(section: type, name: str) -> str:
    """Return the explanation of a setting, which is written as a docstring below its field.

        seed: int = 1234
        '''Seed of every shuffle.'''          →  "Seed of every shuffle."

    It is shown in documentation and messages. Python forgets these docstrings, so they are read
    from the source code of the class. If the class inherits the field, its docstring is in another
    class.

    Args:
        section: The dataclass.
        name: Name of the field.

    Returns:
        The text on one line; "" if there is none.
    """
    for base in section.__mro__:
        help_by_field = _field_docstrings(base)
        if name in help_by_field:
            return help_by_field[name]
    return ""


@lru_cache(maxsize=256)
def _field_docstrings(section: type) -> dict[str, str]:
    """Return the docstrings that are written below the fields of a class, for documentation.

        class Blend:
            seed: int = 1234
            '''Seed of every shuffle.'''          →  {"seed": "Seed of every shuffle."}

    Python itself ignores such a text, so the source code of the class is parsed.

    Args:
        section: The class. Only fields that it declares itself count, not inherited ones.

    Returns:
        Name of the field → docstring on one line. Empty if the class has no source, such as
        `object`.
    """
    try:
        source = textwrap.dedent(inspect.getsource(section))
    except (OSError, TypeError):
        return {}  # The class is built in, or was installed without its source.

    definition = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return _texts_below_fields(definition)


def _texts_below_fields(definition: ast.ClassDef) -> dict[str, str]:
    """Return the text that follows each declaration of a field in the source code of a class.

    Args:
        definition: The class, as Python has parsed it.

    Returns:
        Name of the field → text on one line.
    """
    docstrings = {}
    for statement, next_statement in pairwise(definition.body):
        match statement, next_statement:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docstrings[name] = " ".join(text.split())
    return docstrings


class InnerSection(NamedTuple):
    """A dataclass that declares the keys below a key."""

    section: Any
    """The dataclass."""
    suffix: str
    """What follows the key in the paths of its values: "[]" for lists, ".<name>" for mappings."""


def inner_sections(hint: Any) -> Iterator[InnerSection]:
    """Find the dataclasses within the type of a setting, since their fields are settings, too.

    Suppose that the setting `views` has one of these types, where View is a dataclass:

        type                  result               a key below `views`
        View                  (View, "")           views.of
        Mapping[str, View]    (View, ".<name>")    views.<name>.of
        tuple[View, ...]      (View, "[]")         views[].of
        int                   nothing

    Args:
        hint: The type of the setting, perhaps a union of several.

    Yields:
        Each dataclass, with what is put between the key of the setting and the keys of its fields.
    """
    for member in alternatives(hint):  # the types of the union
        arguments = get_args(member)
        if get_origin(member) is tuple:  # tuple[View, ...]
            value_hint = arguments[0]
            suffix = "[]"
        elif get_origin(member) is Mapping:  # Mapping[str, View]
            value_hint = arguments[1]
            suffix = ".<name>"
        else:
            value_hint = member
            suffix = ""

        for value_type in alternatives(value_hint):
            if dataclasses.is_dataclass(value_type):
                yield InnerSection(value_type, suffix)


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the types that a value may have: the members of a union, or the type itself.

    Args:
        hint: The type: `str | None` gives (str, None), and `str` gives (str,).
    """
    if get_origin(hint) in (Union, types.UnionType):
        return get_args(hint)
    return (hint,)


def bare(hint: Any) -> Any:
    """Return a type without its metadata: int for `Annotated[int, Range(1, 10)]`.

    Args:
        hint: The type. One without metadata is returned as it is.
    """
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def range_of(hint: Any) -> Range | None:
    """Return the range in a type's metadata, or None if it has none.

    Args:
        hint: The type: `Annotated[int, Range(1, 10)]` has the range 1 to 10.
    """
    if get_origin(hint) is not Annotated:
        return None
    metadata = get_args(hint)[1:]
    return next((item for item in metadata if isinstance(item, Range)), None)


def describe(hint: Any) -> str:
    """Describe a type in words for users, such as "text or a whole number".

        int | str                        text or a whole number
        tuple[str, ...]                  a list of text
        Mapping[str, float]              a mapping of names to a number
        Literal["a", "b"]                one of 'a', 'b'
        Annotated[int, Range(1, 10)]     a whole number      (ranges are described elsewhere)
        int | None                       a whole number      (users leave the key out instead)

    Args:
        hint: The type.
    """
    hint = bare(hint)
    if hint in _TEXT_BY_TYPE:
        return _TEXT_BY_TYPE[hint]

    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin in (Union, types.UnionType):
        return _describe_union(arguments)
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in arguments)
    if origin in (tuple, list):
        return f"a list of {describe(arguments[0])}"
    if origin in (Mapping, dict):
        _, value_hint = arguments
        return f"a mapping of names to {describe(value_hint)}"
    return "a mapping of keys to values"  # a dataclass


def _describe_union(members: Sequence[Any]) -> str:
    """Describe the types of a union, without None.

    Simple types come first: "text or a list of text" is clear, "a list of text or text" is not.

    Args:
        members: The types.
    """
    kinds = [kind for kind in members if kind is not type(None)]
    simple_kinds = [kind for kind in kinds if not _is_container(kind)]
    containers = [kind for kind in kinds if _is_container(kind)]
    return " or ".join(describe(kind) for kind in [*simple_kinds, *containers])


def _is_container(hint: Any) -> bool:
    """Return whether a type is that of lists or mappings.

    Args:
        hint: The type, such as `tuple[str, ...]`.
    """
    return get_origin(bare(hint)) in (tuple, list, Mapping)


def json_schema(section: type[DataclassInstance], *, templates: bool = False) -> dict[str, Any]:
    """Return the JSON schema of a file of settings, by which editors complete and check it.

    A JSON schema says which keys a mapping can have, and of which type. The dataclass

        class Blend:
            seed: int = 1
            '''Seed of the shuffle.'''

    gives, with its docstring as the description that an editor shows:

        {"type": "object",
         "properties": {"seed": {"type": "integer", "description": "Seed of the shuffle."}},
         "required": [],
         "additionalProperties": False}

    Args:
        section: The dataclass.
        templates: Whether users may write a template in place of any value, such as
            `{{ env.ROOT }}`, which Dagster replaces by an environment variable.
    """
    properties = {}
    required = []
    for field, hint in own_fields(section):
        schema = _schema_of_field(section, hint, templates)
        help_text = field_help(section, field.name)
        if help_text:
            schema["description"] = help_text
        properties[key_of(field)] = schema
        if is_required(field):
            required.append(key_of(field))
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _schema_of_field(
    section: type[DataclassInstance], hint: Any, templates: bool
) -> dict[str, Any]:
    """Return the JSON schema of a setting, by which editors complete and check a file of settings.

    Args:
        section: The dataclass that has the setting as a field.
        hint: The type of the field, such as `int`, whose schema is {"type": "integer"}.
        templates: Whether a template, such as `{{ env.ROOT }}`, may be used in place of any value.
    """
    # The field may contain sections of the same kind: a group of texts may contain groups. Their
    # schemas would contain each other without an end. So allow any keys in the inner ones.
    sections_within = [inner.section for inner in inner_sections(hint)]
    if section in sections_within:
        return {"type": "object"}
    return _schema(hint, templates)


def _schema(hint: Any, templates: bool) -> dict[str, Any]:
    """Return the JSON schema of a type, by which editors check a value in a file of settings.

        type                    schema
        int                     {"type": "integer"}
        int | None              {"anyOf": [{"type": "integer"}, {"type": "null"}]}
        int, with templates     {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": …}]}

    Args:
        hint: The type.
        templates: Whether a text with "{{", such as `{{ env.SEED }}`, is allowed in place of the
            value. Another program, Dagster, replaces it.
    """
    schemas = [_schema_of_alternative(member, templates) for member in alternatives(hint)]
    if templates and _needs_template(schemas):  # not if any text is allowed anyway
        schemas.append({"type": "string", "pattern": r"\{\{"})

    if len(schemas) == 1:
        return schemas[0]
    return {"anyOf": schemas}


def _needs_template(schemas: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a schema must allow a template in addition to the types that it has.

    Args:
        schemas: The schema of each alternative of a type.
    """
    if {"type": "string"} in schemas:
        return False  # any text is allowed already
    # The schema {} allows any value already, and Dagster does not replace whole mappings.
    return any(schema != {} and schema.get("type") != "object" for schema in schemas)


def _schema_of_alternative(hint: Any, templates: bool) -> dict[str, Any]:
    """Return the JSON schema of a type that is not a union, by which editors check a value.

        type                            schema
        Annotated[int, Range(1, 10)]    {"type": "integer", "minimum": 1, "maximum": 10}
        tuple[str, ...]                 {"type": "array", "items": {"type": "string"}}
        Literal["a", "b"]               {"enum": ["a", "b"]}
        a dataclass                     {"type": "object", "properties": …}
        Any                             {}

    Args:
        hint: The type.
        templates: Whether a template, such as `{{ env.ROOT }}`, may be used in place of values
            within the value, as of the items of a list.
    """
    plain_hint = bare(hint)  # without its range
    if plain_hint in _JSON_TYPES:
        return _schema_of_scalar(_JSON_TYPES[plain_hint], range_of(hint))
    if dataclasses.is_dataclass(plain_hint):
        return json_schema(plain_hint, templates=templates)  # type: ignore[arg-type]

    origin = get_origin(plain_hint)
    arguments = get_args(plain_hint)
    if origin is tuple:  # tuple[value type, ...]
        return {"type": "array", "items": _schema(arguments[0], templates)}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is Mapping:
        key_hint, value_hint = arguments
        return _schema_of_mapping(key_hint, value_hint, templates)
    return {}  # Any value.


def _schema_of_scalar(json_type: str, value_range: Range | None) -> dict[str, Any]:
    """Return the JSON schema of a number, text, a boolean or null, by which editors check a value.

        arguments                   schema
        "integer", Range(1, 10)     {"type": "integer", "minimum": 1, "maximum": 10}
        "integer", Range(1)         {"type": "integer", "minimum": 1}
        "string", None              {"type": "string"}

    Args:
        json_type: Name of the type in JSON schemas.
        value_range: The allowed numbers; None if all are allowed.
    """
    schema: dict[str, Any] = {"type": json_type}
    if value_range is not None:
        schema["minimum"] = value_range.low
        if value_range.high is not None:
            schema["maximum"] = value_range.high
    return schema


def _schema_of_mapping(key_hint: Any, value_hint: Any, templates: bool) -> dict[str, Any]:
    """Return the JSON schema of a mapping whose values have one type, by which editors check it.

    For `Mapping[Literal["a", "b"], float]`:

        {"type": "object",
         "additionalProperties": {"type": "number"},
         "propertyNames": {"enum": ["a", "b"]}}

    Args:
        key_hint: The type of the keys: `str`, or a `Literal` of texts.
        value_hint: The type of the values.
        templates: Whether a template, such as `{{ env.ROOT }}`, may be used in place of a value.
    """
    schema = {"type": "object", "additionalProperties": _schema(value_hint, templates)}
    possible_keys = get_args(bare(key_hint))  # "a" and "b"; none if the keys can be any text
    if possible_keys:
        schema["propertyNames"] = {"enum": list(possible_keys)}
    return schema
