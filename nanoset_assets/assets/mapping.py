"""<nanoset>/index_mappings and <nanoset>/blend: the trainer's own index caches, built before it starts."""

import time
from collections.abc import Mapping

import dagster as dg

from nanoset_assets.partitions import SPLIT_PARTITIONS, member_corpora
from nanoset_assets.resources import ProjectResource
from nanoset_assets.ui.metadata import result
from nanoset_assets.ui.nanoset import handoff_metadata, split_metadata
from nanoset_core.config.nanoset import NanosetSpec
from nanoset_core.pipeline import handoff as handoffs
from nanoset_core.pipeline import mapping


def nanoset_assets(name: str, spec: NanosetSpec) -> list[dg.AssetsDefinition]:
    """The assets of one nanoset; without a blend there is nothing but its index mappings."""
    assets = [_index_mappings(name, spec)]
    if spec.is_blended:
        assets.append(_blend(name, spec))
    return [*assets, _handoff(name, spec)]


def _index_mappings(name: str, spec: NanosetSpec) -> dg.AssetsDefinition:
    @dg.asset(
        key=[name, "index_mappings"],
        deps=[member_corpora(spec.corpora)],
        partitions_def=SPLIT_PARTITIONS,
        group_name=name.replace("-", "_"),
        kinds={"numpy"},
        tags=_tags(spec),
        code_version=str(mapping.VERSION),
        description=f"Document, sample and shuffle index of {_mixed(spec)} for each split: samples of "
        f"{spec.sequence_length:,} tokens, seed {spec.seed}, {_cut(spec)}, under the trainer's cache names.",
    )
    def index_mappings(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
        started = time.monotonic()
        opened = project.open(context)
        manifest = mapping.write_mappings(opened, name, context.partition_key)
        seconds = time.monotonic() - started
        return result(manifest, seconds, split_metadata(opened, manifest, name, context.partition_key))

    return index_mappings


def _blend(name: str, spec: NanosetSpec) -> dg.AssetsDefinition:
    @dg.asset(
        key=[name, "blend"],
        deps=[dg.AssetKey([name, "index_mappings"])],
        partitions_def=SPLIT_PARTITIONS,
        group_name=name.replace("-", "_"),
        kinds={"numpy"},
        tags=_tags(spec),
        code_version=str(mapping.VERSION),
        description=f"Which corpus, and which of its samples, is the k-th sample of {name}: "
        "the trainer's blend indices, under its cache names.",
    )
    def blend(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
        started = time.monotonic()
        opened = project.open(context)
        manifest = mapping.write_blended(opened, name, context.partition_key)
        seconds = time.monotonic() - started
        return result(manifest, seconds, split_metadata(opened, manifest, name, context.partition_key))

    return blend


def _handoff(name: str, spec: NanosetSpec) -> dg.AssetsDefinition:
    @dg.asset(
        key=[name, "handoff"],
        deps=[dg.AssetKey([name, "blend" if spec.is_blended else "index_mappings"])],
        group_name=name.replace("-", "_"),
        kinds={"file"},
        tags=_tags(spec),
        code_version=str(handoffs.VERSION),
        description=f"The files and arguments with which a trainer (preset {spec.preset}) starts on {name}, "
        "and a check that every index file that it will look for is there.",
    )
    def handoff(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
        started = time.monotonic()
        manifest = handoffs.write_handoff(project.open(context), name)
        return result(manifest, time.monotonic() - started, handoff_metadata(manifest))

    return handoff


def _cut(spec: NanosetSpec) -> str:
    return f"split {spec.shares}" if spec.shares else "a blend for each split"


def _tags(spec: NanosetSpec) -> dict[str, str]:
    return {"nanoset/stage": "mapping", "nanoset/preset": spec.preset}


def _mixed(spec: NanosetSpec) -> str:
    """The corpora, with the shares asked for where there is one blend with weights."""
    if not isinstance(spec.blend, Mapping):
        return ", ".join(spec.corpora)
    total = sum(spec.blend.values())
    return ", ".join(f"{corpus} ({weight / total:.4g})" for corpus, weight in spec.blend.items())
