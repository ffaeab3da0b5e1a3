"""Frozen dataclasses and mappings cannot be changed after they were made."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from helpers.locations import REPOSITORY
from nanoset_core.records.frozen import FrozenDict, freeze, set_while_made


@dataclass(frozen=True, slots=True)
class Options:
    """A class whose constructor converts its values."""

    count: int | str
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        set_while_made(self, {"count": int(self.count), "weights": FrozenDict(self.weights)})


def test_a_constructor_may_convert_its_values():
    assert Options("3", {"web": 1.0}) == Options(3, FrozenDict(web=1.0))


def test_a_value_is_converted_when_it_is_replaced():
    assert replace(Options("3"), count="4") == Options(4)


def test_a_field_cannot_be_changed_afterwards():
    options = Options(3)

    with pytest.raises(FrozenInstanceError):
        options.count = 4  # type: ignore[misc]


def test_a_mapping_in_a_field_cannot_be_changed_afterwards():
    options = Options(3, {"web": 1.0})

    with pytest.raises(TypeError, match="cannot be changed"):
        options.weights["web"] = 2.0  # type: ignore[index]


def test_no_other_code_sets_fields_of_frozen_objects():
    users = []
    for package in ("nanoset_core", "nanoset_assets"):
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            if "object.__setattr__" in path.read_text():
                users.append(path.relative_to(REPOSITORY).as_posix())

    assert users == ["nanoset_core/records/frozen.py"]


@pytest.mark.parametrize(
    "method",
    [
        "__setitem__",
        "__delitem__",
        "__ior__",
        "update",
        "pop",
        "popitem",
        "clear",
        "setdefault",
    ],
)
def test_a_frozen_mapping_refuses_every_change(method):
    mapping = FrozenDict({"a": 1})

    with pytest.raises(TypeError, match="cannot be changed"):
        getattr(mapping, method)("a", 2)

    assert mapping == {"a": 1}


NESTED = {"a": [1, {"b": 2}], "c": None}


def test_freezing_a_value_also_freezes_the_values_in_it():
    frozen = freeze(NESTED)

    assert frozen == {"a": (1, {"b": 2}), "c": None}
    assert isinstance(frozen["a"][1], FrozenDict)


def test_a_frozen_mapping_can_be_written_as_json():
    assert json.dumps(freeze(NESTED)) == '{"a": [1, {"b": 2}], "c": null}'


def pickled_copy(value: object) -> object:
    """Return a value after it was pickled, as for another process."""
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("make_copy", [pickled_copy, copy.copy, copy.deepcopy])
def test_a_copy_of_a_frozen_mapping_is_equal_and_frozen(make_copy: Callable[[object], object]):
    frozen = freeze(NESTED)

    copied = make_copy(frozen)

    assert type(copied) is FrozenDict
    assert copied == frozen


def test_the_hash_of_a_frozen_mapping_does_not_depend_on_the_order_of_its_keys():
    reversed_keys = dict(reversed(NESTED.items()))

    assert hash(freeze(NESTED)) == hash(freeze(reversed_keys))


def test_a_frozen_mapping_can_be_unpacked():
    frozen = freeze(NESTED)

    assert {**frozen, "c": 1} == {"a": (1, {"b": 2}), "c": 1}
