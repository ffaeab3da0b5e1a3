"""Settings with a range or a choice of values accept these values and no others."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

import pytest

from nanoset_core.project.written import WrittenConfig
from nanoset_core.records.parsing import parse_or_errors
from nanoset_core.records.settings import Setting, alternatives, bare, range_of, settings


def hint_with_range(setting: Setting) -> Any:
    """Return the type of a setting's values that have a range, or None if any value is accepted.

    A setting may accept other values, too, such as `true` or a number from 0 to 1.
    """
    for hint in alternatives(setting.hint):
        if range_of(hint) is not None:
            return hint
    return None


def has_choices(setting: Setting) -> bool:
    """Return whether the values of a setting are enumerated."""
    return get_origin(alternatives(setting.hint)[0]) is Literal


SETTINGS = list(settings(WrittenConfig))
CHOICE_SETTINGS = [setting for setting in SETTINGS if has_choices(setting)]
RANGE_SETTINGS = [
    setting
    for setting in SETTINGS
    if hint_with_range(setting) is not None and not has_choices(setting)
]


def key_of(setting: Setting) -> str:
    """Return the key of a setting in nanoset.yaml, with its sections."""
    return setting.key


def errors_of(setting: Setting, value: object) -> list[Any]:
    """Return the errors about a setting if its section has only this value."""
    name = setting.key.rpartition(".")[2]
    _, errors = parse_or_errors(setting.section, {name: value}, "", "f")
    return [error for error in errors if error.where == f"f: {name}"]


def check_refused(setting: Setting, value: object) -> None:
    """Check that a value is refused, with advice."""
    (error,) = errors_of(setting, value)
    assert error.what in ("this value is out of range", "this value is not known")
    assert error.remedy


def test_many_settings_have_a_range_or_a_choice_of_values():
    keys_with_range = {setting.key for setting in RANGE_SETTINGS}
    keys_with_choices = {setting.key for setting in CHOICE_SETTINGS}

    assert len(keys_with_range) > 25
    assert len(keys_with_choices) > 10
    assert keys_with_range >= {
        "nanosets.<name>.max_epochs",
        "webdatasets.<name>.memory_mib",
        "tokenization.range_mib",
    }


@pytest.mark.parametrize("setting", CHOICE_SETTINGS, ids=key_of)
def test_a_setting_with_choices_accepts_them_and_nothing_else(setting):
    for choice in get_args(alternatives(setting.hint)[0]):
        assert not errors_of(setting, choice)
    check_refused(setting, "wrong")


@pytest.mark.parametrize("setting", RANGE_SETTINGS, ids=key_of)
def test_a_setting_with_a_range_accepts_its_ends_and_nothing_beyond(setting):
    hint = hint_with_range(setting)
    to_value = bare(hint)
    values = range_of(hint)

    low = to_value(values.low)
    assert not errors_of(setting, low)
    check_refused(setting, low - 1)

    if values.high is not None:
        high = to_value(values.high)
        assert not errors_of(setting, high)
        check_refused(setting, high + 1)
