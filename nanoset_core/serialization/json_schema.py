"""A dataclass's keys as a JSON Schema, by which an editor or a checker finds the line of a mistake."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

from nanoset_core.serialization.settings import MISSING, alternatives, bare, field_help, range_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_TEMPLATE = {"type": "string", "pattern": r"\{\{"}
"""What is a value only once a template was filled in."""


def json_schema(section: type[DataclassInstance]) -> dict[str, Any]:
    """The schema of the mapping that `parse` makes a dataclass of; templates may stand for any value."""
    hints = get_type_hints(section, include_extras=True)
    properties, required = {}, []
    for field in dataclasses.fields(section):
        if not field.init:
            continue
        help_text = field_help(section, field.name)
        properties[field.name] = _of(hints[field.name]) | ({"description": help_text} if help_text else {})
        if field.default is MISSING and field.default_factory is MISSING:
            required.append(field.name)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _of(hint: Any) -> dict[str, Any]:
    kinds = [_of_one(kind) for kind in alternatives(hint)]
    if all(kind.get("type") == "object" or kind == {} for kind in kinds) or {"type": "string"} in kinds:
        return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return {"anyOf": [*kinds, _TEMPLATE]}


def _of_one(hint: Any) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _number(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return json_schema(hint)
    if origin is tuple:
        return {"type": "array", "items": _of(arguments[0])}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _of(arguments[1])}
    return {"type": _PLAIN[hint]} if hint in _PLAIN else {}


def _number(hint: Any) -> dict[str, Any]:
    between, schema = range_of(hint), _of_one(bare(hint))
    if between is None:
        return schema
    high = {} if between.high is None else {"maximum": between.high}
    return schema | {"minimum": between.low} | high
