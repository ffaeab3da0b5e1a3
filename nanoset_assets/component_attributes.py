"""Check and resolve the attributes of a component in a defs.yaml.

Attributes may contain templates such as `{{ env.RAW }}`. Values without templates are checked when
Dagster parses the file, so that mistakes are reported with their line; templates are filled in
later. For example, `key_prefix: my-team` is reported at this line: a prefix has no hyphens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
"""Start of a template."""
KeyPath = tuple[str | int, ...]
"""The keys that lead to a value in a defs.yaml."""


def rendered(context: dg.ResolutionContext, value: Any) -> Any:
    """Return a value with its templates filled in: `"{{ env.RAW }}/web"` → `"/data/raw/web"`.

    Args:
        context: Knows the values of the templates.
        value: A mapping, list or plain value, which may contain templates at any depth.

    Returns:
        A new value of the same form. Texts without a template are left unchanged.
    """
    if isinstance(value, Mapping):
        return {key: rendered(context, item) for key, item in value.items()}
    if isinstance(value, list):
        return [rendered(context, item) for item in value]
    # Dagster would also turn a text without a template, such as "80,15,5", into a tuple.
    if isinstance(value, str) and _TEMPLATE in value:
        return context.resolve_value(value)
    return value


def checked_path(context: dg.ResolutionContext, value: str | None) -> str | None:
    """Check the nanoset.yaml that a defs.yaml names, and return its path.

    It is checked while this attribute is resolved, so that Dagster reports errors at its line.

    Args:
        context: Knows the values of the templates, and the folder of the defs.yaml.
        value: The path as written in the defs.yaml, or None.

    Returns:
        The path with its templates filled in, perhaps relative to the folder of the defs.yaml.

    Raises:
        ConfigError: The file has mistakes, and no earlier valid version of it is known.
        MissingError: The file does not exist, and no earlier version of it is known.
    """
    path: str | None = rendered(context, value)
    if path is None:
        return None
    check_file(context.resolve_source_relative_path(path))
    return path  # may stay relative: the component resolves it again when it uses the file


def named_projects(attributes: Mapping[str, Any]) -> list[str]:
    """Return which of the attributes `config` and `project` are given.

    Args:
        attributes: Name → value. An attribute whose value is None is not given.

    Returns:
        A list of up to two names, such as ["config"].
    """
    return [name for name in ("config", INLINE) if attributes.get(name) is not None]


def checked(component: str, attributes: Any) -> Any:
    """Return the attributes of a component after checking all values that contain no templates.

    Args:
        component: The name of the component's class, for messages.
        attributes: The attributes in the defs.yaml.

    Returns:
        The same attributes, unchanged.

    Raises:
        ValidationError: Some are invalid; each mistake has the path of its key.
    """
    if not isinstance(attributes, Mapping):
        return attributes  # pydantic reports it
    mistakes = _mistakes(attributes)
    if mistakes:
        details = [mistake.details(attributes) for mistake in mistakes]
        raise ValidationError.from_exception_data(component, details)
    return attributes


@dataclass(frozen=True, slots=True)
class _Mistake:
    """An invalid attribute."""

    error: ConfigError
    path: KeyPath
    """The keys that lead to it; Dagster reports the line of the last one."""

    def details(self, attributes: Mapping[str, Any]) -> InitErrorDetails:
        """Return the mistake in the form from which pydantic makes its error.

        Args:
            attributes: All attributes in the defs.yaml.
        """
        return InitErrorDetails(
            type="value_error", loc=self.path, input=attributes, ctx={"error": self.error}
        )


def _mistakes(attributes: Mapping[str, Any]) -> list[_Mistake]:
    """Return the mistakes in the attributes of a component, with the keys that lead to them.

    Values with templates such as `{{ env.RAW }}`, whose text is not known yet, are not checked.

    Args:
        attributes: The attributes as written in a defs.yaml.
    """
    mistakes: list[_Mistake] = []

    # Exactly one of `config` and `project` has to be given.
    given_attributes = named_projects(attributes)
    if len(given_attributes) != 1:
        path: KeyPath = ()
        if given_attributes:
            path = (given_attributes[1],)  # point to the second of both
        mistakes.append(_Mistake(no_project(given_attributes), path))

    mistakes += _prefix_mistakes(attributes)
    inline = attributes.get(INLINE)
    if isinstance(inline, Mapping) and _TEMPLATE not in str(inline):
        mistakes += _inline_mistakes(inline)
    return mistakes


def _prefix_mistakes(attributes: Mapping[str, Any]) -> list[_Mistake]:
    """Return what is wrong with the attributes `key_prefix` and `group_prefix`.

    Args:
        attributes: The attributes as written in a defs.yaml.
    """
    mistakes: list[_Mistake] = []
    # Check each prefix by making names with it.
    key_prefix = attributes.get("key_prefix")
    if _TEMPLATE not in str(key_prefix):
        for error in raised(names_of, key_prefix, None):
            mistakes.append(_Mistake(error, ("key_prefix",)))
    group_prefix = attributes.get("group_prefix")
    if _TEMPLATE not in str(group_prefix):
        for error in raised(names_of, None, group_prefix):
            mistakes.append(_Mistake(error, ("group_prefix",)))
    return mistakes


def _inline_mistakes(settings: Mapping[str, Any]) -> list[_Mistake]:
    """Return what is wrong with the attribute `project`, which has the keys of a nanoset.yaml.

    Args:
        settings: The value of the attribute, without templates.
    """
    _, errors = check_config(settings, Path(INLINE))
    mistakes: list[_Mistake] = []
    for error in errors:
        path_in_project = _key_path(settings, error.where or "")
        mistakes.append(_Mistake(error, (INLINE, *path_in_project)))
    return mistakes


def no_project(projects: list[str]) -> ConfigError:
    """Return the error for a component with neither or both of `config` and `project`.

    Args:
        projects: The attributes that are given: the result of `named_projects`.
    """
    found = "neither `config` nor `project`"
    remedy = f"run `nanoset init` to write a {CONFIG_FILE}, and name it by `config`"
    if projects:
        found = "both `config` and `project`"
        remedy = "remove one of them"
    return ConfigError(
        "a component needs exactly one project",
        found=found,
        expected="`config`, the path of a nanoset.yaml, or its keys under `project`",
        remedy=remedy,
    )


def _key_path(value: Any, where: str) -> KeyPath:
    """Return the keys that lead to the place that an error names.

    The place `project: nanosets.pretrain.blend` becomes ("nanosets", "pretrain", "blend"). The
    attribute `project` of a defs.yaml contains the keys of a nanoset.yaml.

    Args:
        value: The value of the attribute `project`.
        where: The place. Keys in it that do not exist are left out.
    """
    dotted_keys = where.removeprefix(f"{INLINE}: ")  # "nanosets.pretrain.blend"
    path: list[str | int] = []
    # Follow the keys into the value. Each is looked up there, since a key such as "web-v1.5" has
    # dots itself.
    while isinstance(value, Mapping) and dotted_keys:
        key = _first_key(value, dotted_keys)
        if key is None:
            break
        path.append(key)
        value = value[key]
        dotted_keys = dotted_keys[len(key) :].lstrip(".")
    return tuple(path)


def _first_key(value: Mapping[str, Any], path: str) -> str | None:
    """Return the key of a mapping with which a dotted path begins; keys may contain dots, too."""
    for key in value:
        if path == key or path.startswith((f"{key}.", f"{key}[")):
            return key
    return None
