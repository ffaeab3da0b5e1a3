"""Write the .idx of a view: an index of the chosen documents that points into the corpus's .bin.

The format is what Megatron-LM's `_IndexWriter` writes. Its `IndexedDataset` reads a sequence from
wherever the sequence's pointer says, so that the tokens need not be copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import (
    HEADER,
    MAGIC,
    VERSION,
    Index,
    dtype_code,
    positions_in,
)

DocumentChunks = Callable[[], Iterable[NDArray[np.int64]]]
"""Returns the numbers of the chosen documents in order, in chunks. It is called several times."""


class ViewSize(NamedTuple):
    """What the .idx of a view contains."""

    sequences: int
    documents: int


def write_view_idx(path: Path, base: Index, chunks: DocumentChunks) -> ViewSize:
    """Write an .idx of some documents of a dataset; return what it contains.

    The documents are read once to count them, and then once for each array of the file, so that
    only one chunk of documents is in memory. A document of one sequence takes 20 bytes in the file.

    Args:
        path: The file to create, which must not exist.
        base: The index of the dataset.
        chunks: Returns the numbers of the documents, in chunks.
    """
    n_documents = 0
    n_sequences = 0
    for documents in chunks():
        n_documents += len(documents)
        n_sequences += int(_sequence_counts(base, documents).sum())

    with path.open("xb") as file:
        file.write(
            HEADER.pack(MAGIC, VERSION, dtype_code(base.dtype), n_sequences, n_documents + 1)
        )
        for sequences in _sequence_chunks(base, chunks):
            file.write(base.sequence_lengths[sequences].data.cast("B"))
        for sequences in _sequence_chunks(base, chunks):
            file.write(base.sequence_pointers[sequences].data.cast("B"))

        # Document indices: a 0, then the sequences up to and including each document.
        sequences_before = 0
        file.write(np.zeros(1, "<i8").tobytes())
        for documents in chunks():
            stops = sequences_before + np.cumsum(_sequence_counts(base, documents))
            file.write(stops.astype("<i8", copy=False).data.cast("B"))
            sequences_before = int(stops[-1])
    return ViewSize(n_sequences, n_documents)


def _sequence_counts(base: Index, documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of sequences of each document, shape (len(documents),)."""
    starts = base.document_indices[documents]  # (n_documents,) first sequence of each
    stops = base.document_indices[documents + 1]
    counts: NDArray[np.int64] = stops - starts
    return counts


def _sequence_chunks(base: Index, chunks: DocumentChunks) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of the documents' sequences in the dataset, chunk by chunk."""
    for documents in chunks():
        counts = _sequence_counts(base, documents)
        if counts.any():  # an empty array cannot be written as bytes
            yield positions_in(base.document_indices[documents], counts)
