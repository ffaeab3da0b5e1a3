"""The page of `indexed_dataset`: the first documents of a corpus, and what reads it."""

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
    """Merge the shards of a corpus, and return the metadata of its dataset."""
    return dataset_metadata(run.project, run.make())


def dataset_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return what the UI shows of the dataset of a corpus.

    Args:
        project: The project.
        manifest: Manifest of the dataset.
    """
    facts = manifest.facts
    size = format_bytes(size_bytes(manifest))
    summary = f"{counts_text(facts)}, {size}; {_problems_text(facts)}."
    losses_text = loss_texts(project, shards_of(project.outputs, manifest))
    readers = readers_text(project, manifest.name)
    return {
        "summary": markdown(summary, *losses_text, readers),
        "first_documents": first_documents(project, manifest),
        "prefix": dg.MetadataValue.path(facts["prefix"]),
        "dagster/partition_row_count": facts["documents"],
        **facts_of(manifest, "documents", "sequences", "tokens", "rejected", "dtype"),
    }


def _problems_text(facts: Mapping[str, Any]) -> str:
    """Return how many lines were rejected and how many files were damaged, in words."""
    n_rejected = facts["rejected"]
    n_damaged = facts["faults"]
    problems: list[str] = []
    if n_rejected:
        problems.append(f"{format_count(n_rejected, 'line')} rejected")
    if n_damaged:
        problems.append(f"{format_count(n_damaged, 'file')} not readable to the end")
    return ", ".join(problems) or "every line became a document"


def loss_texts(project: Project, tokenized: Manifest) -> list[str]:
    """Return lines of bold Markdown on text that was lost between raw files and tokens.

    Args:
        project: The project.
        tokenized: The tokenized corpus.
    """
    texts = recorded_losses(project.outputs, tokenized).texts()
    return [f"**Lost:** {bold_code(text)}" for text in texts]


def readers_text(project: Project, dataset: str) -> str:
    """Return which outputs of nanoset.yaml read a dataset, in a sentence."""
    config = project.config
    readers = [*_trainer_inputs(config, dataset), *_derived_outputs(config, dataset)]
    if not readers:
        return f"Nothing in {code(config.file.name)} reads it yet."
    return f"Read by {', '.join(readers)}."


def _trainer_inputs(config: ProjectConfig, dataset: str) -> list[str]:
    """Return which outputs for trainers read a dataset: nanosets, webdatasets and a `.pbin`.

    Args:
        config: The settings of nanoset.yaml.
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
    """Return which exports, views and packs are made from a dataset.

    Args:
        config: The settings of nanoset.yaml.
        dataset: Name of the dataset.
    """
    sections: dict[str, Mapping[str, Any]] = {
        "export": config.exports,
        "packs": config.packs,
        "view": config.views,
    }
    outputs: list[str] = []
    for kind, specs in sections.items():
        for name, spec in specs.items():
            if spec.of == dataset:
                outputs.append(f"the {kind} {code(name)}")
    return outputs
