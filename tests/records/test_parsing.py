"""Values from YAML become settings of the right types, or an error names each mistake."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from helpers.example_settings import ExampleSettings, ExampleSource
from nanoset_core.errors import ConfigError, one_line
from nanoset_core.records.parsing import parse


def read(**values: Any) -> ExampleSettings:
    """Parse settings with a name and other values."""
    return parse(ExampleSettings, {"name": "n", **values}, "", "file.yaml")


def test_missing_keys_have_their_defaults():
    assert read() == ExampleSettings("n")


def test_a_mapping_becomes_a_section_with_numbers_of_its_types():
    settings = read(inner={"count": 3, "share": 1})

    assert settings.inner == ExampleSource(3, 1.0)
    assert type(settings.inner.share) is float


def test_a_key_of_a_section_may_have_no_value():
    assert read(inner=None).inner is None


def test_a_text_may_be_one_of_several_choices():
    assert read(kind="b").kind == "b"


def test_a_list_becomes_a_tuple():
    assert read(names=["x", "y"]).names == ("x", "y")


def test_a_mapping_of_names_to_sections_has_sections_as_values():
    assert read(table={"t": {"count": 1}}).table == {"t": ExampleSource(1)}


@pytest.mark.parametrize(
    ("value", "expected"),
    [("web", "web"), (["web", "code"], ("web", "code")), ({"web": 2}, {"web": 2.0})],
)
def test_a_key_may_have_values_of_several_types(value, expected):
    assert read(blend=value).blend == expected


def test_whole_numbers_in_a_mapping_become_numbers_of_its_type():
    settings = read(blend={"web": 2})

    assert type(settings.blend["web"]) is float


def test_a_value_of_any_type_is_read_with_all_values_in_it():
    settings = read(anything={"a": [1, {"b": None}]})

    assert settings.anything == {"a": (1, {"b": None})}


def test_no_mapping_in_the_result_can_be_changed():
    settings = read(table={"t": {"count": 1}}, blend={"web": 2}, anything={"a": {"b": [1]}})

    for mapping in (settings.table, settings.blend, settings.anything, settings.anything["a"]):
        with pytest.raises(TypeError, match="cannot be changed"):
            mapping["new"] = 1


def test_a_list_within_any_value_becomes_a_tuple():
    settings = read(anything={"a": {"b": [1]}})

    assert settings.anything["a"]["b"] == (1,)


def test_equal_settings_have_equal_hashes():
    settings = read(table={"t": {"count": 1}}, blend={"web": 2}, anything={"a": {"b": [1]}})

    assert hash(settings) == hash(dataclasses.replace(settings))


@pytest.mark.parametrize(
    ("values", "where", "found", "expected", "remedy"),
    [
        ({"run": {"seed": 10}}, "run.seed", "10", "0 to 9", "set it to 9 or less"),
        ({"run": {"seed": -1}}, "run.seed", "-1", "0 to 9", "set it to 0 or more"),
        ({"run": {"workers": 0}}, "run.workers", "0", "at least 1", "set it to 1 or more"),
        (
            {"run": {"parts": [{}, {"share": 1.5}]}},
            "run.parts[1].share",
            "1.5",
            "0 to 1",
            "set it to 1 or less",
        ),
        (
            {"run": {"limit": {"web": 0.5}}},
            "run.limit.web",
            "0.5",
            "1 to 3",
            "set it to 1 or more",
        ),
        (
            {"run": {"limit": True}},
            "run.limit",
            "True",
            "a number or a mapping of names",
            "write a number",
        ),
        (
            {"run": {"limits": {"train": 6}}},
            "run.limits.train",
            "6",
            "1 to 5",
            "set it to 5 or less",
        ),
        (
            {"run": {"limits": {"trian": 5}}},
            "run.limits.trian",
            "",
            "one of train, valid",
            "mean 'train'?",
        ),
        ({"nmae": 1}, "nmae", "", "one of name, inner", "did you mean 'name'?"),
        ({"hidden": 1}, "hidden", "", "one of name, inner", "remove it"),
        ({3: 1}, "3", "", "one of name, inner", "remove it"),
        (
            {"inner": {"count": 1, "cuont": 2}},
            "inner.cuont",
            "",
            "one of count, share",
            "did you mean 'count'?",
        ),
        ({"inner": {}}, "inner.count", "", "a whole number", "add it"),
        (
            {"inner": 3},
            "inner",
            "3 (int)",
            "a mapping of keys to values",
            "write a mapping of keys",
        ),
        (
            {"inner": {"count": 1.0}},
            "inner.count",
            "1.0 (float)",
            "a whole number",
            "without a fraction: 1",
        ),
        (
            {"inner": {"count": "1e6"}},
            "inner.count",
            "'1e6' (str)",
            "a whole number",
            "YAML takes 1e-3 for text",
        ),
        (
            {"inner": {"count": None}},
            "inner.count",
            "no value",
            "a whole number",
            'write "count: …"',
        ),
        (
            {"inner": {"count": 1, "share": True}},
            "inner.share",
            "True (bool)",
            "a number",
            "write a number",
        ),
        (
            {"inner": {"count": 1, "share": float("nan")}},
            "inner.share",
            "nan (float)",
            "a number",
            "write a number",
        ),
        (
            {"inner": {"count": 1, "share": 10**400}},
            "inner.share",
            "(int)",
            "a number",
            "write a number",
        ),
        ({"name": 20}, "name", "20 (int)", "text", 'put it in quotes: "20"'),
        ({"name": date(2024, 1, 2)}, "name", "(date)", "text", 'put it in quotes: "2024-01-02"'),
        ({"kind": "c"}, "kind", "'c' (str)", "one of 'a', 'b'", "choose one of these"),
        ({"kind": ["a"]}, "kind", "['a'] (list)", "one of 'a', 'b'", "choose one of these"),
        ({"flag": "yes"}, "flag", "'yes' (str)", "true or false", "write true or false"),
        (
            {"names": "x"},
            "names",
            "'x' (str)",
            "a list of text",
            "in brackets: [x]",
        ),
        ({"names": ["x", 3]}, "names[1]", "3 (int)", "text", 'put it in quotes: "3"'),
        (
            {"table": []},
            "table",
            "[] (list)",
            "a mapping of names to",
            "write a mapping",
        ),
        ({"table": {1: {"count": 1}}}, "table.1", "1 (int)", "text", 'put it in quotes: "1"'),
        (
            {"blend": 3},
            "blend",
            "3 (int)",
            "text or a list of text or a mapping",
            'quotes: "3"',
        ),
        ({"blend": ["web", None]}, "blend[1]", "no value", "text", "give it a value"),
        ({"anything": {"a": date(2024, 1, 2)}}, "anything.a", "(date)", "text", "put it in quotes"),
        ({"anything": [float("nan")]}, "anything[0]", "nan (float)", "text", "put it in quotes"),
        ({"anything": {"a": {1: 2}}}, "anything.a.1", "1 (int)", "text", "put it in quotes"),
    ],
)
def test_an_error_names_the_key_the_value_and_the_remedy(values, where, found, expected, remedy):
    with pytest.raises(ConfigError) as caught:
        parse(ExampleSettings, {"name": "n"} | values, "", "file.yaml")

    error = caught.value
    assert error.where == f"file.yaml: {where}"
    assert found in (error.found or "")
    assert expected in error.expected
    assert remedy in error.remedy


def test_all_mistakes_are_reported_at_once():
    mistakes = {
        "nmae": 1,
        "kind": "c",
        "inner": {"share": 2, "count": "3"},
        "table": {"a": {"count": 1}, "b": {}},
    }

    with pytest.raises(ConfigError, match="4 mistakes") as caught:
        read(**mistakes)

    for key in ("nmae", "kind", "inner.count", "table.b.count"):
        assert f"\n  file.yaml: {key}: " in str(caught.value)


def test_several_mistakes_can_be_reported_in_one_line():
    with pytest.raises(ConfigError) as caught:
        read(nmae=1, kind="c")

    assert "\n" not in one_line(caught.value)


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_settings_must_be_a_mapping(value):
    with pytest.raises(ConfigError, match="wrong type") as caught:
        parse(ExampleSettings, value, "", "file.yaml")

    assert caught.value.where == "file.yaml"


@dataclass(frozen=True)
class Weighting:
    """Settings without defaults, one of which may have no value."""

    weight: float | None
    anything: Any


def test_no_value_is_accepted_if_the_type_of_the_key_allows_it():
    settings = parse(Weighting, {"weight": None, "anything": None}, "", "file.yaml")

    assert settings == Weighting(None, None)


def test_a_key_that_may_have_no_value_must_be_written_all_the_same():
    with pytest.raises(ConfigError, match="a key is missing") as caught:
        parse(Weighting, {"anything": None}, "", "file.yaml")

    assert caught.value.where == "file.yaml: weight"
    assert caught.value.expected == "a number"
    assert caught.value.remedy == 'add it: "weight: …"'


def test_no_value_is_refused_if_the_type_of_the_key_does_not_allow_it():
    with pytest.raises(ConfigError, match="has no value"):
        parse(ExampleSettings, {"name": None}, "", "file.yaml")
