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
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, get_args, get_origin

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
    """Yield an error for each rule that a setting, or a value within it, breaks.

    The rules are in the declared type of the setting. For example, a setting of the type
    `Annotated[str, Check(check_corpus_name)]` is a text that `check_corpus_name` must accept.

    Args:
        hint: The declared type.
        value: The setting, which has this type.
        file: The file that it is from, for messages.
        path: Path of its key in the file, such as "views.en"; empty for the whole file.

    Yields:
        Errors that name the file and the path of the key: "nanoset.yaml: views.en.of".
    """
    if value is None or isinstance(value, bool | int | float):
        return  # most settings: only texts, and what contains texts, have rules of this kind

    for member, plain_type, origin in _members(hint):
        if plain_type is str and isinstance(value, str):
            yield from _errors_of_text(member, value, f"{file}: {path}")
        elif origin is tuple and isinstance(value, tuple):
            yield from _errors_in_list(plain_type, value, file, path)
        elif origin is Mapping and isinstance(value, Mapping):
            yield from _errors_in_mapping(plain_type, value, file, path)
        elif dataclasses.is_dataclass(plain_type) and type(value) is plain_type:
            yield from _errors_in_section(value, file, path)


class _TypeMember(NamedTuple):
    """One of the types of a union such as `str | None`, or a type that is no union."""

    hint: Any
    """The type with its annotations."""
    plain_type: Any
    """The type without annotations, such as `str`."""
    origin: Any
    """Such as `tuple`, for `tuple[str, ...]`; None if it has no parameters."""


@lru_cache(maxsize=1024)
def _members(hint: Any) -> tuple[_TypeMember, ...]:
    """Return the types of a union; of another type, only itself.

    Every command reads the settings, whose types are always the same. So this is computed once.

    Args:
        hint: The declared type of a setting.
    """
    members = []
    for member in alternatives(hint):
        plain_type = bare(member)
        members.append(_TypeMember(member, plain_type, get_origin(plain_type)))
    return tuple(members)


def _errors_in_list(
    hint: Any, items: tuple[Any, ...], file: object, path: str
) -> Iterator[ConfigError]:
    """Yield an error for each item of a setting that breaks a rule of the items' type.

    For example, the type may say that each item must be the name of a corpus, which has no slashes:

        corpora: [web, a/b]        an error about corpora[1]

    Args:
        hint: The declared type of the list, such as `tuple[CorpusName, ...]`, whose items have
            rules.
        items: The list as it was read, a tuple.
        file: The file, for messages.
        path: Path of its key in the file, such as `corpora`.
    """
    item_hint = get_args(hint)[0]
    for index, item in enumerate(items):
        yield from rule_errors(item_hint, item, file, f"{path}[{index}]")


def _errors_in_mapping(
    hint: Any, mapping: Mapping[str, Any], file: object, path: str
) -> Iterator[ConfigError]:
    """Yield an error for each name or value in a mapping that breaks a rule of its type.

    For example, names of the type `CorpusName` have no slashes, so for `blend: {web: 2, a/b: 1}`
    this yields an error about blend.a/b.

    Args:
        hint: The declared type of the mapping, such as `Mapping[CorpusName, float]`.
        mapping: The mapping as it was read from a file of settings.
        file: The file, for messages.
        path: Path of its key in the file, such as `blend`.
    """
    name_hint, value_hint = get_args(hint)  # CorpusName, float
    for name, value in mapping.items():
        path_of_name = f"{path}.{name}"  # blend.a/b
        yield from _errors_of_text(name_hint, name, f"{file}: {path_of_name}")
        yield from rule_errors(value_hint, value, file, path_of_name)


def _errors_of_text(hint: Any, text: str, where: str) -> Iterator[ConfigError]:
    """Yield an error for each rule that a text in a file of settings breaks.

    The rules are in the declared type of the text, as functions that raise an error:

        str                                          no rules
        Annotated[str, Check(check_corpus_name)]     one: `check_corpus_name` must accept it

    Args:
        hint: The type.
        text: The text that the user wrote.
        where: Its place for messages, such as "nanoset.yaml: corpora[1]".
    """
    if get_origin(hint) is not Annotated:
        return  # a plain `str` has no rules

    _, *annotations = get_args(hint)  # the type itself, and what is annotated
    for annotation in annotations:
        if isinstance(annotation, Check):
            try:
                annotation.check(text, where)
            except ConfigError as error:
                yield error


def _errors_in_section(section: Any, file: object, path: str) -> Iterator[ConfigError]:
    """Yield an error for each rule that the keys of a section of settings break.

    Args:
        section: The section, an object of a dataclass with a field for each key.
        file: The file, for messages.
        path: Where the section is in the file, such as "views.en"; empty for the whole file.
    """
    # Rules about one key are in the type of its field.
    kind: Any = type(section)
    for field, hint in own_fields(kind):
        path_of_key = f"{path}.{key_of(field)}".removeprefix(".")  # such as "views.en.of"
        yield from rule_errors(hint, getattr(section, field.name), file, path_of_key)

    # Rules about several keys together are a method of the dataclass.
    if isinstance(section, Section):
        yield from section.broken_rules(f"{file}: {path}" if path else str(file))
