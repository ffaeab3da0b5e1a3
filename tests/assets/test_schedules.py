"""The nightly schedule `reconcile` requests whatever is missing or stale, and nothing else."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg
import pytest
from dagster._core.errors import ScheduleExecutionError

from helpers.sample_platform import Platform, age
from helpers.sample_project import jsonl, sentences
from nanoset_assets.automation import schedule
from nanoset_assets.automation.schedule import SCHEDULE
from nanoset_assets.definitions import build_definitions
from nanoset_assets.names import Names
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.project.project import Project
from nanoset_core.project.settings import load_config
from nanoset_core.stages.inventory.make import INVENTORY_FILE, current_inventory

NIGHT = datetime.datetime(2026, 3, 1, 3, tzinfo=datetime.UTC)
CORPUS_ASSETS = ["raw_jsonl", "tokenized_shards", "indexed_dataset"]


class Requested(NamedTuple):
    """A run that the schedule requests."""

    partition: str | None
    assets: list[str]


def evaluate(platform: Platform, night: datetime.datetime = NIGHT) -> Any:
    """Evaluate the schedule at a time, without carrying out what it requests."""
    repository = platform.definitions.get_repository_def()
    with (
        dg.build_schedule_context(
            instance=platform.instance,
            repository_def=repository,
            scheduled_execution_time=night,
        ) as context,
        dg.partition_loading_context(dynamic_partitions_store=platform.instance),
    ):
        return repository.get_schedule_def(SCHEDULE).evaluate_tick(context)


def requested_runs(platform: Platform) -> list[Requested]:
    """Evaluate the schedule, and return the runs that it requests."""
    runs = []
    for request in evaluate(platform).run_requests:
        assets = [key.to_user_string() for key in request.asset_selection]
        runs.append(Requested(request.partition_key, assets))
    return runs


def write_text(platform: Platform, name: str = "new.jsonl") -> None:
    """Add a file to the corpus `web`, whose files are old enough to be built."""
    (platform.raw / "web" / name).write_bytes(jsonl(sentences("new", 20)))
    age(platform.raw / "web", 100.0)


# What is requested


def test_a_project_that_is_up_to_date_is_reported_so(built_platform):
    tick = evaluate(built_platform)

    assert not tick.run_requests
    assert tick.skip_message.endswith("outputs: none is missing or stale")


def test_the_corpora_of_a_new_project_are_registered_and_requested(make_project, tmp_path):
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        platform = Platform(make_project(), instance)
        age(platform.raw)

        runs = requested_runs(platform)

        assert runs == [
            Requested("books", CORPUS_ASSETS),
            Requested("code", CORPUS_ASSETS),
            Requested("web", CORPUS_ASSETS),
        ]
        corpora = instance.get_dynamic_partitions(Names().corpora_name)
        assert set(corpora) == {"books", "code", "web"}


def test_new_text_requests_its_corpus(built_platform):
    write_text(built_platform)

    assert requested_runs(built_platform) == [Requested("web", CORPUS_ASSETS)]


def test_new_text_is_requested_in_spite_of_an_unreadable_corpus(built_platform):
    folder = built_platform.raw / "bad name"
    folder.mkdir()
    (folder / "a.jsonl").write_text("{}\n")
    write_text(built_platform)

    assert requested_runs(built_platform) == [Requested("web", CORPUS_ASSETS)]


def test_a_second_corpus_of_a_folder_is_requested(built_platform):
    with built_platform.config_file.open("a") as file:
        file.write("corpora: {web_ids: {folder: web, text_key: id}}\n")

    assert requested_runs(built_platform) == [Requested("web_ids", CORPUS_ASSETS)]


def test_deleted_outputs_are_requested(built_platform):
    root = built_platform.config.root_folder
    shutil.rmtree(root / "datasets/books")
    shutil.rmtree(root / "nanosets/pretrain/train")

    assert requested_runs(built_platform) == [
        Requested("books", ["indexed_dataset"]),
        Requested("train", ["pretrain/index_mappings", "pretrain/blend"]),
    ]


def test_a_deleted_output_is_requested_without_what_is_made_from_it(built_platform):
    # The tars are requested by the sensor of stale outputs if the new plan is another one.
    shutil.rmtree(built_platform.config.root_folder / "shuffle_plans")

    assert requested_runs(built_platform) == [Requested(None, ["shuffled/shuffle_plan"])]


def test_existing_outputs_without_a_record_in_dagster_are_not_requested(built_platform):
    handoff = dg.AssetKey(["pretrain", "handoff"])
    built_platform.instance.wipe_assets([dg.AssetKey("packed_dataset"), handoff])

    assert requested_runs(built_platform) == []


def test_a_damaged_inventory_does_not_hide_other_corpora(built_platform):
    project = Project.open(built_platform.config_file)
    inventory_file = current_inventory(project, "web")[0].path(INVENTORY_FILE)
    content = inventory_file.read_bytes()
    inventory_file.write_bytes(content.replace(b'"digest": "', b'"digexx": "', 1))
    shutil.rmtree(built_platform.config.root_folder / "datasets" / "books")

    assert Requested("books", ["indexed_dataset"]) in requested_runs(built_platform)


def test_the_requested_run_makes_what_is_missing(built_platform):
    shutil.rmtree(built_platform.config.root_folder / "nanosets" / "pretrain" / "train")
    (request,) = evaluate(built_platform).run_requests

    result = built_platform.definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=built_platform.instance,
        partition_key=request.partition_key,
        asset_selection=request.asset_selection,
    )

    assert result.success
    assert requested_runs(built_platform) == []


# What has to wait


def test_a_corpus_with_a_file_that_was_written_a_moment_ago_waits_for_another_night(
    built_platform,
):
    (built_platform.raw / "web/new.jsonl").write_bytes(jsonl(sentences("now", 90)))

    tick = evaluate(built_platform)

    assert not tick.run_requests
    assert "something writes to web" in tick.skip_message


def test_a_corpus_with_a_file_that_is_being_overwritten_waits_for_another_night(built_platform):
    # There is complete new text, but a file that was built before is not complete.
    write_text(built_platform)
    (built_platform.raw / "web/part-0/web-0.jsonl").write_bytes(jsonl(sentences("now", 90)))

    tick = evaluate(built_platform)

    assert not tick.run_requests
    assert "something writes to web" in tick.skip_message


def test_an_output_is_not_requested_until_its_run_has_ended(built_platform):
    shutil.rmtree(built_platform.config.root_folder / "shuffle_plans")
    job = built_platform.definitions.resolve_implicit_global_asset_job_def()
    run = built_platform.instance.create_run_for_job(
        job_def=job.get_subset(asset_selection={dg.AssetKey(["shuffled", "shuffle_plan"])})
    )
    assert requested_runs(built_platform) == []

    # Even if the run has failed: something may have changed since.
    built_platform.instance.report_run_failed(run, "killed")
    assert len(requested_runs(built_platform)) == 1


def test_the_tick_says_which_output_waits_for_a_run(built_platform):
    shutil.rmtree(built_platform.config.root_folder / "shuffle_plans")
    job = built_platform.definitions.resolve_implicit_global_asset_job_def()
    built_platform.instance.create_run_for_job(
        job_def=job.get_subset(asset_selection={dg.AssetKey(["shuffled", "shuffle_plan"])})
    )

    message = evaluate(built_platform).skip_message

    assert "missing or stale, which cannot be built yet" in message
    assert "shuffled/shuffle_plan: a run is under way" in message


def test_the_tick_says_which_corpus_with_new_text_waits_for_a_run(built_platform):
    write_text(built_platform)
    built_platform.instance.create_run_for_job(
        job_def=built_platform.definitions.resolve_job_def("corpus"),
        tags={"dagster/partition": "web"},
    )

    message = evaluate(built_platform).skip_message

    assert "web: a run is under way" in message


def test_the_tick_says_which_outputs_dagster_has_not_loaded_yet(built_platform):
    config = built_platform.config_file.read_text()
    another_nanoset = "nanosets:\n  another: {blend: books, sequence_length: 16, split: '9,1'}\n"
    built_platform.config_file.write_text(config.replace("nanosets:\n", another_nanoset))

    message = evaluate(built_platform).skip_message

    assert "another/index_mappings [train]: not loaded yet" in message


def test_the_tick_says_how_many_runs_are_requested_later(built_platform, monkeypatch, capsys):
    monkeypatch.setattr(schedule, "MAX_NIGHTLY_REQUESTS", 1)
    root = built_platform.config.root_folder
    shutil.rmtree(root / "datasets/books")
    shutil.rmtree(root / "nanosets/pretrain/train")

    runs = requested_runs(built_platform)

    assert runs == [Requested("books", ["indexed_dataset"])]
    assert "1 more run is requested later" in capsys.readouterr().err


def test_the_tick_fails_without_the_raw_folder(built_platform):
    built_platform.raw.rename(built_platform.raw.parent / "away")

    with pytest.raises(ScheduleExecutionError) as caught:
        evaluate(built_platform)

    error = caught.value.__cause__
    assert isinstance(error, MissingError)
    assert "the folder of raw text does not exist" in str(error)


# Run keys


def run_keys(platform: Platform, night: datetime.datetime) -> set[str]:
    """Return the keys of the runs that the schedule requests at a time."""
    return {request.run_key for request in evaluate(platform, night).run_requests}


def test_a_repeated_tick_requests_the_same_run_keys_and_another_night_others(built_platform):
    shutil.rmtree(built_platform.config.root_folder / "shuffle_plans")

    keys = run_keys(built_platform, NIGHT)
    repeated_keys = run_keys(built_platform, NIGHT)
    later_keys = run_keys(built_platform, NIGHT + datetime.timedelta(days=1))

    assert keys
    assert repeated_keys == keys
    assert later_keys.isdisjoint(keys)


# Settings


@pytest.fixture
def make_config_file(make_project) -> Callable[[str], Path]:
    """A function that writes a project with settings of its automation."""

    def make(automation: str) -> Path:
        return make_project(replacements={"raw: raw": f"automation: {{{automation}}}\nraw: raw"})

    return make


def test_the_settings_give_time_and_time_zone_of_the_schedule(make_config_file):
    config_file = make_config_file('reconcile: "30 2 * * sun", timezone: Europe/Vienna')

    (schedule,) = build_definitions(load_config(config_file)).get_repository_def().schedule_defs

    assert schedule.cron_schedule == "30 2 * * sun"
    assert schedule.execution_timezone == "Europe/Vienna"


def test_the_settings_may_omit_the_schedule(make_config_file):
    config_file = make_config_file("reconcile: null")

    repository = build_definitions(load_config(config_file)).get_repository_def()

    assert repository.schedule_defs == []


def test_a_cron_line_without_a_next_time_is_refused_with_its_key(make_config_file):
    config = load_config(make_config_file('reconcile: "61 25 * * *"'))

    with pytest.raises(ConfigError, match=r"automation\.reconcile"):
        build_definitions(config)
