"""The set of shards of a corpus, and the ranges of raw text that they were made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.building import make_inventory, make_shards
from helpers.inspecting import inventory_of
from nanoset_core.errors import FormatError
from nanoset_core.project.project import Project
from nanoset_core.stages.shards.shard_sets import ranges_of_shards


def test_shards_that_were_not_made_from_the_listed_files_are_refused(
    make_project: Callable[..., Path],
):
    project = Project.open(make_project())
    make_inventory(project, "web")
    tokenized = make_shards(project, "web")
    inventory = inventory_of(project, "web")
    assert len(ranges_of_shards(inventory, tokenized)) == len(tokenized.facts["shards"])

    other_inventory = replace(inventory, pieces=())

    with pytest.raises(FormatError, match="not those of its inventory"):
        ranges_of_shards(other_inventory, tokenized)
