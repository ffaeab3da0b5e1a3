"""Look at what a project has made, from tests that are not about looking.

Outputs are named by their address below the output root, such as `datasets/web`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from nanoset_core import MMapIndexedDataset, ProjectConfig
from nanoset_core.lineage import explain, find, webdataset
from nanoset_core.lineage.documents import Lineage
from nanoset_core.lineage.explain import SampleOrigin
from nanoset_core.lineage.takedown import Holding, holdings
from nanoset_core.lineage.texts import file_state
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.diff.datasets import DatasetDiff, diff_datasets
from nanoset_core.project.diff.versions import find_versions
from nanoset_core.project.graph.graph import Graph, graph_over
from nanoset_core.project.project import Project
from nanoset_core.project.status import project_status
from nanoset_core.project.verify import targets
from nanoset_core.stages import datasets, stage
from nanoset_core.stages.dataset.dataset import Dataset
from nanoset_core.stages.dataset.tokens import open_dataset
from nanoset_core.stages.inventory import corpora
from nanoset_core.stages.inventory.make import (
    current_inventory,
    fingerprint_memory,
    inventory_recipe,
    survey_corpus,
)
from nanoset_core.stages.registry import stage_of
from nanoset_core.stages.report import Report
from nanoset_core.stages.shards import shard_sets
from nanoset_core.stages.shards.line_numbers import LineNumbers
from nanoset_core.stages.shards.standalone.inputs import resolve_inputs
from nanoset_core.stages.stage import Node, require
from nanoset_core.stages.webdataset.make import current_plan
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.storage.in_use.leases import leased
from nanoset_core.text.inventory.pieces import Inventory

# Raw text


def corpus_names(project: Project) -> list[str]:
    """Return the names of all corpora of a project, sorted."""
    return corpora.corpus_names(project)


def raw_folder_of(project: Project, corpus: str) -> Any:
    """Return where the raw text of a corpus is."""
    return corpora.corpus_folder(project, corpus)


def inventory_of(project: Project, corpus: str) -> Inventory:
    """Return the raw files of a corpus as its current inventory lists them."""
    return current_inventory(project, corpus)[1]


def files_named_by(*inputs: str) -> list[str]:
    """Return the raw files that a command reads if these words follow `--input`."""
    return [file.path for file in resolve_inputs(inputs).files]


def state_of_line(project: Project, corpus: str, inventory: Inventory, file: str, line: int) -> str:
    """Return whether a line of raw text is still as an inventory found it."""
    folder = raw_folder_of(project, corpus)
    return file_state(inventory, fingerprint_memory(project, folder), folder, file, line)


# Datasets


def current_dataset(project: Project, name: str) -> Manifest:
    """Return the manifest of the current dataset of a corpus, view or packs."""
    return datasets.current_dataset(project, name)


def dataset_of(project: Project, manifest: Manifest) -> Dataset:
    """Return the dataset that a manifest describes."""
    return datasets.dataset_of(project.outputs, manifest)


def read_dataset(project: Project, name: str) -> MMapIndexedDataset:
    """Open the tokens of the current dataset of a corpus, view or packs."""
    return open_dataset(current_dataset(project, name))


def current_shards(project: Project, corpus: str) -> Sequence[Manifest]:
    """Return the manifests of the current shards of a corpus, in document order."""
    return shard_sets.current_shards(project, current_output(project, f"tokenized/{corpus}"))


def line_numbers(project: Project, corpus: str) -> LineNumbers:
    """Return how the lines of a corpus's raw files are numbered in its current shards."""
    return LineNumbers.of(current_output(project, f"tokenized/{corpus}").facts)


def plan_of(project: Project, webdataset_name: str) -> ShufflePlan:
    """Return the current shuffle plan of a webdataset."""
    return current_plan(project, webdataset_name)[1]


# Outputs by their address


def node_at(address: str, *, of: str = "") -> Node:
    """Return the output at an address below the output root.

    Args:
        address: For example `nanosets/pretrain/handoff`.
        of: The corpus of a view or of packs, which their address does not name.
    """
    folder, _, name = address.partition("/")
    found = stage_of(folder, name)
    assert found is not None, f"no stage has outputs at {address}"
    key = found.layout.key_of(name)
    assert key is not None
    return Node(found, replace(key, subject=key.subject or of))


def current_output(project: Project, address: str) -> Manifest:
    """Return the manifest of the current version of an output."""
    node = node_at(address)
    return require(project, node.stage, node.key)


def verify_at(project: Project, address: str, *, deep: bool = False) -> Report:
    """Verify one output, without those that `nanoset verify` would verify with it."""
    node = node_at(address)
    return node.stage.verify(project, node.key, deep=deep)


def verify_output(project: Project, name: str, deep: bool = False) -> Report:
    """Check what has a certain name in `nanoset verify --select`, and report what is wrong with it.

    Args:
        project: The project, whose nanoset.yaml must request it.
        name: The exact name: `web` of a text collection, `web/columns` of its columns, or
            `pretrain/train` of the training data of a mixture.
        deep: Whether to read every byte. Otherwise, sizes and samples are checked.

    Raises:
        ConfigError: nanoset.yaml requests nothing that this name selects.
    """
    # As a pattern, `web` also selects `web/columns`. So look for the exact name.
    targets_by_name = {target.name: target for target in targets(project, [name])}
    return targets_by_name[name].verify(deep=deep)


def settings_warnings(config: ProjectConfig, address: str, *, of: str = "") -> list[str]:
    """Return what is allowed in the settings of an output but rarely intended."""
    node = node_at(address, of=of)
    return list(stage.settings_warnings(node.stage, config, node.key))


def reasons_to_build(project: Project) -> dict[str, list[str]]:
    """Return why outputs are not as a build would leave them, by the label of `nanoset status`."""
    return {row.label: list(row.why) for row in project_status(project) if row.why}


def graph_of(project: Project, *names: str) -> Graph:
    """Return the graph of a project over raw files as they are now.

    Args:
        names: The corpora that are looked at; by default all.
    """
    inventories = {
        corpus: inventory_recipe(survey_corpus(project, corpus))
        for corpus in names or corpus_names(project)
    }
    return graph_over(project, inventories)


def leased_by_a_build(project: Project, *names: str) -> AbstractContextManager[None]:
    """Hold the leases of corpora or nanosets, as a build that is under way does."""
    return leased(project.outputs.access, names)


# Lineage


def lineage_of(project: Project, manifest: Manifest) -> Lineage:
    """Return the lineage of a dataset's documents: where each one comes from."""
    return Lineage(dataset_of(project, manifest))


def count_documents(project: Project, ids: Sequence[str]) -> dict[str, int]:
    """Return how many of the documents with these ids each output holds, by the output's label."""
    documents_by_output: dict[str, int] = {}
    for holding in holdings(project, ids):
        assert isinstance(holding, Holding), holding
        documents_by_output[holding.output] = holding.documents
    return documents_by_output


def explain_sample(project: Project, nanoset: str, split: str, sample: int) -> SampleOrigin:
    """Return the documents that a sample was cut from, as `nanoset explain` does."""
    return explain.explain_sample(project, nanoset, split, sample)


def explain_context(project: Project, name: str, place: str | int) -> webdataset.ContextOrigin:
    """Return the documents that a context of a webdataset was cut from."""
    return webdataset.explain_context(project, name, place)


def find_document(project: Project, name: str, split: str | None = None, **document: Any) -> Any:
    """Return where a nanoset or webdataset holds a document, as `nanoset explain --id` does."""
    return find.find_document(project, name, split, **document)


# Differences


def diff_of(project: Project, first: str, second: str | None = None) -> DatasetDiff:
    """Return how two versions of a dataset differ, which are named as for `nanoset diff`."""
    versions = find_versions(project, first, second)
    return diff_datasets(project, versions.old, versions.new)
