"""Indexed datasets: the `.bin`/`.idx` pairs that trainers read."""

from nanoset_core.indexed.builder import MMapIndexedDatasetBuilder, merge_indexed_datasets
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.indexed.layout import optimal_dtype, read_idx

__all__ = ["MMapIndexedDataset", "MMapIndexedDatasetBuilder", "merge_indexed_datasets", "optimal_dtype", "read_idx"]
