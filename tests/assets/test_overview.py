"""The asset `overview`: the numbers of a project, what is stale, and which versions were read."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    SensorInstigatorData,
)

from helpers.built_project import overwrite
from helpers.changing import change_web
from helpers.inspecting import leased_by_a_build
from helpers.sample_platform import Platform, open_copy
from helpers.sample_project import jsonl, sentences
from nanoset_assets.assets import overview, project_look
from nanoset_assets.assets.overview import CHECK, OVERVIEW
from nanoset_assets.automation.cursors import OverviewCursor, cursor_text, read_cursor
from nanoset_assets.dagster_compat import DATA_VERSION_TAG
from nanoset_assets.definitions import build_definitions
from nanoset_core import ProjectConfig, load_nanoset
from nanoset_core.outputs.erasures import RECEIPTS
from nanoset_core.project.project import Project
from nanoset_core.project.settings import load_config

HANDOFF = dg.AssetKey(["pretrain", "handoff"])
DEFAULT_SENSOR = "default_automation_condition_sensor"


@dg.asset(deps=[HANDOFF])
def model() -> None:
    """A model that another team trains on the nanoset."""


def rows_of(materialization: dg.AssetMaterialization, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table on the page; none if the page has no such table."""
    if name not in materialization.metadata:
        return []
    return [dict(record.data) for record in materialization.metadata[name].records]


# What a tick shows, and when it looks at the project


class OverviewOfProject:
    """The overview's sensor of a project that has a target of tokens."""

    def __init__(self, platform: Platform, automation: str) -> None:
        """Load the definitions of a built project again.

        Args:
            platform: The project.
            automation: What builds missing and stale outputs.
        """
        platform.edit_settings("raw: raw", "token_target: 20000\nraw: raw")
        self.config = load_config(platform.config_file)
        definitions = build_definitions(self.config, automation=automation)
        self.sensor = definitions.get_repository_def().get_sensor_def(OVERVIEW)
        self.instance = platform.instance

    def evaluate(self, cursor: str | None = None) -> dg.SensorResult:
        """Evaluate the sensor once."""
        with dg.build_sensor_context(instance=self.instance, cursor=cursor) as context:
            return self.sensor.evaluate_tick(context)


@pytest.fixture
def tick(built_platform, monkeypatch) -> Callable[..., dg.SensorResult]:
    """A function that evaluates the overview's sensor of a project that nothing else builds.

    What builds the outputs makes no difference to the overview, except for a note.
    """
    monkeypatch.setattr(overview, "time", SimpleNamespace(time=lambda: 1_800_000_000.9))
    return OverviewOfProject(built_platform, automation="none").evaluate


@dataclass(frozen=True)
class FirstTick:
    """What the first tick of a project that is up to date shows. Tests that share it only read."""

    config: ProjectConfig
    page: dg.AssetMaterialization
    check: dg.AssetCheckEvaluation


@pytest.fixture(scope="module", params=["own", "host", "none"])
def first_tick(request, template, tmp_path_factory) -> FirstTick:
    """What the first tick shows, with each kind of automation."""
    folder = tmp_path_factory.mktemp("overview") / "project"
    with open_copy(template, folder) as built_platform:
        sensor = OverviewOfProject(built_platform, automation=request.param)
        page, check = sensor.evaluate().asset_events
    return FirstTick(sensor.config, page, check)


def test_the_check_of_a_project_that_is_up_to_date_passes(first_tick):
    assert first_tick.check.check_name == CHECK
    assert first_tick.check.passed
    assert rows_of(first_tick.page, "not_up_to_date") == []


def test_the_page_shows_the_tokens_of_each_corpus_and_their_sum(first_tick):
    page = first_tick.page

    row_by_corpus = {row["name"]: row for row in rows_of(page, "corpora")}
    assert row_by_corpus.keys() == {"web", "code", "books"}
    n_tokens = sum(int(row["tokens"].replace(",", "")) for row in row_by_corpus.values())
    assert page.metadata["tokens"].value == n_tokens
    assert page.metadata["target_reached"].value == round(n_tokens / 20_000, 4)


def test_the_page_shows_the_time_that_each_corpus_took(first_tick):
    for row in rows_of(first_tick.page, "corpora"):
        assert row["seconds"]


def test_the_page_shows_the_samples_of_nanosets(first_tick):
    samples_by_name = {}
    for row in rows_of(first_tick.page, "made_of_them"):
        samples_by_name[row["name"]] = row["samples"]
    train = load_nanoset(first_tick.config.root_folder, "pretrain", "train")
    assert samples_by_name["pretrain train"] == f"{len(train):,}"


def test_the_page_tells_outputs_of_the_same_name_by_their_kind(first_tick):
    rows = rows_of(first_tick.page, "made_of_them")
    kinds_and_names = [(row["kind"], row["name"]) for row in rows]
    assert ("nanoset", "pretrain train") in kinds_and_names
    assert ("packed", "code") in kinds_and_names


def test_a_damaged_output_is_listed_once_a_check_has_found_it(built_platform, tick):
    cursor = tick().cursor
    tokens_file = built_platform.config.root_folder / "datasets/web/current/web_text_document.bin"
    overwrite(tokens_file, 1000, b"\xff" * 200)
    assert not built_platform.check_dataset("web").passed

    page, check = tick(cursor).asset_events

    reason = "the last check of datasets/web found an error, which `nanoset verify` shows"
    assert f"corpus web: {reason}" in check.description
    (row,) = rows_of(page, "not_up_to_date")
    assert row["output"] == "corpus web"
    assert row["why"] == reason


def test_a_tick_names_the_corpora_that_are_being_built(built_platform, tick):
    change_web(built_platform.config_file.parent)

    with leased_by_a_build(Project.open(built_platform.config_file), "web"):
        message = tick().skip_message

    assert "corpus web: being built (" in message
    assert f"on {platform.node()})" in message


def test_a_tick_adds_a_new_corpus_as_a_partition(built_platform, tick):
    cursor = tick().cursor
    folder = built_platform.raw / "news"
    folder.mkdir()
    (folder / "news.jsonl").write_bytes(jsonl(sentences("news", 20)))

    tick(cursor)

    assert "news" in built_platform.corpora


def test_a_tick_soon_after_another_compares_no_outputs(tick, monkeypatch):
    first_tick = tick()
    monkeypatch.setattr(project_look, "project_status", None)

    second_tick = tick(first_tick.cursor)

    assert second_tick.asset_events == []
    assert second_tick.skip_message == "no run, setting or text has changed"


def test_a_tick_some_time_after_another_compares_the_outputs_again(tick):
    cursor = read_cursor(OverviewCursor, tick().cursor)
    earlier = cursor.compared_at - overview.COMPARE_SECONDS

    later_tick = tick(cursor_text(replace(cursor, compared_at=earlier)))

    assert later_tick.asset_events == []
    assert later_tick.skip_message == "nothing has changed"


DAMAGED_CURSORS = ["", "a b c", "{", "[]", '{"compared_at": "x"}']


@pytest.mark.parametrize("cursor", DAMAGED_CURSORS)
def test_with_a_damaged_cursor_the_page_is_reported_again(tick, cursor):
    assert len(tick(cursor).asset_events) == 2  # the page and its check


def test_outputs_with_changed_settings_are_shown_as_stale(built_platform, tick):
    first_tick = tick()
    built_platform.edit_settings("seed: 7", "seed: 8")

    page, check = tick(first_tick.cursor).asset_events

    assert not check.passed
    assert check.severity == dg.AssetCheckSeverity.WARN
    assert check.description == (
        "4 outputs missing or stale; the first: nanoset pretrain train: seed: 7 → 8"
    )
    assert rows_of(page, "not_up_to_date")[0] == {
        "output": "nanoset pretrain train",
        "state": "stale",
        "why": "seed: 7 → 8",
    }


def test_outputs_whose_text_has_changed_are_shown_as_stale(built_platform, tick):
    first_tick = tick()
    change_web(built_platform.config_file.parent)

    page, check = tick(first_tick.cursor).asset_events

    assert not check.passed
    assert rows_of(page, "not_up_to_date")[0]["output"] == "corpus web"


def test_the_page_warns_of_a_purge_that_was_interrupted(built_platform, tick):
    first_tick = tick()
    unfinished_receipt = built_platform.config.root_folder / RECEIPTS / ".unfinished.json"
    unfinished_receipt.parent.mkdir()
    unfinished_receipt.write_bytes(b"")

    page, check = tick(first_tick.cursor).asset_events

    assert page.metadata["not_finished"].value.startswith("the purge was interrupted, ")
    assert check.description.startswith("the purge was interrupted, ")


def test_outputs_are_compared_again_after_a_run_of_a_corpus_has_failed(built_platform):
    run = start_run_of_web(built_platform)
    tick_during_run = built_platform.evaluate(OVERVIEW)

    built_platform.instance.report_run_failed(run, "killed")
    tick = built_platform.evaluate(OVERVIEW, tick_during_run.cursor)

    assert tick.skip_message == "nothing has changed"  # which only a comparison shows


def test_outputs_are_compared_again_after_a_run_of_a_corpus_was_cancelled(built_platform):
    run = start_run_of_web(built_platform)
    tick_during_run = built_platform.evaluate(OVERVIEW)

    built_platform.instance.report_run_canceled(run)
    tick = built_platform.evaluate(OVERVIEW, tick_during_run.cursor)

    assert tick.skip_message == "nothing has changed"  # which only a comparison shows


def start_run_of_web(platform: Platform) -> dg.DagsterRun:
    """Return a run that is to build the corpus web, and has not ended."""
    return platform.instance.create_run_for_job(
        job_def=platform.definitions.resolve_job_def("corpus"),
        tags={"dagster/partition": "web"},
        status=dg.DagsterRunStatus.STARTED,
    )


# Which versions other assets have read


class OverviewSensor:
    """The overview's sensor of a code location."""

    def __init__(self, definitions: dg.Definitions, instance: dg.DagsterInstance) -> None:
        """Start without a cursor."""
        self.definitions = definitions
        self.repository = definitions.get_repository_def()
        self.instance = instance
        self.cursor: str | None = None

    def next_page(self) -> dg.AssetMaterialization:
        """Evaluate the sensor, and return the page that it shows."""
        with dg.build_sensor_context(
            instance=self.instance, repository_def=self.repository, cursor=self.cursor
        ) as context:
            tick = self.repository.get_sensor_def(OVERVIEW).evaluate_tick(context)
        self.cursor = tick.cursor
        page, _check = tick.asset_events
        return page


@pytest.fixture
def sensor_with_model(built_platform) -> OverviewSensor:
    """The overview's sensor of a code location with the model of another team."""
    model_definitions = dg.Definitions(assets=[model])
    definitions = dg.Definitions.merge(built_platform.definitions, model_definitions)
    return OverviewSensor(definitions, built_platform.instance)


def train_model(sensor: OverviewSensor) -> None:
    """Materialize the model."""
    job = sensor.definitions.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=sensor.instance, asset_selection=[model.key])
    assert result.success


def test_the_page_names_what_another_teams_asset_is_going_to_read(sensor_with_model):
    [reader] = rows_of(sensor_with_model.next_page(), "read_by")

    assert reader["asset"] == "model"
    assert reader["has_read"] == "pretrain/handoff"
    assert reader["which_is"] == ""


def test_the_page_says_if_another_teams_asset_has_read_the_latest_version(sensor_with_model):
    sensor_with_model.next_page()

    train_model(sensor_with_model)

    [reader] = rows_of(sensor_with_model.next_page(), "read_by")
    assert reader["asset"] == "model"
    assert reader["has_read"] == "pretrain/handoff"
    assert reader["which_is"] == "the latest"


def test_the_page_says_if_another_teams_asset_has_read_an_older_version(sensor_with_model):
    sensor_with_model.next_page()
    train_model(sensor_with_model)
    sensor_with_model.next_page()

    new_version = dg.AssetMaterialization(HANDOFF, tags={DATA_VERSION_TAG: "of another machine"})
    sensor_with_model.instance.report_runless_asset_event(new_version)

    [reader] = rows_of(sensor_with_model.next_page(), "read_by")
    assert reader["asset"] == "model"
    assert reader["has_read"] == "pretrain/handoff"
    assert reader["which_is"] == "an older one"


# Materialising the page by hand


def test_the_page_can_be_materialised_by_hand(built_platform):
    (built_platform.raw / "web").rename(built_platform.raw / ".web")

    built_platform.carry_out({OVERVIEW: {None}})

    key = dg.AssetKey(OVERVIEW)
    event = built_platform.instance.get_latest_materialization_event(key)
    rows = rows_of(event.asset_materialization, "not_up_to_date")
    state_by_output = {row["output"]: row["state"] for row in rows}
    assert state_by_output["corpus web"] == "failing"
    assert "corpus books" not in state_by_output
    assert "corpus code" not in state_by_output
    (record,) = built_platform.instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(key, CHECK), limit=2
    )
    assert not record.evaluation.passed


# Whether the conditions of assets are evaluated by a sensor that is on


def evaluate_for_host(
    platform: Platform, *sensors: dg.AutomationConditionSensorDefinition
) -> dg.SensorResult:
    """Evaluate the overview of a project whose assets are built by their automation conditions.

    Args:
        platform: The project.
        sensors: Sensors of the code location, except Dagster's default.
    """
    definitions = dg.Definitions.merge(
        build_definitions(load_config(platform.config_file), automation="host"),
        dg.Definitions(sensors=list(sensors)),
    )
    repository = definitions.get_repository_def()
    with dg.build_sensor_context(instance=platform.instance, repository_def=repository) as context:
        return repository.get_sensor_def(OVERVIEW).evaluate_tick(context)


def automation_note(tick: dg.SensorResult) -> str:
    """Return what the page says about automation."""
    page, _check = tick.asset_events
    return page.metadata["automation"].value


def switch_on(platform: Platform, sensor: str) -> None:
    """Switch a sensor on, as a click on the page "Automation" does."""
    location = GrpcServerCodeLocationOrigin("host", 4000, None, "host")
    origin = RemoteRepositoryOrigin(location, "__repository__").get_instigator_origin(sensor)
    platform.instance.add_instigator_state(
        InstigatorState(
            origin, InstigatorType.SENSOR, InstigatorStatus.RUNNING, SensorInstigatorData()
        )
    )


def test_the_page_warns_that_dagsters_default_sensor_is_off(built_platform):
    note = automation_note(evaluate_for_host(built_platform))

    assert note.startswith("**Nothing is built automatically**")
    assert f"Switch on `{DEFAULT_SENSOR}`" in note


def test_the_page_names_dagsters_default_sensor_once_it_is_on(built_platform):
    tick_before = evaluate_for_host(built_platform)

    switch_on(built_platform, DEFAULT_SENSOR)
    tick = evaluate_for_host(built_platform)

    expected = f"The sensor `{DEFAULT_SENSOR}` builds everything downstream of new text."
    assert automation_note(tick) == expected
    assert tick.cursor != tick_before.cursor


def test_the_page_names_a_sensor_of_the_host_that_is_on(built_platform):
    sensor = dg.AutomationConditionSensorDefinition(
        "mine",
        target=dg.AssetSelection.all(),
        default_status=dg.DefaultSensorStatus.RUNNING,
    )

    assert "`mine`" in automation_note(evaluate_for_host(built_platform, sensor))


def test_the_page_ignores_a_sensor_of_the_host_over_few_assets(built_platform):
    sensor = dg.AutomationConditionSensorDefinition(
        "mine",
        target=dg.AssetSelection.assets("raw_jsonl"),
        default_status=dg.DefaultSensorStatus.RUNNING,
    )

    note = automation_note(evaluate_for_host(built_platform, sensor))

    assert note.startswith("**Nothing is built")


def test_the_page_of_a_project_with_its_own_sensors_has_no_note(built_platform):
    page, _check = built_platform.evaluate(OVERVIEW).asset_events

    assert "automation" not in page.metadata
