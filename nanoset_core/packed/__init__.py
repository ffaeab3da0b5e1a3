"""Packed datasets: the `.pbin` files of Modalities."""

from nanoset_core.loading.samplers import ResumableSampler
from nanoset_core.packed.dataset import ContinuousSamples, DocumentBlocks, PackedDataset
from nanoset_core.packed.layout import IndexFacts, token_size_bytes
from nanoset_core.packed.raw_index import RawIndexFacts, create_raw_index
from nanoset_core.packed.selection import (
    DocumentFilter,
    filter_packed,
    merge_packed,
    shuffle_packed,
    shuffle_packed_chunk,
)
from nanoset_core.packed.writing import PackedFacts, pack_indexed_dataset, write_packed

__all__ = [
    "ContinuousSamples",
    "DocumentBlocks",
    "DocumentFilter",
    "IndexFacts",
    "PackedDataset",
    "PackedFacts",
    "RawIndexFacts",
    "ResumableSampler",
    "create_raw_index",
    "filter_packed",
    "merge_packed",
    "pack_indexed_dataset",
    "shuffle_packed",
    "shuffle_packed_chunk",
    "token_size_bytes",
    "write_packed",
]
