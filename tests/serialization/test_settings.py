from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest

from nanoset_core.errors import ConfigError
from nanoset_core.serialization.parsing import FrozenDict, check_range, parse
from nanoset_core.serialization.settings import MISSING, Between, field_help, setting, settings


@dataclass(frozen=True, slots=True)
class Part:
    share: Annotated[float, Between(0, 1)] | None = None
    """Share of it,
    from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Base:
    seed: Annotated[int, Between(0, 9)] = 1234
    """Of every shuffle."""


@dataclass(frozen=True, slots=True)
class Whole(Base):
    kind: Literal["a", "b"] = "a"
    workers: Annotated[int, Between(1)] = 1
    parts: tuple[Part, ...] = ()
    """In order."""
    named: Mapping[str, Part] = field(default_factory=FrozenDict)
    limits: Mapping[Literal["train", "valid"], Annotated[int, Between(1, 5)]] = field(default_factory=FrozenDict)
    limit: Annotated[float, Between(1, 3)] | Mapping[str, Annotated[float, Between(1, 3)]] | None = None
    own: Part = field(default_factory=Part)


def test_settings_say_what_their_fields_say():
    found = {each.key: each for each in settings(Whole)}
    assert list(found) == [
        "seed", "kind", "workers", "parts", "parts[].share", "named", "named.<name>.share", "limits", "limit", "own",
        "own.share",
    ]  # fmt: skip
    share = found["named.<name>.share"]
    assert (share.section, share.type, share.between, share.default) == (Part, "a number", Between(0, 1), None)
    assert share.help == "Share of it, from 0 to 1."
    assert (found["kind"].choices, found["kind"].default, found["kind"].help) == (("a", "b"), "a", "")
    assert (found["own"].default, found["named"].default) == (Part(), {})


def test_one_setting_and_its_path():
    assert setting(Whole, "seed").between == Between(0, 9)
    assert setting(Whole, "seed").choices == ()
    assert [each.key for each in settings(Part, "a.b")] == ["a.b.share"]


def test_a_setting_without_a_default():
    @dataclass(frozen=True)
    class Needed:
        name: str

    assert setting(Needed, "name").default is MISSING


def test_help_of_an_inherited_field():
    assert field_help(Whole, "seed") == "Of every shuffle."
    assert field_help(int, "real") == ""


@pytest.mark.parametrize(
    ("values", "where", "expected", "remedy"),
    [
        ({"seed": 10}, "seed", "0 to 9", "set it to 9 or less"),
        ({"seed": -1}, "seed", "0 to 9", "set it to 0 or more"),
        ({"workers": 0}, "workers", "at least 1", "set it to 1 or more"),
        ({"parts": [{}, {"share": 1.5}]}, "parts[1].share", "0 to 1", "set it to 1 or less"),
        ({"limit": 4}, "limit", "1 to 3", "set it to 3 or less"),
        ({"limit": {"web": 0.5}}, "limit.web", "1 to 3", "set it to 1 or more"),
        ({"limit": True}, "limit", "a number or a mapping of which each value is a number", "write a number"),
        ({"limits": {"train": 6}}, "limits.train", "1 to 5", "set it to 5 or less"),
        ({"limits": {"trian": 5}}, "limits.trian", "one of train, valid", "write 'train' instead"),
    ],
)
def test_numbers_out_of_range_are_refused(values, where, expected, remedy):
    with pytest.raises(ConfigError) as caught:
        parse(Whole, values, "", "file.yaml")
    assert caught.value.where == f"file.yaml: {where}"
    assert caught.value.expected == expected
    assert remedy in caught.value.remedy


def test_the_ends_of_a_range_belong_to_it():
    assert parse(Whole, {"seed": 0, "limit": 3, "workers": 10**9}, "", "file.yaml").limit == 3.0
    assert parse(Whole, {"seed": 9, "limit": 1}, "", "file.yaml").seed == 9
    check_range(Between(1, 2), 2, "key", "file.yaml")
