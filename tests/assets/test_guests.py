"""Several projects on one instance, with corpora of equal names: none touches what is another's."""

from __future__ import annotations

import os
import random
import shutil
import socket

import dagster as dg

from helpers.sample_platform import Platform, age
from helpers.sample_project import jsonl, sentences
from nanoset_assets import stale_sensor
from nanoset_assets.build import build
from nanoset_assets.names import Names
from nanoset_assets.run_owner import close_abandoned_runs
from nanoset_core.project.project import Project

TICKS = int(os.environ.get("TICKS", "20"))
"""Looks of a project's sensors; 1,000 take ten minutes."""


def project(make_project, name, corpora, prefix=None):
    """A project of a few small corpora; → its nanoset.yaml."""
    config = make_project(name)
    raw = config.parent / "raw"
    shutil.rmtree(raw)
    for corpus in corpora:
        write(raw / corpus, 4)
    prefixed = f"dagster: {{key_prefix: [{prefix}]}}\n" if prefix else ""
    config.write_text(config.read_text().partition("nanosets:")[0] + prefixed)
    return config


def write(folder, count):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.jsonl").write_bytes(jsonl(sentences(folder.name, count)))
    age(folder)


def keys_of_runs(instance):
    """First part of the key of each asset that was made → partitions."""
    made: dict[str, set[str]] = {}
    for key in instance.all_asset_keys():
        made.setdefault(key.path[0], set()).update(instance.get_materialized_partitions(key))
    return made


def test_ticks_of_one_project_touch_nothing_of_another(make_project, instance):
    choose = random.Random(3)
    names = {"a": "a", "b": "b", "c": "c", "alone": None}
    pool = ["web", "code", "law", "news"]
    platforms = {
        name: Platform(project(make_project, name, pool[:2], prefix), instance)
        for name, prefix in names.items()
    }
    for tick in range(TICKS):
        platform = platforms[choose.choice(list(platforms))]
        corpus = choose.choice(pool)
        before = {name: other.corpora for name, other in platforms.items() if other is not platform}
        runs = instance.get_runs_count()
        folder = platform.raw / corpus
        if folder.exists() and choose.random() < 0.5:
            shutil.rmtree(folder)
        else:
            write(folder, 3 + tick % 3)
        for _ in range(2):
            asked = platform.look().run_requests or []
            assert {request.job_name for request in asked} <= {
                None,
                platform.names.definition("corpus"),
            }
            for request in asked[: choose.randrange(3)]:
                assert platform.run(request).success
        platform.automation()
        assert all(
            platform.names.path(key) is not None
            for request in platform.asked_for
            for key in request.asset_selection
        )
        assert {
            name: other.corpora for name, other in platforms.items() if other is not platform
        } == before
        prefix = platform.names.key_prefix
        begun = instance.get_runs_count() - runs
        for run in instance.get_runs(limit=begun) if begun else []:
            assert run.job_name == platform.names.definition("corpus")
            assert any(tag.endswith(".".join(["nanoset_process", *prefix])) for tag in run.tags)
    for platform in platforms.values():
        for _ in range(3):
            platform.tick()
        assert platform.corpora == {path.name for path in platform.raw.iterdir()}
        assert platform.look().skip_message.endswith("nothing has changed")


def test_unprefixed_projects_of_two_locations_do_not_delete_each_others_corpora(
    make_project, instance
):
    one = Platform(project(make_project, "one", ["web"]), instance)
    two = Platform(project(make_project, "two", ["law", "code"]), instance)
    for _ in range(4):
        one.tick()
        two.tick()
        assert one.corpora == {"web", "law", "code"}
    shutil.rmtree(two.raw / "law")
    for _ in range(3):
        one.tick()
        two.tick()
    assert one.corpora == {"web", "code"}


def test_two_tokenizers_over_one_raw_folder(make_project, instance):
    first = project(make_project, "first", ["web"], "a")
    second = project(make_project, "second", ["web"], "b")
    second.write_text(second.read_text().replace("raw: raw", f"raw: {first.parent / 'raw'}"))
    platforms = [Platform(config, instance) for config in (first, second)]
    assert [platform.tick() for platform in platforms] == [[], []]
    assert [platform.tick() for platform in platforms] == [["web"], ["web"]]
    assert [platform.tick() for platform in platforms] == [[], []], (
        "the run of one is not taken for the other's"
    )
    assert keys_of_runs(instance) == {"a": {"web"}, "b": {"web"}}


def test_a_run_of_one_does_not_hold_up_another(make_project, instance):
    one, two = (
        Platform(project(make_project, name, ["web"], name), instance) for name in ("one", "two")
    )
    one.look()
    two.look()
    (request,) = one.look().run_requests
    run = instance.create_run_for_job(
        job_def=one.definitions.resolve_job_def("one__corpus"),
        tags={"dagster/partition": "web", **request.tags},
    )
    assert one.look().run_requests == []
    assert two.tick() == ["web"]
    instance.report_run_failed(run, "killed")


def test_abandoned_runs_are_closed_by_their_own_project(make_project, instance):
    platform = Platform(project(make_project, "one", ["web"], "one"), instance)
    dead = {
        platform.names.tag(".dagster/nanoset_process"): f"{socket.gethostname()}:{2**22 - 7}:1:"
    }
    run = instance.create_run_for_job(
        job_def=platform.definitions.resolve_job_def("one__corpus"),
        status=dg.DagsterRunStatus.STARTED,
        tags=dead,
    )
    assert close_abandoned_runs(instance, Names()) == []
    assert close_abandoned_runs(instance, Names(("two",))) == []
    assert close_abandoned_runs(instance, platform.names) == [run.run_id]


def test_nanoset_build_records_under_the_prefix(make_project, instance):
    config = project(make_project, "one", ["web"], "llm")
    report = build(Project.open(config), instance)
    assert not report.failed
    assert keys_of_runs(instance) == {"llm": {"web"}}
    assert instance.get_dynamic_partitions("llm/corpora") == ["web"]
    assert instance.get_dynamic_partitions("corpora") == []
    assert build(Project.open(config), instance).made == {}
    selected = build(Project.open(config), instance, select="llm/indexed_dataset", rebuild=True)
    assert list(selected.made) == ["indexed_dataset [web]"]
    platform = Platform(config, instance)
    platform.look()
    assert platform.tick() == []
    assert platform.automation() == {}
    tick = platform.evaluate(stale_sensor.SENSOR)
    assert "missing or stale" in tick.skip_message
