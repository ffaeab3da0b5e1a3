import copy
import dataclasses
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator

from nanoset_core.errors import ConfigError, one_line
from nanoset_core.records.frozen import FrozenDict, freeze
from nanoset_core.records.parsing import parse
from nanoset_core.records.settings import (
    MISSING,
    Range,
    field_help,
    json_schema,
    range_of,
    setting,
    settings,
)


@dataclass(frozen=True, slots=True)
class Part:
    share: Annotated[float, Range(0, 1)] | None = None
    """Share of it,
    from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Base:
    seed: Annotated[int, Range(0, 9)] = 1234
    """Of every shuffle."""


@dataclass(frozen=True, slots=True)
class Whole(Base):
    kind: Literal["a", "b"] = "a"
    workers: Annotated[int, Range(1)] = 1
    parts: tuple[Part, ...] = ()
    """In order."""
    named: Mapping[str, Part] = field(default_factory=FrozenDict)
    limits: Mapping[Literal["train", "valid"], Annotated[int, Range(1, 5)]] = field(
        default_factory=FrozenDict
    )
    limit: Annotated[float, Range(1, 3)] | Mapping[str, Annotated[float, Range(1, 3)]] | None = None
    own: Part = field(default_factory=Part)


@dataclass(frozen=True, slots=True)
class Inner:
    count: int
    share: float = 0.5


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    inner: Inner | None = None
    kind: Literal["a", "b"] = "a"
    flag: bool = False
    names: tuple[str, ...] = ()
    table: Mapping[str, Inner] = field(default_factory=FrozenDict)
    blend: str | tuple[str, ...] | Mapping[str, float] = ""
    anything: Any = None
    whole: Whole | None = None
    hidden: int = field(default=0, init=False)


def test_settings_say_what_their_fields_say():
    found = {each.key: each for each in settings(Whole)}
    assert list(found) == [
        "seed", "kind", "workers", "parts", "parts[].share", "named", "named.<name>.share", "limits", "limit", "own",
        "own.share",
    ]  # fmt: skip
    share = found["named.<name>.share"]
    assert (share.section, range_of(share.hint), share.default) == (Part, Range(0, 1), None)
    assert share.help == "Share of it, from 0 to 1."
    assert (found["kind"].hint, found["kind"].default, found["kind"].help) == (
        Literal["a", "b"],
        "a",
        "",
    )
    assert (found["own"].default, found["named"].default) == (Part(), {})


def test_one_setting_its_path_and_its_help():
    assert range_of(setting(Whole, "seed").hint) == Range(0, 9)
    assert [each.key for each in settings(Part, "a.b")] == ["a.b.share"]
    assert setting(Inner, "count").default is MISSING
    assert field_help(Whole, "seed") == "Of every shuffle.", "that of the base class"
    assert field_help(int, "real") == ""


def read(**values):
    return parse(Outer, {"name": "n", **values}, "", "file.yaml")


def test_values_come_in_their_types():
    given = {
        "inner": {"count": 3, "share": 1},
        "kind": "b",
        "names": ["x", "y"],
        "table": {"t": {"count": 1}},
    }
    value = read(**given, blend={"web": 2}, anything={"a": [1, {"b": None}]})
    blend, anything = {"web": 2.0}, {"a": (1, {"b": None})}
    assert value == Outer(
        "n", Inner(3, 1.0), "b", False, ("x", "y"), {"t": Inner(1)}, blend, anything
    )
    assert type(value.inner.share) is type(value.blend["web"]) is float
    assert (read(blend="web").blend, read(blend=["web", "code"]).blend) == ("web", ("web", "code"))
    assert read(inner=None).inner is None


def test_nothing_in_the_result_can_be_changed():
    value = read(table={"t": {"count": 1}}, blend={"web": 2}, anything={"a": {"b": [1]}})
    for mapping in (value.table, value.blend, value.anything, value.anything["a"]):
        with pytest.raises(TypeError, match="cannot be changed"):
            mapping["new"] = 1
    assert value.anything["a"]["b"] == (1,)
    assert hash(value) == hash(dataclasses.replace(value))


@pytest.mark.parametrize(
    ("values", "where", "found", "expected", "remedy"),
    [
        ({"whole": {"seed": 10}}, "whole.seed", "10", "0 to 9", "set it to 9 or less"),
        ({"whole": {"seed": -1}}, "whole.seed", "-1", "0 to 9", "set it to 0 or more"),
        ({"whole": {"workers": 0}}, "whole.workers", "0", "at least 1", "set it to 1 or more"),
        (
            {"whole": {"parts": [{}, {"share": 1.5}]}},
            "whole.parts[1].share",
            "1.5",
            "0 to 1",
            "set it to 1 or less",
        ),
        (
            {"whole": {"limit": {"web": 0.5}}},
            "whole.limit.web",
            "0.5",
            "1 to 3",
            "set it to 1 or more",
        ),
        (
            {"whole": {"limit": True}},
            "whole.limit",
            "True",
            "a number or a mapping of names",
            "write a number",
        ),
        (
            {"whole": {"limits": {"train": 6}}},
            "whole.limits.train",
            "6",
            "1 to 5",
            "set it to 5 or less",
        ),
        (
            {"whole": {"limits": {"trian": 5}}},
            "whole.limits.trian",
            None,
            "one of train, valid",
            "mean 'train'?",
        ),
        ({"nmae": 1}, "nmae", None, "one of name, inner", "did you mean 'name'?"),
        ({"hidden": 1}, "hidden", None, "one of name, inner", "remove it"),
        ({3: 1}, "3", None, "one of name, inner", "remove it"),
        (
            {"inner": {"count": 1, "cuont": 2}},
            "inner.cuont",
            None,
            "one of count, share",
            "did you mean 'count'?",
        ),
        ({"inner": {}}, "inner.count", None, "a whole number", "add it"),
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
def test_every_error_names_the_key_and_the_remedy(values, where, found, expected, remedy):
    with pytest.raises(ConfigError) as caught:
        parse(Outer, {"name": "n"} | values, "", "file.yaml")
    problem = caught.value
    assert problem.where == f"file.yaml: {where}"
    assert (found or "") in (problem.found or "")
    assert expected in problem.expected
    assert remedy in problem.remedy


def test_all_errors_come_at_once():
    with pytest.raises(ConfigError, match="4 mistakes") as caught:
        read(nmae=1, kind="c", inner={"share": 2, "count": "3"}, table={"a": {"count": 1}, "b": {}})
    for key in ("nmae", "kind", "inner.count", "table.b.count"):
        assert f"\n  file.yaml: {key}: " in str(caught.value)
    assert "\n" not in one_line(caught.value)


@pytest.mark.parametrize("templates", [False, True])
def test_the_schema_takes_what_the_parser_takes(templates):
    validator = Draft202012Validator(json_schema(Outer, templates=templates))
    good = {
        "name": "n",
        "inner": {"count": 1},
        "whole": {"limits": {"train": 1}, "parts": [{"share": None}]},
    }
    assert not list(validator.iter_errors(good))
    for wrong in (
        {"nmae": 1},
        {"kind": "c"},
        {"whole": {"seed": 10}},
        {"whole": {"limits": {"trian": 1}}},
        {"name": 3},
    ):
        assert list(validator.iter_errors(good | wrong)), wrong
    assert list(validator.iter_errors({}))
    assert (
        bool(list(validator.iter_errors(good | {"whole": {"seed": "{{ env.SEED }}"}})))
        is not templates
    )


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_top_must_be_a_mapping(value):
    with pytest.raises(ConfigError, match="wrong type") as caught:
        parse(Outer, value, "", "file.yaml")
    assert caught.value.where == "file.yaml"


def test_none_is_a_value_where_it_may_be_one():
    @dataclass(frozen=True)
    class Weighed:
        weight: float | None
        anything: Any

    assert parse(Weighed, {"weight": None, "anything": None}, "", "file.yaml") == Weighed(
        None, None
    )
    with pytest.raises(ConfigError, match="a key is missing") as caught:
        parse(Weighed, {"anything": None}, "", "file.yaml")
    found = caught.value.where, caught.value.expected, caught.value.remedy
    assert found == ("file.yaml: weight", "a number", 'add it: "weight: …"')
    with pytest.raises(ConfigError, match="has no value"):
        parse(Outer, {"name": None}, "", "file.yaml")


@pytest.mark.parametrize("change", [
    "__setitem__", "__delitem__", "__ior__", "update", "pop", "popitem", "clear", "setdefault"
])  # fmt: skip
def test_cannot_be_changed(change):
    value = FrozenDict({"a": 1})
    with pytest.raises(TypeError, match="cannot be changed"):
        getattr(value, change)("a", 2)
    assert value == {"a": 1}


def test_works_where_a_dict_does():
    value = freeze({"a": [1, {"b": 2}], "c": None})
    assert value == {"a": (1, {"b": 2}), "c": None}
    assert isinstance(value["a"][1], FrozenDict)
    assert json.dumps(value) == '{"a": [1, {"b": 2}], "c": null}'
    pickled = pickle.loads(pickle.dumps(value))
    for twin in (pickled, copy.copy(value), copy.deepcopy(value)):
        assert type(twin) is FrozenDict
        assert twin == value
    assert hash(value) == hash(freeze({"c": None, "a": [1, {"b": 2}]}))
    assert {**value, "c": 1} == {"a": (1, {"b": 2}), "c": 1}
