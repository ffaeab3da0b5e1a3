"""Where the tokens of documents lie in the sequences of a dataset: those of a corpus or view, or packs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import places_upto, token_starts
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.packs.stage import is_packs, pieces_of


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
        return [_of_row(row) for row in pieces_of(manifest).of_documents(np.array([document])).tolist()]
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
        low, high = (np.searchsorted(rows[:, 0], spans[:, 0], side) for side in ("left", "right"))
        counts = high - low
        own = np.repeat(numbers, counts)
        at = np.arange(len(own)) + np.repeat(low - (np.cumsum(counts) - counts), counts)
        pack, begin, document, first, tokens = rows[at].T
        parts: NDArray[np.int64] = np.column_stack([own, pack, begin, begin + tokens, first, document])
        has_tokens: NDArray[np.bool_] = (begin < spans[own, 2]) & (spans[own, 1] < begin + tokens)
        return parts[has_tokens]
    bounds = dataset.document_indices
    documents = places_upto(bounds, spans[:, 0])
    # A document's first sequence is where its tokens begin.
    firsts = token_starts(dataset, spans[:, 0]) - token_starts(dataset, bounds[documents])
    lengths = dataset.sequence_lengths[spans[:, 0]]
    return np.column_stack([numbers, spans[:, 0], np.zeros_like(numbers), lengths, firsts, documents])


def _of_row(row: list[int]) -> Part:
    pack, begin, document, first, tokens = row
    return Part(pack, begin, begin + tokens, first, document)
