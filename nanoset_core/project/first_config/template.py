"""Write a first nanoset.yaml with help for every key, and its JSON schema.

A comment above each key says what it is for, and another one why its value was chosen:

    # Token that ends each document
    # The config of the tokenizer names it.
    eod: </s>
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nanoset_core.project.written import WrittenConfig
from nanoset_core.records.parsing import CONFIG_FILE
from nanoset_core.records.settings import inner_sections, json_schema, setting
from nanoset_core.untrusted import visible

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


SCHEMA_FILE = "nanoset.schema.json"
"""Name of the JSON schema next to nanoset.yaml, by which editors complete and check its keys."""


@dataclass(frozen=True, slots=True)
class ExplainedValue:
    """A value for a key of nanoset.yaml that was chosen for a reason, which is written above it."""

    value: Any
    """The value of the key."""
    reason: str
    """The reason, one or more sentences."""


@dataclass(frozen=True, slots=True)
class CommentedOut:
    """A value that is only suggested: its key is written to nanoset.yaml as a comment."""

    value: Any
    """The value of the key; a mapping for a whole section."""


def config_text(values: Mapping[str, Any]) -> str:
    """Return the text of a first nanoset.yaml, in which a comment explains each key.

    For example, {"raw": "raw", "history": CommentedOut("h")} becomes

        # yaml-language-server: $schema=nanoset.schema.json
        # Folder of raw text.
        raw: raw
        # Folder for the history of builds.
        # history: h

    The first line lets editors check the file.

    Args:
        values: The keys, in the order in which they are written. A value is plain, or a mapping of
            the keys in a section. `ExplainedValue` adds a reason to it, and `CommentedOut` makes it
            a suggestion.
    """
    lines = [f"# yaml-language-server: $schema={SCHEMA_FILE}"]
    lines += _section_lines(WrittenConfig, values)
    return "".join(f"{line}\n" for line in lines)


def schema_text() -> str:
    """Return the JSON schema of nanoset.yaml."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": CONFIG_FILE}
    return json.dumps(head | json_schema(WrittenConfig), indent=1, ensure_ascii=False) + "\n"


def _section_lines(
    section: type[DataclassInstance], values: Mapping[str, Any], indent: str = ""
) -> Iterator[str]:
    """Yield the lines of a section of a first nanoset.yaml, with comments that explain each key.

    For example:

        # Token that ends documents.           the help of the key
        # The config names it.                 why this value was chosen (of an ExplainedValue);
                                               line ends in it are escaped by `visible`
        eod: </s>
        # Token that fills up samples.
        # pad: <p>                             a suggestion, which the user may uncomment (of a
                                               CommentedOut)

    Args:
        section: The dataclass that declares the keys, each with its help.
        values: The keys and their values: plain, or one of these two.
        indent: Spaces in front of each line.
    """
    for key, entry in values.items():
        declaration = setting(section, key)
        yield f"{indent}# {declaration.help}"
        if isinstance(entry, ExplainedValue):
            yield f"{indent}# {visible(entry.reason)}"
        for line in _entry_lines(declaration.hint, key, entry):
            yield f"{indent}{line}"


def _entry_lines(hint: Any, key: str, entry: Any) -> Iterator[str]:
    """Yield the lines of one key of a nanoset.yaml, as a comment if it is only a suggestion.

    For example, "pad: <p>", or "# pad: <p>" for CommentedOut("<p>").

    Args:
        hint: The declared type of the key.
        key: The key.
        entry: Its value: plain, an `ExplainedValue` or a `CommentedOut`. It may be a section with
            several lines.
    """
    if isinstance(entry, CommentedOut):
        for line in _key_lines(hint, key, entry.value):
            yield f"# {line}"
    elif isinstance(entry, ExplainedValue):
        yield from _key_lines(hint, key, entry.value)
    else:
        yield from _key_lines(hint, key, entry)


def _key_lines(hint: Any, key: str, value: Any) -> Iterator[str]:
    """Yield the lines of one key of a nanoset.yaml, which is a file of settings.

    The declared type of a key decides how it is written. The keys of a section are the fields of a
    dataclass:

        str                     a dataclass          a mapping of names to a dataclass
        raw: raw                tokenizer:           nanosets:
                                  path: gemma          pretrain:
                                                         seed: 1

    Args:
        hint: The declared type.
        key: The key.
        value: Its value: plain, or a dict with the inner keys.
    """
    inner_section = next(inner_sections(hint), None)  # the dataclass within the type, if any
    if inner_section is None:
        yield f"{key}: {_in_yaml(value)}"
        return

    yield f"{key}:"
    is_mapping = inner_section.suffix != ""  # from names to the dataclass
    if not is_mapping:
        yield from _section_lines(inner_section.section, value, indent="  ")
        return
    for name, settings in value.items():
        yield f"  {_in_yaml(name)}:"
        yield from _section_lines(inner_section.section, settings, indent="    ")


def _in_yaml(value: object) -> str:
    """Return a value as it is written into a YAML file, on one line. For example:

        the text raw         raw
        the text 1           '1'             (in quotes, since 1 would be a number)
        the list [1, 2]      [1, 2]
        a mapping            {web: 0.8, books: 0.2}

    Args:
        value: Text, a number, a boolean, a list or a mapping.
    """
    import yaml

    # PyYAML writes a text alone with a second line, "...". So write a list of one value instead,
    # "[raw]\n", and take the value out of it. The great width prevents line breaks.
    list_text = yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=1 << 20)
    return list_text.removeprefix("[").removesuffix("]\n")
