"""Several projects on one Dagster instance, with corpora of equal names, do not affect each other."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from helpers.sample_platform import Platform, age
from helpers.sample_project import jsonl, sentences
from nanoset_assets.automation import stale_sensor
from nanoset_assets.build.builder import build
from nanoset_assets.history.run_owner import close_abandoned_runs
from nanoset_assets.names import Names
from nanoset_core.project.project import Project
from nanoset_core.storage.in_use.process_marks import place_of_process_ids

TICKS = int(os.environ.get("TICKS", "8"))
"""How often the sensors of a random project are evaluated; 1,000 times take ten minutes."""
CORPORA = ["web", "code", "law", "news"]
DEAD_PROCESS = 2**22 - 7
"""A process id that is not in use."""


def write_corpus(folder: Path, n_documents: int) -> None:
    """Write documents into the folder of a corpus, as if they had been there for an hour."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.jsonl").write_bytes(jsonl(sentences(folder.name, n_documents)))
    age(folder)


@pytest.fixture
def make_small_project(make_project) -> Callable[..., Path]:
    """A function that writes a project of small corpora, and returns its nanoset.yaml."""

    def make(name: str, corpora: list[str], key_prefix: str | None = None) -> Path:
        config_file = make_project(name)
        raw_folder = config_file.parent / "raw"
        shutil.rmtree(raw_folder)
        for corpus in corpora:
            write_corpus(raw_folder / corpus, 4)

        # The sample project's nanosets need other corpora: leave them out.
        settings = config_file.read_text().partition("nanosets:")[0]
        if key_prefix is not None:
            settings += f"dagster: {{key_prefix: [{key_prefix}]}}\n"
        config_file.write_text(settings)
        return config_file

    return make


@pytest.fixture
def make_platform(make_small_project, instance) -> Callable[..., Platform]:
    """A function that adds a project of small corpora to the instance."""

    def make(name: str, corpora: list[str], key_prefix: str | None = None) -> Platform:
        return Platform(make_small_project(name, corpora, key_prefix), instance)

    return make


def materialised_partitions(instance: dg.DagsterInstance) -> dict[str, set[str]]:
    """Return the partitions of all assets that were made, by the first part of their keys."""
    partitions: dict[str, set[str]] = {}
    for key in instance.all_asset_keys():
        of_prefix = partitions.setdefault(key.path[0], set())
        of_prefix.update(instance.get_materialized_partitions(key))
    return partitions


# Projects with different key prefixes


def corpora_of_others(platforms: dict[str, Platform], platform: Platform) -> dict[str, set[str]]:
    """Return the partitions of all projects except one, by project."""
    corpora = {}
    for name, other_platform in platforms.items():
        if other_platform is not platform:
            corpora[name] = other_platform.corpora
    return corpora


def change_corpus(folder: Path, n_documents: int, rng: random.Random) -> None:
    """Delete a corpus, or write it again."""
    if folder.exists() and rng.random() < 0.5:
        shutil.rmtree(folder)
    else:
        write_corpus(folder, n_documents)


def evaluate_sensors(platform: Platform, rng: random.Random) -> None:
    """Evaluate the sensors of a project, and check that they request nothing of another project.

    Some of the requested runs of corpora are carried out, as if the others were still queued.
    """
    for _ in range(2):
        requests = platform.look().run_requests or []
        for request in requests:
            assert request.job_name in {None, platform.names.definition("corpus")}
        for request in requests[: rng.randrange(3)]:
            assert platform.run(request).success

    platform.automation()
    for request in platform.stale_requests:
        for key in request.asset_selection:
            assert platform.names.path(key) is not None, f"{key} is of another project"


def check_newest_runs(platform: Platform, n_runs: int) -> None:
    """Check that the newest runs of the instance are runs of a project's corpora."""
    if n_runs == 0:
        return
    process_tag = ".".join(["nanoset_process", *platform.names.key_prefix])
    for run in platform.instance.get_runs(limit=n_runs):
        assert run.job_name == platform.names.definition("corpus")
        assert any(tag.endswith(process_tag) for tag in run.tags)


def test_sensors_of_a_project_request_and_delete_nothing_of_another(make_platform, instance):
    rng = random.Random(3)
    platforms = {
        "a": make_platform("a", CORPORA[:2], "a"),
        "b": make_platform("b", CORPORA[:2], "b"),
        "without prefix": make_platform("without-prefix", CORPORA[:2]),
    }

    # Change the text of random projects, and evaluate their sensors.
    for tick in range(TICKS):
        platform = rng.choice(list(platforms.values()))
        corpora_before = corpora_of_others(platforms, platform)
        n_runs_before = instance.get_runs_count()
        change_corpus(platform.raw / rng.choice(CORPORA), 3 + tick % 3, rng)

        evaluate_sensors(platform, rng)

        assert corpora_of_others(platforms, platform) == corpora_before
        check_newest_runs(platform, instance.get_runs_count() - n_runs_before)

    # In the end, each project comes to rest with the corpora of its own raw folder.
    for platform in platforms.values():
        for _ in range(3):
            platform.tick()
        assert platform.corpora == {path.name for path in platform.raw.iterdir()}
        assert platform.look().skip_message.endswith("nothing has changed")


def test_projects_with_the_same_raw_folder_each_build_its_corpora(make_small_project, instance):
    config_a = make_small_project("first", ["web"], "a")
    config_b = make_small_project("second", ["web"], "b")
    raw_folder = config_a.parent / "raw"
    config_b.write_text(config_b.read_text().replace("raw: raw", f"raw: {raw_folder}"))
    platform_a = Platform(config_a, instance)
    platform_b = Platform(config_b, instance)

    # The first tick sees the text, the second one finds it unchanged and builds it. The runs of one
    # project do not count as runs of the other.
    ticks_of_a = []
    ticks_of_b = []
    for _ in range(3):
        ticks_of_a.append(platform_a.tick())
        ticks_of_b.append(platform_b.tick())

    assert ticks_of_a == [[], ["web"], []]
    assert ticks_of_b == [[], ["web"], []]
    assert materialised_partitions(instance) == {"a": {"web"}, "b": {"web"}}


def test_a_corpus_is_built_while_the_same_corpus_of_another_project_is(make_platform, instance):
    platform = make_platform("one", ["web"], "one")
    other_platform = make_platform("two", ["web"], "two")
    platform.look()
    other_platform.look()
    (request,) = platform.look().run_requests
    run = instance.create_run_for_job(
        job_def=platform.definitions.resolve_job_def("one__corpus"),
        tags={"dagster/partition": "web", **request.tags},
    )

    assert platform.look().run_requests == []
    assert other_platform.tick() == ["web"]

    instance.report_run_failed(run, "killed")


# Projects without a key prefix, in different code locations


def test_projects_without_prefix_keep_each_others_corpora(make_platform):
    platform = make_platform("one", ["web"])
    other_platform = make_platform("two", ["law", "code"])

    for _ in range(4):
        platform.tick()
        other_platform.tick()
        assert platform.corpora == {"web", "law", "code"}


def test_a_project_without_prefix_deletes_its_own_corpora_only(make_platform):
    platform = make_platform("one", ["web"])
    other_platform = make_platform("two", ["law", "code"])
    for _ in range(4):
        platform.tick()
        other_platform.tick()

    shutil.rmtree(other_platform.raw / "law")
    for _ in range(3):
        platform.tick()
        other_platform.tick()

    assert platform.corpora == {"web", "code"}


# Abandoned runs


@pytest.fixture
def platform(make_platform) -> Platform:
    """A project whose assets have the prefix `one`."""
    return make_platform("one", ["web"], "one")


@pytest.fixture
def abandoned_run(platform, instance) -> dg.DagsterRun:
    """A run of the project whose process has died."""
    process_tag = platform.names.tag(".dagster/nanoset_process")
    return instance.create_run_for_job(
        job_def=platform.definitions.resolve_job_def("one__corpus"),
        status=dg.DagsterRunStatus.STARTED,
        tags={process_tag: f"{place_of_process_ids()}:{DEAD_PROCESS}:1:"},
    )


def test_a_project_closes_its_abandoned_runs(platform, abandoned_run, instance):
    assert close_abandoned_runs(instance, platform.names) == [abandoned_run.run_id]


@pytest.mark.usefixtures("abandoned_run")
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(Names(), id="a project without prefix"),
        pytest.param(Names(("two",)), id="a project with another prefix"),
    ],
)
def test_a_project_does_not_close_abandoned_runs_of_another(instance, names):
    assert close_abandoned_runs(instance, names) == []


# `nanoset build` of a project with a prefix


@pytest.fixture
def prefixed_config(make_small_project) -> Path:
    """The nanoset.yaml of a project whose assets have the prefix `llm`."""
    return make_small_project("one", ["web"], "llm")


def test_a_build_is_recorded_under_the_prefix(prefixed_config, instance):
    report = build(Project.open(prefixed_config), instance)

    assert not report.failed
    assert materialised_partitions(instance) == {"llm": {"web"}}
    assert instance.get_dynamic_partitions("llm/corpora") == ["web"]
    assert instance.get_dynamic_partitions("corpora") == []


def test_a_second_build_of_a_project_with_a_prefix_has_nothing_to_make(prefixed_config, instance):
    build(Project.open(prefixed_config), instance)

    report = build(Project.open(prefixed_config), instance)

    assert report.made == {}


def test_an_asset_is_selected_by_its_key_with_the_prefix(prefixed_config, instance):
    build(Project.open(prefixed_config), instance)

    report = build(
        Project.open(prefixed_config), instance, select="llm/indexed_dataset", rebuild=True
    )

    assert list(report.made) == ["indexed_dataset [web]"]


def test_sensors_request_nothing_after_a_build(prefixed_config, instance):
    build(Project.open(prefixed_config), instance)
    platform = Platform(prefixed_config, instance)

    # The first evaluation only sees the text; the second would request what is missing.
    platform.look()
    corpora_built = platform.tick()
    requests = platform.automation()

    assert corpora_built == []
    assert requests == {}
    assert "missing or stale" in platform.evaluate(stale_sensor.SENSOR).skip_message
