"""Settings are described by the fields of their classes, for documentation, errors and a schema."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from jsonschema import Draft202012Validator

from helpers.example_settings import ExamplePart, ExampleSettings, ExampleSource, RunSettings
from nanoset_core.records.settings import (
    MISSING,
    Range,
    field_help,
    json_schema,
    range_of,
    setting,
    settings,
)


def test_settings_are_listed_with_those_of_inherited_and_inner_sections():
    keys = [setting.key for setting in settings(RunSettings)]

    assert keys == [
        "seed",
        "kind",
        "workers",
        "parts",
        "parts[].share",
        "named",
        "named.<name>.share",
        "limits",
        "limit",
        "part",
        "part.share",
    ]


def test_the_keys_of_a_section_begin_with_its_path():
    keys = [setting.key for setting in settings(ExamplePart, "a.b")]

    assert keys == ["a.b.share"]


def described(key: str) -> Any:
    """Return what is said of a key of `RunSettings`."""
    [described_setting] = [setting for setting in settings(RunSettings) if setting.key == key]
    return described_setting


def test_a_setting_names_its_section_its_range_and_its_default():
    share = described("named.<name>.share")

    assert share.section == ExamplePart
    assert range_of(share.hint) == Range(0, 1)
    assert share.default is None


def test_the_help_of_a_setting_is_its_docstring_in_one_line():
    assert described("named.<name>.share").help == "Share of it, from 0 to 1."


def test_a_setting_without_a_range_has_its_type_and_no_help():
    kind = described("kind")

    assert kind.hint == Literal["a", "b"]
    assert kind.default == "a"
    assert kind.help == ""


def test_the_default_of_a_section_is_made_of_the_defaults_of_its_fields():
    assert described("part").default == ExamplePart()
    assert described("named").default == {}


def test_one_setting_is_described_by_its_name():
    assert range_of(setting(RunSettings, "seed").hint) == Range(0, 9)


def test_a_required_setting_has_no_default():
    assert setting(ExampleSource, "count").default is MISSING


def test_an_inherited_field_has_the_help_of_the_base_class():
    assert field_help(RunSettings, "seed") == "Of every shuffle."


def test_a_class_without_source_code_has_no_help():
    assert field_help(int, "real") == ""


VALID_SETTINGS = {
    "name": "n",
    "inner": {"count": 1},
    "run": {"limits": {"train": 1}, "parts": [{"share": None}]},
}


def schema_errors(value: object, *, templates: bool) -> list[Any]:
    """Return what is wrong with settings by their schema."""
    schema = json_schema(ExampleSettings, templates=templates)
    return list(Draft202012Validator(schema).iter_errors(value))


with_and_without_templates = pytest.mark.parametrize("templates", [False, True])


@with_and_without_templates
def test_the_schema_accepts_what_the_parser_accepts(templates):
    assert schema_errors(VALID_SETTINGS, templates=templates) == []


@with_and_without_templates
@pytest.mark.parametrize(
    "mistake",
    [
        {"nmae": 1},
        {"kind": "c"},
        {"run": {"seed": 10}},
        {"run": {"limits": {"trian": 1}}},
        {"name": 3},
    ],
)
def test_the_schema_refuses_what_the_parser_refuses(templates, mistake):
    assert schema_errors(VALID_SETTINGS | mistake, templates=templates)


@with_and_without_templates
def test_the_schema_refuses_settings_without_a_required_key(templates):
    assert schema_errors({}, templates=templates)


def test_the_schema_accepts_a_template_as_a_number_only_if_templates_are_allowed():
    values = VALID_SETTINGS | {"run": {"seed": "{{ env.SEED }}"}}

    assert schema_errors(values, templates=True) == []
    assert schema_errors(values, templates=False)
