"""One parser reads settings that people write as YAML, and records that are stored as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from nanoset_core.records.codecs import Notation, codec_of
from nanoset_core.records.frozen import FrozenDict
from nanoset_core.records.mismatches import MismatchError
from nanoset_core.records.settings import Range


@dataclass(frozen=True)
class Member:
    weight: Annotated[float, Range(0, 10)]
    kind: Literal["text", "code"] = "text"


@dataclass(frozen=True)
class Tree:
    name: str
    parts: tuple[Tree, ...] = ()


def mistakes(hint: Any, value: object, notation: Notation) -> list[tuple[str, str]]:
    """Return the path and the description of every mistake in a value."""
    with pytest.raises(MismatchError) as caught:
        codec_of(hint, notation).decode(value)
    return [(mismatch.path, mismatch.what) for mismatch in caught.value.mismatches]


@pytest.mark.parametrize("notation", Notation)
def test_all_mistakes_are_found_in_both_notations(notation):
    value = {"a": {"weight": 11}, "b": {"weight": 1, "kind": "texxt"}, "c": {"wieght": 1}, "d": {}}
    assert mistakes(Mapping[str, Member], value, notation) == [
        ("a.weight", "this value is out of range"),
        ("b.kind", "this value is not known"),
        ("c.wieght", "this key is not known"),  # and not that `weight` is missing, too
        ("d.weight", "a key is missing"),
    ]


@pytest.mark.parametrize("notation", Notation)
def test_a_list_of_nothing_but_mistakes_is_not_read_to_its_end(notation):
    assert len(mistakes(tuple[int, ...], ["x"] * 100_000, notation)) < 2000


def test_only_numbers_of_settings_are_converted():
    assert codec_of(float, Notation.YAML).decode("10e9") == 1e10
    assert type(codec_of(float, Notation.YAML).decode(1)) is float
    assert type(codec_of(float, Notation.JSON).decode(1)) is int
    assert mistakes(float, "10e9", Notation.JSON) == [("", "this value has the wrong type")]


def test_only_mappings_of_settings_are_frozen():
    value = {"a": {"b": [1]}}
    assert codec_of(Mapping[str, Any], Notation.JSON).decode(value) is value
    setting = codec_of(Mapping[str, Any], Notation.YAML).decode(value)
    assert type(setting) is type(setting["a"]) is FrozenDict
    assert setting["a"]["b"] == (1,)


def test_only_text_of_settings_must_be_writable():
    assert codec_of(str, Notation.JSON).decode("a\0") == "a\0"
    (mistake,) = mistakes(str, "a\0", Notation.YAML)
    assert "no file can hold" in mistake[1]


@pytest.mark.parametrize(
    ("hint", "value", "result"),
    [
        (str | tuple[str, ...], "web", "web"),
        (str | tuple[str, ...], ["web"], ("web",)),
        (Member | Literal["none"], {"weight": 1}, Member(1.0)),
        (Member | Literal["none"], "none", "none"),
        (int | None, None, None),
    ],
)
@pytest.mark.parametrize("notation", Notation)
def test_the_form_of_a_value_decides_which_type_of_a_union_it_has(notation, hint, value, result):
    assert codec_of(hint, notation).decode(value) == result


@pytest.mark.parametrize("notation", Notation)
def test_a_class_may_contain_itself(notation):
    value = {"name": "a", "parts": [{"name": "b"}, {"name": "c", "parts": []}]}
    assert codec_of(Tree, notation).decode(value) == Tree("a", (Tree("b"), Tree("c")))
    assert mistakes(Tree, {"name": "a", "parts": [{"name": 3}]}, notation) == [
        ("parts[0].name", "this value has the wrong type")
    ]
