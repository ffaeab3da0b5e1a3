"""The page of `indexed_dataset`: the first documents of a corpus, and what reads it.

The asset joins the tokens of a corpus into one dataset, a pair of .bin and .idx files. Its page
counts documents and tokens, warns of text that was lost on the way, shows the first documents as
text, and lists the outputs that read the dataset, for example "Read by the nanoset `pretrain`".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from nanoset_assets.asset_run import AssetRun
from nanoset_assets.ui.metadata import bold_code, code, counts_text, facts_of, markdown, size_bytes
from nanoset_assets.ui.previews import first_documents
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.records.text import format_bytes, format_count
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.shards.shard_sets import recorded_losses


def dataset_page(run: AssetRun) -> dict[str, Any]:
    """Merge the shards of a corpus into a dataset, and return what the UI shows of it.

    Args:
        run: The run of the asset `indexed_dataset` for one corpus.

    Returns:
        Name → value, as Dagster's UI shows them; see `dataset_metadata`.

    Raises:
        NanosetError: The dataset could not be made.
    """
    return dataset_metadata(run.project, run.make())


def dataset_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return what the UI shows of the dataset of a corpus.

    Args:
        project: Its outputs and settings are read.
        manifest: Manifest of the dataset, the record of its files and counts.

    Returns:
        Name → value: a summary in sentences, the first documents as text, the path that trainers
        are given, and counts.
    """
    facts = manifest.facts  # what was counted when the output was made
    size = format_bytes(size_bytes(manifest))
    summary = f"{counts_text(facts)}, {size}; {_problems_text(facts)}."
    losses = loss_texts(project, shards_of(project.outputs, manifest))
    readers = readers_text(project, manifest.name)
    return {
        "summary": markdown(summary, *losses, readers),
        "first_documents": first_documents(project, manifest),
        "prefix": dg.MetadataValue.path(facts["prefix"]),  # of the .bin and the .idx
        "dagster/partition_row_count": facts["documents"],
        **facts_of(manifest, "documents", "sequences", "tokens", "rejected", "dtype"),
    }


def _problems_text(facts: Mapping[str, Any]) -> str:
    """Return which text of a corpus is missing in its dataset: `3 lines rejected`.

    Args:
        facts: Counts of the dataset: `rejected` lines, and `faults`, the files that could not be
            read to the end.
    """
    n_rejected = facts["rejected"]
    n_damaged = facts["faults"]
    problems: list[str] = []
    if n_rejected:
        problems.append(f"{format_count(n_rejected, 'line')} rejected")
    if n_damaged:
        problems.append(f"{format_count(n_damaged, 'file')} not readable to the end")
    return ", ".join(problems) or "every line became a document"


def loss_texts(project: Project, tokenized: Manifest) -> list[str]:
    """Return a line of bold Markdown for each kind of text that a corpus lost in tokenization.

    Args:
        project: Its outputs are read.
        tokenized: Manifest of the tokenized corpus.

    Returns:
        The lines; empty if no text was lost.
    """
    losses = recorded_losses(project.outputs, tokenized)
    return [f"**Lost:** {bold_code(text)}" for text in losses.texts()]


def readers_text(project: Project, dataset: str) -> str:
    """Return which outputs of nanoset.yaml read a dataset, in a sentence of Markdown.

    Args:
        project: Its settings are searched.
        dataset: Name of a corpus, of a view or of packs.

    Returns:
        Such as "Read by the nanoset `pretrain`, the export `for_hf`."
    """
    config = project.config
    readers = [*_trainer_inputs(config, dataset), *_derived_outputs(config, dataset)]
    if not readers:
        return f"Nothing in {code(config.file.name)} reads it yet."
    return f"Read by {', '.join(readers)}."


def _trainer_inputs(config: ProjectConfig, dataset: str) -> list[str]:
    """Return which outputs that trainers read contain a dataset, such as "the nanoset `pretrain`".

    Args:
        config: The settings of nanoset.yaml, which define all outputs.
        dataset: Name of the dataset.
    """
    readers: list[str] = []
    for name, nanoset in config.nanosets.items():
        if dataset in nanoset.corpora:
            readers.append(f"the nanoset {code(name)}")
    for name, webdataset in config.webdatasets.items():
        if dataset in webdataset.names:
            readers.append(f"the webdataset {code(name)}")
    if dataset in config.pbin:
        readers.append("its `.pbin`")
    return readers


def _derived_outputs(config: ProjectConfig, dataset: str) -> list[str]:
    """Return which exports, packs and views are made from a dataset, such as "the view `long`".

    Args:
        config: The settings of nanoset.yaml, which define all outputs.
        dataset: Name of the dataset.
    """
    # Kind of output → the settings of each output of this kind, by its name.
    sections: dict[str, Mapping[str, Any]] = {
        "export": config.exports,
        "packs": config.packs,
        "view": config.views,
    }
    outputs: list[str] = []
    for kind, specs in sections.items():
        for name, spec in specs.items():
            if spec.of == dataset:  # `of` is the name of the dataset that it is made from
                outputs.append(f"the {kind} {code(name)}")
    return outputs
