"""What Dagster loads, as the UI and the daemon see it; and what an asset of a host gets of a
nanoset.
"""

from __future__ import annotations

import warnings

import dagster as dg
import numpy as np
import pytest

# Not public, but it is what the code server sends; an object that cannot be sent would be missing
# there only.
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster_shared.serdes import deserialize_value, serialize_value

import nanoset_assets
from helpers.sample_platform import Platform
from nanoset_assets.build import build
from nanoset_assets.dagster_compat import latest_data_versions
from nanoset_assets.definitions import build_definitions
from nanoset_assets.names import Names
from nanoset_core import load_nanoset
from nanoset_core.errors import MissingError, StaleError
from nanoset_core.project.project import Project
from nanoset_core.project.settings import load_config


@pytest.fixture
def config(make_project):
    return load_config(make_project())


def test_an_asset_without_its_input_says_which_to_materialise_first(config, instance):
    instance.add_dynamic_partitions(Names().corpora_name, ["web"])
    job = build_definitions(config).resolve_job_def("corpus")
    with pytest.raises(
        dg.Failure, match="materialise raw_jsonl for the corpus 'web' first"
    ) as caught:
        job.execute_in_process(
            instance=instance,
            partition_key="web",
            asset_selection=[dg.AssetKey("tokenized_shards")],
        )
    assert caught.value.metadata["remedy"].value.startswith("run `nanoset build`")


def test_an_asset_is_made_again_where_the_launchpad_says_so(config, instance):
    instance.add_dynamic_partitions(Names().corpora_name, ["web"])
    job = build_definitions(config).resolve_job_def("corpus")
    shards = dg.AssetKey("tokenized_shards")

    def made(**settings):
        done = job.execute_in_process(
            instance=instance,
            partition_key="web",
            asset_selection=[dg.AssetKey("raw_jsonl"), shards],
            run_config={"ops": {"tokenized_shards": {"config": settings}}},
        )
        return (
            done.asset_materializations_for_node("tokenized_shards")[0]
            .metadata["shards_made"]
            .value
        )

    assert [made() > 0, made(), made(rebuild=True) > 0] == [True, 0, True]


@pytest.mark.parametrize(
    ("job", "old", "new", "asset"),
    [
        ("plain", "  plain:", "  other:", "index_mappings"),
        ("shuffled", "  shuffled:", "  other:", "shuffle_plan"),
    ],
)
def test_what_the_configuration_no_longer_names_is_refused(config, instance, job, old, new, asset):
    jobs = build_definitions(config)
    text = config.file.read_text()
    assert old in text
    config.file.write_text(text.replace(old, new))
    parts = {"partition_key": "train"} if job == "plain" else {}
    with pytest.raises(dg.Failure, match="other"):
        jobs.resolve_job_def(job).execute_in_process(
            instance=instance, asset_selection=[dg.AssetKey([job, asset])], **parts
        )


def test_a_materialisation_without_a_data_version_is_one(instance):
    for path, partition in ((["whole"], None), (["cut"], "web")):
        instance.report_runless_asset_event(
            dg.AssetMaterialization(dg.AssetKey(path), partition=partition)
        )
        assert latest_data_versions(instance, dg.AssetKey(path), {partition, "none"}) == {
            partition: ""
        }


@pytest.fixture(scope="module")
def snapshot(template):
    repository = build_definitions(load_config(template / "nanoset.yaml")).get_repository_def()
    with warnings.catch_warnings():
        # of a field that Dagster itself still sends
        warnings.simplefilter("ignore", category=DeprecationWarning)
        return deserialize_value(
            serialize_value(RepositorySnap.from_def(repository)), RepositorySnap
        )


@pytest.fixture(scope="module")
def nodes(snapshot):
    return {node.asset_key.to_user_string(): node for node in snapshot.asset_nodes}


def edges(node):
    return {
        edge.parent_asset_key.to_user_string(): edge.partition_mapping for edge in node.parent_edges
    }


def test_every_edge_is_there(nodes):
    assert {name: sorted(edges(node)) for name, node in nodes.items()} == {
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
        "shuffled/tars": ["shuffled/shuffle_plan"],
        "shuffled/manifest": ["shuffled/tars"],
    }


@pytest.mark.parametrize(
    ("asset", "corpora"),
    [
        ("pretrain/index_mappings", {"web", "code"}),
        ("plain/index_mappings", {"books"}),
        ("shuffled/shuffle_plan", {"web", "code", "books"}),
    ],
)
def test_a_nanoset_is_made_from_its_own_corpora_there_too(nodes, asset, corpora):
    mapping = edges(nodes[asset])["indexed_dataset"]
    assert isinstance(mapping, dg.SpecificPartitionsPartitionMapping)
    assert set(mapping.partition_keys) == corpora


def test_partitions_are_there(nodes):
    for name in ("raw_jsonl", "tokenized_shards", "indexed_dataset"):
        assert nodes[name].partitions.name == "corpora", (
            "one definition, or they would not be matched"
        )
    assert nodes["packed_dataset"].partitions.name == "packed_dataset", "which not every corpus has"
    assert nodes["pretrain/blend"].partitions.get_partitions_definition().get_partition_keys() == [
        "train",
        "valid",
        "test",
    ]
    assert nodes["shuffled/tars"].partitions.get_partitions_definition().get_partition_keys() == [
        "0",
        "1",
        "2",
    ]
    assert nodes["shuffled/manifest"].partitions is None


def test_sensors_and_schedule_are_there_and_on(snapshot):
    sensors = {sensor.name: sensor for sensor in snapshot.sensors}
    assert set(sensors) == {"overview", "raw_text", "missing_or_stale"}
    assert [target.job_name for target in sensors["raw_text"].target_dict.values()] == ["corpus"]
    assert {sensor.sensor_type.value for sensor in sensors.values()} == {"STANDARD"}
    (schedule,) = snapshot.schedules
    assert (schedule.name, schedule.cron_schedule, schedule.execution_timezone) == (
        "reconcile",
        "0 3 * * *",
        "UTC",
    )
    statuses = [*(sensor.default_status for sensor in sensors.values()), schedule.default_status]
    assert {status.value for status in statuses} == {"RUNNING"}


def test_only_work_of_many_processes_is_in_the_pool(nodes):
    assert {name for name, node in nodes.items() if node.pools} == {
        "tokenized_shards",
        "shuffled/tars",
    }


HANDOFF = dg.AssetKey(["pretrain", "handoff"])


def latest(platform: Platform, key: dg.AssetKey = HANDOFF):
    return platform.instance.get_latest_materialization_event(key)


def test_the_materialisation_of_a_handoff_gives_the_nanoset(built_platform):
    event = latest(built_platform)
    nanoset = nanoset_assets.load_materialized(
        event, "train", root=built_platform.config.root_folder
    )
    same = load_nanoset(built_platform.config.root_folder, "pretrain", "train")
    assert len(nanoset) == len(same)
    assert np.array_equal(nanoset[3]["tokens"], same[3]["tokens"])
    again = nanoset_assets.load_materialized(
        event.asset_materialization, "valid", root=built_platform.config.root_folder
    )
    assert len(again) == len(load_nanoset(built_platform.config.root_folder, "pretrain", "valid"))


def test_an_asset_of_a_host_trains_on_it(built_platform):
    build(
        Project.open(built_platform.config_file),
        built_platform.instance,
        select="pretrain/handoff",
        rebuild=True,
    )

    @dg.asset(deps=[HANDOFF])
    def model(context):
        event = context.instance.get_latest_materialization_event(HANDOFF)
        nanoset = nanoset_assets.load_materialized(event, "train", reset_position_ids=True)
        return dg.MaterializeResult(
            metadata={"samples": len(nanoset), "positions": int(nanoset[0]["position_ids"].max())}
        )

    definitions = dg.Definitions.merge(built_platform.definitions, dg.Definitions(assets=[model]))
    outcome = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=built_platform.instance, asset_selection=[dg.AssetKey("model")]
    )
    (event,) = outcome.get_asset_materialization_events()
    assert event.step_materialization_data.materialization.metadata["samples"].value > 0


@pytest.mark.parametrize("select", [(), "pretrain/train"])
def test_another_version_than_the_materialised_one_is_refused(built_platform, select):
    event, root = latest(built_platform), built_platform.config.root_folder
    text = built_platform.config_file.read_text()
    built_platform.config_file.write_text(text.replace("seed: 7", "seed: 8"))
    assert not build(
        Project.open(built_platform.config_file), built_platform.instance, select=select
    ).failed
    words = "(?s)moved or deleted.*as `root`"
    if select:
        words = "the split was rebuilt after its handoff"
    with pytest.raises(StaleError, match=words):
        nanoset_assets.load_materialized(event, "train", root=root)
    there = event if select else latest(built_platform)
    assert len(nanoset_assets.load_materialized(there, "valid", root=root))


def test_what_is_no_handoff_is_refused(built_platform):
    for event in (None, latest(built_platform, dg.AssetKey(["plain", "index_mappings"]))):
        with pytest.raises(MissingError, match="not a materialisation of a nanoset's handoff"):
            nanoset_assets.load_materialized(event, "train")
