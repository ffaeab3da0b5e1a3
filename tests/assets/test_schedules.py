"""The nightly reconcile: whatever is missing, stale, not recorded or faulty is asked for, and
nothing else.
"""

from __future__ import annotations

import datetime
import shutil

import dagster as dg
import pytest
from dagster._core.errors import ScheduleExecutionError

from helpers.sample_platform import Platform, age
from helpers.sample_project import jsonl, sentences
from nanoset_assets.definitions import build_definitions
from nanoset_assets.names import Names
from nanoset_assets.schedule import SCHEDULE
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.project.project import Project
from nanoset_core.project.settings import load_config
from nanoset_core.stages.inventory.make import INVENTORY_FILE, current_inventory

NIGHT = datetime.datetime(2026, 3, 1, 3, tzinfo=datetime.UTC)
CHAIN = ["raw_jsonl", "tokenized_shards", "indexed_dataset"]


def evaluate(platform: Platform, night: datetime.datetime = NIGHT):
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


def asked(
    platform: Platform, night: datetime.datetime = NIGHT
) -> list[tuple[str | None, list[str]]]:
    """(partition, assets) of each run that a night asks for."""
    return [
        (request.partition_key, [key.to_user_string() for key in request.asset_selection])
        for request in evaluate(platform, night).run_requests
    ]


def test_when_everything_is_as_it_should_be_it_says_so(built_platform):
    tick = evaluate(built_platform)
    assert not tick.run_requests
    assert tick.skip_message.endswith("outputs of 3 corpora: none is missing or stale")


def test_a_new_project_is_registered_and_its_corpora_are_built(make_project, tmp_path):
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        platform = Platform(make_project(), instance)
        age(platform.raw)
        assert asked(platform) == [(corpus, CHAIN) for corpus in ("books", "code", "web")]
        assert set(instance.get_dynamic_partitions(Names().corpora_name)) == {
            "books",
            "code",
            "web",
        }


def write(platform, name="new.jsonl", seconds=100.0):
    (platform.raw / "web" / name).write_bytes(jsonl(sentences("new", 20)))
    age(platform.raw / "web", seconds)


def unreadable_beside_changed(platform):
    (platform.raw / "bad name").mkdir()
    (platform.raw / "bad name/a.jsonl").write_text("{}\n")
    write(platform)


def remove(*places):
    def happen(platform):
        for place in places:
            shutil.rmtree(platform.config.root_folder / place)

    return happen


def wipe(platform):
    platform.instance.wipe_assets(
        [dg.AssetKey("packed_dataset"), dg.AssetKey(["pretrain", "handoff"])]
    )


def second(platform):
    file = platform.config_file
    file.write_text(file.read_text() + "corpora: {web_ids: {folder: web, text_key: id}}\n")


SPLIT = ("train", ["pretrain/index_mappings", "pretrain/blend"])
EVENTS = {
    "new text, which is hashed in the run and not in the tick": (write, [("web", CHAIN)]),
    "new text beside a corpus that cannot be read": (unreadable_beside_changed, [("web", CHAIN)]),
    "a second corpus of a folder": (second, [("web_ids", CHAIN)]),
    "deleted outputs": (
        remove("datasets/books", "nanosets/pretrain/train"),
        [("books", ["indexed_dataset"]), SPLIT],
    ),
    "a deleted plan, whose tars follow by themselves": (
        remove("shuffle_plans"),
        [(None, ["shuffled/shuffle_plan"])],
    ),
    "what Dagster has no record of, which is there": (wipe, []),
}


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_is_asked_for_as_far_as_it_can_be_made(built_platform, event):
    happen, expected = EVENTS[event]
    happen(built_platform)
    assert asked(built_platform) == expected


@pytest.mark.parametrize("rewritten", [False, True])
def test_a_corpus_that_is_being_written_waits_for_another_night(built_platform, rewritten):
    if rewritten:
        write(built_platform)
    (built_platform.raw / "web" / ("part-0/web-0.jsonl" if rewritten else "new.jsonl")).write_bytes(
        jsonl(sentences("now", 90))
    )
    tick = evaluate(built_platform)
    assert not tick.run_requests
    assert "something writes to web" in tick.skip_message


def test_one_damaged_inventory_does_not_hide_the_other_corpora(built_platform):
    project = Project.open(built_platform.config_file)
    file = current_inventory(project, "web")[0].path(INVENTORY_FILE)
    file.write_bytes(file.read_bytes().replace(b'"digest": "', b'"digexx": "', 1))
    shutil.rmtree(built_platform.config.root_folder / "datasets" / "books")
    assert ("books", ["indexed_dataset"]) in asked(built_platform)


def test_what_is_under_way_is_not_asked_for(built_platform):
    shutil.rmtree(built_platform.config.root_folder / "shuffle_plans")
    job = built_platform.definitions.resolve_implicit_global_asset_job_def()
    run = built_platform.instance.create_run_for_job(
        job_def=job.get_subset(asset_selection={dg.AssetKey(["shuffled", "shuffle_plan"])})
    )
    assert asked(built_platform) == []
    built_platform.instance.report_run_failed(run, "killed")
    assert len(asked(built_platform)) == 1, "whatever became of the last run"


def test_a_repeated_tick_gives_the_same_keys_and_another_night_others(built_platform):
    shutil.rmtree(built_platform.config.root_folder / "shuffle_plans")
    keys = [
        [request.run_key for request in evaluate(built_platform, night).run_requests]
        for night in (NIGHT, NIGHT)
    ]
    assert keys[0] == keys[1]
    later = evaluate(built_platform, NIGHT + datetime.timedelta(days=1))
    assert {request.run_key for request in later.run_requests}.isdisjoint(keys[0])


def test_its_runs_make_what_is_missing(built_platform):
    shutil.rmtree(built_platform.config.root_folder / "nanosets" / "pretrain" / "train")
    (request,) = evaluate(built_platform).run_requests
    job = built_platform.definitions.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(
        instance=built_platform.instance,
        partition_key=request.partition_key,
        asset_selection=request.asset_selection,
    ).success
    assert asked(built_platform) == []


def test_without_the_raw_folder_the_tick_fails(built_platform):
    built_platform.raw.rename(built_platform.raw.parent / "away")
    with pytest.raises(ScheduleExecutionError) as caught:
        evaluate(built_platform)
    assert isinstance(caught.value.__cause__, MissingError)
    assert "the folder of raw text does not exist" in str(caught.value.__cause__)


def configured(make_project, text, name="project"):
    return make_project(name, {"raw: raw": f"automation: {{{text}}}\nraw: raw"})


def test_the_schedule_comes_from_the_configuration(make_project):
    config = load_config(
        configured(make_project, 'reconcile: "30 2 * * sun", timezone: Europe/Vienna')
    )
    (schedule,) = build_definitions(config).get_repository_def().schedule_defs
    assert (schedule.cron_schedule, schedule.execution_timezone) == (
        "30 2 * * sun",
        "Europe/Vienna",
    )
    config = load_config(configured(make_project, "reconcile: null", "without"))
    assert build_definitions(config).get_repository_def().schedule_defs == []


def test_a_cron_line_that_can_never_come_is_refused_with_its_place(make_project):
    config = load_config(configured(make_project, 'reconcile: "61 25 * * *"'))
    with pytest.raises(ConfigError, match=r"automation\.reconcile"):
        build_definitions(config)
