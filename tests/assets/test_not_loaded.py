"""Edits of nanoset.yaml that need a reload of the definitions wait for it; everything else is built."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import dagster as dg
import pytest

from helpers.inspecting import node_at
from helpers.sample_platform import Platform
from helpers.sample_project import write_project
from nanoset_assets.assets.overview import OVERVIEW
from nanoset_assets.code_location.loaded import LoadedAssets, reload_notes
from nanoset_core.project.settings import load_config

SPLITS = {"train", "valid", "test"}
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
        old="pbin: [code]\n",
        new="views: {few: {of: books, tokens: 500}}\npbin: [code, few]\n",
        name="packed 'few'",
    ),
}


@pytest.fixture
def platform(built_platform) -> Platform:
    """A project in which everything is up to date."""
    return built_platform


def make_edit(platform: Platform, edit: Edit) -> None:
    """Edit nanoset.yaml after the definitions were loaded."""
    platform.edit_settings(edit.old, edit.new)


@pytest.fixture(scope="module")
def project_folder(tmp_path_factory, tokenizer_file) -> Path:
    """The folder of a project that is not built. Its nanoset.yaml is not changed."""
    folder = tmp_path_factory.mktemp("loaded") / "project"
    write_project(folder, tokenizer_file, {"nanosets:": "pbin: [code]\nnanosets:"})
    return folder


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_that_needs_a_reload_is_reported_by_the_name_of_what_is_not_loaded(
    project_folder, edit
):
    loaded_file = project_folder / "nanoset.yaml"
    text = loaded_file.read_text()
    assert edit.old in text
    edited_file = project_folder / "edited.yaml"
    edited_file.write_text(text.replace(edit.old, edit.new))

    (note,) = reload_notes(load_config(loaded_file), load_config(edited_file))

    assert edit.name in note
    assert "Reload" in note


def test_settings_that_are_all_loaded_are_not_reported(project_folder):
    config = load_config(project_folder / "nanoset.yaml")

    assert reload_notes(config, config) == []


@pytest.mark.parametrize(
    ("edit", "requested_after_reload"),
    [
        pytest.param(EDITS[kind], requests, id=kind)
        for kind, requests in {
            "a nanoset": {"more/index_mappings": SPLITS},
            "a webdataset": {"more/shuffle_plan": {None}},
            "a view": {"books/views": {"few"}},
            "columns of all corpora": {"document_columns": {"books", "code", "web"}},
        }.items()
    ],
)
def test_the_sensor_requests_everything_that_is_loaded(platform, edit, requested_after_reload):
    make_edit(platform, edit)
    platform.edit_settings("seed: 7", "seed: 8")

    requests = platform.automation()
    platform.load()
    requests_after_reload = platform.automation()

    loaded_requests = {"pretrain/index_mappings": SPLITS, "pretrain/blend": SPLITS}
    assert requests == loaded_requests
    assert requests_after_reload == loaded_requests | requested_after_reload


def test_the_sensor_builds_everything_after_a_reload(platform):
    make_edit(platform, EDITS["a .pbin of a view"])
    platform.load()

    ticks = platform.follow()

    assert ticks == [{"books/views": {"few"}}, {"few/packed": {None}}]


def test_the_sensor_reports_what_is_not_loaded(platform):
    edit = EDITS["a nanoset"]
    make_edit(platform, edit)

    message = platform.evaluate("missing_or_stale").skip_message

    assert edit.name in message
    assert "Reload" in message


def test_the_overview_warns_of_what_is_not_loaded_until_a_reload(platform):
    edit = EDITS["a nanoset"]
    make_edit(platform, edit)

    page, check = platform.evaluate(OVERVIEW).asset_events
    assert edit.name in page.metadata["not_loaded"].value
    assert edit.name in check.description
    assert not check.passed

    platform.load()
    page, _check = platform.evaluate(OVERVIEW).asset_events
    assert "not_loaded" not in page.metadata


def test_the_nightly_schedule_requests_only_what_is_loaded(platform):
    make_edit(platform, EDITS["a nanoset"])
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
def test_an_output_whose_asset_and_partition_exist_is_loaded(project_folder, address):
    config = load_config(project_folder / "nanoset.yaml")

    assert node_at(address) in LoadedAssets.of(config)


@pytest.mark.parametrize(
    "address",
    [
        pytest.param("webdatasets/shuffled/tars/3", id="a group of tars without partition"),
        pytest.param("webdatasets/other/tars/0", id="an unknown webdataset"),
        pytest.param("columns/books", id="columns, which no corpus has"),
    ],
)
def test_an_output_without_asset_or_partition_is_not_loaded(project_folder, address):
    config = load_config(project_folder / "nanoset.yaml")

    assert node_at(address) not in LoadedAssets.of(config)
