"""The page of a whole project: its numbers, what is stale and why, and what has read which version of it."""

from __future__ import annotations

from types import SimpleNamespace

import dagster as dg
import pytest

from nanoset_assets import overview
from nanoset_assets.build import build
from nanoset_assets.definitions import build_definitions
from nanoset_assets.overview import CHECK, OVERVIEW
from nanoset_core import load_nanoset
from nanoset_core.config.project import load_config
from nanoset_core.pipeline import raw
from nanoset_core.pipeline.project import Project

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


@pytest.mark.parametrize("automation", ["own", "host", "none"])
def test_stale_settings_are_shown_whoever_builds(built_platform, automation, monkeypatch):
    clock = SimpleNamespace(time=lambda: 1_800_000_000.9)  # a cursor's whole second is not after it
    monkeypatch.setattr(overview, "time", clock)
    edit(built_platform, "raw: raw", "token_target: 20000\nraw: raw")
    definitions = build_definitions(load_config(built_platform.config_file), automation=automation)
    sensor = definitions.get_repository_def().get_sensor_def(OVERVIEW)

    def tick(cursor=None):
        with dg.build_sensor_context(instance=built_platform.instance, cursor=cursor) as context:
            return sensor.evaluate_tick(context)

    first = tick()
    made, check = first.asset_events
    assert (check.check_name, check.passed) == (CHECK, True)
    assert rows_of(made.metadata, "not_up_to_date") == []
    corpora = {row["name"]: row for row in rows_of(made.metadata, "corpora")}
    tokens = {name: int(row["tokens"].replace(",", "")) for name, row in corpora.items()}
    assert tokens.keys() == {"web", "code", "books"}
    assert made.metadata["tokens"].value == sum(tokens.values())
    assert made.metadata["target_reached"].value == round(sum(tokens.values()) / 20_000, 4)
    assert all(row["seconds"] for row in corpora.values())
    samples = {row["name"]: row["samples"] for row in rows_of(made.metadata, "made_of_them")}
    assert samples["pretrain train"] == f"{len(load_nanoset(built_platform.config.root_folder, 'pretrain', 'train')):,}"
    told, looked, shown = first.cursor.split()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overview, "project_status", None)  # no output is looked at
        patch.setattr(raw, "scan", None)  # and no folder
        again = tick(first.cursor)
    assert (again.asset_events, again.skip_message) == ([], "no run, setting or corpus has changed")
    later = tick(f"{told} {float(looked) - overview.LOOK_SECONDS} {shown}")
    assert (later.asset_events, later.skip_message) == ([], "nothing has changed")
    edit(built_platform, "seed: 7", "seed: 8")
    made, check = tick(first.cursor).asset_events
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert check.description == "4 outputs missing or stale; the first: nanoset pretrain train: seed: 7 → 8"
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
        with dg.build_sensor_context(instance=instance, repository_def=repository, cursor=cursor) as context:
            tick = repository.get_sensor_def(OVERVIEW).evaluate_tick(context)
        made, _ = tick.asset_events
        cursor = tick.cursor
        return [(row["asset"], row["has_read"], row["which_is"]) for row in rows_of(made.metadata, "read_by")]

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
    wrong = {row["output"]: row["state"] for row in rows_of(event.asset_materialization.metadata, "not_up_to_date")}
    assert wrong["corpus web"] == "failing"
    assert wrong.keys().isdisjoint({"corpus books", "corpus code"})
    checked = dg.AssetCheckKey(key, CHECK)
    (record,) = built_platform.instance.event_log_storage.get_asset_check_execution_history(checked, limit=2)
    assert not record.evaluation.passed
