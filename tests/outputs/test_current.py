"""Reasons why the current version of an output is stale.

tests/outputs/test_manifest.py specifies the texts of settings that differ.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nanoset_core.outputs.current import CurrentVersion
from nanoset_core.outputs.differences import setting_differences
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.records.json_records import to_plain
from nanoset_core.storage.access import FileAccess


def recipe_with(options: dict[str, Any]) -> Recipe:
    """Return the recipe of a dataset with some settings."""
    return Recipe("datasets", "web", 1, {"shards": "91fe"}, options)


def version_with(options: dict[str, Any], folder: Path) -> CurrentVersion:
    """Return a whole version of the dataset that was made with some settings."""
    recipe = recipe_with(options)
    manifest = Manifest(folder, to_plain(recipe), recipe.digest, {}, {}, FileAccess(folder))
    return CurrentVersion(manifest)


def test_a_version_with_the_same_recipe_is_up_to_date(tmp_path):
    version = version_with({"seed": 7}, tmp_path)

    assert version.reasons_to_replace(recipe_with({"seed": 7})) == []


@pytest.mark.parametrize(
    ("before", "now"),
    [
        pytest.param({"seed": 7}, {"seed": 7, "limit": None}, id="an option is null or absent"),
        pytest.param({"seed": 7}, {"seed": 7, "limits": {}}, id="an option is empty or absent"),
        pytest.param({"seed": 1}, {"seed": True}, id="a number became a boolean"),
        pytest.param({"seed": 1}, {"seed": 1.0}, id="an integer became a fraction"),
    ],
)
def test_a_version_with_another_digest_is_stale_though_no_setting_looks_different(
    before, now, tmp_path
):
    version = version_with(before, tmp_path)
    assert setting_differences(before, now) == []

    (reason,) = version.reasons_to_replace(recipe_with(now))

    assert reason.text == "made by a version of nanoset that records settings in another form"


def test_numbers_of_a_schedule_without_a_name_are_compared():
    before = {"schedule": [100, 8, 50, 5, 1]}
    now = {"schedule": [100, 8, 50, 5, 2]}

    assert setting_differences(before, now) == ["schedule.4: 1 → 2"]
