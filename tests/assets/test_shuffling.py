"""What the UI shows of a shuffle plan."""

import warnings

import dagster as dg
import pytest
from sample_project import build_all

from nanoset_assets.hosted import ProjectDefs
from nanoset_assets.stages_table import stage_asset
from nanoset_core.config.project import load_config
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.shuffling import SHUFFLE_PLAN
from nanoset_core.pipeline.stage import Key

CORPORA = "corpora: [web, code, books]"


@pytest.fixture
def materialised(make_project):
    file = make_project(replacements={CORPORA: "corpora: {web: 0.5, code: 2, books: 1}\n    even: true"})
    build_all(file)
    assets = [stage_asset(SHUFFLE_PLAN, ProjectDefs.of(load_config(file)), "shuffled", [Key("shuffled")])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dagster's own, on sources outside of this selection
        outcome = dg.materialize([assets[0]])
    (event,) = outcome.get_asset_materialization_events()
    return Project.open(file), assets, event.step_materialization_data.materialization.metadata


def test_the_plan_says_what_becomes_of_each_source(materialised):
    _, assets, metadata = materialised
    values = {name: entry.value for name, entry in metadata.items()}
    assert values["contexts"] == values["shards"] * values["contexts_in_a_shard"]
    assert values["contexts_left_out"] < values["shards"]
    rows = {row.data["source"]: row.data for row in metadata["sources"].records}
    assert [rows[name]["frequency"] for name in ("web", "code", "books")] == ["0.5", "2", "1"]
    assert rows["web"]["not_chosen"] > 0
    assert values["tar_bytes"] > values["tokens"]
    description = next(iter(assets[0].descriptions_by_key.values()))
    assert "How the corpora of shuffled become shuffled shards" in description


def test_the_plan_shows_how_well_it_mixes(materialised):
    _, _, metadata = materialised
    measures = {row.data["measure"]: row.data for row in metadata["quality"].records}
    assert len(measures) == 5
    found = measures["neighbours from one source"]
    assert abs(float(found["found"]) - float(found["by chance"])) < 0.2
    assert metadata["evenly_shuffled"].value is True
    assert metadata["order"].value.startswith("![")
    assert len(metadata["order"].value) < 1000
