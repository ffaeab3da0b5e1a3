"""Rules of settings that types and ranges cannot express, declared beside the keys they are about.

A rule of one value is part of its type, and a rule of several keys is a method of their section:

    CorpusName = Annotated[str, Check(check_corpus_name)]

    @dataclass(frozen=True)
    class ViewSpec(Section):
        of: CorpusName
        tokens: float | None = None
        documents: float | None = None

        def broken_rules(self, where: str) -> Iterator[ConfigError]:
            if self.tokens is not None and self.documents is not None:
                yield ConfigError("a budget is of tokens or of documents", where=where, …)

`rule_errors` evaluates all rules of a file's settings, after the file was read (`parsing.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from nanoset_core.errors import ConfigError
from nanoset_core.records.settings import alternatives, bare, key_of, own_fields


@dataclass(frozen=True, slots=True)
class Check:
    """A rule of a text, for the annotation of a field or of the names of a mapping."""

    check: Callable[[str, str], object]
    """Is called with the text and its place. Raises ConfigError if the text breaks the rule."""


class Section:
    """Base of the dataclasses of settings that have rules about several keys."""

    __slots__ = ()

    def broken_rules(self, where: str) -> Iterator[ConfigError]:
        """Yield an error for each rule that the keys of this section break.

        Args:
            where: Place of the section, such as "nanoset.yaml: views.en".
        """
        yield from ()


def rule_errors(hint: Any, value: object, file: object, path: str = "") -> Iterator[ConfigError]:
    """Yield an error for each rule that settings break, and for those in the settings within them.

    Args:
        hint: The declared type of the settings.
        value: The settings.
        file: The file that they are from, for messages.
        path: Path of their key in the file, such as "views.en"; empty for the whole file.
    """
    # A setting may have several types. Its value has one of them, and only the rules of that type
    # apply.
    for kind in alternatives(hint):
        plain_kind = bare(kind)  # without its rules
        if plain_kind is str and isinstance(value, str):
            yield from _errors_of_text(kind, value, f"{file}: {path}")
        elif get_origin(plain_kind) is tuple and isinstance(value, tuple):
            item_hint = get_args(plain_kind)[0]
            for index, item in enumerate(value):
                yield from rule_errors(item_hint, item, file, f"{path}[{index}]")
        elif get_origin(plain_kind) is Mapping and isinstance(value, Mapping):
            name_hint, item_hint = get_args(plain_kind)
            for name, item in value.items():
                yield from _errors_of_text(name_hint, name, f"{file}: {path}.{name}")
                yield from rule_errors(item_hint, item, file, f"{path}.{name}")
        elif dataclasses.is_dataclass(plain_kind) and type(value) is plain_kind:
            yield from _errors_in_section(value, file, path)


def _errors_of_text(hint: Any, text: str, where: str) -> Iterator[ConfigError]:
    """Yield an error for each `Check` of a type that a text of this type does not pass."""
    if get_origin(hint) is not Annotated:
        return
    for rule in get_args(hint)[1:]:
        if isinstance(rule, Check):
            try:
                rule.check(text, where)
            except ConfigError as error:
                yield error


def _errors_in_section(section: Any, file: object, path: str) -> Iterator[ConfigError]:
    """Yield the errors of each key of a dataclass, and then those of several keys together.

    Args:
        section: The dataclass.
        file: The file that it is from.
        path: Path of its key in the file.
    """
    kind: Any = type(section)
    for field, hint in own_fields(kind):
        inner_path = f"{path}.{key_of(field)}".removeprefix(".")
        yield from rule_errors(hint, getattr(section, field.name), file, inner_path)
    if isinstance(section, Section):
        yield from section.broken_rules(f"{file}: {path}" if path else str(file))
