"""Partitions of corpora: the set that all corpora share, and the sets of assets that only some
corpora have.
"""

from __future__ import annotations

import shutil
import time

import dagster as dg
import pytest
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.definitions.partitions.subset.default import DefaultPartitionsSubset
from dagster._core.execution.asset_backfill import AssetBackfillData
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from helpers.sample_platform import age
from helpers.sample_project import jsonl, sentences
from nanoset_assets.build import build
from nanoset_core.project.project import Project

PACKED = dg.AssetKey("packed_dataset")
TABLE = '{"id": "books-1", "score": 3}\n'


@pytest.fixture
def built(built_platform):
    """Everything is registered and built; only `code` is packed."""
    built_platform.look()
    return built_platform


def edit(platform, old, new):
    text = platform.config_file.read_text()
    assert old in text
    platform.config_file.write_text(text.replace(old, new))


def add_corpus(platform, name):
    (platform.raw / name).mkdir()
    (platform.raw / name / "text.jsonl").write_bytes(jsonl(sentences(name, 10)))
    age(platform.raw / name)


def test_only_corpora_that_are_packed_are_partitions_of_packed_dataset(built):
    assert built.partitions("packed_dataset") == {"code"}
    assert built.corpora == {"books", "code", "web"}


def test_columns_and_attributes_have_sets_of_their_own(built):
    (built.config_file.parent / "scores.jsonl").write_text(TABLE)
    edit(
        built,
        "webdatasets:\n",
        "attributes: {books: scores.jsonl}\ncorpora: {web: {columns: [source]}}\nwebdatasets:\n",
    )
    built.load()
    built.look()
    assert built.partitions("document_attributes") == {"books"}
    assert built.partitions("document_columns") == {"web"}


def test_a_corpus_may_be_packed_without_a_reload(built):
    edit(built, "pbin: [code]", "pbin: [code, web]")
    built.look()
    assert built.partitions("packed_dataset") == {"code", "web"}
    assert built.automation() == {"packed_dataset": {"web"}}
    built.carry_out()
    assert built.instance.get_materialized_partitions(PACKED) == {"code", "web"}


def test_every_partition_of_packed_dataset_can_be_materialized(built):
    for corpus in built.partitions("packed_dataset"):
        job = built.definitions.resolve_job_def("packed")
        result = job.execute_in_process(instance=built.instance, partition_key=corpus)
        assert [
            event.partition for event in result.asset_materializations_for_node("packed_dataset")
        ] == [corpus]


def test_a_corpus_that_is_no_longer_packed_is_no_partition_but_its_history_stays(built):
    edit(built, "pbin: [code]", "pbin: [web]")
    built.look()
    assert built.partitions("packed_dataset") == {"web"}
    assert built.corpora == {"books", "code", "web"}
    assert built.instance.get_materialized_partitions(PACKED) == {"code"}


def test_the_history_of_a_project_of_an_older_version_stays(built):
    # An older version registered no corpora in sets of their own.
    for corpus in built.partitions("packed_dataset"):
        built.instance.delete_dynamic_partition("packed_dataset", corpus)
    built.cursor = None
    built.look()
    assert built.partitions("packed_dataset") == {"code"}
    assert built.automation() == {}, "what was packed before is up to date"


def test_partitions_that_somebody_else_added_stay(built):
    built.instance.add_dynamic_partitions("packed_dataset", ["another_project"])
    built.look()
    built.look()
    assert built.partitions("packed_dataset") == {"another_project", "code"}


def test_a_build_registers_the_sets_too(make_project, instance):
    file = make_project()
    file.write_text(file.read_text() + "pbin: [books]\n")
    assert not build(Project.open(file), instance, corpora=["books"]).failed
    assert instance.get_dynamic_partitions("packed_dataset") == ["books"]


def backfill_of(
    assets: list[dg.AssetKey], corpora: list[str], instance: dg.DagsterInstance
) -> PartitionBackfill:
    """A backfill of assets, as the UI begins one."""
    subsets = {asset: DefaultPartitionsSubset(set(corpora)) for asset in assets}
    data = AssetBackfillData.empty(AssetGraphSubset(subsets, set()), time.time(), instance)
    return PartitionBackfill(
        backfill_id="all",
        status=BulkActionStatus.REQUESTED,
        from_failure=False,
        tags={},
        backfill_timestamp=time.time(),
        asset_selection=assets,
        asset_backfill_data=data,
    )


def backfill_of_job(corpora: list[str]) -> PartitionBackfill:
    """A backfill of a job, which says its partitions and not its assets."""
    return PartitionBackfill(
        backfill_id="all",
        status=BulkActionStatus.REQUESTED,
        from_failure=False,
        tags={},
        backfill_timestamp=time.time(),
        partition_names=corpora,
    )


def without_data(assets: list[dg.AssetKey]) -> PartitionBackfill:
    """A backfill whose partitions cannot be read."""
    return backfill_of_job([])._replace(partition_names=None, asset_selection=assets)


DATASET = dg.AssetKey("indexed_dataset")
BACKFILLS = {
    "of assets": lambda instance: backfill_of([DATASET], ["extra", "web"], instance),
    "of a job": lambda instance: backfill_of_job(["extra"]),
    "of partitions that cannot be read": lambda instance: without_data([DATASET]),
}


@pytest.mark.parametrize("which", BACKFILLS)
def test_the_partition_of_a_removed_corpus_stays_while_a_backfill_targets_it(built, which):
    add_corpus(built, "extra")
    built.look()
    assert built.tick() == ["extra"]
    backfill = BACKFILLS[which](built.instance)
    built.instance.add_backfill(backfill)
    shutil.rmtree(built.raw / "extra")
    for _ in range(4):
        tick = built.look()
    assert "extra" in built.corpora
    assert "extra: its partition of corpora stays" in tick.skip_message
    built.instance.update_backfill(backfill.with_status(BulkActionStatus.COMPLETED_SUCCESS))
    built.look()
    assert "extra" not in built.corpora


def test_a_backfill_of_other_partitions_keeps_none(built):
    add_corpus(built, "extra")
    built.look()
    built.tick()
    built.instance.add_backfill(backfill_of([DATASET], ["web"], built.instance))
    shutil.rmtree(built.raw / "extra")
    for _ in range(2):
        built.look()
    assert "extra" not in built.corpora


def test_the_partition_of_a_corpus_that_is_no_longer_packed_stays_while_a_backfill_targets_it(
    built,
):
    backfill = backfill_of([PACKED], ["code"], built.instance)
    built.instance.add_backfill(backfill)
    edit(built, "pbin: [code]", "pbin: [web]")
    for _ in range(3):
        built.look()
    assert built.partitions("packed_dataset") == {"code", "web"}
    built.instance.update_backfill(backfill.with_status(BulkActionStatus.COMPLETED_SUCCESS))
    built.look()
    assert built.partitions("packed_dataset") == {"web"}
