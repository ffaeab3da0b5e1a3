"""One parser reads settings, which users write as YAML, and records, which are stored as JSON."""

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
    """A record without records in it."""

    weight: Annotated[float, Range(0, 10)]
    kind: Literal["text", "code"] = "text"


@dataclass(frozen=True)
class Tree:
    """A record that contains records of its own class."""

    name: str
    parts: tuple[Tree, ...] = ()


def mistakes(hint: Any, value: object, notation: Notation) -> list[tuple[str, str]]:
    """Return the path and the description of every mistake in a value."""
    with pytest.raises(MismatchError) as caught:
        codec_of(hint, notation).decode(value)
    return [(mismatch.path, mismatch.what) for mismatch in caught.value.mismatches]


in_both_notations = pytest.mark.parametrize("notation", Notation)


@in_both_notations
def test_all_mistakes_are_found(notation):
    value = {"a": {"weight": 11}, "b": {"weight": 1, "kind": "texxt"}, "c": {"wieght": 1}, "d": {}}

    assert mistakes(Mapping[str, Member], value, notation) == [
        ("a.weight", "this value is out of range"),
        ("b.kind", "this value is not known"),
        ("c.wieght", "this key is not known"),  # and not that `weight` is missing, too
        ("d.weight", "a key is missing"),
    ]


@in_both_notations
def test_a_list_of_nothing_but_mistakes_is_not_read_to_its_end(notation):
    values = ["x"] * 100_000

    assert len(mistakes(tuple[int, ...], values, notation)) < 2000


def test_numbers_of_settings_are_converted():
    codec = codec_of(float, Notation.YAML)

    assert codec.decode("10e9") == 1e10
    assert type(codec.decode(1)) is float


def test_numbers_of_records_are_not_converted():
    codec = codec_of(float, Notation.JSON)

    assert type(codec.decode(1)) is int
    assert mistakes(float, "10e9", Notation.JSON) == [("", "this value has the wrong type")]


def test_mappings_of_settings_are_frozen_with_all_values_in_them():
    codec = codec_of(Mapping[str, Any], Notation.YAML)

    setting = codec.decode({"a": {"b": [1]}})

    assert type(setting) is FrozenDict
    assert type(setting["a"]) is FrozenDict
    assert setting["a"]["b"] == (1,)


def test_mappings_of_records_are_not_frozen():
    value = {"a": {"b": [1]}}

    assert codec_of(Mapping[str, Any], Notation.JSON).decode(value) is value


def test_text_of_settings_must_be_writable_to_a_file():
    [(_, description)] = mistakes(str, "a\0", Notation.YAML)

    assert "no file can hold" in description


def test_text_of_records_may_have_any_character():
    assert codec_of(str, Notation.JSON).decode("a\0") == "a\0"


@in_both_notations
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
def test_the_form_of_a_value_decides_which_type_of_a_union_it_has(notation, hint, value, result):
    assert codec_of(hint, notation).decode(value) == result


@in_both_notations
def test_a_class_may_contain_itself(notation):
    value = {"name": "a", "parts": [{"name": "b"}, {"name": "c", "parts": []}]}

    tree = codec_of(Tree, notation).decode(value)

    assert tree == Tree("a", (Tree("b"), Tree("c")))


@in_both_notations
def test_a_mistake_in_a_class_within_itself_is_named_by_its_path(notation):
    value = {"name": "a", "parts": [{"name": 3}]}

    assert mistakes(Tree, value, notation) == [("parts[0].name", "this value has the wrong type")]
