"""What Dagster loads: assets, partitions, jobs and the sensor, as the UI and the daemon see them."""

from __future__ import annotations

import dagster as dg
import pytest

from nanoset_assets.dagster_compat import latest_data_versions
from nanoset_assets.definitions import build_definitions
from nanoset_assets.hosted import describe
from nanoset_assets.names import Names
from nanoset_core.config.project import load_config
from nanoset_core.execution.progress import Progress


@pytest.fixture
def config(make_project):
    return load_config(make_project())


def test_an_asset_without_its_input_says_which_to_materialise_first(config, instance):
    instance.add_dynamic_partitions(Names().corpora_name, ["web"])
    job = build_definitions(config).resolve_job_def("corpus")
    with pytest.raises(dg.Failure, match="materialise raw_jsonl for the corpus 'web' first") as caught:
        job.execute_in_process(
            instance=instance, partition_key="web", asset_selection=[dg.AssetKey("tokenized_shards")]
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
        return done.asset_materializations_for_node("tokenized_shards")[0].metadata["shards_made"].value

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
        instance.report_runless_asset_event(dg.AssetMaterialization(dg.AssetKey(path), partition=partition))
        assert latest_data_versions(instance, dg.AssetKey(path), {partition, "none"}) == {partition: ""}


def test_progress_is_described_in_one_line():
    line = describe(Progress("tokenized_shards", "web", 25_000_000, 100_000_000, documents=10, tokens=2_000), 5.0)
    assert line == "tokenized_shards web: 25%, 2 documents/s, 0.00 M tokens/s, 5.0 MB/s, 15 s left"
