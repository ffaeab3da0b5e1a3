"""Where the tokens of documents lie in the sequences of a dataset: those of a corpus or view, or packs."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.indexed.stream import token_starts
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline.packs import is_packs, pieces_of


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
    if is_packs(manifest):
        table = pieces_of(manifest)
        rows = {pack: table.of_packs(pack, pack + 1).tolist() for pack in dict.fromkeys(spans[:, 0].tolist())}
        some = ((begin, end, [_of_row(row) for row in rows[pack]]) for pack, begin, end in spans.tolist())
        return [[part for part in parts if part.begin < end and begin < part.end] for begin, end, parts in some]
    bounds = dataset.document_indices
    documents = [bisect_right(bounds, sequence) - 1 for sequence in spans[:, 0].tolist()]
    # A document's first sequence is where its tokens begin.
    firsts = token_starts(dataset, spans[:, 0]) - token_starts(dataset, bounds[documents])
    lengths = dataset.sequence_lengths[spans[:, 0]]
    columns = zip(spans[:, 0].tolist(), lengths.tolist(), firsts.tolist(), documents, strict=True)
    return [[Part(sequence, 0, length, first, document)] for sequence, length, first, document in columns]


def _of_row(row: list[int]) -> Part:
    pack, begin, document, first, tokens = row
    return Part(pack, begin, begin + tokens, first, document)
