"""How the assets are cut, by corpus, by split, by group of shards, and what they depend on: all told by the stages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import dagster as dg

from nanoset_assets.hosted import HostedProject
from nanoset_assets.names import Names
from nanoset_core.config.project import ProjectConfig
from nanoset_core.pipeline.raw import INVENTORY
from nanoset_core.pipeline.stage import Key, Node, Stage


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


def partitions_of(stage: Stage, hosted: HostedProject, subject: str) -> dg.PartitionsDefinition[str] | None:
    """The partitions of a stage's asset; None for an asset without."""
    if stage.by_corpus:
        return hosted.names.corpora
    parts = [key.part for key in keys_of(stage, hosted.config, subject) if key.part is not None]
    return dg.StaticPartitionsDefinition(parts) if parts else None


def dependencies_of(stage: Stage, hosted: HostedProject, subject: str) -> list[dg.AssetDep]:
    """What a stage's asset depends on: of the assets of corpora, on no other corpora than it is made of."""
    if stage is INVENTORY:
        # Which of its corpora an asset lands is no partition mapping that Dagster could show: that of all is shown.
        landing = dict.fromkeys(key for keys in hosted.upstream.values() for key in keys)
        return [dg.AssetDep(key, partition_mapping=dg.AllPartitionMapping()) for key in landing]
    keys = [Key(subject)] if stage.by_corpus else keys_of(stage, hosted.config, subject)
    inputs: dict[tuple[str, ...], list[Node]] = {}
    for key in keys:
        for node in Node(stage, key).direct_inputs(hosted.config):
            inputs.setdefault(node.asset, []).append(node)
    return [_dependency(stage, hosted.names, asset, nodes) for asset, nodes in inputs.items()]


def _dependency(stage: Stage, names: Names, asset: tuple[str, ...], nodes: list[Node]) -> dg.AssetDep:
    if stage.by_corpus or not nodes[0].stage.by_corpus:
        return dg.AssetDep(names.asset(asset))
    corpora = list(dict.fromkeys(node.key.subject for node in nodes))
    return dg.AssetDep(names.asset(asset), partition_mapping=dg.SpecificPartitionsPartitionMapping(corpora))
