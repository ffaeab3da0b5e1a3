"""nanoset's core: formats and algorithms from raw text to training samples, in numpy. It knows
nothing of Dagster.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanoset_core.formats.indexed.builder import (
        MMapIndexedDatasetBuilder,
        merge_indexed_datasets,
    )
    from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
    from nanoset_core.formats.pbin.dataset import PackedDataset
    from nanoset_core.loading.blended_nanoset import BlendedNanoset
    from nanoset_core.loading.boundaries import collate_varlen
    from nanoset_core.loading.builder import NanosetBuilder
    from nanoset_core.loading.nanoset import Nanoset
    from nanoset_core.loading.opening import load_nanoset
    from nanoset_core.loading.samplers import (
        CyclicSampler,
        InterleavedSampler,
        PretrainingSampler,
        ResumableSampler,
    )
    from nanoset_core.loading.shard_reader import ShardReader
    from nanoset_core.loading.tar_files import iterate_shard, iterate_shards
    from nanoset_core.project.settings import ProjectConfig, load_config
    from nanoset_core.sampling.blending import build_blending_indices
    from nanoset_core.sampling.config import NanosetConfig
    from nanoset_core.sampling.sample_index import build_sample_index
    from nanoset_core.storage.settings import StorageSpec

__all__ = [
    "BlendedNanoset",
    "CyclicSampler",
    "InterleavedSampler",
    "MMapIndexedDataset",
    "MMapIndexedDatasetBuilder",
    "Nanoset",
    "NanosetBuilder",
    "NanosetConfig",
    "PackedDataset",
    "PretrainingSampler",
    "ProjectConfig",
    "ResumableSampler",
    "ShardReader",
    "StorageSpec",
    "build_blending_indices",
    "build_sample_index",
    "collate_varlen",
    "iterate_shard",
    "iterate_shards",
    "load_config",
    "load_nanoset",
    "merge_indexed_datasets",
]

_MODULES = {
    "BlendedNanoset": "loading.blended_nanoset",
    "CyclicSampler": "loading.samplers",
    "InterleavedSampler": "loading.samplers",
    "MMapIndexedDataset": "formats.indexed.dataset",
    "MMapIndexedDatasetBuilder": "formats.indexed.builder",
    "Nanoset": "loading.nanoset",
    "NanosetBuilder": "loading.builder",
    "NanosetConfig": "sampling.config",
    "PackedDataset": "formats.pbin.dataset",
    "PretrainingSampler": "loading.samplers",
    "ProjectConfig": "project.settings",
    "ResumableSampler": "loading.samplers",
    "ShardReader": "loading.shard_reader",
    "StorageSpec": "storage.settings",
    "build_blending_indices": "sampling.blending",
    "build_sample_index": "sampling.sample_index",
    "collate_varlen": "loading.boundaries",
    "iterate_shard": "loading.tar_files",
    "iterate_shards": "loading.tar_files",
    "load_config": "project.settings",
    "load_nanoset": "loading.opening",
    "merge_indexed_datasets": "formats.indexed.builder",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: opening a nanoset takes little longer than
    importing numpy.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
