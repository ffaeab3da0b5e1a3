"""*Materialize all* in Dagster's asset graph: which outputs a backfill makes, and in which order.

A person chooses partitions of the assets at the start of the graph, which are corpora. Dagster
follows the arrows from there, but only between assets that have partitions. So it needs an arrow to
every asset with partitions, also to the tars, which are made from a plan that has none.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.asset_backfill import create_asset_backfill_data_from_asset_partitions

from helpers.sample_project import SPLITS, WITH_PBIN
from nanoset_assets.definitions import build_definitions
from nanoset_core.project.settings import load_config

CORPORA = ("books", "code", "web")
EVERY_KIND_OF_ASSET = {
    **WITH_PBIN,
    "webdatasets:\n": """\
corpora: {web: {columns: [source]}}
views:
  clean: {of: web, where: "source = 'a'", clean_of: [evals]}
packs:
  packed-books: {of: books, length: 64}
contamination:
  evals: {files: evals.jsonl, text_keys: [text], of: [web], policy: block}
exports:
  shards: {of: clean, format: mds, sequence_length: 32}
webdatasets:
""",
    "corpora: [web, code, books]": "corpora: [clean, code]",
}
"""Replacements in the sample project's settings that add views, packs and so on.

The tars are made from a view and a corpus.
"""
VALID_FROM_ANOTHER_CORPUS = {
    '    blend: {web: 0.7, code: 0.3}\n    sequence_length: 32\n    split: "80,15,5"\n': (
        "    blend_per_split: {train: [web, code], valid: web-valid, test: web-valid}\n"
        "    sequence_length: 32\n"
        "    held_out: block\n"
    ),
    "webdatasets:\n": "views: {web-valid: {of: web, documents: 5}}\nwebdatasets:\n",
}
"""Replacements with which `train` is made after `held_out`, an asset without partitions.

`valid` and `test` are made from a view.
"""

NANOSETS_OF_A_VIEW_AND_A_CORPUS = tuple(f"mixed-{number}" for number in range(10))
"""Several, since Dagster comes to the view and to each of these nanosets in a random order."""
MIXES_OF_A_VIEW_AND_A_CORPUS = {
    "webdatasets:\n": "views: {clean: {of: web, documents: 5}}\nwebdatasets:\n",
    "nanosets:\n": "nanosets:\n"
    + "".join(
        f'  {name}: {{blend: [clean, code], sequence_length: 32, split: "80,15,5"}}\n'
        for name in NANOSETS_OF_A_VIEW_AND_A_CORPUS
    ),
}
"""Replacements that add these nanosets."""


class Preview:
    """What the UI shows under *Preview* before it launches a backfill of all assets."""

    def __init__(
        self, config_file: Path, instance: dg.DagsterInstance, corpora: Collection[str]
    ) -> None:
        """Choose some corpora, of all assets of a project.

        Args:
            config_file: The nanoset.yaml of the project.
            instance: Its history.
            corpora: The partitions that are chosen.
        """
        definitions = build_definitions(load_config(config_file))
        self.graph: Any = definitions.resolve_asset_graph()
        with warnings.catch_warnings():
            # of a method that Dagster itself still calls
            warnings.simplefilter("ignore", category=DeprecationWarning)
            data = create_asset_backfill_data_from_asset_partitions(
                asset_graph=self.graph,
                asset_selection=list(self.graph.materializable_asset_keys),
                partition_names=list(corpora),
                dynamic_partitions_store=instance,
            )
        self.subsets = data.target_subset.partitions_subsets_by_asset_key

    def partitions(self, asset: str) -> set[str]:
        """Return the partitions of an asset that the backfill makes."""
        key = dg.AssetKey.from_user_string(asset)
        subset = self.subsets.get(key)
        return set() if subset is None else set(subset.get_partition_keys())

    def assets_without_partitions(self) -> set[str]:
        """Return the assets with partitions of which the backfill makes none."""
        assets = {
            key.to_user_string()
            for key in self.graph.materializable_asset_keys
            if self.graph.get(key).is_partitioned
        }
        return {asset for asset in assets if not self.partitions(asset)}


def deciding_inputs(definitions: dg.Definitions, asset: str) -> set[str]:
    """Return the inputs of an asset that its automation condition does not ignore."""
    key = dg.AssetKey.from_user_string(asset)
    graph: Any = definitions.resolve_asset_graph()
    node = graph.get(key)
    condition = str(node.automation_condition)
    inputs = set()
    for parent in node.parent_keys:
        if repr(parent) not in condition:
            inputs.add(parent.to_user_string())
    return inputs


@pytest.fixture
def instance_with_corpora(instance) -> dg.DagsterInstance:
    """An instance of Dagster that knows the corpora of the sample project."""
    instance.add_dynamic_partitions("corpora", list(CORPORA))
    instance.add_dynamic_partitions("packed_dataset", ["code", "web"])
    instance.add_dynamic_partitions("document_columns", ["web"])
    return instance


def test_materialize_all_makes_every_group_of_the_tars(make_project, instance_with_corpora):
    preview = Preview(make_project(), instance_with_corpora, CORPORA)

    assert preview.partitions("shuffled/tars") == {"0", "1", "2"}


@pytest.mark.parametrize("replacements", [EVERY_KIND_OF_ASSET, VALID_FROM_ANOTHER_CORPUS])
def test_materialize_all_makes_partitions_of_every_asset(
    make_project, instance_with_corpora, replacements
):
    config_file = make_project(replacements=replacements)

    preview = Preview(config_file, instance_with_corpora, CORPORA)

    assert preview.assets_without_partitions() == set()


def test_a_backfill_of_one_corpus_makes_the_tars_with_a_view_of_it(
    make_project, instance_with_corpora
):
    config_file = make_project(replacements=EVERY_KIND_OF_ASSET)

    preview = Preview(config_file, instance_with_corpora, ["web"])

    assert preview.partitions("shuffled/tars") == {"0", "1", "2"}


def test_a_backfill_of_one_corpus_does_not_make_tars_without_it(
    make_project, instance_with_corpora
):
    config_file = make_project(replacements=EVERY_KIND_OF_ASSET)

    preview = Preview(config_file, instance_with_corpora, ["books"])

    assert preview.partitions("shuffled/tars") == set()


def test_a_backfill_of_one_corpus_makes_a_nanoset_that_is_compared_with_it(
    make_project, instance_with_corpora
):
    config_file = make_project(replacements=VALID_FROM_ANOTHER_CORPUS)

    preview = Preview(config_file, instance_with_corpora, ["code"])

    assert preview.partitions("pretrain/index_mappings") == set(SPLITS)


def test_a_backfill_of_one_corpus_makes_nanosets_that_mix_a_view_of_it_with_another_corpus(
    make_project, instance_with_corpora
):
    config_file = make_project(replacements=MIXES_OF_A_VIEW_AND_A_CORPUS)

    preview = Preview(config_file, instance_with_corpora, ["web"])

    for name in NANOSETS_OF_A_VIEW_AND_A_CORPUS:
        assert preview.partitions(f"{name}/index_mappings") == set(SPLITS)
        assert preview.partitions(f"{name}/blend") == set(SPLITS)


def test_a_backfill_of_a_corpus_leaves_out_nanosets_without_it(make_project, instance_with_corpora):
    config_file = make_project(replacements=MIXES_OF_A_VIEW_AND_A_CORPUS)

    preview = Preview(config_file, instance_with_corpora, ["books"])

    for name in NANOSETS_OF_A_VIEW_AND_A_CORPUS:
        assert preview.partitions(f"{name}/index_mappings") == set()


def test_automation_conditions_wait_for_inputs_without_partitions(make_project):
    config_file = make_project(replacements=VALID_FROM_ANOTHER_CORPUS)

    definitions = build_definitions(load_config(config_file), automation="host")

    # The datasets of which `held_out` and the plan are made change before these do.
    assert deciding_inputs(definitions, "pretrain/index_mappings") == {"pretrain/held_out"}
    assert deciding_inputs(definitions, "shuffled/tars") == {"shuffled/shuffle_plan"}
    assert deciding_inputs(definitions, "plain/index_mappings") == {"indexed_dataset"}


def test_automation_conditions_do_not_build_a_nanoset_before_its_view(make_project):
    config_file = make_project(replacements=MIXES_OF_A_VIEW_AND_A_CORPUS)

    definitions = build_definitions(load_config(config_file), automation="host")

    # The dataset of `web` would change before the view.
    graph: Any = definitions.resolve_asset_graph()
    nanoset = dg.AssetKey([NANOSETS_OF_A_VIEW_AND_A_CORPUS[0], "index_mappings"])
    mapping = graph.get_partition_mapping(nanoset, dg.AssetKey("indexed_dataset"))
    assert mapping == dg.SpecificPartitionsPartitionMapping(["code"])
