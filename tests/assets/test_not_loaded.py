"""Edits of nanoset.yaml that need a reload of the definitions wait for it; everything else is built."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

import dagster as dg
import pytest

from helpers.inspecting import node_at
from helpers.sample_platform import Platform
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


class Edit(NamedTuple):
    """An edit of nanoset.yaml that needs a reload."""

    old: str
    new: str
    name: str
    """How a message names what is not loaded."""


EDITS = {
    "a nanoset": Edit(
        old="webdatasets:\n",
        new=f"{MORE_NANOSET}webdatasets:\n",
        name="nanoset 'more'",
    ),
    "a webdataset": Edit(
        old="webdatasets:\n",
        new=f"webdatasets:\n{MORE_WEBDATASET}",
        name="webdataset 'more'",
    ),
    "a view": Edit(
        old="webdatasets:\n",
        new="views: {few: {of: books, tokens: 500}}\nwebdatasets:\n",
        name="view 'few'",
    ),
    "columns of all corpora": Edit(
        old="max_rejected_fraction: 0.2",
        new="max_rejected_fraction: 0.2, columns: [source]",
        name="asset document_columns",
    ),
    "another number of groups": Edit(
        old="groups: 3",
        new="groups: 5",
        name="webdataset 'shuffled'",
    ),
    "a .pbin of a view": Edit(
        old="webdatasets:\n",
        new="views: {few: {of: books, tokens: 500}}\npbin: [few]\nwebdatasets:\n",
        name="packed 'few'",
    ),
}


@pytest.fixture
def platform(built_platform) -> Platform:
    """A project without `.pbin` in which everything is up to date."""
    built_platform.edit_settings("pbin: [code]\n", "")
    built_platform.load()
    built_platform.look()
    assert built_platform.automation() == {}
    return built_platform


@pytest.fixture(params=EDITS.values(), ids=EDITS)
def edit(request, platform) -> Edit:
    """An edit that was made after the definitions were loaded."""
    platform.edit_settings(request.param.old, request.param.new)
    return request.param


@pytest.mark.usefixtures("edit")
def test_the_sensor_builds_everything_that_is_loaded(platform):
    platform.edit_settings("seed: 7", "seed: 8")

    # Nothing is requested for what is not loaded.
    requests = platform.automation()
    assert requests["pretrain/index_mappings"] == {"train", "valid", "test"}
    assert not any("more" in asset for asset in requests)
    platform.carry_out()

    # After a reload, the rest is built.
    platform.load()
    platform.follow()
    assert platform.automation() == {}


def test_the_sensor_reports_what_is_not_loaded(platform, edit):
    message = platform.evaluate("missing_or_stale").skip_message

    assert edit.name in message
    assert "Reload" in message


def test_the_overview_warns_of_what_is_not_loaded_until_a_reload(platform, edit):
    page, check = platform.evaluate(OVERVIEW).asset_events
    assert edit.name in page.metadata["not_loaded"].value
    assert edit.name in check.description
    assert not check.passed

    platform.load()
    page, _check = platform.evaluate(OVERVIEW).asset_events
    assert "not_loaded" not in page.metadata


def test_the_nightly_schedule_requests_only_what_is_loaded(platform):
    edit = EDITS["a nanoset"]
    platform.edit_settings(edit.old, edit.new)
    platform.edit_settings("seed: 7", "seed: 8")
    repository = platform.definitions.get_repository_def()

    with dg.build_schedule_context(
        instance=platform.instance, scheduled_execution_time=NIGHT, repository_def=repository
    ) as context:
        requests = repository.get_schedule_def("reconcile").evaluate_tick(context).run_requests

    assets: set[str] = set()
    for request in requests:
        assets.update(key.to_user_string() for key in request.asset_selection)
    assert assets == {"pretrain/index_mappings", "pretrain/blend"}


@pytest.mark.parametrize(
    "address",
    [
        pytest.param("webdatasets/shuffled/tars/2", id="the last group of tars"),
        pytest.param("datasets/a_new_corpus", id="a dataset, since corpora need no reload"),
    ],
)
def test_an_output_whose_asset_and_partition_exist_is_loaded(platform, address):
    assert node_at(address) in LoadedAssets.of(platform.config)


@pytest.mark.parametrize(
    "address",
    [
        pytest.param("webdatasets/shuffled/tars/3", id="a group of tars without partition"),
        pytest.param("webdatasets/other/tars/0", id="an unknown webdataset"),
        pytest.param("columns/books", id="columns, which no corpus has"),
    ],
)
def test_an_output_without_asset_or_partition_is_not_loaded(platform, address):
    assert node_at(address) not in LoadedAssets.of(platform.config)
