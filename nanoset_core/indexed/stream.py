"""The tokens of a dataset's sequences as one stream, wherever in the .bin the sequences lie.

Of sequences that lie back to back and fill the .bin, the stream is the .bin. Those of a view lie anywhere in it, in any
order, and more than once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.indexed import layout
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.indexed.layout import Index, Tokens

Sequences = Index | MMapIndexedDataset
"""What says where sequences lie."""


def is_back_to_back(sequences: Sequences) -> bool:
    """Return whether each sequence begins where the one in front of it ends, the first at the beginning."""
    return layout.is_back_to_back(sequences.sequence_lengths, sequences.sequence_pointers, sequences.dtype.itemsize)


def token_starts(dataset: MMapIndexedDataset, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of the first token of each of some sequences, int64; behind the last one, of the end."""
    starts = np.full(len(sequences), dataset.token_count, np.int64)
    inside = sequences < len(dataset)
    starts[inside] = dataset.sequence_pointers[sequences[inside]] // dataset.dtype.itemsize
    return starts


class Stream:
    """All tokens of some sequences, one sequence after the other; takes 16 bytes of memory a sequence."""

    def __init__(self, sequences: Sequences) -> None:
        self._ends = np.cumsum(sequences.sequence_lengths, dtype=np.int64)
        self._begins = sequences.sequence_pointers // sequences.dtype.itemsize

    @property
    def tokens(self) -> int:
        """How many there are."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def starts(self, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the first token of each of some sequences, int64; behind the last one, of the end."""
        if not len(self._ends):
            return np.zeros(len(sequences), np.int64)
        return np.where(sequences > 0, self._ends[sequences - 1], 0)

    def ranges(
        self, starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where ranges of the stream lie in the .bin: (first tokens, lengths) of all pieces, in order, int64."""
        kept = lengths > 0
        starts, stops = starts[kept], starts[kept] + lengths[kept]
        first = np.searchsorted(self._ends, starts, side="right")
        counts = np.searchsorted(self._ends, stops, side="left") - first + 1
        before = np.cumsum(counts) - counts
        sequences = np.repeat(first - before, counts) + np.arange(int(counts.sum()))
        ends = self._ends[sequences]
        own = np.where(sequences > 0, self._ends[sequences - 1], 0)
        low, high = np.maximum(own, np.repeat(starts, counts)), np.minimum(ends, np.repeat(stops, counts))
        filled = high > low
        return (self._begins[sequences] + low - own)[filled], (high - low)[filled]


def gathered(tokens: Tokens, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Return the tokens of some ranges, one after the other."""
    before = np.cumsum(lengths) - lengths
    return tokens[np.repeat(begins - before, lengths) + np.arange(int(lengths.sum()))]
