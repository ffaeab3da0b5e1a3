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
from jinja2 import Template
from pydantic import ValidationError
from pydantic_core import InitErrorDetails

from nanoset_assets.code_location.last_valid import check_file
from nanoset_assets.names import names_of
from nanoset_core.errors import ConfigError
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


def rendered_texts(context: dg.ResolutionContext, value: Any) -> Any:
    """Return texts with their templates filled in. Unlike Dagster, this leaves numbers as texts.

    Dagster turns a text that looks like a number into one. But tags, for example, are texts:

        written                in Dagster    returned
        "3"                    3             "3"
        "{{ env.PRIORITY }}"   3             "3"    (if the environment variable is 3)
        "{{ env.VERSION }}"    3.1           "3.10" (if the environment variable is 3.10)

    Args:
        context: Knows the values of the templates.
        value: A text, or a list or mapping of texts.
    """
    if isinstance(value, Mapping):
        return {key: rendered_texts(context, text) for key, text in value.items()}
    if isinstance(value, list):
        return [rendered_texts(context, text) for text in value]
    if isinstance(value, int | float):
        return str(value)  # it was written without quotes
    result = rendered(context, value)
    if isinstance(result, int | float):
        # Dagster has made a number of the text, which the number need not look like: 3.1 for
        # "3.10". So fill in the template again, this time without Dagster.
        return Template(value).render(**context.scope)
    return result


def checked_path(context: dg.ResolutionContext, value: str | None) -> str | None:
    """Return the path of the nanoset.yaml that a defs.yaml names, after a check of that file.

    Dagster calls this for the line `config:` of a defs.yaml, and reports errors at this line. For
    example, in the folder /defs:

        as written                     returned                   file that is checked
        conf/nanoset.yaml              conf/nanoset.yaml          /defs/conf/nanoset.yaml
        {{ env.HOME }}/nanoset.yaml    /home/ann/nanoset.yaml     /home/ann/nanoset.yaml

    Args:
        context: Knows the values of the templates, such as `env.HOME`, and the folder of the
            defs.yaml.
        value: The path as written in the defs.yaml, or None.

    Raises:
        ConfigError: The file has mistakes. (But if this process has read a valid version of it
            before, there is no error: that version is used.)
        MissingError: The file does not exist; the same applies.
    """
    path: str | None = rendered(context, value)  # with the templates filled in
    if path is None:
        return None
    check_file(context.resolve_source_relative_path(path))
    return path


def project_attributes(attributes: Mapping[str, Any]) -> list[str]:
    """Return which of the attributes `config` and `project` have a value. Exactly one should.

    A defs.yaml names a project either by the path of its nanoset.yaml (`config`), or has the keys
    of a nanoset.yaml itself (`project`):

        {"config": "nanoset.yaml", "project": None}     ["config"]
        {}                                              []

    Args:
        attributes: Name → value; None stands for no value.
    """
    return [name for name in ("config", INLINE) if attributes.get(name) is not None]


def checked(component: str, attributes: Any) -> Any:
    """Check the attributes of a component in a defs.yaml, and return them unchanged.

    Dagster parses a defs.yaml with pydantic, a library that checks data. It calls this, and shows
    each mistake at its line in the file. So they are raised as pydantic's own error. Values that
    contain templates such as `{{ env.RAW }}` are checked later, when their text is known.

    Args:
        component: The name of the component's class, for messages.
        attributes: The attributes in the defs.yaml.

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
        """Return the mistake in pydantic's form, from which it makes its error.

        A `value_error` is pydantic's name for an error that a function raised; its text is that of
        `error`. The keys that lead to the value (`loc`) tell Dagster the line in the defs.yaml.

        Args:
            attributes: All attributes in the defs.yaml.
        """
        return InitErrorDetails(
            type="value_error", loc=self.path, input=attributes, ctx={"error": self.error}
        )


def _mistakes(attributes: Mapping[str, Any]) -> list[_Mistake]:
    """Return what is wrong with the attributes of a component in a defs.yaml.

    Each mistake has the keys that lead to its line in the file. For example, `key_prefix: my-team`
    is a mistake, since a prefix has no hyphens. Its keys are ("key_prefix",).

    Args:
        attributes: The attributes as written. A value with a template such as `{{ env.RAW }}` is
            not checked, since its text is not known yet.
    """
    mistakes = _project_mistakes(attributes)
    mistakes += _prefix_mistakes(attributes)
    settings = attributes.get(INLINE)  # the attribute `project`, which may have many keys
    if isinstance(settings, Mapping) and _TEMPLATE not in str(settings):
        mistakes += _inline_mistakes(settings)
    return mistakes


def _project_mistakes(attributes: Mapping[str, Any]) -> list[_Mistake]:
    """Return a mistake if the attributes name no project, or name it twice.

    A project is named by either `config`, the path of its settings, or `project`, the settings:

        attributes           mistake is reported at
        config               no mistake
        project              no mistake
        config, project      the line of `project`
        neither              no line: the whole component

    Args:
        attributes: The attributes as written.
    """
    names = project_attributes(attributes)  # such as ["config"]
    if len(names) == 1:
        return []
    path: KeyPath = tuple(names[1:])  # ("project",), or () if there is neither
    return [_Mistake(not_one_project(names), path)]


def _prefix_mistakes(attributes: Mapping[str, Any]) -> list[_Mistake]:
    """Return what is wrong with the attributes `key_prefix` and `group_prefix`.

    They are put before the names of assets and of groups in Dagster, which allows only some
    characters in them. So `key_prefix: "l l m"` is a mistake.

    Args:
        attributes: The attributes as written in a defs.yaml. A value with a template such as `{{
            env.PREFIX }}` is not checked, since its text is not known yet.
    """
    mistakes: list[_Mistake] = []
    key_prefix = attributes.get("key_prefix")
    if _TEMPLATE not in str(key_prefix):  # "{{"
        try:
            names_of(key_prefix, None)
        except ConfigError as error:
            mistakes.append(_Mistake(error, ("key_prefix",)))
    group_prefix = attributes.get("group_prefix")
    if _TEMPLATE not in str(group_prefix):
        try:
            names_of(None, group_prefix)
        except ConfigError as error:
            mistakes.append(_Mistake(error, ("group_prefix",)))
    return mistakes


def _inline_mistakes(settings: Mapping[str, Any]) -> list[_Mistake]:
    """Return what is wrong with settings that are written in a defs.yaml, below the key `project`.

    Usually, a project has a settings file of its own. Its defs.yaml may contain them instead:

        project:
          nanosets:
            pretrain: {blend: 7}

    Here, the value 7 is wrong. The keys that lead to it are ("project", "nanosets", "pretrain",
    "blend"). Dagster finds the line in the file by them.

    Args:
        settings: What is written below `project`.
    """
    _, errors = check_config(settings, Path(INLINE))
    mistakes: list[_Mistake] = []
    for error in errors:
        keys_below_project = _key_path(settings, error.where or "")
        mistakes.append(_Mistake(error, (INLINE, *keys_below_project)))
    return mistakes


def not_one_project(attributes: list[str]) -> ConfigError:
    """Return the error for a component that names no project, or two.

    A defs.yaml names a project either by `config` or by `project`.

    Args:
        attributes: Which of the two are given: either both or none.
    """
    found = "neither `config` nor `project`"
    remedy = f"run `nanoset init` to write a {CONFIG_FILE}, and name it by `config`"
    if attributes:
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

    An error names a place as text, with dots between the keys; Dagster needs the keys one by one,
    to find the line in the file. A key may contain dots itself, so the text cannot simply be split:

        project: nanosets.pretrain.blend        ("nanosets", "pretrain", "blend")
        project: corpora.web-v1.5.files         ("corpora", "web-v1.5", "files")

    Args:
        value: The value of the attribute `project`, which has the keys of a nanoset.yaml.
        where: The place. If a key does not exist in `value`, the result ends before it.
    """
    dotted_keys = where.removeprefix(f"{INLINE}: ")  # "nanosets.pretrain.blend"
    path: list[str | int] = []
    # Follow the keys into the value, one level in each round.
    while isinstance(value, Mapping) and dotted_keys:
        key = _first_key(value, dotted_keys)
        if key is None:
            break
        path.append(key)
        value = value[key]
        dotted_keys = dotted_keys[len(key) :].lstrip(".")  # "pretrain.blend"
    return tuple(path)


def _first_key(value: Mapping[str, Any], path: str) -> str | None:
    """Return the key of a mapping with which a dotted path begins, or None.

    For example, `web-v1.5.files` begins with the key `web-v1.5`, and `files[0]` with `files`.

    Args:
        value: The mapping.
        path: The rest of a path, below this mapping.
    """
    for key in value:
        if path == key or path.startswith((f"{key}.", f"{key}[")):
            return key
    return None
