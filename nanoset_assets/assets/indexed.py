"""indexed_dataset: a corpus's shards merged into one .bin/.idx."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from nanoset_assets.stage_assets import Work, page_of
from nanoset_assets.ui.metadata import bytes_text, code, markdown, plural, size_bytes
from nanoset_assets.ui.previews import first_documents
from nanoset_core.config.project import ProjectConfig
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline import indexed
from nanoset_core.pipeline.project import Project


def _details(config: ProjectConfig, subject: str) -> Mapping[str, Any]:
    return {
        "kinds": {"numpy", "file"},
        "tags": {"nanoset/stage": "indexed"},
        "description": "A corpus as one Megatron indexed dataset: the .bin and .idx that preprocess_data.py would have "
        "written for the same lines, byte for byte. Give trainers the prefix, without the ending.",
    }


@page_of(indexed.DATASET, _details)
def indexed_dataset(work: Work) -> Mapping[str, Any]:
    """Merge a corpus's shards, and show its first documents and counts."""
    manifest = work.make()
    facts = manifest.facts
    return {
        "summary": markdown(_summary(manifest), _use(work.project, manifest)),
        "first_documents": first_documents(work.project, manifest),
        "prefix": dg.MetadataValue.path(manifest.url(facts["prefix"])),
        "dagster/row_count": facts["documents"],
        **{name: facts[name] for name in ("documents", "sequences", "tokens", "rejected", "dtype")},
    }


def _summary(manifest: Manifest) -> str:
    facts = manifest.facts
    lost = [f"{plural(facts['rejected'], 'line')} rejected"] if facts["rejected"] else []
    lost += [f"{plural(facts['faults'], 'file')} not readable to the end"] if facts["faults"] else []
    return (
        f"**{plural(facts['documents'], 'document')}, {plural(facts['tokens'], 'token')}** of {facts['dtype']}, "
        f"{bytes_text(size_bytes(manifest))}; {', '.join(lost) or 'every line became a document'}."
    )


def _use(project: Project, manifest: Manifest) -> str:
    """What it is read by."""
    config, corpus = project.config, manifest.name
    users = {
        "nanoset": [name for name, spec in config.nanosets.items() if corpus in spec.corpora],
        "webdataset": [name for name, spec in config.webdatasets.items() if corpus in spec.names],
    }
    named = [f"the {kind} {code(name)}" for kind, names in users.items() for name in names]
    if corpus in config.packed:
        named.append("its `.pbin`")
    return f"Read by {', '.join(named)}." if named else f"Nothing in {code(config.file.name)} reads it yet."
