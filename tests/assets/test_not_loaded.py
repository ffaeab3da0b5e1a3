"""nanoset.yaml is edited while definitions are loaded: what they lack waits for a reload, and the
rest is built.
"""

from __future__ import annotations

from datetime import UTC, datetime

import dagster as dg
import pytest

from helpers.inspecting import node_at
from nanoset_assets.loaded import LoadedAssets
from nanoset_assets.overview import OVERVIEW

NIGHT = datetime(2026, 1, 2, 3, tzinfo=UTC)
MORE_NANOSET = """\
  more:
    blend: books
    sequence_length: 16
    split: "1,0,0"
    trainer_path: /lustre/data
"""
MORE_WEBDATASET = """\
  more:
    corpora: [books]
    sequence_length: 33
    samples_per_shard: 128
"""
EDITS = {
    "a nanoset": ("webdatasets:\n", MORE_NANOSET + "webdatasets:\n", "nanoset 'more'"),
    "a webdataset": ("webdatasets:\n", "webdatasets:\n" + MORE_WEBDATASET, "webdataset 'more'"),
    "a view": (
        "webdatasets:\n",
        "views: {few: {of: books, tokens: 500}}\nwebdatasets:\n",
        "view 'books'",
    ),
    "columns of all corpora": (
        "max_rejected_fraction: 0.2",
        "max_rejected_fraction: 0.2, columns: [source]",
        "asset document_columns",
    ),
    "another number of groups": ("groups: 3", "groups: 5", "webdataset 'shuffled'"),
    "a .pbin of a view": (
        "webdatasets:\n",
        "views: {few: {of: books, tokens: 500}}\npbin: [few]\nwebdatasets:\n",
        "packed 'few'",
    ),
}


@pytest.fixture
def built(built_platform):
    """Everything is up to date."""
    text = built_platform.config_file.read_text().replace("pbin: [code]\n", "")
    built_platform.config_file.write_text(text)
    built_platform.load()
    built_platform.look()
    assert built_platform.automation() == {}
    return built_platform


def edit(platform, old, new):
    """Change nanoset.yaml; the definitions stay as they were loaded."""
    text = platform.config_file.read_text()
    assert old in text
    platform.config_file.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("what", EDITS)
def test_the_sensor_leaves_out_what_is_not_loaded_and_builds_the_rest(built, what):
    old, new, _ = EDITS[what]
    edit(built, old, new)
    edit(built, "seed: 7", "seed: 8")
    requested = built.automation()
    assert requested["pretrain/index_mappings"] == {"train", "valid", "test"}
    assert not any("more" in asset for asset in requested)
    built.carry_out()
    built.load()
    built.follow()
    assert built.automation() == {}, "after a reload everything is built"


@pytest.mark.parametrize("what", EDITS)
def test_the_tick_says_what_is_not_loaded(built, what):
    old, new, name = EDITS[what]
    edit(built, old, new)
    message = built.evaluate("missing_or_stale").skip_message
    assert name in message
    assert "Reload" in message


@pytest.mark.parametrize("what", EDITS)
def test_the_overview_warns_of_what_is_not_loaded(built, what):
    old, new, name = EDITS[what]
    edit(built, old, new)
    materialization, check = built.evaluate(OVERVIEW).asset_events
    assert name in materialization.metadata["not_loaded"].value
    assert name in check.description
    assert not check.passed
    built.load()
    materialization, check = built.evaluate(OVERVIEW).asset_events
    assert "not_loaded" not in materialization.metadata


def test_the_nightly_schedule_leaves_out_what_is_not_loaded(built):
    edit(built, "webdatasets:\n", MORE_NANOSET + "webdatasets:\n")
    edit(built, "seed: 7", "seed: 8")
    repository = built.definitions.get_repository_def()
    schedule = repository.get_schedule_def("reconcile")
    with dg.build_schedule_context(
        instance=built.instance, scheduled_execution_time=NIGHT, repository_def=repository
    ) as context:
        requests = schedule.evaluate_tick(context).run_requests
    assets = {key.to_user_string() for request in requests for key in request.asset_selection}
    assert assets == {"pretrain/index_mappings", "pretrain/blend"}


def test_an_output_is_loaded_if_its_asset_and_partition_are(built):
    loaded = LoadedAssets.of(built.config)
    assert node_at("webdatasets/shuffled/tars/2") in loaded
    assert node_at("webdatasets/shuffled/tars/3") not in loaded
    assert node_at("webdatasets/other/tars/0") not in loaded
    assert node_at("datasets/a_new_corpus") in loaded
    assert node_at("columns/books") not in loaded
