"""The rules of all settings are evaluated together, and each error names the key that breaks one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from nanoset_core.errors import ConfigError
from nanoset_core.records.frozen import FrozenDict
from nanoset_core.records.rules import Check, Section, rule_errors


def check_lower_case(text: str, where: str) -> None:
    """Raise an error if a text has an upper-case letter."""
    if text != text.lower():
        raise ConfigError("not lower case", where=where)


LowerCase = Annotated[str, Check(check_lower_case)]


@dataclass(frozen=True)
class Limits(Section):
    """A section with a rule about two of its keys."""

    low: int
    high: int

    def broken_rules(self, where: str) -> Iterator[ConfigError]:
        if self.low > self.high:
            yield ConfigError("the limits cross", where=where)


@dataclass(frozen=True)
class Settings:
    """Settings with rules at different places."""

    name: LowerCase = "a"
    optional: LowerCase | tuple[LowerCase, ...] | None = None
    limits: Limits | None = None
    by_name: Mapping[LowerCase, Limits] = field(default_factory=FrozenDict)


def errors_of(settings: Settings, path: str = "") -> list[tuple[str | None, str]]:
    """Return the place and the description of each error, for settings below a path of keys."""
    return [(error.where, error.what) for error in rule_errors(Settings, settings, "f.yaml", path)]


def test_settings_that_follow_all_rules_have_no_errors():
    settings = Settings(limits=Limits(1, 2), by_name={"a": Limits(1, 1)})

    assert errors_of(settings) == []


def test_a_text_is_checked_wherever_its_type_is_declared():
    settings = Settings(name="A", optional=("b", "C"), by_name={"D": Limits(1, 2)})

    places = [where for where, _ in errors_of(settings)]

    assert places == ["f.yaml: name", "f.yaml: optional[1]", "f.yaml: by_name.D"]


def test_a_section_within_another_one_is_named_by_its_path():
    settings = Settings(limits=Limits(2, 1), by_name={"x": Limits(2, 1)})

    assert errors_of(settings, "views") == [
        ("f.yaml: views.limits", "the limits cross"),
        ("f.yaml: views.by_name.x", "the limits cross"),
    ]
