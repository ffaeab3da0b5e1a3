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
from nanoset_core.stages.shards.shard_sets import losses


def dataset_page(run: AssetRun) -> dict[str, Any]:
    """Merge the shards of a corpus, and return the metadata of its dataset."""
    return dataset_metadata(run.project, run.make())


def dataset_metadata(project: Project, manifest: Manifest) -> dict[str, Any]:
    """Return the metadata of a corpus's dataset: its first documents, and what reads it."""
    facts = manifest.facts

    # What was lost on the way from lines to documents.
    problems: list[str] = []
    if facts["rejected"]:
        problems.append(f"{format_count(facts['rejected'], 'line')} rejected")
    if facts["faults"]:
        problems.append(f"{format_count(facts['faults'], 'file')} not readable to the end")
    problems_text = ", ".join(problems) or "every line became a document"
    summary = f"{counts_text(facts)}, {format_bytes(size_bytes(manifest))}; {problems_text}."
    tokenized = shards_of(project.outputs, manifest)
    return {
        "summary": markdown(
            summary, *loss_texts(project, tokenized), readers_text(project, manifest.name)
        ),
        "first_documents": first_documents(project, manifest),
        "prefix": dg.MetadataValue.path(facts["prefix"]),
        "dagster/partition_row_count": facts["documents"],
        **facts_of(manifest, "documents", "sequences", "tokens", "rejected", "dtype"),
    }


def loss_texts(project: Project, tokenized: Manifest) -> list[str]:
    """Return what was lost between files and tokens, in bold."""
    texts = losses(project.outputs, tokenized).texts()
    return [f"**Lost:** {bold_code(text)}" for text in texts]


def readers_text(project: Project, dataset: str) -> str:
    """Return which outputs of nanoset.yaml read a dataset, in a sentence."""
    config = project.config
    readers = [*_trainer_inputs(config, dataset), *_derived_outputs(config, dataset)]
    if not readers:
        return f"Nothing in {code(config.file.name)} reads it yet."
    return f"Read by {', '.join(readers)}."


def _trainer_inputs(config: ProjectConfig, dataset: str) -> list[str]:
    """Return which outputs for trainers read a dataset."""
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
    """Return which exports and derived datasets are made from a dataset."""
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
