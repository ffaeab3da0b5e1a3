"""nanoset's core: formats and algorithms from raw text to training samples, in numpy. It knows nothing of Dagster."""

from nanoset_core.indexed import MMapIndexedDataset, MMapIndexedDatasetBuilder, merge_indexed_datasets
from nanoset_core.loading.blended import BlendedNanoset
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.loading.config import NanosetConfig
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.mapping.blending import build_blending_indices
from nanoset_core.mapping.sample_index import build_sample_index
from nanoset_core.packed import PackedDataset

__all__ = [
    "BlendedNanoset",
    "MMapIndexedDataset",
    "MMapIndexedDatasetBuilder",
    "Nanoset",
    "NanosetBuilder",
    "NanosetConfig",
    "PackedDataset",
    "build_blending_indices",
    "build_sample_index",
    "load_nanoset",
    "merge_indexed_datasets",
]
