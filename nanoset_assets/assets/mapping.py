"""<nanoset>/index_mappings and <nanoset>/blend: the trainer's own index caches, built before it starts."""

import time
from typing import Any

import dagster as dg

from nanoset_assets.metadata import result, table
from nanoset_assets.partitions import SPLIT_PARTITIONS, member_corpora
from nanoset_assets.resources import ProjectResource
from nanoset_core.config import NanosetSpec
from nanoset_core.manifest import Manifest
from nanoset_core.pipeline import mapping


def nanoset_assets(name: str, spec: NanosetSpec) -> list[dg.AssetsDefinition]:
    """The assets of one nanoset; without a blend there is nothing but its index mappings."""
    mappings = _index_mappings(name, spec)
    return [mappings, _blend(name, spec)] if spec.is_blended else [mappings]


def _index_mappings(name: str, spec: NanosetSpec) -> dg.AssetsDefinition:
    @dg.asset(
        key=[name, "index_mappings"],
        deps=[member_corpora(spec.corpora)],
        partitions_def=SPLIT_PARTITIONS,
        group_name=name.replace("-", "_"),
        kinds={"numpy"},
        code_version=str(mapping.VERSION),
        description=f"Document, sample and shuffle index of {', '.join(spec.corpora)} for each split: samples of "
        f"{spec.sequence_length:,} tokens, seed {spec.seed}, split {spec.split}, under the trainer's cache names.",
    )
    def index_mappings(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
        started = time.monotonic()
        manifest = mapping.write_mappings(project.open(context), name, context.partition_key)
        return result(manifest, time.monotonic() - started, _metadata(manifest))

    return index_mappings


def _blend(name: str, spec: NanosetSpec) -> dg.AssetsDefinition:
    @dg.asset(
        key=[name, "blend"],
        deps=[dg.AssetKey([name, "index_mappings"])],
        partitions_def=SPLIT_PARTITIONS,
        group_name=name.replace("-", "_"),
        kinds={"numpy"},
        code_version=str(mapping.VERSION),
        description=f"Which corpus, and which of its samples, is the k-th sample of {name}: "
        "the trainer's blend indices, under its cache names.",
    )
    def blend(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
        started = time.monotonic()
        manifest = mapping.write_blended(project.open(context), name, context.partition_key)
        return result(manifest, time.monotonic() - started, _metadata(manifest))

    return blend


def _metadata(manifest: Manifest) -> dict[str, Any]:
    facts = manifest.facts
    metadata: dict[str, Any] = {
        "samples": facts["samples"],
        "dagster/row_count": facts["samples"],
        "cache": dg.MetadataValue.path(str(manifest.folder.parent.parent.parent / "cache")),
        "cache_files": table([{"file": name} for name in facts["cache_files"]]),
    }
    if facts["members"]:
        metadata["members"] = table(facts["members"])
    return metadata
