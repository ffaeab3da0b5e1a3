"""Assets of others that land text: their materialisation has exactly the corpora built that depend
on them.
"""

from __future__ import annotations

import shutil
import time

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from helpers.sample_platform import Platform, age
from helpers.sample_project import jsonl, sentences
from nanoset_assets.definitions import definitions_of
from nanoset_assets.landing_sensor import LANDED_TAG, SENSOR
from nanoset_assets.project_defs import ProjectDefs
from nanoset_core.project.settings import load_config

DEDUP, CRAWL = dg.AssetKey(["lake", "dedup"]), dg.AssetKey(["lake", "crawl"])
UPSTREAM = {"web": (DEDUP,), "code": (DEDUP, CRAWL), "books": (CRAWL,)}


class Host(Platform):
    """A project, two of whose corpora are landed by assets of a host."""

    landed_cursor: str | None = None

    def load(self) -> None:
        super().load()
        project_defs = ProjectDefs.of(load_config(self.config_file), "llm", upstream=UPSTREAM)
        self.names = project_defs.names
        self.definitions = dg.Definitions.merge(
            definitions_of(project_defs), dg.Definitions(assets=[dedup, crawl])
        )
        self._repository = self.definitions.get_repository_def()

    def land(self) -> dg.SensorResult:
        """One tick; what it asks for is carried out."""
        tick = self.evaluate(SENSOR, self.landed_cursor)
        self.landed_cursor = tick.cursor or self.landed_cursor
        for request in tick.run_requests or []:
            assert self.run(request).success
        return tick


@dg.asset(key=DEDUP)
def dedup() -> None: ...


@dg.asset(key=CRAWL, partitions_def=dg.DailyPartitionsDefinition("2026-01-01"))
def crawl() -> None: ...


@pytest.fixture
def host(make_project, tmp_path):
    config = make_project()
    for corpus in ("web", "code", "books"):
        shutil.rmtree(config.parent / "raw" / corpus)
        (config.parent / "raw" / corpus).mkdir()
        (config.parent / "raw" / corpus / "a.jsonl").write_bytes(jsonl(sentences(corpus, 5)))
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield Host(config, instance)


def materialise(host, key, partition=None):
    host.definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=host.instance, asset_selection=[key], partition_key=partition
    )


def asked(tick):
    return sorted(request.partition_key for request in tick.run_requests or [])


def test_exactly_the_corpora_that_depend_on_it_are_built_and_once(host):
    assert "nothing has landed" in host.land().skip_message
    materialise(host, DEDUP)
    tick = host.land()
    assert asked(tick) == ["code", "web"]
    assert host.corpora == {"code", "web"}
    assert host.land().run_requests == []
    materialise(host, CRAWL, "2026-01-02")
    materialise(host, CRAWL, "2026-01-03")
    assert asked(host.land()) == ["books", "code"]
    assert asked(host.land()) == []
    made = host.instance.get_materialized_partitions(dg.AssetKey(["llm", "indexed_dataset"]))
    assert made == {"books", "code", "web"}


def test_what_has_landed_is_taken_without_waiting_for_it_to_settle(host):
    materialise(host, DEDUP)
    assert host.look().run_requests == [], "it was written a moment ago"
    assert asked(host.land()) == ["code", "web"]
    host.look()
    assert host.look().run_requests == [], "and is not built again"


def test_a_corpus_that_has_not_landed_yet_is_no_fault(host):
    shutil.rmtree(host.raw / "web")
    tick = host.look()
    assert "web: there is no text yet; lake/dedup lands it" in host.look().skip_message
    assert tick.run_requests == []
    shutil.rmtree(host.raw / "books")
    host.instance.add_dynamic_partitions(host.names.corpora_name, ["books"])
    with pytest.raises(Exception, match="this corpus is not in the raw folder"):
        host.look()
        host.look()
        host.look()


def test_an_event_from_outside_counts(host):
    host.instance.report_runless_asset_event(dg.AssetMaterialization(DEDUP))
    assert asked(host.land()) == ["code", "web"]


def test_text_that_is_not_there_is_said_and_left_to_the_other_sensor(host):
    shutil.rmtree(host.raw / "web")
    shutil.rmtree(host.raw / "code")
    materialise(host, DEDUP)
    assert "web: what lands it was made, but there is no text in raw" in host.land().skip_message
    assert "nothing has landed" in host.land().skip_message
    (host.raw / "web").mkdir()
    (host.raw / "web" / "b.jsonl").write_bytes(jsonl(sentences("web", 3)))
    age(host.raw / "web")
    host.look()
    assert "web" in host.tick()


def begun(host, key, partition=None):
    job = host.definitions.resolve_implicit_global_asset_job_def()
    tags = {} if partition is None else {"dagster/partition": partition}
    return host.instance.create_run_for_job(
        job_def=job.get_subset(asset_selection={key}, asset_check_selection=set()),
        status=dg.DagsterRunStatus.STARTED,
        asset_selection=frozenset({key}),
        tags=tags,
    )


def test_what_is_still_being_landed_is_waited_for(host):
    materialise(host, CRAWL, "2026-01-02")
    other = begun(host, CRAWL, "2026-01-03")
    assert "books: waits until lake/crawl has ended" in host.land().skip_message
    age(host.raw)
    host.look()
    assert asked(host.look()) == ["web"], (
        "nor does the sensor over raw text read what is being written"
    )
    host.instance.report_run_canceled(other)
    assert asked(host.land()) == ["books", "code"]


@pytest.mark.parametrize("of_a_job", [False, True])
def test_a_backfill_is_one_build(host, of_a_job):
    backfill = PartitionBackfill(
        backfill_id="year",
        status=BulkActionStatus.REQUESTED,
        from_failure=False,
        tags={},
        backfill_timestamp=time.time(),
        asset_selection=None if of_a_job else [CRAWL],
    )
    host.instance.add_backfill(backfill)
    job = host.definitions.resolve_implicit_global_asset_job_def()
    for day in ("2026-01-02", "2026-01-03"):
        made = {"instance": host.instance, "asset_selection": [CRAWL], "partition_key": day}
        assert job.execute_in_process(**made, tags={"dagster/backfill": "year"}).success
        age(host.raw)
        assert "books: waits until lake/crawl has ended" in host.land().skip_message
        host.look()
        assert "books" not in asked(host.look())
    host.instance.update_backfill(backfill.with_status(BulkActionStatus.COMPLETED_SUCCESS))
    assert asked(host.land()) == ["books", "code"]
    assert asked(host.land()) == []
    assert asked(host.look()) == ["web"]


def test_no_more_runs_are_asked_for_in_a_tick_than_another_sensor_does(host, monkeypatch):
    monkeypatch.setattr("nanoset_assets.landing_sensor.MAX_REQUESTS", 1)
    materialise(host, DEDUP)
    assert [asked(host.land()), asked(host.land()), asked(host.land())] == [["web"], ["code"], []]


def test_a_run_under_way_is_followed_by_another(host):
    materialise(host, DEDUP)
    host.land()
    run = host.instance.create_run_for_job(
        job_def=host.definitions.resolve_job_def("llm__corpus"), tags={"dagster/partition": "web"}
    )
    materialise(host, DEDUP)
    assert asked(host.land()) == ["code"]
    host.instance.report_run_failed(run, "killed")
    assert asked(host.land()) == ["web"]
    tags = [run.tags.get(LANDED_TAG + ".llm", "") for run in host.instance.get_runs()]
    assert sorted(tag.partition(":")[0] for tag in tags if tag) == ["code", "code", "web", "web"]


def test_without_its_cursor_nothing_is_built_twice(host):
    materialise(host, DEDUP)
    host.land()
    host.landed_cursor = None
    assert asked(host.land()) == []


def test_what_another_sensor_had_built_meanwhile_is_not_built_again(host):
    materialise(host, DEDUP)
    age(host.raw)
    host.look()
    assert host.tick() == ["books", "code", "web"]
    assert asked(host.land()) == []
    materialise(host, DEDUP)
    assert asked(host.land()) == ["code", "web"]
