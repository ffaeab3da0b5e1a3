"""The attributes of a component in a defs.yaml.

Templates are filled in, and mistakes are reported with their line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import ValidationError
from pydantic_core import InitErrorDetails

from nanoset_assets.last_valid import check_file
from nanoset_assets.names import names_of
from nanoset_core.errors import ConfigError, raised
from nanoset_core.project.settings import check_config
from nanoset_core.records.parsing import CONFIG_FILE

INLINE = "project"
"""The attribute that holds the keys of a nanoset.yaml."""
_TEMPLATE = "{{"
KeyPath = tuple[str | int, ...]
"""The keys that lead to a value in a defs.yaml."""


def rendered(context: dg.ResolutionContext, value: Any) -> Any:
    """Fill in the templates of a value.

    Text without a template stays as it is: Dagster would make "80,15,5" a tuple.
    """
    if isinstance(value, Mapping):
        return {key: rendered(context, item) for key, item in value.items()}
    if isinstance(value, list):
        return [rendered(context, item) for item in value]
    if isinstance(value, str) and _TEMPLATE in value:
        return context.resolve_value(value)
    return value


def located(context: dg.ResolutionContext, value: str | None) -> str | None:
    """Return the path of a nanoset.yaml, with its templates filled in.

    The file is read here, so that an error points to the line that names it.
    """
    path: str | None = rendered(context, value)
    if path is not None:
        check_file(context.resolve_source_relative_path(path))
    return path


def named_projects(attributes: Mapping[str, Any]) -> list[str]:
    """Return which of the two attributes that name a project are given."""
    return [name for name in ("config", INLINE) if attributes.get(name) is not None]


def checked(component: str, attributes: Any) -> Any:
    """Check the attributes of a component, except values that contain templates.

    Those are checked once the templates are filled in.

    Args:
        component: The name of its class.
        attributes: As they are in the defs.yaml.

    Raises:
        ValidationError: Some are invalid; each mistake has the path of its key.
    """
    if not isinstance(attributes, Mapping):
        return attributes
    details: list[InitErrorDetails] = []
    for error, path in _mistakes(attributes):
        details.append(
            InitErrorDetails(type="value_error", loc=path, input=attributes, ctx={"error": error})
        )
    if details:
        raise ValidationError.from_exception_data(component, details)
    return attributes


def _mistakes(attributes: Mapping[str, Any]) -> list[tuple[ConfigError, KeyPath]]:
    """Return the mistakes in the attributes of a component, each with the path of its key."""
    mistakes: list[tuple[ConfigError, KeyPath]] = []
    projects = named_projects(attributes)
    if len(projects) != 1:
        mistakes.append((no_project(projects), tuple(projects[1:])))

    key_prefix = attributes.get("key_prefix")
    group_prefix = attributes.get("group_prefix")
    if _TEMPLATE not in f"{key_prefix} {group_prefix}":
        for error in raised(names_of, key_prefix, group_prefix):
            is_of_group = error.found == repr(group_prefix)
            mistakes.append((error, ("group_prefix" if is_of_group else "key_prefix",)))

    inline = attributes.get(INLINE)
    if isinstance(inline, Mapping) and _TEMPLATE not in str(inline):
        _, errors = check_config(inline, Path(INLINE))
        for error in errors:
            mistakes.append((error, (INLINE, *_key_path(inline, error.where or ""))))
    return mistakes


def no_project(projects: list[str]) -> ConfigError:
    """Return the error for a component that names no project, or two.

    Args:
        projects: See `named_projects`.
    """
    found = "neither `config` nor `project`"
    remedy = f"run `nanoset init` to write a {CONFIG_FILE}, and name it by `config`"
    if projects:
        found = "both `config` and `project`"
        remedy = "remove one of them"
    return ConfigError(
        "a component has one project",
        found=found,
        expected="`config`, the path of a nanoset.yaml, or its keys under `project`",
        remedy=remedy,
    )


def _key_path(value: Any, where: str) -> KeyPath:
    """Return the keys of a place such as `project: nanosets.pretrain.blend`, as deep as they exist."""
    rest = where.removeprefix(f"{INLINE}: ")
    path: list[str | int] = []
    while isinstance(value, Mapping) and rest:
        key = _first_key(value, rest)
        if key is None:
            break
        path.append(key)
        value = value[key]
        rest = rest[len(key) :].lstrip(".")
    return tuple(path)


def _first_key(value: Mapping[str, Any], path: str) -> str | None:
    """Return the key of a mapping that a path begins with; keys may contain dots."""
    for key in value:
        if path == key or path.startswith((f"{key}.", f"{key}[")):
            return key
    return None
