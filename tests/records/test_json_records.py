"""`load` and `dump`: records as JSON, and the error for anything else."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import pytest

from nanoset_core.errors import FormatError
from nanoset_core.records.codecs import codec_of
from nanoset_core.records.json_records import (
    JsonForm,
    Record,
    canonical_json,
    dump,
    from_plain,
    load,
    to_plain,
)
from nanoset_core.records.stored_fields import stored


class Point(NamedTuple):
    """A record that is stored as a list."""

    x: int
    label: str


@dataclass(frozen=True, slots=True)
class Part:
    """A record whose fields have other names and conditions where they are stored."""

    size: int = field(metadata=stored("bytes"))
    within: str | None = field(default=None, metadata=stored(omit_default=True))
    begin: int = field(default=0, metadata=stored(only_with="within"))


@dataclass(frozen=True, slots=True)
class Note(Record):
    """A record with a field of every kind, and a check of its own."""

    json_form: ClassVar[JsonForm] = JsonForm(
        "this is not a note", remedy="write it again", indent=1, ends_with_newline=True
    )

    name: str
    kind: Literal["a", "b"]
    parts: Mapping[str, Part]
    weights: tuple[float, ...] = ()
    rows: tuple[int, int] = (0, 1)
    points: tuple[Point, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    best: Part | None = None
    is_done: bool | None = None

    def check(self, value: dict[str, Any]) -> None:
        if self.name == "forbidden":
            raise ValueError("a forbidden name")


@dataclass(frozen=True, slots=True)
class LenientNote(Record):
    """A record that ignores keys that it does not know."""

    json_form: ClassVar[JsonForm] = JsonForm("this is not a note")
    ignores_unknown_keys: ClassVar[bool] = True

    name: str


NOTE = Note(
    name="é",
    kind="b",
    parts={"z": Part(1), "a": Part(2, "other", 0)},
    weights=(1, 0.5),
    rows=(3, 4),
    points=(Point(1, "x"),),
    facts={"b": [1, {"c": None}], "a": 1e9},
    best=Part(7),
)


def test_a_record_is_read_as_it_was_written():
    assert load(Note, dump(NOTE), "note.json") == NOTE


def test_a_record_has_the_order_of_its_fields_and_the_form_of_its_class():
    note = Note("é", "a", {"z": Part(1), "a": Part(2, "other")})
    assert dump(note) == (
        b'{\n "name": "\\u00e9",\n "kind": "a",\n "parts": {\n  "z": {\n   "bytes": 1\n  },\n'
        b'  "a": {\n   "bytes": 2,\n   "within": "other",\n   "begin": 0\n  }\n },\n'
        b' "weights": [],\n "rows": [\n  0,\n  1\n ],\n "points": [],\n "facts": {},\n'
        b' "best": null,\n "is_done": null\n}\n'
    )


def test_keys_with_defaults_may_be_missing():
    data = b'{"name": "n", "kind": "a", "parts": {}}'
    assert load(Note, data, "note.json") == Note("n", "a", {})


def test_integers_are_read_as_integers():
    note = load(Note, dump(NOTE), "note.json")

    assert [type(weight) for weight in note.weights] == [int, float]


def test_plain_values_become_the_record_again():
    assert from_plain(Note, to_plain(NOTE)) == NOTE
    assert from_plain(Part, {"bytes": 3}) == Part(3)


def with_value(path: str, value: object) -> dict[str, Any]:
    """Return the plain values of `NOTE` with another value at a path such as `parts.z`."""
    plain = to_plain(NOTE)
    *parents, last = path.split(".")
    inner = plain
    for key in parents:
        inner = inner[key]
    inner[last] = value
    return plain


@pytest.mark.parametrize(
    ("path", "value", "found", "expected"),
    [
        ("name", 3, "3 (int) as name", "text"),
        ("kind", "c", "'c' (str) as kind", "one of 'a', 'b'"),
        (
            "parts",
            [],
            "[] (list) as parts",
            "a mapping of names to a mapping of keys to values",
        ),
        ("parts.z.bytes", True, "True (bool) as parts.z.bytes", "a whole number"),
        ("parts.z", {}, "a key is missing: parts.z.bytes", "a whole number"),
        ("parts.z.more", 1, "this key is not known: parts.z.more", "one of bytes, within, begin"),
        ("weights", [1, "x"], "'x' (str) as weights[1]", "a number"),
        ("rows", [1], "[1] (list) as rows", "a list of 2 values"),
        ("points", [[1, 2]], "2 (int) as points[0][1]", "text"),
        ("best", {"bytes": "x"}, "'x' (str) as best.bytes", "a whole number"),
        ("best", 1, "1 (int) as best", "a mapping of keys to values"),
        ("is_done", 1, "1 (int) as is_done", "true or false"),
    ],
)
def test_a_wrong_value_is_named(path, value, found, expected):
    data = canonical_json(with_value(path, value))

    with pytest.raises(FormatError) as caught:
        load(Note, data, "note.json")

    assert caught.value.what == "this is not a note"
    assert caught.value.where == "note.json"
    assert caught.value.found == found
    assert caught.value.expected == expected
    assert caught.value.remedy == "write it again"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_file_is_no_record(data):
    with pytest.raises(FormatError, match="this is not a note"):
        load(Note, data, "note.json")


def test_a_misspelt_key_is_missing_where_unknown_keys_are_ignored():
    with pytest.raises(FormatError) as caught:
        load(LenientNote, b'{"nam": "a"}', "note.json")

    assert caught.value.found == "a key is missing: name"


@pytest.mark.parametrize("constant", [b"NaN", b"Infinity", b"-Infinity"])
def test_numbers_that_json_lacks_are_refused(constant):
    data = dump(NOTE).replace(b"0.5", constant)

    with pytest.raises(FormatError, match="is not a number of JSON"):
        load(Note, data, "note.json")


def test_what_the_check_of_a_record_finds_is_an_error():
    data = dump(replace(NOTE, name="forbidden"))

    with pytest.raises(FormatError, match="a forbidden name"):
        load(Note, data, "note.json")


def test_some_records_ignore_keys_of_newer_versions():
    data = b'{"name": "n", "since": 3}'
    assert load(LenientNote, data, "note.json") == LenientNote("n")


def test_a_type_that_json_lacks_is_refused_when_the_class_is_used():
    with pytest.raises(TypeError, match="set"):
        codec_of(set[str])


def test_canonical_json_has_one_spelling():
    value = {"b": [1, 2.5, None, True], "a": {"é": "\u2028\ud83d\ude00"}}
    reversed_keys = dict(reversed(value.items()))

    assert canonical_json(value) == (
        b'{"a":{"\\u00e9":"\\u2028\\ud83d\\ude00"},"b":[1,2.5,null,true]}'
    )
    assert canonical_json(reversed_keys) == canonical_json(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": {1, 2}}, b"bytes"])
def test_canonical_json_refuses_what_has_no_spelling(value):
    with pytest.raises((ValueError, TypeError)):
        canonical_json(value)
