"""Make outputs of a project, one or all of them, by the core alone.

Tests of one folder begin with what other folders have made. They call these functions, so that they
need not import each stage before their own.
"""

from __future__ import annotations

from pathlib import Path

from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.gc.collect import collect
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.project import Project
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.attributes.make import join_attributes
from nanoset_core.stages.columns.make import keep_columns
from nanoset_core.stages.dataset import make as dataset
from nanoset_core.stages.exports import make as exports
from nanoset_core.stages.handoff import make as handoff
from nanoset_core.stages.held_out import make as held_out
from nanoset_core.stages.inventory import make as inventory
from nanoset_core.stages.inventory.corpora import corpus_names
from nanoset_core.stages.mappings import make as mappings
from nanoset_core.stages.packs import make as packs
from nanoset_core.stages.pbin.stage import PBIN, PBIN_DERIVED
from nanoset_core.stages.shards import make as shards
from nanoset_core.stages.stage import Key
from nanoset_core.stages.views import make as views
from nanoset_core.stages.webdataset import make as webdataset
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.store import Store


def open_project(config: Path, progress: Progress = SILENT, *, rebuild: bool = False) -> Project:
    """Open the project of a nanoset.yaml.

    Args:
        config: The file.
        progress: Hears of the progress of what is made.
        rebuild: Outputs are made even if they exist.
    """
    return Project.open(config, progress, rebuild=rebuild)


def build_all(config: Path) -> Project:
    """Open a project and build every output that its settings ask for."""
    project = Project.open(config)
    run_stages(project)
    return project


def collect_garbage(project: Project) -> None:
    """Remove the outputs that nothing needs, as `nanoset gc --yes` does."""
    collect(project)


def output_root(folder: Path, store: Store | None = None) -> OutputRoot:
    """Open a folder as the root of outputs, or as the working copies of those in a store."""
    return OutputRoot(FileAccess(folder, store))


def run_stages(project: Project) -> None:
    """Make every output of a project, each after those that it is made from."""
    graph = Graph(project, known={}, corpora=corpus_names(project))
    for node in graph.nodes():
        node.stage.make(project, node.key)


# Corpora


def make_corpora(project: Project, *corpora: str) -> None:
    """Make the datasets of some corpora, or of all if none is named."""
    for corpus in corpora or corpus_names(project):
        make_inventory(project, corpus)
        make_shards(project, corpus)
        make_dataset(project, corpus)


def make_inventory(project: Project, corpus: str) -> Manifest:
    """List the raw files of a corpus."""
    return inventory.make_inventory(project, corpus)


def make_shards(project: Project, corpus: str) -> Manifest:
    """Tokenize a corpus into shards."""
    return shards.tokenize_corpus(project, corpus)


def make_dataset(project: Project, corpus: str) -> Manifest:
    """Merge the shards of a corpus into its indexed dataset."""
    return dataset.make_dataset(project, corpus)


def make_columns(project: Project, corpus: str) -> Manifest:
    """Keep the columns of a corpus's documents that the settings name."""
    return keep_columns(project, corpus)


def make_attributes(project: Project, corpus: str) -> Manifest:
    """Join another team's tables to the documents of a corpus."""
    return join_attributes(project, corpus)


# Datasets that are derived from corpora


def make_view(project: Project, name: str) -> Manifest:
    """Choose the documents of a view."""
    return views.make_view(project, name)


def make_packs(project: Project, name: str) -> Manifest:
    """Pack the documents of a corpus or view into sequences of one length."""
    return packs.make_packs(project, name)


def make_pbin(project: Project, corpus: str) -> Manifest:
    """Convert a corpus to Modalities' `.pbin`."""
    return PBIN.make(project, Key(corpus))


def make_derived_pbin(project: Project, name: str) -> Manifest:
    """Convert a view or packs to Modalities' `.pbin`."""
    return PBIN_DERIVED.make(project, Key(name))


def make_export(project: Project, name: str) -> Manifest:
    """Write a dataset in the format of another trainer."""
    return exports.make_export(project, name)


# Nanosets


def make_nanoset(project: Project, name: str) -> None:
    """Make the index mappings and blends of all splits of a nanoset, but no handoff."""
    for split in SPLITS:
        make_mappings(project, name, split)
        if project.config.nanosets[name].is_blended:
            make_blend(project, name, split)


def make_mappings(project: Project, name: str, split: SplitName) -> Manifest:
    """Make the index mappings of a split of a nanoset."""
    return mappings.write_mappings(project, name, split)


def make_blend(project: Project, name: str, split: SplitName) -> Manifest:
    """Make the blend of a split of a nanoset."""
    return mappings.write_blended(project, name, split)


def make_held_out(project: Project, name: str) -> Manifest:
    """Compare the splits of a nanoset for documents that they share."""
    return held_out.compare_held_out(project, name)


def make_handoff(project: Project, name: str) -> Manifest:
    """Write the files with which a trainer starts on a nanoset."""
    return handoff.write_handoff(project, name)


# Webdatasets


def make_webdataset(project: Project, name: str) -> Manifest:
    """Plan, write and finish the tars of a webdataset."""
    make_shuffle_plan(project, name)
    for group in range(project.config.webdatasets[name].groups):
        make_tars(project, name, group)
    return finish_webdataset(project, name)


def make_shuffle_plan(project: Project, name: str) -> Manifest:
    """Plan which contexts each tar of a webdataset holds."""
    return webdataset.make_plan(project, name)


def make_tars(project: Project, name: str, group: int) -> None:
    """Write the tars of one group of a webdataset."""
    webdataset.write_group(project, name, group)


def finish_webdataset(project: Project, name: str) -> Manifest:
    """Publish a webdataset whose tars are all written."""
    return webdataset.finish(project, name)
