"""Write a first nanoset.yaml, in which every key is explained by the help of its field, and its JSON schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nanoset_core.project.settings import ProjectConfig
from nanoset_core.records.parsing import CONFIG_FILE
from nanoset_core.records.settings import inner_sections, json_schema, setting

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


SCHEMA_FILE = "nanoset.schema.json"
"""Name of the JSON schema beside nanoset.yaml, by which editors complete and check its keys."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A value with a sentence on the reason for it, or one that is written as a comment."""

    value: Any
    """What the key holds, or would hold."""
    note: str | None = None
    """The reason; None writes the key as a comment."""


def config_text(values: Mapping[str, Any]) -> str:
    """Return a nanoset.yaml with the help of every key above it.

    Args:
        values: key → plain value, or mapping of the keys within it, or Noted; in the order to write.
    """
    lines = [f"# yaml-language-server: $schema={SCHEMA_FILE}", *_lines(ProjectConfig, values)]
    return "".join(f"{line}\n" for line in lines)


def schema_text() -> str:
    """Return the JSON schema of nanoset.yaml."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": CONFIG_FILE}
    return json.dumps(head | json_schema(ProjectConfig), indent=1, ensure_ascii=False) + "\n"


def _lines(section: type[DataclassInstance], values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for key, value in values.items():
        found, mark = setting(section, key), ""
        yield f"{indent}# {found.help}"
        if isinstance(value, Noted):
            if value.note is None:
                mark = "# "
            else:
                yield f"{indent}# {value.note}"
            value = value.value
        yield from (f"{indent}{mark}{line}" for line in _entry(found.hint, key, value))


def _entry(hint: Any, key: str, value: Any) -> Iterator[str]:
    """Yield the lines of one key."""
    inner, suffix = next(inner_sections(hint), (None, ""))
    if inner is None:
        yield f"{key}: {_in_yaml(value)}"
        return
    yield f"{key}:"
    for name, settings in value.items() if suffix else [("", value)]:
        if name:
            yield f"  {_in_yaml(name)}:"
        yield from _lines(inner, settings, "  " * (2 if name else 1))


def _in_yaml(value: object) -> str:
    """Return a plain value on one line, in quotes where it would be read as a number, a date or a truth value."""
    import yaml

    return yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=1 << 20)[1:-2]
