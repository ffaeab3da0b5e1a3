"""Write a first nanoset.yaml with help for every key, and its JSON schema."""

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
"""Name of the JSON schema next to nanoset.yaml, by which editors complete and check its keys."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A value for a key of nanoset.yaml, with the reason for it; or a key that is commented out."""

    value: Any
    """The value of the key."""
    note: str | None = None
    """A sentence on the reason; None to write the key as a comment."""

    @property
    def is_commented_out(self) -> bool:
        """Whether the key is only suggested, by a comment."""
        return self.note is None


def config_text(values: Mapping[str, Any]) -> str:
    """Return the text of a nanoset.yaml, with the help of each key in a comment above it.

    Args:
        values: Key → plain value, mapping of the keys in its section, or `Noted`; in the order in
            which they are written.
    """
    lines = [f"# yaml-language-server: $schema={SCHEMA_FILE}"]
    lines += _section_lines(ProjectConfig, values)
    return "".join(f"{line}\n" for line in lines)


def schema_text() -> str:
    """Return the JSON schema of nanoset.yaml."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": CONFIG_FILE}
    return json.dumps(head | json_schema(ProjectConfig), indent=1, ensure_ascii=False) + "\n"


def _section_lines(
    section: type[DataclassInstance], values: Mapping[str, Any], indent: str = ""
) -> Iterator[str]:
    """Yield the lines of a section: each key, with its help and the reason for its value above it.

    Args:
        section: The dataclass that declares the keys.
        values: Key → plain value, mapping of the keys in its section, or `Noted`.
        indent: Spaces in front of each line.
    """
    for key, entry in values.items():
        declaration = setting(section, key)
        yield f"{indent}# {declaration.help}"

        value = entry
        comment_mark = ""
        if isinstance(entry, Noted):
            value = entry.value
            if entry.is_commented_out:
                comment_mark = "# "
            else:
                yield f"{indent}# {entry.note}"
        for line in _key_lines(declaration.hint, key, value):
            yield f"{indent}{comment_mark}{line}"


def _key_lines(hint: Any, key: str, value: Any) -> Iterator[str]:
    """Yield the lines of one key: its value on the same line, or its section below it.

    Args:
        hint: Declared type of the key.
        key: The key.
        value: Its value.
    """
    inner, suffix = next(inner_sections(hint), (None, ""))
    if inner is None:
        yield f"{key}: {_in_yaml(value)}"
        return
    yield f"{key}:"
    if not suffix:
        yield from _section_lines(inner, value, "  ")
        return
    # A mapping of names to sections, such as `nanosets`.
    for name, settings in value.items():
        yield f"  {_in_yaml(name)}:"
        yield from _section_lines(inner, settings, "    ")


def _in_yaml(value: object) -> str:
    """Return a plain value on one line, in quotes if YAML would read it as another type."""
    import yaml

    return yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=1 << 20)[1:-2]
