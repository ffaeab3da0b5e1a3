"""The definitions of a project as the UI and the daemon see them, and how a host loads a nanoset."""

from __future__ import annotations

import warnings
from typing import Any

import dagster as dg
import numpy as np
import pytest

# Not public, but it is what the code server sends; an object that cannot be sent would be missing
# there only.
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster_shared.serdes import deserialize_value, serialize_value

import nanoset_assets
from helpers.sample_platform import Platform
from helpers.sample_project import WITH_PBIN
from nanoset_assets.build.builder import build
from nanoset_assets.dagster_compat import latest_data_versions
from nanoset_assets.definitions import build_definitions
from nanoset_assets.names import Names
from nanoset_assets.tags import CHECK
from nanoset_core import ProjectConfig, load_nanoset
from nanoset_core.errors import MissingError, StaleError
from nanoset_core.project.project import Project
from nanoset_core.project.settings import load_config

HANDOFF = dg.AssetKey(["pretrain", "handoff"])


@pytest.fixture
def config(make_project) -> ProjectConfig:
    """The settings of a project that is not built."""
    return load_config(make_project())


# Runs


def test_an_asset_whose_input_is_missing_names_the_asset_to_materialise_first(config, instance):
    instance.add_dynamic_partitions(Names().corpora_name, ["web"])
    job = build_definitions(config).resolve_job_def("corpus")

    message = r"materialise raw_jsonl \[web\] first"
    with pytest.raises(dg.Failure, match=message) as caught:
        job.execute_in_process(
            instance=instance,
            partition_key="web",
            asset_selection=[dg.AssetKey("tokenized_shards")],
        )

    assert caught.value.metadata["remedy"].value.startswith("run `nanoset build`")


def test_an_asset_whose_input_is_a_missing_view_names_the_view_to_materialise_first(
    make_project, instance
):
    datasets = "views: {kept: {of: web}}\npacks: {full: {of: kept, length: 64}}\nnanosets:\n"
    config = load_config(make_project(replacements={"nanosets:\n": datasets}))
    job = build_definitions(config).resolve_job_def("web_packs")

    with pytest.raises(dg.Failure, match=r"materialise web/views \[kept\] first"):
        job.execute_in_process(instance=instance, partition_key="full")


@pytest.mark.parametrize("job_name", ["corpus", "packed", "pretrain", "shuffled"])
def test_a_run_without_a_partition_makes_nothing_and_says_so(job_name, make_project, instance):
    config = load_config(make_project(replacements=WITH_PBIN))
    job = build_definitions(config).resolve_job_def(job_name)

    result = job.execute_in_process(instance=instance, raise_on_error=False)

    assert not result.success
    (failed_step,) = [event for event in result.all_events if event.is_step_failure]
    error = failed_step.step_failure_data.error.message
    assert "started without a partition" in error
    assert "remedy: choose a partition" in error
    assert not result.get_asset_materialization_events()
    assert not config.root_folder.exists()


def test_a_check_without_a_partition_says_so(config, instance):
    check = dg.AssetCheckKey(dg.AssetKey("indexed_dataset"), CHECK)
    job = build_definitions(config).resolve_job_def("corpus")
    check_job = job.get_subset(asset_check_selection={check}, asset_selection=set())

    with pytest.raises(dg.Failure, match="started without a partition"):
        check_job.execute_in_process(instance=instance)


def test_an_asset_is_rebuilt_if_the_launchpad_says_so(config, instance):
    instance.add_dynamic_partitions(Names().corpora_name, ["web"])
    job = build_definitions(config).resolve_job_def("corpus")

    def n_shards_made(**settings: bool) -> int:
        """Run the job with settings of its launchpad, and return how many shards it made."""
        result = job.execute_in_process(
            instance=instance,
            partition_key="web",
            asset_selection=[dg.AssetKey("raw_jsonl"), dg.AssetKey("tokenized_shards")],
            run_config={"ops": {"tokenized_shards": {"config": settings}}},
        )
        (event,) = result.asset_materializations_for_node("tokenized_shards")
        return event.metadata["shards_made"].value

    assert n_shards_made() > 0
    assert n_shards_made() == 0
    assert n_shards_made(rebuild=True) > 0


def test_a_run_of_a_nanoset_that_was_removed_from_the_settings_is_refused(config, instance):
    job = build_definitions(config).resolve_job_def("plain")
    text = config.file.read_text()
    assert "  plain:" in text
    config.file.write_text(text.replace("  plain:", "  other:"))

    with pytest.raises(dg.Failure, match="other"):
        job.execute_in_process(
            instance=instance,
            asset_selection=[dg.AssetKey(["plain", "index_mappings"])],
            partition_key="train",
        )


def test_a_run_of_a_webdataset_that_was_removed_from_the_settings_is_refused(config, instance):
    job = build_definitions(config).resolve_job_def("shuffled")
    text = config.file.read_text()
    assert "  shuffled:" in text
    config.file.write_text(text.replace("  shuffled:", "  other:"))

    with pytest.raises(dg.Failure, match="other"):
        job.execute_in_process(
            instance=instance, asset_selection=[dg.AssetKey(["shuffled", "shuffle_plan"])]
        )


@pytest.mark.parametrize("partition", [None, "web"], ids=["no partitions", "a partition"])
def test_a_materialisation_without_a_data_version_has_an_empty_one(instance, partition):
    key = dg.AssetKey("asset")
    instance.report_runless_asset_event(dg.AssetMaterialization(key, partition=partition))

    versions = latest_data_versions(instance, key, {partition, "never materialised"})

    assert versions == {partition: ""}


# What the code server sends to the UI and the daemon


@pytest.fixture(scope="module")
def snapshot(template) -> Any:
    """The definitions, as they are after they were sent by a code server."""
    repository = build_definitions(load_config(template / "nanoset.yaml")).get_repository_def()
    with warnings.catch_warnings():
        # of a field that Dagster itself still sends
        warnings.simplefilter("ignore", category=DeprecationWarning)
        sent = serialize_value(RepositorySnap.from_def(repository))
        return deserialize_value(sent, RepositorySnap)


@pytest.fixture(scope="module")
def asset_nodes(snapshot) -> dict[str, Any]:
    """The assets in the snapshot, by key."""
    return {node.asset_key.to_user_string(): node for node in snapshot.asset_nodes}


def upstream_keys(node: Any) -> list[str]:
    """Return the keys of the assets that an asset is made from, sorted."""
    return sorted(edge.parent_asset_key.to_user_string() for edge in node.parent_edges)


def partition_keys(node: Any) -> list[str]:
    """Return the static partitions of an asset."""
    return list(node.partitions.get_partitions_definition().get_partition_keys())


def test_every_asset_is_sent_with_the_assets_that_it_is_made_from(asset_nodes):
    assert {name: upstream_keys(node) for name, node in asset_nodes.items()} == {
        "overview": [],
        "raw_jsonl": [],
        "tokenized_shards": ["raw_jsonl"],
        "indexed_dataset": ["tokenized_shards"],
        "packed_dataset": ["indexed_dataset"],
        "pretrain/index_mappings": ["indexed_dataset"],
        "pretrain/blend": ["pretrain/index_mappings"],
        "pretrain/handoff": ["pretrain/blend"],
        "plain/index_mappings": ["indexed_dataset"],
        "plain/handoff": ["plain/index_mappings"],
        "shuffled/shuffle_plan": ["indexed_dataset"],
        "shuffled/tars": ["indexed_dataset", "shuffled/shuffle_plan"],
        "shuffled/manifest": ["shuffled/tars"],
    }


@pytest.mark.parametrize(
    ("asset", "corpora"),
    [
        ("pretrain/index_mappings", {"web", "code"}),
        ("plain/index_mappings", {"books"}),
        ("shuffled/shuffle_plan", {"web", "code", "books"}),
        ("shuffled/tars", {"web", "code", "books"}),
    ],
)
def test_a_nanoset_or_webdataset_is_made_from_the_partitions_of_its_corpora(
    asset_nodes, asset, corpora
):
    edges = asset_nodes[asset].parent_edges
    mapping_by_parent = {
        edge.parent_asset_key.to_user_string(): edge.partition_mapping for edge in edges
    }

    mapping = mapping_by_parent["indexed_dataset"]

    assert isinstance(mapping, dg.SpecificPartitionsPartitionMapping)
    assert set(mapping.partition_keys) == corpora


@pytest.mark.parametrize("asset", ["raw_jsonl", "tokenized_shards", "indexed_dataset"])
def test_assets_of_every_corpus_share_their_partitions(asset_nodes, asset):
    # Dagster matches the partitions of two assets only if they are of one definition.
    assert asset_nodes[asset].partitions.name == "corpora"


def test_an_asset_of_some_corpora_has_partitions_of_its_own(asset_nodes):
    assert asset_nodes["packed_dataset"].partitions.name == "packed_dataset"


def test_a_nanoset_has_a_partition_for_each_split(asset_nodes):
    assert partition_keys(asset_nodes["pretrain/blend"]) == ["train", "valid", "test"]


def test_the_tars_of_a_webdataset_have_a_partition_for_each_group(asset_nodes):
    assert partition_keys(asset_nodes["shuffled/tars"]) == ["0", "1", "2"]


def test_the_manifest_of_a_webdataset_has_no_partitions(asset_nodes):
    assert asset_nodes["shuffled/manifest"].partitions is None


def test_all_sensors_are_sent_and_switched_on(snapshot):
    sensor_by_name = {sensor.name: sensor for sensor in snapshot.sensors}

    assert sensor_by_name.keys() == {"overview", "raw_text", "missing_or_stale"}
    for sensor in sensor_by_name.values():
        assert sensor.sensor_type.value == "STANDARD"
        assert sensor.default_status.value == "RUNNING"


def test_the_sensor_over_raw_text_runs_the_job_of_a_corpus(snapshot):
    (sensor,) = [sensor for sensor in snapshot.sensors if sensor.name == "raw_text"]

    assert [target.job_name for target in sensor.target_dict.values()] == ["corpus"]


def test_the_schedule_is_sent_and_switched_on(snapshot):
    (schedule,) = snapshot.schedules

    assert schedule.name == "reconcile"
    assert schedule.cron_schedule == "0 3 * * *"
    assert schedule.execution_timezone == "UTC"
    assert schedule.default_status.value == "RUNNING"


def test_only_assets_that_start_worker_processes_are_in_the_pool(asset_nodes):
    names = {name for name, node in asset_nodes.items() if node.pools}

    assert names == {"tokenized_shards", "shuffled/tars"}


# How a host loads the nanoset that was materialised


def latest_event(platform: Platform, key: dg.AssetKey = HANDOFF) -> dg.EventLogEntry:
    """Return the event of the last materialisation of an asset."""
    event = platform.instance.get_latest_materialization_event(key)
    assert event is not None
    return event


def test_the_materialisation_of_a_handoff_leads_to_the_nanoset(built_platform):
    root = built_platform.config.root_folder
    event = latest_event(built_platform)

    train = nanoset_assets.load_materialized(event, "train", root=root)
    valid = nanoset_assets.load_materialized(event.asset_materialization, "valid", root=root)

    expected_train = load_nanoset(root, "pretrain", "train")
    assert len(train) == len(expected_train)
    assert np.array_equal(train[3]["tokens"], expected_train[3]["tokens"])
    assert len(valid) == len(load_nanoset(root, "pretrain", "valid"))


def test_an_asset_of_a_host_reads_the_nanoset_that_was_materialised(built_platform):
    project = Project.open(built_platform.config_file)
    build(project, built_platform.instance, select="pretrain/handoff", rebuild=True)

    @dg.asset(deps=[HANDOFF])
    def model(context):
        event = context.instance.get_latest_materialization_event(HANDOFF)
        nanoset = nanoset_assets.load_materialized(event, "train", reset_position_ids=True)
        largest_position = int(nanoset[0]["position_ids"].max())
        return dg.MaterializeResult(
            metadata={"samples": len(nanoset), "positions": largest_position}
        )

    definitions = dg.Definitions.merge(built_platform.definitions, dg.Definitions(assets=[model]))
    result = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=built_platform.instance, asset_selection=[dg.AssetKey("model")]
    )

    (event,) = result.get_asset_materialization_events()
    assert event.step_materialization_data.materialization.metadata["samples"].value > 0


def rebuild_with_other_settings(platform: Platform, select: str | tuple[str, ...]) -> None:
    """Change the settings of the nanoset and build it, or some outputs of it."""
    platform.edit_settings("seed: 7", "seed: 8")
    report = build(Project.open(platform.config_file), platform.instance, select=select)
    assert not report.failed


def test_a_nanoset_that_was_rebuilt_since_the_materialisation_is_refused(built_platform):
    root = built_platform.config.root_folder
    old_event = latest_event(built_platform)
    rebuild_with_other_settings(built_platform, ())

    with pytest.raises(StaleError, match=r"(?s)moved or deleted.*as `root`"):
        nanoset_assets.load_materialized(old_event, "train", root=root)

    new_event = latest_event(built_platform)
    assert len(nanoset_assets.load_materialized(new_event, "valid", root=root))


def test_only_the_split_that_was_rebuilt_since_the_handoff_is_refused(built_platform):
    root = built_platform.config.root_folder
    event = latest_event(built_platform)
    rebuild_with_other_settings(built_platform, "pretrain/train")

    with pytest.raises(StaleError, match="the split was rebuilt after its handoff"):
        nanoset_assets.load_materialized(event, "train", root=root)

    assert len(nanoset_assets.load_materialized(event, "valid", root=root))


def test_a_missing_materialisation_is_refused():
    with pytest.raises(MissingError, match="not a materialisation of a nanoset's handoff"):
        nanoset_assets.load_materialized(None, "train")


def test_the_materialisation_of_another_asset_is_refused(built_platform):
    event = latest_event(built_platform, dg.AssetKey(["plain", "index_mappings"]))

    with pytest.raises(MissingError, match="not a materialisation of a nanoset's handoff"):
        nanoset_assets.load_materialized(event, "train")
