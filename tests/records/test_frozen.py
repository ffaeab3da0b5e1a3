"""Frozen dataclasses stay as they are once they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field, replace
from pathlib import Path

import pytest

import nanoset_core
from nanoset_core.records.frozen import FrozenDict, set_while_made

PACKAGES = Path(nanoset_core.__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Options:
    count: int | str
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        set_while_made(self, {"count": int(self.count), "weights": FrozenDict(self.weights)})


def test_a_constructor_may_convert_its_values():
    assert Options("3", {"web": 1.0}) == Options(3, FrozenDict(web=1.0))
    assert replace(Options("3"), count="4") == Options(4)


def test_the_object_cannot_be_changed_afterwards():
    options = Options(3, {"web": 1.0})
    with pytest.raises(FrozenInstanceError):
        options.count = 4  # type: ignore[misc]
    with pytest.raises(TypeError, match="cannot be changed"):
        options.weights["web"] = 2.0  # type: ignore[index]


def test_no_other_code_sets_fields_of_frozen_objects():
    users = [
        str(path.relative_to(PACKAGES))
        for package in ("nanoset_core", "nanoset_assets")
        for path in sorted((PACKAGES / package).rglob("*.py"))
        if "object.__setattr__" in path.read_text()
    ]
    assert users == ["nanoset_core/records/frozen.py"]
