"""The page of a whole project: its numbers, what is stale and why, and what has read which version
of it.
"""

from __future__ import annotations

from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    SensorInstigatorData,
)

from nanoset_assets import overview, project_look
from nanoset_assets.build import build
from nanoset_assets.definitions import build_definitions
from nanoset_assets.overview import CHECK, OVERVIEW
from nanoset_core import load_nanoset
from nanoset_core.project.project import Project
from nanoset_core.project.settings import load_config

HANDOFF = dg.AssetKey(["pretrain", "handoff"])


@dg.asset(deps=[HANDOFF])
def model():
    """Of somebody else, who trains on the nanoset."""


def rows_of(metadata, name):
    return [dict(record.data) for record in metadata[name].records] if name in metadata else []


def edit(platform, old, new):
    text = platform.config_file.read_text()
    assert old in text
    platform.config_file.write_text(text.replace(old, new))


@pytest.fixture(params=["own", "host", "none"])
def tick(request, built_platform, monkeypatch):
    """A function that evaluates the overview's sensor, whoever builds what is stale."""
    # With fractions of a second: the whole second of a cursor is not after it.
    monkeypatch.setattr(overview, "time", SimpleNamespace(time=lambda: 1_800_000_000.9))
    edit(built_platform, "raw: raw", "token_target: 20000\nraw: raw")
    config = load_config(built_platform.config_file)
    definitions = build_definitions(config, automation=request.param)
    sensor = definitions.get_repository_def().get_sensor_def(OVERVIEW)

    def evaluate(cursor=None):
        with dg.build_sensor_context(instance=built_platform.instance, cursor=cursor) as context:
            return sensor.evaluate_tick(context)

    return evaluate


def test_the_first_tick_shows_the_numbers_of_the_project(built_platform, tick):
    made, check = tick().asset_events

    assert (check.check_name, check.passed) == (CHECK, True)
    assert rows_of(made.metadata, "not_up_to_date") == []
    corpora = {row["name"]: row for row in rows_of(made.metadata, "corpora")}
    assert corpora.keys() == {"web", "code", "books"}
    assert all(row["seconds"] for row in corpora.values())

    n_tokens = sum(int(row["tokens"].replace(",", "")) for row in corpora.values())
    assert made.metadata["tokens"].value == n_tokens
    assert made.metadata["target_reached"].value == round(n_tokens / 20_000, 4)

    samples = {row["name"]: row["samples"] for row in rows_of(made.metadata, "made_of_them")}
    train = load_nanoset(built_platform.config.root_folder, "pretrain", "train")
    assert samples["pretrain train"] == f"{len(train):,}"


def test_a_tick_soon_after_another_looks_at_nothing(tick, monkeypatch):
    first = tick()
    monkeypatch.setattr(project_look, "project_status", None)
    monkeypatch.setattr("nanoset_core.stages.inventory.corpora.list_corpora", None)

    again = tick(first.cursor)

    assert again.asset_events == []
    assert again.skip_message == "no run, setting or corpus has changed"


def test_a_tick_some_time_after_another_looks_again(tick):
    told, looked, shown = tick().cursor.split()

    later = tick(f"{told} {float(looked) - overview.COMPARE_SECONDS} {shown}")

    assert later.asset_events == []
    assert later.skip_message == "nothing has changed"


def test_changed_settings_are_shown_as_stale(built_platform, tick):
    first = tick()
    edit(built_platform, "seed: 7", "seed: 8")

    made, check = tick(first.cursor).asset_events

    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert check.description == (
        "4 outputs missing or stale; the first: nanoset pretrain train: seed: 7 → 8"
    )
    assert rows_of(made.metadata, "not_up_to_date")[0] == {
        "output": "nanoset pretrain train",
        "state": "stale",
        "why": "seed: 7 → 8",
    }


def test_it_says_which_version_others_have_read(built_platform):
    definitions = dg.Definitions.merge(built_platform.definitions, dg.Definitions(assets=[model]))
    repository, instance = definitions.get_repository_def(), built_platform.instance

    cursor = None

    def read_by():
        nonlocal cursor
        with dg.build_sensor_context(
            instance=instance, repository_def=repository, cursor=cursor
        ) as context:
            tick = repository.get_sensor_def(OVERVIEW).evaluate_tick(context)
        made, _ = tick.asset_events
        cursor = tick.cursor
        return [
            (row["asset"], row["has_read"], row["which_is"])
            for row in rows_of(made.metadata, "read_by")
        ]

    job = definitions.resolve_implicit_global_asset_job_def()
    assert read_by() == [("model", "pretrain/handoff", "")]
    assert job.execute_in_process(instance=instance, asset_selection=[model.key]).success
    assert read_by() == [("model", "pretrain/handoff", "the latest")]
    edit(built_platform, "seed: 7", "seed: 8")
    assert not build(Project.open(built_platform.config_file), instance, select="pretrain").failed
    assert read_by() == [("model", "pretrain/handoff", "an older one")]


def test_it_is_materialised_by_hand_too(built_platform):
    (built_platform.raw / "web").rename(built_platform.raw / ".web")
    built_platform.carry_out({OVERVIEW: {None}})
    key = dg.AssetKey(OVERVIEW)
    event = built_platform.instance.get_latest_materialization_event(key)
    wrong = {
        row["output"]: row["state"]
        for row in rows_of(event.asset_materialization.metadata, "not_up_to_date")
    }
    assert wrong["corpus web"] == "failing"
    assert wrong.keys().isdisjoint({"corpus books", "corpus code"})
    checked = dg.AssetCheckKey(key, CHECK)
    (record,) = built_platform.instance.event_log_storage.get_asset_check_execution_history(
        checked, limit=2
    )
    assert not record.evaluation.passed


def evaluate_for_host(platform, *sensors):
    """One tick of the overview of a project whose assets bear conditions, in a code location with
    these sensors.
    """
    ours = build_definitions(load_config(platform.config_file), automation="host")
    repository = dg.Definitions.merge(
        ours, dg.Definitions(sensors=list(sensors))
    ).get_repository_def()
    with dg.build_sensor_context(instance=platform.instance, repository_def=repository) as context:
        return repository.get_sensor_def(OVERVIEW).evaluate_tick(context)


def automation_note(tick):
    materialization, _ = tick.asset_events
    return materialization.metadata["automation"].value


def switch(platform, sensor, status):
    """As a click on the page Automation."""
    origin = GrpcServerCodeLocationOrigin("host", 4000, None, "host")
    instigator = RemoteRepositoryOrigin(origin, "__repository__").get_instigator_origin(sensor)
    state = InstigatorState(instigator, InstigatorType.SENSOR, status, SensorInstigatorData())
    platform.instance.add_instigator_state(state)


DEFAULT_SENSOR = "default_automation_condition_sensor"


def test_it_says_that_dagsters_own_condition_sensor_is_off_at_first(built_platform):
    note = automation_note(evaluate_for_host(built_platform))
    assert note.startswith("**Nothing is built automatically**")
    assert f"Switch on `{DEFAULT_SENSOR}`" in note


def test_it_says_so_until_the_sensor_is_switched_on(built_platform):
    before = evaluate_for_host(built_platform)
    switch(built_platform, DEFAULT_SENSOR, InstigatorStatus.RUNNING)
    assert automation_note(evaluate_for_host(built_platform)) == (
        f"The sensor `{DEFAULT_SENSOR}` builds everything downstream of new text."
    )
    assert before.cursor != evaluate_for_host(built_platform).cursor


def test_a_sensor_of_the_host_that_is_on_is_named(built_platform):
    sensor = dg.AutomationConditionSensorDefinition(
        "mine", target=dg.AssetSelection.all(), default_status=dg.DefaultSensorStatus.RUNNING
    )
    assert "`mine`" in automation_note(evaluate_for_host(built_platform, sensor))


def test_a_sensor_of_the_host_over_other_assets_does_not_count(built_platform):
    sensor = dg.AutomationConditionSensorDefinition(
        "mine",
        target=dg.AssetSelection.assets("raw_jsonl"),
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    assert automation_note(evaluate_for_host(built_platform, sensor)).startswith(
        "**Nothing is built"
    )


def test_a_project_with_its_own_sensors_has_no_such_note(built_platform):
    materialization, _ = built_platform.evaluate(OVERVIEW).asset_events
    assert "automation" not in materialization.metadata
