"""Write the .idx of a view: an index of the chosen documents that points into the corpus's .bin.

The format is what Megatron-LM's `_IndexWriter` writes. Its `IndexedDataset` reads a sequence from
wherever the sequence's pointer says, so that the tokens need not be copied. For example, a corpus
has three documents at the bytes 0, 600 and 900 of its .bin. The .idx of a view of the last and the
first one lists 900 and 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
    """Write an index file of some documents of a corpus, by which trainers read only these.

    All tokens stay in the file of the corpus (its .bin). The index says where those of each
    document are. For the documents 3 and 0 of a corpus, after a header:

        sequence_lengths     int32    tokens of each sequence               40, 600
        sequence_pointers    int64    its first byte in the .bin            1800, 0
        document_indices     int64    first sequence of each document,      0, 1, 2
                                      and the number of sequences

    Args:
        path: The file to create, which must not exist.
        base: The index of the corpus.
        chunks: Returns the numbers of the documents, some at a time, such as [3] and then [0]. It
            is called again for each array, so that memory never holds all of them.

    Returns:
        How many sequences and documents the index has.
    """
    size = _size_of(base, chunks)
    n_indices = size.documents + 1
    header = HEADER.pack(MAGIC, VERSION, dtype_code(base.dtype), size.sequences, n_indices)
    with path.open("xb") as file:
        file.write(header)
        for sequences in _sequence_chunks(base, chunks):  # [3], then [0]
            file.write(_bytes_of(base.sequence_lengths[sequences]))
        for sequences in _sequence_chunks(base, chunks):
            file.write(_bytes_of(base.sequence_pointers[sequences]))
        for document_indices in _document_index_chunks(base, chunks):
            file.write(_bytes_of(document_indices))
    return size


def view_lengths(base: Index, chunks: DocumentChunks) -> NDArray[np.int32]:
    """Return the lengths that the index file of a view has, without writing the file.

    Args:
        base: The index of the corpus.
        chunks: Returns the numbers of the documents, some at a time.

    Returns:
        Tokens of every sequence, shape (n_sequences,).
    """
    parts = [np.empty(0, np.int32)]  # the dtype of the result if the view is empty
    for sequences in _sequence_chunks(base, chunks):
        parts.append(base.sequence_lengths[sequences])
    return np.concatenate(parts)


def _size_of(base: Index, chunks: DocumentChunks) -> ViewSize:
    """Count the chosen documents and their sequences."""
    n_documents = 0
    n_sequences = 0
    for documents in chunks():
        n_documents += len(documents)
        n_sequences += int(_sequence_counts(base, documents).sum())
    return ViewSize(n_sequences, n_documents)


def _document_index_chunks(base: Index, chunks: DocumentChunks) -> Iterator[NDArray[np.int64]]:
    """Yield where each document of a view starts: the number of its first sequence.

    Documents consist of sequences of tokens, which are numbered anew in the view:

        document            0    1    2    end
        its sequences       1    2    1
        first sequence      0    1    3    4        yields [0], and then [1, 3, 4]

    Args:
        base: The index of the corpus, with the sequences of each document.
        chunks: Returns the numbers of the view's documents in the corpus, some at a time.
    """
    yield np.zeros(1, "<i8")
    n_sequences = 0  # of the documents so far
    for documents in chunks():
        sequence_counts = _sequence_counts(base, documents)  # [1, 2, 1]
        starts_of_next = n_sequences + np.cumsum(sequence_counts)  # [1, 3, 4]
        yield starts_of_next.astype("<i8", copy=False)
        n_sequences = int(starts_of_next[-1])


def _bytes_of(array: NDArray[Any]) -> memoryview:
    """Return the bytes of an array, which must not be empty, without copying them."""
    return array.data.cast("B")


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
