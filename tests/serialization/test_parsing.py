import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal

import pytest

from nanoset_core.errors import ConfigError
from nanoset_core.serialization.parsing import FrozenDict, parse


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
    hidden: int = field(default=0, init=False)


def read(**values):
    return parse(Outer, {"name": "n", **values}, "", "file.yaml")


def test_values_come_in_their_types():
    value = read(
        inner={"count": 3, "share": 1},
        kind="b",
        names=["x", "y"],
        table={"t": {"count": 1}},
        blend={"web": 2},
        anything={"a": [1, {"b": None}]},
    )
    assert value == Outer(
        "n", Inner(3, 1.0), "b", False, ("x", "y"), {"t": Inner(1)}, {"web": 2.0}, {"a": (1, {"b": None})}
    )
    assert type(value.inner.share) is float
    assert type(value.blend["web"]) is float


def test_nothing_in_the_result_can_be_changed():
    value = read(table={"t": {"count": 1}}, blend={"web": 2}, anything={"a": {"b": [1]}})
    for mapping in (value.table, value.blend, value.anything, value.anything["a"]):
        with pytest.raises(TypeError, match="cannot be changed"):
            mapping["new"] = 1
    assert value.anything["a"]["b"] == (1,)
    assert hash(value) == hash(dataclasses.replace(value))


def test_union_takes_the_kind_that_fits():
    assert read(blend="web").blend == "web"
    assert read(blend=["web", "code"]).blend == ("web", "code")
    assert read(inner=None).inner is None


@pytest.mark.parametrize(
    ("values", "where", "found", "expected", "remedy"),
    [
        ({"nmae": 1}, "nmae", None, "one of name, inner", "write 'name' instead"),
        ({"quite_other": 1}, "quite_other", None, "one of name, inner", "remove it"),
        ({"hidden": 1}, "hidden", None, "one of name, inner", "remove it"),
        ({3: 1}, "3", None, "one of name, inner", "remove it"),
        ({"inner": {"count": 1, "cuont": 2}}, "inner.cuont", None, "one of count, share", "write 'count' instead"),
        ({"inner": {}}, "inner.count", None, "a whole number", "add it"),
        ({"inner": 3}, "inner", "3 (int)", "a mapping of keys to values", "write a mapping of keys"),
        ({"inner": {"count": 1.0}}, "inner.count", "1.0 (float)", "a whole number", "without a fraction: 1"),
        ({"inner": {"count": True}}, "inner.count", "True (bool)", "a whole number", "write a whole number"),
        ({"inner": {"count": "12"}}, "inner.count", "'12' (str)", "a whole number", "without quotes"),
        ({"inner": {"count": "1e6"}}, "inner.count", "'1e6' (str)", "a whole number", "YAML takes 1e-3 for text"),
        ({"inner": {"count": None}}, "inner.count", "no value", "a whole number", 'write "count: …"'),
        ({"inner": {"count": 1, "share": True}}, "inner.share", "True (bool)", "a number", "write a number"),
        ({"inner": {"count": 1, "share": float("nan")}}, "inner.share", "nan (float)", "a number", "write a number"),
        ({"inner": {"count": 1, "share": float("inf")}}, "inner.share", "inf (float)", "a number", "write a number"),
        ({"inner": {"count": 1, "share": 10**400}}, "inner.share", "(int)", "a number", "write a number"),
        ({"name": 20}, "name", "20 (int)", "text", 'put it in quotes: "20"'),
        ({"name": date(2024, 1, 2)}, "name", "(date)", "text", 'put it in quotes: "2024-01-02"'),
        ({"name": ["x"]}, "name", "['x'] (list)", "text", "write text"),
        ({"kind": "c"}, "kind", "'c' (str)", "one of 'a', 'b'", "choose one of these"),
        ({"kind": ["a"]}, "kind", "['a'] (list)", "one of 'a', 'b'", "choose one of these"),
        ({"flag": "yes"}, "flag", "'yes' (str)", "true or false", "write true or false"),
        ({"flag": 1}, "flag", "1 (int)", "true or false", "write true or false"),
        ({"names": "x"}, "names", "'x' (str)", "a list of which each is text", "in brackets: [x]"),
        ({"names": ["x", 3]}, "names[1]", "3 (int)", "text", 'put it in quotes: "3"'),
        ({"table": []}, "table", "[] (list)", "a mapping of which each value is", "write a mapping"),
        ({"table": {"t": {"count": "x"}}}, "table.t.count", "'x' (str)", "a whole number", "write a whole number"),
        ({"table": {1: {"count": 1}}}, "table.1", "1 (int)", "text", 'put it in quotes: "1"'),
        ({"blend": 3}, "blend", "3 (int)", "text or a list of which each is text or a mapping", 'quotes: "3"'),
        ({"blend": {"web": "much"}}, "blend.web", "'much' (str)", "a number", "write a number"),
        ({"blend": ["web", None]}, "blend[1]", "no value", "text", "give it a value"),
        ({"blend": {False: 1.0}}, "blend.False", "False (bool)", "text", "put it in quotes"),
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


def test_missing_key():
    with pytest.raises(ConfigError, match="a key is missing") as caught:
        parse(Outer, {}, "", "file.yaml")
    assert (caught.value.where, caught.value.expected, caught.value.remedy) == (
        "file.yaml: name",
        "text",
        'add it: "name: …"',
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

    assert parse(Weighed, {"weight": None, "anything": None}, "", "file.yaml") == Weighed(None, None)
    with pytest.raises(ConfigError, match="a key is missing"):
        parse(Weighed, {"anything": None}, "", "file.yaml")
    with pytest.raises(ConfigError, match="has no value"):
        parse(Outer, {"name": None}, "", "file.yaml")
