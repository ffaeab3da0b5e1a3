"""Partitions of corpora: a set for assets of every corpus, and sets for assets of some corpora."""

from __future__ import annotations

import shutil
import time

import dagster as dg
import pytest
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.definitions.partitions.subset.default import DefaultPartitionsSubset
from dagster._core.execution.asset_backfill import AssetBackfillData
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from helpers.sample_platform import Platform, age
from helpers.sample_project import jsonl, sentences
from nanoset_assets.build.builder import build
from nanoset_core.project.project import Project

DATASET = dg.AssetKey("indexed_dataset")
PACKED = dg.AssetKey("packed_dataset")
SCORES = '{"id": "books-1", "score": 3}\n'
"""A table of attributes."""


@pytest.fixture
def platform(built_platform) -> Platform:
    """A project whose corpora are registered and built; only `code` is listed under `pbin`."""
    built_platform.look()
    return built_platform


# Which corpora are partitions of which assets


def test_only_corpora_under_pbin_are_partitions_of_packed_dataset(platform):
    assert platform.partitions("packed_dataset") == {"code"}
    assert platform.corpora == {"books", "code", "web"}


def test_columns_and_attributes_have_partitions_of_their_own(platform):
    (platform.config_file.parent / "scores.jsonl").write_text(SCORES)
    platform.edit_settings(
        "webdatasets:\n",
        "attributes: {books: scores.jsonl}\ncorpora: {web: {columns: [source]}}\nwebdatasets:\n",
    )
    platform.load()

    platform.look()

    assert platform.partitions("document_attributes") == {"books"}
    assert platform.partitions("document_columns") == {"web"}


def test_a_corpus_that_is_added_to_pbin_is_converted_without_a_reload(platform):
    platform.edit_settings("pbin: [code]", "pbin: [code, web]")
    platform.look()

    assert platform.partitions("packed_dataset") == {"code", "web"}
    assert platform.automation() == {"packed_dataset": {"web"}}
    platform.carry_out()
    assert platform.instance.get_materialized_partitions(PACKED) == {"code", "web"}


def test_every_partition_of_packed_dataset_can_be_materialised(platform):
    job = platform.definitions.resolve_job_def("packed")

    for corpus in platform.partitions("packed_dataset"):
        result = job.execute_in_process(instance=platform.instance, partition_key=corpus)
        (event,) = result.asset_materializations_for_node("packed_dataset")
        assert event.partition == corpus


def test_a_corpus_that_is_removed_from_pbin_keeps_its_history_but_no_partition(platform):
    platform.edit_settings("pbin: [code]", "pbin: [web]")

    platform.look()

    assert platform.partitions("packed_dataset") == {"web"}
    assert platform.corpora == {"books", "code", "web"}
    assert platform.instance.get_materialized_partitions(PACKED) == {"code"}


def test_partitions_that_a_project_of_an_older_version_lacks_are_added(platform):
    # An older version registered no corpora in sets of their own.
    for corpus in platform.partitions("packed_dataset"):
        platform.instance.delete_dynamic_partition("packed_dataset", corpus)
    platform.cursor = None

    platform.look()

    assert platform.partitions("packed_dataset") == {"code"}
    assert platform.automation() == {}  # what was made before is up to date


def test_partitions_that_somebody_else_has_added_are_kept(platform):
    platform.instance.add_dynamic_partitions("packed_dataset", ["another_project"])

    platform.look()
    platform.look()

    assert platform.partitions("packed_dataset") == {"another_project", "code"}


def test_a_build_adds_the_partitions_of_all_sets(make_project, instance):
    config_file = make_project()
    with config_file.open("a") as file:
        file.write("pbin: [books]\n")

    report = build(Project.open(config_file), instance, corpora=["books"])

    assert not report.failed
    assert instance.get_dynamic_partitions("packed_dataset") == ["books"]


# Partitions that a backfill targets


def backfill_of(
    instance: dg.DagsterInstance, asset: dg.AssetKey, corpora: list[str]
) -> PartitionBackfill:
    """Return a backfill of an asset, as the UI starts one."""
    targets = AssetGraphSubset({asset: DefaultPartitionsSubset(set(corpora))}, set())
    return PartitionBackfill(
        backfill_id="all",
        status=BulkActionStatus.REQUESTED,
        from_failure=False,
        tags={},
        backfill_timestamp=time.time(),
        asset_selection=[asset],
        asset_backfill_data=AssetBackfillData.empty(targets, time.time(), instance),
    )


def backfill_of_job(corpora: list[str]) -> PartitionBackfill:
    """Return a backfill of a job, which names its partitions but not its assets."""
    return PartitionBackfill(
        backfill_id="all",
        status=BulkActionStatus.REQUESTED,
        from_failure=False,
        tags={},
        backfill_timestamp=time.time(),
        partition_names=corpora,
    )


def backfill_without_partitions(asset: dg.AssetKey) -> PartitionBackfill:
    """Return a backfill of an asset whose partitions cannot be read."""
    return backfill_of_job([])._replace(partition_names=None, asset_selection=[asset])


def complete(platform: Platform, backfill: PartitionBackfill) -> None:
    """Let a backfill end."""
    completed = backfill.with_status(BulkActionStatus.COMPLETED_SUCCESS)
    platform.instance.update_backfill(completed)


@pytest.fixture
def platform_with_extra(platform) -> Platform:
    """A project with another corpus, `extra`, which is built, too."""
    folder = platform.raw / "extra"
    folder.mkdir()
    (folder / "text.jsonl").write_bytes(jsonl(sentences("extra", 10)))
    age(folder)
    platform.look()
    assert platform.tick() == ["extra"]
    return platform


@pytest.mark.parametrize("kind", ["of an asset", "of a job", "of unknown partitions"])
def test_a_removed_corpus_stays_a_partition_while_a_backfill_may_target_it(
    platform_with_extra, kind
):
    platform = platform_with_extra
    backfills = {
        "of an asset": backfill_of(platform.instance, DATASET, ["extra", "web"]),
        "of a job": backfill_of_job(["extra"]),
        "of unknown partitions": backfill_without_partitions(DATASET),
    }
    backfill = backfills[kind]
    platform.instance.add_backfill(backfill)

    shutil.rmtree(platform.raw / "extra")
    for _ in range(4):
        tick = platform.look()
    assert "extra" in platform.corpora
    assert "extra: its partition of corpora stays" in tick.skip_message

    complete(platform, backfill)
    platform.look()
    assert "extra" not in platform.corpora


def test_a_backfill_of_other_partitions_does_not_keep_a_removed_corpus(platform_with_extra):
    platform = platform_with_extra
    platform.instance.add_backfill(backfill_of(platform.instance, DATASET, ["web"]))

    shutil.rmtree(platform.raw / "extra")
    platform.look()
    platform.look()

    assert "extra" not in platform.corpora


def test_a_corpus_that_is_removed_from_pbin_stays_a_partition_while_a_backfill_targets_it(platform):
    backfill = backfill_of(platform.instance, PACKED, ["code"])
    platform.instance.add_backfill(backfill)

    platform.edit_settings("pbin: [code]", "pbin: [web]")
    for _ in range(3):
        platform.look()
    assert platform.partitions("packed_dataset") == {"code", "web"}

    complete(platform, backfill)
    platform.look()
    assert platform.partitions("packed_dataset") == {"web"}
