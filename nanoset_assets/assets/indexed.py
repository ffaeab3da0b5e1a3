"""indexed_dataset: a corpus's shards merged into one .bin/.idx."""

import time

import dagster as dg

from nanoset_assets.partitions import CORPORA
from nanoset_assets.resources import ProjectResource
from nanoset_assets.ui.metadata import bytes_text, code, markdown, plural, result, size_bytes
from nanoset_assets.ui.previews import first_documents
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline import indexed
from nanoset_core.pipeline.project import Project


@dg.asset(
    partitions_def=CORPORA,
    deps=["tokenized_shards"],
    group_name="corpora",
    kinds={"numpy", "file"},
    tags={"nanoset/stage": "indexed"},
    code_version=str(indexed.VERSION),
    description="A corpus as one Megatron indexed dataset: the .bin and .idx that preprocess_data.py would have "
    "written for the same lines, byte for byte. Give trainers the prefix, without the ending.",
)
def indexed_dataset(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    started = time.monotonic()
    opened = project.open(context)
    manifest = indexed.index(opened, context.partition_key)
    seconds = time.monotonic() - started
    facts = manifest.facts
    metadata = {
        "summary": markdown(_summary(manifest), _use(opened, manifest)),
        "first_documents": first_documents(opened, manifest),
        "prefix": dg.MetadataValue.path(manifest.url(facts["prefix"])),
        "dagster/row_count": facts["documents"],
        **{name: facts[name] for name in ("documents", "sequences", "tokens", "rejected", "dtype")},
    }
    return result(manifest, seconds, metadata)


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
