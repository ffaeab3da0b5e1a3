"""What Dagster loads: assets, partitions, jobs and the sensor, as the UI and the daemon see them."""

from __future__ import annotations

import dagster as dg
import pytest

from nanoset_assets.dagster_compat import latest_data_versions
from nanoset_assets.definitions import build_definitions
from nanoset_assets.names import Names
from nanoset_assets.running import describe
from nanoset_core.config.project import load_config
from nanoset_core.errors import ConfigError
from nanoset_core.execution.progress import Progress


@pytest.fixture
def config(make_project):
    return load_config(make_project())


@pytest.fixture
def instance(tmp_path):
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as opened:
        yield opened


def test_every_asset_says_what_it_is(config):
    graph = build_definitions(config).resolve_asset_graph()
    for asset in graph.get_all_asset_keys():
        node = graph.get(asset)
        assert node.description
        assert node.code_version
        assert node.group_name in {"corpora", "pretrain", "plain", "shuffled"}


def test_a_corpus_is_materialised_through_its_job_as_from_the_ui(config, instance):
    definitions = build_definitions(config)
    instance.add_dynamic_partitions(Names().corpora_name, ["web"])
    outcome = definitions.resolve_job_def("corpus").execute_in_process(instance=instance, partition_key="web")
    assert outcome.success
    dataset = outcome.asset_materializations_for_node("indexed_dataset")[0]
    assert dataset.partition == "web"
    assert dataset.metadata["documents"].value == 240


def test_an_asset_without_its_input_says_which_to_materialise_first(config, instance):
    instance.add_dynamic_partitions(Names().corpora_name, ["web"])
    job = build_definitions(config).resolve_job_def("corpus")
    with pytest.raises(FileNotFoundError, match="materialise raw_jsonl for the corpus 'web' first"):
        job.execute_in_process(
            instance=instance, partition_key="web", asset_selection=[dg.AssetKey("tokenized_shards")]
        )


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
    with pytest.raises(ConfigError, match="other"):
        jobs.resolve_job_def(job).execute_in_process(
            instance=instance, asset_selection=[dg.AssetKey([job, asset])], **parts
        )


def test_a_materialisation_without_a_data_version_is_one(instance):
    for path, partition in ((["whole"], None), (["cut"], "web")):
        instance.report_runless_asset_event(dg.AssetMaterialization(dg.AssetKey(path), partition=partition))
        assert latest_data_versions(instance, dg.AssetKey(path), {partition, "none"}) == {partition: ""}


def test_progress_is_described_in_one_line():
    line = describe(Progress("tokenized_shards", "web", 25_000_000, 100_000_000, documents=10, tokens=2_000), 5.0)
    assert line == "tokenized_shards web: 25%, 25.0 of 100.0 MB, 5.0 MB/s, 10 documents, 2,000 tokens, 15 s left"
