"""How the assets are cut, by corpus, by split, by group of shards, and what they depend on: all told by the stages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import dagster as dg

from nanoset_core.config.project import ProjectConfig
from nanoset_core.pipeline.stage import Key, Node, Stage

# One shared object: two dynamic definitions of different names would silently not match.
CORPORA = dg.DynamicPartitionsDefinition(name="corpora")


def keys_of(stage: Stage, config: ProjectConfig, subject: str) -> list[Key]:
    """The outputs of a stage for one nanoset or webdataset."""
    return _keys_by_subject(stage, config).get(subject, [])


@lru_cache(maxsize=64)
def _keys_by_subject(stage: Stage, config: ProjectConfig) -> Mapping[str, list[Key]]:
    """Subject → keys; each subject is asked about several times, which would be quadratic."""
    keys: dict[str, list[Key]] = {}
    for key in stage.keys(config, ()):
        keys.setdefault(key.subject, []).append(key)
    return keys


def partitions_of(stage: Stage, config: ProjectConfig, subject: str) -> dg.PartitionsDefinition[str] | None:
    """The partitions of a stage's asset; None for an asset without."""
    if stage.by_corpus:
        return CORPORA
    parts = [key.part for key in keys_of(stage, config, subject) if key.part is not None]
    return dg.StaticPartitionsDefinition(parts) if parts else None


def dependencies_of(stage: Stage, config: ProjectConfig, subject: str) -> list[dg.AssetDep]:
    """What a stage's asset depends on: of the assets of corpora, on no other corpora than it is made of."""
    keys = [Key(subject)] if stage.by_corpus else keys_of(stage, config, subject)
    inputs: dict[tuple[str, ...], list[Node]] = {}
    for key in keys:
        for node in Node(stage, key).direct_inputs(config):
            inputs.setdefault(node.asset, []).append(node)
    return [_dependency(stage, asset, nodes) for asset, nodes in inputs.items()]


def _dependency(stage: Stage, asset: tuple[str, ...], nodes: list[Node]) -> dg.AssetDep:
    if stage.by_corpus or not nodes[0].stage.by_corpus:
        return dg.AssetDep(dg.AssetKey(asset))
    corpora = list(dict.fromkeys(node.key.subject for node in nodes))
    return dg.AssetDep(dg.AssetKey(asset), partition_mapping=dg.SpecificPartitionsPartitionMapping(corpora))
