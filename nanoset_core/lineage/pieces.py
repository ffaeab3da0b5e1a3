"""Where the tokens of documents lie in the sequences of a dataset: those of a corpus or view, or packs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.formats.indexed.stream import places_upto, token_starts
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.datasets import is_packs, pieces_of


class Part(NamedTuple):
    """Consecutive tokens of a document that lie in one sequence."""

    sequence: int
    """Its number."""
    begin: int
    """Of them within the sequence."""
    end: int
    """Their end (excl) within the sequence."""
    first: int
    """Number of the first of them within the document."""
    document: int
    """Number of the document: of packs, in the dataset that was packed."""


def parts_of(manifest: Manifest, dataset: MMapIndexedDataset, document: int) -> list[Part]:
    """Return where a document lies, in the order of sequences; also sequences without tokens, but of packs."""
    if is_packs(manifest):
        rows = pieces_of(manifest).of_documents(np.array([document]))
        stops = rows.begins + rows.tokens
        columns = (rows.packs, rows.begins, stops, rows.firsts, rows.documents)
        return [Part(*row) for row in np.stack(columns, axis=1).tolist()]
    bounds = dataset.document_indices[document : document + 2].tolist()
    lengths = dataset.sequence_lengths[bounds[0] : bounds[1]].tolist()
    firsts = [0, *np.cumsum(lengths).tolist()]
    places = zip(range(*bounds), lengths, firsts, strict=False)
    return [Part(sequence, 0, length, first, document) for sequence, length, first in places]


def parts_in(manifest: Manifest, dataset: MMapIndexedDataset, spans: NDArray[np.int64]) -> list[list[Part]]:
    """Return the whole parts that have tokens in each of some spans (sequence, first token, end excl)."""
    found: list[list[Part]] = [[] for _ in spans]
    for span, *part in spread(manifest, dataset, spans).tolist():
        found[span].append(Part(*part))
    return found


def spread(manifest: Manifest, dataset: MMapIndexedDataset, spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the same as int64, shape (parts, 6): the row of the span, and the fields of the part; in order."""
    numbers = np.arange(len(spans))
    if is_packs(manifest):
        rows = pieces_of(manifest).of_packs(spans[:, 0])
        # Pair each span with all pieces of its pack; the rows are sorted by pack.
        start = np.searchsorted(rows.packs, spans[:, 0], side="left")
        stop = np.searchsorted(rows.packs, spans[:, 0], side="right")
        span = np.repeat(numbers, stop - start)
        pieces = rows.select(positions_in(start, stop - start))

        # Keep the pieces that have tokens in the span.
        stops = pieces.begins + pieces.tokens
        has_tokens: NDArray[np.bool_] = (pieces.begins < spans[span, 2]) & (spans[span, 1] < stops)
        parts: NDArray[np.int64] = np.column_stack(
            [span, pieces.packs, pieces.begins, stops, pieces.firsts, pieces.documents]
        )
        return parts[has_tokens]
    bounds = dataset.document_indices
    documents = places_upto(bounds, spans[:, 0])
    # A document's first sequence is where its tokens begin.
    firsts = token_starts(dataset, spans[:, 0]) - token_starts(dataset, bounds[documents])
    lengths = dataset.sequence_lengths[spans[:, 0]]
    return np.column_stack([numbers, spans[:, 0], np.zeros_like(numbers), lengths, firsts, documents])
