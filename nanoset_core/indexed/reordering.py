"""Writing the documents of an indexed dataset in another order."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from nanoset_core.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.indexed.dataset import MMapIndexedDataset

CHUNK_TOKENS = 1 << 22
CHUNK_DOCUMENTS = 1 << 16


def deal_documents(source: str | os.PathLike[str], target: str | os.PathLike[str], partitions: int) -> None:
    """Write a dataset's documents as if dealt to `partitions` files in turn, and these joined: 0, P, 2P, …, 1, P + 1, …

    The order that Megatron-LM's `preprocess_data.py --partitions P` gives.

    Args:
        source: prefix of the dataset.
        target: prefix of the dataset to write.
        partitions: P.

    Raises:
        MissingError, FormatError: the dataset is not there, or damaged.
    """
    dataset = MMapIndexedDataset(source)
    documents = len(dataset.document_indices) - 1
    with MMapIndexedDatasetBuilder(target, dataset.dtype) as builder:
        for partition in range(min(partitions, documents)):
            for begin in range(partition, documents, partitions * CHUNK_DOCUMENTS):
                end = min(begin + partitions * CHUNK_DOCUMENTS, documents)
                _add(builder, dataset, np.arange(begin, end, partitions))


def _add(builder: MMapIndexedDatasetBuilder, dataset: MMapIndexedDataset, documents: NDArray[np.int64]) -> None:
    """Add documents in the order given, some tokens at a time."""
    firsts, ends = dataset.document_indices[documents], dataset.document_indices[documents + 1]
    counts = ends - firsts
    # (sequences,): the documents' sequences, in order
    sequences = np.repeat(firsts - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
    lengths = dataset.sequence_lengths[sequences].astype(np.int64)
    starts = dataset.sequence_pointers[sequences] // dataset.dtype.itemsize
    # (documents + 1,): tokens before each document, so that chunks can be cut between documents
    before = np.concatenate(([0], np.cumsum(lengths)))[np.concatenate(([0], np.cumsum(counts)))]
    at = 0
    while at < len(documents):
        stop = max(int(np.searchsorted(before, before[at] + CHUNK_TOKENS, side="right")) - 1, at + 1)
        first, last = int(counts[:at].sum()), int(counts[:stop].sum())
        part, begin = lengths[first:last], starts[first:last]
        # (tokens,): where each token of the chunk lies in the .bin
        places = np.repeat(begin - (np.cumsum(part) - part), part) + np.arange(int(part.sum()))
        builder.add_documents(dataset.tokens[places], part, counts[at:stop])
        at = stop
