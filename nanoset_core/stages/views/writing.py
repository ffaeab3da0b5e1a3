"""The .idx of a view: the documents that were chosen of a dataset, pointing into its .bin.

Source: what Megatron-LM's `_IndexWriter` writes and `IndexedDataset` reads: a sequence lies where
    its pointer says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

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

Documents = Callable[[], Iterable[NDArray[np.int64]]]
"""Gives the numbers of the chosen documents in order, int64, some at a time; called more than once."""


def write_view_idx(path: Path, base: Index, documents: Documents) -> tuple[int, int]:
    """Write an .idx of some documents of a dataset, and return how many sequences and documents it
    has.

    Twenty bytes are written for a document of one sequence; memory is that of one chunk of
    documents.
    """
    count = sequences = 0
    for some in documents():
        count += len(some)
        sequences += int((base.document_indices[some + 1] - base.document_indices[some]).sum())
    with path.open("xb") as file:
        file.write(HEADER.pack(MAGIC, VERSION, dtype_code(base.dtype), sequences, count + 1))
        for rows in _sequences(base, documents):
            file.write(base.sequence_lengths[rows].data.cast("B"))
        for rows in _sequences(base, documents):
            file.write(base.sequence_pointers[rows].data.cast("B"))
        last = np.zeros(1, "<i8")
        file.write(last.data.cast("B"))
        for some in documents():
            ends = last + np.cumsum(base.document_indices[some + 1] - base.document_indices[some])
            file.write(ends.astype("<i8", copy=False).data.cast("B"))
            last = ends[-1:]
    return sequences, count


def _sequences(base: Index, documents: Documents) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of the documents' sequences."""
    for some in documents():
        firsts = base.document_indices[some]
        counts = base.document_indices[some + 1] - firsts
        if counts.any():
            yield positions_in(firsts, counts)
