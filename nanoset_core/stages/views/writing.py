"""The .idx of a view: the documents that were chosen of a dataset, pointing into its .bin.

Source: what Megatron-LM's `_IndexWriter` writes and `IndexedDataset` reads: a sequence lies where its pointer says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import HEADER, MAGIC, VERSION, Index, dtype_code, positions_in
from nanoset_core.formats.indexed.stream import Sequences, places_upto

_CHUNK = 1 << 20
Documents = Callable[[], Iterable[NDArray[np.int64]]]
"""Gives the numbers of the chosen documents in order, int64, some at a time; called more than once."""


def write_view_idx(path: Path, base: Index, documents: Documents) -> tuple[int, int]:
    """Write an .idx of some documents of a dataset, and return how many sequences and documents it has.

    Twenty bytes are written for a document of one sequence; memory is that of one chunk of documents.
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


def documents_in(base: Sequences, view: Sequences, documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which documents of its dataset some documents of a view are, int64.

    A document's first token tells; one without tokens counts as the one whose tokens lie behind it.
    """
    firsts = np.minimum(view.document_indices[documents], max(len(view.sequence_pointers) - 1, 0))
    if not len(view.sequence_pointers):
        return np.zeros(len(documents), np.int64)
    return places_upto(base.document_indices, places_upto(base.sequence_pointers, view.sequence_pointers[firsts]))


def documents_with_tokens(sequences: Sequences, rows: tuple[int, int]) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of the documents with tokens that have one of some sequences, (begin, end excl); int64."""
    bounds = sequences.document_indices
    low, last = places_upto(bounds, [rows[0], rows[1] - 1]).tolist()
    for begin in range(low, last + 1, _CHUNK):
        numbers = np.arange(begin, min(begin + _CHUNK, last + 1))
        numbers = numbers[bounds[numbers + 1] > bounds[numbers]]
        yield numbers[sequences.sequence_lengths[bounds[numbers]] > 0]


def documents_that_are(base: Sequences, view: Sequences, document: int) -> NDArray[np.int64]:
    """Return which documents of a view are one document of its dataset, int64; none for one without tokens."""
    first, end = (int(base.document_indices[number]) for number in (document, document + 1))
    if first == end or not base.sequence_lengths[first:end].any():
        return np.empty(0, np.int64)
    same = np.flatnonzero(view.sequence_pointers == base.sequence_pointers[first])
    same = same[view.sequence_lengths[same] == base.sequence_lengths[first]]
    return np.unique(places_upto(view.document_indices, same))
