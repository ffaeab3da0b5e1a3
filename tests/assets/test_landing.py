"""The sensor `landed` builds the corpora whose text another team's asset has written ("landed")."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from helpers.sample_platform import Platform, age
from helpers.sample_project import jsonl, sentences
from nanoset_assets.automation.cursors import LandingCursor, cursor_text, read_cursor
from nanoset_assets.automation.landing_sensor import LANDED_TAG, SENSOR
from nanoset_assets.definitions import definitions_of
from nanoset_assets.project_defs import ProjectDefs
from nanoset_core.errors import MissingError
from nanoset_core.project.settings import load_config

DEDUP = dg.AssetKey(["lake", "dedup"])
"""An asset that lands `web`."""
CRAWL = dg.AssetKey(["lake", "crawl"])
"""An asset with a partition a day that lands `books`."""
UPSTREAM = {"web": (DEDUP,), "books": (CRAWL,)}
"""Corpus → the assets that land its text."""
WITHOUT_CODE = {
    "blend: {web: 0.7, code: 0.3}": "blend: web",
    "corpora: [web, code, books]": "corpora: [web, books]",
}
"""Replacements in the sample project's settings that leave these corpora."""
SHARED_UPSTREAM = {**UPSTREAM, "code": (DEDUP, CRAWL)}
"""The same with a corpus whose text both assets land."""


@dg.asset(key=DEDUP)
def dedup() -> None:
    """Write nothing: tests write the text."""


@dg.asset(key=CRAWL, partitions_def=dg.DailyPartitionsDefinition("2026-01-01"))
def crawl() -> None:
    """Write nothing: tests write the text."""


class Host(Platform):
    """A code location with a project, and with the assets that land the text of its corpora."""

    upstream: Mapping[str, Sequence[dg.AssetKey]] = UPSTREAM
    """Corpus → the assets that land its text."""
    landed_cursor: str | None = None

    def load(self) -> None:
        """Load the definitions of the project and of the host's own assets."""
        super().load()
        config = load_config(self.config_file)
        project_defs = ProjectDefs.of(config, "llm", upstream=self.upstream)
        self.names = project_defs.names
        self.definitions = dg.Definitions.merge(
            definitions_of(project_defs), dg.Definitions(assets=[dedup, crawl])
        )
        self._repository = self.definitions.get_repository_def()

    def evaluate_landed(self) -> dg.SensorResult:
        """Evaluate the sensor once, and carry out the runs that it requests."""
        tick = self.evaluate(SENSOR, self.landed_cursor)
        self.landed_cursor = tick.cursor or self.landed_cursor
        for request in tick.run_requests or []:
            assert self.run(request).success
        return tick

    def build_landed(self) -> list[str]:
        """Evaluate the sensor once, and return the corpora that were built by its runs."""
        return requested_corpora(self.evaluate_landed())

    def built_corpora(self) -> set[str]:
        """Return the corpora that have a dataset."""
        dataset = dg.AssetKey(["llm", "indexed_dataset"])
        return set(self.instance.get_materialized_partitions(dataset))

    def materialise(self, key: dg.AssetKey, partition: str | None = None, **options: Any) -> None:
        """Materialise an asset of the host."""
        result = self.definitions.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=self.instance, asset_selection=[key], partition_key=partition, **options
        )
        assert result.success

    def start_run(self, key: dg.AssetKey, partition: str) -> dg.DagsterRun:
        """Return a run that materialises an asset of the host and has not ended."""
        job = self.definitions.resolve_implicit_global_asset_job_def()
        return self.instance.create_run_for_job(
            job_def=job.get_subset(asset_selection={key}, asset_check_selection=set()),
            status=dg.DagsterRunStatus.STARTED,
            asset_selection=frozenset({key}),
            tags={"dagster/partition": partition},
        )


def requested_corpora(tick: dg.SensorResult) -> list[str]:
    """Return the corpora of which a sensor requests runs, sorted."""
    return sorted(request.partition_key for request in tick.run_requests or [])


class HostWithSharedCorpus(Host):
    """A code location with a corpus whose text two assets land."""

    upstream = SHARED_UPSTREAM


def replace_raw_text(config_file: Path, corpora: Iterable[str]) -> None:
    """Let a project have small corpora only, written a moment ago."""
    raw = config_file.parent / "raw"
    shutil.rmtree(raw)
    for corpus in corpora:
        (raw / corpus).mkdir(parents=True)
        (raw / corpus / "a.jsonl").write_bytes(jsonl(sentences(corpus, 5)))


@pytest.fixture
def host(make_project, instance) -> Host:
    """A host with a corpus of each asset that lands text; no asset was materialised yet."""
    config_file = make_project(replacements=WITHOUT_CODE)
    replace_raw_text(config_file, UPSTREAM)
    return Host(config_file, instance)


@pytest.fixture
def sharing_host(make_project, instance) -> Host:
    """A host with a corpus of each asset that lands text, and one of both."""
    config_file = make_project()
    replace_raw_text(config_file, SHARED_UPSTREAM)
    return HostWithSharedCorpus(config_file, instance)


# What is built


def test_sensors_wait_for_the_asset_that_creates_the_raw_folder(host):
    shutil.move(host.raw, host.raw.with_name("later"))

    for sensor in ("raw_text", "overview"):
        reason = host.evaluate(sensor).skip_message
        assert reason == f"{host.raw} does not exist yet: waiting for lake/crawl, lake/dedup"


def test_sensors_do_not_ask_dagster_about_a_raw_folder_that_exists(host, monkeypatch):
    project_defs = ProjectDefs.of(load_config(host.config_file), "llm", upstream=UPSTREAM)

    def refuse(*arguments: Any) -> None:
        raise AssertionError("Dagster's database was asked")

    monkeypatch.setattr(dg.DagsterInstance, "get_dynamic_partitions", refuse)

    assert project_defs.note_on_raw_folder(host.instance, project_defs.load()) is None


def test_a_raw_folder_that_disappears_is_an_error(host):
    host.look()
    shutil.rmtree(host.raw)

    with pytest.raises(MissingError, match="the folder of raw text does not exist"):
        host.evaluate("raw_text")


def test_nothing_is_built_before_an_asset_was_materialised(host):
    assert "nothing has landed" in host.evaluate_landed().skip_message


def test_exactly_the_corpora_that_depend_on_a_materialised_asset_are_built_once(sharing_host):
    sharing_host.materialise(DEDUP)

    assert sharing_host.build_landed() == ["code", "web"]
    assert sharing_host.corpora == {"code", "web"}
    assert sharing_host.built_corpora() == {"code", "web"}
    assert sharing_host.evaluate_landed().run_requests == []


def test_several_partitions_that_have_landed_are_one_build(host):
    host.materialise(CRAWL, "2026-01-02")
    host.materialise(CRAWL, "2026-01-03")

    assert host.build_landed() == ["books"]
    assert host.build_landed() == []
    assert host.built_corpora() == {"books"}


def test_a_materialisation_that_is_reported_from_outside_dagster_counts(host):
    host.instance.report_runless_asset_event(dg.AssetMaterialization(DEDUP))

    assert host.build_landed() == ["web"]


def test_no_more_runs_are_requested_in_a_tick_than_the_limit_allows(sharing_host, monkeypatch):
    monkeypatch.setattr("nanoset_assets.automation.landing_sensor.MAX_REQUESTS", 1)
    sharing_host.materialise(DEDUP)

    ticks = [sharing_host.build_landed(), sharing_host.build_landed(), sharing_host.build_landed()]

    assert ticks == [["web"], ["code"], []]


def test_a_lost_cursor_does_not_build_anything_twice(host):
    host.materialise(DEDUP)
    host.evaluate_landed()

    host.landed_cursor = None

    assert host.build_landed() == []


@pytest.mark.parametrize("cursor", ["", "{", "[]", '{"web": 1}', '{"handled_ids": {"web": "x"}}'])
def test_with_a_damaged_cursor_what_has_landed_is_built_once(host, cursor):
    host.landed_cursor = cursor
    host.materialise(DEDUP)

    assert host.build_landed() == ["web"]
    host.landed_cursor = cursor
    assert host.build_landed() == []


def test_a_corpus_that_no_asset_lands_any_more_is_forgotten(host):
    host.landed_cursor = cursor_text(LandingCursor({"web": 0, "former": 7}))
    host.materialise(DEDUP)

    host.build_landed()

    assert set(read_cursor(LandingCursor, host.landed_cursor).handled_ids) == {"web"}


# Together with the sensor over raw text


def test_landed_text_is_built_without_waiting_for_it_to_settle(host):
    host.materialise(DEDUP)

    # The sensor over raw text waits, because the files were written a moment ago.
    assert host.look().run_requests == []
    assert host.build_landed() == ["web"]

    # When they are old enough, it does not build them again.
    host.look()
    assert host.look().run_requests == []


def test_text_that_the_sensor_over_raw_text_has_built_is_not_built_again(host):
    host.materialise(DEDUP)
    age(host.raw)
    host.look()
    assert host.tick() == ["books", "web"]

    assert host.build_landed() == []

    # Text that lands after that build is another matter.
    host.materialise(DEDUP)
    assert host.build_landed() == ["web"]


# Missing text


def test_the_sensor_over_raw_text_skips_a_corpus_that_has_not_landed_yet(host):
    shutil.rmtree(host.raw / "web")

    first_tick = host.look()
    second_tick = host.look()

    assert first_tick.run_requests == []
    assert "web: there is no text yet; lake/dedup lands it" in second_tick.skip_message


def test_the_sensor_over_raw_text_fails_if_the_text_of_a_known_corpus_is_missing(host):
    shutil.rmtree(host.raw / "web")
    shutil.rmtree(host.raw / "books")
    host.instance.add_dynamic_partitions(host.names.corpora_name, ["books"])

    # A folder may be missing for a moment while it is replaced, so it fails after a few ticks.
    with pytest.raises(Exception, match="this corpus is not in the raw folder"):
        for _ in range(4):
            host.look()


@pytest.fixture
def host_without_landed_text(host) -> Host:
    """A host whose asset was materialised without writing any text."""
    shutil.rmtree(host.raw / "web")
    host.materialise(DEDUP)
    return host


def test_landed_text_that_is_missing_is_reported_once(host_without_landed_text):
    first_tick = host_without_landed_text.evaluate_landed()
    second_tick = host_without_landed_text.evaluate_landed()

    expected = "web: what lands it was made, but there is no text in raw"
    assert expected in first_tick.skip_message
    assert "nothing has landed" in second_tick.skip_message


def test_landed_text_that_appears_late_is_built_by_the_sensor_over_raw_text(
    host_without_landed_text,
):
    host = host_without_landed_text
    host.evaluate_landed()

    (host.raw / "web").mkdir()
    (host.raw / "web" / "b.jsonl").write_bytes(jsonl(sentences("web", 3)))
    age(host.raw / "web")
    host.look()

    assert "web" in host.tick()


# Runs and backfills that have not ended


@pytest.fixture
def landing_run(host) -> dg.DagsterRun:
    """A run that is landing a day of the asset `crawl`, after another day has landed."""
    host.materialise(CRAWL, "2026-01-02")
    return host.start_run(CRAWL, "2026-01-03")


@pytest.mark.usefixtures("landing_run")
def test_corpora_wait_for_the_runs_that_land_their_text(host):
    tick = host.evaluate_landed()

    assert "books: waits until lake/crawl has ended" in tick.skip_message


@pytest.mark.usefixtures("landing_run")
def test_the_sensor_over_raw_text_waits_for_runs_that_land_text(host):
    age(host.raw)
    host.look()

    # `books` is being written.
    assert requested_corpora(host.look()) == ["web"]


def test_corpora_are_built_when_the_runs_that_land_their_text_have_ended(host, landing_run):
    host.evaluate_landed()

    host.instance.report_run_canceled(landing_run)

    assert host.build_landed() == ["books"]


@pytest.mark.parametrize(
    "asset_selection",
    [
        pytest.param([CRAWL], id="backfill of an asset"),
        pytest.param(None, id="backfill of a job"),
    ],
)
def test_a_backfill_is_one_build_after_its_end(host, asset_selection):
    backfill = PartitionBackfill(
        backfill_id="year",
        status=BulkActionStatus.REQUESTED,
        from_failure=False,
        tags={},
        backfill_timestamp=time.time(),
        asset_selection=asset_selection,
    )
    host.instance.add_backfill(backfill)

    # Neither sensor builds a corpus between two runs of the backfill.
    for day in ("2026-01-02", "2026-01-03"):
        host.materialise(CRAWL, day, tags={"dagster/backfill": "year"})
        age(host.raw)
        tick = host.evaluate_landed()
        assert "books: waits until lake/crawl has ended" in tick.skip_message
        host.look()
        assert "books" not in requested_corpora(host.look())

    # After its end, the corpora are built once; the other sensor builds those that did not land.
    host.instance.update_backfill(backfill.with_status(BulkActionStatus.COMPLETED_SUCCESS))
    assert host.build_landed() == ["books"]
    assert host.build_landed() == []
    assert requested_corpora(host.look()) == ["web"]


def test_text_that_lands_during_a_run_of_its_corpus_is_built_by_another_run(sharing_host):
    sharing_host.materialise(DEDUP)
    sharing_host.evaluate_landed()
    run = sharing_host.instance.create_run_for_job(
        job_def=sharing_host.definitions.resolve_job_def("llm__corpus"),
        tags={"dagster/partition": "web"},
    )

    # While the run of `web` is active, only `code` is built.
    sharing_host.materialise(DEDUP)
    assert sharing_host.build_landed() == ["code"]

    # After its end, whether or not it failed, `web` follows.
    sharing_host.instance.report_run_failed(run, "killed")
    assert sharing_host.build_landed() == ["web"]

    # Each corpus has a run for each of the two materialisations.
    tags = [run.tags.get(f"{LANDED_TAG}.llm", "") for run in sharing_host.instance.get_runs()]
    corpora = [tag.partition(":")[0] for tag in tags if tag]
    assert sorted(corpora) == ["code", "code", "web", "web"]
